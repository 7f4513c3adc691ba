"""Estimates and bounds against the truth of every hop.

An *unknown* is a delay that the trace does not state: every visit of a packet with two hops or more. The displacement
is Domo's order metric (Section VI.A): by how many places, on average, an arrival is displaced in the order of all;
it depends on the traffic's rate as much as on the method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import InputError
from sojourn.tomography.bounds.constraints import Bounds
from sojourn.tomography.trace import CollectionTrace

CLOSE_NS = 4_000_000
ROUNDING_NS = 1_000
NS_PER_MS = 1e6


@dataclass(frozen=True)
class Evaluation:
    """Over the unknowns whose truth is given; times in ms."""

    unknowns: int
    mae_ms: float
    share_under_4ms: float
    bound_width_ms: float
    bounds_violated: int
    displacement: float


def unknown_visits(trace: CollectionTrace) -> Int64Array:
    """The visits whose delay is not known from the trace alone."""
    lengths = np.diff(trace.start)
    return np.flatnonzero(trace.is_visit & np.repeat(lengths > 2, lengths))


def evaluate(trace: CollectionTrace, bounds: Bounds, arrival_ns: Int64Array, truth_ns: Int64Array) -> Evaluation:
    """How far estimates and bounds are from the truth; places without truth (-1) are left out."""
    visit = _compared(trace, truth_ns)
    true_delay = truth_ns[visit + 1] - truth_ns[visit]
    error = np.abs(arrival_ns[visit + 1] - arrival_ns[visit] - true_delay)
    least, most = bounds.least_ns[visit], bounds.most_ns[visit]
    outside = (true_delay < least - ROUNDING_NS) | (true_delay > most + ROUNDING_NS)
    outside |= truth_ns[visit] < bounds.low_ns[visit] - ROUNDING_NS
    outside |= truth_ns[visit] > bounds.high_ns[visit] + ROUNDING_NS
    return Evaluation(
        unknowns=len(visit),
        mae_ms=float(error.mean() / NS_PER_MS),
        share_under_4ms=float((error < CLOSE_NS).mean()),
        bound_width_ms=float((most - least).mean() / NS_PER_MS),
        bounds_violated=int(outside.sum()),
        displacement=displacement(trace, arrival_ns, truth_ns),
    )


def displacement(trace: CollectionTrace, arrival: Int64Array, truth_ns: Int64Array) -> float:
    """How many places an unknown's arrival is displaced in the order of all, on average."""
    return float(displacements(trace, arrival, truth_ns).mean())


def displacements(trace: CollectionTrace, arrival: Int64Array, truth_ns: Int64Array) -> Int64Array:
    """How many places each unknown's arrival is displaced; `arrival` gives every place's time, or its rank."""
    visit = _compared(trace, truth_ns)
    ranks = [np.empty(len(visit), np.int64) for _order in range(2)]
    for rank, times in zip(ranks, (arrival[visit], truth_ns[visit]), strict=True):
        rank[np.argsort(times, kind="stable")] = np.arange(len(visit))
    return np.asarray(np.abs(ranks[0] - ranks[1]))


def _compared(trace: CollectionTrace, truth_ns: Int64Array) -> Int64Array:
    """The unknowns whose truth is given."""
    visit = unknown_visits(trace)
    if not len(visit):
        raise InputError("no packet of the trace has two hops", action="leave --truth out: there is nothing to compare")
    visit = visit[(truth_ns[visit] >= 0) & (truth_ns[visit + 1] >= 0)]
    if not len(visit):
        raise InputError("the truth has none of the trace's hops", action="give the truth of the same trace")
    return visit
