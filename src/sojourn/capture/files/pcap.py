"""Reading pcap files: microsecond and nanosecond stamps, either byte order, and one modified variant.

The modified variant (magic ``a1b2cd34``, from patched libpcaps of old Linux distributions) has 8 more
bytes in each packet's header. Files of a version before 2.4 may have a packet's two lengths swapped; the
smaller is then what was captured.

A captured length above the file's snap length (at least 256 KiB, at most 16 MiB) is damage: the file is
out of step. Cost: one pass over the headers, about 2 ns per packet once read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sojourn.capture.decode.frames import Frames
from sojourn.capture.files.file_reader import MAX_CAPTURED, MIN_CAPTURED_LIMIT, FrameReader, FrameRows
from sojourn.capture.files.source import Source
from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.kernels import kernel
from sojourn.core.memory_kernels import address_of, number_32

__all__ = ["PcapReader", "is_pcap"]

FILE_HEADER_BYTES = 24
_PACKET_HEADER_BYTES = 16
_MODIFIED_HEADER_BYTES = 24
_LINK_MASK = 0x03FFFFFF  # the bits above tell the length of a frame check sequence

# Magic number → (nanoseconds of a tick, bytes of a packet's header).
_VARIANTS = {
    0xA1B2C3D4: (1000, _PACKET_HEADER_BYTES),
    0xA1B23C4D: (1, _PACKET_HEADER_BYTES),
    0xA1B2CD34: (1000, _MODIFIED_HEADER_BYTES),
}
_ORDERS = {"big": True, "little": False}

# Why the kernel stopped.
FULL, INCOMPLETE, DAMAGED = 0, 1, 2


@dataclass(frozen=True)
class _Header:
    big: bool
    tick_ns: int
    packet_header_bytes: int
    lengths_may_be_swapped: bool
    snap_length: int
    link: int

    @property
    def captured_limit(self) -> int:
        return min(max(self.snap_length, MIN_CAPTURED_LIMIT), MAX_CAPTURED)


def is_pcap(start: bytes) -> bool:
    return any(int.from_bytes(start[:4], order) in _VARIANTS for order in ("big", "little"))


def _parse_header(data: bytes) -> _Header:
    order: str = next(o for o in _ORDERS if _number(data, 0, 4, _ORDERS[o]) in _VARIANTS)
    big = _ORDERS[order]
    tick_ns, packet_header_bytes = _VARIANTS[_number(data, 0, 4, big)]
    version = (_number(data, 4, 2, big), _number(data, 6, 2, big))
    return _Header(
        big=big,
        tick_ns=tick_ns,
        packet_header_bytes=packet_header_bytes,
        lengths_may_be_swapped=version < (2, 4),
        snap_length=_number(data, 16, 4, big),
        link=_number(data, 20, 4, big) & _LINK_MASK,
    )


def _number(data: bytes, offset: int, size: int, big: bool) -> int:
    return int.from_bytes(data[offset : offset + size], "big" if big else "little")


@kernel
def _index(
    buffer: UInt8Array,
    start: int,
    big: bool,
    tick_ns: int,
    header_bytes: int,
    may_be_swapped: bool,
    captured_limit: int,
    offset: Int64Array,
    captured: Int64Array,
    length: Int64Array,
    time_ns: Int64Array,
) -> tuple[int, int, int, int]:
    """Fill rows from `start` on: how many, where it stopped, why, and the bytes the next packet needs."""
    data = address_of(buffer)
    at = start
    end = buffer.shape[0]
    count = 0
    while count < offset.shape[0]:
        if at + header_bytes > end:
            return count, at, INCOMPLETE, header_bytes
        size = number_32(data, at + 8, big)
        wire = number_32(data, at + 12, big)
        if may_be_swapped and size > wire:
            size, wire = wire, size
        if size > captured_limit:
            return count, at, DAMAGED, 0
        if at + header_bytes + size > end:
            return count, at, INCOMPLETE, header_bytes + size
        seconds = number_32(data, at, big)
        offset[count] = at + header_bytes
        captured[count] = size
        length[count] = wire
        time_ns[count] = seconds * 1_000_000_000 + number_32(data, at + 4, big) * tick_ns
        at += header_bytes + size
        count += 1
    return count, at, FULL, 0


class PcapReader(FrameReader):
    """The frames of a pcap file."""

    def __init__(self, source: Source, *, strict: bool = False) -> None:
        super().__init__(source, strict=strict)
        self._header: _Header | None = None
        start = source.window(0, FILE_HEADER_BYTES).data[:FILE_HEADER_BYTES]
        if len(start) == FILE_HEADER_BYTES:
            self._header = _parse_header(start.tobytes())
            self.snap_length = self._header.snap_length

    def _chunks(self) -> Iterator[Frames]:
        if self._header is None:
            self._ended_inside("its header", 0)
            return
        position, needed = FILE_HEADER_BYTES, 1
        while True:
            window = self.source.window(position, needed)
            at, status = 0, FULL
            while status == FULL:
                frames, at, status, needed = self._index_chunk(window.data, at, self._header)
                if len(frames):
                    yield frames
            position = window.offset + at
            if status == DAMAGED:
                self._damaged("a packet claims more bytes than the snap length allows", position)
                return
            if window.last:
                if at < len(window.data):
                    self._ended_inside("a packet", position)
                else:
                    self._ended_between(position)
                return

    def _index_chunk(self, data: UInt8Array, at: int, header: _Header) -> tuple[Frames, int, int, int]:
        rows = FrameRows()
        count, at, status, needed = _index(
            data,
            at,
            header.big,
            header.tick_ns,
            header.packet_header_bytes,
            header.lengths_may_be_swapped,
            header.captured_limit,
            rows.offset,
            rows.captured,
            rows.length,
            rows.time_ns,
        )
        rows.link[:count] = np.int64(header.link)
        return rows.frames(data, count), at, status, needed
