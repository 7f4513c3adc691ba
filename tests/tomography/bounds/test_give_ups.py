"""Nodes that give up packets which arrive all the same, and packets that travel in circles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collection_worlds import simulated
from give_up_worlds import GivenUp, GivingUp, given_up
from queue_worlds import QueueTree, queue_tree
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.comparison import evaluate, mnt_arrivals, mnt_bounds, unknown_visits
from sojourn.tomography.delays import estimate as estimate_module
from sojourn.tomography.delays.estimate import WindowSpan, estimate, solve_span
from sojourn.tomography.delays.posterior import intervals
from sojourn.tomography.trace import PacketRow

MS = 1_000_000
NOTHING_LOST = GivingUp(asymmetric=0.0, retries=100, good_acknowledgement=1.0, stale_s=4.0)
WORLDS = {
    "some": GivingUp(),
    "many retries": GivingUp(retries=30, asymmetric=0.1),
    "few": GivingUp(asymmetric=0.003, stale_s=0.3),
    "busy": GivingUp(period_s=1.5, epoch_s=4.0),
    "a node goes on with its sum": GivingUp(is_counted_on=True, retries=3),
    "many": GivingUp(asymmetric=0.2, retries=10),
    "more nodes": GivingUp(nodes=120, packets=10, asymmetric=0.01),
}


def violated(world: GivenUp, bounds: Bounds) -> int:
    middle = (bounds.low_ns + bounds.high_ns) // 2
    return evaluate(world.trace, bounds, middle, world.truth_ns).bounds_violated


def true_delays(world: GivenUp, visit: np.ndarray) -> np.ndarray:
    delays: np.ndarray = world.truth_ns[visit + 1] - world.truth_ns[visit]
    return delays


@pytest.mark.parametrize("name", WORLDS)
def test_no_truth_is_outside_its_bounds_where_nodes_give_up_packets_that_arrive(name: str) -> None:
    outside_if_sums_were_believed = 0
    assert any(given_up(WORLDS[name], seed).is_given_up.any() for seed in (401, 402))
    for seed in (401, 402):
        world = given_up(WORLDS[name], seed)
        bounds = bound(world.trace)
        assert violated(world, bounds) == 0
        assert bounds.believed is not None
        outside_if_sums_were_believed += violated(world, bounds.believed)
        mnt = mnt_bounds(world.trace)
        assert (bounds.most_ns - bounds.least_ns).mean() < 0.97 * (mnt.most_ns - mnt.least_ns).mean()
    print(f"{outside_if_sums_were_believed} outside if every sum held all that passed")


def test_the_worlds_have_sums_that_lack_packets() -> None:
    outside = [violated(world, bound(world.trace, ConstraintOptions(sums=Sums.UPPER))) for world in some_worlds()]
    assert sum(outside) > 20


def some_worlds() -> list[GivenUp]:
    return [given_up(world, seed) for world in WORLDS.values() for seed in (401, 402)]


def test_where_nothing_was_lost_bounds_are_as_narrow_as_sums_make_them() -> None:
    for seed in (451, 452):
        trace, truth = simulated(225, seed)
        bounds, upper = bound(trace), bound(trace, ConstraintOptions(sums=Sums.UPPER))
        assert bounds.believed is None
        assert bounds.is_exact
        assert np.array_equal(bounds.most_ns, upper.most_ns)
        assert evaluate(trace, bounds, mnt_arrivals(bounds), truth).bounds_violated == 0


def test_too_few_packets_to_show_a_loss_are_no_proof_that_nothing_was_lost() -> None:
    world = given_up(
        GivingUp(asymmetric=0.002, retries=5, good_acknowledgement=1.0, stale_s=0.5, nodes=40, packets=10), 500
    )
    bounds = bound(world.trace)
    assert bounds.is_exact  # nothing speaks against it, although three packets were given up
    assert world.is_given_up.sum() == 3
    assert violated(world, bounds) == 0
    assert bounds.believed is not None
    assert violated(world, bounds.believed) > 0


def rows_of(world: GivenUp) -> list[PacketRow]:
    trace = world.trace
    columns = (trace.origin, trace.shown_sequence, trace.t0_ns, trace.sink_ns, trace.sum_ns)
    paths = np.split(trace.node, trace.start[1:-1])
    return [
        (origin, sequence, path.tolist(), t0, at_sink, total)
        for path, origin, sequence, t0, at_sink, total in zip(paths, *(c.tolist() for c in columns), strict=True)
    ]


@pytest.mark.parametrize("may_be_exact", [True, False])
def test_a_growing_trace_has_no_truth_outside_either(may_be_exact: bool) -> None:
    for name in ("some", "many"):
        world = given_up(WORLDS[name], 402)
        trace = world.trace
        everything = WindowSpan(0, int(trace.t0_ns.max()) + 1, -1, int(trace.sink_ns.max()) + 1)
        solved = solve_span(rows_of(world), everything, may_be_exact=may_be_exact)
        for p in range(len(trace)):
            answer = solved.answers[int(trace.origin[p]), int(trace.shown_sequence[p]), int(trace.t0_ns[p])]
            delay = np.diff(world.truth_ns[trace.start[p] : trace.start[p + 1]])
            assert (delay >= answer.low_ns - 1_000).all()
            assert (delay <= answer.high_ns + 1_000).all()


@pytest.mark.parametrize("name", ["some", "few", "busy", "many"])
def test_a_window_whose_sums_contradict_each_other_is_solved(name: str) -> None:
    world = given_up(WORLDS[name], 401)
    bounds = bound(world.trace)
    found = estimate(world.trace, bounds)
    assert found.solves["elastic"] > 0
    assert "unsolved" not in found.solves
    assert ((found.arrival_ns >= bounds.low_ns) & (found.arrival_ns <= bounds.high_ns)).all()
    ours = evaluate(world.trace, bounds, found.arrival_ns, world.truth_ns)
    middle = evaluate(world.trace, bounds, mnt_arrivals(bounds), world.truth_ns)
    assert ours.mae_ms < 0.65 * middle.mae_ms


def test_both_estimates_together_are_better_than_the_programs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [
        simulated(100, 461),
        simulated(100, 462, 0.1, 0.1),
        queue_tree(QueueTree(), 464),
        queue_tree(QueueTree(law="exponential", loss=0.2), 465),
        (given_up(NOTHING_LOST, 466).trace, given_up(NOTHING_LOST, 466).truth_ns),
    ]
    gains = []
    for trace, truth in worlds:
        bounds = bound(trace)
        blended = evaluate(trace, bounds, estimate(trace, bounds).arrival_ns, truth).mae_ms
        with monkeypatch.context() as patch:
            patch.setattr(estimate_module, "blend", lambda _trace, _bounds, arrival: arrival)
            alone = evaluate(trace, bounds, estimate(trace, bounds).arrival_ns, truth).mae_ms
        gains.append(blended / alone)
    print(f"errors with the posterior's share over those without: {np.round(gains, 3)}")
    assert max(gains) < 1.005
    assert np.mean(gains) < 0.997


def test_looping_packets_are_estimated_not_much_worse_than_their_delays_scatter() -> None:
    """Whoever knows each looping packet's mean delay at each node still cannot tell one visit from the next."""
    ours, known = [], []
    for seed in (471, 472, 473):
        world = given_up(NOTHING_LOST, seed)
        trace = world.trace
        arrival = estimate(trace, bound(trace)).arrival_ns
        visit = np.flatnonzero(trace.is_visit & world.is_looping)
        delay = true_delays(world, visit)
        _key, which, count = np.unique(
            trace.owner[visit] * (trace.node.max() + 1) + trace.node[visit], return_inverse=True, return_counts=True
        )
        mean = np.bincount(which, delay) / count
        again = count[which] > 1
        assert again.sum() > 50
        ours.append(np.abs(arrival[visit + 1] - arrival[visit] - delay)[again].mean())
        known.append(np.abs(mean[which] - delay)[again].mean())
    assert np.mean(ours) < 1.5 * np.mean(known)


@pytest.mark.parametrize("name", ["some", "busy", "loops"])
def test_intervals_hold_delays_of_looping_packets_and_of_others(name: str) -> None:
    held: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for seed in (481, 482):
        world = given_up(NOTHING_LOST if name == "loops" else WORLDS[name], seed)
        bounds = bound(world.trace)
        likely = intervals(world.trace, bounds, estimate(world.trace, bounds).arrival_ns)
        visit = unknown_visits(world.trace)
        delay = true_delays(world, visit)
        inside = (delay >= likely.low_ns[visit] - 1_000) & (delay <= likely.high_ns[visit] + 1_000)
        for is_looping, parts in held.items():
            parts.append(inside[world.is_looping[visit] == is_looping])
    for parts in held.values():
        assert np.concatenate(parts).mean() >= 0.90


def test_estimates_within_doubted_bounds_stay_within_the_certain_ones() -> None:
    world = given_up(WORLDS["many"], 402)
    bounds = bound(world.trace)
    assert bounds.believed is not None
    assert bounds.conflict_count > 0
    # As after linear programs: the certain bounds of some arrivals are narrower than the believed ones.
    narrow = replace(bounds, low_ns=np.maximum(bounds.low_ns, world.truth_ns - MS))
    narrow = replace(narrow, high_ns=np.minimum(bounds.high_ns, world.truth_ns + MS))
    arrival = estimate(world.trace, narrow).arrival_ns
    assert (arrival >= narrow.low_ns).all()
    assert (arrival <= narrow.high_ns).all()
