"""Intervals that contain 95 % of the delays: from the posterior's means and deviations, with fitted factors.

An interval reaches from its delay's posterior mean so many deviations down and so many up, is cut at the guaranteed
bounds, and is widened to the estimate where that lies outside. Delays are skewed and have heavier tails than the normal
distribution, so the factors are not 1.96: they are quantile regressions (2.5 % and 97.5 %) on how much the trace tells
of the delay, where it lies in its node's distribution and how wide its bounds are, all in units of the node's spread.

Guarantee: within the bounds, and around the estimate, both but for the rounding of a nanosecond; delays that are known
have no width. The coverage of 95 % is measured, not proved: docs/maths/tomography.md has the table.
Cost: about 0.02 ms for a delay; the trace is taken in chunks of `CHUNK_VISITS` visits, so memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.tomography.bounds.constraints import Bounds
from sojourn.tomography.delays.posterior import Posterior, Posteriors, chunks_of
from sojourn.tomography.trace import CollectionTrace

# Quantile regressions over 80 simulated networks (seeds 1000 to 1079); `python -m bench.tomography_fit --write`
# rewrites them. The logarithm of a factor is linear in `features`, here in the same order.
BELOW = (0.255, -0.266, 0.659, 0.067, 0.268)
ABOVE = (-0.111, -0.491, 0.328, 0.466, 0.111)


LEVEL = 0.95
NS_PER_MS = 1e6
ROUNDING_NS = 1_000
TINY_MS = 1e-9
# Where the factors were fitted; beyond, they stay as they are at the edge.
TELLS, POSITION, WIDTH = (-3.0, 1.0), (-2.0, 4.0), (-2.0, 4.0)


@dataclass(frozen=True)
class Intervals:
    """Of every place: what its delay likely lies within; meaningless at a sink's place."""

    low_ns: Int64Array
    high_ns: Int64Array


def intervals(
    trace: CollectionTrace,
    bounds: Bounds,
    arrival_ns: Int64Array,
    *,
    advance: Callable[[str, float], None] | None = None,
) -> Intervals:
    """Intervals at `LEVEL` for the delays that these arrivals estimate."""
    estimate = np.diff(arrival_ns, append=arrival_ns[-1])
    low, high = estimate.copy(), estimate.copy()
    is_uncertain = uncertain_visits(trace, bounds)
    believed = bounds.believed or bounds
    posteriors = Posteriors(trace, believed, arrival_ns)
    done = 0
    for packets in chunks_of(trace):
        answer = posteriors.of(packets)
        chosen = is_uncertain[answer.place]
        place = answer.place[chosen]
        likely_low, likely_high = _around(answer, believed)
        low[place] = np.minimum(np.maximum(likely_low[chosen], bounds.least_ns[place]), estimate[place])
        high[place] = np.maximum(np.minimum(likely_high[chosen], bounds.most_ns[place]), estimate[place])
        done += len(packets)
        if advance is not None:
            advance("finding intervals", done / len(trace))
    return Intervals(low, high)


def uncertain_visits(trace: CollectionTrace, bounds: Bounds) -> BoolArray:
    """Which places are visits whose delay is not known: neither straight to the sink nor fixed by bounds."""
    lengths = np.diff(trace.start)
    is_open = bounds.most_ns - bounds.least_ns > ROUNDING_NS
    return np.asarray(trace.is_visit & np.repeat(lengths > 2, lengths) & is_open)


def judge(
    trace: CollectionTrace, bounds: Bounds, likely: Intervals, truth_ns: Int64Array
) -> tuple[float | None, float | None]:
    """The share of uncertain delays that their intervals contain, and the mean width in ms; None without any."""
    visit = np.flatnonzero(uncertain_visits(trace, bounds))
    visit = visit[(truth_ns[visit] >= 0) & (truth_ns[visit + 1] >= 0)]
    if not len(visit):
        return None, None
    delay = truth_ns[visit + 1] - truth_ns[visit]
    low, high = likely.low_ns[visit], likely.high_ns[visit]
    held = (delay >= low - ROUNDING_NS) & (delay <= high + ROUNDING_NS)
    return float(held.mean()), float((high - low).mean() / NS_PER_MS)


def features(answer: Posterior, bounds: Bounds) -> FloatArray:
    """What the factors follow, a row for each visit.

    1; how little evidence the trace has of the delay; where it lies in its node's distribution; the bounds' width;
    whether the packet has two hops, as what one of two delays has too little the other has too much.
    """
    spread = np.maximum(answer.spread, TINY_MS)
    width = (bounds.most_ns - bounds.least_ns)[answer.place] / NS_PER_MS
    columns = (
        np.ones(len(spread)),
        np.clip(np.log(np.maximum(answer.deviation, TINY_MS) / spread), *TELLS),
        np.clip((answer.mean - answer.centre) / spread, *POSITION),
        np.clip(np.log(np.maximum(width, TINY_MS) / spread), *WIDTH),
        (answer.hops == 2).astype(np.float64),
    )
    return np.stack(columns, axis=1)


def _around(answer: Posterior, bounds: Bounds) -> tuple[Int64Array, Int64Array]:
    """The intervals around the means, in ns, before they are cut and widened."""
    found = features(answer, bounds)
    below, above = (np.exp(found @ np.array(factors)) * answer.deviation for factors in (BELOW, ABOVE))
    low = np.floor((answer.mean - below) * NS_PER_MS).astype(np.int64)
    high = np.ceil((answer.mean + above) * NS_PER_MS).astype(np.int64)
    return low, high
