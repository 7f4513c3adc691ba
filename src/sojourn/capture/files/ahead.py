"""Batches read ahead by a thread: decoding of both points goes on while their packets are matched.

Order and content are those of the iterator that is read, so that answers do not depend on threads; what it raises is
raised where its batch is taken. Kernels work without the interpreter's lock, so that each point has a core of its own
where there is one. Memory: `depth` batches.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

from sojourn.core.arrays import PacketBatch

AHEAD_BATCHES = 4
_PATIENCE_SECONDS = 0.2


class ReadAhead:
    """One point's batches; the thread ends with the iterator, or after `close`."""

    def __init__(self, batches: Iterator[PacketBatch], *, depth: int = AHEAD_BATCHES) -> None:
        self.has_ended = False
        self._batches = batches
        self._waiting: queue.Queue[PacketBatch | BaseException | None] = queue.Queue(depth)
        self._closed = threading.Event()
        self._latest = time.monotonic()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for batch in self._batches:
                if not self._put(batch):
                    return
        except BaseException as error:  # raised again where it is taken
            self._put(error)
        self._put(None)

    def _put(self, item: PacketBatch | BaseException | None) -> bool:
        """Hand something on; False when nobody wants it any more."""
        while not self._closed.is_set():
            try:
                self._waiting.put(item, timeout=_PATIENCE_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def take(self, *, wait: bool = True) -> PacketBatch | None:
        """The next batch; None at the end (``has_ended``), or where there is none yet and it is not waited for."""
        try:
            item = self._waiting.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        self.has_ended = item is None
        self._latest = time.monotonic()
        return item

    @property
    def silent_seconds(self) -> float:
        """For how long nothing has come."""
        return 0.0 if self.has_ended else time.monotonic() - self._latest

    def close(self, *, wait: bool = True) -> None:
        """Read no further; `wait` until the thread is done with the iterator."""
        self._closed.set()
        if wait:
            self._thread.join()
