"""The agent: measures, closes epochs, spools and sends them, and answers about the current one.

Three loops, one thread each: *recording* polls the sources; *sending* empties the spool, oldest first, and waits longer
after each failure; *answering* waits for questions about open epochs. They share the streams and the spool under one
lock, which nobody holds while waiting for the network.

Nothing is lost without a word: closed epochs are on disk before they count as closed (in memory while the disk refuses
them); open ones are written down every few seconds (`checkpoint`) and taken up after a crash as they were then. What
was merged, refused or lost is reported, and so is what sources could not measure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sojourn.core.errors import SojournError, StoreError, WireError
from sojourn.core.hashing import hash_bytes
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import decode, encode
from sojourn.node.configuration import AgentConfiguration, StreamConfiguration, stream_of
from sojourn.node.sending import (
    BATCH_BYTES,
    BATCH_EPOCHS,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    SpoolSender,
    pause_about,
)
from sojourn.node.spool import OPEN, Spool, write_durably
from sojourn.node.stream import AgentStream
from sojourn.node.transport import Announcement, Asked, RefusedError, Transport, TransportError
from sojourn.sources.registry import source_type

__all__ = ["Agent", "AgentCounts"]

CHECKPOINT_NS = 5_000_000_000
ASSIGNMENTS_SECONDS = 30.0
QUESTION_SECONDS = 20.0
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789,"))

Report = Callable[[str], None]


@dataclass
class AgentCounts:
    """What the agent has done so far."""

    measurements: int = 0
    closed: int = 0
    sent: int = 0


class Agent:
    """Runs the streams of one node until stopped."""

    def __init__(self, configuration: AgentConfiguration, transport: Transport, *, report: Report) -> None:
        self._configuration = configuration
        self._transport = transport
        self._report = report
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._streams: dict[str, AgentStream] = {}
        self._assigned: dict[str, StreamConfiguration] = {}
        self._unannounced: set[str] = set()
        self._told: dict[str, set[str]] = {}
        self._trouble = ""
        self.spool = Spool(configuration.spool, limit_bytes=configuration.spool_limit_bytes)
        self.counts = AgentCounts()
        self._sender = SpoolSender(self.spool, transport, lock=self._lock, report=report)
        self._looked = -ASSIGNMENTS_SECONDS
        for damaged in self.spool.damaged:
            report(f"warning: a spooled epoch was damaged and put aside: {damaged}")
        self._take_up_open_epochs()

    def stop(self) -> None:
        """Ask all loops to end; may be called from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Work until `stop`; then close the open epochs and try once to send everything."""
        for stream in self._configuration.streams:
            self._start(stream)
        loops = [
            threading.Thread(target=self._guarded, args=(loop,), daemon=True) for loop in (self._send, self._answer)
        ]
        for loop in loops:
            loop.start()
        try:
            self._record()
        finally:
            self._stop.set()
            self._finish()
            loops[0].join(timeout=LONGEST_PAUSE_SECONDS)
            try:
                self._sender.send_waiting()
            except SojournError as error:
                self._report(f"warning: {len(self.spool)} epochs wait in {self.spool.directory}: {error}")
            self.counts.sent = self._sender.sent
            if self.spool.unwritten:
                self._report(f"warning: {self.spool.unwritten} epochs could neither be sent nor written and are lost")

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:
            self._report(f"a fault of ours, please report it ({type(error).__name__}: {error})")
            self._stop.set()

    def _start(self, configuration: StreamConfiguration) -> None:
        """Announce and open a stream."""
        first = self._first_sequence(configuration)
        with self._lock:
            stream = AgentStream(self._configuration.node, configuration, first_sequence=first)
            stream.open()
            self._streams[configuration.name] = stream
            self._tell_warnings(stream)

    def _first_sequence(self, configuration: StreamConfiguration) -> int:
        """A number after the highest that is known anywhere.

        Where the query unit cannot be asked, it may hold more than is known here. Microseconds since 1970 are larger
        than any number of epochs that a stream has closed one after the other.
        """
        name = configuration.name
        try:
            stored = self._announce(configuration)
        except TransportError as error:
            self._report(f"warning: {error}; recording goes on, epochs wait in the spool")
            self._unannounced.add(name)
            stored = time.time_ns() // 1000
        with self._lock:
            known = (stored, self.spool.last_sequence(name), self._noted(name))
        return max((number for number in known if number is not None), default=-1) + 1

    def _announce(self, configuration: StreamConfiguration) -> int | None:
        """Tell what a stream measures; the last number of it that is stored."""
        metric = source_type(configuration.metric).metric
        announcement = Announcement(configuration.name, metric.name, metric.unit, metric.granularity)
        return self._transport.announce(announcement)

    def _announce_again(self) -> None:
        """Announce what the query unit was not told, or may have forgotten while it was away."""
        for name in sorted(self._unannounced):
            with self._lock:
                stream = self._streams.get(name)
            if stream is not None:
                self._announce(stream.configuration)
            self._unannounced.discard(name)

    def _stop_stream(self, name: str) -> None:
        with self._lock:
            stream = self._streams.pop(name)
            self._close(stream.finish())
            ignored = sorted(stream.source.ignored.items())
            stream.close()
            for reason, count in ignored:
                self._report(f"stream {name}: {count:,} {reason}")

    def _tell_warnings(self, stream: AgentStream) -> None:
        """Say what a source warns of, once; what it counts is told when it stops."""
        name = stream.configuration.name
        told = self._told.setdefault(name, set())
        for text in stream.source.warnings:
            kind = text.translate(_NO_DIGITS)
            if kind not in told:
                told.add(kind)
                self._report(f"warning: stream {name}: {text}")

    def _record(self) -> None:
        """Poll all streams at a steady pace, and once more when stopped: what was measured till then counts."""
        next_poll = time.monotonic_ns()
        checkpoint = next_poll + CHECKPOINT_NS
        while not self._stop.is_set():
            with self._lock:
                self._poll()
                if time.monotonic_ns() >= checkpoint:
                    self._note_open_epochs()
                    checkpoint = time.monotonic_ns() + CHECKPOINT_NS
            next_poll = max(next_poll + self._configuration.poll_ns, time.monotonic_ns())
            self._stop.wait(max(0.0, (next_poll - time.monotonic_ns()) / 1e9))
        with self._lock:
            self._poll()

    def _poll(self) -> None:
        """Record what all sources have, and spool the epochs that it closes."""
        now_ns = time.time_ns()
        if self.spool.unwritten:
            self.spool.write_down()
            self._tell_trouble(self.spool.trouble)
        for name, stream in list(self._streams.items()):
            try:
                closed = stream.poll(now_ns)
            except SojournError as error:
                # What is wrong with a stream from afar must not end the others.
                if name not in self._assigned:
                    raise
                self._report(f"warning: assigned stream {name} was stopped: {error}")
                self._stop_stream(name)
                continue
            self._close(closed)
            self._tell_warnings(stream)

    def _close(self, epochs: list[Epoch]) -> None:
        for epoch in epochs:
            merged = self.spool.merged
            self.spool.put(epoch)
            self.counts.closed += 1
            self.counts.measurements += epoch.recorded
            if self.spool.merged > merged:
                self._report(
                    f"warning: the spool is full; {self.spool.merged} epochs were merged so far: counts are kept, "
                    f"times are coarser"
                )
        if epochs:
            self._tell_trouble(self.spool.trouble)

    def _tell_trouble(self, trouble: StoreError | None) -> None:
        """Say that the disk refuses to be written, and that it no longer does, each once."""
        if trouble is not None and not self._trouble:
            self._report(f"warning: {trouble}; recording goes on, epochs wait in memory")
        if trouble is None and self._trouble:
            self._report(f"{self.spool.directory} can be written again")
        self._trouble = "" if trouble is None else str(trouble)

    def _finish(self) -> None:
        with self._lock:
            for name in list(self._streams):
                self._stop_stream(name)
            for path in self.spool.directory.glob(f"*{OPEN}"):
                path.unlink()

    def _open_path(self, stream: str) -> Path:
        return self.spool.directory / f"{hash_bytes(stream.encode()):016x}{OPEN}"

    def _note_open_epochs(self) -> None:
        """Write open epochs down, for the case that nobody gets to close them."""
        for name, stream in self._streams.items():
            if snapshots := stream.snapshots():
                try:
                    write_durably(self._open_path(name), encode(snapshots[-1]))
                except StoreError as error:
                    self._tell_trouble(error)
                    return

    def _noted(self, name: str) -> int | None:
        path = self._open_path(name)
        return decode(path.read_bytes()).sequence if path.exists() else None

    def _take_up_open_epochs(self) -> None:
        """After a crash: the epochs that were open become closed ones, as far as they were written down."""
        for path in self.spool.directory.glob(f"*{OPEN}"):
            try:
                epoch = decode(path.read_bytes())
                if epoch.sequence not in self.spool.sequences(epoch.stream):
                    self.spool.put(epoch)
                    self._report(
                        f"warning: the agent ended without closing stream {epoch.stream}; what it measured in the last "
                        f"seconds before is lost"
                    )
            except WireError as error:
                self._report(f"warning: {path.name} is damaged and was left out: {error}")
            path.unlink()

    def _send(self) -> None:
        """Empty the spool and look for new assignments, with growing pauses while that fails."""
        self._sender.run(self._stop, then=self._look_for_assignments)

    def _look_for_assignments(self) -> None:
        self.counts.sent = self._sender.sent
        self._announce_again()
        if time.monotonic() - self._looked >= ASSIGNMENTS_SECONDS:
            self._looked = time.monotonic()
            self._follow_assignments()

    def _follow_assignments(self) -> None:
        """Start, change and stop streams as the query unit says; those of the configuration stay."""
        _, tables = self._transport.assignments()
        wanted: dict[str, StreamConfiguration] = {}
        own = {stream.name for stream in self._configuration.streams}
        for name, table in tables.items():
            if name in own:
                continue
            try:
                wanted[name] = stream_of(name, table, where="assignment")
            except SojournError as error:
                self._report(f"warning: {error}")
        for name in list(self._assigned):
            if self._assigned[name] != wanted.get(name):
                del self._assigned[name]
                if name in self._streams:
                    self._stop_stream(name)
        for name, configuration in wanted.items():
            if name not in self._assigned:
                try:
                    self._start(configuration)
                    self._assigned[name] = configuration
                except SojournError as error:
                    self._report(f"warning: stream {name} cannot be recorded: {error}")

    def _answer(self) -> None:
        """Answer questions about open epochs, as long as the query unit can be reached."""
        reached = True
        while not self._stop.is_set():
            try:
                asked = self._transport.next_question(QUESTION_SECONDS)
                reached = True
                if asked is not None:
                    self._answer_one(asked)
            except (TransportError, RefusedError) as error:
                if reached and isinstance(error, TransportError):
                    # It may come back as another one, which knows nothing of the streams.
                    self._unannounced.update(list(self._streams))
                    reached = False
                pause_about(self._stop, FIRST_PAUSE_SECONDS)

    def _answer_one(self, asked: Asked) -> None:
        """Hand over what the query unit cannot have: the open epochs, then the waiting ones, the newest first."""
        with self._lock:
            self._poll()
            snapshots = [e for name in asked.streams if name in self._streams for e in self._streams[name].snapshots()]
            waiting = self.spool.newest(set(asked.streams), asked.from_ns, asked.to_ns)
        page: list[bytes] = []
        size = 0
        for epoch in (*reversed(snapshots), *waiting):
            data = encode(epoch)
            if page and (len(page) == BATCH_EPOCHS or size + len(data) > BATCH_BYTES):
                self._transport.answer(asked, page, more=True)
                page, size = [], 0
            page.append(data)
            size += len(data)
        self._transport.answer(asked, page)
