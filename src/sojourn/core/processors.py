"""How many processors there are to work with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_MOST: ContextVar[int | None] = ContextVar("most_processors", default=None)


def usable_processors() -> int:
    """How many processors this process may run on, or as many as `at_most` leaves it."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = _MOST.get()
    return there if most is None else min(there, most)


@contextmanager
def at_most(processors: int) -> Iterator[None]:
    """Work in the block as if there were no more processors: others of its kind have the rest.

    >>> with at_most(1):
    ...     usable_processors()
    1
    """
    token = _MOST.set(processors)
    try:
        yield
    finally:
        _MOST.reset(token)
