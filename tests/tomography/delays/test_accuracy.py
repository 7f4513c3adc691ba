"""Errors in worlds that nothing was tuned to, against the goals and against every simpler answer.

Constants were chosen on seeds 1 to 20; all seeds here are beyond 100.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from collection_worlds import simulated
from queue_worlds import QueueTree, queue_tree
from sojourn.core.arrays import Int64Array
from sojourn.tomography.bounds.constraints import bound
from sojourn.tomography.comparison import evaluate, mnt_arrivals, mnt_bounds, published, published_bounds
from sojourn.tomography.delays.estimate import estimate
from sojourn.tomography.reading import read_trace, read_truth
from sojourn.tomography.trace import MISSING, CollectionTrace, PacketRow, make_trace

World = tuple[CollectionTrace, np.ndarray]


@dataclass(frozen=True)
class Errors:
    """Mean absolute errors in ms: ours, MNT's, as published, of the middle of our bounds, of times divided evenly."""

    ours: float
    mnt: float
    published: float
    middle: float
    even: float
    violated: int

    @property
    def best_other(self) -> float:
        return min(self.mnt, self.published, self.middle, self.even)


def evenly(trace: CollectionTrace) -> Int64Array:
    """Arrivals if every hop of a packet took as long."""
    hops = np.diff(trace.start) - 1
    share = (trace.sink_ns - trace.t0_ns) / hops
    return np.rint(np.repeat(trace.t0_ns, hops + 1) + trace.hop * np.repeat(share, hops + 1)).astype(np.int64)


def errors(world: World) -> Errors:
    trace, truth = world
    bounds, baseline, literal = bound(trace), mnt_bounds(trace), published_bounds(trace)
    answer = estimate(trace, bounds).arrival_ns
    assert ((answer >= bounds.low_ns) & (answer <= bounds.high_ns)).all()
    ours, *others = (
        evaluate(trace, given, arrival, truth)
        for given, arrival in (
            (bounds, answer),
            (baseline, mnt_arrivals(baseline)),
            (literal, published(trace, literal).arrival_ns),
            (bounds, mnt_arrivals(bounds)),
            (bounds, evenly(trace)),
        )
    )
    return Errors(ours.mae_ms, *(other.mae_ms for other in others), violated=ours.bounds_violated)


def changed(world: World, change: Callable[[int, PacketRow], PacketRow | None]) -> World:
    """The world with rows changed or (None) left out."""
    trace, truth = world
    rows, times = [], {}
    for p in range(len(trace)):
        places = slice(trace.start[p], trace.start[p + 1])
        row = change(
            p,
            (
                int(trace.origin[p]), int(trace.shown_sequence[p]), trace.node[places].tolist(),
                int(trace.t0_ns[p]), int(trace.sink_ns[p]), int(trace.sum_ns[p]),
            ),
        )  # fmt: skip
        if row is not None:
            rows.append(row)
            times[row[:2]] = truth[places]
    kept = make_trace(rows)
    keys = zip(kept.origin.tolist(), kept.shown_sequence.tolist(), strict=True)
    return kept, np.concatenate([times[key] for key in keys])


def without_origins(world: World, every: int) -> World:
    return changed(world, lambda _p, row: None if row[0] % every == 0 else row)


def without_sums(world: World, every: int) -> World:
    return changed(world, lambda _p, row: (*row[:5], MISSING) if row[0] % every == 0 else row)


ODD_WORLDS: dict[str, Callable[[int], World]] = {
    "busy": lambda seed: simulated(225, seed, period_s=2.0),
    "rare packets": lambda seed: simulated(100, seed, period_s=60.0),
    "one acknowledgement in five lost": lambda seed: simulated(225, seed, 0.2),
    "acknowledgements and packets lost": lambda seed: simulated(225, seed, 0.2, 0.2),
    "busy with losses": lambda seed: simulated(225, seed, 0.1, 0.2, 2.0),
    "two thirds of a trace lost": lambda seed: simulated(225, seed, 0.0, 0.67),
    "every third origin unseen": lambda seed: without_origins(simulated(225, seed), 3),
    "every second origin unseen, acknowledgements lost": lambda seed: without_origins(simulated(225, seed, 0.2), 2),
    "every second node without sums": lambda seed: without_sums(simulated(225, seed), 2),
    "no sums": lambda seed: without_sums(simulated(225, seed), 1),
    "queues": lambda seed: queue_tree(QueueTree(), seed),
    "queues alike": lambda seed: queue_tree(QueueTree(differing=0.0), seed),
    "queues very unlike, losses": lambda seed: queue_tree(QueueTree(differing=1.0, loss=0.3), seed),
    "exponential queues": lambda seed: queue_tree(QueueTree(law="exponential"), seed),
    "exponential queues, losses": lambda seed: queue_tree(QueueTree(law="exponential", loss=0.2), seed),
    "lognormal queues": lambda seed: queue_tree(QueueTree(law="lognormal"), seed),
    "steady queues": lambda seed: queue_tree(QueueTree(law="steady"), seed),
    "queues with repetitions": lambda seed: queue_tree(QueueTree(law="repeated"), seed),
    "busy queues": lambda seed: queue_tree(QueueTree(period_s=0.6), seed),
    "slow queues": lambda seed: queue_tree(QueueTree(mean_ms=200.0, period_s=100.0), seed),
    "few nodes": lambda seed: queue_tree(QueueTree(nodes=12, packets=30), seed),
}


@pytest.mark.parametrize("name", ODD_WORLDS)
def test_no_simpler_answer_is_better(name: str) -> None:
    found = errors(ODD_WORLDS[name](131))
    # Where no sum tells which hop was slow, an even division is as good as anything.
    assert found.ours < (1.02 if name == "no sums" else 0.97) * found.best_other
    assert found.ours < 0.75 * found.middle
    assert found.violated <= 10  # of thousands: ω is learnt from the sink's neighbours, and here nodes differ


@pytest.mark.parametrize(("loss", "goal_ms"), [pytest.param(0.1, 3.4, marks=pytest.mark.long), (0.3, 3.9)])
def test_packets_taken_out_of_the_trace_cost_little(loss: float, goal_ms: float) -> None:
    found = errors(simulated(400, 132, 0.0, loss))
    assert found.ours < goal_ms
    assert found.ours < 0.4 * found.mnt
    assert found.violated == 0


@pytest.mark.long
@pytest.mark.parametrize(("loss", "goal_ms"), [(0.0, 3.0), (0.1, 3.2), (0.2, 3.4), (0.3, 3.6)])
def test_errors_at_400_nodes_over_several_networks(loss: float, goal_ms: float) -> None:
    found = [errors(simulated(400, seed, 0.0, loss)) for seed in range(133, 139)]
    # Networks differ by about 0.2 ms, the mean of six by less than half of that.
    assert np.mean([each.ours for each in found]) < goal_ms
    assert all(each.ours < 0.4 * each.mnt for each in found)
    assert not any(each.violated for each in found)


@pytest.mark.long
def test_a_network_near_its_capacity_is_told_apart_by_its_queues() -> None:
    found = errors(simulated(400, 132, period_s=2.0))
    assert found.ours < 0.65 * found.best_other


@pytest.mark.parametrize(
    ("begin_s", "end_s", "origins", "loss"),
    [
        pytest.param(0, 200, 0, 0.0, marks=pytest.mark.long),
        (700, 900, 0, 0.0),
        pytest.param(400, 600, 3, 0.0, marks=pytest.mark.long),
        (400, 600, 0, 0.3),
    ],
)
def test_parts_of_a_collection_trace_are_taken_apart_as_well(
    shared_data: Path, begin_s: int, end_s: int, origins: int, loss: float
) -> None:
    folder = shared_data / "collection"
    trace = read_trace(folder / "n100_center_20s_packets.csv.gz")
    whole = trace, read_truth(folder / "n100_center_20s_hops.csv.gz", trace)
    begin, end = (int(trace.t0_ns.min()) + second * 10**9 for second in (begin_s, end_s))
    is_taken = np.random.default_rng(1).uniform(size=len(trace)) < loss
    part = changed(
        whole,
        lambda p, row: None if is_taken[p] or not begin <= row[3] < end or (origins and row[0] % origins == 0) else row,
    )
    found = errors(part)
    assert found.ours < 0.9 * found.best_other
    assert found.violated <= 3
