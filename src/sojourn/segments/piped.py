"""The exact answer of two captures that come through pipes: one pass, with interim answers while it runs.

::

    sojourn measure <(ssh a tcpdump -i eth0 -U -w -) <(ssh b tcpdump -i eth0 -U -w -) --interval 10s

Each pipe is read by a thread of its own. What comes first, `LOOK_PACKETS` of each or `LOOK_SECONDS`, is held and
matched in memory: it tells the clock, directions and the window of copies, with which the pass begins. The rest is
matched as it comes (`matching.stream`), and sampled for the survey.

What one pass cannot know is what a second one would be for. **Clock**: delays are corrected by the clock that the look
told; at the end the whole sample tells it better, and where the two differ each flow's delays are moved by how much
they do in the middle of its time. A clock that is set meanwhile is noticed by the sample, at most once in
`CLOCK_SECONDS`, and said with every stretch after the step; packets that passed since then are off by it, or too far
apart to match, and the end says that how far delays are off is unknown. **Directions**: a flow that appears later goes
against its opposite or by its packets; the end decides. **Longest delay**: nobody has seen it yet; `PIPED_MAX_DELAY_NS`
unless the user knows better. **Identity**: as many bytes as both headers promise, which packets that are cut shorter do
not hold. **Warnings** and refusals come last.

A pipe from which nothing comes for `SILENT_SECONDS` is not waited for: packets of the other leave when they are twice
the longest delay older than its newest. Memory: the look, the packets of that time, and what the stream takes; whatever
comes.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from sojourn.capture.decode.ids import MIN_IDENTITY_BYTES, identity_bytes_for
from sojourn.capture.files.ahead import ReadAhead
from sojourn.capture.flows.table import Conversations
from sojourn.core.arrays import PacketBatch
from sojourn.core.executors.interrupts import stopping_on_interrupt
from sojourn.core.results import Advance, silent
from sojourn.core.units import format_duration, format_instant
from sojourn.matching.clock.correction import ClockEstimate, ClockMode
from sojourn.matching.clock.steps import SAME_STEP_NS, ClockStep
from sojourn.matching.exact import ExactMatch, match_exact
from sojourn.matching.ordering import SPAN_NS
from sojourn.matching.over_time.intervals import IntervalTotals
from sojourn.matching.pairing import common_sample
from sojourn.matching.stream import Directions, ExactStream, StreamSettings
from sojourn.segments.exact import ExactAnswer, Points, classes_of, directions
from sojourn.segments.survey import PointSurvey, conclude_captures, flows_back, refuse_many

LOOK_PACKETS = 1 << 16
LOOK_SECONDS = 2.0
PIPED_MAX_DELAY_NS = 2_000_000_000
MOST_LOOK_PACKETS = 1 << 18
WAITING_BATCHES = 64
SILENT_SECONDS = 5.0
PAUSE_SECONDS = 0.02
CLOCK_SECONDS = 1.0

NOT_FOLLOWED = "It was set while packets passed; how far delays are off is unknown."

Interim = Callable[["InterimAnswer"], None]


@dataclass(frozen=True, eq=False)
class InterimAnswer:
    """What is known of a stretch of time, when all its packets have arrived or are lost.

    The first one has the ``notes``: what the look told of clock and directions.
    """

    start_ns: int
    end_ns: int
    match: ExactMatch
    notes: Sequence[str] = ()


@dataclass(eq=False)
class PipedMeasurement:
    """One pass over two pipes; `run` blocks until both have ended, or `stop` was called."""

    points: Points
    clock: ClockMode
    max_delay_ns: int = PIPED_MAX_DELAY_NS
    interval_ns: int = 0
    interim: Interim = lambda _: None
    are_pipes: tuple[bool, bool] = (True, True)
    advance: Advance = silent
    _stopped: threading.Event = field(default_factory=threading.Event)
    _ended: int = 0
    _steps: list[ClockStep] = field(default_factory=list)
    _looked: float = -math.inf

    def stop(self) -> None:
        """Answer with what has come. May be called from a signal handler."""
        self._stopped.set()

    def run(self) -> ExactAnswer:
        self._open()
        surveys = PointSurvey(self.points[0].name), PointSurvey(self.points[1].name)
        readers = [ReadAhead(point.batches(), depth=WAITING_BATCHES) for point in self.points]
        with stopping_on_interrupt(self.stop):
            held = self._look(readers, surveys)
            begun = self._begin(surveys)
            stretches = self._stretches()
            consumers = [stretches] if stretches is not None else []
            stream = ExactStream(begun.settings, consumers, classes=classes_of(self.points))
            for side, batches in enumerate(held):
                for batch in batches:
                    stream.take(side, batch)
            self._pass(readers, surveys, stream, begun, stretches)
        for side, reader in enumerate(readers):
            reader.close(wait=False)  # one that waits for a pipe would not end
            stream.end(side)
        return self._answer(surveys, stream, begun, stretches)

    def _stretches(self) -> IntervalTotals | None:
        length = self.interval_ns
        return IntervalTotals(length, lambda span_ns: refuse_many(span_ns, length)) if length else None

    def _open(self) -> None:
        """Both headers: a pipe gives its own when whoever writes it begins."""
        with ThreadPoolExecutor(2) as pool:
            snaps = [reader.snap_length for reader in pool.map(lambda point: point.open(), self.points)]
        wanted = max(identity_bytes_for(*snaps), MIN_IDENTITY_BYTES)
        if wanted < self.points[0].options.decode.identity_bytes:
            for point in self.points:
                point.identify_by(wanted)

    def _next(
        self, readers: Sequence[ReadAhead], surveys: Sequence[PointSurvey], wanted: Callable[[int], bool]
    ) -> list[tuple[int, PacketBatch]]:
        """What has come of the points that are wanted."""
        found = []
        for side, reader in enumerate(readers):
            if not reader.has_ended and wanted(side):
                batch = reader.take(wait=False)
                if batch is not None:
                    surveys[side].take(batch)
                    found.append((side, batch))
        return found

    def _look(
        self, readers: Sequence[ReadAhead], surveys: Sequence[PointSurvey]
    ) -> tuple[list[PacketBatch], list[PacketBatch]]:
        """The first packets of both points, held."""
        held: tuple[list[PacketBatch], list[PacketBatch]] = ([], [])
        both_since = None
        while not self._stopped.is_set() and not all(reader.has_ended for reader in readers):
            found = self._next(readers, surveys, lambda side: surveys[side].packets < MOST_LOOK_PACKETS)
            for side, batch in found:
                held[side].append(batch)
            counts = [survey.packets for survey in surveys]
            if min(counts) and both_since is None:
                both_since = time.monotonic()
            if min(counts) >= LOOK_PACKETS:
                break
            if both_since is not None and time.monotonic() - both_since >= LOOK_SECONDS and all(self.are_pipes):
                break
            if not found:
                self.advance(f"{counts[0]:,} → {counts[1]:,} packets", 0.0)
                self._stopped.wait(PAUSE_SECONDS)
        return held

    def _begin(self, surveys: tuple[PointSurvey, PointSurvey]) -> _Begun:
        """What the look tells; the readers may have gone on since."""
        sent, received = common_sample(surveys[0].sample, surveys[1].sample)
        conversations = self._conversations()
        match = match_exact(sent, received, clock=self.clock, conversations=conversations)
        back = flows_back(match, sent, received)
        told = Directions(match.flows.flow_id, back, conversations)
        settings = replace(StreamSettings.found(match, max_delay_ns=self.max_delay_ns), follow=True)
        pairs = len(match.pairs)
        return _Begun(settings, told, [f"clock, by the first {pairs:,} packets seen at both: {match.explanation}"])

    def _conversations(self) -> Conversations:
        first, second = (Conversations.of_table(point.flows) for point in self.points)
        return first.joined(second)

    def _clock_so_far(self, surveys: Sequence[PointSurvey]) -> ClockEstimate:
        """The clock by the sample, which has a bounded size, however much has passed."""
        sent, received = common_sample(surveys[0].sample, surveys[1].sample)
        return match_exact(sent, received, clock=self.clock, conversations=self._conversations()).clock

    def _pass(
        self,
        readers: Sequence[ReadAhead],
        surveys: Sequence[PointSurvey],
        stream: ExactStream,
        begun: _Begun,
        stretches: IntervalTotals | None,
    ) -> None:
        told: set[int] = set()
        while not self._stopped.is_set() and not all(reader.has_ended for reader in readers):
            found = self._next(readers, surveys, lambda side: stream.waiting(side) < WAITING_BATCHES)
            for side, batch in found:
                stream.take(side, batch)
            for side, reader in enumerate(readers):
                if reader.has_ended:
                    stream.end(side)
            if not found and max(reader.silent_seconds for reader in readers) > SILENT_SECONDS:
                stream.wait_no_longer(2 * self.max_delay_ns + SPAN_NS)
            if stretches is not None:
                self._tell(stream, surveys, begun, stretches, told)
            if not found:
                self.advance(f"{surveys[0].packets:,} → {surveys[1].packets:,} packets", 0.0)
                self._stopped.wait(PAUSE_SECONDS)

    def _tell(
        self,
        stream: ExactStream,
        surveys: Sequence[PointSurvey],
        begun: _Begun,
        stretches: IntervalTotals,
        told: set[int],
    ) -> None:
        """Stretches of which every packet is judged."""
        judged_ns = stream.joiner.now_ns - self.max_delay_ns
        ended = stretches.ended(judged_ns)
        if ended == self._ended:
            return
        self._ended = ended
        if time.monotonic() - self._looked >= CLOCK_SECONDS:
            self._steps = begun.steps_since(self._clock_so_far(surveys))
            self._looked = time.monotonic()
        match = stream.answer(begun.settings.clock, begun.directions)
        for start_ns, part in stretches.answers(match, before_ns=judged_ns):
            if start_ns not in told:
                end_ns = start_ns + self.interval_ns
                steps = [_said(step) for step in self._steps if step.time_ns < end_ns]
                self.interim(InterimAnswer(start_ns, end_ns, part, [*([] if told else begun.notes), *steps]))
                told.add(start_ns)

    def _answer(
        self,
        surveys: tuple[PointSurvey, PointSurvey],
        stream: ExactStream,
        begun: _Begun,
        stretches: IntervalTotals | None,
    ) -> ExactAnswer:
        found = surveys[0].ended(self.points[0].flows), surveys[1].ended(self.points[1].flows)
        survey = conclude_captures(self.points, found, clock=self.clock)
        notes = []
        better = StreamSettings.found(survey.match, max_delay_ns=self.max_delay_ns)
        if not begun.settings.holds(better) and (moved := stream.recorrect(survey.clock)):
            notes.append(
                f"one pass: delays were corrected by the clock of the first packets, and are moved by up to "
                f"{format_duration(moved)} now that the whole is known; save the captures for exact ones"
            )
        clock = survey.clock
        if steps := begun.steps_since(clock):
            notes += map(_said, steps)
            if clock.both_directions:  # files have the step taken out
                clock = replace(clock, uncertainty_ns=None, explanation=NOT_FOLLOWED)
        match = stream.finish(clock, directions(survey))
        parts = [] if stretches is None else stretches.answers(match)
        return ExactAnswer(
            match,
            survey,
            stream.consumers,
            self.max_delay_ns,
            stream.joiner.crowded,
            stream.late,
            [(start_ns, start_ns + self.interval_ns, part) for start_ns, part in parts],
            stream.classes,
            notes,
        )


@dataclass(frozen=True, eq=False)
class _Begun:
    """What the look told."""

    settings: StreamSettings
    directions: Directions
    notes: list[str]

    def steps_since(self, clock: ClockEstimate) -> list[ClockStep]:
        """Steps of a clock, as later packets tell it, that the look did not know of."""
        known = self.settings.clock.steps
        return [step for step in clock.steps if not any(step.is_like(other, SAME_STEP_NS) for other in known)]


def _said(step: ClockStep) -> str:
    return (
        f"a clock was set by {format_duration(abs(step.jump_ns))} (or the route changed) at "
        f"{format_instant(step.time_ns)}: one pass leaves this in the delays of packets since then, and counts those "
        "that it moves beyond --max-delay as lost; save the captures for exact answers"
    )
