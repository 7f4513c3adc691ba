"""What an agent tells its query unit beside epochs: how its streams fare, and how it fares itself.

It tells when a stream's state changes, and once a minute what waits in its spool, what its clock does and what it is.
While much waits it tells before it sends, so that what is seen is not always an empty spool. A query unit of an earlier
version, which knows no agents' reports, gets the streams' states alone.

Cost: one message a minute.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from sojourn import __version__
from sojourn.node.agent.clock import kernel_clock
from sojourn.node.agent.stream_states import StreamStates, reason_of
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.sending import BATCH_EPOCHS
from sojourn.node.transports.transport import AgentReport, RefusedError, Transport, UnacceptableError

REPORT_SECONDS = 60.0
_TOLD, _UNKNOWN_STATUS = 200, 404


@cache
def system_text() -> str:
    """What an agent runs on.

    >>> "Python" in system_text()
    True
    """
    python = f"{platform.python_implementation().replace('CPython', 'Python')} {platform.python_version()}"
    return f"{platform.system()} {platform.release()} {platform.machine()}, {python}"[:_TOLD]


class StateReporter:
    """Belongs to one agent; `tell` and `tell_before` are called by the thread that sends. The spool has the `lock`."""

    def __init__(
        self,
        transport: Transport,
        states: StreamStates,
        spool: Spool,
        *,
        lock: threading.RLock,
        clock: Callable[[], int],
    ) -> None:
        self._transport, self._states, self._spool = transport, states, spool
        self._lock, self._clock = lock, clock
        self._started_ns = clock()
        self._told_version = -1
        self._told = float("-inf")
        self._tells_itself = True

    def forget(self) -> None:
        """The query unit may be another one, which was told nothing."""
        self._told_version, self._told, self._tells_itself = -1, float("-inf"), True

    def tell_before(self) -> None:
        """Tell before a batch is sent, if there is more to come; what it answers is seen when that is sent."""
        if not self._is_due():
            return
        with self._lock:
            is_much = len(self._spool) > BATCH_EPOCHS
        if is_much:
            with suppress(RefusedError):
                self.tell()

    def tell(self) -> None:
        """Tell if something has changed, or it is time."""
        version = self._states.version
        if version == self._told_version and not self._is_due():
            return
        try:
            self._report()
        except RefusedError as error:
            if error.status != _UNKNOWN_STATUS:  # an earlier query unit, which does not ask
                raise
        self._told_version, self._told = version, time.monotonic()

    def _is_due(self) -> bool:
        return self._tells_itself and time.monotonic() - self._told >= REPORT_SECONDS

    def _report(self) -> None:
        states = self._states.now()
        if self._tells_itself:
            try:
                return self._transport.report_states(states, self._about())
            except UnacceptableError:
                self._tells_itself = False
        return self._transport.report_states(states)

    def _about(self) -> AgentReport:
        clock = kernel_clock()
        with self._lock:
            trouble, waiting, size = self._spool.trouble, len(self._spool), self._spool.size_bytes
        return AgentReport(
            version=__version__,
            system=system_text(),
            started_ns=self._started_ns,
            time_ns=self._clock(),
            spool_epochs=waiting,
            spool_bytes=size,
            spool_limit_bytes=self._spool.limit_bytes,
            spool_trouble=None if trouble is None else reason_of(trouble),
            synchronised=None if clock is None else clock.synchronised,
            clock_error_ns=None if clock is None else clock.error_ns,
        )
