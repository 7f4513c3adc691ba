"""The exact answer of two captures: both are read side by side, once, in memory that does not grow with them.

1. A look at the first `LOOK_PACKETS` of both gives the settings of the pass: the clock, how long packets may be on
   their way, which delays copies of a packet have.
2. One pass matches every packet (`matching.stream`), counts flows and keeps a coordinated sample for the survey.
3. The survey judges the captures and tells clock and directions from the whole sample. Where it contradicts what the
   pass assumed (a clock that drifts, delays that grew beyond the look's), the pass is repeated with what it found.

Captures of `LOOK_PACKETS` are read twice; longer ones with clocks that agree once, others twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from sojourn.capture.files.ahead import ReadAhead
from sojourn.capture.flows.table import Conversations
from sojourn.core.arrays import PacketBatch, UInt64Array
from sojourn.core.processors import usable_processors
from sojourn.core.results import Advance, silent
from sojourn.core.units import format_duration, plural
from sojourn.matching.clock.correction import ClockMode
from sojourn.matching.consumers import PacketConsumer
from sojourn.matching.crossing import resegmented_flows
from sojourn.matching.exact import ExactMatch, match_exact
from sojourn.matching.groups import ClassTotals
from sojourn.matching.ordering import SPAN_NS
from sojourn.matching.over_time.intervals import IntervalTotals
from sojourn.matching.over_time.timeline import Timeline, TimelineTotals
from sojourn.matching.pairing import common_sample
from sojourn.matching.stream import Directions, ExactStream, StreamSettings
from sojourn.segments.survey import CapturePoint, PointSurvey, Survey, conclude_captures, read_identified, refuse_many

LOOK_PACKETS = 1 << 16

Points = tuple[CapturePoint, CapturePoint]
Consumers = Callable[[], Sequence[PacketConsumer]]


@dataclass(frozen=True, eq=False)
class ExactAnswer:
    """What matching two captures told, and the survey that it rests on; ``consumers`` have all packets of ``match``."""

    match: ExactMatch
    survey: Survey
    consumers: Sequence[PacketConsumer]
    max_delay_ns: int
    crowded: int
    late: int = 0
    intervals: Sequence[tuple[int, int, ExactMatch]] = ()
    classes: ClassTotals | None = None
    notes: Sequence[str] = ()

    @property
    def resegmented(self) -> UInt64Array:
        """Flows of which the points show different packets, as offloading makes them: nothing tells their losses."""
        sender, receiver = self.survey.sender, self.survey.receiver
        longest = sender.largest_bytes, receiver.largest_bytes
        split = self.survey.were_split
        return resegmented_flows(self.match.flows, sender.flows, receiver.flows, longest, were_split=split)

    @property
    def timeline(self) -> Timeline | None:
        """When packets were sent and how long they took, where that was asked for."""
        totals = next((one for one in self.consumers if isinstance(one, TimelineTotals)), None)
        return None if totals is None else totals.timeline(self.match)

    @property
    def warnings(self) -> list[str]:
        """What the pass could not do as it should."""
        found = []
        if self.crowded:
            found.append(
                f"{self.crowded:,} packets were given up before --max-delay ({format_duration(self.max_delay_ns)}) "
                "because too many were on their way at once, and may have arrived later: give a shorter one, or a "
                "filter"
            )
        if self.late:
            found.append(
                f"{plural(self.late, 'packet stands', 'packets stand')} in the captures more than "
                f"{format_duration(SPAN_NS)} after later ones (parts joined in a wrong order, or a clock set back): "
                f"those more than {format_duration(self.max_delay_ns)} (--max-delay) late count as lost, and "
                "reordering, bursts and jitter follow the order of the files; put these in order with `reordercap`"
            )
        return found


def _none() -> Sequence[PacketConsumer]:
    return ()


def match_captures(
    points: Points,
    *,
    clock: ClockMode,
    max_delay_ns: int | None = None,
    interval_ns: int = 0,
    timeline: bool = False,
    consumers: Consumers = _none,
    advance: Advance = silent,
) -> ExactAnswer:
    """Match every packet of two captures; `max_delay_ns` is found where it is not given."""
    advance("looking", 0.0)

    def hung(settings: StreamSettings) -> ExactStream:
        stretches = [IntervalTotals(interval_ns, partial(refuse_many, interval_ns=interval_ns))] if interval_ns else []
        pictures = [TimelineTotals()] if timeline else []
        return ExactStream(settings, [*pictures, *stretches, *consumers()], classes=classes_of(points))

    def read() -> tuple[ExactStream, tuple[PointSurvey, PointSurvey]]:
        return _pass(points, hung(_look(points, clock, max_delay_ns, interval_ns)), advance)

    stream, found = read_identified(points, read)
    survey = conclude_captures(points, found, clock=clock)
    better = StreamSettings.found(survey.match, max_delay_ns=max_delay_ns)
    if not stream.settings.holds(better):
        stream = _pass_again(points, survey, hung(better), advance)
    match = stream.finish(survey.clock, directions(survey))
    reach = stream.settings.join.max_delay_ns
    parts = [
        (start_ns, start_ns + interval_ns, part)
        for consumer in stream.consumers
        if isinstance(consumer, IntervalTotals)
        for start_ns, part in consumer.answers(match)
    ]
    return ExactAnswer(
        match, survey, stream.consumers, reach, stream.joiner.crowded, stream.late, parts, stream.classes
    )


def classes_of(points: Points) -> ClassTotals | None:
    """Where to add up packets by class, if they are decoded with it."""
    return ClassTotals() if points[0].options.decode.dscp else None


def directions(survey: Survey) -> Directions:
    """Which way flows travel, as far as the survey's sample tells."""
    none = np.zeros(0, np.uint64)
    return Directions(survey.match.flows.flow_id, survey.told_back, survey.conversations or Conversations(none, none))


def _look(points: Points, clock: ClockMode, max_delay_ns: int | None, interval_ns: int) -> StreamSettings:
    """What the beginnings of both captures tell."""
    seen = []
    for point in points:
        start = PointSurvey(point.name)
        with point.peek() as reader:
            for batch in reader:
                start.take(batch)
                if start.packets >= LOOK_PACKETS:
                    break
        start.flows = reader.flows
        seen.append(start)
    first, second = seen
    if interval_ns and first.packets:
        refuse_many(first.last_ns - first.first_ns, interval_ns)
    conversations = Conversations.of_table(first.flows).joined(Conversations.of_table(second.flows))
    match = match_exact(*common_sample(first.sample, second.sample), clock=clock, conversations=conversations)
    return StreamSettings.found(match, max_delay_ns=max_delay_ns)


def _pass(points: Points, stream: ExactStream, advance: Advance) -> tuple[ExactStream, tuple[PointSurvey, PointSurvey]]:
    """The first pass: match, and survey."""
    first, second = (PointSurvey(point.name) for point in points)

    def surveyed(point: CapturePoint, found: PointSurvey) -> Iterator[PacketBatch]:
        for batch in point.batches():
            found.take(batch)
            advance("matching packets", point.reader.share_read)
            yield batch

    sides = [surveyed(point, found) for point, found in zip(points, (first, second), strict=True)]
    _feed(stream, sides)
    return stream, (first.ended(points[0].flows), second.ended(points[1].flows))


def _pass_again(points: Points, survey: Survey, stream: ExactStream, advance: Advance) -> ExactStream:
    """Another pass, with what the first one taught."""
    advance("matching packets by the corrected clock", 0.5)
    packets = survey.sender.packets, survey.receiver.packets
    _feed(stream, [point.known_batches(count) for point, count in zip(points, packets, strict=True)])
    return stream


def _feed(stream: ExactStream, sides: Sequence[Iterator[PacketBatch]]) -> None:
    """Both points' packets, each read ahead by a thread of its own where there is more than one processor."""
    with ExitStack() as stack:
        takers = [_taker(side, stack) for side in sides]
        while (side := stream.wants) is not None:
            batch = takers[side]()
            if batch is None:
                stream.end(side)
            else:
                stream.take(side, batch)


def _taker(side: Iterator[PacketBatch], stack: ExitStack) -> Callable[[], PacketBatch | None]:
    """What gives a point's next batch."""
    if usable_processors() == 1:
        return partial(next, side, None)
    reader = ReadAhead(side)
    stack.callback(reader.close)
    return reader.take
