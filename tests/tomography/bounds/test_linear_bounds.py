"""Bounds by linear programs: the truth inside, never wider than propagation's, and exact by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from collection_worlds import CONTRADICTING_TRACES, MS, simulated
from sojourn.core.errors import ParameterError
from sojourn.core.executors.executor import LocalExecutor
from sojourn.tomography.bounds import constraints, linear_program
from sojourn.tomography.bounds import linear_bounds as bounds_lp
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.bounds.linear_bounds import bound_linear
from sojourn.tomography.comparison import evaluate, unknown_visits
from sojourn.tomography.delays.estimate import estimate
from sojourn.tomography.trace import MISSING, CollectionTrace, make_trace

US = 1_000
FIELDS = ("low_ns", "high_ns", "least_ns", "most_ns")


def widths(trace: CollectionTrace, bounds: Bounds) -> np.ndarray:
    visit = unknown_visits(trace)
    return (bounds.most_ns - bounds.least_ns)[visit]


def assert_within(inner: Bounds, outer: Bounds) -> None:
    for name, sign in zip(FIELDS, (1, -1, 1, -1), strict=True):
        assert (sign * (getattr(inner, name) - getattr(outer, name)) >= 0).all()


@pytest.mark.parametrize("cut", [50, 10_000])
@pytest.mark.parametrize(("ack_loss", "loss"), [(0.0, 0.0), (0.1, 0.0), (0.1, 0.15)])
@pytest.mark.parametrize("sums", [Sums.AUTO, Sums.UNUSED])
def test_truths_lie_within_bounds_that_are_never_wider(ack_loss: float, loss: float, cut: int, sums: Sums) -> None:
    options = ConstraintOptions(sums=sums)
    for seed in (91, 92):
        trace, truth = simulated(60, seed, ack_loss, loss)
        bounds = bound(trace, options)
        answer = bound_linear(trace, bounds, options, cut=cut)
        assert evaluate(trace, answer.bounds, truth, truth).bounds_violated == 0
        assert_within(answer.bounds, bounds)
        assert (answer.bounds.conflict_count, answer.unsolved) == (0, 0)


def test_truths_lie_within_under_heavy_traffic() -> None:
    trace, truth = simulated(60, 93, period_s=0.5, packets=40)
    bounds = bound(trace)
    answer = bound_linear(trace, bounds, cut=500)
    assert evaluate(trace, answer.bounds, truth, truth).bounds_violated == 0
    assert_within(answer.bounds, bounds)


@pytest.mark.long
def test_propagation_leaves_less_than_a_hundredth_of_the_width() -> None:
    """In networks of 225 nodes; in smaller ones, whose packets are few and sums tell more, it is a few hundredths."""
    left = []
    for seed in (94, 95):
        for losses in ((0.0, 0.0), (0.1, 0.1)):
            trace, _truth = simulated(225, seed, *losses)
            bounds = bound(trace)
            narrowed = bound_linear(trace, bounds).bounds
            left.append(1 - widths(trace, narrowed).mean() / widths(trace, bounds).mean())
    assert 0 < np.mean(left) < 0.01


def brute_force(
    trace: CollectionTrace, bounds: Bounds, options: ConstraintOptions, places: list[tuple[int, int]]
) -> list[tuple[float, float]]:
    """Least and most of arrivals (place, -1) and delays (later, earlier), from every statement as it stands, in ms."""
    rows: list[tuple[dict[int, int], float]] = []  # signs by place, and what they sum to at most
    is_local = trace.hop == 0
    rows += [({v: 1, v + 1: -1}, -bounds.omega_ns[v] / MS) for v in np.flatnonzero(trace.is_visit).tolist()]
    for first, second, order in zip(bounds.first, bounds.second, bounds.order, strict=True):
        if abs(order) == 1:
            x, y = (first, second) if order == 1 else (second, first)
            early = options.epsilon_ns / MS if is_local[x] and not is_local[y] else 0
            rows += [({x + 1: 1, y + 1: -1}, 0.0), ({x: 1, y: -1}, early)]
    groups = bounds.groups
    for g in range(len(groups.sum_ns)):
        sure = [k for k in range(groups.start[g], groups.start[g + 1]) if groups.is_sure[k]]
        signs: dict[int, int] = {}
        for k in sure:
            member = int(groups.member[k])
            signs[member + 1] = signs.get(member + 1, 0) + 1
            signs[member] = signs.get(member, 0) - 1
        rows.append((signs, (groups.sum_ns[g] + options.tolerance_ns) / MS))
    matrix = np.zeros((len(rows), len(trace.node)))
    for r, (signs, _limit) in enumerate(rows):
        for place, sign in signs.items():
            matrix[r, place] = sign
    begin = np.repeat(trace.t0_ns, np.diff(trace.start)) / MS
    end = np.repeat(trace.sink_ns, np.diff(trace.start)) / MS
    begin[trace.start[1:] - 1] = end[trace.start[1:] - 1]
    end[trace.start[:-1]] = begin[trace.start[:-1]]
    box = np.stack([begin, end], axis=1)
    found = []
    for later, earlier in places:
        objective = np.zeros(len(trace.node))
        objective[later] = 1
        if earlier >= 0:
            objective[earlier] = -1
        ends = [
            sign * linprog(sign * objective, matrix, [limit for _signs, limit in rows], bounds=box).fun
            for sign in (1, -1)
        ]
        found.append((ends[0], ends[1]))
    return found


@pytest.mark.parametrize(("nodes", "packets", "seed", "period_s"), [(40, 4, 85, 10.0), (30, 5, 88, 0.5)])
def test_a_small_network_is_bounded_as_by_brute_force(
    nodes: int, packets: int, seed: int, period_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements are rounded by 1 µs here and not there, which adds up along a path."""
    # Propagation afterwards may prove more orders than brute force has; here only the programs count.
    monkeypatch.setattr(bounds_lp, "tighten", lambda _trace, bounds, _options: bounds)
    trace, _truth = simulated(nodes, seed, packets=packets, period_s=period_s)
    options = ConstraintOptions(sums=Sums.UPPER)
    bounds = bound(trace, options)
    narrowed = bound_linear(trace, bounds, options).bounds
    is_unknown = bounds.high_ns > bounds.low_ns
    arrivals, delays = np.flatnonzero(is_unknown), np.flatnonzero(is_unknown[:-1] & is_unknown[1:])
    asked = [(int(p), -1) for p in arrivals] + [(int(v) + 1, int(v)) for v in delays]
    exact = np.array(brute_force(trace, bounds, options, asked)) * MS

    def of(found: Bounds) -> np.ndarray:
        low = np.concatenate([found.low_ns[arrivals], found.least_ns[delays]])
        return np.stack([low, np.concatenate([found.high_ns[arrivals], found.most_ns[delays]])], axis=1)

    assert len(exact) > 80
    assert np.abs(of(narrowed) - exact).max() < 20 * US
    assert np.abs(of(bounds) - exact).max() > MS  # propagation alone is not exact here


def test_a_small_cut_gives_up_little_and_breaks_nothing() -> None:
    trace, _truth = simulated(100, 81)
    bounds = bound(trace)
    whole, cut = (bound_linear(trace, bounds, cut=size).bounds for size in (10_000, 100))
    for name, sign in zip(FIELDS, (1, -1, 1, -1), strict=True):
        assert (sign * (getattr(whole, name) - getattr(cut, name)) > -20 * US).all()
    gains = [widths(trace, bounds).sum() - widths(trace, narrowed).sum() for narrowed in (whole, cut)]
    assert gains[0] >= gains[1] > 0.3 * gains[0] > 0


def test_one_packet_alone_gets_what_its_programs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among all packets it may get more, as narrower bounds of others can prove more orders."""
    monkeypatch.setattr(constraints, "COMBINATIONS", 0)  # which leaves more for the programs to find
    trace, _truth = simulated(100, 81)
    bounds = bound(trace)
    everywhere = bound_linear(trace, bounds).bounds
    agree, gains = [], []
    for packet in np.flatnonzero(np.diff(trace.start) > 3)[:40].tolist():
        places = slice(trace.start[packet], trace.start[packet + 1])
        alone = bound_linear(trace, bounds, packet=packet)
        unknown = bounds.high_ns[places] > bounds.low_ns[places]
        between = unknown[:-1] & unknown[1:]
        assert alone.asked == 2 * (unknown.sum() + between.sum())
        for name, sign in zip(FIELDS, (1, -1, 1, -1), strict=True):
            least, found, most = (sign * getattr(b, name)[places] for b in (bounds, alone.bounds, everywhere))
            assert (found >= least).all()
            assert (found <= most + 20 * US).all()
            agree.append((np.abs(found - most) < 20 * US).all())
            gains.append((found - least).max())
    assert np.mean(agree) > 0.9
    assert max(gains) > MS


def test_two_workers_give_the_same_bounds_as_one() -> None:
    trace, _truth = simulated(100, 81)
    bounds = bound(trace)
    shared = LocalExecutor(2)
    one, two = (bound_linear(trace, bounds, cut=400, executor=executor) for executor in (LocalExecutor(1), shared))
    assert shared.used == 2
    assert one.solves == two.solves
    for name in FIELDS:
        assert np.array_equal(getattr(one.bounds, name), getattr(two.bounds, name))


def test_sums_as_equations_narrow_further_and_hold_where_nothing_is_lost() -> None:
    trace, truth = simulated(60, 91)
    upper, exact = ConstraintOptions(sums=Sums.UPPER), ConstraintOptions(sums=Sums.EXACT)
    answers = [bound_linear(trace, bound(trace, options), options).bounds for options in (upper, exact)]
    assert widths(trace, answers[1]).mean() < 0.8 * widths(trace, answers[0]).mean()
    assert evaluate(trace, answers[1], truth, truth).bounds_violated == 0


def test_estimates_stay_within_linear_bounds() -> None:
    trace, _truth = simulated(100, 81)
    narrowed = bound_linear(trace, bound(trace)).bounds
    answer = estimate(trace, narrowed)
    visit = np.flatnonzero(trace.is_visit)
    assert ((answer.arrival_ns >= narrowed.low_ns) & (answer.arrival_ns <= narrowed.high_ns)).all()
    assert (answer.delay_ns[visit] >= narrowed.least_ns[visit] - US).all()
    assert (answer.delay_ns[visit] <= narrowed.most_ns[visit] + US).all()


def test_what_is_not_solved_keeps_its_bounds_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, _truth = simulated(60, 91)
    bounds = bound(trace)
    monkeypatch.setitem(linear_program.OPTIONS, "simplex_iteration_limit", 0)
    answer = bound_linear(trace, bounds)
    assert answer.unsolved == answer.asked > 0
    for name in FIELDS:
        assert np.array_equal(getattr(answer.bounds, name), getattr(bounds, name))


def test_a_sloppy_solver_breaks_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, truth = simulated(60, 91)
    bounds = bound(trace)
    expected = bound_linear(trace, bounds).bounds
    for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
        monkeypatch.setitem(linear_program.OPTIONS, name, 0.01)
    sloppy = bound_linear(trace, bounds).bounds
    assert evaluate(trace, sloppy, truth, truth).bounds_violated == 0
    for name, sign in zip(FIELDS, (1, -1, 1, -1), strict=True):
        assert (sign * (getattr(expected, name) - getattr(sloppy, name)) > -20 * US).all()


def test_a_cut_of_next_to_nothing_is_refused() -> None:
    trace, _truth = simulated(60, 91)
    with pytest.raises(ParameterError, match="a cut of 3 unknowns"):
        bound_linear(trace, bound(trace), cut=3)


def test_a_trace_of_single_hops_has_nothing_to_bound() -> None:
    trace = make_trace([(3, k, [3, 0], k * MS, (k + 5) * MS, MISSING) for k in range(3)])
    answer = bound_linear(trace, bound(trace))
    assert (answer.asked, answer.solves) == (0, 0)


@settings(max_examples=40)
@given(CONTRADICTING_TRACES, st.sampled_from(list(Sums)), st.integers(0, 5))
def test_traces_that_contradict_themselves_keep_sound_bounds(trace: CollectionTrace, sums: Sums, omega_ms: int) -> None:
    options = ConstraintOptions(omega_ns=omega_ms * MS, sums=sums)
    bounds = bound(trace, options)
    answer = bound_linear(trace, bounds, options)
    assert (answer.bounds.low_ns <= answer.bounds.high_ns).all()
    assert (answer.bounds.low_ns >= bounds.low_ns).all()
    assert (answer.bounds.high_ns <= bounds.high_ns).all()
    estimate(trace, answer.bounds)
