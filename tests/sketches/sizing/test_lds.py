"""LDS sizing: the Pareto fit's interval covers, the paper's example comes out, collisions are as rare as said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sojourn.core.errors import ParameterError
from sojourn.sketches.sizing.lds import fit_pareto, published_lds, small_collisions


def pareto(random: np.random.Generator, flows: int, shape: float, least: int = 1) -> np.ndarray:
    return np.floor(least * random.uniform(size=flows) ** (-1 / shape)).astype(np.int64)


@pytest.mark.parametrize(("shape", "least"), [(0.8, 1), (1.3, 1), (1.1, 5)])
def test_the_interval_holds_the_true_shape_95_times_of_100(shape: float, least: int) -> None:
    """Of 300 fits, 95 % ± 4 %: outside with probability 0.3 %."""
    random = np.random.default_rng(7)
    fits = [fit_pareto(pareto(random, 400, shape, least)) for _ in range(300)]
    covered = np.mean([fit.low <= shape <= fit.high for fit in fits])
    assert 0.91 <= covered <= 0.99
    assert np.mean([fit.is_plausible for fit in fits]) > 0.9


def test_sizes_of_another_law_are_not_plausible() -> None:
    random = np.random.default_rng(8)
    assert not fit_pareto(random.poisson(20, 500) + 1).is_plausible
    assert not fit_pareto(random.geometric(0.01, 500)).is_plausible


def test_the_tail_is_that_of_whole_packets() -> None:
    random = np.random.default_rng(9)
    sizes = pareto(random, 200_000, 0.9)
    fit = fit_pareto(sizes)
    for packets in (1, 2, 10, 50.5, 500):
        assert fit.tail(packets) == pytest.approx(np.mean(sizes > packets), rel=0.1)


@pytest.mark.parametrize("sizes", [[], [7], [3, 3, 3], [0, 0, 5]])
def test_sizes_that_do_not_differ_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ParameterError):
        fit_pareto(np.array(sizes, np.int64))


def test_the_paper_s_example_comes_out() -> None:
    """n/C = 2, P = 0.04375: 91 % with one row, 98.5 % with the best four; R = 4.2 before rounding."""
    assert small_collisions(500, flows=1000, tail=0.04375, rows=1) == pytest.approx(0.9125)
    assert small_collisions(500, flows=1000, tail=0.04375, rows=4) == pytest.approx(0.985, abs=1e-3)
    assert 1 / (math.e * 0.0875) == pytest.approx(4.20, abs=0.01)
    assert published_lds(1000, tail=0.04375, miss=0.015).rows == 4


@pytest.mark.parametrize("miss", [0.3, 0.05, 0.001])
@pytest.mark.parametrize("spread", [1, 5])
def test_published_cells_are_the_fewest_that_reach_the_target(miss: float, spread: int) -> None:
    sizing = published_lds(10_000, tail=0.03, miss=miss, spread=spread)
    assert sizing.small_collisions >= 1 - miss - 1e-12
    fewer = sizing.rows * sizing.columns - sizing.rows
    assert small_collisions(fewer, flows=10_000, tail=0.03, rows=sizing.rows, spread=spread) < 1 - miss


def simulated_large_collisions(sizes: np.ndarray, rows: int, columns: int, limit: int) -> float:
    """The share of flows that meet more than `limit` packets in every row."""
    random = np.random.default_rng(11)
    large = np.ones(len(sizes), bool)
    for _ in range(rows):
        cell = random.integers(0, columns, len(sizes))
        large &= np.bincount(cell, sizes, columns)[cell] - sizes > limit
    return float(large.mean())


def test_with_few_flows_per_cell_collisions_are_as_rare_as_the_formula_says() -> None:
    sizes = pareto(np.random.default_rng(10), 20_000, 0.8)
    tail = float(np.mean(sizes > 50))
    promised = 1 - small_collisions(40_000, flows=20_000, tail=tail, rows=1)
    assert simulated_large_collisions(sizes, 1, 40_000, 50) == pytest.approx(promised, rel=0.15)


def test_at_the_paper_s_optimum_they_are_two_to_five_times_as_frequent() -> None:
    """Eight flows share a cell there: many small strangers are one large one, which the approximation leaves out."""
    sizes = pareto(np.random.default_rng(10), 20_000, 0.8)
    sizing = published_lds(20_000, tail=float(np.mean(sizes > 50)), miss=0.05)
    assert 0.1 <= simulated_large_collisions(sizes, sizing.rows, sizing.columns, 50) <= 0.25


@pytest.mark.parametrize("change", [{"tail": 0.0}, {"miss": 0.0}, {"miss": 1.0}, {"spread": 0}, {"tail": math.nan}])
def test_what_cannot_be_is_refused(change: dict) -> None:
    with pytest.raises(ParameterError):
        published_lds(**({"flows": 100, "tail": 0.1, "miss": 0.1} | change))
