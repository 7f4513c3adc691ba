"""Block IO as it happens, from the kernel's tracepoint ``block_bio_queue``, in a trace instance of our own.

The tracepoint fires where a process hands a block IO to the kernel, in that process, before IOs are merged, split or
sent on by another: whose it is stays known. The instance ``sojourn-<pid>-<start>-<n>`` has its own ring and switches,
so that other users of tracing are not disturbed; `close` removes it, and those of processes that were killed are
removed by the next one that opens. So is that of a process that has given up root meanwhile, which can only switch it
off and shrink its ring.

Guarantee: every IO between `open` and the last `read` comes once, or is counted in `overruns` if the ring was full.
No byte outside of a page of the ring (``trace_pipe_raw``) is read, whatever the bytes are; a page that contradicts
itself is given up at that place and counted. Where the fields lie is read from the kernel's own description
(``events/header_page``, ``events/header_event``, the event's ``format``); only little-endian words are assumed.

Needs root and a mounted tracefs. Memory: the ring, 4 MiB per CPU by default (70,000 IOs between two reads), and while
it is read 400 bytes per event. Cost: 1 µs per event, in plain Python: a node with little memory has no compiler.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from sojourn.core.errors import ParameterError, SourceError
from sojourn.sources.processes import ProcessFiles

COMM_BYTES = 16


class BlockIo(NamedTuple):
    """One block IO: its thread, the time on the trace's clock, where it goes and what it is (the first two letters of
    the kernel's description, which begins with F for one that flushes first)."""

    tid: int
    time_ns: int
    device: int
    sector: int
    sectors: int
    what: bytes
    comm: bytes


_FIELD = re.compile(r"field:\s*[^;]*?(\w+)(?:\[\d*\])?;\s*offset:(\d+);\s*size:(\d+);")
_ID = re.compile(r"^ID: (\d+)$", re.MULTILINE)
_FIELDS = ("common_type", "common_pid", "dev", "sector", "nr_sector", "rwbs", "comm")
_SIZES = {"common_type": (2,), "common_pid": (4,), "dev": (4,), "sector": (8, 4), "nr_sector": (4,)}
# Of texts so much is kept: what an operation is, and the name.
_KINDS, _KEPT = {"rwbs": "2s", "comm": f"{COMM_BYTES}s"}, {"rwbs": 2, "comm": COMM_BYTES}
_MOST_OFFSET = 4096

# Kinds of entries of the ring; what is below is data of so many words.
_LARGEST_WORDS, _PADDING, _TIME_EXTEND, _TIME_STAMP = 28, 29, 30, 31
_DELTA_BITS = 27
_COMMIT_MASK = (1 << _DELTA_BITS) - 1


@dataclass(frozen=True)
class PageLayout:
    """Where things lie in a page (`header`: commit's place and size, data) and in an event (`offsets` of `_FIELDS`)."""

    event_id: int
    header: tuple[int, int, int]
    offsets: tuple[int, ...]
    sector_bytes: int

    @classmethod
    def described(cls, header_page: str, event_format: str) -> PageLayout:
        """The layout that the kernel describes; a `SourceError` where it is none that can be read here."""
        page = {name: (int(offset), int(size)) for name, offset, size in _FIELD.findall(header_page)}
        event = {name: (int(offset), int(size)) for name, offset, size in _FIELD.findall(event_format)}
        number = _ID.search(event_format)
        missing = [n for n in ("commit", "data") if n not in page] + [n for n in _FIELDS if n not in event]
        odd = [name for name, sizes in _SIZES.items() if name in event and event[name][1] not in sizes]
        if {"commit", "data"} <= page.keys() and not (
            page["commit"][0] >= 8 and page["commit"][1] in (4, 8) and sum(page["commit"]) <= page["data"][0]
        ):
            odd.append("commit")
        odd += _overlapping(event)
        far = [name for name, (offset, _) in (page | event).items() if offset > _MOST_OFFSET]
        if sys.byteorder != "little" or number is None or missing or odd or far:
            raise SourceError(
                f"the kernel's trace format is of a kind unknown here ({', '.join(missing + odd + far) or 'event id'})",
                where="tracefs",
                action="use method=system_calls",
            )
        return cls(
            int(number.group(1)),
            (*page["commit"], page["data"][0]),
            tuple(event[name][0] for name in _FIELDS),
            event["sector"][1],
        )

    @cached_property
    def fields(self) -> struct.Struct:
        """The fields of an event, from its first byte on."""
        sizes = {**{name: sizes[0] for name, sizes in _SIZES.items()}, "sector": self.sector_bytes}
        form, end = "<", 0
        for name, offset in zip(_FIELDS, self.offsets, strict=True):
            kind = _KINDS.get(name) or {2: "H", 4: "I", 8: "Q"}[sizes[name]]
            form += f"{offset - end}x{kind}"
            end = offset + struct.calcsize(f"<{kind}")
        return struct.Struct(form)

    @property
    def event_bytes(self) -> int:
        """An event is no shorter."""
        return max(self.offsets[-1] + COMM_BYTES, self.offsets[-2] + 2)


def _word(page: bytes, place: int, size: int) -> int:
    """A little-endian number; the caller has checked that it lies within."""
    return int.from_bytes(page[place : place + size], "little")


def _overlapping(event: dict[str, tuple[int, int]]) -> list[str]:
    """Fields that begin before the one before them has ended."""
    known = [(name, event[name]) for name in _FIELDS if name in event]
    return [
        name
        for (before, (first, size)), (name, (second, _)) in itertools.pairwise(known)
        if first + _KEPT.get(before, size) > second
    ]


_HEAD = struct.Struct("<I")


def _parse_page(page: bytes, layout: PageLayout, events: list[BlockIo]) -> bool:
    """Add the block events of one page to those there are; whether it was whole."""
    commit, commit_bytes, place = layout.header
    if place > len(page) or commit + commit_bytes > len(page):
        return False
    fields, event_bytes, event_id = layout.fields, layout.event_bytes, layout.event_id
    now = _word(page, 0, 8)
    end = place + (_word(page, commit, commit_bytes) & _COMMIT_MASK)
    if end > len(page):
        return False
    while place + 4 <= end:
        (head,) = _HEAD.unpack_from(page, place)
        kind, delta = head & 31, head >> 5
        if kind == _PADDING and delta == 0:
            return True
        body, size = place + 4, 4 * kind
        if kind == 0 or kind > _LARGEST_WORDS:
            if place + 8 > end:
                return False
            word = _word(page, place + 4, 4)
            if kind == _TIME_STAMP:
                now, delta = (word << _DELTA_BITS) + delta, 0
            elif kind == _TIME_EXTEND:
                delta += word << _DELTA_BITS
            # A long event's length counts itself.
            body, size = place + 8, 0 if kind >= _TIME_EXTEND else word - 4
        now += delta
        if size < 0 or body + size > end:
            return False
        if kind <= _LARGEST_WORDS and size >= event_bytes:
            found, tid, device, sector, sectors, what, comm = fields.unpack_from(page, body)
            if found == event_id:
                events.append(BlockIo(tid, now, device, sector, sectors, what, comm))
        place = body + size
    return True


def parse_pages(data: bytes | bytearray, page_bytes: int, layout: PageLayout) -> tuple[list[BlockIo], int]:
    """The block events of all pages, in their order, and how many pages were damaged."""
    events: list[BlockIo] = []
    damaged = 0
    for first in range(0, len(data) - page_bytes + 1, page_bytes):
        damaged += not _parse_page(bytes(data[first : first + page_bytes]), layout, events)
    return events, damaged


PREFIX = "sojourn"
DEFAULT_RING_KIB = 4096
_EVENT = "events/block/block_bio_queue"
_HEADER_PAGE = "events/header_page"
_SWITCH, _RECORD_TGID, _RING_SIZE = f"{_EVENT}/enable", "options/record-tgid", "buffer_size_kb"
_SEQUENCE = itertools.count()
_LOST = ("overrun", "dropped events", "commit overrun")
_MOST_THREADS_BYTES = 1 << 22
_MOST_STATS_BYTES = 1 << 12
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


_time_of = attrgetter("time_ns")


class BlockTrace:
    """A trace instance with one event switched on."""

    def __init__(self, folder: Path, *, ring_kib: int = DEFAULT_RING_KIB) -> None:
        check_ring(ring_kib)
        self._folder = folder
        self._instance = folder / "instances" / f"{PREFIX}-{os.getpid()}-{_start_of(os.getpid())}-{next(_SEQUENCE)}"
        self._ring_kib = ring_kib
        self._pipes: list[int] = []
        self._switches: dict[str, int] = {}
        self._stats: list[int] = []
        self._tgids = -1
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
        self._keep_open()
        self._write(f"{_EVENT}/enable", "1")

    def _keep_open(self) -> None:
        """What is needed until the end is opened now: the process may have given up root by then."""
        for name in (_SWITCH, _RECORD_TGID, _RING_SIZE):
            with suppress(OSError):
                self._switches[name] = os.open(self._instance / name, os.O_WRONLY | os.O_CLOEXEC)
        self._stats = [
            os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            for file in sorted((self._instance / "per_cpu").glob("cpu*/stats"))
        ]
        with suppress(OSError):
            self._tgids = os.open(self._folder / "saved_tgids", os.O_RDONLY | os.O_CLOEXEC)

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
        is_removable = os.access(self._instance.parent, os.W_OK)
        last_words = {_SWITCH: b"0", _RECORD_TGID: b"0"} | ({} if is_removable else {_RING_SIZE: b"1"})
        for name, word in last_words.items():
            with suppress(OSError, KeyError):
                os.write(self._switches[name], word)
        with suppress(OSError):
            self._overruns = self._lost_so_far()
        for descriptor in (*self._pipes, *self._stats, *self._switches.values(), self._tgids):
            if descriptor >= 0:
                os.close(descriptor)
        self._pipes, self._stats, self._switches, self._tgids = [], [], {}, -1
        self._made = False
        if not is_removable:
            return
        try:
            self._instance.rmdir()
        except OSError as error:
            raise SourceError(
                f"cannot be removed: {error.strerror}", where=str(self._instance), action="see who has its files open"
            ) from None

    def read(self) -> list[BlockIo]:
        """The IOs since the last read, in the order of their times (CLOCK_BOOTTIME)."""
        pages = bytearray()
        for pipe in self._pipes:
            self._read_pipe(pipe, pages)
        if not pages:
            return []
        events, damaged = parse_pages(pages, self._page_bytes, self._layout)
        self.damaged += damaged
        return sorted(events, key=_time_of)

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
        for file in self._stats:
            text = os.pread(file, _MOST_STATS_BYTES, 0).decode()
            fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
            lost += sum(int(fields.get(name, 0)) for name in _LOST)
        return lost

    def processes_of_ended_threads(self) -> dict[int, int]:
        """The process of each thread that the kernel remembers; the file is read only so far."""
        with suppress(OSError):
            words = [line.split() for line in self._tgid_pieces().splitlines()]
            return {int(pair[0]): int(pair[1]) for pair in words if len(pair) == 2}
        return {}

    def _tgid_pieces(self) -> bytes:
        """The file from its start; the kernel gives a page at a time."""
        if self._tgids < 0:
            return b""
        os.lseek(self._tgids, 0, os.SEEK_SET)
        pieces, size = [], 0
        while size < _MOST_THREADS_BYTES and (piece := os.read(self._tgids, 1 << 16)):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)


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
