"""Compressed captures as streams of bytes: gzip and Zstandard, recognised by their first bytes.

Guarantee: whatever can be decompressed before a cut or a damaged byte is given, then the stream ends
with its `damage` set. From a damaged (not cut) Zstandard file, the blocks that end within the same KiB of
compressed bytes as the damage are lost with it: the format only checks whole blocks.
Memory: one piece of input and what it expands to, at most 64 MiB (Zstandard windows are bounded to that).
"""

from __future__ import annotations

import zlib
from typing import Any, BinaryIO, Protocol

from sojourn.core.errors import CaptureError

__all__ = ["ByteStream", "GzipStream", "PlainStream", "ZstandardStream", "is_gzip", "is_zstandard"]

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
        piece = self._start or _read_available(self._file, size)
        self._start = b""
        self.consumed += len(piece)
        return piece


def _read_available(file: BinaryIO, size: int) -> bytes:
    """What a pipe holds now, without waiting until `size` bytes have come."""
    read = getattr(file, "read1", file.read)
    return bytes(read(size))


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
