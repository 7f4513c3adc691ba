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
Cost: 2 µs per operation when polled, and 0.3 ms per poll; by system calls 20 µs per process and poll.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from sojourn.core.errors import ParameterError, SourceError
from sojourn.core.measurements import Measurements
from sojourn.sources.block_trace import DEFAULT_RING_KIB, BlockIo, BlockTrace, check_ring, tracefs_folder
from sojourn.sources.processes import NS_PER_TICK, Process, ProcessDirectory, ProcessFiles, ProcessTotals
from sojourn.sources.source import Metric, Source, SourceBatch

if TYPE_CHECKING:
    from sojourn.core.arrays import MeasurementBatch

_MINOR_BITS = 20
_EVERYTHING = (0, 1 << 62)


class Devices:
    """Which places of which disks another device stands on, as sysfs has it; each device is looked up once."""

    def __init__(self, root: str | Path = "/sys/dev/block") -> None:
        self._root = root
        self._held: dict[int, list[tuple[int, int]]] = {}

    def is_top(self, device: int, sector: int) -> bool:
        """Of an IO (the kernel's device number, the sector from the disk's start): if no device holds its place."""
        held = self._held.get(device)
        if held is None:
            folder = Path(self._root, f"{device >> _MINOR_BITS}:{device & ((1 << _MINOR_BITS) - 1)}")
            held = self._held[device] = _held(folder)
        return not any(start <= sector < end for start, end in held)


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
_FLUSH, _MOVES_DATA = b"F", (b"R", b"W")


class TracedDiskIo(Source["MeasurementBatch"]):
    """Block IO of each process, from the tracepoint."""

    metric: ClassVar[Metric] = _METRIC
    has_columns = False

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
        unix_minus_boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        times = [operation.time_ns + unix_minus_boot for operation in operations]
        return SourceBatch(Measurements(ids, [1] * len(ids), times), self._directory.take_new())

    def _count_losses(self, trace: BlockTrace) -> None:
        self._ignored.update({OVERRUN: trace.overruns - self._ignored[OVERRUN]})
        self._ignored.update({_DAMAGED: trace.damaged - self._ignored[_DAMAGED]})
        self._ignored = +self._ignored

    def _operations(self, events: list[BlockIo]) -> list[BlockIo]:
        """The reads and writes of data at the top of the stack of devices; the others are counted."""
        devices, wanted = Devices(), []
        below = without_data = 0
        for event in events:
            letter = event.what[1:2] if event.what[:1] == _FLUSH else event.what[:1]
            if not devices.is_top(event.device, event.sector):
                below += 1
            elif letter in _MOVES_DATA and event.sectors:
                wanted.append(event)
            else:
                without_data += 1
        self._ignored["flushes, discards and other operations without data"] += without_data
        self._ignored["operations below a mapped device (counted there)"] += below
        self._ignored = +self._ignored
        return wanted

    def _instance_ids(self, operations: list[BlockIo], trace: BlockTrace) -> list[int]:
        """The ids of the operations' processes; each thread is looked up once, by its last operation."""
        last = {operation.tid: operation for operation in operations}
        with ProcessFiles.opened() as files:
            finder = _ProcessFinder(files, trace)
            found = {tid: finder.find(last[tid]) for tid in sorted(last)}
        if len(self._directory) > _MOST_KNOWN:
            self._directory.keep(())  # most have ended; those that have not are reported anew
        ids = {tid: self._directory.id_of(process) for tid, process in found.items()}
        return [ids[operation.tid] for operation in operations]


class _ProcessFinder:
    """Whose process a thread is, or was: ended ones have the name that they had at their last operation."""

    def __init__(self, files: ProcessFiles, trace: BlockTrace) -> None:
        self._files, self._trace = files, trace
        self._ended: dict[int, int] | None = None

    def find(self, operation: BlockIo) -> Process:
        tid, comm = operation.tid, operation.comm.partition(b"\0")[0]
        # A thread that started after its operation has only taken over the number.
        latest_start = operation.time_ns // NS_PER_TICK + 1
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


class DiskIo(Source["MeasurementBatch"]):
    """Disk IO by the best method that works here, or by a given one."""

    metric: ClassVar[Metric] = _METRIC
    has_columns = False

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
