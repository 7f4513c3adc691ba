"""Packed counters in plain Python: what a node without numpy does with the columns of an epoch.

Value i of a column occupies bits ``i·b … (i+1)·b − 1`` of its bytes, lowest bit first (`epochs.wire`, whose kernels do
the same). Eight values fill whole bytes, so eight at a time are one number. O(n), some 0.2 µs for each value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sojourn.core.errors import WireError


def column_size(length: int, bits: int) -> int:
    """Bytes of a packed column."""
    return (length * bits + 7) // 8


def pack_column(values: Sequence[int], bits: int) -> bytes:
    """Values modulo 2ᵇ as bytes.

    >>> pack_column([1, -1, 2], 4).hex()
    'f102'
    """
    mask = (1 << bits) - 1
    parts = []
    for start in range(0, len(values), 8):
        eight = values[start : start + 8]
        number = 0
        for value in reversed(eight):
            number = number << bits | value & mask
        parts.append(number.to_bytes(column_size(len(eight), bits), "little"))
    return b"".join(parts)


def unpack_column(data: bytes, length: int, bits: int, *, is_centred: bool = False) -> list[int]:
    """The values in a column's bytes, read as two's complement where they are centred.

    >>> unpack_column(bytes.fromhex("f102"), 3, 4, is_centred=True)
    [1, -1, 2]
    """
    mask, half = (1 << bits) - 1, 1 << (bits - 1)
    values: list[int] = []
    for start in range(0, length, 8):
        count = min(8, length - start)
        at = start * bits // 8
        number = int.from_bytes(data[at : at + column_size(count, bits)], "little")
        if number >> (count * bits):
            raise WireError("bits after the last counter are set", where="counters")
        values += [number >> (i * bits) & mask for i in range(count)]
    return _centred(values, half) if is_centred else values


def _centred(values: Iterable[int], half: int) -> list[int]:
    return [value - 2 * half if value >= half else value for value in values]
