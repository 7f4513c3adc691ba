"""A source that nobody has to wait for: its calls run in a thread of its own.

Guarantee: `open`, `take` and `close` return after the time that the caller gives, whatever the source does: it may
wait for a disk that does not answer, or for ever. What it raises, of any kind, is raised to the caller. A source that
was given up is closed as soon as its call returns, if it ever does; `is_busy` tells that it has not.
Cost: a thread for each source, some 50 µs for each call.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from sojourn.core.errors import SourceError
from sojourn.sources.registry import AnySource
from sojourn.sources.source import SourceBatch

# A first poll may compile for a while; one that takes longer never comes back.
SILENT_SECONDS = 60.0
# Opening compiles more than anything else.
OPENING_SECONDS = 120.0
_LOOK_SECONDS = 0.1


class _Call:
    """One call under way, and then what became of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:
            # Even a plug-in that wants to end the program ends only its own stream.
            self._error = error
        self._done.set()

    def wait(self, seconds: float) -> bool:
        return self._done.wait(seconds)

    def result(self, name: str) -> Any:
        error = self._error
        if error is None:
            return self._value
        if isinstance(error, Exception):
            raise error
        raise SourceError(f"its source raised {type(error).__name__}", where=f"stream {name}")


class WatchedSource:
    """A source of any metric behind a thread; used from one thread at a time."""

    def __init__(self, source: AnySource, *, name: str) -> None:
        self._source = source
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._polling: _Call | None = None
        self._asked_at = 0.0
        self._is_late = False

    @property
    def is_busy(self) -> bool:
        """Whether the thread is still there."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def ignored(self) -> dict[str, int]:
        return self._source.ignored

    @property
    def warnings(self) -> list[str]:
        return self._source.warnings

    def open(self, *, is_over: Callable[[], bool] = lambda: False, seconds: float = OPENING_SECONDS) -> None:
        """Open the source; gives it up after some seconds, or as soon as `is_over`."""
        self._thread = threading.Thread(target=self._work, name=f"source {self._name}", daemon=True)
        self._thread.start()
        opening = self._begin(self._open)
        deadline = time.monotonic() + seconds
        while not opening.wait(_LOOK_SECONDS):
            if is_over() or time.monotonic() > deadline:
                self.close(seconds=0.0)
                raise SourceError("its source could not be opened in time", where=f"stream {self._name}")
        try:
            opening.result(self._name)
        except BaseException:
            self._calls.put(None)
            raise

    def _open(self) -> None:
        try:
            self._source.open()
        except BaseException:
            self._source.close()
            raise

    def ask(self, now_ns: int) -> None:
        """Have the source polled, unless it is being polled already."""
        if self._polling is None:
            self._asked_at = time.monotonic()
            self._polling = self._begin(lambda: (self._source.poll(now_ns), now_ns))

    def take(self, seconds: float) -> tuple[SourceBatch[Any], int] | None:
        """What the poll found, and its time; None if that takes longer, of which the first time alone is waited for."""
        polling = self._polling
        if polling is None:
            return None
        if not polling.wait(0.0 if self._is_late else seconds):
            self._is_late = True
            if time.monotonic() - self._asked_at > SILENT_SECONDS:
                raise SourceError(f"its source has not answered for {SILENT_SECONDS:g} s", where=f"stream {self._name}")
            return None
        self._polling, self._is_late = None, False
        found: tuple[SourceBatch[Any], int] = polling.result(self._name)
        return found

    def close(self, *, seconds: float) -> None:
        """Close the source, and end its thread as soon as it returns; raises what closing raised within the time."""
        if not self.is_busy:
            return
        closing = self._begin(self._source.close)
        self._calls.put(None)
        if closing.wait(seconds):
            closing.result(self._name)

    def _begin(self, function: Callable[[], Any]) -> _Call:
        call = _Call(function)
        self._calls.put(call)
        return call

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
