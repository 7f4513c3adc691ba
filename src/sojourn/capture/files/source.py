"""Where a capture's bytes come from: a plain file, a compressed file, a pipe or stdin, as windows of bytes.

A window is a read-only array of the bytes from one offset on. Windows are asked for in rising offsets, so that a stream
needs no way back. Each fills a fresh buffer, so that frames stay valid for as long as someone uses them.

Guarantee: every whole packet before the first damaged byte is given, in the order of the file; then either the reader
ends with a warning or, if `strict`, raises a `CaptureError` that names file and byte. gzip and Zstandard are recognised
by their first bytes. From a damaged (not cut) Zstandard file, the blocks that end within the same KiB of compressed
bytes as the damage are lost with it: the format only checks whole blocks.

Memory: one window of 4 MiB (more only for a single larger packet), whatever the size of the file; compressed, one piece
of input and what it expands to, at most 64 MiB (Zstandard windows are bounded to that). A file that is cut by someone
else while it is read ends there, as damage; one that grows is read to the size it had. That is why files are copied
(0.15 s per GB) and not mapped: a mapping that loses its pages ends the process.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, Self

import numpy as np

from sojourn.capture.decode.frames import Frames
from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.errors import CaptureError
from sojourn.core.files import FilePath, open_input
from sojourn.core.units import plural

GZIP_MAGIC = b"\x1f\x8b"
ZSTANDARD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_PIECE = 1 << 16
_GZIP_OUTPUT = 1 << 22
# A Zstandard block of 4 bytes may stand for 128 KiB, so that a KiB expands to 32 MiB at most.
_ZSTANDARD_PIECE = 1 << 10
_ZSTANDARD_WINDOW = 1 << 26
_SALVAGE_STEPS = (1 << 12, 1 << 6, 1)


def is_gzip(start: bytes) -> bool:
    return start[:2] == GZIP_MAGIC


def is_zstandard(start: bytes) -> bool:
    """A Zstandard frame, or one of the skippable frames that may stand before it."""
    return start[:4] == ZSTANDARD_MAGIC or (start[1:4] == b"\x2a\x4d\x18" and start[:1][0] >> 4 == 5)


class ByteStream(Protocol):
    """Bytes in order: ``read`` gives some, or nothing at the end; ``damage`` says why the end came early."""

    damage: str

    @property
    def consumed(self) -> int: ...

    def read(self) -> bytes: ...


class PlainStream:
    """A pipe or stdin, as it comes."""

    def __init__(self, file: BinaryIO, start: bytes = b"") -> None:
        self.damage = ""
        self.consumed = 0
        self._file = file
        self._start = start

    def read(self, size: int = 1 << 18) -> bytes:
        # read1 gives what a pipe holds now, without waiting until all bytes have come.
        piece = self._start or bytes(getattr(self._file, "read1", self._file.read)(size))
        self._start = b""
        self.consumed += len(piece)
        return piece


class GzipStream:
    """The bytes inside a gzip file, one member after another; anything but a member at the end is padding."""

    def __init__(self, source: PlainStream) -> None:
        self.damage = ""
        self._source = source
        self._input = b""
        self._decoder = zlib.decompressobj(wbits=31)
        self._ended = False

    @property
    def consumed(self) -> int:
        return self._source.consumed

    def read(self) -> bytes:
        while not self._ended:
            if not self._input:
                self._input = self._source.read(_GZIP_PIECE)
            exhausted = not self._input
            # Even without input the decoder may hold output that the last limit kept back.
            if output := self._decompress():
                return bytes(output)
            if exhausted and not self._ended:
                self._ended = True
                self.damage = "the gzip stream is cut short"
        return b""

    def _decompress(self) -> bytes:
        before = self._decoder.copy()
        try:
            output = self._decoder.decompress(self._input, _GZIP_OUTPUT)
        except zlib.error as error:
            self._ended = True
            self.damage = f"the gzip stream is damaged ({str(error).partition(': ')[2] or error})"
            return _salvage(before, self._input)
        self._input = self._decoder.unconsumed_tail
        if self._decoder.eof:
            self._next_member()
        return output

    def _next_member(self) -> None:
        rest = self._decoder.unused_data
        while len(rest) < len(GZIP_MAGIC) and (more := self._source.read(_GZIP_PIECE)):
            rest += more
        if is_gzip(rest):
            self._decoder = zlib.decompressobj(wbits=31)
            self._input = rest
        else:
            self._ended = True


def _salvage(decoder: Any, piece: bytes) -> bytes:
    """Everything that `piece` gives before its damage: in ever smaller steps, at last byte by byte.

    The last steps limit the input too, because zlib may look at a checksum while it gives the last byte.
    """
    output = bytearray()
    for step in _SALVAGE_STEPS:
        while True:
            before = decoder.copy()
            try:
                part = decoder.decompress(piece, step)
            except zlib.error:
                decoder = before
                break
            output += part
            piece = decoder.unconsumed_tail
            if not part:
                return bytes(output)
    for at in range(len(piece)):
        given = piece[at : at + 1]
        try:
            while part := decoder.decompress(given, 1):
                output += part
                given = decoder.unconsumed_tail
        except zlib.error:
            break
    return bytes(output)


class ZstandardStream:
    """The bytes inside a Zstandard file, one frame after another."""

    def __init__(self, source: PlainStream, name: str) -> None:
        try:
            import zstandard
        except ImportError:
            raise CaptureError(
                "reading Zstandard needs the zstandard package",
                where=name,
                action="install it, or decompress the file first",
            ) from None
        self.damage = ""
        self._source = source
        self._input = memoryview(b"")
        self._error = zstandard.ZstdError
        self._library = zstandard.ZstdDecompressor(max_window_size=_ZSTANDARD_WINDOW)
        self._frame: Any = None
        self._ended = False

    @property
    def consumed(self) -> int:
        return self._source.consumed

    def read(self) -> bytes:
        while not self._ended:
            if not self._input:
                self._input = memoryview(self._source.read())
            if not self._input:
                self._ended = True
                if self._frame is not None:
                    self.damage = "the Zstandard stream is cut short"
            elif output := self._decompress():
                return bytes(output)
        return b""

    def _decompress(self) -> bytes:
        if self._frame is None:
            self._frame = self._library.decompressobj()
        piece, self._input = self._input[:_ZSTANDARD_PIECE], self._input[_ZSTANDARD_PIECE:]
        try:
            output: bytes = self._frame.decompress(piece)
        except self._error as error:
            self._ended = True
            self.damage = f"the Zstandard stream is damaged ({error})"
            return b""
        if self._frame.eof:
            self._input = memoryview(bytes(self._frame.unused_data) + bytes(self._input))
            self._frame = None
        return output


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
            count = _read_at(self._file, buffer[filled:].data, offset + filled)
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
        if self._file is not getattr(sys.stdin, "buffer", None):  # a worker process has none
            self._file.close()


def _read_at(file: BinaryIO, buffer: memoryview, offset: int) -> int:
    """Fill as much of the buffer as one read gives, from `offset` on; where the file is read next does not change."""
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [buffer], offset)
    before = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    os.lseek(file.fileno(), offset, os.SEEK_SET)
    data = os.read(file.fileno(), len(buffer))
    buffer[: len(data)] = data
    os.lseek(file.fileno(), before, os.SEEK_SET)
    return len(data)


def _frozen(data: UInt8Array) -> UInt8Array:
    """A read-only view: every window has one type, so that kernels are compiled once."""
    view = data.view()
    view.flags.writeable = False
    return view


def open_source(path: FilePath) -> Source:
    """The bytes of the capture at `path` (``-`` is stdin), decompressed if need be."""
    name = os.fspath(path)
    if name == "-":
        return _streamed("stdin", sys.stdin.buffer, size=0)
    file = open_input(name)
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        return _streamed(name, file, size=0)
    first = bytearray(4)
    start = bytes(first[: _read_at(file, memoryview(first), 0)])
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


# Few enough that a chunk's columns stay in a core's cache, enough to hide Python's cost per chunk.
CHUNK_PACKETS = 1 << 15
# libpcap's own limit on the snap length is 2¹⁸; jumbo super-packets of offloads may exceed it.
MAX_CAPTURED = 1 << 24
MIN_CAPTURED_LIMIT = 1 << 18


class FrameRows:
    """Columns that an index kernel fills, one row per packet found."""

    def __init__(self, capacity: int = CHUNK_PACKETS) -> None:
        self.offset = np.empty(capacity, np.int64)
        self.captured = np.empty(capacity, np.int64)
        self.length = np.empty(capacity, np.int64)
        self.time_ns = np.empty(capacity, np.int64)
        self.link = np.empty(capacity, np.int64)

    def columns(self) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]:
        return self.offset, self.captured, self.length, self.time_ns, self.link

    def frames(self, data: UInt8Array, count: int) -> Frames:
        return Frames(data, *(column[:count] for column in self.columns()))


class FrameReader(ABC):
    """Iterates over the frames of one capture file, in chunks; may be iterated once."""

    def __init__(self, source: Source, *, strict: bool = False) -> None:
        self.source = source
        self.strict = strict
        self.packets = 0
        self.snap_length = 0
        self.warnings: list[str] = []

    def __iter__(self) -> Iterator[Frames]:
        for frames in self._chunks():
            self.packets += len(frames)
            yield frames

    @abstractmethod
    def _chunks(self) -> Iterator[Frames]: ...

    def _warn(self, text: str) -> None:
        self.warnings.append(f"{self.source.name}: {text}")

    def _damaged(self, what: str, offset: int) -> None:
        """Note damage at a byte of the (decompressed) file; the caller then ends."""
        where = f"{self.source.name}, byte {offset}"
        if self.strict:
            raise CaptureError(what, where=where, action="read without strict to get the packets before the damage")
        self.warnings.append(f"{where}: {what}; reading ends after {plural(self.packets, 'packet')}")

    def _ended_inside(self, what: str, offset: int) -> None:
        """Note that the file ends inside something, by its own fault or its compression's."""
        self._damaged(self.source.damage or f"the file ends inside {what}", offset)

    def _ended_between(self, offset: int) -> None:
        """The file ends where a packet might; only a broken compression is damage then."""
        if self.source.damage:
            self._damaged(self.source.damage, offset)
