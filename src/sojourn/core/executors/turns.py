"""A lock whose waiters get it in the order in which they came.

Python's own may go to the thread that has just released it, again and again: work done in many short pieces would keep
everybody else waiting as long as if it were one.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """A context manager for several threads; `TimeoutError` where the lock does not come in time."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._state = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._state:
            if not self._is_taken:
                self._is_taken = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        if turn.wait(self._seconds):
            return
        with self._state:
            if not turn.is_set():  # else it was handed over at the last moment
                self._waiting.remove(turn)
                raise TimeoutError

    def __exit__(self, *_: object) -> None:
        with self._state:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False
