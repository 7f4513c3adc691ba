"""Timing: best of several runs on one core, after a warm-up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

__all__ = ["best_seconds", "use_one_core"]


def use_one_core() -> None:
    """Pin this process to a single core."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})


def best_seconds(run: Callable[[], object], repetitions: int = 5) -> float:
    """The shortest of several runs: what the machine can do when nothing else disturbs it."""
    run()
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
