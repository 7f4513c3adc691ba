"""How an agent's streams fare: which run, which failed and why, and when those are tried again.

A stream that fails is tried again after a pause that doubles up to a minute, and begins anew once the stream has run
for a minute. Each reason is worth a report once, until the stream has been recorded again.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from sojourn.node.transports.sending import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from sojourn.node.transports.transport import StreamState

MOST_REASON = 300
# What is said of a stream that will be started in a moment.
NOT_STARTED = "not started yet"
# Reasons that differ in their numbers alone are one.
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789.,"))


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line.

    >>> reason_of(MemoryError())
    'MemoryError'
    """
    text = " ".join(str(error).split())[:MOST_REASON]
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return text or type(error).__name__


@dataclass
class _Life:
    """One stream's present state, and what is known for the next try."""

    state: StreamState
    pause: float = FIRST_PAUSE_SECONDS
    due: float = 0.0
    reported: str = ""


class StreamStates:
    """The states of all streams; safe from several threads. ``version`` grows with every change."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._lock = threading.Lock()
        self.version = 0

    def now(self) -> dict[str, StreamState]:
        """The state of each stream."""
        with self._lock:
            return {name: life.state for name, life in self._lives.items()}

    def due(self) -> list[str]:
        """The streams that do not run and are to be tried now."""
        with self._lock:
            now = time.monotonic()
            return [name for name, life in self._lives.items() if not life.state.is_running and life.due <= now]

    def want(self, name: str) -> None:
        """A stream is to be started as soon as possible."""
        with self._lock:
            self._lives[name] = _Life(StreamState(time.time_ns(), NOT_STARTED))
            self.version += 1

    def forget(self, name: str) -> None:
        """A stream is no longer wanted."""
        with self._lock:
            self._lives.pop(name, None)
            self.version += 1

    def started(self, name: str) -> None:
        """A stream was opened; one that had failed has yet to be polled well."""
        with self._lock:
            life = self._lives.setdefault(name, _Life(StreamState(time.time_ns())))
            if not life.reported:
                life.state = StreamState(time.time_ns())
                self.version += 1

    def proved(self, name: str) -> bool:
        """A stream was polled well; whether its failure had been reported, and this is worth a report."""
        with self._lock:
            life = self._lives.get(name)
            if life is None or not life.reported:
                return False
            life.state, life.reported = StreamState(time.time_ns()), ""
            self.version += 1
            return True

    def failed(self, name: str, reason: str) -> bool:
        """A stream failed, or could not be started; whether that has not been reported yet."""
        with self._lock:
            life = self._lives.setdefault(name, _Life(StreamState(time.time_ns())))
            ran = life.state.is_running and time.time_ns() - life.state.since_ns > LONGEST_PAUSE_SECONDS * 1e9
            life.pause = FIRST_PAUSE_SECONDS if ran else min(2 * life.pause, LONGEST_PAUSE_SECONDS)
            life.due = time.monotonic() + life.pause
            if life.state.reason != reason:
                life.state = StreamState(time.time_ns(), reason)
                self.version += 1
            kind = reason.translate(_NO_DIGITS)
            is_new = life.reported != kind
            life.reported = kind
            return is_new
