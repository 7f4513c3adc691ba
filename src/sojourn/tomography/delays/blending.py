"""Two estimates of different build, blended: the quadratic programs' and the mean of the posterior.

The programs hold services to their nodes' centres and forgive what is far off: the most likely delays. The posterior
weighs all that is known by its variance: the mean of what the delays may be. Their errors go together only in part, so
a blend errs less than either. What the posterior does not model it does not share in: the tails of packets that took
much longer than others (those have one slow hop, not all hops a little slower), and waiting for other packets.

Guarantee: a packet's delays still add up to its time, and arrivals stay within the bounds. Cost: that of the posterior,
about 0.02 ms for a delay.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.tomography.bounds.constraints import Bounds
from sojourn.tomography.delays.node_delays import waits
from sojourn.tomography.delays.posterior import Posteriors, stretches_of
from sojourn.tomography.delays.within_bounds import keep_delays
from sojourn.tomography.trace import CollectionTrace

__all__ = ["blend"]

SHARE = 0.5  # of the posterior, for a packet that took no longer than usual
LONGEST_WAIT = 0.1  # of a packet's time, for others; the posterior knows nothing of queues
NS_PER_MS = 1e6


def blend(trace: CollectionTrace, bounds: Bounds, arrival_ns: Int64Array) -> Int64Array:
    """The arrivals given, drawn towards the posterior's means."""
    posteriors = Posteriors(trace, bounds, arrival_ns)
    delay, is_visit = np.diff(arrival_ns, append=arrival_ns[-1]), trace.is_visit
    share = np.repeat(_shares(trace, arrival_ns), np.diff(trace.start))
    for packets in stretches_of(trace):
        answer = posteriors.of(packets)
        away = answer.mean * NS_PER_MS - delay[answer.place]
        delay[answer.place] += np.rint(share[answer.place] * away).astype(np.int64)
    blended = arrival_ns.copy()
    keep_delays(trace, bounds, delay[is_visit], blended)
    return blended


def _shares(trace: CollectionTrace, arrival_ns: Int64Array) -> FloatArray:
    """The posterior's share in each packet's delays."""
    visit = np.flatnonzero(trace.is_visit)
    owner = trace.owner[visit]
    waited = np.bincount(owner, waits(trace.node[visit], arrival_ns[visit], arrival_ns[visit + 1]), len(trace))
    total = (trace.sink_ns - trace.t0_ns).astype(np.float64)
    hop = (total - waited) / (np.diff(trace.start) - 1)
    longer = np.maximum(hop / max(float(np.median(hop)), 1.0), 1.0)
    return np.where(waited <= LONGEST_WAIT * total, SHARE / longer**2, 0.0)
