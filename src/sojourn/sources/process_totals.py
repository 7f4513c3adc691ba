"""Increments from counters that the kernel keeps per process: what each added since the last poll.

Guarantee: for a process that is there at both polls, the increments add up to its counter's difference exactly. One
that appeared in between counts from 0, as its counter did; one that took a number that another had is recognised by
its start time. What a process added after the last poll that saw it cannot be known once it has ended: such ends are
counted.
Memory: some 100 bytes per process.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter

import numpy as np

from sojourn.core.batches import MeasurementBatch
from sojourn.sources.processes import Process, ProcessDirectory, ProcessFiles
from sojourn.sources.source import Source, SourceBatch

__all__ = ["ENDED", "ProcessTotals", "measurements"]

ENDED = "processes that ended after a poll (what they did since is unknown)"
WENT_BACK = "counters that went back"


def measurements(ids: list[int], values: list[int], now_ns: int) -> MeasurementBatch:
    """One row per value, all of one time."""
    times = np.full(len(ids), now_ns, np.int64)
    return MeasurementBatch(np.array(ids, np.uint64), np.array(values, np.int64), times, np.zeros(len(ids), np.uint64))


class ProcessTotals(Source[MeasurementBatch]):
    """A source of one counter per process; a subclass reads it."""

    def __init__(self) -> None:
        self._directory = ProcessDirectory()
        self._ignored: Counter[str] = Counter()
        # Start time and counter at the last poll; None where the counter could not be read.
        self._last: dict[int, tuple[int, int | None]] = {}

    @abstractmethod
    def total(self, files: ProcessFiles, process: Process) -> int:
        """The process's counter now, in the metric's unit; an OSError when it cannot be read."""

    def open(self) -> None:
        """Remember where all counters stand."""
        self._last = {process.pid: (process.start, total) for process, total in self._scan()}
        self._ignored.clear()

    def close(self) -> None:
        self._last = {}

    @property
    def ignored(self) -> dict[str, int]:
        return dict(self._ignored)

    def poll(self, now_ns: int) -> SourceBatch[MeasurementBatch]:
        before, self._last = self._last, {}
        ids, values = [], []
        for process, total in self._scan():
            added = self._added(before.get(process.pid), process, total)
            self._last[process.pid] = (process.start, total)
            if added > 0:
                ids.append(self._directory.id_of(process))
                values.append(added)
        self._count_ended(before)
        self._directory.keep(self._last)
        return SourceBatch(measurements(ids, values, now_ns), self._directory.take_new())

    def _scan(self) -> list[tuple[Process, int | None]]:
        """All processes with their counters; None where there is no permission."""
        found: list[tuple[Process, int | None]] = []
        with ProcessFiles.opened() as files:
            for process in files.processes():
                try:
                    found.append((process, self.total(files, process)))
                except PermissionError:
                    self._ignored["processes without permission to read them"] += 1
                    found.append((process, None))
                except (OSError, ValueError, LookupError):
                    continue  # it ended while it was read
        return found

    def _added(self, last: tuple[int, int | None] | None, process: Process, total: int | None) -> int:
        if total is None:
            return 0
        if last is None or last[0] != process.start:
            return total
        if last[1] is None:
            return 0  # since when it counts is unknown
        if total < last[1]:
            self._ignored[WENT_BACK] += 1
            return 0
        return total - last[1]

    def _count_ended(self, before: dict[int, tuple[int, int | None]]) -> None:
        ended = sum(1 for pid, (start, _) in before.items() if self._last.get(pid, (-1,))[0] != start)
        if ended:
            self._ignored[ENDED] += ended
