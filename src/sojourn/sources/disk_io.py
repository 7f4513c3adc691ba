"""Disk IO operations per process: by the kernel's block tracepoint as root, by system calls otherwise.

================  ==============================================================  ========================
method            an operation is                                                 needs
================  ==============================================================  ========================
``tracepoint``    a read or write of data that the process hands to a disk        root, tracefs
``system_calls``  a read or write system call on anything (`SystemCalls`)         nothing; own processes
================  ==============================================================  ========================

Without a method the first that works here is taken, and a warning tells if it is the second.

By the tracepoint, each operation is one measurement of value 1 with its own time. What a process writes into the page
cache reaches the disk later, through the kernel's writeback threads, and counts for these (``kworker/…``); reads,
direct and synchronous writes count for the process. Flushes and discards carry no data and are counted in `ignored`.
So is what a mapped device (LVM, encryption, RAID, multipath) hands on to the disks below it, where it would be counted
again, often for a worker of the kernel: sysfs tells which disks and partitions are used by another device.
Cost: 0.8 µs per operation when polled, and 0.3 ms per poll; by system calls 20 µs per process and poll.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import BoolArray, Int64Array, MeasurementBatch, UInt64Array
from sojourn.core.errors import ParameterError, SourceError
from sojourn.sources.block_trace import DEFAULT_RING_KIB, BlockTrace, check_ring, tracefs_folder
from sojourn.sources.processes import NS_PER_TICK, Process, ProcessDirectory, ProcessFiles, ProcessTotals
from sojourn.sources.source import Metric, Source, SourceBatch

_MINOR_BITS = 20
_EVERYTHING = (0, 1 << 62)


def on_top(device: Int64Array, sector: Int64Array, root: str | Path = "/sys/dev/block") -> BoolArray:
    """For each IO (the kernel's device number, the sector from the start of the disk), if no device holds its place."""
    top: NDArray[np.bool_] = np.ones(len(device), np.bool_)
    for number in np.unique(device).tolist():
        folder = Path(root, f"{number >> _MINOR_BITS}:{number & ((1 << _MINOR_BITS) - 1)}")
        for start, end in _held(folder):
            top &= (device != number) | (sector < start) | (sector >= end)
    return top


def _held(folder: Path) -> list[tuple[int, int]]:
    """The sectors of a disk that another device stands on; a disk that is hidden is a path of another."""
    if not folder.is_dir() or _has_holders(folder):
        return [_EVERYTHING]
    held = []
    for partition in folder.glob("*/partition"):
        if _has_holders(partition.parent):
            start, size = (int((partition.parent / name).read_text()) for name in ("start", "size"))
            held.append((start, start + size))
    return held


def _has_holders(folder: Path) -> bool:
    try:
        return bool(os.listdir(folder / "holders"))
    except OSError:
        return False


class SystemCalls(ProcessTotals):
    """Read and write system calls of each process since the last poll."""

    metric: ClassVar[Metric] = Metric("disk_io", "operations", "process", "increments")

    def total(self, files: ProcessFiles, process: Process) -> int:
        fields = dict(line.split(b": ", 1) for line in files.read(process.pid, "io").splitlines())
        return int(fields[b"syscr"]) + int(fields[b"syscw"])


Method = Literal["tracepoint", "system_calls"]
OVERRUN = "operations overwritten before they were read"
_DAMAGED = "damaged trace pages"
_METRIC = Metric("disk_io", "operations", "process", "increments")
_MOST_KNOWN = 1 << 14
_FLUSH, _READ, _WRITE = (ord(letter) for letter in "FRW")


class TracedDiskIo(Source[MeasurementBatch]):
    """Block IO of each process, from the tracepoint."""

    metric: ClassVar[Metric] = _METRIC

    def __init__(self, *, ring_kib: int = DEFAULT_RING_KIB) -> None:
        self._ring_kib = ring_kib
        self._trace: BlockTrace | None = None
        self._directory = ProcessDirectory()
        self._ignored: Counter[str] = Counter()

    def open(self) -> None:
        self._ignored.clear()
        self._trace = BlockTrace(tracefs_folder(), ring_kib=self._ring_kib)
        self._trace.open()

    def close(self) -> None:
        if self._trace is not None:
            self._trace.close()
            self._count_losses(self._trace)
            self._trace = None

    @property
    def ignored(self) -> dict[str, int]:
        return dict(self._ignored)

    @property
    def warnings(self) -> list[str]:
        lost = self._ignored[OVERRUN]
        return [f"disk_io: {lost:,} {OVERRUN}; poll more often, or use a larger ring_kib"] if lost else []

    def poll(self, now_ns: int) -> SourceBatch[MeasurementBatch]:  # noqa: ARG002 - operations have their own times
        if self._trace is None:
            raise SourceError("is not open", where="disk_io", action="use it in a with statement")
        events = self._trace.read()
        self._count_losses(self._trace)
        operations = self._operations(events)
        ids = self._instance_ids(operations, self._trace)
        count = len(operations)
        unix_minus_boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        batch = MeasurementBatch(
            ids, np.ones(count, np.int64), operations["time_ns"] + unix_minus_boot, np.zeros(count, np.uint64)
        )
        return SourceBatch(batch, self._directory.take_new())

    def _count_losses(self, trace: BlockTrace) -> None:
        self._ignored.update({OVERRUN: trace.overruns - self._ignored[OVERRUN]})
        self._ignored.update({_DAMAGED: trace.damaged - self._ignored[_DAMAGED]})
        self._ignored = +self._ignored

    def _operations(self, events: NDArray[np.void]) -> NDArray[np.void]:
        """The reads and writes of data at the top of the stack of devices; the others are counted."""
        letter = np.where(events["what"][:, 0] == _FLUSH, events["what"][:, 1], events["what"][:, 0])
        moves_data = ((letter == _READ) | (letter == _WRITE)) & (events["sectors"] > 0)
        top = on_top(events["device"], events["sector"])
        self._ignored["flushes, discards and other operations without data"] += int(np.count_nonzero(~moves_data & top))
        self._ignored["operations below a mapped device (counted there)"] += int(np.count_nonzero(~top))
        self._ignored = +self._ignored
        wanted: NDArray[np.void] = events[moves_data & top]
        return wanted

    def _instance_ids(self, operations: NDArray[np.void], trace: BlockTrace) -> UInt64Array:
        """The ids of the operations' processes; each thread is looked up once."""
        threads, positions = np.unique(operations["tid"], return_inverse=True)
        last = np.zeros(len(threads), np.int64)
        last[positions] = np.arange(len(operations))  # a later assignment wins: the last operation of each
        with ProcessFiles.opened() as files:
            finder = _ProcessFinder(files, trace)
            found = [finder.find(operations[row]) for row in last.tolist()]
        if len(self._directory) > _MOST_KNOWN:
            self._directory.keep(())  # most have ended; those that have not are reported anew
        ids = np.array([self._directory.id_of(process) for process in found], np.uint64)
        return ids[positions]


class _ProcessFinder:
    """Whose process a thread is, or was: ended ones have the name that they had at their last operation."""

    def __init__(self, files: ProcessFiles, trace: BlockTrace) -> None:
        self._files, self._trace = files, trace
        self._ended: dict[int, int] | None = None

    def find(self, operation: np.void) -> Process:
        tid, comm = int(operation["tid"]), operation["comm"].tobytes().partition(b"\0")[0]
        # A thread that started after its operation has only taken over the number.
        latest_start = int(operation["time_ns"]) // NS_PER_TICK + 1
        thread = self._files.process(tid)
        is_same = thread is not None and thread.start <= latest_start
        leader = self._leader(tid) if is_same else self._leader_of_ended(tid)
        process = thread if leader == tid and is_same else self._files.process(leader)
        if process is not None and process.start <= latest_start:
            return process
        return Process(leader, comm, 0, 0, 0)

    def _leader(self, tid: int) -> int:
        try:
            status = self._files.read(tid, "status")
            return int(status.partition(b"\nTgid:")[2].split(None, 1)[0])
        except (OSError, ValueError, IndexError):
            return tid

    def _leader_of_ended(self, tid: int) -> int:
        if self._ended is None:
            self._ended = self._trace.processes_of_ended_threads()
        return self._ended.get(tid, tid)


class DiskIo(Source[MeasurementBatch]):
    """Disk IO by the best method that works here, or by a given one."""

    metric: ClassVar[Metric] = _METRIC

    def __init__(self, *, method: Method | None = None, ring_kib: int = DEFAULT_RING_KIB) -> None:
        if method not in (None, "tracepoint", "system_calls"):
            raise ParameterError(f"method is {method!r}", where="disk_io", action="use tracepoint or system_calls")
        check_ring(ring_kib)
        self._asked = method
        self._ring_kib = ring_kib
        self._source: TracedDiskIo | SystemCalls = SystemCalls()
        self._warning = ""

    @property
    def method(self) -> Method:
        """The method in use."""
        return "tracepoint" if isinstance(self._source, TracedDiskIo) else "system_calls"

    @property
    def memory_bytes(self) -> int:
        """The kernel's rings, one for each CPU."""
        return 0 if self._asked == "system_calls" else 1024 * self._ring_kib * (os.cpu_count() or 1)

    def open(self) -> None:
        self._warning = ""
        if self._asked != "system_calls":
            try:
                self._source = TracedDiskIo(ring_kib=self._ring_kib)
                self._source.open()
            except SourceError as error:
                if self._asked is not None:
                    raise
                self._warning = f"disk_io: counting system calls, not disk operations ({error})"
            else:
                return
        self._source = SystemCalls()
        self._source.open()

    def close(self) -> None:
        self._source.close()

    def poll(self, now_ns: int) -> SourceBatch[MeasurementBatch]:
        return self._source.poll(now_ns)

    @property
    def ignored(self) -> dict[str, int]:
        return self._source.ignored

    @property
    def warnings(self) -> list[str]:
        return [*([self._warning] if self._warning else []), *self._source.warnings]
