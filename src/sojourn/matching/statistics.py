"""Per-flow statistics of matched packets: delay, jitter and reordering, in one pass over each flow.

Guarantee: counts are exact; means and deviations are those of the integers, to float precision (sums are
taken around each flow's first delay). Deviation is the population's. Jitter is RFC 3550 §6.4.1's running
estimate after the last packet, in the order of arrival. A packet is reordered when one of its flow that
was sent later had already arrived, and its extent is the number of packets that had arrived since the
first such one (RFC 4737 §3.3, §4.2.2).

Cost: O(packets), O(log) more for a reordered packet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import kernel

__all__ = ["DelayStatistics", "delay_statistics", "group_by_flow", "percentiles"]


@dataclass(frozen=True, eq=False)
class DelayStatistics:
    """Columns, one row per flow number; NaN (and 0 for the integers) where nothing was received."""

    received: Int64Array
    mean_ns: FloatArray
    std_ns: FloatArray
    min_ns: Int64Array
    max_ns: Int64Array
    jitter_ns: FloatArray
    reordered: Int64Array
    reorder_extent: Int64Array


def delay_statistics(starts: Int64Array, sent_ns: Int64Array, delay_ns: Int64Array) -> DelayStatistics:
    """Statistics of flow k from the rows ``starts[k] … starts[k + 1]``, which are in order of arrival."""
    flows = len(starts) - 1
    floats = np.full((3, flows), math.nan)
    counts = np.zeros((4, flows), np.int64)
    _summarise(starts, sent_ns, delay_ns, floats, counts)
    return DelayStatistics(np.diff(starts), floats[0], floats[1], counts[0], counts[1], floats[2], counts[2], counts[3])


@kernel
def _summarise(
    starts: Int64Array, sent_ns: Int64Array, delay_ns: Int64Array, floats: FloatArray, counts: Int64Array
) -> None:
    records = np.empty(sent_ns.shape[0], np.int64)
    for flow in range(starts.shape[0] - 1):
        start, end = starts[flow], starts[flow + 1]
        if start == end:
            continue
        first = delay_ns[start]
        shifted_sum = 0.0
        least = greatest = first
        jitter = 0.0
        for i in range(start, end):
            delay = delay_ns[i]
            shifted_sum += float(delay) - float(first)
            least = min(least, delay)
            greatest = max(greatest, delay)
            if i > start:
                jitter += (abs(float(delay) - float(delay_ns[i - 1])) - jitter) / 16
        mean = shifted_sum / (end - start)
        squares = 0.0
        for i in range(start, end):
            squares += (float(delay_ns[i]) - float(first) - mean) ** 2
        floats[0, flow] = float(first) + mean
        floats[1, flow] = math.sqrt(squares / (end - start))
        floats[2, flow] = jitter
        counts[0, flow] = least
        counts[1, flow] = greatest
        counts[2, flow], counts[3, flow] = _reordering(sent_ns, start, end, records)


@kernel
def _reordering(sent_ns: Int64Array, start: int, end: int, records: Int64Array) -> tuple[int, int]:
    """How many packets came after a later-sent one, and the largest extent; `records` is scratch."""
    size = 0
    reordered = extent = 0
    for i in range(start, end):
        if size == 0 or sent_ns[i] >= sent_ns[records[size - 1]]:
            records[size] = i
            size += 1
            continue
        low, high = 0, size - 1
        while low < high:
            middle = (low + high) // 2
            if sent_ns[records[middle]] > sent_ns[i]:
                high = middle
            else:
                low = middle + 1
        reordered += 1
        extent = max(extent, i - records[low])
    return reordered, extent


@kernel
def group_by_flow(flow: Int64Array, flows: int) -> tuple[Int64Array, Int64Array]:
    """A stable counting sort: the rows grouped by flow number, and where each flow's rows start."""
    starts = np.zeros(flows + 1, np.int64)
    for i in range(flow.shape[0]):
        starts[flow[i] + 1] += 1
    for k in range(flows):
        starts[k + 1] += starts[k]
    place = starts[:-1].copy()
    rows = np.empty(flow.shape[0], np.int64)
    for i in range(flow.shape[0]):
        rows[place[flow[i]]] = i
        place[flow[i]] += 1
    return rows, starts


@kernel
def percentiles(starts: Int64Array, delay_ns: Int64Array, shares: FloatArray) -> FloatArray:
    """Per flow (row) and share of 0…1 (column), interpolated between neighbours; NaN for an empty flow."""
    values = np.full((starts.shape[0] - 1, shares.shape[0]), np.nan)
    for flow in range(starts.shape[0] - 1):
        start, end = starts[flow], starts[flow + 1]
        if start == end:
            continue
        ordered = np.sort(delay_ns[start:end])
        for k in range(shares.shape[0]):
            position = shares[k] * (end - start - 1)
            below = int(position)
            above = min(below + 1, end - start - 1)
            part = position - below
            values[flow, k] = ordered[below] + (ordered[above] - ordered[below]) * part
    return values
