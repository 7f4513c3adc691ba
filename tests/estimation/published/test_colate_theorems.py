"""COLATE's Theorem 3 and virtual repetitions: the root is the most likely one, the closed form is their limit."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special

from sojourn.core.errors import ParameterError
from sojourn.estimation.published.colate import all_repetitions
from sojourn.estimation.published.colate_deviation import stranger_part, virtual_repetitions


@given(st.floats(0, 1e17), st.integers(2, 10**6))
def test_the_root_solves_equation_7(total: float, counters: int) -> None:
    def equation(xi: float) -> float:
        return special.digamma(total - xi + 1) - special.digamma(xi + 1) - np.log(counters - 1)

    theirs = optimize.brentq(equation, -1 + 1e-14, total + 1 - 1e-14 * max(1, total), xtol=1e-12, rtol=1e-14)
    assert stranger_part(np.array([total]), counters)[0] == pytest.approx(theirs, rel=1e-9, abs=1e-9)


def test_the_root_is_where_the_likelihood_peaks() -> None:
    """The binomial likelihood itself, over all whole numbers: the root lies within one of the best."""
    total, counters = 5000, 40
    xi = np.arange(total + 1)
    log_likelihood = (
        special.gammaln(total + 1) - special.gammaln(xi + 1) - special.gammaln(total - xi + 1)
        + xi * np.log(1 / counters) + (total - xi) * np.log1p(-1 / counters)
    )  # fmt: skip
    assert abs(stranger_part(np.array([float(total)]), counters)[0] - xi[log_likelihood.argmax()]) < 1


def test_the_root_is_close_to_an_equal_share() -> None:
    for total in (1e4, 1e9, 1e15):
        assert stranger_part(np.array([total]), 1000)[0] == pytest.approx(total / 1000, abs=0.6)


def test_what_theorem_3_cannot_answer_is_refused() -> None:
    with pytest.raises(ParameterError, match="1 counters"):
        stranger_part(np.array([5.0]), 1)
    with pytest.raises(ParameterError, match="-5"):
        stranger_part(np.array([-5.0]), 10)
    with pytest.raises(ParameterError, match="0 virtual"):
        virtual_repetitions(np.array([1.0, 2.0]), 0)


@given(st.lists(st.integers(-(10**6), 10**6), min_size=6, max_size=6))
def test_the_closed_form_is_the_mean_over_all_permutations(values: list[int]) -> None:
    sums = [sum((order[2 * k + 1] - order[2 * k]) ** 2 for k in range(3)) for order in permutations(values)]
    assert all_repetitions(np.array(values, np.float64)) == pytest.approx(np.mean(sums), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("counters", [2, 7, 20])
def test_virtual_repetitions_converge_to_the_closed_form(counters: int) -> None:
    """10 000 repetitions, each within ± 100 % of the mean or so: 5 % is more than 5 standard errors."""
    difference = np.random.default_rng(counters).normal(100, 30, counters)
    assert virtual_repetitions(difference, 10_000, seed=1) == pytest.approx(all_repetitions(difference), rel=0.05)


def test_repetitions_are_repeatable_and_a_constant_cancels() -> None:
    difference = np.random.default_rng(1).normal(0, 1e6, 20)
    once = virtual_repetitions(difference, 50, seed=3)
    assert virtual_repetitions(difference, 50, seed=3) == once
    assert virtual_repetitions(difference + 12345.0, 50, seed=3) == pytest.approx(once, rel=1e-9)
    assert virtual_repetitions(difference, 50, seed=4) != once
