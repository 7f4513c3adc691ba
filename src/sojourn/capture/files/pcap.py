"""Reading pcap and pcapng files: every time resolution, either byte order, any number of sections and interfaces.

**pcap.** One modified variant (magic ``a1b2cd34``, from patched libpcaps of old Linux distributions) has 8
more bytes in each packet's header. Files of a version before 2.4 may have a packet's two lengths swapped; the
smaller is then what was captured.

A captured length above the file's snap length (at least 256 KiB, at most 16 MiB) is damage: the file is
out of step. Cost: one pass over the headers, about 2 ns per packet once read.

**pcapng.** Packets come from Enhanced, Simple and (obsolete) Packet Blocks; every other block is skipped. A Simple
Packet Block has no time: its packet takes the time of the packet before it (0 at the start of a file),
and a warning says how many there were. A tick is 10⁻ⁿ or 2⁻ⁿ seconds (option ``if_tsresol``, default 10⁻⁶), counted
from ``if_tsoffset`` seconds after the Unix epoch; conversion is exact to the nanosecond below, for every resolution. A
time outside of the years 1824 to 2116 is set to that bound and counted in a warning.

Damage, after which nothing can be trusted: a block length that is no multiple of 4, below 12 or unlike the
copy at the block's end; a packet above 16 MiB or longer than its block; an interface never described.
Bounds: 65 536 interfaces per section; blocks that are skipped may have any length.
Cost: one pass over the block headers, a few ns per packet; section and interface blocks are read in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sojourn.capture.decode.frames import Frames
from sojourn.capture.files.source import MAX_CAPTURED, MIN_CAPTURED_LIMIT, FrameReader, FrameRows, Source, Window
from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.kernels import address_of, inlined, kernel, number_16, number_32, signed
from sojourn.core.units import plural

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
FULL, INCOMPLETE, DAMAGED, SECTION, INTERFACE = 0, 1, 2, 3, 4


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


# Columns of the table that the kernel reads.
LINK, SNAP, MODE, SCALE, OFFSET = 0, 1, 2, 3, 4
# Modes: nanoseconds are ticks × scale, ticks ÷ 10 ÷ scale, or ticks × 10⁹ ÷ 2^scale.
MULTIPLY, DIVIDE, BINARY = 0, 1, 2
MAX_INTERFACES = 1 << 16
_OPTION_END, _OPTION_RESOLUTION, _OPTION_OFFSET = 0, 9, 14
_MAX_OFFSET_NS = (1 << 63) - 1


class SectionInterfaces:
    """A table of the current section's interfaces; grows as they are described."""

    def __init__(self) -> None:
        self._rows = np.zeros((16, 5), np.int64)
        self._count = 0
        self.snap_length = 0

    @property
    def table(self) -> Int64Array:
        return self._rows[: self._count]

    def clear(self) -> None:
        self._count = 0

    def add(self, body: bytes, *, big: bool) -> str:
        """Take in an Interface Description Block's body; the problem with it, if any."""
        if self._count == MAX_INTERFACES:
            return f"a section has more than {MAX_INTERFACES} interfaces"
        order = "big" if big else "little"
        resolution, offset_seconds = 6, 0
        at = 8
        while at + 4 <= len(body):
            code = int.from_bytes(body[at : at + 2], order)  # type: ignore[arg-type]
            size = int.from_bytes(body[at + 2 : at + 4], order)  # type: ignore[arg-type]
            value = body[at + 4 : at + 4 + size]
            if code == _OPTION_END or len(value) < size:
                break
            if code == _OPTION_RESOLUTION and size == 1:
                resolution = value[0]
            elif code == _OPTION_OFFSET and size == 8:
                offset_seconds = int.from_bytes(value, order, signed=True)  # type: ignore[arg-type]
            at += 4 + (size + 3) // 4 * 4
        self._append(
            int.from_bytes(body[0:2], order),  # type: ignore[arg-type]
            int.from_bytes(body[4:8], order),  # type: ignore[arg-type]
            *_scale(resolution),
            max(-_MAX_OFFSET_NS, min(_MAX_OFFSET_NS, offset_seconds * 1_000_000_000)),
        )
        return ""

    def _append(self, link: int, snap: int, mode: int, scale: int, offset_ns: int) -> None:
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[self._count] = (link, snap, mode, scale, offset_ns)
        self._count += 1
        self.snap_length = snap


def _scale(resolution: int) -> tuple[int, int]:
    """Mode and scale of an ``if_tsresol`` byte."""
    exponent = resolution & 0x7F
    if resolution & 0x80:
        return BINARY, exponent
    if exponent <= 9:
        return MULTIPLY, 10 ** (9 - exponent)
    # 2⁶⁴ ticks of 10⁻²⁹ seconds are less than a nanosecond: a scale of 0 stands for a time of 0.
    return DIVIDE, 10 ** (exponent - 10) if exponent <= 28 else 0


# Why the kernel stopped.
# Kinds of damage, in the third result.
BAD_LENGTH, LENGTHS_DIFFER, SHORT_BLOCK, NO_INTERFACE, LONG_PACKET = 1, 2, 3, 4, 5
# Slots of the tally that lives from chunk to chunk.
LAST_TIME, TIMELESS, UNREPRESENTABLE = 0, 1, 2
_SECTION_TYPE, _INTERFACE_TYPE = 0x0A0D0D0A, 1
_OBSOLETE_TYPE, _SIMPLE_TYPE, _ENHANCED_TYPE = 2, 3, 6
_BILLION = np.uint64(1_000_000_000)
_MAX = np.uint64((1 << 63) - 1)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
# The difference of any two times must fit a signed word: everyone behind a reader subtracts them.
_MAX_TIME = (1 << 62) - 1


@inlined
def _binary_to_ns(ticks: np.uint64, exponent: int) -> np.uint64:
    """⌊ticks × 10⁹ ÷ 2^exponent⌋, in halves so that nothing overflows; above 2⁶³ if it does not fit."""
    seconds = np.uint64(0)
    part = ticks
    if exponent < 64:
        seconds = ticks >> np.uint64(exponent)
        part = ticks - (seconds << np.uint64(exponent))
    if seconds > _MAX // _BILLION:
        return _MAX + np.uint64(1)
    if exponent <= 32:
        return seconds * _BILLION + ((part * _BILLION) >> np.uint64(exponent))
    scaled = (part >> _HALF) * _BILLION + (((part & _LOW) * _BILLION) >> _HALF)
    shift = exponent - 32
    fraction = np.uint64(0) if shift >= 64 else scaled >> np.uint64(shift)
    return seconds * _BILLION + fraction


@inlined
def _plain_to_ns(ticks: np.uint64, mode: int, scale: np.uint64) -> np.uint64:
    if scale == np.uint64(0):
        return np.uint64(0)
    if mode == MULTIPLY:
        return ticks * scale if ticks <= _MAX // scale else _MAX + np.uint64(1)
    return ticks // np.uint64(10) // scale


@inlined
def ticks_to_ns(high: int, low: int, mode: int, scale: int, offset: int) -> tuple[int, bool]:
    """Nanoseconds since the Unix epoch, and whether they had to be set to a bound (±2⁶² ∓ 1)."""
    ticks = (np.uint64(high) << _HALF) | np.uint64(low)
    is_binary = mode == BINARY
    since = _binary_to_ns(ticks, scale) if is_binary else _plain_to_ns(ticks, mode, np.uint64(scale))
    if since > _MAX:
        return _MAX_TIME, True
    time = signed(since)
    if offset > 0 and time > _MAX_TIME - offset:
        return _MAX_TIME, True
    time += offset
    if time > _MAX_TIME:
        return _MAX_TIME, True
    if time < -_MAX_TIME:
        return -_MAX_TIME, True
    return time, False


@inlined
def _packet_fields(data: int, at: int, kind: int, room: int, big: bool, snap: int) -> tuple[int, int, int, int]:
    """Interface, offset of the bytes, captured and original length of a packet block."""
    if kind == _SIMPLE_TYPE:
        wire = number_32(data, at + 8, big)
        size = min(wire, room - 16)
        if snap > 0:
            size = min(size, snap)
        return signed(0), at + 12, size, wire
    interface = number_32(data, at + 8, big) if kind == _ENHANCED_TYPE else number_16(data, at + 8, big)
    return interface, at + 28, number_32(data, at + 20, big), number_32(data, at + 24, big)


@inlined
def _note_time(data: int, at: int, kind: int, big: bool, interface: Int64Array, tally: Int64Array) -> None:
    """Put a packet's time into the tally, where a packet without one finds that of the packet before."""
    if kind == _SIMPLE_TYPE:
        tally[TIMELESS] += 1
        return
    high, low = number_32(data, at + 12, big), number_32(data, at + 16, big)
    time, is_cut = ticks_to_ns(high, low, interface[MODE], interface[SCALE], interface[OFFSET])
    tally[LAST_TIME] = time
    tally[UNREPRESENTABLE] += is_cut


@kernel
def index_blocks(
    buffer: UInt8Array,
    start: int,
    big: bool,
    captured_limit: int,
    interfaces: Int64Array,
    tally: Int64Array,
    offset: Int64Array,
    captured: Int64Array,
    length: Int64Array,
    time_ns: Int64Array,
    link: Int64Array,
) -> tuple[int, int, int, int]:
    """Fill rows from `start` on: how many, where it stopped, why, and the bytes needed or the damage."""
    data = address_of(buffer)
    at = start
    end = buffer.shape[0]
    count = 0
    while count < offset.shape[0]:
        if at + 12 > end:
            return count, at, INCOMPLETE, 12
        kind = number_32(data, at, big)
        if kind == _SECTION_TYPE:
            return count, at, SECTION, 0
        if kind == _INTERFACE_TYPE:
            return count, at, INTERFACE, 0
        room = number_32(data, at + 4, big)
        if room < 12 or room % 4:
            return count, at, DAMAGED, BAD_LENGTH
        if at + room > end:
            return count, at, INCOMPLETE, room
        if number_32(data, at + room - 4, big) != room:
            return count, at, DAMAGED, LENGTHS_DIFFER
        if kind in (_ENHANCED_TYPE, _SIMPLE_TYPE, _OBSOLETE_TYPE):
            fixed = 16 if kind == _SIMPLE_TYPE else 32
            if room < fixed:
                return count, at, DAMAGED, SHORT_BLOCK
            snap = interfaces[0, SNAP] if interfaces.shape[0] else signed(0)
            interface, first, size, wire = _packet_fields(data, at, kind, room, big, snap)
            if interface >= interfaces.shape[0]:
                return count, at, DAMAGED, NO_INTERFACE
            if size > room - fixed or size > captured_limit:
                return count, at, DAMAGED, LONG_PACKET
            _note_time(data, at, kind, big, interfaces[interface], tally)
            offset[count] = first
            captured[count] = size
            length[count] = wire
            time_ns[count] = tally[LAST_TIME]
            link[count] = interfaces[interface, LINK]
            count += 1
        at += room
    return count, at, FULL, 0


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
            self._warn(f"{plural(count, 'packet has', 'packets have')} no time; that of the packet before is taken")
        if count := int(self._tally[UNREPRESENTABLE]):
            self._warn(
                f"{plural(count, 'packet has', 'packets have')} a time before 1824 or after 2116; that bound is taken"
            )
        self._tally[[TIMELESS, UNREPRESENTABLE]] = 0
