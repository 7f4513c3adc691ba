"""Reading pcapng files: any number of sections in either byte order, and of interfaces with their clocks.

Packets come from Enhanced, Simple and (obsolete) Packet Blocks; every other block is skipped. A Simple
Packet Block has no time: its packet takes the time of the packet before it (0 at the start of a file),
and a warning says how many there were. A time outside of the years 1824 to 2116 is set to that bound and
counted in a warning.

Damage, after which nothing can be trusted: a block length that is no multiple of 4, below 12 or unlike the
copy at the block's end; a packet above 16 MiB or longer than its block; an interface never described.
Bounds: 65 536 interfaces per section; blocks that are skipped may have any length.
Cost: one pass over the block headers, a few ns per packet; section and interface blocks are read in Python.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sojourn.capture.decode.frames import Frames
from sojourn.capture.files.file_reader import MAX_CAPTURED, FrameReader, FrameRows
from sojourn.capture.files.interfaces import SectionInterfaces
from sojourn.capture.files.pcapng_kernels import (
    DAMAGED,
    FULL,
    INCOMPLETE,
    INTERFACE,
    SECTION,
    TIMELESS,
    UNREPRESENTABLE,
    index_blocks,
)
from sojourn.capture.files.source import Source, Window
from sojourn.core.arrays import UInt8Array

__all__ = ["PcapngReader", "is_pcapng"]

SECTION_TYPE = b"\x0a\x0d\x0d\x0a"
_ORDER_MAGIC = {b"\x1a\x2b\x3c\x4d": True, b"\x4d\x3c\x2b\x1a": False}
_PACKET_TYPES = (2, 3, 6)
_MAX_METADATA_BYTES = 1 << 24
_SMALLEST_BLOCK = 12

_DAMAGE = {
    1: "a block's length is no multiple of 4 or below 12",
    2: "a block's two lengths differ",
    3: "a packet block is shorter than its own fields",
    4: "a packet refers to an interface that was not described",
    5: "a packet is longer than its block",
}


def is_pcapng(start: bytes) -> bool:
    return start[:4] == SECTION_TYPE


class PcapngReader(FrameReader):
    """The frames of a pcapng file."""

    def __init__(self, source: Source, *, strict: bool = False) -> None:
        super().__init__(source, strict=strict)
        self._big = False
        self._interfaces = SectionInterfaces()
        self._tally = np.zeros(3, np.int64)

    def _chunks(self) -> Iterator[Frames]:
        try:
            yield from self._walk()
        finally:
            self._report_times()

    def _walk(self) -> Iterator[Frames]:
        position, needed = 0, _SMALLEST_BLOCK
        while True:
            window = self.source.window(position, needed)
            at, status, needed = 0, FULL, 0
            while status in (FULL, INTERFACE, SECTION):
                if status == FULL:
                    frames, at, status, needed = self._index_chunk(window.data, at)
                    if len(frames):
                        yield frames
                else:
                    consumed = self._read_description(window, at, status)
                    if consumed <= 0:
                        status, needed = (INCOMPLETE, -consumed) if consumed else (DAMAGED, 0)
                        break
                    at, status = at + consumed, FULL
            position = window.offset + at
            if status == DAMAGED:
                if needed:
                    self._damaged(_DAMAGE[needed], position)
                return
            beyond = self._next_position(window, at, needed)
            if beyond < 0:
                return
            if beyond != position:
                position, needed = beyond, _SMALLEST_BLOCK

    def _index_chunk(self, data: UInt8Array, at: int) -> tuple[Frames, int, int, int]:
        rows = FrameRows()
        count, at, status, needed = index_blocks(
            data, at, self._big, MAX_CAPTURED, self._interfaces.table, self._tally, *rows.columns()
        )
        return rows.frames(data, count), at, status, needed

    def _next_position(self, window: Window, at: int, needed: int) -> int:
        """Where to go on after an incomplete block: its own start, behind it if it is huge, −1 to end."""
        position = window.offset + at
        if window.last and at == len(window.data):
            self._ended_between(position)
            return -1
        if needed > _MAX_METADATA_BYTES:
            return self._skip_block(window, at, needed)
        if window.last:
            self._ended_inside("a block", position)
            return -1
        return position

    def _skip_block(self, window: Window, at: int, length: int) -> int:
        """Pass over a block too large to hold; −1 if it is a packet, or its end is not where it should be."""
        position = window.offset + at
        kind = self._number(window.data[at : at + 4].tobytes())
        if kind in _PACKET_TYPES:
            self._damaged("a packet block is longer than 16 MiB", position)
            return -1
        tail = self.source.window(position + length - 4, 4)
        if len(tail.data) < 4:
            self._ended_inside("a block", position)
            return -1
        if self._number(tail.data[:4].tobytes()) != length:
            self._damaged(_DAMAGE[2], position)
            return -1
        return position + length

    def _number(self, data: bytes) -> int:
        return int.from_bytes(data, "big" if self._big else "little")

    def _read_description(self, window: Window, at: int, status: int) -> int:
        """Take in a section or interface block: its length, −needed if it is incomplete, 0 if damaged."""
        head = window.data[at : at + _SMALLEST_BLOCK].tobytes()
        position = window.offset + at
        if len(head) < _SMALLEST_BLOCK:
            return -_SMALLEST_BLOCK
        if status == SECTION:
            order = _ORDER_MAGIC.get(head[8:12])
            if order is None:
                self._damaged("a section has no byte-order mark", position)
                return 0
            self._big = order
        length = self._number(head[4:8])
        minimum = 28 if status == SECTION else 20
        if length % 4 or not minimum <= length <= _MAX_METADATA_BYTES:
            self._damaged(f"a section or interface block of {length} bytes cannot be", position)
            return 0
        block = window.data[at : at + length].tobytes()
        if len(block) < length:
            return -length
        if self._number(block[-4:]) != length:
            self._damaged(_DAMAGE[2], position)
            return 0
        if status == SECTION:
            self._interfaces.clear()
            return length
        problem = self._interfaces.add(block[8:-4], big=self._big)
        if problem:
            self._damaged(problem, position)
            return 0
        self.snap_length = max(self.snap_length, self._interfaces.snap_length)
        return length

    def _report_times(self) -> None:
        if count := int(self._tally[TIMELESS]):
            self._warn(f"{count} packets have no time of their own and take that of the packet before")
        if count := int(self._tally[UNREPRESENTABLE]):
            self._warn(f"{count} packets have a time before 1824 or after 2116 and take that bound")
        self._tally[[TIMELESS, UNREPRESENTABLE]] = 0
