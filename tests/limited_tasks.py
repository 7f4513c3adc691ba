"""Functions for processes with limits: they are imported there by name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from sojourn.core.errors import InputError
from sojourn.core.executors.limited import LimitedProcess, ProcessLimits


def echo(value: object) -> object:
    return value


def allocate(count: int) -> int:
    """Memory that is used, not only reserved."""
    return len(bytearray(b"x") * count)


def keep_lock(path: str) -> None:
    """One call of native code, which keeps the interpreter lock for many seconds."""
    Path(path).touch()
    pow(7, 10**9)


def spin() -> None:
    while True:
        pass


def fail(text: str) -> None:
    raise InputError(text, where="a task", action="use another")


def leave_behind(count: int) -> int:
    """A process that has grown and does not give its memory back."""
    globals()["left"] = np.ones(count // 8)
    return os.getpid()


def own_a_process(path: str) -> None:
    """A parent that is killed while its process works, and one that it has."""
    inner = LimitedProcess(ProcessLimits(seconds=1000, memory_bytes=1 << 30))
    Path(path).write_text(str(inner.call(os.getpid)))
    inner.call(time.sleep, 1000)
