"""A segment between two interfaces of one machine, measured while its packets pass: one pass, bounded memory.

::

        max_delay      what is measured: T₀ … T₁       max_delay
    ├───────────────┼───────────────────────────────┼───────────────┤   both interfaces are captured
     sent before      recorded at once                sent after        the sender's packets
     arrived before │ held │ recorded at once         held              the receiver's packets

Measured are the packets *sent* in T₀ … T₁. The sender needs no more than its clock to tell them. Of the receiver's,
those of the first `max_delay` after T₀ may have been sent before, and those after T₁ may still belong to it: they are
held (32 bytes each) and, at the end, paired by identity with what the sender sent before T₀ and after T₁. What pairs is
left out, the rest is recorded. So no packet in flight at an edge is taken for lost, whatever the queue held, if none
was on its way longer than `max_delay`; one that was counts as lost (or as never sent).

Both interfaces are stamped by the kernel's one clock: there is nothing to correct.

**Too many packets.** Matching takes longer than recording, and both interfaces' packets are matched in turns. If they
come faster than they can be matched, rings fill up and the kernel drops: once `MOST_DROPPED` packets and
`MOST_DROPPED_SHARE` of all were dropped, measuring begins anew with sketches, if there is a `fallback` for it and time
left; what was matched before is left out. Nothing of the packets is held back, so that there is no other backlog.

A flow that only one of the interfaces showed does not take this way (it is for this machine itself, or leaves by
another interface), or every packet of it was lost: it is listed, and left out of the totals, as in exact matching.

Memory: the two rings, the flow tables, the sketches and the edges, at most `EDGE_PACKETS` each; whatever the duration.
The exact answer takes a table of the packets of the latest `max_delay` beside it (`matching.stream`), and no edges: it
knows of each packet when it was sent. Time: each interface is read in its own thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sojourn.capture.flows.table import FlowTable
from sojourn.capture.live.interface import start_together
from sojourn.capture.live.reader import LiveReader, rehearsal
from sojourn.core.arrays import BoolArray, PacketBatch, UInt64Array
from sojourn.core.errors import InputError, ParameterError
from sojourn.core.results import Advance, silent
from sojourn.epochs.epoch import Epoch, merge_epochs
from sojourn.matching.consumers import PacketConsumer
from sojourn.matching.crossing import resegmented
from sojourn.matching.exact import ExactMatch
from sojourn.matching.groups import ClassTotals
from sojourn.matching.join_table import RECEIVER, SENDER
from sojourn.matching.pairing import MATCHED, pair_packets
from sojourn.matching.stream import Directions, ExactStream, StreamSettings
from sojourn.segments.answer import CountedFlows, Interval, answer_interval
from sojourn.segments.plan import SegmentPlan
from sojourn.segments.planning.layout import SEGMENT
from sojourn.segments.record import PointRecorder
from sojourn.segments.surveyed import packets_of
from sojourn.sketches.ledgers.ledger import Ledger
from sojourn.sketches.sketch import AnySketch

EDGE_PACKETS = 1 << 21
# A stop is announced so long before: no thread has already worked on later packets.
NOTICE_NS = 100_000_000
# An interface's packets come in blocks, each after this time at the latest, and from several queues.
GRACE_NS, DISORDER_NS = 500_000_000, 100_000_000
# A momentary burst may overflow a ring; so many drops, and such a share of all packets, are a rate that is too high.
MOST_DROPPED, MOST_DROPPED_SHARE = 1_000, 0.01
_NEVER = np.iinfo(np.int64).max


class EdgeLog:
    """Packets of one edge, to be judged at the end: the first `limit` of them, or (`keep_newest`) about the last."""

    def __init__(self, limit: int = EDGE_PACKETS, *, keep_newest: bool = False) -> None:
        self._limit, self._keep_newest = limit, keep_newest
        self._batches: deque[PacketBatch] = deque()
        self.count = self.overflow = 0

    def add(self, batch: PacketBatch) -> PacketBatch:
        """Keep a batch; the end of it that found no room."""
        room = len(batch) if self._keep_newest else min(len(batch), self._limit - self.count)
        self._batches.append(batch.select(slice(0, room)))
        self.count += room
        self.overflow += len(batch) - room
        while self._keep_newest and self.count - len(self._batches[0]) >= self._limit:
            self.count -= len(self._batches.popleft())
        return batch.select(slice(room, None))

    def packets(self) -> PacketBatch:
        return PacketBatch.concatenate(list(self._batches))


class LivePoint:
    """One interface: sorts its packets by time, records those that surely count and holds the others."""

    def __init__(
        self, reader: LiveReader, plan: SegmentPlan | None, *, hold_ns: int, keeps_ledger: bool = False
    ) -> None:
        self.reader, self._keeps_ledger = reader, keeps_ledger
        self.counts = FlowTable(reader.flows.max_flows)
        self.before, self.held, self.after = EdgeLog(keep_newest=True), EdgeLog(), EdgeLog()
        self.first_ns, self.last_ns = _NEVER, _NEVER
        self.longest = self.dropped = 0
        self._hold_ns = hold_ns
        self._recorder = self._new_recorder(plan) if plan is not None else None
        self._epochs: list[Epoch] = []
        self._again: tuple[int, SegmentPlan] | None = None

    def _new_recorder(self, plan: SegmentPlan) -> PointRecorder:
        ledger = Ledger(plan.ledger) if self._keeps_ledger and plan.ledger else None
        return PointRecorder("point", SEGMENT, plan.stream, ledger=ledger)

    @property
    def ledger(self) -> Ledger | None:
        """Its last packets, where it keeps a ledger."""
        return None if self._recorder is None else self._recorder.ledger

    def begin_again(self, first_ns: int, plan: SegmentPlan) -> None:
        """Measure from a time on that is still to come, by a plan; from another thread."""
        self._again = first_ns, plan

    def _begin_again(self, first_ns: int, plan: SegmentPlan) -> None:
        self.first_ns, self._again = first_ns, None
        self._recorder = self._new_recorder(plan)
        self.counts = FlowTable(self.reader.flows.max_flows)
        self.held, self.after, self.longest = EdgeLog(), EdgeLog(), 0

    def take(self, batch: PacketBatch) -> None:
        """Sort in the next packets."""
        if self._again is not None:
            self._begin_again(*self._again)
        time_ns, first, last = batch.time_ns, self.first_ns, self.last_ns
        if not len(batch):
            return
        if first + self._hold_ns <= int(time_ns.min()) and int(time_ns.max()) <= last:
            self.record(batch)
            return
        early = time_ns < first
        late = ~early & (time_ns > last)
        held = ~early & ~late & (time_ns < first + self._hold_ns)
        self.before.add(batch.select(early))
        self.after.add(batch.select(late))
        self.record(self.held.add(batch.select(held)))
        self.record(batch.select(~(early | late | held)))

    def record(self, batch: PacketBatch) -> None:
        """Packets that count."""
        self.counts.update(batch.flow_id, batch.time_ns, batch.size_bytes)
        self.longest = max(self.longest, int(batch.size_bytes.max(initial=0)))
        if self._recorder is not None:
            self._epochs += self._recorder.record(batch)
            if len(self._epochs) > 1:  # a sketch that is full again and again takes no more memory
                self._epochs = [replace(self._epochs[0], sketch=merge_epochs(self._epochs))]

    def sketch(self) -> AnySketch:
        """All that was recorded."""
        finished = self._recorder.finish() if self._recorder is not None else []
        return merge_epochs([*self._epochs, *finished])


class LiveMatch:
    """Matches both interfaces' packets as they come, from a thread for each.

    Who looks at the ``stream`` or its consumers meanwhile holds the ``lock``.
    """

    def __init__(self, max_delay_ns: int, consumers: Sequence[PacketConsumer] = (), *, by_class: bool = False) -> None:
        classes = ClassTotals() if by_class else None
        settings = StreamSettings.of_one_clock(max_delay_ns)
        self.stream = ExactStream(settings, consumers, span_ns=DISORDER_NS, classes=classes)
        self.lock = threading.Lock()

    def take(self, side: int, batch: PacketBatch, asked_ns: int) -> None:
        """Packets of one interface; an empty batch was asked for at a time before which there is nothing more."""
        with self.lock:
            if len(batch):
                self.stream.take(side, batch)
            else:
                self.stream.until(side, asked_ns - GRACE_NS)

    def answer(self) -> ExactMatch:
        """The answer, when both interfaces have ended."""
        for side in (SENDER, RECEIVER):
            self.stream.end(side)
        return self.stream.finish(self.stream.settings.clock, Directions.of_one_clock())


@dataclass(frozen=True)
class Overload:
    """Packets came faster than they could be matched: of so many, so many had been dropped."""

    dropped: int
    packets: int

    @property
    def is_lasting(self) -> bool:
        """Whether it is more than a momentary burst.

        >>> Overload(5_000, 20_000).is_lasting, Overload(5_000, 2_000_000).is_lasting, Overload(500, 600).is_lasting
        (True, False, False)
        """
        return self.dropped >= MOST_DROPPED and self.dropped >= MOST_DROPPED_SHARE * self.packets

    def told(self, first_ns: int) -> str:
        """What was done about it, from a time on."""
        since = datetime.fromtimestamp(first_ns / 1e9, UTC)
        return (
            f"measured with sketches from {since:%H:%M:%S} UTC on: packets came faster than they could be matched, "
            f"{self.dropped:,} of {self.packets:,} had been dropped; what was matched before is left out. "
            "--sketch exact goes on matching; a filter makes packets fewer, a larger --buffer bridges bursts"
        )


@dataclass(frozen=True, eq=False)
class LiveAnswer:
    """What a live measurement tells; ``match`` if every packet was matched, ``whole`` if sketches recorded them by the
    ``plan``: as was asked for, or because of an ``overload``."""

    whole: Interval | None
    match: ExactMatch | None
    first_ns: int
    last_ns: int
    one_sided: UInt64Array
    left_out: dict[str, int]
    resegmented: UInt64Array
    classes: ClassTotals | None = None
    plan: SegmentPlan | None = None
    overload: Overload | None = None

    @property
    def other_way(self) -> int:
        """How many flows were recorded that travel from the receiver to the sender."""
        return 0 if self.whole is None else self.whole.other_way


class LiveSegment:
    """Two interfaces measured at once; `run` blocks until the time is over or `stop` was called."""

    def __init__(
        self,
        sender: LiveReader,
        receiver: LiveReader,
        plan: SegmentPlan | None,
        *,
        seconds: float | None = None,
        max_delay_ns: int = 1_000_000_000,
        exact: bool = False,
        by_class: bool = False,
        fallback: Callable[[], SegmentPlan] | None = None,
    ) -> None:
        """`plan` says what to record; `exact` matches every packet, beside it or alone; `by_class` also adds packets
        up by DSCP, with which both readers decode them then. Where packets come too fast to be matched, `fallback` says
        what to record instead."""
        if max_delay_ns < 0:
            raise ParameterError(f"max_delay is {max_delay_ns} ns", action="give 0 or more")
        if plan is None and not exact:
            raise ParameterError("nothing is to be measured", action="give a plan, or ask for the exact answer")
        self._plan, self._max_delay_ns, self._seconds = plan, max_delay_ns, seconds
        self.sender = LivePoint(sender, plan, hold_ns=0, keeps_ledger=True)
        self.receiver = LivePoint(receiver, plan, hold_ns=max_delay_ns)
        self._match = LiveMatch(max_delay_ns, by_class=by_class) if exact else None
        self._fallback = fallback
        self._overload: Overload | None = None
        self._failures: list[BaseException] = []
        # Compile before there are packets to lose.
        LivePoint(sender, plan, hold_ns=0).record(rehearsal()[0])
        if exact:
            rehearsed = LiveMatch(max_delay_ns)
            for side in (SENDER, RECEIVER):
                rehearsed.take(side, rehearsal()[0], 0)
            rehearsed.answer()

    @property
    def points(self) -> tuple[LivePoint, LivePoint]:
        return self.sender, self.receiver

    def stop(self) -> None:
        """End soon; packets on their way are still waited for. May be called from a signal handler."""
        self._end_at(time.time_ns() + NOTICE_NS)

    def _end_at(self, last_ns: int) -> None:
        last_ns = max(last_ns, self.sender.first_ns) if self.sender.first_ns != _NEVER else last_ns
        for point in self.points:
            point.last_ns = min(point.last_ns, last_ns)
            point.reader.stop(point.last_ns + self._max_delay_ns)
        if self._match is not None:
            self._match.stream.last_ns = self.sender.last_ns

    def run(self, advance: Advance = silent) -> LiveAnswer:
        """Capture, wait for the packets on their way, answer."""
        started = start_together([self.receiver.reader.capture, self.sender.reader.capture])
        for point in self.points:
            point.first_ns = started + self._max_delay_ns
        if self._match is not None:
            self._match.stream.first_ns = self.sender.first_ns
        if self._seconds is not None:
            self._end_at(self.sender.first_ns + int(self._seconds * 1e9))
        threads = [threading.Thread(target=self._read, args=(side,), daemon=True) for side in (SENDER, RECEIVER)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                threads[0].join(0.1)
                threads[1].join(0.1)
                advance(*self._progress(started))
                self._watch()
        finally:
            for point in self.points:  # after an interrupt: end at once
                point.reader.stop()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]
        return self._answer()

    def _read(self, side: int) -> None:
        """All of one interface; a failure ends the other too."""
        point = self.points[side]
        try:
            asked_ns = time.time_ns()
            for batch in point.reader:
                point.take(batch)
                match = self._match
                if match is not None:
                    match.take(side, batch, asked_ns)
                point.dropped = point.reader.dropped
                asked_ns = time.time_ns()
        except BaseException as failure:
            self._failures.append(failure)
            for other in self.points:
                other.reader.stop()

    def _watch(self) -> None:
        """Go over to sketches where packets come faster than they can be matched."""
        dropped = sum(point.dropped for point in self.points)
        now = Overload(dropped, dropped + sum(point.reader.ip_packets for point in self.points))
        if self._fallback is not None and self._match is not None and now.is_lasting:
            self.go_over(now)

    def go_over(self, overload: Overload) -> None:
        """Measure from now on with sketches, by the `fallback`, if there is time left for it."""
        fallback, self._fallback = self._fallback, None
        if fallback is None:
            return
        plan = fallback()
        LivePoint(self.sender.reader, plan, hold_ns=0).record(rehearsal()[0])
        # The sender's packets before it tell which of the receiver's do not count.
        first_ns = time.time_ns() + NOTICE_NS + self._max_delay_ns
        if first_ns + self._max_delay_ns > self.sender.last_ns:
            return
        self._plan, self._overload, self._match = plan, overload, None
        for point in self.points:
            point.begin_again(first_ns, plan)

    def _progress(self, started_ns: int) -> tuple[str, float]:
        packets = " → ".join(f"{point.reader.ip_packets:,}" for point in self.points)
        if self._seconds is None:
            return f"{packets} packets, Ctrl-C ends", 0.0
        whole = self._seconds + 2 * self._max_delay_ns / 1e9
        return f"{packets} packets", min(1.0, (time.time_ns() - started_ns) / 1e9 / whole)

    def _answer(self) -> LiveAnswer:
        left_out = self._settle_edges()
        for point in self.points:
            if not len(point.counts):
                raise InputError(
                    "there was no IP packet to measure",
                    where=point.reader.name,
                    action="check the interface, its direction and the filter",
                )
        # The flows that both points saw, and those that only one did.
        sender, receiver = self.points
        flow_id = np.intersect1d(sender.counts.ids, receiver.counts.ids)
        one_sided = np.setxor1d(sender.counts.ids, receiver.counts.ids)
        split = resegmented(flow_id, sender.counts, receiver.counts, (sender.longest, receiver.longest))
        whole = self._estimate(self._plan, flow_id, one_sided, split) if self._plan is not None else None
        match = None if self._match is None else self._match.answer()
        classes = None if self._match is None else self._match.stream.classes
        times = sender.first_ns, sender.last_ns
        about: dict[str, Any] = {"classes": classes, "plan": self._plan, "overload": self._overload}
        return LiveAnswer(whole, match, *times, one_sided, left_out, flow_id[split], **about)

    def _settle_edges(self) -> dict[str, int]:
        """Record what the receiver held, without what was sent outside of the time."""
        point = self.receiver
        before, held, after = point.before.packets(), point.held.packets(), point.after.packets()
        arrived = PacketBatch.concatenate([before, held])
        early = pair_packets(self.sender.before.packets(), arrived).receiver_status[len(before) :] == MATCHED
        late = pair_packets(self.sender.after.packets(), after).receiver_status == MATCHED
        point.record(held.select(~early))
        point.record(after.select(~late))
        counts = {
            "sent before the start at sender": self.sender.before.count,
            "sent after the end at sender": self.sender.after.count,
            "arrived before the start at receiver": point.before.count,
            "sent before the start at receiver": int(early.sum()),
            "sent after the end at receiver": int(late.sum()),
            "no room to judge an edge": sum(log.overflow for log in (self.sender.after, point.held, point.after)),
        }
        return {text: count for text, count in counts.items() if count}

    def _estimate(self, plan: SegmentPlan, flow_id: UInt64Array, one_sided: UInt64Array, split: BoolArray) -> Interval:
        tables = self.sender.counts, self.receiver.counts
        foreign = tuple(int(packets_of(table, one_sided).sum()) for table in tables)
        own = [packets_of(table, flow_id) for table in tables]
        # Joint decoding needs every flow that was recorded, also those that are not answered.
        everything = np.concatenate([flow_id, one_sided])
        sketches = self.sender.sketch(), self.receiver.sketch()
        whole = answer_interval(
            *sketches,
            everything,
            sizes=packets_of(self.sender.counts, everything),
            joint=plan.joint,
            counted=CountedFlows(own[0], own[1], split, (foreign[0], foreign[1])),
            ledger=self.sender.ledger,
        )
        if whole.ledger is not None:
            whole = replace(whole, ledger=whole.ledger.sized(*sketches))
        return replace(whole, first_ns=self.sender.first_ns, last_ns=self.sender.last_ns)
