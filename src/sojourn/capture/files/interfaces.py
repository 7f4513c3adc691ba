"""The interfaces of a pcapng section: link type, snap length, and how their ticks become nanoseconds.

A tick is 10⁻ⁿ or 2⁻ⁿ seconds (option ``if_tsresol``, default 10⁻⁶), counted from ``if_tsoffset`` seconds
after the Unix epoch. Conversion is exact to the nanosecond below, for every resolution.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import Int64Array

__all__ = ["BINARY", "DIVIDE", "LINK", "MODE", "MULTIPLY", "OFFSET", "SCALE", "SNAP", "SectionInterfaces"]

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
