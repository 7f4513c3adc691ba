"""The agent: measures, closes epochs, spools and sends them, and answers about the current one.

Three loops, one thread each: *recording* polls the sources; *sending* empties the spool, oldest first, and waits longer
after each failure; *answering* waits for questions about open epochs. They share the streams and the spool under one
lock, which nobody holds while waiting for the network.

Nothing is lost without a word: closed epochs are on disk before they count as closed; open ones are written down every
few seconds (`checkpoint`) and taken up after a crash as they were then. What was merged, refused or lost is reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sojourn.core.errors import SojournError, WireError
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
from sojourn.node.transport import Announcement, RefusedError, Transport, TransportError
from sojourn.sources.registry import source_type

__all__ = ["Agent", "AgentCounts"]

CHECKPOINT_NS = 5_000_000_000
ASSIGNMENTS_SECONDS = 30.0
QUESTION_SECONDS = 20.0

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

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:
            self._report(f"a fault of ours, please report it ({type(error).__name__}: {error})")
            self._stop.set()

    def _start(self, configuration: StreamConfiguration) -> None:
        """Open a stream; its numbers go on after the highest that is known anywhere."""
        name = configuration.name
        stored = self._announce(configuration)
        with self._lock:
            last = max(
                (n for n in (stored, self.spool.last_sequence(name), self._noted(name)) if n is not None), default=-1
            )
            stream = AgentStream(self._configuration.node, configuration, first_sequence=last + 1)
            stream.open()
            self._streams[name] = stream

    def _announce(self, configuration: StreamConfiguration) -> int | None:
        metric = source_type(configuration.metric).metric
        announcement = Announcement(configuration.name, metric.name, metric.unit, metric.granularity)
        try:
            return self._transport.announce(announcement)
        except TransportError as error:
            self._report(f"warning: {error}; recording goes on, epochs wait in the spool")
            return None

    def _stop_stream(self, name: str) -> None:
        with self._lock:
            stream = self._streams.pop(name)
            self._close(stream.finish())
            stream.close()

    def _record(self) -> None:
        """Poll all streams at a steady pace."""
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

    def _poll(self) -> None:
        """Record what all sources have, and spool the epochs that it closes."""
        now_ns = time.time_ns()
        for stream in self._streams.values():
            self._close(stream.poll(now_ns))

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
                write_durably(self._open_path(name), encode(snapshots[-1]))

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
        while not self._stop.is_set():
            try:
                asked = self._transport.next_question(QUESTION_SECONDS)
                if asked is None:
                    continue
                with self._lock:
                    self._poll()
                    waiting = [e.epoch for e in self.spool.oldest(BATCH_EPOCHS, most_bytes=BATCH_BYTES)]
                    snapshots = [
                        e for name in asked.streams if name in self._streams for e in self._streams[name].snapshots()
                    ]
                unsent = [epoch for epoch in waiting if epoch.stream in asked.streams]
                self._transport.answer(asked, [encode(epoch) for epoch in (*unsent, *snapshots)])
            except (TransportError, RefusedError):
                pause_about(self._stop, FIRST_PAUSE_SECONDS)
