"""The survey: a first, light pass over both points that finds what to measure and how the clocks stand.

It keeps each point's flow table and a coordinated sample of its packets (all of them in captures up to the sample's
size), matches the samples exactly and concludes

- the **clock**: offset and skew of the receiver against the sender;
- the **flows** that travel from sender to receiver. Those with sampled packets are told by matching; of the others,
  the flow tables tell: a flow travels forward if its first packet was seen at the sender first (a loss can only add to
  that); one that the receiver never saw counts, as wholly lost, if its opposite direction travels back;
- the **windows**: from when to when each flow can be judged at each point, although captures start and stop apart.

Memory: two flow tables and two samples, whatever the length of the captures. Time: one pass, both points at once.

A `CapturePoint` is a file that can be read as often as needed. Packets are told apart by a prefix that both captures
hold (`decode.identity`). How much that is, files do not tell reliably (`editcap -s` leaves no trace in the header):
where their headers promise more than the packets hold, the survey shows it and is repeated once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.ids import MIN_IDENTITY_BYTES, held_by_most, identity_bytes_for
from sojourn.capture.files.reader import CaptureReader, open_capture
from sojourn.capture.flows.table import Conversations, FlowTable, FlowWindows
from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch, UInt8Array, UInt64Array, rows_of
from sojourn.core.errors import CaptureError, InputError, ParameterError, UsageError
from sojourn.core.estimates import NORMAL_95, Estimate
from sojourn.core.results import Advance, silent
from sojourn.core.units import format_duration
from sojourn.matching.clock.correction import ClockEstimate, ClockMode
from sojourn.matching.crossing import CaptureSpan, find_edges, resegmented_flows
from sojourn.matching.exact import Fate, PacketMatch, match_exact
from sojourn.matching.pairing import PacketSample, common_sample
from sojourn.segments.plausibility import Capture, judge_captures
from sojourn.segments.ranges import DelayRange, surveyed_range

if TYPE_CHECKING:
    from sojourn.capture.filters import PacketFilter
    from sojourn.segments.planning.layout import SurveyedFlows

T = TypeVar("T")

SAMPLE_PACKETS = 1 << 18
# Captures begin, or end, apart from each other by more than a second and this share of the time that they share.
APART_NS, APART_SHARE = 1_000_000_000, 0.01
# Packets of a flow that may be on the wrong side of a cut by time, in expectation.
MOST_IN_FLIGHT = 0.2
MOST_INTERVALS = 100_000
# How much of a capture's beginning is looked at for the lengths of the wire's packets.
WIRE_PACKETS, WIRE_WINDOWS = 1 << 16, 16


class PointSurvey:
    """What a pass over a point finds; `take` its packets, in any order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.flows = FlowTable()
        self.sample = PacketSample(SAMPLE_PACKETS)
        self.first_ns, self.last_ns = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        self.packets = self.largest_bytes = self.cut_packets = self.split_packets = 0

    def take(self, batch: PacketBatch) -> None:
        if not len(batch):
            return
        self.packets += len(batch)
        self.largest_bytes = max(self.largest_bytes, int(batch.size_bytes.max()))
        self.first_ns = min(self.first_ns, int(batch.time_ns.min()))
        self.last_ns = max(self.last_ns, int(batch.time_ns.max()))
        self.sample.add(batch)

    def ended(self, flows: FlowTable) -> PointSurvey:
        """The pass is over; an `InputError` if there was nothing."""
        if not self.packets:
            action = "check the file and the filter"
            raise InputError("there is no IP packet to measure", where=self.name, action=action)
        self.flows = flows
        return self

    def capture(self, fate: UInt8Array) -> Capture:
        """The point as one side of the question, with what became of its (sampled) packets."""
        alone = int(np.count_nonzero((fate == Fate.LOST) | (fate == Fate.RECEIVER_ONLY)))
        return Capture(self.name, self.first_ns, self.last_ns, self.largest_bytes, self.cut_packets, alone)


@dataclass(frozen=True, eq=False)
class Survey:
    """What is to be measured between two points; ``match`` is exact if all packets were kept.

    ``other_way`` packets of the receiver's capture belong to flows that travel to the sender. ``warnings`` say what is
    doubtful about the question. ``told_back`` are flows whose (sampled) packets travel to the sender.
    """

    sender: PointSurvey
    receiver: PointSurvey
    match: PacketMatch
    flow_id: UInt64Array
    sender_windows: FlowWindows
    receiver_windows: FlowWindows
    is_complete: bool
    other_way: int = 0
    warnings: list[str] = field(default_factory=list)
    told_back: UInt64Array = field(default_factory=lambda: np.zeros(0, np.uint64))
    conversations: Conversations | None = None

    @property
    def clock(self) -> ClockEstimate:
        return self.match.clock

    @cached_property
    def delay_range(self) -> DelayRange:
        """Where the delays lie, by the corrected clock, if that is beyond what sketches tell by themselves."""
        return surveyed_range(self.match.packets.delay_ns)

    @property
    def loss(self) -> float:
        """The share of (sampled) packets that did not arrive."""
        return self.match.aggregate.lost / max(1, self.match.aggregate.sent)

    @property
    def spoiling(self) -> float:
        """The share of packets that only one point records: lost ones, and copies that cannot be left out."""
        flows = self.match.flows
        more = 0 if self.is_complete else int(flows.duplicates.sum() + flows.receiver_only.sum())
        return min(1.0, self.loss + more / max(1, self.match.aggregate.sent))

    @property
    def uncounted(self) -> tuple[BoolArray | None, BoolArray | None]:
        """The rows of each point that are copies of other packets, or that only the receiver saw: they are part of no
        count. None where there are none, or where a sample cannot name them."""
        found = []
        for fate in (self.match.sender_fate, self.match.receiver_fate):
            rows = (fate == Fate.DUPLICATE) | (fate == Fate.RECEIVER_ONLY)
            found.append(rows if self.is_complete and rows.any() else None)
        return found[0], found[1]

    @cached_property
    def resegmented(self) -> UInt64Array:
        """Flows of which the points show different packets, as offloading makes them: nothing tells their losses."""
        tables = self.sender.flows, self.receiver.flows
        longest = self.sender.largest_bytes, self.receiver.largest_bytes
        return resegmented_flows(self.match.flows, *tables, longest, were_split=self.were_split)

    @property
    def were_split(self) -> bool:
        """Whether super-packets of either point were split."""
        return self.sender.split_packets + self.receiver.split_packets > 0

    @property
    def extra(self) -> Estimate | None:
        """From a sample: the packets that the receiver counted beyond those sent, less the sender's copies; None where
        there are none, or where they are known (`uncounted`)."""
        sender, receiver = self.match.sender_fate, self.match.receiver_fate
        copies = int(np.count_nonzero(sender == Fate.DUPLICATE))
        more = int(np.count_nonzero((receiver == Fate.DUPLICATE) | (receiver == Fate.RECEIVER_ONLY)))
        if self.is_complete or not copies + more:
            return None
        share = min(self.sender.sample.share, self.receiver.sample.share)
        half = NORMAL_95 * math.sqrt(copies + more) / share
        return Estimate.around((more - copies) / share, half, samples=copies + more, method="sample", unit="packets")

    @property
    def packets(self) -> int:
        """The packets at the sender of the flows to be measured."""
        return int(self.counted_flows.packets.sum())

    @cached_property
    def counted_flows(self) -> SurveyedFlows:
        """The same of each flow, and how many were lost of it, where all packets were kept; how delays vary."""
        from sojourn.segments.planning.layout import SurveyedFlows

        row = rows_of(self.sender.flows.ids, self.flow_id)
        packets = np.where(row >= 0, self.sender.flows.packets[row], 0)
        # Flows of which matching saw nothing are lost as a whole.
        lost = np.concatenate([self.match.flows.lost, packets[len(self.match.flows) :]]) if self.is_complete else None
        matched = self.match.packets
        flow = np.repeat(np.arange(len(matched.start) - 1), np.diff(matched.start))
        return SurveyedFlows(packets, lost).with_delays(flow, matched.delay_ns)

    def boundaries(
        self, interval_ns: int, *, markers: bool, most: int = MOST_INTERVALS
    ) -> tuple[Int64Array, Int64Array]:
        """Where intervals end, at the sender and at the receiver (on the sender's clock, less the delays' base).

        With markers an interval ends at a packet that both points saw: the first one sent after the nominal end.
        A `ParameterError` where that would be more than `most` intervals.
        """
        base_ns = self.delay_range.base_ns
        received = int(self.clock.correct(np.array([self.receiver.last_ns]))[0]) - base_ns
        first, last = self.sender.first_ns, max(self.sender.last_ns, received)
        refuse_many(last - first, interval_ns, most)
        nominal = np.arange((first // interval_ns + 1) * interval_ns, last + 1, interval_ns)
        if not markers:
            return nominal, nominal
        order = np.argsort(self.match.packets.sent_ns, kind="stable")
        sent = self.match.packets.sent_ns[order]
        arrived = sent + self.match.packets.delay_ns[order] - base_ns
        marker = np.unique(np.searchsorted(sent, nominal))
        marker = marker[marker < len(sent)]
        return sent[marker], np.maximum.accumulate(arrived[marker])


def refuse_many(span_ns: int, interval_ns: int, most: int = MOST_INTERVALS) -> None:
    """A `ParameterError` where a time would fall into more intervals than that."""
    if span_ns // interval_ns < most:
        return
    least = span_ns // most + 1
    step = 10 ** max(0, len(str(least)) - 2)  # two digits are enough to advise
    text = format_duration(-(-least // step) * step).replace(" ", "")
    raise ParameterError(
        f"{format_duration(span_ns)} would be {span_ns // interval_ns + 1:,} intervals, more than {most:,}",
        where="--interval",
        action=f"give {text} or more, or less --memory",
    )


def read_points(sender: CapturePoint, receiver: CapturePoint) -> tuple[PointSurvey, PointSurvey]:
    """The survey's one pass over each point, both at once."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(_survey_point, (sender, receiver))
    return first, second


def _survey_point(point: CapturePoint) -> PointSurvey:
    found = PointSurvey(point.name)
    for batch in point.batches():
        found.take(batch)
    return found.ended(point.flows)


def conclude(first: PointSurvey, second: PointSurvey, *, clock: ClockMode) -> Survey:
    """What the passes over both points tell; an `InputError` where they cannot be two ends of a segment."""
    sent, received = common_sample(first.sample, second.sample)
    opposite = Conversations.of_table(first.flows)
    conversations = opposite.joined(Conversations.of_table(second.flows))
    match = match_exact(sent, received, clock=clock, conversations=conversations)
    told_back = flows_back(match, sent, received)
    rest, backward = _unsampled_flows(first, second, match, opposite.reverse_id, told_back)
    flow_id = np.concatenate([match.flows.flow_id, rest])
    other_way = int(second.flows.packets[np.isin(second.flows.ids, backward)].sum())
    base_ns = surveyed_range(match.packets.delay_ns).base_ns
    ends = first.capture(match.sender_fate), second.capture(match.receiver_fate)
    warnings = judge_captures(*ends, match.crossing, other_way=other_way, base_ns=base_ns)
    if not len(flow_id):
        raise InputError(
            "no packet was seen at both points on its way from the first to the second",
            where=f"{first.name} and {second.name}",
            action="give captures of the same traffic, in the order in which it passed them",
        )
    whole = first.sample.share == 1 and second.sample.share == 1
    if whole:
        windows = _windows(first, second, match, flow_id)
    else:
        windows = _marked_windows((first, second), (sent, received), match, flow_id)
    return Survey(first, second, match, flow_id, *windows, whole, other_way, warnings, told_back, conversations)


def flows_back(match: PacketMatch, sent: PacketBatch, received: PacketBatch) -> UInt64Array:
    """The flows of which packets were matched that travel back."""
    fates = (sent, match.sender_fate), (received, match.receiver_fate)
    return np.unique(np.concatenate([packets.flow_id[fate == Fate.OTHER_WAY] for packets, fate in fates]))


def _unsampled_flows(
    first: PointSurvey, second: PointSurvey, match: PacketMatch, opposite_id: UInt64Array, other_way: UInt64Array
) -> tuple[UInt64Array, UInt64Array]:
    """Flows that travel forward although matching saw none of their packets at both points; and all that travel back.

    `opposite_id` has a row per flow of the sender's table, `other_way` are the flows that matching saw travel back.
    """
    told = np.union1d(match.flows.flow_id, other_way)
    rest, at_sender, at_receiver = np.intersect1d(
        first.flows.ids, second.flows.ids, assume_unique=True, return_indices=True
    )
    seen_first = second.flows.first_ns[at_receiver]
    later = match.clock.correct(seen_first) >= first.flows.first_ns[at_sender]
    untold = ~np.isin(rest, told)
    forward, backward = rest[later & untold], rest[~later & untold]
    missing = ~np.isin(first.flows.ids, np.union1d(told, second.flows.ids))
    lost = first.flows.ids[missing & np.isin(opposite_id, other_way)]
    return np.concatenate([forward, lost]), np.union1d(backward, other_way)


def _windows(
    first: PointSurvey, second: PointSurvey, match: PacketMatch, flow_id: UInt64Array
) -> tuple[FlowWindows, FlowWindows]:
    """Per flow, the times that can be judged, by the rule of exact matching; all on the sender's clock."""
    receiver = match.clock.correct(np.array([second.first_ns, second.last_ns]))
    packets = match.packets
    edges = find_edges(
        CaptureSpan(first.first_ns, first.last_ns),
        CaptureSpan(int(receiver[0]), int(receiver[1])),
        flow=np.repeat(np.arange(len(match.flows)), np.diff(packets.start)),
        sent_ns=packets.sent_ns,
        received_ns=packets.sent_ns + packets.delay_ns,
        flows=len(flow_id),
    )
    return FlowWindows(flow_id, *edges.sent), FlowWindows(flow_id, *edges.received)


def _marked_windows(
    points: tuple[PointSurvey, PointSurvey],
    packets: tuple[PacketBatch, PacketBatch],
    match: PacketMatch,
    flow_id: UInt64Array,
) -> tuple[FlowWindows, FlowWindows]:
    """The same from a sample: a flow that the sample shows to be cut off at one end is cut, at both points, at its
    outermost matched packet there. Packets of a flow keep their order, so both points keep the same ones.

    Where one capture goes on for long while the other does not, all flows are: the busy ones so, all others (which may
    have few packets in the sample, or none) by the time less the usual delay, of which few packets in flight are on the
    wrong side.
    """
    sent, received = packets
    spans = _matched_spans(match)
    limits = np.iinfo(np.int64)
    windows = [[np.full(len(flow_id), bound) for bound in (limits.min, limits.max)] for _ in range(2)]
    order = np.argsort(match.flows.flow_id)
    ids = match.flows.flow_id[order]
    times = (sent.time_ns, match.clock.correct(received.time_ns))
    fates = (match.sender_fate, match.receiver_fate)
    for batch, time_ns, fate, span in zip((sent, received), times, fates, spans, strict=True):
        edge = np.flatnonzero(fate == Fate.EDGE)
        place = np.minimum(np.searchsorted(ids, batch.flow_id[edge]), max(len(ids) - 1, 0))
        known = ids[place] == batch.flow_id[edge] if len(ids) else np.zeros(len(edge), bool)
        row, when = order[place[known]], time_ns[edge[known]]
        for end, is_cut in enumerate((when < span[0][row], when > span[1][row])):
            cut = np.unique(row[is_cut])
            for window, own in zip(windows, spans, strict=True):
                window[end][cut] = own[end][cut]
    busy = _in_flight(points[0], match) >= MOST_IN_FLIGHT
    for end, bounds in enumerate(_common_time(*points, match)):
        if bounds is None:
            continue
        for window, own, bound in zip(windows, spans, bounds, strict=True):
            window[end] = np.full(len(flow_id), bound)
            window[end][: len(busy)][busy] = own[end][busy]
    return FlowWindows(flow_id, *windows[0]), FlowWindows(flow_id, *windows[1])


def _in_flight(sender: PointSurvey, match: PacketMatch) -> FloatArray:
    """How many packets of each matched flow are sent while the delay varies: so many a cut by time may misplace; none
    of flows that the sample has no pair of."""
    delay_ns = match.packets.delay_ns
    if not len(delay_ns):
        return np.zeros(len(match.flows))
    table = sender.flows
    order = np.argsort(table.ids)
    row = order[np.searchsorted(table.ids, match.flows.flow_id, sorter=order)]
    rate = table.packets[row] / max(1, sender.last_ns - sender.first_ns)
    found: FloatArray = np.where(np.diff(match.packets.start) > 0, rate * float(np.ptp(delay_ns)), 0.0)
    return found


def _common_time(
    first: PointSurvey, second: PointSurvey, match: PacketMatch
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """When both points were captured, at its beginning and its end: the sender's time and the receiver's (on the
    sender's clock), None where the captures begin or end about together."""
    delay = int(np.median(match.packets.delay_ns)) if len(match.packets.delay_ns) else 0
    began, ended = (int(t) - delay for t in match.clock.correct(np.array([second.first_ns, second.last_ns])))
    most = max(APART_NS, int(APART_SHARE * (min(first.last_ns, ended) - max(first.first_ns, began))))
    low, high = max(first.first_ns, began), min(first.last_ns, ended)
    begin = (low, low + delay) if abs(first.first_ns - began) > most else None
    end = (high, high + delay) if abs(first.last_ns - ended) > most else None
    return begin, end


def _matched_spans(match: PacketMatch) -> list[tuple[Int64Array, Int64Array]]:
    """First and last matched packet of each measured flow, at the sender and at the receiver."""
    packets = match.packets
    spans = []
    for time_ns in (packets.sent_ns, packets.sent_ns + packets.delay_ns):
        low = np.zeros(len(match.flows), np.int64)
        high = np.zeros(len(match.flows), np.int64)
        filled = np.diff(packets.start) > 0
        if filled.any():
            starts = packets.start[:-1][filled]
            low[filled] = np.minimum.reduceat(time_ns, starts)
            high[filled] = np.maximum.reduceat(time_ns, starts)
        spans.append((low, high))
    return spans


# The snap length of 64 bytes that tcpdump had by default for years, behind an Ethernet header.
SOUND_IDENTITY_BYTES = 50


@dataclass(frozen=True)
class CaptureOptions:
    """How captures are read; the same for both points."""

    decode: DecodeOptions
    packet_filter: PacketFilter | None = None
    strict: bool = False


class CapturePoint:
    """A capture file as an observation point; what the first pass found stays with it."""

    def __init__(self, path: str, options: CaptureOptions, *, name: str = "") -> None:
        self.path, self.name = path, name or path
        self.options = options
        self._reader: CaptureReader | None = None

    def _open(self, decode: DecodeOptions) -> CaptureReader:
        options = self.options
        try:
            return open_capture(self.path, decode, strict=options.strict, packet_filter=options.packet_filter)
        except CaptureError as error:
            raise CaptureError(error.what, where=self.named(error.where), action=error.action) from None

    def named(self, text: str) -> str:
        """A text with the name that the user knows instead of the file's that a pipe is kept in."""
        return text.replace(self.path, self.name)

    def open(self) -> CaptureReader:
        """Begin the first pass; the header is read."""
        self._reader = self._open(self.options.decode)
        return self._reader

    def peek(self) -> CaptureReader:
        """A reader of its own, for a look that leaves the first pass alone."""
        return self._open(self.options.decode)

    def batches(self) -> Iterator[PacketBatch]:
        """The first pass over the capture."""
        with self._reader or self.open() as reader:
            yield from reader

    def known_batches(self, packets: int) -> Iterator[PacketBatch]:
        """Another pass, quicker than the first, over the packets that it found: a capture that is still being written
        counts as far as it is known."""
        seen = 0
        with self._open(replace(self.options.decode, flow_table=False)) as reader:
            for batch in reader:
                known = min(len(batch), packets - seen)
                seen += known
                yield batch if known == len(batch) else batch.select(slice(0, known))
        if seen < packets:
            raise InputError(
                f"it had {packets:,} packets to measure when it was read first, and {seen:,} the second time",
                where=self.name,
                action="measure a capture that is complete, or a copy of it",
            )

    @property
    def reader(self) -> CaptureReader:
        """The reader of the first pass: its counts, warnings and flows."""
        if self._reader is None:
            raise UsageError("the capture has not been read", where=self.name)
        return self._reader

    @property
    def flows(self) -> FlowTable:
        return self.reader.flows

    def identify_by(self, identity_bytes: int) -> None:
        """Tell packets apart by so many bytes, in this pass and the next."""
        decode = replace(self.options.decode, identity_bytes=identity_bytes)
        self.options = replace(self.options, decode=decode)
        if self._reader is not None:
            self._reader.identify_by(identity_bytes)


def survey_captures(
    points: tuple[CapturePoint, CapturePoint],
    *,
    clock: ClockMode,
    advance: Advance = silent,
) -> Survey:
    """Survey two captures with the longest identity that both hold."""
    advance("surveying", 0.0)
    found = read_identified(points, lambda: read_points(*points))
    advance("matching packets", 0.4)
    return conclude_captures(points, found, clock=clock)


def share_wire_sizes(points: tuple[CapturePoint, CapturePoint]) -> None:
    """Have super-packets of both captures split by what the beginnings of both tell of the wire's packets."""
    seen = []
    for point in points:
        with point.peek() as reader:
            seen.append(reader.wire_sizes(WIRE_PACKETS, WIRE_WINDOWS))
    if any(one.has_long for one in seen):
        for point, own, other in zip(points, seen, reversed(seen), strict=True):
            decode = replace(point.options.decode, wire=own.joined(other))
            point.options = replace(point.options, decode=decode)


def read_identified(points: tuple[CapturePoint, CapturePoint], read: Callable[[], T]) -> T:
    """What `read` gives, reading both captures from their beginning, with the longest identity that both hold.

    It is called again where the packets hold less than the headers promise.
    """

    def attempt() -> T:
        with ExitStack() as stack:
            snaps = [stack.enter_context(point.open()).snap_length for point in points]
            _shorten(points, identity_bytes_for(*snaps))
            return read()

    found = attempt()
    held = min(held_by_most(point.reader.cut, point.reader.wire_packets) for point in points)
    wanted = min(held, identity_bytes_for(*(point.reader.snap_length for point in points)))
    return attempt() if _shorten(points, wanted) else found


def conclude_captures(
    points: tuple[CapturePoint, CapturePoint], found: tuple[PointSurvey, PointSurvey], *, clock: ClockMode
) -> Survey:
    """`conclude` with what the captures themselves show."""
    for point, seen in zip(points, found, strict=True):
        seen.cut_packets = int(point.reader.cut.sum())
        seen.split_packets = point.reader.split_packets
    survey = conclude(*found, clock=clock)
    survey.warnings.extend(_identity_warnings(points[0].options.decode.identity_bytes, survey))
    return survey


def _shorten(points: tuple[CapturePoint, CapturePoint], held: int) -> bool:
    """Tell packets apart by at most `held` bytes, as far as that suffices; whether that is a change."""
    before = points[0].options.decode.identity_bytes
    wanted = min(before, max(held, MIN_IDENTITY_BYTES))
    if wanted < before:
        for point in points:
            point.identify_by(wanted)
    return wanted < before


def _identity_warnings(identity_bytes: int, survey: Survey) -> list[str]:
    """What a short identity costs: packets that share it can only be paired in their order."""
    if identity_bytes >= SOUND_IDENTITY_BYTES:
        return []
    shared, packets = survey.match.crossing.shared_ids, len(survey.match.sender_fate)
    return [
        f"packets are told apart by their first {identity_bytes} bytes, all that both captures hold of them: "
        f"{shared:,} of {packets:,} have the same as another and are paired in their order; a snap length of 96 helps"
    ]
