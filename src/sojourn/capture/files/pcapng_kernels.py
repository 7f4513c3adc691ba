"""The hot loop over pcapng blocks: packets become rows, section and interface blocks go back to Python."""

from __future__ import annotations

import numpy as np

from sojourn.capture.files.interfaces import BINARY, LINK, MODE, MULTIPLY, OFFSET, SCALE, SNAP
from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.kernels import inlined, kernel
from sojourn.core.memory_kernels import address_of, number_16, number_32, signed

__all__ = [
    "DAMAGED",
    "FULL",
    "INCOMPLETE",
    "INTERFACE",
    "LAST_TIME",
    "SECTION",
    "TIMELESS",
    "UNREPRESENTABLE",
    "index_blocks",
    "ticks_to_ns",
]

# Why the kernel stopped.
FULL, INCOMPLETE, DAMAGED, SECTION, INTERFACE = 0, 1, 2, 3, 4
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
