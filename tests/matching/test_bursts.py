"""Bursts of loss against the runs of the sorted list of lost packets."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.arrays import Int64Array
from sojourn.matching.bursts import FlowBursts
from sojourn.matching.consumers import LostColumns

FLOWS = 50


def world(seed: int) -> tuple[Int64Array, Int64Array]:
    """Lost packets of a two-state (Gilbert) channel, by flow and number."""
    chance = np.random.default_rng(seed)
    flow, number = [], []
    for k in range(FLOWS - 5):
        bad = False
        for n in range(int(chance.integers(1, 600))):
            bad = chance.random() < (0.7 if bad else 0.03)
            if bad:
                flow.append(k)
                number.append(n)
    return np.array(flow), np.array(number)


def runs_of(numbers: Int64Array) -> list[int]:
    return [len(run) for run in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(run)]


@pytest.mark.parametrize("edges", [0, 3, 40, 1000])
@pytest.mark.parametrize("batches", [1, 30])
def test_bursts_are_the_runs_of_lost_numbers_even_if_the_edges_come_last(edges: int, batches: int) -> None:
    flow, number = world(edges + batches)
    late = number < edges
    order = np.lexsort((number, late))  # flows interleave; what lies at the edge comes last
    consumer = FlowBursts()
    for rows in np.array_split(order, batches):
        consumer.take_lost(LostColumns(flow[rows], number[rows], number[rows]))
    columns = consumer.columns(np.arange(FLOWS))
    runs = [runs_of(number[flow == k]) for k in range(FLOWS)]
    np.testing.assert_array_equal(columns["loss_bursts"], [len(run) for run in runs])
    np.testing.assert_array_equal(columns["longest_burst"], [max(run, default=0) for run in runs])
    np.testing.assert_allclose(columns["mean_burst"], [np.mean(run) if run else np.nan for run in runs])
    every = [length for run in runs for length in run]
    expected = {"loss_bursts": len(every), "mean_burst": pytest.approx(np.mean(every)), "longest_burst": max(every)}
    assert consumer.totals(np.arange(FLOWS)) == expected


def test_nothing_lost_is_no_burst() -> None:
    assert FlowBursts().totals(np.array([0, 1])) == {"loss_bursts": 0, "mean_burst": None, "longest_burst": 0}
