"""Reading numbers out of bytes inside kernels; the caller has checked that the bytes exist.

Indices are unsigned: Numba then leaves out its test for negative ones, and LLVM turns the shifts into
one load. Results are ``int64``, because Numba makes a float of a ``uint64`` beside a signed integer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.core.arrays import UInt8Array
from sojourn.core.kernels import inlined

if TYPE_CHECKING:
    signed = int
else:
    signed = np.int64  # what kernels compute with; to a type checker, a plain integer

__all__ = ["big_16", "big_32", "byte_at", "little_32", "little_64", "number_16", "number_32", "signed"]

_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)


@inlined
def byte_at(data: UInt8Array, offset: int) -> int:
    return signed(data[np.uint64(offset)])


@inlined
def big_16(data: UInt8Array, offset: int) -> int:
    at = np.uint64(offset)
    return (signed(data[at]) << 8) | signed(data[at + _1])


@inlined
def big_32(data: UInt8Array, offset: int) -> int:
    at = np.uint64(offset)
    high = (signed(data[at]) << 24) | (signed(data[at + _1]) << 16)
    return high | (signed(data[at + _2]) << 8) | signed(data[at + _3])


@inlined
def little_32(data: UInt8Array, offset: int) -> int:
    at = np.uint64(offset)
    low = signed(data[at]) | (signed(data[at + _1]) << 8)
    return low | (signed(data[at + _2]) << 16) | (signed(data[at + _3]) << 24)


@inlined
def little_64(data: UInt8Array, offset: int) -> np.uint64:
    at = np.uint64(offset)
    word = np.uint64(0)
    for i in range(8):
        word |= np.uint64(data[at + np.uint64(i)]) << np.uint64(8 * i)
    return word


@inlined
def number_16(data: UInt8Array, offset: int, big: bool) -> int:
    """Two bytes in a file's own order."""
    value = big_16(data, offset)
    return value if big else ((value & 0xFF) << 8) | (value >> 8)


@inlined
def number_32(data: UInt8Array, offset: int, big: bool) -> int:
    """Four bytes in a file's own order."""
    return big_32(data, offset) if big else little_32(data, offset)
