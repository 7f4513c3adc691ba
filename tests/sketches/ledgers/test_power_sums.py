"""Power sums: linear, the same by groups of any number, and equal to ten lines of plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import MismatchError
from sojourn.sketches.ledgers.power_sums import (
    LANES,
    PRIME,
    PowerSums,
    add_powers,
    group_of,
    multiplied,
    name_of,
    threshold_for,
)

WORDS = st.integers(0, 2**64 - 1)
NAMES = st.integers(1, PRIME - 1)


def plain_sums(rows: list[tuple[int, int]], groups: int, threshold: int) -> PowerSums:
    """The model: rows of groups and names."""
    counts, sums = np.zeros(groups, np.int64), np.zeros((groups, threshold), np.int64)
    for group, name in rows:
        counts[group % groups] += 1
        for k in range(threshold):
            sums[group % groups, k] = (int(sums[group % groups, k]) + pow(name, k + 1, PRIME)) % PRIME
    return PowerSums(counts, sums)


def equal(one: PowerSums, other: PowerSums) -> bool:
    return np.array_equal(one.counts, other.counts) and np.array_equal(one.sums, other.sums)


ROWS = st.lists(st.tuples(st.integers(0, 7), NAMES), max_size=20)


@given(st.integers(0, PRIME - 1), st.integers(0, PRIME - 1))
def test_products_need_no_division(a: int, b: int) -> None:
    assert int(multiplied(np.uint64(a), np.uint64(b))) == a * b % PRIME


@pytest.mark.parametrize("edge", [0, 1, PRIME - 2, PRIME - 1, 2**31, 2**32 - 6])
def test_products_at_the_edges_of_a_word(edge: int) -> None:
    for other in (1, 2, 5, PRIME - 1, PRIME - 5, 2**16, 2**31 + 7):
        assert int(multiplied(np.uint64(edge % PRIME), np.uint64(other))) == edge % PRIME * other % PRIME


@given(WORDS)
def test_a_name_is_a_residue_that_is_not_zero(word: int) -> None:
    assert 1 <= int(name_of(np.uint64(word))) < PRIME
    assert int(group_of(np.uint64(word), 64)) == word % 64


@given(st.lists(NAMES, min_size=1, max_size=LANES), st.integers(1, 40))
def test_powers_equal_the_model(names: list[int], threshold: int) -> None:
    sums = np.zeros(threshold, np.int64)
    add_powers(sums, np.array(names, np.uint64), len(names), threshold, np.empty(LANES, np.uint64))
    assert (sums % PRIME).tolist() == [sum(pow(x, k + 1, PRIME) for x in names) % PRIME for k in range(threshold)]


@given(ROWS, ROWS)
def test_sums_of_both_streams_add_up_and_subtracting_undoes_it(a: list, b: list) -> None:
    left, right = plain_sums(a, 8, 5), plain_sums(b, 8, 5)
    assert equal(left.plus(right), plain_sums(a + b, 8, 5))
    assert equal(left.plus(right), right.plus(left))
    assert equal(left.plus(right).minus(right), left)


@given(ROWS, st.sampled_from([1, 2, 4, 8]), st.integers(1, 5))
def test_folding_equals_recording_in_fewer_groups(rows: list, groups: int, threshold: int) -> None:
    assert equal(plain_sums(rows, 8, 5).folded(groups, threshold), plain_sums(rows, groups, threshold))


@given(ROWS, ROWS)
def test_the_finer_of_two_folds_to_the_coarser(a: list, b: list) -> None:
    fine, coarse = plain_sums(a, 8, 3), plain_sums(b, 2, 5)
    assert equal(fine.minus(coarse), plain_sums(a, 2, 3).minus(plain_sums(b, 2, 3)))


def test_nothing_unfolds() -> None:
    with pytest.raises(MismatchError, match="fewer than"):
        plain_sums([], 2, 3).folded(4, 3)


@pytest.mark.parametrize("losses", [0.01, 0.5, 3.0, 10.0, 40.0, 200.0])
def test_a_threshold_is_the_quantile_of_a_poisson_distribution(losses: float) -> None:
    least = threshold_for(losses, overfull=1e-3) - 2

    def beyond(count: int) -> float:
        return 1 - math.fsum(math.exp(k * math.log(losses) - losses - math.lgamma(k + 1)) for k in range(count + 1))

    assert beyond(least) <= 1e-3 < beyond(least - 1)
