"""Waiting for what must happen, however busy the machine: for conditions, never for so long."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PATIENCE_SECONDS", "eventually"]

PATIENCE_SECONDS = 120.0


def eventually(
    condition: Callable[[], object],
    told: Callable[[], object] | str = "it did not happen in time",
    *,
    pause: float = 0.05,
) -> None:
    """Wait until a condition holds; only a machine that stands still makes this fail."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, told() if callable(told) else told
        time.sleep(pause)
