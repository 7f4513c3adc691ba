"""Metrics of processes from ``/proc``: CPU time, resident memory, and increments of any counter per process.

A process is told from an earlier one of the same number by its start time. Its name is the kernel's (``comm``, at
most 15 bytes, as ``ps -o comm`` shows), so that all sources call it the same; a worker of the kernel is named without
the work it happens to do. What a key cannot contain is replaced by ``?``.

Guarantee: for a process that is there at both polls, the increments add up to its counter's difference exactly. One
that appeared in between counts from 0, as its counter did. What a process added after the last poll that saw it cannot
be known once it has ended: such ends are counted.

Cost: about 11 µs per process and scan, where psutil takes 28 µs for the same fields (measured with 988 processes); no
privileges. Memory: some 300 bytes per process.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from sojourn.core.errors import SourceError
from sojourn.core.keys import Key, ProcessKey, key_id
from sojourn.core.measurements import Measurements
from sojourn.sources.source import Metric, Source, SourceBatch

if TYPE_CHECKING:
    from sojourn.core.arrays import MeasurementBatch

NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096
_MOST_NAME_BYTES = 64
# Words behind the name in stat (proc(5) counts from 1 and from the number): fields 14, 15, 22 and 24.
_USER, _SYSTEM, _START, _RESIDENT = 11, 12, 19, 21
_WORKER = re.compile(rb"(kworker/[^+-]*)[+-].*", re.DOTALL)


class Process(NamedTuple):
    """One process at one moment; times are clock ticks, ``start`` since boot."""

    pid: int
    comm: bytes
    start: int
    cpu_ticks: int
    resident_pages: int


def clean_name(comm: bytes) -> str:
    """A process's name as keys may hold it.

    >>> clean_name(b"kworker/0:1-events"), clean_name(b" a\\tb "), clean_name(b"")
    ('kworker/0:1', 'a?b', '?')
    """
    worker = _WORKER.fullmatch(comm)
    text = (worker.group(1) if worker else comm)[:_MOST_NAME_BYTES].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text).strip() or "?"


def _parsed(pid: int, stat: bytes) -> Process:
    """The process in a line of stat; a name may itself contain parentheses and spaces."""
    opening, closing = stat.index(b"("), stat.rindex(b")")
    words = stat[closing + 2 :].split(None, _RESIDENT + 1)
    return Process(
        pid,
        stat[opening + 1 : closing],
        int(words[_START]),
        int(words[_USER]) + int(words[_SYSTEM]),
        int(words[_RESIDENT]),
    )


class ProcessFiles:
    """Reads files of processes through one open folder, which spares the kernel most of the way to each."""

    def __init__(self, folder: int) -> None:
        self._folder = folder

    @classmethod
    @contextmanager
    def opened(cls, root: str | Path = "/proc") -> Iterator[ProcessFiles]:
        try:
            folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}", where=str(root), action="mount proc there") from None
        try:
            yield cls(folder)
        finally:
            os.close(folder)

    def pids(self) -> list[int]:
        return [int(name) for name in os.listdir(self._folder) if name.isdecimal()]

    def read(self, pid: int, name: str) -> bytes:
        """The start of a file of a process; an OSError when there is none, or no permission."""
        file = os.open(f"{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            return os.read(file, _STAT_BYTES)
        finally:
            os.close(file)

    def process(self, pid: int) -> Process | None:
        """A process, or None if it has ended; a thread's number gives the thread."""
        try:
            return _parsed(pid, self.read(pid, "stat"))
        except (OSError, ValueError, IndexError):
            return None

    def processes(self) -> list[Process]:
        """All processes that could be read."""
        return [process for pid in self.pids() if (process := self.process(pid)) is not None]


class ProcessDirectory:
    """Ids of processes by their numbers, and which keys are new."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, bytes, int]] = {}
        self._new: list[Key] = []

    def id_of(self, process: Process) -> int:
        """The process's id; its key is new if it was not asked for before, or has another name now."""
        known = self._known.get(process.pid)
        if known is not None and known[:2] == (process.start, process.comm):
            return known[2]
        key = ProcessKey(clean_name(process.comm), process.pid)
        number = key_id(key)
        if known is None or known[0] != process.start or known[2] != number:
            self._new.append(key)
        self._known[process.pid] = (process.start, process.comm, number)
        return number

    def __len__(self) -> int:
        return len(self._known)

    def take_new(self) -> tuple[Key, ...]:
        """The keys that are new since the last call."""
        new, self._new = tuple(self._new), []
        return new

    def keep(self, pids: Container[int]) -> None:
        """Forget the processes with other numbers."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}


ENDED = "processes that ended after a poll (what they did since is unknown)"
WENT_BACK = "counters that went back"


class ProcessTotals(Source["MeasurementBatch"]):
    """A source of one counter per process; a subclass reads it."""

    has_columns = False

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
        if ended := sum(1 for pid, (start, _) in before.items() if self._last.get(pid, (-1,))[0] != start):
            self._ignored[ENDED] += ended
        self._directory.keep(self._last)
        return SourceBatch(Measurements.at(now_ns, ids, values), self._directory.take_new())

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


class CpuTime(ProcessTotals):
    """CPU time that each process used since the last poll."""

    metric: ClassVar[Metric] = Metric("cpu", "ns", "process", "increments")

    def total(self, files: ProcessFiles, process: Process) -> int:  # noqa: ARG002
        return process.cpu_ticks * NS_PER_TICK


_NONE = "processes without memory of their own (kernel threads, ended ones)"


class ResidentMemory(Source["MeasurementBatch"]):
    """Resident memory of each process at the time of the poll."""

    metric: ClassVar[Metric] = Metric("memory", "bytes", "process", "samples")
    has_columns = False

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
        return SourceBatch(Measurements.at(now_ns, ids, values), self._directory.take_new())
