"""Stand-ins for the solving of a window: processes import them by name."""

from __future__ import annotations

import time
from pathlib import Path

from limited_tasks import allocate
from sojourn.server.sinks.solving import SolvedWindow, solve_window

MUCH = 4 << 30


def fails(*_window: object) -> None:
    raise ZeroDivisionError("no luck")


def needs_memory(*_window: object) -> None:
    allocate(MUCH)


def never_ends(*_window: object) -> None:
    time.sleep(1000)


def waits(directory: str, *window: object) -> SolvedWindow:
    """Says that it has begun, and solves the window when it may."""
    (Path(directory) / "begun").touch()
    while not (Path(directory) / "go").exists():
        time.sleep(0.02)
    return solve_window(*window)  # type: ignore[arg-type]
