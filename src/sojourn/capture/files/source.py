"""Where a capture's bytes come from: a plain file, a compressed file, a pipe or stdin, as windows.

A window is a read-only array of the bytes from one offset on. Windows are asked for in rising offsets,
so that a stream needs no way back. Each fills a fresh buffer, so that frames stay valid for as long as
someone holds them.

Memory: one window of 4 MiB (more only for a single larger packet), whatever the size of the file.
A file that is cut by someone else while it is read ends there, as damage; one that grows is read to the size it had.
That is why files are copied (0.15 s per GB) and not mapped: a mapping that loses its pages ends the process.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import BinaryIO, Self

import numpy as np

from sojourn.capture.files.compressed import (
    ByteStream,
    GzipStream,
    PlainStream,
    ZstandardStream,
    is_gzip,
    is_zstandard,
)
from sojourn.core.arrays import UInt8Array
from sojourn.core.errors import CaptureError

__all__ = ["Source", "Window", "open_source"]

WINDOW_BYTES = 1 << 22
# How long a pipe may keep back packets that it already has, in seconds.
_LINGER = 0.1


@dataclass(frozen=True, eq=False)
class Window:
    """Bytes from ``offset`` of the (decompressed) capture on; ``last`` when none follow."""

    data: UInt8Array
    offset: int
    last: bool


class Source(ABC):
    """A capture's bytes, in windows of rising offsets."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def window(self, offset: int, minimum: int = 1) -> Window:
        """The bytes from `offset` on: at least `minimum`, fewer only where the capture ends."""

    @property
    @abstractmethod
    def share_read(self) -> float:
        """How much of the file was read, 0 to 1; 0 where the size is not known."""

    @property
    def damage(self) -> str:
        """Why the bytes end early, if they do."""
        return ""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileSource(Source):
    """A plain file, read one window at a time."""

    def __init__(self, name: str, file: BinaryIO, size: int) -> None:
        super().__init__(name)
        self._file = file
        self._size = size
        self._damage = ""
        self._window = Window(_frozen(np.empty(0, np.uint8)), 0, last=not size)

    def window(self, offset: int, minimum: int = 1) -> Window:
        kept = self._window
        begin = offset - kept.offset
        # Who has looked at a file's header asks for the rest of the same window.
        if begin >= 0 and len(kept.data) - begin >= max(minimum, WINDOW_BYTES // 2):
            return Window(kept.data[begin:], offset, last=kept.last)
        end = min(self._size, offset + max(WINDOW_BYTES, minimum))
        data = self._read(offset, max(0, end - offset))
        self._window = Window(data, offset, last=end >= self._size or bool(self._damage))
        return self._window

    def _read(self, offset: int, size: int) -> UInt8Array:
        """The bytes at `offset`, fewer if the file has become shorter than it was."""
        buffer = np.empty(size, np.uint8)
        filled = 0
        while filled < size:
            count = os.preadv(self._file.fileno(), [buffer[filled:].data], offset + filled)
            if not count:
                self._damage = "the file was cut while it was read"
                break
            filled += count
        return _frozen(buffer[:filled])

    @property
    def share_read(self) -> float:
        return min(1.0, self._window.offset / self._size) if self._size else 0.0

    @property
    def damage(self) -> str:
        return self._damage

    def close(self) -> None:
        self._file.close()


class StreamedSource(Source):
    """Bytes that only come in order; keeps what lies behind the offset asked for."""

    def __init__(self, name: str, stream: ByteStream, file: BinaryIO, *, size: int = 0) -> None:
        super().__init__(name)
        self._stream = stream
        self._file = file
        self._size = size
        self._kept: UInt8Array = np.empty(0, np.uint8)
        self._kept_offset = 0
        self._surplus = b""
        self._ended = False

    def window(self, offset: int, minimum: int = 1) -> Window:
        self._skip_to(offset)
        kept = self._kept[offset - self._kept_offset :]
        buffer = np.empty(max(WINDOW_BYTES, minimum), np.uint8)
        buffer[: len(kept)] = kept
        filled = self._fill(buffer, len(kept), min(minimum, len(buffer)))
        self._kept, self._kept_offset = buffer[:filled], offset
        return Window(_frozen(self._kept), offset, last=self._ended and not self._surplus)

    def _skip_to(self, offset: int) -> None:
        """Drop bytes before `offset`, where it lies beyond all that was read."""
        reached = self._kept_offset + len(self._kept)
        if offset <= reached:
            return
        self._kept, self._kept_offset = np.empty(0, np.uint8), offset
        while reached < offset:
            piece = self._next()
            if not piece:
                return
            self._surplus = piece[offset - reached :]
            reached += len(piece)

    def _fill(self, buffer: UInt8Array, filled: int, minimum: int) -> int:
        deadline = time.monotonic() + _LINGER
        while filled < len(buffer):
            if filled >= minimum and self._would_wait(deadline):
                break
            piece = self._next()
            if not piece:
                break
            taken = min(len(piece), len(buffer) - filled)
            buffer[filled : filled + taken] = np.frombuffer(piece, np.uint8, taken)
            self._surplus = piece[taken:]
            filled += taken
        return filled

    def _next(self) -> bytes:
        piece, self._surplus = self._surplus, b""
        if not piece and not self._ended:
            piece = self._stream.read()
            self._ended = not piece
        return piece

    def _would_wait(self, deadline: float) -> bool:
        """Whether a pipe has nothing more to give before the deadline (a file never waits)."""
        if self._size or self._surplus or self._ended:
            return False
        try:
            waiting = max(0.0, deadline - time.monotonic())
            return not select.select([self._file], [], [], waiting)[0]
        except (OSError, ValueError, io.UnsupportedOperation):
            return False

    @property
    def share_read(self) -> float:
        return min(1.0, self._stream.consumed / self._size) if self._size else 0.0

    @property
    def damage(self) -> str:
        return self._stream.damage

    def close(self) -> None:
        if self._file is not sys.stdin.buffer:
            self._file.close()


def _frozen(data: UInt8Array) -> UInt8Array:
    """A read-only view: every window has one type, so that kernels are compiled once."""
    view = data.view()
    view.flags.writeable = False
    return view


def open_source(path: str | os.PathLike[str]) -> Source:
    """The bytes of the capture at `path` (``-`` is stdin), decompressed if need be."""
    name = os.fspath(path)
    if name == "-":
        return _streamed("stdin", sys.stdin.buffer, size=0)
    file = open(name, "rb")  # noqa: SIM115 - the source closes it
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        return _streamed(name, file, size=0)
    start = os.pread(file.fileno(), 4, 0)
    if is_gzip(start) or is_zstandard(start):
        return _streamed(name, file, size=status.st_size)
    return FileSource(name, file, status.st_size)


def _streamed(name: str, file: BinaryIO, *, size: int) -> Source:
    first = PlainStream(file)
    start = b""
    while len(start) < 4 and (piece := first.read(4 - len(start))):
        start += piece
    if not start:
        raise CaptureError("there are no bytes to read", where=name, action="give a capture")
    plain = PlainStream(file, start)
    stream: ByteStream = plain
    if is_gzip(start):
        stream = GzipStream(plain)
    elif is_zstandard(start):
        stream = ZstandardStream(plain, name)
    return StreamedSource(name, stream, file, size=size)
