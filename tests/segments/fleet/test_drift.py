"""Histories of flows against the truth: closer where flows stay, not worse where they move, and intervals hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from tests.segments.fleet.drift_world import CLASSES, WORLDS, Traffic, answered, fast, set_twice

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.estimates import FlowDelays
from sojourn.estimation.posterior.history import History
from sojourn.lab.two_point import FlowTruth
from sojourn.segments.fleet.answers import RunAnswer, combine
from sojourn.segments.fleet.clocks import ClockAt
from sojourn.segments.fleet.stored import answer_bytes, read_history

IN_STEP = ClockAt(0.0, 0.0, 0.0, "the test")
# Flows and runs of a class, below which a share says nothing.
ENOUGH = 100


@dataclass(frozen=True, eq=False)
class Compared:
    """The flows of runs: packets, errors and whether intervals hold; of the runs alone, and with history."""

    packets: Int64Array
    error: FloatArray
    holds: BoolArray

    @classmethod
    def of(cls, parts: list[Compared]) -> Compared:
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in ("packets", "error", "holds"))
        return cls(*columns)


def row_of(flows: FlowDelays, truth: FlowTruth) -> Int64Array:
    """The rows of the truth's flows, whose ids are sorted."""
    order = np.argsort(flows.flow_id)
    return order[np.searchsorted(flows.flow_id, truth.flow_id, sorter=order)]


def compared(answer: RunAnswer, truth: FlowTruth, lead_ns: float = 0.0) -> Compared:
    flows = answer.interval.flows
    assert flows is not None
    flows = flows.at(row_of(flows, truth))
    told = flows.answered & (truth.received > 0)
    error = np.abs(flows.mean_ns - truth.mean_ns) / (truth.mean_ns - lead_ns)
    holds = (flows.low_ns - 1 <= truth.mean_ns) & (truth.mean_ns <= flows.high_ns + 1)
    return Compared(truth.received[told], error[told], holds[told])


@cache
def figures(traffic: Traffic, memory_bytes: int, seeds: int = 2) -> tuple[Compared, Compared]:
    """All runs but the first two, which have hardly a history."""
    alone, together = [], []
    for seed in range(seeds):
        for number, (one, other, truth) in enumerate(answered(traffic, memory_bytes, seed=seed)):
            if number >= 2:
                lead = float(traffic.lead(np.array([(number + 0.5) * 5e9]))[0])
                alone.append(compared(one, truth, lead))
                together.append(compared(other, truth, lead))
    return Compared.of(alone), Compared.of(together)


def holds_in_classes(found: Compared) -> dict[str, float]:
    """The share of intervals that hold in each class that has enough flows."""
    shares = {}
    for name, (least, most) in CLASSES.items():
        rows = (found.packets >= least) & (found.packets < most)
        if rows.sum() >= ENOUGH:
            shares[name] = float(found.holds[rows].mean())
    return shares


def lowest_holding(found: Compared) -> float:
    """The least share of a class, with what chance may take off 90 %: below that are one of a thousand."""
    shares = holds_in_classes(found)
    counts = {
        name: np.sum((found.packets >= least) & (found.packets < most)) for name, (least, most) in CLASSES.items()
    }
    return min(share + 3.1 * np.sqrt(0.09 / counts[name]) for name, share in shares.items())


def is_not_worse(alone: Compared, together: Compared) -> None:
    assert together.error.mean() <= 1.05 * alone.error.mean()
    assert np.median(together.error) <= 1.05 * np.median(alone.error)
    assert lowest_holding(together) >= 0.9


@pytest.mark.parametrize("world", ["steady", "trend", "two_paths"])
def test_histories_make_no_world_worse_and_intervals_hold_by_size(world: str) -> None:
    is_not_worse(*figures(Traffic(world), 32_000, seeds=1))


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("loss", [0.001, 0.01, 0.05])
def test_histories_make_no_world_worse_at_any_loss(world: str, loss: float) -> None:
    is_not_worse(*figures(Traffic(world, loss=loss), 32_000))


@pytest.mark.long
@pytest.mark.parametrize("memory", [4_000, 8_000, 16_000])
@pytest.mark.parametrize("world", ["steady", "walk", "two_paths", "redrawn"])
def test_histories_make_no_world_worse_in_little_memory(world: str, memory: int) -> None:
    """There, of the intervals of runs alone fewer than 90 % hold in some classes."""
    alone, together = figures(Traffic(world, flows=200), memory)
    assert together.error.mean() <= 1.05 * alone.error.mean()
    before = holds_in_classes(alone)
    for name, share in holds_in_classes(together).items():
        assert share >= min(0.9, before[name] - 0.02)


def test_flows_that_stay_are_answered_closer() -> None:
    alone, together = figures(Traffic("steady"), 32_000, seeds=1)
    for (least, most), factor in zip(CLASSES.values(), (0.93, 0.85, 0.75, 0.6), strict=True):
        rows = (alone.packets >= least) & (alone.packets < most)
        assert together.error[rows].mean() <= factor * alone.error[rows].mean()


def test_flows_of_which_nothing_lasts_are_answered_as_if_alone() -> None:
    alone, together = figures(Traffic("redrawn"), 32_000, seeds=1)
    assert len(alone.error) > 100
    np.testing.assert_array_equal(alone.error, together.error)


@pytest.mark.parametrize("lead", [fast, set_twice])
def test_a_clock_that_drifts_or_is_set_moves_histories_along(lead: Callable[[Int64Array], FloatArray]) -> None:
    alone, together = figures(Traffic("steady", lead=lead), 32_000, seeds=1)
    assert together.error.mean() <= 0.95 * alone.error.mean()
    assert lowest_holding(together) >= 0.9


@pytest.mark.parametrize("world", ["steady", "trend"])
def test_the_intervals_of_ten_runs_as_one_hold(world: str) -> None:
    """Errors that histories carry from run to run are common to them, as `combine` takes all errors to be."""
    runs = list(answered(Traffic(world), 32_000, seed=3))
    flows = combine([one for _, one, _ in runs], [IN_STEP] * len(runs)).flows
    assert flows is not None
    sums, packets = np.zeros(len(flows.flow_id)), np.zeros(len(flows.flow_id), np.int64)
    for *_, truth in runs:
        at = np.searchsorted(flows.flow_id, truth.flow_id)
        sums[at] += np.nan_to_num(truth.mean_ns * truth.received)
        packets[at] += truth.received
    mean = sums / np.maximum(packets, 1)
    told = flows.answered & (packets > 0)
    found = Compared(packets[told], mean[told], ((flows.low_ns <= mean) & (mean <= flows.high_ns))[told])
    assert min(holds_in_classes(found).values()) >= 0.9


def test_what_is_exact_stays_exact() -> None:
    runs = list(answered(Traffic(flows=60, loss=0.0, runs=3), 256_000, seed=1))
    for alone, together, truth in runs:
        one, other = alone.interval.flows, together.interval.flows
        assert one is not None
        assert other is not None
        exact = one.high_ns - one.low_ns <= 4
        assert exact.mean() > 0.9
        np.testing.assert_array_equal(one.mean_ns[exact], other.mean_ns[exact])
        assert np.abs(other.mean_ns - truth.mean_ns[np.searchsorted(truth.flow_id, other.flow_id)])[exact].max() <= 2


def test_a_stored_answer_gives_the_next_run_the_same_history() -> None:
    (*_, (_, answer, _)) = answered(Traffic(flows=80, runs=2), 8_000, seed=2)
    flows = answer.interval.flows
    assert flows is not None
    one, other = History.of(flows), read_history(answer_bytes(answer))
    for name in ("flow_id", "value", "variance", "answered"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    # As answers were stored before they had states.
    before = replace(flows, state_ns=None, state_variance=None)
    older = replace(answer, interval=replace(answer.interval, flows=before))
    assert not len(read_history(answer_bytes(older)).flow_id)
