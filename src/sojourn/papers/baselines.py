"""What per-flow delay sketches are compared with: interpolation between probes, sampled flow records, the grand mean.

Each baseline sees every packet of the traffic and keeps what its method would have kept; packets that were lost tell
nothing. Flows of which it knows nothing get the mean of all delays, as the LDS paper does (§5.1).

- **RLI** (reference latency interpolation): reference packets at a fixed rate; every other packet has the delay that
  lies between its two neighbouring references, and a receiver with state per flow adds them up. As on a trace, the
  next packet that is sent after each tick serves as reference (and tells of other packets only).
- **MPE** (multi-point estimator): flow records of coordinated samples; a sampled flow has the delays of its first and
  last sampled packet, and between them the curve through all records' samples that fall into that time; its mean over
  time answers.
- **count-min**: sizes only, R rows of counters, the smallest answers.

Cost: O(n log n) for n packets. Lee, Duffield and Kompella, "Not All Microseconds Are Equal" (2010) and "Two Samples Are
Enough" (2010); Cormode and Muthukrishnan, "An Improved Data Stream Summary" (2005).
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.hash_kernels import bucket_matrix, mix_column, salt_table
from sojourn.lab.traffic import Traffic

__all__ = ["count_min", "grand_mean", "multi_point", "reference_interpolation"]

SECOND = 1_000_000_000


def grand_mean(traffic: Traffic) -> FloatArray:
    """The mean delay of all packets, for every flow."""
    return np.full(len(traffic.truth.flow_id), traffic.truth.mean_of_all_ns)


def reference_interpolation(traffic: Traffic, *, rate_hz: float) -> FloatArray:
    """RLI's mean delay of each flow, in the rows of the truth."""
    kept = np.flatnonzero(traffic.delivered)
    time = traffic.sender.time_ns[kept]
    ticks = np.arange(int(time[0]), int(time[-1]), round(SECOND / rate_hz))
    reference = np.unique(np.searchsorted(time, ticks))
    delay = traffic.delay_ns[kept].astype(np.float64)
    at = (time - time[0]).astype(np.float64)
    between = np.interp(at, at[reference], delay[reference])
    # Real references are packets of no flow: one that serves as such is judged by its neighbours.
    for part in (slice(0, None, 2), slice(1, None, 2)):
        others = np.delete(reference, np.arange(len(reference))[part])
        if len(others):
            between[reference[part]] = np.interp(at[reference[part]], at[others], delay[others])
    return _flow_means(traffic, traffic.flow[kept], between)


def _flow_means(traffic: Traffic, flow: Int64Array, delay: FloatArray) -> FloatArray:
    flows = len(traffic.truth.flow_id)
    count = np.bincount(flow, minlength=flows)
    with np.errstate(invalid="ignore"):
        means = np.bincount(flow, delay, flows) / count
    return np.where(count > 0, means, traffic.truth.mean_of_all_ns)


def multi_point(traffic: Traffic, *, share: float, salt: int = 0) -> FloatArray:
    """MPE's mean delay of each flow from records of a share of the packets, chosen by hash at both points."""
    chosen = mix_column(traffic.sender.packet_id ^ np.uint64(salt)) < np.uint64(share * 2.0**64)
    kept = np.flatnonzero(chosen & traffic.delivered)
    flow, time = traffic.flow[kept], traffic.sender.time_ns[kept]
    # Packets are in the order of their times: the first and last of each flow's rows are its record.
    order = np.argsort(flow, kind="stable")
    starts = np.flatnonzero(np.diff(flow[order], prepend=-1))
    first, last = order[starts], order[np.append(starts[1:], len(order)) - 1] if len(order) else order
    sampled = np.unique(np.concatenate([first, last]))
    at = (time[sampled] - time[0]).astype(np.float64) if len(kept) else np.empty(0)
    delay = traffic.delay_ns[kept[sampled]].astype(np.float64)
    area = np.concatenate([[0.0], np.cumsum(np.diff(at) * (delay[1:] + delay[:-1]) / 2)])
    begin, end = np.searchsorted(sampled, first), np.searchsorted(sampled, last)
    with np.errstate(invalid="ignore", divide="ignore"):
        curve = (area[end] - area[begin]) / (at[end] - at[begin])
    means = grand_mean(traffic)
    means[flow[first]] = np.where(at[end] > at[begin], curve, delay[begin])
    return means


def count_min(flow_id: UInt64Array, packets: Int64Array, *, rows: int, columns: int, salt: int = 0) -> Int64Array:
    """The size that a count-min sketch gives each flow."""
    cells = bucket_matrix(flow_id, salt_table(rows, salt), np.uint64(columns))
    sums = np.array([np.bincount(cells[:, row], packets, columns) for row in range(rows)])
    least: Int64Array = sums[np.arange(rows), cells].min(axis=1).astype(np.int64)
    return least
