"""What exact matching answers: flows, totals, packets and fates, and how they are added up.

Guarantee: every row of both points has one `Fate`; ``packets`` = ``received`` + ``lost`` for every flow and
for the aggregate. Cost: O(packets).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt8Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.matching.clock.correction import ClockEstimate
from sojourn.matching.clock.reporting import explain_negative
from sojourn.matching.crossing import Crossing
from sojourn.matching.statistics import delay_statistics, group_by_flow, percentiles

__all__ = [
    "Aggregate",
    "ExactMatch",
    "Fate",
    "MatchedPackets",
    "MeasuredFlows",
    "PointFates",
    "UnmatchedFlows",
    "add_up",
]


class Fate(IntEnum):
    """What became of a packet of either point."""

    RECEIVED = 0
    LOST = 1
    RECEIVER_ONLY = 2
    DUPLICATE = 3
    EDGE = 4
    OTHER_WAY = 5
    UNMATCHED_FLOW = 6


@dataclass(frozen=True, eq=False)
class MatchedPackets:
    """The packets of the measured flows that both points saw, grouped by flow, in order of arrival.

    ``start[k] … start[k + 1]`` are the rows of the flow in row k of the `MeasuredFlows`.
    """

    flow_id: UInt64Array
    sender_row: Int64Array
    receiver_row: Int64Array
    sent_ns: Int64Array
    delay_ns: Int64Array
    start: Int64Array

    def __len__(self) -> int:
        return len(self.delay_ns)


@dataclass(frozen=True, eq=False)
class MeasuredFlows:
    """Columns, one row per measured flow; delays of a flow that was wholly lost are NaN (min, max 0).

    ``edge`` counts packets that could not be judged, ``duplicates`` extra copies at either point and
    ``receiver_only`` packets that the sender's capture missed; none of them is part of ``packets``.
    """

    flow_id: UInt64Array
    packets: Int64Array
    received: Int64Array
    lost: Int64Array
    mean_ns: FloatArray
    std_ns: FloatArray
    min_ns: Int64Array
    max_ns: Int64Array
    jitter_ns: FloatArray
    reordered: Int64Array
    reorder_extent: Int64Array
    duplicates: Int64Array
    receiver_only: Int64Array
    edge: Int64Array

    def __len__(self) -> int:
        return len(self.flow_id)


@dataclass(frozen=True, eq=False)
class UnmatchedFlows:
    """Flows without any packet seen at both points: how many packets each point has of them."""

    flow_id: UInt64Array
    sender_packets: Int64Array
    receiver_packets: Int64Array

    def __len__(self) -> int:
        return len(self.flow_id)


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


@dataclass(frozen=True, eq=False)
class ExactMatch:
    """Everything that matching two points tells; ``explanation`` says what needs words."""

    flows: MeasuredFlows
    unmatched_flows: UnmatchedFlows
    aggregate: Aggregate
    clock: ClockEstimate
    packets: MatchedPackets
    sender_fate: UInt8Array
    receiver_fate: UInt8Array
    explanation: str
    crossing: Crossing

    def ignored(self) -> dict[str, int]:
        """Packets that are part of no flow's counts, by reason, without those that do not occur."""
        counts: dict[str, int] = {}
        for fate, name in _IGNORED.items():
            for fates, point in ((self.sender_fate, "sender"), (self.receiver_fate, "receiver")):
                found = int(np.count_nonzero(fates == fate))
                if found:
                    counts[f"{name} at {point}"] = found
        return counts

    def percentiles(self, shares: list[float]) -> FloatArray:
        """Delay percentiles per flow (row) for shares between 0 and 1 (column)."""
        if not all(0 <= share <= 1 for share in shares):
            raise ParameterError(f"percentile shares {shares}", action="use numbers between 0 and 1")
        return percentiles(self.packets.start, self.packets.delay_ns, np.array(shares, np.float64))


_IGNORED = {
    Fate.RECEIVER_ONLY: "not seen sent",
    Fate.DUPLICATE: "duplicate",
    Fate.EDGE: "edge of the interval",
    Fate.OTHER_WAY: "other direction",
    Fate.UNMATCHED_FLOW: "flow not seen at both points",
}


@dataclass(frozen=True, eq=False)
class PointFates:
    """One point's rows: the flow number and the fate of each."""

    flow: Int64Array
    fate: UInt8Array

    def count(self, fate: Fate, flows: int) -> Int64Array:
        """How many rows of each flow have this fate."""
        return np.bincount(self.flow[self.fate == fate], minlength=flows)


def add_up(
    ids: UInt64Array,
    measured: BoolArray,
    matched: MatchedPackets,
    points: tuple[PointFates, PointFates],
    clock: ClockEstimate,
    crossing: Crossing,
) -> ExactMatch:
    """The whole answer. `matched` is in order of arrival and its ``start`` is not used.

    `ids` are the flows' ids by number, `measured` says which of them are reported.
    """
    numbers = np.flatnonzero(measured)
    place = np.zeros(len(ids), np.int64)
    place[numbers] = np.arange(len(numbers))
    sender, receiver = points
    rows, start = group_by_flow(place[sender.flow[matched.sender_row]], len(numbers))
    packets = MatchedPackets(
        matched.flow_id[rows],
        matched.sender_row[rows],
        matched.receiver_row[rows],
        matched.sent_ns[rows],
        matched.delay_ns[rows],
        start,
    )
    flows = _flow_table(ids, numbers, packets, sender, receiver)
    aggregate = _aggregate(flows, packets)
    negative = explain_negative(
        aggregate.negative, aggregate.min_ns, uncertainty_ns=clock.uncertainty_ns, corrected=clock.corrected
    )
    return ExactMatch(
        flows=flows,
        unmatched_flows=_unmatched(ids, sender, receiver),
        aggregate=aggregate,
        clock=clock,
        packets=packets,
        sender_fate=sender.fate,
        receiver_fate=receiver.fate,
        explanation=f"{clock.explanation} {negative}".strip(),
        crossing=crossing,
    )


def _flow_table(
    ids: UInt64Array, numbers: Int64Array, packets: MatchedPackets, sender: PointFates, receiver: PointFates
) -> MeasuredFlows:
    def counted(point: PointFates, fate: Fate) -> Int64Array:
        return point.count(fate, len(ids))[numbers]

    delays = delay_statistics(packets.start, packets.sent_ns, packets.delay_ns)
    lost = counted(sender, Fate.LOST)
    return MeasuredFlows(
        flow_id=ids[numbers],
        packets=delays.received + lost,
        received=delays.received,
        lost=lost,
        mean_ns=delays.mean_ns,
        std_ns=delays.std_ns,
        min_ns=delays.min_ns,
        max_ns=delays.max_ns,
        jitter_ns=delays.jitter_ns,
        reordered=delays.reordered,
        reorder_extent=delays.reorder_extent,
        duplicates=counted(sender, Fate.DUPLICATE) + counted(receiver, Fate.DUPLICATE),
        receiver_only=counted(receiver, Fate.RECEIVER_ONLY),
        edge=counted(sender, Fate.EDGE) + counted(receiver, Fate.EDGE),
    )


def _aggregate(flows: MeasuredFlows, packets: MatchedPackets) -> Aggregate:
    everything = np.array([0, len(packets)], np.int64)
    total = delay_statistics(everything, packets.sent_ns, packets.delay_ns)
    received, lost = len(packets), int(flows.lost.sum())
    return Aggregate(
        sent=received + lost,
        received=received,
        lost=lost,
        mean_ns=float(total.mean_ns[0]) if received else math.nan,
        std_ns=float(total.std_ns[0]) if received else math.nan,
        min_ns=int(total.min_ns[0]),
        max_ns=int(total.max_ns[0]),
        reordered=int(flows.reordered.sum()),
        reorder_extent=int(flows.reorder_extent.max(initial=0)),
        negative=int(np.count_nonzero(packets.delay_ns < 0)),
    )


def _unmatched(ids: UInt64Array, sender: PointFates, receiver: PointFates) -> UnmatchedFlows:
    sent = sender.count(Fate.UNMATCHED_FLOW, len(ids))
    got = receiver.count(Fate.UNMATCHED_FLOW, len(ids))
    numbers = np.flatnonzero(sent + got)
    return UnmatchedFlows(ids[numbers], sent[numbers], got[numbers])
