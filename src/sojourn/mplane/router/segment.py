"""One segment inside a router, one class: LDAs at both ends, interval by interval, between Start and End.

The packets of an interval are those that passed the ingress between its two messages; the egress takes those that come
between the same messages there (§III of the paper). Whether that is the same set rests on order: a class leaves in the
order in which it came. Linux keeps it in a queue, but not on the way to it, where CPUs work side by side: around a
message, packets overtake it by microseconds. The ingress therefore remembers the ids of packets within `EDGE_NS` of a
message, and at the egress these go by what the ingress said, all others by the messages. So an edge spoils no cell,
and the count of lost packets is exact.

An interval is void when a message was lost or a tap missed packets; it then says why and gives no egress LDA.

Memory: two LDAs per open interval (usually two), 24 bytes per packet within `EDGE_NS` of a message.
Cost: about 0.1 µs per packet and side. Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.mplane.router.control_messages import ControlKind
from sojourn.mplane.router.epochs import Side, Void
from sojourn.segments.record import PointRecorder
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.sketch import AnySketch

EDGE_NS = 20_000_000
# An injected message has surely been tapped after so long, and a packet that it overtook has followed it.
SURELY_NS = 1_000_000_000
SETTLE_NS = 200_000_000
NO_INTERVAL = -1
DATA = 0


def mark_of(kind: ControlKind, interval: int) -> int:
    """How a message stands in a column of marks, where packets have `DATA`.

    >>> mark_of(ControlKind.START, 5), mark_of(ControlKind.END, 5)
    (21, 22)
    """
    return interval << 2 | kind


@dataclass(frozen=True, eq=False)
class ClosedInterval:
    """What an interval came to; the egress is of no use where it is void."""

    number: int
    ingress: AnySketch
    egress: AnySketch
    void: Void | None

    @property
    def is_idle(self) -> bool:
        """Whether nothing passed."""
        return not (self.ingress.recorded or self.egress.recorded)


@dataclass(eq=False)
class _Open:
    """An interval under way; times are those of its messages: injected, at the ingress, at the egress."""

    number: int
    ingress: PointRecorder
    egress: PointRecorder
    sent: dict[ControlKind, int]
    entered: dict[ControlKind, int]
    left: dict[ControlKind, int]
    void: Void | None = None

    def ready(self, until_ns: int, max_delay_ns: int) -> bool:
        """Whether both sides, complete until then, have seen all of the interval that they will."""
        if ControlKind.END not in self.sent:
            return False
        entered = self.entered.get(ControlKind.END, self.sent[ControlKind.END] + SURELY_NS)
        left = self.left.get(ControlKind.END, entered + max_delay_ns)
        return until_ns >= left + SETTLE_NS

    def reason(self) -> Void | None:
        """Why it is void, once it is ready."""
        for kind, not_sent, lost in (
            (ControlKind.START, Void.START_NOT_SENT, Void.START_LOST),
            (ControlKind.END, Void.END_NOT_SENT, Void.END_LOST),
        ):
            if self.void is None and kind not in self.entered:
                self.void = not_sent
            if self.void is None and kind not in self.left:
                self.void = lost
        return self.void

    def closed(self) -> ClosedInterval:
        ingress, egress = (side.finish()[-1].sketch for side in (self.ingress, self.egress))
        return ClosedInterval(self.number, ingress, egress, self.reason())


class _Edges:
    """The intervals of packets that passed the ingress near a message, by packet id."""

    def __init__(self, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self._messages = np.empty(0, np.int64)
        self._times, self._ids = np.empty(0, np.int64), np.empty(0, np.uint64)
        self._intervals = np.empty(0, np.int64)
        self._latest = 0

    def add(self, batch: PacketBatch, intervals: Int64Array, is_message: Int64Array) -> None:
        """Remember what is near a message; the last packets, too, since a message may follow them."""
        if not len(batch):
            return
        # What is old by the time of the batch before: the egress has yet to see this one.
        messages = self._messages[self._messages > self._latest - self._keep_ns]
        self._messages = np.union1d(messages, batch.time_ns[is_message])
        times = np.concatenate([self._times, batch.time_ns])
        self._latest = int(times.max())
        around = np.concatenate([[-(1 << 62)], self._messages, [1 << 62]])
        place = np.searchsorted(self._messages, times)
        near = np.minimum(times - around[place], around[place + 1] - times) <= EDGE_NS
        kept = near | (times > self._latest - EDGE_NS)
        ids = np.concatenate([self._ids, batch.packet_id])[kept]
        order = np.argsort(ids, kind="stable")
        self._ids, self._times = ids[order], times[kept][order]
        self._intervals = np.concatenate([self._intervals, intervals])[kept][order]

    def correct(self, ids: UInt64Array, intervals: Int64Array) -> None:
        """Put in the intervals of the packets that are remembered."""
        if not len(self._ids):
            return
        place = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        known = self._ids[place] == ids
        intervals[known] = self._intervals[place[known]]


class SegmentRecorder:
    """Takes what the two taps saw, in time order, and gives closed intervals."""

    def __init__(self, parameters: LdaParameters, *, max_delay_ns: int) -> None:
        """A message that takes longer than `max_delay_ns` counts as lost."""
        self._parameters = parameters
        self._max_delay_ns = max_delay_ns
        self._open: dict[int, _Open] = {}
        self._edges = _Edges(max_delay_ns + SURELY_NS)
        self._entering = self._leaving = NO_INTERVAL

    def sent(self, kind: ControlKind, interval: int, time_ns: int) -> None:
        """A message was injected; with Start an interval begins."""
        if kind is ControlKind.START:
            parameters = replace(self._parameters, salt=interval)
            ingress, egress = (PointRecorder("router", side, parameters) for side in Side)
            self._open[interval] = _Open(interval, ingress, egress, {}, {}, {})
        self._open[interval].sent[kind] = time_ns

    def enter(self, batch: PacketBatch, marks: Int64Array) -> None:
        """Packets and messages at the ingress tap; `marks` tells messages from packets."""
        intervals = np.empty(len(batch), np.int64)
        self._entering = self._follow(batch, marks, intervals, self._entering, at_ingress=True)
        messages = np.flatnonzero(marks != DATA)
        self._edges.add(batch, intervals, messages)
        self._record(batch, marks, intervals, at_ingress=True)

    def leave(self, batch: PacketBatch, marks: Int64Array) -> None:
        """Packets and messages at the egress tap; the ingress has been told of everything until then."""
        intervals = np.empty(len(batch), np.int64)
        self._leaving = self._follow(batch, marks, intervals, self._leaving, at_ingress=False)
        self._edges.correct(batch.packet_id, intervals)
        self._record(batch, marks, intervals, at_ingress=False)

    def _follow(
        self, batch: PacketBatch, marks: Int64Array, intervals: Int64Array, current: int, *, at_ingress: bool
    ) -> int:
        """Fill in each row's interval from the messages among the rows; the interval after the last."""
        begin = 0
        for place in np.flatnonzero(marks != DATA).tolist():
            intervals[begin:place] = current
            intervals[place] = NO_INTERVAL
            number, kind = int(marks[place]) >> 2, ControlKind(int(marks[place]) & 3)
            if (found := self._open.get(number)) is not None:
                (found.entered if at_ingress else found.left)[kind] = int(batch.time_ns[place])
            if kind is ControlKind.START:
                current = number
            elif current == number:  # an End that the next Start overtook ends nothing
                current = NO_INTERVAL
            begin = place + 1
        intervals[begin:] = current
        return current

    def _record(self, batch: PacketBatch, marks: Int64Array, intervals: Int64Array, *, at_ingress: bool) -> None:
        for number in np.unique(intervals).tolist():
            found = self._open.get(number)
            if found is None:
                continue
            rows = batch.select((intervals == number) & (marks == DATA))
            if (found.ingress if at_ingress else found.egress).record(rows):  # an epoch that closed was full
                found.void = found.void or Void.SKETCH_FULL

    def spoil(self, void: Void) -> None:
        """Something went wrong just now: intervals that are open cannot be trusted."""
        for found in self._open.values():
            found.void = found.void or void

    def closed(self, until_ns: int) -> list[ClosedInterval]:
        """The intervals that are over, both sides being complete until a time; oldest first."""
        ready = [found for found in self._open.values() if found.ready(until_ns, self._max_delay_ns)]
        for found in ready:
            del self._open[found.number]
        return [found.closed() for found in ready]

    @property
    def is_idle(self) -> bool:
        """Whether no interval is open."""
        return not self._open
