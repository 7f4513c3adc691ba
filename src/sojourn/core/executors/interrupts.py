"""Ctrl-C at a time that suits: not while processes start, nor inside libraries that take it for themselves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the block is done, and never reaches processes started in it: they inherit the mask.

    The mask is this thread's alone: the kernel may hand the signal to another thread, from which Python brings it to
    the main one. So the main thread's handler is held, too.
    """
    with handlers_held(signal.SIGINT):
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handlers_held(*signals: signal.Signals) -> Iterator[None]:
    """What Python does at these signals waits until the block is done; processes started in it get them as ever."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: handler for number in signals if callable(handler := signal.getsignal(number))}
    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for held in came:
            signal.raise_signal(held)


@contextmanager
def stopping_on_interrupt(stop: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C (or termination) stops and lets the answer come; a second one ends the program.

    Python handles signals in the main thread only: in another nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number, previous in before.items():
            signal.signal(number, previous)
        stop()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
