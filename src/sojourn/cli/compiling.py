"""Words for the seconds in which a first run compiles its kernels."""

from __future__ import annotations

import os
import sys
import time

from sojourn.core.compiling import CompileStep, cache_directory

__all__ = ["CompileNotice"]

# What is shorter is not worth a line; then a line now and again, so that nobody thinks it hangs.
SILENT_SECONDS, REPEAT_SECONDS = 1.0, 10.0


class CompileNotice:
    """Says on stderr that kernels are compiled and how far it is; SOJOURN_QUIET=1 silences it."""

    def __init__(self) -> None:
        self._began = self._next = 0.0
        self._done = 0

    def __call__(self, step: CompileStep) -> None:
        now = time.monotonic()
        if not self._began:
            self._began, self._next = now, now + SILENT_SECONDS
        self._done += step.is_done
        if now < self._next or os.environ.get("SOJOURN_QUIET"):
            return
        if self._next == self._began + SILENT_SECONDS:
            print(f"sojourn: compiling for this machine, half a minute or so; {_kept()}", file=sys.stderr, flush=True)
        else:
            seconds = now - self._began
            print(f"sojourn: compiled {self._done} functions in {seconds:.0f} s", file=sys.stderr, flush=True)
        self._next = now + REPEAT_SECONDS


def _kept() -> str:
    if (found := cache_directory()) is None:
        return "every run does it anew, as nothing can be kept: set SOJOURN_CACHE_DIR to a directory"
    return f"the next run finds it in {found} (`sojourn warm-up` does it for all commands)"
