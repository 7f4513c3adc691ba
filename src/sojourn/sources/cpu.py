"""CPU time per process: user and system time of all its threads, in ns.

Guarantee: the kernel shows CPU time in clock ticks (10 ms), so the sum of a process's increments is within one tick
of the truth however often it is polled. Children count for themselves.
Cost: one scan of the processes per poll (10 µs each), no privileges.
"""

from __future__ import annotations

from typing import ClassVar

from sojourn.sources.process_totals import ProcessTotals
from sojourn.sources.processes import NS_PER_TICK, Process, ProcessFiles
from sojourn.sources.source import Metric

__all__ = ["CpuTime"]


class CpuTime(ProcessTotals):
    """CPU time that each process used since the last poll."""

    metric: ClassVar[Metric] = Metric("cpu", "ns", "process", "increments")

    def total(self, files: ProcessFiles, process: Process) -> int:  # noqa: ARG002
        return process.cpu_ticks * NS_PER_TICK
