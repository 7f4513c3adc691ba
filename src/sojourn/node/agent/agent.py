"""The agent: measures, closes epochs, spools and sends them, and answers about the current one.

Four loops, one thread each: *recording* polls the sources, each of which works in a thread of its own;
*keeping* opens streams, and those that failed again; *sending* empties the spool, oldest first, and waits longer after
each failure; *answering* waits for questions about open epochs. They share the streams and the spool under one lock,
which nobody holds while waiting for the network or for a source to open.

Nothing ordinary ends it. A stream that fails, for whatever reason, ends alone: what it measured is closed and sent, the
query unit learns of it (`StateReporter`), and it is tried again. So is whatever the network brings, until a stop.

Every loss is reported: closed epochs are on disk before they count as closed (in memory while the disk refuses
them); open ones are written down every few seconds (checkpoints) and taken up after a crash as they were then. What was
measured since, and is lost, is reported with its times. So is what was merged, refused or set aside, and what sources
could not measure.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sojourn.core.errors import SojournError, SourceError, UsageError
from sojourn.core.host import service
from sojourn.core.units import format_age, format_bytes, plural
from sojourn.epochs.encoded import EncodedEpoch
from sojourn.node.agent.clock import StepWatch
from sojourn.node.agent.configuration import (
    MOST_STREAMS,
    AgentConfiguration,
    StreamConfiguration,
    checked_source,
    checked_stream,
)
from sojourn.node.agent.reporting import StateReporter
from sojourn.node.agent.stream import AgentStream, WatchedSource
from sojourn.node.agent.stream_states import StreamStates, reason_of
from sojourn.node.ledgers import StreamLedgers
from sojourn.node.spool.file import StreamState
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.sending import (
    BATCH_BYTES,
    BATCH_EPOCHS,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    SpoolSender,
    pause_about,
)
from sojourn.node.transports.transport import (
    Announcement,
    Asked,
    NameTakenError,
    RefusedError,
    TooLargeError,
    Transport,
    TransportError,
)
from sojourn.node.withholding import Withholding, check_assigned
from sojourn.sources.registry import source_type

CHECKPOINT_NS = 5_000_000_000
# Of the time that passes, checkpoints take at most this share: they come later where the disk is slow.
CHECKPOINT_SHARE = 10
ASSIGNMENTS_SECONDS = 30.0
QUESTION_SECONDS = 20.0
KEEPING_SECONDS = 0.5
# How soon a stop is noticed.
NOTICE_SECONDS = 0.25
# How long a source that is polled or closed is waited for, while others wait; a slow one is taken up at the next poll.
POLL_SECONDS, CLOSE_SECONDS, LAST_CLOSE_SECONDS = 1.0, 1.0, 2.0
# What sending may take after a stop; what is left waits in the spool.
LAST_SECONDS, LAST_AWAY_SECONDS = 4.0, 1.0
LONGEST_LISTENING_PAUSE_SECONDS = 8.0
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789,"))

Report = Callable[[str], None]


@dataclass
class AgentCounts:
    """What the agent has done so far."""

    measurements: int = 0
    closed: int = 0
    sent: int = 0


@dataclass(frozen=True)
class _Watched:
    """A question that waits until streams have been watched for a while."""

    asked: Asked
    streams: dict[str, AgentStream]
    due: float


class Agent:
    """Runs the streams of one node until stopped."""

    def __init__(
        self,
        configuration: AgentConfiguration,
        transport: Transport,
        *,
        report: Report,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._configuration = configuration
        self._clock = clock
        self._transport = transport
        self._withholding = Withholding(configuration.pseudonyms)
        self._report = report = self._withholding.reporting(report)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._is_asked_to_stop = False
        self._closed_by: float | None = None
        self._streams: dict[str, AgentStream] = {}
        self._ledgers = StreamLedgers(self._streams, self._lock, self._poll)
        self._wanted: dict[str, StreamConfiguration] = {}
        self._assigned: set[str] = set()
        self._states = StreamStates()
        self._last_numbers: dict[str, int] = {}
        self._watched: deque[_Watched] = deque()
        self._given_up: dict[str, WatchedSource] = {}
        self._unannounced: set[str] = set()
        self._warned: dict[str, set[str]] = {}
        self._trouble = ""
        self.spool = Spool(configuration.spool, limit_bytes=configuration.spool_limit_bytes, clock=clock)
        self.counts = AgentCounts()
        self._steps = StepWatch()
        self._reporter = StateReporter(transport, self._states, self.spool, lock=self._lock, clock=clock)
        before = self._reporter.tell_before
        self._sender = SpoolSender(self.spool, transport, lock=self._lock, report=report, before=before)
        self._looked = -math.inf
        self._report_notices()

    def stop(self) -> None:
        """Ask all loops to end; may be called from a signal handler, which must not wait for an event's lock."""
        self._is_asked_to_stop = True

    def _is_over(self) -> bool:
        return self._is_asked_to_stop or self._stop.is_set()

    def run(self, begun: Callable[[], None] = lambda: None) -> None:
        """Work until `stop`; then close the open epochs and try once to send everything.

        `begun` is called once sources are open, before the loops.
        """
        try:
            self._begin()
            begun()
            send = partial(self._sender.run, self._stop, then=self._look_for_assignments)
            loops = [
                threading.Thread(target=self._guarded, args=(loop,), daemon=True)
                for loop in (send, self._answer, self._keep)
            ]
            for loop in loops:
                loop.start()
            self._record()
            service.stopping()
            self._end_sending(loops[0])
        finally:
            self._stop.set()
            self._finish()
            with self._lock:
                self.spool.end()
                self._report_notices()
                self.spool.leave(self._report)

    def _end_sending(self, sending: threading.Thread) -> None:
        """Close what is open and send what waits, as far as that succeeds at once."""
        self._stop.set()
        self._finish()
        seconds = LAST_AWAY_SECONDS if self._sender.is_away else LAST_SECONDS
        self._transport.hurry(seconds)
        sending.join(timeout=seconds / 2)
        try:
            if sending.is_alive():
                raise TransportError("the query unit does not answer")
            self._sender.send_waiting()
            self._announce_again()
            self._reporter.tell()
            self._transport.leave()
        except Exception as error:
            if len(self.spool):
                waiting = plural(len(self.spool), "epoch waits", "epochs wait")
                self._report(f"warning: {waiting} in {self.spool.directory}: {reason_of(error)}")
        self.counts.sent = self._sender.sent

    def _guarded(self, loop: Callable[[], None]) -> None:
        """Run a loop until the stop; a fault in it is reported once, and it goes on."""
        pause, reported = FIRST_PAUSE_SECONDS, ""
        while not self._stop.is_set():
            try:
                loop()
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
                if fault != reported and not self._stop.is_set():
                    self._report(f"a fault of ours, please report it ({fault}); will try again")
                reported = fault
                pause_about(self._stop, pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _begin(self) -> None:
        """Start the streams of the configuration; what can never work raises, what does not work now is tried again."""
        together = 0
        for configuration in self._configuration.streams:
            try:
                most_bytes, pseudonyms = self._configuration.memory.per_stream, self._configuration.pseudonyms
                together += checked_source(configuration, most_bytes=most_bytes, pseudonyms=pseudonyms)[1]
            except UsageError:
                raise
            except SojournError:
                continue  # something about this machine, which shows again when the stream is opened
        self._require_memory(together, "the streams")
        for configuration in self._configuration.streams:
            if self._is_over():
                return
            self._wanted[configuration.name] = configuration
            try:
                self._start(configuration)
            except TooLargeError as error:  # one stream too many: the others go on
                self._fail(configuration.name, error)
            except (UsageError, RefusedError):
                raise
            except Exception as error:
                self._fail(configuration.name, error)

    def _require_memory(self, needed: int, what: str) -> None:
        limit = self._configuration.memory.together
        if needed > limit:
            raise UsageError(
                f"{what} may take {format_bytes(needed)} of memory together, the limit is {format_bytes(limit)}",
                where="agent",
                action="use smaller sketches or fewer streams, or raise memory in the configuration",
            )

    def _keep(self) -> None:
        """Start the streams that are assigned, and those that failed again."""
        while not self._stop.is_set():
            for name in self._states.due():
                configuration = self._wanted.get(name)
                if configuration is None or name in self._streams or self._stop.is_set():
                    continue
                try:
                    self._start(configuration)
                except Exception as error:
                    if self._wanted.get(name) is configuration and not self._stop.is_set():
                        self._fail(name, error)
            self._stop.wait(KEEPING_SECONDS)

    def _start(self, configuration: StreamConfiguration) -> None:
        name = configuration.name
        if name in self._given_up and self._given_up[name].is_busy:
            raise SourceError("its source still does not answer", where=f"stream {name}")
        self._given_up.pop(name, None)
        first = self._first_sequence(configuration)
        memory = self._configuration.memory
        how: dict[str, Any] = {"first_sequence": first, "most_bytes": memory.per_stream}
        how["pseudonyms"] = self._configuration.pseudonyms
        stream = AgentStream(self._configuration.node, configuration, **how)
        with self._lock:
            others = sum(other.memory_bytes for other in self._streams.values())
            self._ledgers.make_room(memory.together - others - stream.memory_bytes)
        self._require_memory(others + stream.memory_bytes, f"stream {name} and the others")
        stream.resume_size(self.spool.size_of(name), memory.together - others - stream.memory_bytes)
        try:
            stream.rehearse()
            stream.source.open(is_over=self._is_over)
        except BaseException:
            self._given_up[name] = stream.source
            raise
        with self._lock:
            # It may have been withdrawn, and the agent stopped, while it was opened.
            if self._wanted.get(name) is not configuration or self._stop.is_set():
                stream.source.close(seconds=CLOSE_SECONDS)
                return
            self.spool.begin_stream(name, first)
            self._streams[name] = stream
            self._states.started(name)
            self._report_warnings(stream)

    def _first_sequence(self, configuration: StreamConfiguration) -> int:
        """A number after the highest that is known anywhere.

        Where the query unit cannot be asked, it may hold more than is known here. Microseconds since 1970 are larger
        than any number of epochs that a stream has closed one after the other.
        """
        name = configuration.name
        stored: int | None = None
        is_announced = False
        if not self._sender.is_away:
            try:
                stored = self._announce(configuration)
                is_announced = True
            except TransportError as error:
                self._sender.note_trouble(error)
        if not is_announced:
            self._unannounced.add(name)
            if name not in self._last_numbers:
                stored = self._clock() // 1000
        with self._lock:
            known = (stored, self.spool.next_number(name) - 1, self._last_numbers.get(name))
        return max((number for number in known if number is not None), default=-1) + 1

    def _announce(self, configuration: StreamConfiguration) -> int | None:
        """Tell what a stream measures; the last number of it that is stored."""
        metric = source_type(configuration.metric).metric
        what = (metric.name, metric.unit, metric.granularity, metric.values)
        with self._lock:
            acknowledged = self.spool.acknowledged(configuration.name)
        return self._transport.announce(Announcement(configuration.name, *what, acknowledged))

    def _announce_again(self) -> None:
        """Announce what the query unit does not know, or may have forgotten while it was away."""
        for name in sorted(self._unannounced):
            # Whether it runs or not: at the end streams have stopped, and what waits of them is still sent.
            configuration = self._wanted.get(name)
            if configuration is not None:
                self._announce(configuration)
            self._unannounced.discard(name)

    def _fail(self, name: str, error: Exception) -> None:
        """End a stream alone, and have it tried again."""
        with self._lock:
            if name in self._streams:
                self._stop_stream(name)
        reason = self._withholding.reason_of(error, self._wanted.get(name))
        if self._states.failed(name, reason):
            self._report(f"warning: stream {name} failed and will be tried again: {reason}")

    def _stop_stream(self, name: str) -> None:
        """Close a stream's epochs and its source, whatever state that is in."""
        with self._lock:
            stream = self._streams.pop(name)
            closed: list[EncodedEpoch] = []
            try:
                self._count(closed := stream.finish())
            except Exception as error:
                reason = self._withholding.reason_of(error, stream.configuration)
                self._report(f"warning: stream {name}: its open epoch is lost: {reason}")
            room = self._configuration.memory.together - sum(one.memory_bytes for one in self._streams.values())
            self._ledgers.keep(name, stream, room)
            self.spool.end_stream(name, closed)
            self._report_notices()
            self._last_numbers[name] = stream.next_sequence - 1
            self._given_up[name] = stream.source
            try:
                ignored = sorted(stream.source.ignored.items())
                stream.source.close(seconds=self._closing_seconds())
            except Exception as error:
                self._report(f"warning: stream {name}: {self._withholding.reason_of(error, stream.configuration)}")
                return
            for reason, count in ignored:
                self._report(f"stream {name}: {count:,} {reason}")

    def _closing_seconds(self) -> float:
        """How long a source that is closed is waited for: after a stop, all of them together."""
        if not self._stop.is_set():
            return CLOSE_SECONDS
        if self._closed_by is None:
            self._closed_by = time.monotonic() + LAST_CLOSE_SECONDS
        return max(0.0, self._closed_by - time.monotonic())

    def _report_warnings(self, stream: AgentStream) -> None:
        """Say what a source warns of, once; what it counts is reported when it stops."""
        name = stream.configuration.name
        warned = self._warned.setdefault(name, set())
        for text in stream.source.warnings:
            kind = text.translate(_NO_DIGITS)
            if kind not in warned:
                warned.add(kind)
                self._report(f"warning: stream {name}: {text}")

    def _record(self) -> None:
        """Poll all streams at a steady pace, and once more when stopped: what was measured till then counts."""
        next_poll = time.monotonic_ns()
        checkpoint = next_poll + CHECKPOINT_NS
        watchdog = service.Watchdog()
        while not self._is_over():
            with self._lock:
                self._poll()
                if (begun := time.monotonic_ns()) >= checkpoint:
                    self._note_open_epochs()
                    took = time.monotonic_ns() - begun
                    checkpoint = time.monotonic_ns() + max(CHECKPOINT_NS, CHECKPOINT_SHARE * took)
            next_poll = max(next_poll + self._configuration.poll_ns, time.monotonic_ns())
            watchdog.alive()
            while not self._is_over() and (left := next_poll - time.monotonic_ns()) > 0:
                self._stop.wait(min(left / 1e9, NOTICE_SECONDS))
                watchdog.alive()
        with self._lock:
            self._poll()

    def _poll(self) -> None:
        """Record what all sources have, and spool the epochs that it closes."""
        now_ns = self._clock()
        if step_ns := self._steps.step_ns(now_ns, time.monotonic_ns()):
            way = "ahead" if step_ns > 0 else "back"
            self._report(f"warning: the clock was set {way} by {format_age(abs(step_ns))}; epochs go on in their order")
        self.spool.write_down()
        self._report_notices()
        polled = list(self._streams.items())
        for _, stream in polled:
            stream.source.ask(now_ns)
        deadline = time.monotonic() + POLL_SECONDS
        for name, stream in polled:
            try:
                closed = stream.take(max(0.0, deadline - time.monotonic()))
                if closed is None:
                    continue
                if closed:
                    self._count(closed)
                    self.spool.keep([StreamState(name, closed, stream.snapshots(), stream.until_ns, stream.size)])
                    self._report_notices()
                self._report_warnings(stream)
                while stream.notices:
                    self._report(f"stream {name}: {stream.notices.pop(0)}")
            except Exception as error:
                self._fail(name, error)
                continue
            if self._states.proved(name):
                self._report(f"stream {name} is recorded again")

    def _count(self, closed: list[EncodedEpoch]) -> None:
        self.counts.closed += len(closed)
        self.counts.measurements += sum(epoch.recorded for epoch in closed)

    def _report_notices(self) -> None:
        """Report what the spool has to; that the disk refuses to be written, and that it no longer does, each once."""
        self.spool.report_notices(self._report)
        trouble = self.spool.trouble
        if trouble is not None and not self._trouble:
            self._report(f"warning: {trouble}; recording goes on, epochs wait in memory")
        if trouble is None and self._trouble:
            self._report(f"{self.spool.directory} can be written again")
        self._trouble = "" if trouble is None else str(trouble)

    def _finish(self) -> None:
        with self._lock:
            for name in list(self._streams):
                self._stop_stream(name)
            self.spool.end()
            self._report_notices()

    def _note_open_epochs(self) -> None:
        """Write open epochs down, for the case that nobody gets to close them."""
        polled = [(name, stream) for name, stream in self._streams.items() if stream.until_ns]
        self.spool.keep(
            StreamState(name, (), stream.snapshots(), stream.until_ns, stream.size) for name, stream in polled
        )
        self._report_notices()

    def _look_for_assignments(self) -> None:
        self.counts.sent = self._sender.sent
        self._announce_again()
        self._reporter.tell()
        if time.monotonic() - self._looked >= ASSIGNMENTS_SECONDS:
            self._looked = time.monotonic()
            self._follow_assignments()

    def _follow_assignments(self) -> None:
        """Want the streams that the query unit says; those of the configuration stay."""
        _, tables = self._transport.assignments()
        own = {stream.name for stream in self._configuration.streams}
        wanted: dict[str, StreamConfiguration] = {}
        names = [name for name in tables if name not in own][:MOST_STREAMS]
        for name in names:
            try:
                wanted[name] = self._checked_assignment(name, tables[name])
            except Exception as error:
                if self._states.failed(name, reason_of(error)):
                    self._report(f"warning: stream {name} cannot be recorded: {reason_of(error)}")
        for name in self._assigned - wanted.keys():
            self._give_up(name)
            if name not in names:
                self._states.forget(name)
        for name, configuration in wanted.items():
            if self._wanted.get(name) != configuration:
                self._give_up(name)
                self._wanted[name] = configuration
                self._states.want(name)
        self._assigned = set(names)

    def _checked_assignment(self, name: str, table: Mapping[str, object]) -> StreamConfiguration:
        memory = self._configuration.memory
        found = checked_stream(name, table, where="assignment", most_bytes=memory.per_stream)
        if self._configuration.pseudonyms is not None:
            check_assigned(found)
        return replace(found, assigned=True)

    def _give_up(self, name: str) -> None:
        """Stop an assigned stream, if it runs, and do not start it again."""
        with self._lock:
            self._wanted.pop(name, None)
            if name in self._streams:
                self._stop_stream(name)

    def _answer(self) -> None:
        """Answer questions about open epochs, as long as the query unit can be reached."""
        reached = True
        pause = FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self._answer_watched(begun)
                seconds = max(0.0, self._watched[0].due - begun) if self._watched else QUESTION_SECONDS
                asked = self._transport.next_question(seconds)
                reached = True
                pause = FIRST_PAUSE_SECONDS
                if asked is not None:
                    self._take_question(asked)
                elif time.monotonic() - begun < min(FIRST_PAUSE_SECONDS, seconds / 2):
                    # A query unit keeps us waiting; something else that answers at once must not keep us busy.
                    pause_about(self._stop, pause)
            except (TransportError, RefusedError) as error:
                if reached and isinstance(error, TransportError):
                    # It may come back as another one, which knows nothing of the streams.
                    self._unannounced.update(list(self._streams))
                    self._reporter.forget()
                    reached = False
                pause_about(self._stop, pause)
                is_refused = isinstance(error, NameTakenError | RefusedError)
                longest = LONGEST_PAUSE_SECONDS if is_refused else LONGEST_LISTENING_PAUSE_SECONDS
                pause = min(2 * pause, longest)

    def _take_question(self, asked: Asked) -> None:
        """Answer a question at once, or when the streams between whose markers it asks have been watched for a while.

        A question about no stream says that assignments have changed: they are looked at with the next sending.
        """
        if not asked.streams:
            self._looked = -math.inf
            self._transport.answer(asked, [])
            return
        if asked.ledger:
            self._transport.answer(asked, [self._ledgers.reply(asked.streams[0], asked.ledger)])
            return
        with self._lock:
            self._poll()
            watched = {name: stream for name, stream in self._asked_about(asked) if stream.watch()}
        if watched:
            from sojourn.segments.fleet.watch import WINDOW_NS

            self._watched.append(_Watched(asked, watched, time.monotonic() + WINDOW_NS / 1e9))
        else:
            self._answer_one(asked, {})

    def _asked_about(self, asked: Asked) -> list[tuple[str, AgentStream]]:
        """The streams of a question that run, each once."""
        return [(name, self._streams[name]) for name in dict.fromkeys(asked.streams) if name in self._streams]

    def _answer_watched(self, now: float) -> None:
        while self._watched and self._watched[0].due <= now:
            due = self._watched.popleft()
            self._answer_one(due.asked, due.streams)

    def _answer_one(self, asked: Asked, watched: Mapping[str, AgentStream]) -> None:
        """Hand over what the query unit cannot have: the open epochs, then the waiting ones, the newest first."""
        with self._lock:
            self._poll()
            looks = {name: stream.looks() for name, stream in watched.items()}
            epochs: list[EncodedEpoch] = []
            for name, stream in self._asked_about(asked):
                # A stream that was begun anew meanwhile has nothing to do with what was seen of it before.
                epochs += looks[name] if watched.get(name) is stream else stream.snapshots()
            waiting = self.spool.newest(set(asked.streams), asked.from_ns, asked.to_ns)
        page: list[bytes] = []
        size = 0
        for data in (*(epoch.data for epoch in reversed(epochs)), *waiting):
            if page and (len(page) == BATCH_EPOCHS or size + len(data) > BATCH_BYTES):
                self._transport.answer(asked, page, more=True)
                page, size = [], 0
            page.append(data)
            size += len(data)
        self._transport.answer(asked, page)
