"""Exact matching of captures of any length: both points are read side by side, once, in bounded memory.

`ExactStream` takes both points' packets as they come, brings them into order (`ordering`), joins them (`joining`) on
one clock and hands matched and lost packets to consumers (`consumers`). Its answer is that of `exact.match_exact` for
the same packets, to the packet, given the same clock and directions.

**Settings** are what has to be known before the first packet: the clock, how far delays may be apart, and the window of
copies. They come from packets that were matched in memory: of a look at the captures' beginnings, of a sample of them,
or, for interfaces of one machine, from nothing. A pass `holds` if what the whole sample tells afterwards is what was
assumed; otherwise it is repeated with that.

**Edges.** A packet that leaves alone is judged at once where it is sure: it was sent after the receiver began, and
``max_delay`` before the receiver's end. What may be an edge packet by `crossing`'s rule waits for the end, when the
smallest and largest delay and every flow's matched span are known.

Memory: packets in flight, those of one span of disorder, those within ``max_delay`` of the captures' ends that were
missed by the other, and about 300 bytes per flow; whatever the number of packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.flows.table import Conversations
from sojourn.core.arrays import BoolArray, ClassedBatch, Int64Array, PacketBatch, UInt64Array, lengthened, rows_of
from sojourn.core.kernels import borrowing_kernel
from sojourn.matching.bursts import FlowBursts
from sojourn.matching.clock.correction import ClockEstimate, ClockReading, TimedPairs, estimate_clock
from sojourn.matching.consumers import LostColumns, MatchedColumns, PacketConsumer
from sojourn.matching.crossing import CaptureSpan, Edges, edges_of
from sojourn.matching.exact import ExactMatch, Fate, MeasuredFlows, PacketMatch, explained, left_out
from sojourn.matching.groups import ClassTotals, SenderClasses
from sojourn.matching.join_table import NO_CLASSES, RECEIVER, SENDER, Columns
from sojourn.matching.joining import NO_LIMIT_NS, Alone, Joiner, JoinSettings, Pairs
from sojourn.matching.numbers import FlowNumbers
from sojourn.matching.ordering import SPAN_NS, InOrder
from sojourn.matching.pairing import plausible_delays
from sojourn.matching.percentiles import FlowPercentiles
from sojourn.matching.statistics import DelayTotals

LEAST_MAX_DELAY_NS = 30_000_000_000
# So far beyond what was found in a sample delays may reach.
DELAY_MARGIN = 2
NEAR_NS, FAR_NS = 10_000_000, 1_000_000_000
FOLLOWED_BATCHES = 16
FOLLOWED_SHARE = 4  # the window of copies is looked at anew after a quarter of these
CLASS_SHIFT = 8  # where a packet that left alone has its class, behind its flags

_Rows: TypeAlias = NDArray[np.void]
_NEVER_NS = 1 << 61  # differences to any time fit a word
_NOTHING = TimedPairs(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class StreamSettings:
    """What a pass assumes. Delays on the fitted clock are taken less ``shift_ns`` to put both points into one order.

    ``usual_ns`` are the delays, in that order, that nearly all packets lie between.
    """

    clock: ClockEstimate
    join: JoinSettings
    shift_ns: int = 0
    usual_ns: tuple[int, int] = (0, 0)
    largest_ns: int = 0
    has_copies: bool = False
    trim: bool = True
    follow: bool = False

    @classmethod
    def of_one_clock(cls, max_delay_ns: int) -> StreamSettings:
        """For two interfaces of one machine: nothing to correct, nothing to trim; the window of copies is followed."""
        clock = replace(estimate_clock(_NOTHING, _NOTHING), explanation="")
        return cls(clock, JoinSettings(max_delay_ns), trim=False, follow=True)

    @classmethod
    def found(cls, match: PacketMatch, *, max_delay_ns: int | None = None) -> StreamSettings:
        """What packets that were matched in memory tell; `max_delay_ns` is the user's, if given."""
        pairs = match.pairs
        delay = pairs.received_ns - match.clock.fitted.at(pairs.received_ns, pairs.sent_ns) - pairs.sent_ns
        smallest = int(delay.min(initial=0)) if not len(delay) else int(delay.min())
        shift = smallest if smallest > FAR_NS else 0
        delay = delay - shift
        largest = int(np.abs(delay).max(initial=0))
        low, high = plausible_delays(delay[~pairs.copied])[2:]
        margin = (high - low) // 4
        most = max(LEAST_MAX_DELAY_NS, DELAY_MARGIN * largest) if max_delay_ns is None else max_delay_ns
        return cls(
            match.clock,
            JoinSettings(most, low, high, mirrored=pairs.mirrored),
            shift_ns=shift,
            usual_ns=(low + margin, high - margin),
            largest_ns=largest,
            has_copies=bool(pairs.copied.any()) or any(pairs.mirrored),
        )

    def holds(self, found: StreamSettings) -> bool:
        """Whether a pass with these settings gives what one with the `found` ones would."""
        used, better = self.clock, found.clock
        same = _line(used.applied) == _line(better.applied) and _line(used.fitted)[1:] == _line(better.fitted)[1:]
        reach = found.largest_ns + abs(found.shift_ns - self.shift_ns) <= self.join.max_delay_ns
        low, high = found.usual_ns
        wide = high - low
        # Neither may a usual delay be left out, nor a lost packet's next copy be let in.
        is_wide_enough = self.join.low_ns <= low and high <= self.join.high_ns
        is_narrow_enough = (
            found.join.low_ns - wide <= self.join.low_ns and self.join.high_ns <= found.join.high_ns + wide
        )
        window = is_wide_enough and is_narrow_enough
        copies = self.join.mirrored == found.join.mirrored and window
        return same and reach and (copies or not found.has_copies)


def _line(reading: ClockReading) -> tuple[float, float, int, tuple[object, ...]]:
    """A reading by what it subtracts: the reference of a level has no meaning."""
    return reading.level_ns, reading.slope, reading.reference_ns if reading.slope else 0, reading.steps


@dataclass(frozen=True, eq=False)
class Directions:
    """Flows that are known to travel forward and back, and which flows are each other's opposites."""

    forward: UInt64Array
    backward: UInt64Array
    conversations: Conversations
    by_packets: bool = False

    @classmethod
    def of_one_clock(cls) -> Directions:
        """Nothing is known, but the order of both points' packets tells."""
        none = np.zeros(0, np.uint64)
        return cls(none, none, Conversations(none, none), by_packets=True)

    def of(self, ids: UInt64Array, pairs: Int64Array, ahead: Int64Array) -> tuple[BoolArray, Int64Array]:
        """Whether each flow travels forward, and its opposite's row; `ahead` of its `pairs` were at the sender first.

        A flow that is not known goes against its opposite, or else by its packets if there are flows that go back.
        """
        told = np.zeros(len(ids), np.int8)
        for known, sign in ((self.forward, 1), (self.backward, -1)):
            rows = rows_of(ids, known)
            told[rows[rows >= 0]] = sign
        opposite = self.conversations.opposite_numbers(ids)
        against = (told == 0) & (opposite >= 0)
        told[against] = -told[opposite[against]]
        unknown = told == 0
        is_mixed = self.by_packets or len(self.backward) > 0
        by_packets = 2 * ahead >= pairs if is_mixed else np.ones(len(ids), np.bool_)
        return np.where(unknown, by_packets, told > 0), opposite


_SPAN = np.dtype(
    [
        ("pairs", np.int64),
        ("ahead", np.int64),
        ("first_sent", np.int64),
        ("last_sent", np.int64),
        ("first_got", np.int64),
        ("last_got", np.int64),
        ("smallest", np.int64),
        ("largest", np.int64),
    ]
)
# What became of packets that left alone, per flow.
_LOST, _SENT_EDGE, _SENT_COPY, _ONLY, _GOT_EDGE, _GOT_COPY = range(6)


class _Spans:
    """Per flow, when its matched packets were seen at both points, all on the sender's clock as fitted."""

    def __init__(self) -> None:
        self.rows = np.zeros(64, _SPAN)

    def reach(self, flows: int) -> None:
        self.rows = lengthened(self.rows, flows)

    def take(self, flow: Int64Array, sent_ns: Int64Array, got_ns: Int64Array) -> None:
        _widen(flow, sent_ns, got_ns, self.rows)


@borrowing_kernel
def _widen(flow: Int64Array, sent_ns: Int64Array, got_ns: Int64Array, rows: _Rows) -> None:
    for i in range(flow.shape[0]):
        own, sent, got = flow[i], sent_ns[i], got_ns[i]
        delay = got - sent
        if rows[own].pairs == 0:
            rows[own].first_sent = rows[own].last_sent = sent
            rows[own].first_got = rows[own].last_got = got
            rows[own].smallest = rows[own].largest = delay
        rows[own].pairs += 1
        rows[own].ahead += delay >= 0
        rows[own].first_sent = min(rows[own].first_sent, sent)
        rows[own].last_sent = max(rows[own].last_sent, sent)
        rows[own].first_got = min(rows[own].first_got, got)
        rows[own].last_got = max(rows[own].last_got, got)
        rows[own].smallest = min(rows[own].smallest, delay)
        rows[own].largest = max(rows[own].largest, delay)


class _Point:
    """One side: its packets in order, those not yet joined, and the time it covers on the common clock."""

    def __init__(self, span_ns: int) -> None:
        self._order = InOrder(span_ns)
        self.queue: deque[Columns] = deque()
        self.sure_ns = -NO_LIMIT_NS
        self.is_over = False

    @property
    def first_ns(self) -> int:
        return min(self._order.first_ns, _NEVER_NS)

    @property
    def last_ns(self) -> int:
        return max(self._order.last_ns, -_NEVER_NS)

    def add(self, columns: Columns) -> None:
        self.queue.extend(self._order.take(columns))

    def until(self, order_ns: int) -> None:
        if order_ns > self.sure_ns:
            self.sure_ns = order_ns
            self.queue.extend(self._order.until(order_ns))

    def end(self) -> None:
        self.queue.extend(self._order.end())
        self.sure_ns = NO_LIMIT_NS
        self.is_over = True

    @property
    def late(self) -> int:
        return self._order.late


class ExactStream:
    """Matches two points' packets as they come; `take` what it `wants`, `end` a point, `finish` for the answer."""

    def __init__(
        self,
        settings: StreamSettings,
        consumers: Sequence[PacketConsumer] = (),
        *,
        span_ns: int = SPAN_NS,
        classes: ClassTotals | None = None,
    ) -> None:
        """`classes` add up packets by DSCP; the sender's batches are `ClassedBatch`es then."""
        self.settings = settings
        self.classes = classes
        self._sender_classes = SenderClasses()
        self.totals = DelayTotals()
        self.numbers = FlowNumbers()
        self.joiner = Joiner(settings.join)
        self.tails = FlowPercentiles(), FlowBursts()
        self.consumers: list[PacketConsumer] = [*self.tails, *consumers]
        self._points = _Point(span_ns), _Point(span_ns)
        self._spans = _Spans()
        self._alone = np.zeros((6, 64), np.int64)
        self._undecided: list[Alone] = []
        # Packets count that were sent between these times.
        self.first_ns, self.last_ns = -_NEVER_NS, _NEVER_NS
        self._single_delays: deque[Int64Array] = deque(maxlen=FOLLOWED_BATCHES)
        self._unfollowed = 0

    @property
    def late(self) -> int:
        """Packets that came later, by their time, than the span of disorder allows for."""
        return sum(point.late for point in self._points)

    @property
    def wants(self) -> int | None:
        """The point whose packets are needed next; None when both have ended."""
        side = self.joiner.wants
        return None if side is None or self._points[side].is_over else side

    def take(self, side: int, batch: PacketBatch) -> None:
        """The next packets of a point."""
        if len(batch):
            self._points[side].add(self._columns(side, batch))
        self._advance()

    def until(self, side: int, time_ns: int) -> None:
        """A point, by its own clock, has no more packets before this time."""
        order_ns = int(self._order(side, np.array([time_ns]))[0])
        self._points[side].until(order_ns)
        self._advance()

    def wait_no_longer(self, behind_ns: int) -> None:
        """A point that is so far behind the other is silent: it is waited for no longer."""
        newest = max(point.last_ns for point in self._points)
        for point in self._points:
            if newest > -_NEVER_NS:
                point.until(newest - behind_ns)
        self._advance()

    def end(self, side: int) -> None:
        """A point has no more packets."""
        self._points[side].end()
        self._advance()

    def waiting(self, side: int) -> int:
        """How many of a point's batches wait to be joined."""
        return len(self._points[side].queue)

    def _columns(self, side: int, batch: PacketBatch) -> Columns:
        """A point's packets with numbered flows, on the common clock."""
        flow = self.numbers.of(batch.flow_id)
        self._spans.reach(len(self.numbers))
        if len(self.numbers) > self._alone.shape[1]:
            more = np.zeros((6, max(len(self.numbers), self._alone.shape[1])), np.int64)
            self._alone = np.concatenate([self._alone, more], axis=1)
        dscp = batch.dscp if isinstance(batch, ClassedBatch) else NO_CLASSES
        return Columns(batch.packet_id, flow, self._order(side, batch.time_ns), batch.time_ns, dscp)

    def _order(self, side: int, time_ns: Int64Array) -> Int64Array:
        """A point's times on the common clock; the column itself where nothing has to be changed."""
        fitted, shift = self.settings.clock.fitted, self.settings.shift_ns
        if side == RECEIVER and (fitted.level_ns or fitted.slope or fitted.steps):
            time_ns = time_ns - fitted.at(time_ns)
        return time_ns - shift if side == RECEIVER and shift else time_ns

    def _advance(self) -> None:
        """Join all that is there."""
        is_fed = True
        while is_fed:
            is_fed = False
            for side, point in enumerate(self._points):
                if self.joiner.is_empty(side):
                    if point.queue:
                        self._feed(side, point.queue.popleft())
                        is_fed = True
                    if not point.queue:
                        self.joiner.until(side, point.sure_ns)
            for pairs, alone in self.joiner.join():
                self._take_pairs(pairs)
                self._take_alone(alone)

    def _feed(self, side: int, packets: Columns) -> None:
        if side == SENDER and self.classes is not None:
            self._sender_classes.forget(self.joiner.now_ns - self.settings.join.max_delay_ns)
            self._sender_classes.add(packets.dscp, int(packets.order_ns[-1]))
        self.joiner.take(side, packets)

    def _take_pairs(self, pairs: Pairs) -> None:
        if not len(pairs):
            return
        if self.settings.follow:
            self._follow(pairs)
        if self._is_bounded:
            pairs = pairs.select((pairs.sent_ns >= self.first_ns) & (pairs.sent_ns <= self.last_ns))
        clock, received, sent = self.settings.clock, pairs.received_ns, pairs.sent_ns
        delay = clock.correct(received, sent) - sent
        self._spans.take(pairs.flow, sent, received - clock.fitted.at(received, sent))
        packets = MatchedColumns(pairs.flow, pairs.number, sent, delay)
        self.totals.take_matched(packets)
        if self.classes is not None:
            self.classes.add_matched(packets, self._sender_classes.of(pairs.sender_position).astype(np.int64))
        for consumer in self.consumers:
            consumer.take_matched(packets)

    @property
    def _is_bounded(self) -> bool:
        return self.first_ns > -_NEVER_NS or self.last_ns < _NEVER_NS

    def _follow(self, pairs: Pairs) -> None:
        """Keep the window of copies around the delays of the latest packets."""
        single = pairs.copied == 0
        received, sent = pairs.received_ns[single], pairs.sent_ns[single]
        self._single_delays.append(self._order(RECEIVER, received) - sent)
        self._unfollowed += len(sent)
        if FOLLOWED_SHARE * self._unfollowed < sum(map(len, self._single_delays)):
            return
        self._unfollowed = 0
        low, high = plausible_delays(np.concatenate(self._single_delays))[2:]
        self.joiner.use(replace(self.settings.join, low_ns=low, high_ns=high))

    def _take_alone(self, alone: Alone) -> None:
        """Judge what left alone, as far as that can be judged now."""
        if self.classes is not None:
            # Who is judged at the end takes its class along: by then nobody else knows it.
            dscp = self._sender_classes.of(alone.position).astype(np.int64)
            alone = replace(alone, flags=alone.flags | np.where(alone.is_receiver, 0, dscp << CLASS_SHIFT))
        if self._is_bounded:
            is_sender = ~alone.is_receiver
            alone = alone.select((alone.time_ns >= self.first_ns) & ~(is_sender & (alone.time_ns > self.last_ns)))
        for side, is_side in ((SENDER, ~alone.is_receiver), (RECEIVER, alone.is_receiver)):
            if not is_side.any():
                continue
            rows = alone.select(is_side)
            is_copy = rows.is_copy
            self._count((_SENT_COPY, _GOT_COPY)[side], rows.flow[is_copy])
            rows = rows.select(~is_copy)
            missed, edge = self._sure(side, rows)
            self._count((_SENT_EDGE, _GOT_EDGE)[side], rows.flow[edge])
            self._miss(side, rows.select(missed))
            undecided = ~(missed | edge)
            if undecided.any():
                self._undecided.append(rows.select(undecided))

    def _sure(self, side: int, rows: Alone) -> tuple[BoolArray, BoolArray]:
        """Which rows the other point surely missed, and which are surely outside of its time."""
        if not self.settings.trim:
            return np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        other, reach = self._points[1 - side], self.settings.join.max_delay_ns
        time_ns = rows.time_ns
        if side == RECEIVER:
            time_ns = time_ns - self.settings.clock.fitted.at(time_ns) - self.settings.shift_ns
        # Clocks may yet be known better, and the first packets be out of order, by less than these.
        early, late = other.first_ns - time_ns, time_ns - other.last_ns
        before, after = (0, reach) if side == SENDER else (reach, 0)
        missed = early <= -before - NEAR_NS
        edge = early > reach + FAR_NS if side == SENDER else early > FAR_NS
        if other.is_over and not other.queue:
            missed &= late <= -after - NEAR_NS
            edge |= late > (FAR_NS if side == SENDER else reach + FAR_NS)
        return missed, edge

    def _count(self, what: int, flow: Int64Array) -> None:
        np.add.at(self._alone[what], flow, 1)

    def _miss(self, side: int, rows: Alone) -> None:
        """The other point surely missed these."""
        if not len(rows):
            return
        self._count((_LOST, _ONLY)[side], rows.flow)
        if side == SENDER:
            lost = LostColumns(rows.flow, rows.number, rows.time_ns)
            self.totals.take_lost(lost)
            if self.classes is not None:
                self.classes.add_lost(lost, rows.flags >> CLASS_SHIFT)
            for consumer in self.consumers:
                consumer.take_lost(lost)

    def finish(self, clock: ClockEstimate, directions: Directions) -> ExactMatch:
        """The answer. `clock` is what the whole tells, which the settings hold for."""
        for alone in self.joiner.flush():
            self._take_alone(alone)
        if self.settings.trim:
            ids = self.numbers.ids
            spans = self._spans.rows[: len(ids)]
            self._settle_edges(directions.of(ids, spans["pairs"], spans["ahead"])[0], clock)
        return self.answer(clock, directions)

    def recorrect(self, clock: ClockEstimate) -> int:
        """Correct delays that were matched by another clock than the whole tells, each flow's by how much the two
        differ in the middle of its time; the largest of these corrections."""
        spans = self._spans.rows[: len(self.numbers)]
        has_pairs = spans["pairs"] > 0
        middle = spans["first_got"] + (spans["last_got"] - spans["first_got"]) // 2
        middle += self.settings.clock.fitted.at(middle)
        by_ns = np.where(has_pairs, self.settings.clock.applied.at(middle) - clock.applied.at(middle), 0)
        self.totals.move(by_ns)
        return int(np.abs(by_ns).max(initial=0))

    def answer(self, clock: ClockEstimate, directions: Directions) -> ExactMatch:
        """The answer as far as packets are judged."""
        ids = self.numbers.ids
        spans = self._spans.rows[: len(ids)]
        forward, opposite = directions.of(ids, spans["pairs"], spans["ahead"])
        matched = spans["pairs"] > 0
        at_sender = matched | (self._alone[: _SENT_COPY + 1, : len(ids)].sum(axis=0) > 0)
        on_path = (opposite >= 0) & (matched & ~forward)[opposite]
        measured = (matched & forward) | (~matched & at_sender & on_path)
        numbers = np.flatnonzero(measured)
        aggregate = self.totals.aggregate(numbers)
        seen = matched | (self._alone[:, : len(ids)].sum(axis=0) > 0)
        return ExactMatch(
            flows=self._flows(ids, numbers),
            numbers=numbers,
            unmatched_flows=ids[seen & ~matched & ~measured],
            aggregate=aggregate,
            clock=clock,
            explanation=explained(clock, aggregate),
            left_out=self._left_out(measured, matched),
            tails=self.tails,
        )

    def _settle_edges(self, forward: BoolArray, clock: ClockEstimate) -> None:
        """Judge what waited for the end by the smallest and largest delay and the flows' own spans."""
        edges = self._edges(forward, clock)
        for rows in self._undecided:
            for side, is_side in ((SENDER, ~rows.is_receiver), (RECEIVER, rows.is_receiver)):
                own = rows.select(is_side)
                low, high = edges.sent if side == SENDER else edges.received
                time_ns = own.time_ns if side == SENDER else own.time_ns - clock.fitted.at(own.time_ns)
                inside = (time_ns >= low[own.flow]) & (time_ns <= high[own.flow])
                self._count((_SENT_EDGE, _GOT_EDGE)[side], own.flow[~inside])
                self._miss(side, own.select(inside))
        self._undecided = []

    def _edges(self, forward: BoolArray, clock: ClockEstimate) -> Edges:
        used = self.settings.clock.fitted
        moved = round(used.level_ns) - round(clock.fitted.level_ns)
        spans = self._spans.rows[: len(forward)].copy()
        for name in ("first_got", "last_got", "smallest", "largest"):
            spans[name] += moved
        sender, receiver = self._points
        shift = self.settings.shift_ns + moved
        ahead = spans[forward & (spans["pairs"] > 0)]
        return edges_of(
            CaptureSpan(sender.first_ns, sender.last_ns),
            CaptureSpan(receiver.first_ns + shift, receiver.last_ns + shift),
            delays=(int(ahead["smallest"].min()), int(ahead["largest"].max())) if len(ahead) else None,
            sent=_span_columns(spans, "sent", forward),
            received=_span_columns(spans, "got", forward),
        )

    def _flows(self, ids: UInt64Array, numbers: Int64Array) -> MeasuredFlows:
        delays, lost = self.totals.statistics(numbers), self.totals.lost(numbers)
        alone = self._alone[:, numbers]
        return MeasuredFlows(
            flow_id=ids[numbers],
            packets=delays.received + lost,
            lost=lost,
            **vars(delays),
            duplicates=alone[_SENT_COPY] + alone[_GOT_COPY],
            receiver_only=alone[_ONLY],
            edge=alone[_SENT_EDGE] + alone[_GOT_EDGE],
        )

    def _left_out(self, measured: BoolArray, matched: BoolArray) -> dict[str, int]:
        pairs = self._spans.rows["pairs"][: len(measured)]
        alone = self._alone[:, : len(measured)]
        sides = pairs + alone[: _SENT_COPY + 1].sum(axis=0), pairs + alone[_ONLY:].sum(axis=0)
        other, never = ~measured & matched, ~measured & ~matched
        counts = {
            (Fate.RECEIVER_ONLY, SENDER): 0,
            (Fate.RECEIVER_ONLY, RECEIVER): int(alone[_ONLY, measured].sum()),
            (Fate.DUPLICATE, SENDER): int(alone[_SENT_COPY, measured].sum()),
            (Fate.DUPLICATE, RECEIVER): int(alone[_GOT_COPY, measured].sum()),
            (Fate.EDGE, SENDER): int(alone[_SENT_EDGE, measured].sum()),
            (Fate.EDGE, RECEIVER): int(alone[_GOT_EDGE, measured].sum()),
        }
        for side, packets in enumerate(sides):
            counts[Fate.OTHER_WAY, side] = int(packets[other].sum())
            counts[Fate.UNMATCHED_FLOW, side] = int(packets[never].sum())
        return left_out(counts)


def _span_columns(spans: _Rows, which: str, forward: BoolArray) -> tuple[Int64Array, Int64Array]:
    """First and last time of each flow that travels forward; the other way round where there is none."""
    has = forward & (spans["pairs"] > 0)
    limits = np.iinfo(np.int64)
    return np.where(has, spans[f"first_{which}"], limits.max), np.where(has, spans[f"last_{which}"], limits.min)
