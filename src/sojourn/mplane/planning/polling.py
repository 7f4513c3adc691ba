"""Looking again and again: at a network that may change, at measurements that go on coming."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sojourn.core.errors import SojournError

__all__ = ["Patience", "repeatedly"]

_Seen = TypeVar("_Seen")
_WAKE_SECONDS = 0.1


@dataclass
class Patience:
    """How often to look (ns), for how long (None: for ever), and whether someone has had enough."""

    every_ns: int
    for_ns: int | None = None
    is_over: bool = False

    def stop(self) -> None:
        """End soon; may be called from a signal handler."""
        self.is_over = True


def repeatedly(
    look: Callable[[], _Seen], patience: Patience, told: Callable[[SojournError], None] | None = None
) -> Iterator[_Seen]:
    """What is seen at every look; at least one is taken.

    What the first look raises passes through. Where a later one fails nothing is given, and `told` hears of the first
    of such looks in a row.
    """
    end = math.inf if patience.for_ns is None else time.monotonic_ns() + patience.for_ns
    is_silent, has_seen = False, False
    while True:
        try:
            seen = look()
        except SojournError as error:
            if not has_seen:
                raise
            if not is_silent and told is not None and not patience.is_over:
                told(error)
            is_silent = True
        else:
            is_silent, has_seen = False, True
            yield seen
        due = min(time.monotonic_ns() + patience.every_ns, end)
        while not patience.is_over and (left := (due - time.monotonic_ns()) / 1e9) > 0:
            time.sleep(min(left, _WAKE_SECONDS))
        if patience.is_over or due == end:
            return
