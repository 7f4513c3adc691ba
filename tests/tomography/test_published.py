"""Domo as published: its candidate sets, its objective, what is left of Eq. 6, and how far its answers are off."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from collection_worlds import MS, simulated
from sojourn.tomography.bounds.constraints import ConstraintOptions, Sums, bound
from sojourn.tomography.comparison import (
    _around_means,
    evaluate,
    mnt_arrivals,
    mnt_bounds,
    published,
    published_bounds,
)
from sojourn.tomography.delays.estimate import estimate
from sojourn.tomography.delays.program import Programs
from sojourn.tomography.trace import MISSING, CollectionTrace, PacketRow, make_trace


def packet(origin: int, sequence: int, path: str, t0_ms: int, sink_ms: int, sum_ms: int = -1) -> PacketRow:
    total = sum_ms * MS if sum_ms >= 0 else MISSING
    return origin, sequence, [int(n) for n in path.split("-")], t0_ms * MS, sink_ms * MS, total


def sets_of(trace: CollectionTrace, origin: int, sequence: int) -> tuple[set[str], set[str]]:
    """C(p) and C*(p) of a packet, by the names of their packets; p itself is in both."""
    groups = published_bounds(trace).groups
    owner = trace.owner
    p = np.flatnonzero((trace.origin == origin) & (trace.sequence == sequence))[0]
    g = int(np.flatnonzero(owner[groups.last] == p)[0])
    entries = range(groups.start[g], groups.start[g + 1])
    names = [f"{trace.origin[k]}:{trace.sequence[k]}" for k in owner[groups.member]]
    assert groups.member[groups.start[g]] == trace.start[p]
    return {names[k] for k in entries}, {names[k] for k in entries if groups.is_sure[k]}


ROWS = [
    packet(2, 0, "2-0", 50, 60, 9),
    packet(2, 1, "2-0", 100, 110, 9),
    packet(2, 2, "2-0", 200, 210, 9),
    packet(3, 0, "3-2-0", 120, 150),  # generated and delivered between 2:1 and 2:2
    packet(4, 0, "4-2-0", 90, 130),  # may have passed before 2:1
    packet(5, 0, "5-2-0", 190, 260),  # may pass after 2:2
    packet(6, 0, "6-2-0", 20, 95),  # delivered before 2:1 was generated
    packet(7, 0, "7-2-0", 205, 260),  # generated after 2:2
    packet(8, 0, "8-0", 120, 150),  # never at node 2
]


def test_candidates_are_those_that_may_have_passed_between_the_two_local_packets() -> None:
    possible, sure = sets_of(make_trace(ROWS), 2, 2)
    assert possible == {"2:2", "3:0", "4:0", "5:0"}
    assert sure == {"2:2", "3:0"}


def test_a_packet_whose_predecessor_is_missing_stands_alone() -> None:
    assert sets_of(make_trace([row for row in ROWS if row[:2] != (2, 1)]), 2, 2) == ({"2:2"}, {"2:2"})
    assert sets_of(make_trace(ROWS), 2, 0) == ({"2:0"}, {"2:0"})


@pytest.mark.parametrize(("ack_loss", "loss"), [(0.0, 0.0), (0.0, 0.2)])
def test_true_members_are_candidates_and_sure_candidates_are_true_members(ack_loss: float, loss: float) -> None:
    trace, truth = simulated(100, 41, ack_loss, loss)
    groups, owner = published_bounds(trace).groups, trace.owner
    checked = 0
    for g in np.flatnonzero(groups.is_closed).tolist():
        before, own = groups.before[g], groups.last[g]
        here = np.flatnonzero((trace.node == trace.node[own]) & trace.is_visit & (trace.hop > 0))
        entered = set(here[(truth[here] > truth[before]) & (truth[here] < truth[own] - 2 * MS)].tolist())
        entries = slice(groups.start[g] + 1, groups.start[g + 1])
        assert entered <= set(groups.member[entries].tolist())
        sure = groups.member[entries][groups.is_sure[entries]]
        assert ((truth[sure] > truth[before]) & (truth[sure + 1] < truth[own])).all()
        assert (owner[sure] != owner[own]).all()
        checked += len(sure)
    assert checked > 500


def test_the_squares_around_node_means_are_those_of_all_pairs_of_a_node() -> None:
    trace, _truth = simulated(60, 42)
    program = Programs(trace, published_bounds(trace), tolerance_ns=550_000, epsilon_ns=2_100_000).make(np.arange(300))
    around, square, linear = _around_means(program)
    # With every node's mean at its minimum, the objective differs from Eq. 8's by one factor and the known delays.
    x = np.random.default_rng(5).normal(0, 3, program.delay.shape[1])
    visits = np.bincount(program.node)
    objectives, pairs = [], []
    for scale in (0.0, 1.0, 2.0):
        delay = program.delay @ (scale * x) + program.delay_known
        means = np.bincount(program.node, delay) / visits
        unknown = np.concatenate([scale * x, means])
        whole = square + square.T - sparse.diags(square.diagonal())
        objectives.append(float(unknown @ whole @ unknown / 2 + linear @ unknown))
        pairs.append(
            sum(
                np.square(delay[program.node == n][:, None] - delay[program.node == n]).sum()
                for n in range(program.nodes)
            )
        )
    assert around.rows.shape[1] == program.rows.shape[1] + program.nodes
    ratio = np.diff(objectives) / np.diff(pairs)
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-4)


def test_answers_stand_between_the_baseline_and_ours() -> None:
    figures = []
    for seed in (43, 44, 45):
        trace, truth = simulated(100, seed)
        bounds, literal, mnt = bound(trace), published_bounds(trace), mnt_bounds(trace)
        assert literal.is_exact
        figures.append(
            [
                evaluate(trace, bounds, estimate(trace, bounds).arrival_ns, truth).mae_ms,
                evaluate(trace, literal, published(trace, literal).arrival_ns, truth).mae_ms,
                evaluate(trace, mnt, mnt_arrivals(mnt), truth).mae_ms,
            ]
        )
    ours, as_published, middle = np.mean(figures, axis=0)
    assert ours < as_published < 0.5 * middle


@pytest.mark.parametrize(("ack_loss", "loss"), [(0.1, 0.0), (0.1, 0.2)])
def test_losses_leave_eq_6_out_but_every_answer_within_the_bounds(ack_loss: float, loss: float) -> None:
    trace, truth = simulated(100, 46, ack_loss, loss)
    bounds = published_bounds(trace)
    answer = published(trace, bounds)
    assert ("relaxed" in answer.solves) == bounds.is_exact == (loss == 0)
    assert "unsolved" not in answer.solves
    assert ((answer.arrival_ns >= bounds.low_ns) & (answer.arrival_ns <= bounds.high_ns)).all()
    assert (
        evaluate(trace, bounds, answer.arrival_ns, truth).mae_ms
        < evaluate(trace, bounds, mnt_arrivals(bounds), truth).mae_ms
    )


def test_sums_that_are_not_used_leave_order_and_queues() -> None:
    trace, _truth = simulated(60, 42)
    bounds = published_bounds(trace, ConstraintOptions(sums=Sums.UNUSED))
    assert len(bounds.groups.sum_ns) == 0
    assert not published_bounds(trace, ConstraintOptions(sums=Sums.UPPER)).is_exact
    assert published(trace, bounds).solves.keys() == {"osqp"}


def test_progress_ends_at_the_whole() -> None:
    trace, _truth = simulated(60, 42)
    shares: list[float] = []
    published(trace, published_bounds(trace), advance=lambda _step, share: shares.append(share))
    assert shares[-1] == 1
