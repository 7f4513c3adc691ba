"""The demonstration's data directory: one demonstration at a time, begun anew each time.

Guarantee: nothing is removed but what an earlier demonstration made: a directory with other files in it is refused.
What a killed demonstration left behind (processes, namespaces, instances of the kernel's tracing) is recognised by
process numbers and start times, and ended or removed before the next one begins, and again at the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sojourn.core.errors import SojournError, StoreError, UsageError
from sojourn.lab.namespaces import check_can_build, is_alive, remove_leftovers, start_time
from sojourn.lab.routed.state import remove_stale_labs
from sojourn.sources import block_trace

MARK = "demo.json"
MOST_MARK_BYTES = 100_000
GONE_SECONDS = 5.0
OTHER = "give another one with --data DIR"


class DemoPlace:
    """A directory that is this demonstration's until its context ends."""

    def __init__(self, directory: Path, mark: IO[str]) -> None:
        self.directory = directory
        self._mark = mark

    def note(self, pids: list[int]) -> None:
        """Write down the processes that run, for whoever comes after a demonstration that was killed."""
        self._mark.seek(0)
        self._mark.truncate()
        json.dump({"processes": [[pid, start_time(pid)] for pid in pids]}, self._mark)
        self._mark.flush()

    def end_noted(self) -> None:
        """End the processes that an earlier demonstration wrote down, as far as they still are what they were."""
        self._mark.seek(0)
        left = [pid for pid, started in _noted(self._mark.read(MOST_MARK_BYTES)) if start_time(pid) == started > 0]
        deadline = time.monotonic() + GONE_SECONDS
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
            while (left := [pid for pid in left if is_alive(pid)]) and time.monotonic() < deadline:
                time.sleep(0.05)


@contextmanager
def claimed(directory: Path) -> Iterator[DemoPlace]:
    """Make the directory, or empty that of an earlier demonstration; nobody else has it until the end."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (directory / MARK).exists() and any(directory.iterdir()):
            raise UsageError("it has files that are not of a demo", where=str(directory), action=OTHER)
        with open(directory / MARK, "a+", encoding="utf-8") as mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    "a demo is running here", where=str(directory), action=f"stop it, or {OTHER}"
                ) from None
            place = DemoPlace(directory, mark)
            place.end_noted()
            remove_what_was_left()
            _empty(directory)
            place.note([])
            try:
                yield place
            finally:
                place.note([])
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith(str(directory)):
            raise
        raise StoreError(f"cannot be written: {error.strerror}", where=str(directory), action=OTHER) from None


def remove_what_was_left() -> None:
    """Remove labs and tracing instances of processes that are no more; that takes root, and so does making them."""
    if os.geteuid() != 0:
        return
    with suppress(SojournError):
        check_can_build()
        remove_leftovers()
        remove_stale_labs()
    with suppress(SojournError):
        block_trace.remove_leftovers(block_trace.tracefs_folder())


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name == MARK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _noted(text: str) -> list[tuple[int, int]]:
    try:
        found: Any = json.loads(text)["processes"]
        return [(int(pid), int(started)) for pid, started in found]
    except (ValueError, KeyError, TypeError):
        return []
