"""Sums taken together: as narrow as linear programs allow, never narrower, and true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collection_worlds import MS, simulated
from sojourn.tomography.bounds import constraints
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound, problem_of
from sojourn.tomography.bounds.linear_bounds import bound_linear
from sojourn.tomography.bounds.propagation import combine_sums
from sojourn.tomography.comparison import evaluate, unknown_visits
from sojourn.tomography.trace import CollectionTrace, make_trace

ROUNDING_NS = 2_000  # linear programs widen every statement by 1 µs


def apart(trace: CollectionTrace, options: ConstraintOptions, monkeypatch: pytest.MonkeyPatch) -> Bounds:
    """The bounds that every statement by itself gives."""
    with monkeypatch.context() as without:
        without.setattr(constraints, "COMBINATIONS", 0)
        return bound(trace, options)


def together(trace: CollectionTrace, bounds: Bounds, options: ConstraintOptions) -> np.ndarray:
    """The most of every delay after sums were combined once."""
    own = replace(bounds, most_ns=bounds.most_ns.copy())
    combine_sums(trace.is_visit, problem_of(trace, own, options), own.groups)
    return own.most_ns


def width_ms(trace: CollectionTrace, bounds: Bounds) -> float:
    return float((bounds.most_ns - bounds.least_ns)[unknown_visits(trace)].mean() / MS)


def test_two_packets_that_went_on_together_leave_the_third_what_both_sums_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 3 and 4 send through 2 and then 1 and are 39 ms or longer at both together. 2 counted 30 ms, so of these 78 ms it
    # leaves 48 to 1 (and 9 of each packet by itself). 1 counted 80 ms, 10 of them its own packet's; 2's own packet took
    # 2 ms at either: 20 ms are left for that of 5, which by itself might have been at 1 for all of its 40 ms.
    rows = [
        (1, 0, [1, 0], 1_000 * MS, 1_002 * MS, 2 * MS),
        (2, 0, [2, 1, 0], 900 * MS, 903 * MS, 1 * MS),
        (3, 0, [3, 2, 1, 0], 1_010 * MS, 1_050 * MS, 1 * MS),
        (4, 0, [4, 2, 1, 0], 1_011 * MS, 1_051 * MS, 1 * MS),
        (5, 0, [5, 1, 0], 1_020 * MS, 1_060 * MS, -1),
        (2, 1, [2, 1, 0], 1_060 * MS, 1_062 * MS, 30 * MS),
        (1, 1, [1, 0], 1_090 * MS, 1_100 * MS, 80 * MS),
    ]
    trace = make_trace(rows)
    options = ConstraintOptions(omega_ns=0, epsilon_ns=0, tolerance_ns=0, sums=Sums.UPPER)
    alone, both = apart(trace, options, monkeypatch), bound(trace, options)
    at_one = int(trace.start[np.flatnonzero(trace.origin == 5)[0]]) + 1
    assert alone.most_ns[at_one] == 40 * MS
    assert both.most_ns[at_one] == 20 * MS
    assert both.conflict_count == 0


@pytest.mark.parametrize(
    ("nodes", "seed", "ack_loss", "loss", "sums"),
    [
        (40, 501, 0.0, 0.0, Sums.UPPER),
        (40, 502, 0.0, 0.0, Sums.EXACT),
        (60, 503, 0.1, 0.0, Sums.UPPER),
        (60, 504, 0.0, 0.2, Sums.UPPER),
        (80, 505, 0.2, 0.1, Sums.UPPER),
    ],
)
def test_no_bound_is_narrower_than_linear_programs_prove_and_no_truth_is_outside(
    nodes: int, seed: int, ack_loss: float, loss: float, sums: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, truth = simulated(nodes, seed, ack_loss, loss)
    options = ConstraintOptions(sums=sums)
    alone = apart(trace, options, monkeypatch)
    most = together(trace, alone, options)
    exact = bound_linear(trace, alone, options).bounds
    assert (most <= alone.most_ns).all()
    assert (most < alone.most_ns).any()
    visit = np.flatnonzero(trace.is_visit)
    assert (most[visit] >= exact.most_ns[visit] - ROUNDING_NS).all()
    whole = bound(trace, options)
    assert evaluate(trace, whole, (whole.low_ns + whole.high_ns) // 2, truth).bounds_violated == 0


def test_propagation_is_within_one_per_cent_of_linear_programs_in_small_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ConstraintOptions(sums=Sums.UPPER)
    figures = []
    for nodes, seed in ((60, 511), (60, 512), (100, 513)):
        trace, _truth = simulated(nodes, seed)
        found = bound(trace, options)
        exact = bound_linear(trace, found, options).bounds
        figures.append([width_ms(trace, b) for b in (apart(trace, options, monkeypatch), found, exact)])
    before, now, least = np.mean(figures, axis=0)
    print(f"mean width {before:.3f} ms one by one, {now:.3f} ms together, {least:.3f} ms by linear programs")
    assert now < 1.01 * least
    assert now - least < 0.5 * (before - least)


def test_sums_that_contradict_each_other_only_together_change_nothing() -> None:
    trace, _truth = simulated(40, 501)
    bounds = bound(trace, ConstraintOptions(sums=Sums.UPPER))
    groups = bounds.groups
    wrong = replace(bounds, groups=groups._replace(sum_ns=groups.sum_ns - 10**12))
    assert np.array_equal(together(trace, wrong, ConstraintOptions()), bounds.most_ns)
