"""Counters packed to their bit width: little-endian bits, a column starting at a byte.

Value i of a column occupies bits ``i·b … (i+1)·b − 1`` of the column's bytes, lowest bit first; spare
bits of the last byte are zero. O(n·b/8).
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.errors import WireError
from sojourn.core.kernels import kernel
from sojourn.sketches.parameters import Field, Table

_BYTE = np.uint64(255)


def _column_size(length: int, bits: int) -> int:
    return (length * bits + 7) // 8


def packed_size(table: Table) -> int:
    """Bytes of a packed table."""
    return sum(_column_size(table.length, field.bits) for field in table.fields)


@kernel
def _pack(column: Int64Array, bits: int, packed: UInt8Array) -> None:
    position = 0
    for i in range(len(column)):
        value = np.uint64(column[i])
        remaining = bits
        while remaining > 0:
            offset = position & 7
            taken = min(8 - offset, remaining)
            part = value & np.uint64((1 << taken) - 1)
            packed[position >> 3] |= np.uint8((part << np.uint64(offset)) & _BYTE)
            value >>= np.uint64(taken)
            position += taken
            remaining -= taken


@kernel
def _unpack(packed: UInt8Array, bits: int, column: Int64Array) -> None:
    position = 0
    for i in range(len(column)):
        value = np.uint64(0)
        filled = 0
        while filled < bits:
            offset = position & 7
            taken = min(8 - offset, bits - filled)
            part = (np.uint64(packed[position >> 3]) >> np.uint64(offset)) & np.uint64((1 << taken) - 1)
            value |= part << np.uint64(filled)
            position += taken
            filled += taken
        column[i] = np.int64(value)


def pack_table(table: Table, array: Int64Array) -> bytes:
    """All columns of a table, one after the other."""
    parts = []
    for i, field in enumerate(table.fields):
        packed = np.zeros(_column_size(table.length, field.bits), np.uint8)
        _pack(np.ascontiguousarray(field.canonical(array[:, i])), field.bits, packed)
        parts.append(packed.tobytes())
    return b"".join(parts)


def unpack_into(table: Table, data: memoryview, array: Int64Array) -> None:
    """The inverse of `pack_table`, into an array of the table's shape; `data` must have the table's packed size.

    Beside the array, one column is in memory at a time.
    """
    offset = 0
    for i, field in enumerate(table.fields):
        size = _column_size(table.length, field.bits)
        array[:, i] = _unpack_column(table, field, np.frombuffer(data, np.uint8, size, offset))
        offset += size


def _unpack_column(table: Table, field: Field, packed: UInt8Array) -> Int64Array:
    column = np.empty(table.length, np.int64)
    _unpack(packed, field.bits, column)
    spare_bits = -table.length * field.bits % 8
    if spare_bits and packed[-1] >> (8 - spare_bits):
        raise WireError("bits after the last counter are set", where=f"{table.name}.{field.name}")
    if field.is_centred:
        column <<= 64 - field.bits
        column >>= 64 - field.bits
    elif field.is_counted and column.min() < 0:
        raise WireError("a count exceeds 2⁶³ − 1", where=f"{table.name}.{field.name}")
    return column
