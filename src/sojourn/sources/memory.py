"""Resident memory per process: the bytes of it that are in RAM when the source is polled.

Pages that processes share count for each of them. Kernel threads have no memory of their own and are left out.
The kernel keeps the number per CPU and adds it up roughly: it may be off by some hundred KiB per CPU.
Cost: one scan of the processes per poll (10 µs each), no privileges.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import ClassVar

from sojourn.core.batches import MeasurementBatch
from sojourn.sources.process_totals import measurements
from sojourn.sources.processes import ProcessDirectory, ProcessFiles
from sojourn.sources.source import Metric, Source, SourceBatch

__all__ = ["ResidentMemory"]

_NONE = "processes without memory of their own (kernel threads, ended ones)"


class ResidentMemory(Source[MeasurementBatch]):
    """Resident memory of each process at the time of the poll."""

    metric: ClassVar[Metric] = Metric("memory", "bytes", "process", "samples")

    def __init__(self) -> None:
        self._directory = ProcessDirectory()
        self._ignored: Counter[str] = Counter()
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def open(self) -> None:
        self._ignored.clear()
        with ProcessFiles.opened():
            pass  # a problem with /proc shows now, not at the first poll

    def close(self) -> None:
        """Nothing is kept open between polls."""

    @property
    def ignored(self) -> dict[str, int]:
        return dict(self._ignored)

    def poll(self, now_ns: int) -> SourceBatch[MeasurementBatch]:
        with ProcessFiles.opened() as files:
            processes = files.processes()
        present = [process for process in processes if process.resident_pages > 0]
        if len(present) < len(processes):
            self._ignored[_NONE] += len(processes) - len(present)
        ids = [self._directory.id_of(process) for process in present]
        values = [process.resident_pages * self._page_bytes for process in present]
        self._directory.keep({process.pid for process in present})
        return SourceBatch(measurements(ids, values, now_ns), self._directory.take_new())
