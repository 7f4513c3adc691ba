"""Block IO as it happens, from the kernel's tracepoint ``block_bio_queue``, in a trace instance of our own.

The tracepoint fires where a process hands a block IO to the kernel, in that process, before IOs are merged, split or
sent on by another: whose it is stays known. The instance ``sojourn-<pid>-<start>-<n>`` has its own ring and switches,
so that other users of tracing are not disturbed; `close` removes it, and those of processes that were killed are
removed by the next one that opens.

Guarantee: every IO between `open` and the last `read` comes once, or is counted in `overruns` if the ring was full.
Needs root and a mounted tracefs. Memory: the ring, 4 MiB per CPU by default (70,000 IOs between two reads).
"""

from __future__ import annotations

import errno
import itertools
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ParameterError, SourceError
from sojourn.sources.disk.trace_pages import EVENT, PageLayout, parse_pages
from sojourn.sources.processes import ProcessFiles

__all__ = ["BlockTrace", "check_ring", "tracefs_folder"]

PREFIX = "sojourn"
DEFAULT_RING_KIB = 4096
_EVENT = "events/block/block_bio_queue"
_HEADER_PAGE = "events/header_page"
_SEQUENCE = itertools.count()
_LOST = ("overrun", "dropped events", "commit overrun")
_MOST_THREADS_BYTES = 1 << 22
_ADVICE = "mount -t tracefs tracefs /sys/kernel/tracing, as root"


def tracefs_folder(mounts: str | Path = "/proc/self/mounts") -> Path:
    """Where tracefs is mounted."""
    with suppress(OSError):
        for line in Path(mounts).read_text(errors="replace").splitlines():
            words = line.split(" ")
            if len(words) > 2 and words[2] == "tracefs":
                return Path(words[1].replace("\\040", " "))
    raise SourceError("is not mounted", where="tracefs", action=_ADVICE)


def _start_of(pid: int) -> int | None:
    with ProcessFiles.opened() as files:
        process = files.process(pid)
    return None if process is None else process.start


def check_ring(ring_kib: int) -> None:
    """Refuse a size of the ring that cannot be."""
    if not 64 <= ring_kib <= 1 << 20:
        raise ParameterError(f"ring of {ring_kib} KiB", where="disk_io", action="use 64 to 1048576")


class BlockTrace:
    """A trace instance with one event switched on."""

    def __init__(self, folder: Path, *, ring_kib: int = DEFAULT_RING_KIB) -> None:
        check_ring(ring_kib)
        self._folder = folder
        self._instance = folder / "instances" / f"{PREFIX}-{os.getpid()}-{_start_of(os.getpid())}-{next(_SEQUENCE)}"
        self._ring_kib = ring_kib
        self._pipes: list[int] = []
        self._made = False
        self._overruns = 0
        self.damaged = 0

    def open(self) -> None:
        """Make the instance and switch it on; nothing stays behind if that fails."""
        try:
            remove_leftovers(self._folder)
            self._open()
        except OSError as error:
            self.close()
            reason = error.strerror or str(error)
            raise SourceError(
                f"block IO cannot be traced: {reason}", where=str(error.filename or self._folder), action="run as root"
            ) from None
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        layout = PageLayout.described(
            (self._folder / _HEADER_PAGE).read_text(), (self._folder / _EVENT / "format").read_text()
        )
        self._layout = layout
        parse_pages(bytes(8192), 4096, layout)  # compile before there are IOs to lose
        self._instance.mkdir()
        self._made = True
        # The clock that process start times are told in, too.
        self._write("trace_clock", "boot")
        self._write("buffer_size_kb", str(self._ring_kib))
        with suppress(OSError):  # names threads that end before they are asked for; old kernels have it not
            self._write("options/record-tgid", "1")
        self._page_bytes = self._page_size()
        for pipe in sorted((self._instance / "per_cpu").glob("cpu*/trace_pipe_raw")):
            self._pipes.append(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        self._write(f"{_EVENT}/enable", "1")

    def _write(self, name: str, text: str) -> None:
        (self._instance / name).write_text(text)

    def _page_size(self) -> int:
        try:
            return 1024 * int((self._instance / "buffer_subbuf_size_kb").read_text())
        except (OSError, ValueError):
            return os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Remove the instance; what was not read is gone."""
        if not self._made:
            return
        for switch in (f"{_EVENT}/enable", "options/record-tgid"):
            with suppress(OSError):
                self._write(switch, "0")
        with suppress(OSError):
            self._overruns = self._lost_so_far()
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = []
        self._made = False
        try:
            self._instance.rmdir()
        except OSError as error:
            raise SourceError(
                f"cannot be removed: {error.strerror}", where=str(self._instance), action="see who has its files open"
            ) from None

    def read(self) -> NDArray[np.void]:
        """The IOs since the last read, as rows of `EVENT`, in the order of their times (CLOCK_BOOTTIME)."""
        pages = bytearray()
        for pipe in self._pipes:
            self._read_pipe(pipe, pages)
        if not pages:
            return np.empty(0, EVENT)
        events, damaged = parse_pages(pages, self._page_bytes, self._layout)
        self.damaged += damaged
        return events[np.argsort(events["time_ns"], kind="stable")]

    def _read_pipe(self, pipe: int, pages: bytearray) -> None:
        """All pages of one CPU; no more than the ring holds, lest a busy disk keeps us here."""
        for _ in range(1024 * self._ring_kib // self._page_bytes + 2):
            try:
                page = os.read(pipe, self._page_bytes)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EINTR):
                    return
                raise SourceError(f"cannot be read: {error.strerror}", where=str(self._instance)) from None
            if not page:
                return
            pages += page.ljust(self._page_bytes, b"\0")

    @property
    def overruns(self) -> int:
        """IOs that found no room in the ring."""
        if self._made:
            with suppress(OSError):
                self._overruns = self._lost_so_far()
        return self._overruns

    def _lost_so_far(self) -> int:
        lost = 0
        for file in (self._instance / "per_cpu").glob("cpu*/stats"):
            fields = dict(line.split(": ", 1) for line in file.read_text().splitlines() if ": " in line)
            lost += sum(int(fields.get(name, 0)) for name in _LOST)
        return lost

    def processes_of_ended_threads(self) -> dict[int, int]:
        """The process of each thread that the kernel remembers; the file is read only so far."""
        with suppress(OSError), (self._folder / "saved_tgids").open("rb") as file:
            words = [line.split() for line in file.read(_MOST_THREADS_BYTES).splitlines()]
            return {int(pair[0]): int(pair[1]) for pair in words if len(pair) == 2}
        return {}


def remove_leftovers(folder: Path) -> list[str]:
    """Remove instances whose maker no longer runs (it was killed); their names."""
    removed = []
    for path in sorted((folder / "instances").glob(f"{PREFIX}-*-*-*")):
        _, pid, start, *_ = path.name.split("-")
        if pid.isdecimal() and start.isdecimal() and _start_of(int(pid)) != int(start):
            with suppress(OSError):  # one in use elsewhere (another container) refuses
                path.rmdir()
                removed.append(path.name)
    return removed
