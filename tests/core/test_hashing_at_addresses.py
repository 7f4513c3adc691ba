"""XXH64 in kernels, read at addresses: the words of the `xxhash` package for every length."""

from __future__ import annotations

import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.arrays import UInt8Array
from sojourn.core.hash_kernels import hash_rows, hash_slice
from sojourn.core.kernels import (
    address_of,
    big_16,
    big_32,
    byte_at,
    kernel,
    number_16,
    number_32,
    put_byte,
    put_word,
    word_at,
)


@given(data=st.binary(max_size=140), start=st.integers(0, 20), seed=st.integers(0, 2**64 - 1))
def test_slices_hash_as_xxh64(data: bytes, start: int, seed: int) -> None:
    column = np.frombuffer(bytes(start) + data, np.uint8)
    assert int(hash_slice(column, start, len(data), np.uint64(seed))) == xxhash.xxh64_intdigest(data, seed)


def test_rows_hash_as_xxh64() -> None:
    rows = np.random.default_rng(2).integers(0, 256, (50, 38), np.uint8)
    assert hash_rows(rows, np.uint64(7)).tolist() == [xxhash.xxh64_intdigest(r.tobytes(), 7) for r in rows]


@kernel
def _read(data: UInt8Array, at: int) -> tuple[int, int, int, int, int, int, np.uint64]:
    base = address_of(data)
    return (
        byte_at(base, at),
        big_16(base, at),
        big_32(base, at),
        number_16(base, at, False),
        number_32(base, at, False),
        number_32(base, at, True),
        word_at(base, at),
    )


@given(data=st.binary(min_size=16, max_size=16), at=st.integers(0, 8))
def test_numbers_are_read_at_any_alignment(data: bytes, at: int) -> None:
    part = data[at:]
    assert tuple(map(int, _read(np.frombuffer(data, np.uint8), at))) == (
        part[0],
        int.from_bytes(part[:2], "big"),
        int.from_bytes(part[:4], "big"),
        int.from_bytes(part[:2], "little"),
        int.from_bytes(part[:4], "little"),
        int.from_bytes(part[:4], "big"),
        int.from_bytes(part[:8], "little"),
    )


@kernel
def _write(data: UInt8Array, word: np.uint64, byte: int) -> None:
    put_word(address_of(data), 1, word)
    put_byte(address_of(data), 11, byte)


def test_numbers_are_written_and_nothing_else() -> None:
    data = np.full(13, 0xEE, np.uint8)
    _write(data, np.uint64(0x0807060504030201), 0x1FF)
    assert data.tolist() == [0xEE, 1, 2, 3, 4, 5, 6, 7, 8, 0xEE, 0xEE, 0xFF, 0xEE]
