"""Single keys of a terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIT = "q"


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def single_keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for keys, and gives those pressed: without Enter, and not echoed.

    The terminal is as before when the block ends. A terminal that has gone is as if `QUIT` were pressed; where stdin is
    no terminal, no key ever comes.
    """
    if not sys.stdin.isatty():
        yield _no_key
        return
    terminal = sys.stdin.fileno()

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        if not ready:
            return ""
        return os.read(terminal, 64).decode(errors="ignore") or QUIT

    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
