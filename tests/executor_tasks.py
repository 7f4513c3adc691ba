"""Functions for executors to map: workers import them by name."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

from sojourn.core.errors import InputError


def square(number: int) -> int:
    return number * number


def slow_first(number: int) -> int:
    """Later pieces are done long before the first."""
    time.sleep(0.3 if number == 0 else 0)
    return number


def process_of(_number: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def fails_at_three(number: int) -> int:
    if number == 3:
        raise InputError("three is no number", where="piece 3", action="use another")
    return number


class HomeboundError(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def fails_strangely(_number: int) -> int:
    raise HomeboundError("stays here")


def gives_a_lock(_number: int) -> object:
    return threading.Lock()


def sleeps(number: int) -> int:
    time.sleep(300)
    return number


class DiesOnce:
    """The first worker to do piece 2 is killed in the middle of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, number: int) -> int:
        if number == 2:
            try:
                (self._folder / "died").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return number


def always_dies(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


class Table:
    """Holds a large array, and counts in a folder how often it was unpickled."""

    def __init__(self, folder: Path, values: np.ndarray) -> None:
        self._folder, self.values = folder, values

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        (self._folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()

    def __call__(self, number: int) -> int:
        time.sleep(0.02)
        return int(self.values[number])
