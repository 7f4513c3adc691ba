"""Guaranteed bounds: what each constraint proves, that truths stay inside, and that contradictions are reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collection_worlds import MS, simulated
from sojourn.core.errors import ParameterError
from sojourn.tomography.bounds.constraints import (
    Bounds,
    ConstraintOptions,
    Sums,
    bound,
    learn_omega,
    problem_of,
    tighten,
)
from sojourn.tomography.bounds.propagation import decided
from sojourn.tomography.comparison import evaluate, mnt_arrivals, mnt_bounds, unknown_visits
from sojourn.tomography.trace import MISSING, CollectionTrace, PacketRow, make_trace

PLAIN = ConstraintOptions(omega_ns=2 * MS, epsilon_ns=0, tolerance_ns=0, sums=Sums.UPPER)


def packet(origin: int, sequence: int, path: str, t0_ms: int, sink_ms: int, sum_ms: int = -1) -> PacketRow:
    total = sum_ms * MS if sum_ms >= 0 else MISSING
    return origin, sequence, [int(n) for n in path.split("-")], t0_ms * MS, sink_ms * MS, total


def of(trace: CollectionTrace, origin: int, sequence: int = 0) -> int:
    """The first place of a packet."""
    return int(trace.start[np.flatnonzero((trace.origin == origin) & (trace.sequence == sequence))[0]])


def arrivals(bounds: Bounds, place: int) -> tuple[float, float]:
    return bounds.low_ns[place] / MS, bounds.high_ns[place] / MS


def test_order_leaves_every_hop_its_least_delay() -> None:
    trace = make_trace([packet(3, 0, "3-2-1-0", 100, 120)])
    bounds = bound(trace, PLAIN)
    assert [arrivals(bounds, k) for k in range(4)] == [(100, 100), (102, 116), (104, 118), (120, 120)]
    assert bounds.least_ns[:3].tolist() == [2 * MS] * 3
    assert bounds.most_ns[:3].tolist() == [16 * MS] * 3


def test_a_shared_way_to_the_sink_keeps_the_order_of_the_sink() -> None:
    trace = make_trace([packet(3, 0, "3-2-0", 100, 120), packet(4, 0, "4-2-0", 90, 125)])
    bounds = bound(trace, PLAIN)
    # Packet 4 reached the sink later, so it reached node 2 later than packet 3, which was there at 102 at the soonest.
    assert arrivals(bounds, of(trace, 4) + 1) == (102, 123)
    assert arrivals(bounds, of(trace, 3) + 1) == (102, 118)


def test_local_packets_bracket_a_forwarded_one() -> None:
    rows = [packet(2, 0, "2-0", 110, 113), packet(2, 1, "2-0", 114, 121), packet(3, 0, "3-2-0", 100, 118)]
    trace = make_trace(rows)
    assert arrivals(bound(trace, PLAIN), of(trace, 3) + 1) == (110, 114)
    late = ConstraintOptions(omega_ns=2 * MS, epsilon_ns=3 * MS, tolerance_ns=0, sums=Sums.UPPER)
    # It may enter the queue up to 3 ms after it is stamped: behind the first packet although stamped before it.
    assert arrivals(bound(trace, late), of(trace, 3) + 1) == (107, 114)


SUMMED = [packet(2, 0, "2-1-0", 10, 30), packet(3, 0, "3-2-1-0", 100, 140), packet(2, 1, "2-1-0", 200, 230, 9)]


def test_a_sum_bounds_its_members_from_above() -> None:
    trace = make_trace(SUMMED)
    bounds = bound(trace, PLAIN)
    own, forwarded = of(trace, 2, 1), of(trace, 3) + 1
    assert bounds.most_ns[own] == 7 * MS
    assert bounds.most_ns[forwarded] == 7 * MS
    assert bounds.least_ns[own] == 2 * MS


def test_an_exact_sum_bounds_its_members_from_below_as_well() -> None:
    trace = make_trace([*SUMMED[:2], packet(2, 1, "2-1-0", 200, 205, 30)])
    exact = bound(trace, ConstraintOptions(omega_ns=2 * MS, epsilon_ns=0, tolerance_ns=0, sums=Sums.EXACT))
    forwarded = of(trace, 3) + 1
    # The packet itself stayed for 2 to 3 ms.
    assert (exact.least_ns[forwarded], exact.most_ns[forwarded]) == (27 * MS, 28 * MS)
    assert bound(trace, PLAIN).least_ns[forwarded] == 2 * MS


@pytest.mark.parametrize("broken", [{"sequence": 2}, {"sum_ms": -1}])
def test_a_sum_counts_only_after_the_packet_before_it(broken: dict[str, int]) -> None:
    last = {"origin": 2, "sequence": 1, "path": "2-1-0", "t0_ms": 200, "sink_ms": 230, "sum_ms": 9} | broken
    trace = make_trace([*SUMMED[:2], packet(**last)])  # type: ignore[arg-type]
    assert bound(trace, PLAIN).most_ns[of(trace, 3) + 1] == 36 * MS


def test_a_sum_bounds_its_own_packet_even_if_the_one_before_is_missing() -> None:
    trace = make_trace([*SUMMED[:2], packet(2, 2, "2-1-0", 200, 230, 9)])
    for sums in (Sums.UPPER, Sums.EXACT):
        bounds = bound(trace, ConstraintOptions(omega_ns=2 * MS, epsilon_ns=0, tolerance_ns=0, sums=sums))
        own = of(trace, 2, 2)
        assert (bounds.least_ns[own], bounds.most_ns[own]) == (2 * MS, 9 * MS)


def test_a_sum_too_small_for_its_members_is_reported_and_left_out() -> None:
    trace = make_trace([*SUMMED[:2], packet(2, 1, "2-1-0", 200, 230, 1)])
    bounds = bound(trace, PLAIN)
    assert bounds.conflict_count == 1
    conflict = bounds.conflicts[0]
    assert conflict.kind == "sum of delays"
    assert {int(trace.sequence[conflict.packet]), int(trace.sequence[conflict.other])} == {0, 1}
    assert bounds.most_ns[of(trace, 3) + 1] == 36 * MS


def test_packets_that_overtake_are_reported_not_crashed_on() -> None:
    # Node 2 sent both straight to the sink, the later one first.
    trace = make_trace([packet(2, 0, "2-0", 100, 130), packet(2, 1, "2-0", 110, 120)])
    bounds = bound(trace, PLAIN)
    assert [c.kind for c in bounds.conflicts] == ["fifo"]
    assert {bounds.conflicts[0].packet, bounds.conflicts[0].other} == {0, 1}


def test_a_packet_faster_than_the_least_delay_keeps_its_order_only() -> None:
    trace = make_trace([packet(3, 0, "3-2-1-0", 100, 103)])
    bounds = bound(trace, PLAIN)
    assert arrivals(bounds, 1) == (100, 103)


@pytest.mark.parametrize("sums", [Sums.AUTO, Sums.UPPER, Sums.UNUSED])
@pytest.mark.parametrize(("ack_loss", "loss"), [(0.0, 0.0), (0.03, 0.0), (0.1, 0.0), (0.1, 0.15)])
@pytest.mark.parametrize("nodes", [100, 225])
def test_every_truth_lies_within_its_bounds(nodes: int, ack_loss: float, loss: float, sums: Sums) -> None:
    for seed in (21, 22):
        trace, truth = simulated(nodes, seed, ack_loss, loss)
        bounds = bound(trace, ConstraintOptions(sums=sums))
        assert evaluate(trace, bounds, truth, truth).bounds_violated == 0
        assert bounds.conflict_count == 0


def test_every_truth_lies_within_its_bounds_under_heavy_traffic() -> None:
    trace, truth = simulated(100, 23, period_s=0.5, packets=40)
    bounds = bound(trace)
    assert len(bounds.order) > 500
    assert evaluate(trace, bounds, truth, truth).bounds_violated == 0


def test_lost_acknowledgements_that_pass_unseen_break_no_bound() -> None:
    trace, truth = simulated(100, 21, 0.01)
    bounds = bound(trace)
    assert bounds.is_exact
    assert evaluate(trace, bounds, truth, truth).bounds_violated == 0
    wrong = bound(trace, ConstraintOptions(sums=Sums.EXACT))
    assert evaluate(trace, wrong, truth, truth).bounds_violated > 0


def test_sums_are_equations_only_where_nothing_speaks_against_it() -> None:
    assert bound(simulated(100, 21)[0]).is_exact
    assert not bound(simulated(100, 21, 0.1)[0]).is_exact
    assert not bound(simulated(100, 21, 0.0, 0.15)[0]).is_exact


def test_sums_make_bounds_narrower_than_mnt() -> None:
    for nodes, ack_loss in ((100, 0.0), (225, 0.0), (225, 0.1)):
        trace, _truth = simulated(nodes, 21, ack_loss)
        visit = unknown_visits(trace)
        widths = [float((b.most_ns - b.least_ns)[visit].mean()) for b in (bound(trace), mnt_bounds(trace))]
        assert widths[0] < 0.9 * widths[1]


def test_bounds_are_a_fixpoint_and_hold_the_middle() -> None:
    trace, _truth = simulated(225, 21)
    bounds = bound(trace)
    middle = mnt_arrivals(bounds)
    assert (bounds.low_ns <= bounds.high_ns).all()
    assert ((middle >= bounds.low_ns) & (middle <= bounds.high_ns)).all()
    visit = np.flatnonzero(trace.is_visit)
    assert (bounds.least_ns[visit] <= bounds.most_ns[visit]).all()
    assert (bounds.low_ns[visit + 1] >= bounds.low_ns[visit] + bounds.least_ns[visit] - 1_000).all()
    assert bounds.rounds < 100


def test_the_least_delay_is_learnt_below_every_true_delay() -> None:
    for seed in range(30, 36):
        trace, truth = simulated(100, seed)
        visit = np.flatnonzero(trace.is_visit)
        omega = learn_omega(trace)
        assert 0 < omega < (truth[visit + 1] - truth[visit]).min()


def test_without_packets_straight_to_the_sink_no_least_delay_is_learnt() -> None:
    assert learn_omega(make_trace([packet(3, 0, "3-2-0", 100, 120)])) == 0


def test_the_proof_of_order_agrees_with_its_plain_model_and_with_the_truth() -> None:
    trace, truth = simulated(225, 24, period_s=3.0)
    bounds = mnt_bounds(trace)
    is_local = trace.hop == 0
    low, high, node, epsilon = bounds.low_ns, bounds.high_ns, trace.node, 2_100_000
    at = problem_of(trace, bounds, ConstraintOptions(epsilon_ns=epsilon))

    def entry(place: int, other: int) -> tuple[int, int]:
        late = epsilon if is_local[other] and not is_local[place] else 0
        return int(low[place]), int(high[place]) + late

    def plain(x: int, y: int) -> int:
        shared = [(x, y, True)]
        i, j = x + 1, y + 1
        while node[i] == node[j]:
            shared.append((i, j, False))
            if node[i] == trace.sink:
                break
            i, j = i + 1, j + 1
        i, j = x, y
        while not is_local[i] and not is_local[j] and node[i - 1] == node[j - 1]:
            i, j = i - 1, j - 1
            shared.append((i, j, True))
        for a, b, enters in shared:
            first = entry(a, b) if enters else (int(low[a]), int(high[a]))
            second = entry(b, a) if enters else (int(low[b]), int(high[b]))
            if first[1] < second[0] or second[1] < first[0]:
                return 1 if first[1] < second[0] else -1
        return 0

    proved = 0
    for x, y in zip(bounds.first[:400].tolist(), bounds.second[:400].tolist(), strict=True):
        order = decided(x, y, at)
        assert order == plain(x, y)
        if order:
            proved += 1
            assert (truth[x + 1] < truth[y + 1]) == (order == 1)
    assert proved > 100


def test_negative_options_are_refused() -> None:
    with pytest.raises(ParameterError):
        ConstraintOptions(epsilon_ns=-1)


@pytest.mark.parametrize("sums", [Sums.UPPER, Sums.EXACT])
@pytest.mark.parametrize(("ack_loss", "period_s"), [(0.0, 10.0), (0.1, 0.5)])
def test_bounds_are_a_fixpoint(ack_loss: float, period_s: float, sums: Sums) -> None:
    """Passes skip what depends on no change; nothing may be skipped that would still tighten something."""
    trace, _truth = simulated(100, 24, ack_loss, period_s=period_s, packets=20)
    options = ConstraintOptions(sums=sums)
    bounds = bound(trace, options)
    again = tighten(trace, bounds, options)
    assert bounds.rounds > 2
    assert again.rounds == bounds.rounds + 1
    for name in ("low_ns", "high_ns", "least_ns", "most_ns", "order"):
        assert np.array_equal(getattr(again, name), getattr(bounds, name))


def test_narrower_bounds_of_one_time_reach_the_others() -> None:
    trace = make_trace([packet(3, 0, "3-2-1-0", 100, 120)])
    bounds = bound(trace, PLAIN)
    high = bounds.high_ns.copy()
    high[1] = 110 * MS
    tightened = tighten(trace, replace(bounds, high_ns=high, most_ns=np.full(4, 9 * MS)), PLAIN)
    assert [arrivals(tightened, k) for k in range(4)] == [(100, 100), (102, 109), (111, 118), (120, 120)]
    assert arrivals(bounds, 2) == (104, 118)  # the given ones stay as they are
