"""The node unit of an m-router: records inside the router and sends measurement state packets to the query unit.

Two loops: *recording* steps through intervals (`mplane.router.recorder`) and puts their epochs into the spool;
*sending* empties it. Without a transport the spool is where the epochs stay.

Every loss is reported: an epoch is on disk before it counts, and waits there while the query unit is away. Its
epochs cannot be merged (both sides would have to be, in the same way): when the spool is full, the oldest intervals are
given up, whole, and counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from sojourn.core.errors import UsageError
from sojourn.core.units import plural
from sojourn.epochs.epoch import Epoch
from sojourn.mplane.measurements import SegmentMeasurement
from sojourn.mplane.router.epochs import segment_measurements
from sojourn.mplane.router.recorder import RouterRecorder
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.sending import SpoolSender
from sojourn.node.transports.transport import Announcement, Transport

METRIC = "segment_delay"
LAST_SECONDS = 5.0

Report = Callable[[str], None]


class RouterUnit:
    """Records one router until stopped; without a spool nothing is kept."""

    def __init__(
        self, recorder: RouterRecorder, spool: Spool | None, transport: Transport | None, *, report: Report
    ) -> None:
        if spool is None and transport is not None:
            raise UsageError("sending needs a spool", where="router")
        self._recorder, self._spool, self._transport = recorder, spool, transport
        self._report = report
        self._lock = threading.RLock()
        self._stop, self._is_asked_to_stop = threading.Event(), False
        self._announced: set[str] = set()
        self._begun = time.monotonic(), time.process_time()
        self.given_up = 0
        self._sender: SpoolSender | None = None
        if spool is not None:
            spool.report_notices(report)
            if transport is not None:
                self._sender = SpoolSender(spool, transport, lock=self._lock, report=report)

    @property
    def sent(self) -> int:
        return 0 if self._sender is None else self._sender.sent

    @property
    def waiting(self) -> int:
        return 0 if self._spool is None else len(self._spool)

    @property
    def cpu_share(self) -> float:
        """How much of a CPU the process has used since it captures."""
        elapsed, used = time.monotonic() - self._begun[0], time.process_time() - self._begun[1]
        return used / max(elapsed, 1e-9)

    def stop(self) -> None:
        """Ask both loops to end; may be called from a signal handler, which must not wait for an event's lock."""
        self._is_asked_to_stop = True

    def run(self, *, seconds: float | None = None) -> Iterator[list[SegmentMeasurement]]:
        """Work until `stop` or for some seconds; the measurements as intervals close.

        In the end the open interval is closed and everything is sent, if that succeeds at once.
        """
        sending = threading.Thread(target=self._send, daemon=True)
        sending.start()
        try:
            with self._recorder as recorder:
                self._begun = time.monotonic(), time.process_time()
                deadline = None if seconds is None else self._begun[0] + seconds
                while not self._is_over() and (deadline is None or time.monotonic() < deadline):
                    yield self._keep(recorder.step())
                    self._stop.wait(max(0.0, (recorder.next_ns - time.time_ns()) / 1e9))
                yield self._keep(recorder.finish())
                for text in recorder.warnings:
                    self._report(f"warning: {text}")
        finally:
            self._stop.set()
            if self._transport is not None:
                self._transport.hurry(LAST_SECONDS)
            sending.join(LAST_SECONDS / 2)
            self._send_last()
            self._leave_spool()

    def _is_over(self) -> bool:
        return self._is_asked_to_stop or self._stop.is_set()

    def _keep(self, epochs: list[Epoch]) -> list[SegmentMeasurement]:
        for text in self._recorder.reports:
            self._report(f"warning: {text}")
        self._recorder.reports.clear()
        if epochs and self._spool is not None:
            with self._lock:
                for epoch in epochs:
                    self._spool.put(epoch)
                self._give_up_oldest(self._spool)
                self._spool.report_notices(self._report)
        return segment_measurements(epochs)

    def _give_up_oldest(self, spool: Spool) -> None:
        while spool.size_bytes > spool.limit_bytes:
            given_up = spool.give_up_oldest()
            if not given_up:
                return
            self.given_up += given_up
            self._report(
                f"warning: the spool is full; {plural(self.given_up, 'epoch')} of the oldest intervals given up"
            )

    def _send(self) -> None:
        if self._sender is not None:
            self._sender.run(self._stop, then=self._announce)

    def _announce(self) -> None:
        """Announce the streams that the query unit does not know yet."""
        if self._transport is None:
            return
        for name in self._recorder.stream_names():
            if name not in self._announced:
                self._transport.announce(Announcement(name, METRIC, "ns", "segment"))
                self._announced.add(name)

    def _send_last(self) -> None:
        if self._sender is None or self._spool is None:
            return
        try:
            self._sender.send_waiting()
            self._announce()
            if self._transport is not None:
                self._transport.leave()
        except Exception as error:
            self._report(
                f"warning: {plural(self.waiting, 'epoch waits', 'epochs wait')} in {self._spool.directory}: {error}"
            )

    def _leave_spool(self) -> None:
        if self._spool is not None:
            with self._lock:
                self._spool.end()
                self._spool.report_notices(self._report)
                self._spool.leave(self._report)
