"""Statistics of delays, flow by flow, from matched packets as they come.

Guarantee: counts, smallest and largest delays are exact; means are those of the integers to float precision, deviations
(the population's) too, by Welford's recurrence. Jitter is RFC 3550 §6.4.1's running estimate after the last packet, in
the order of arrival. A packet is reordered when one of its flow that was sent later had already arrived, and its extent
is the number of packets that had arrived since the first such one (RFC 4737 §3.3, §4.2.2); extents reach back over the
latest `REMEMBERED` packets of all flows.

Memory: 136 bytes per flow and 6 MB. Time: O(1) per packet, about 15 ns, and a step for every packet that a late one was
overtaken by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import FloatArray, Int64Array, lengthened
from sojourn.core.kernels import borrowing_kernel
from sojourn.matching.consumers import LostColumns, MatchedColumns

REMEMBERED = 1 << 18

_FLOW = np.dtype(
    [
        ("received", np.int64),
        ("lost", np.int64),
        ("negative", np.int64),
        ("first_ns", np.int64),
        ("sum_ns", np.int64),  # of delays less the first
        ("mean", np.float64),  # of delays less the first
        ("squares", np.float64),
        ("min_ns", np.int64),
        ("max_ns", np.int64),
        ("last_ns", np.int64),
        ("jitter", np.float64),
        ("reordered", np.int64),
        ("extent", np.int64),
        ("newest_sent_ns", np.int64),
        ("newest_arrival", np.int64),
        ("before_newest", np.int64),  # the node of the newest packet's predecessor, −1 without one
    ]
)
_NODE = np.dtype([("sent_ns", np.int64), ("arrival", np.int64), ("before", np.int64)])
_Rows: TypeAlias = NDArray[np.void]


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


@dataclass(frozen=True, slots=True)
class Aggregate:
    """All measured flows together; delays are NaN when nothing was received."""

    sent: int
    received: int
    lost: int
    mean_ns: float
    std_ns: float
    min_ns: int
    max_ns: int
    reordered: int
    reorder_extent: int
    negative: int


class DelayTotals:
    """Adds up matched and lost packets by flow number: a `PacketConsumer`'s two methods, and typed answers."""

    def __init__(self) -> None:
        self._flows = np.zeros(0, _FLOW)
        self._nodes = np.zeros(REMEMBERED, _NODE)
        self._written = np.zeros(1, np.int64)

    def _reach(self, flow: Int64Array) -> _Rows:
        """The rows, as many as these numbers need."""
        self._flows = lengthened(self._flows, int(flow.max(initial=-1)) + 1)
        return self._flows

    def take_matched(self, packets: MatchedColumns) -> None:
        """Add packets in order of arrival."""
        _add(packets.flow, packets.sent_ns, packets.delay_ns, self._reach(packets.flow), self._nodes, self._written)

    def take_lost(self, packets: LostColumns) -> None:
        """Count packets as lost."""
        rows = self._reach(packets.flow)
        np.add.at(rows["lost"], packets.flow, 1)

    def move(self, by_ns: Int64Array) -> None:
        """Make all delays of each flow longer by so much: what is known of the clock has changed."""
        rows = self._reach(np.array([len(by_ns) - 1]))[: len(by_ns)]
        for name in ("first_ns", "min_ns", "max_ns", "last_ns"):
            rows[name] += by_ns

    def _of(self, flow: Int64Array) -> _Rows:
        return self._reach(flow)[flow]

    def lost(self, flow: Int64Array) -> Int64Array:
        return np.ascontiguousarray(self._of(flow)["lost"])

    def statistics(self, flow: Int64Array) -> DelayStatistics:
        """Of each of these flows."""
        rows = self._of(flow)
        received = np.ascontiguousarray(rows["received"])
        some = np.where(received > 0, received, 1)
        return DelayStatistics(
            received,
            np.where(received > 0, rows["first_ns"] + rows["sum_ns"] / some, math.nan),
            np.where(received > 0, np.sqrt(rows["squares"] / some), math.nan),
            np.ascontiguousarray(rows["min_ns"]),
            np.ascontiguousarray(rows["max_ns"]),
            np.where(received > 0, rows["jitter"], math.nan),
            np.ascontiguousarray(rows["reordered"]),
            np.ascontiguousarray(rows["extent"]),
        )

    def aggregate(self, flow: Int64Array) -> Aggregate:
        """Of all packets of these flows together."""
        rows = self._of(flow)
        lost = int(rows["lost"].sum())
        rows = rows[rows["received"] > 0]
        if not len(rows):
            return Aggregate(lost, 0, lost, math.nan, math.nan, 0, 0, 0, 0, 0)
        received = int(rows["received"].sum())
        # Products of counts and delays need more than 64 bits.
        columns = (rows[name].tolist() for name in ("received", "first_ns", "sum_ns"))
        base = int(rows["first_ns"][0])
        total = sum(count * (first - base) + rest for count, first, rest in zip(*columns, strict=True))
        mean = total / received
        apart = (rows["first_ns"] - base) + rows["mean"] - mean
        squares = float(rows["squares"].sum() + (rows["received"] * apart * apart).sum())
        return Aggregate(
            sent=received + lost,
            received=received,
            lost=lost,
            mean_ns=base + mean,
            std_ns=math.sqrt(squares / received),
            min_ns=int(rows["min_ns"].min()),
            max_ns=int(rows["max_ns"].max()),
            reordered=int(rows["reordered"].sum()),
            reorder_extent=int(rows["extent"].max()),
            negative=int(rows["negative"].sum()),
        )


@borrowing_kernel
def _add(
    flow: Int64Array, sent_ns: Int64Array, delay_ns: Int64Array, flows: _Rows, nodes: _Rows, written: Int64Array
) -> None:
    size = nodes.shape[0]
    for i in range(flow.shape[0]):
        own = flow[i]
        delay, sent = delay_ns[i], sent_ns[i]
        arrival = flows[own].received
        flows[own].received = arrival + 1
        flows[own].negative += delay < 0
        if arrival == 0:
            flows[own].first_ns = flows[own].min_ns = flows[own].max_ns = flows[own].last_ns = delay
            flows[own].newest_sent_ns = sent
            flows[own].before_newest = -1
            continue
        since_first = delay - flows[own].first_ns
        flows[own].sum_ns += since_first
        step = float(since_first) - flows[own].mean
        flows[own].mean += step / float(arrival + 1)
        flows[own].squares += step * (float(since_first) - flows[own].mean)
        flows[own].min_ns = min(flows[own].min_ns, delay)
        flows[own].max_ns = max(flows[own].max_ns, delay)
        flows[own].jitter += (abs(float(delay) - float(flows[own].last_ns)) - flows[own].jitter) / 16.0
        flows[own].last_ns = delay
        if sent >= flows[own].newest_sent_ns:
            # The newest so far becomes one that a late packet may be behind of.
            node = written[0]
            written[0] = node + 1
            nodes[node % size].sent_ns = flows[own].newest_sent_ns
            nodes[node % size].arrival = flows[own].newest_arrival
            nodes[node % size].before = flows[own].before_newest
            flows[own].newest_sent_ns = sent
            flows[own].newest_arrival = arrival
            flows[own].before_newest = node
            continue
        first = flows[own].newest_arrival
        node = flows[own].before_newest
        while node >= 0 and node > written[0] - size and nodes[node % size].sent_ns > sent:
            first = nodes[node % size].arrival
            node = nodes[node % size].before
        flows[own].reordered += 1
        flows[own].extent = max(flows[own].extent, arrival - first)
