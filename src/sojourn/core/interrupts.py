"""Ctrl-C at a time that suits: not while processes start, nor inside libraries that take it for themselves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupts_held"]


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the block is done, and never reaches processes started in it: they inherit the mask.

    The mask is this thread's alone: the kernel may hand the signal to another thread, from which Python brings it to
    the main one. So the main thread's handler only notes it meanwhile.
    """
    came: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        came.append(signum)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.getsignal(signal.SIGINT)
    noted = threading.current_thread() is threading.main_thread() and callable(handler)
    try:
        if noted:
            signal.signal(signal.SIGINT, note)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if noted:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)
