"""`hashing` as Numba kernels: the same words, tens of millions per second.

Every constant is a ``uint64``: Numba turns a ``uint64`` beside a signed integer into a float.
"""

from __future__ import annotations

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.kernels import address_of, byte_at, inlined, kernel, little_32, signed, word_at

_PRIME_1 = np.uint64(hashing.PRIME_1)
_PRIME_2 = np.uint64(hashing.PRIME_2)
_PRIME_3 = np.uint64(hashing.PRIME_3)
_PRIME_4 = np.uint64(hashing.PRIME_4)
_PRIME_5 = np.uint64(hashing.PRIME_5)
_MIX_1 = np.uint32(hashing.MIX_1)
_MIX_2 = np.uint32(hashing.MIX_2)
_ROUND_2 = np.uint32(hashing.ROUND_2)
_ROUND_3 = np.uint32(hashing.ROUND_3)
_WORD_BITS = np.uint64(64)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(hashing.HALF_MASK)
_0 = np.uint64(0)


@inlined
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    shift = np.uint64(bits)
    return (value << shift) | (value >> (_WORD_BITS - shift))


@inlined
def _round(accumulator: np.uint64, lane: np.uint64) -> np.uint64:
    return _rotate(accumulator + lane * _PRIME_2, 31) * _PRIME_1


@inlined
def _mix_half(value: np.uint32) -> np.uint32:
    """`hashing.mix32`; the casts keep the words 32 bits wide, which Numba would widen."""
    value = np.uint32((value ^ (value >> np.uint32(16))) * _MIX_1)
    value = np.uint32((value ^ (value >> np.uint32(15))) * _MIX_2)
    return np.uint32(value ^ (value >> np.uint32(15)))


@inlined
def mix(value: np.uint64) -> np.uint64:
    """`hashing.mix64`."""
    low = np.uint32(value & _LOW_HALF)
    high = np.uint32(np.uint32(value >> _HALF) ^ _mix_half(low))
    low = np.uint32(low ^ _mix_half(np.uint32(high + _ROUND_2)))
    high = np.uint32(high ^ _mix_half(np.uint32(low + _ROUND_3)))
    return (np.uint64(high) << _HALF) | np.uint64(low)


@inlined
def to_range(hashed: np.uint64, size: np.uint64) -> np.int64:
    """The high half of a hash onto ``0 … size − 1`` by multiplication (`size` ≤ 2³²)."""
    return np.int64(((hashed >> _HALF) * size) >> _HALF)


@inlined
def bucket(instance_id: np.uint64, function_salt: np.uint64, size: np.uint64) -> np.int64:
    """H(id, j) of the papers, given the word of one hash function (`salt_table`)."""
    return to_range(mix(instance_id ^ function_salt), size)


@kernel
def bucket_matrix(instance_id: UInt64Array, salts: UInt64Array, size: np.uint64) -> Int64Array:
    """H(id, j) of every instance (rows) and hash function (columns)."""
    buckets = np.empty((instance_id.shape[0], salts.shape[0]), np.int64)
    for i in range(instance_id.shape[0]):
        for j in range(salts.shape[0]):
            buckets[i, j] = bucket(instance_id[i], salts[j], size)
    return buckets


@kernel
def hash_slice(data: UInt8Array, start: int, length: int, seed: np.uint64) -> np.uint64:
    """The XXH64 of ``data[start : start + length]``; O(length), about 5 ns for a flow key."""
    return hash_at(address_of(data) + start, length, seed)


@inlined
def hash_at(address: int, length: int, seed: np.uint64) -> np.uint64:
    """The XXH64 of the `length` bytes at an address."""
    offset = signed(0)
    if length >= 32:
        a = seed + _PRIME_1 + _PRIME_2
        b = seed + _PRIME_2
        c = seed
        d = seed - _PRIME_1
        while offset + 32 <= length:
            a = _round(a, word_at(address, offset))
            b = _round(b, word_at(address, offset + 8))
            c = _round(c, word_at(address, offset + 16))
            d = _round(d, word_at(address, offset + 24))
            offset += 32
        state = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        for lane in (a, b, c, d):
            state = (state ^ _round(_0, lane)) * _PRIME_1 + _PRIME_4
    else:
        state = seed + _PRIME_5
    state += np.uint64(length)
    return _finish(address, offset, length, state)


@inlined
def hash_flow_4(source: np.uint64, destination: np.uint64, ports: np.uint64, protocol: np.uint64) -> np.uint64:
    """The id of an IPv4 five-tuple: XXH64 of its 14 canonical bytes, from words read little-endian.

    The bytes ``1 · src[4] · dest[4] · ports[4] · protocol`` fall into one word of 8, one of 4 and two bytes.
    """
    state = _PRIME_5 + np.uint64(14)
    word = np.uint64(1) | (source << np.uint64(8)) | (destination << np.uint64(40))
    state = _rotate(state ^ _round(_0, word), 27) * _PRIME_1 + _PRIME_4
    half = ((destination >> np.uint64(24)) | (ports << np.uint64(8))) & np.uint64(0xFFFFFFFF)
    state = _rotate(state ^ (half * _PRIME_1), 23) * _PRIME_2 + _PRIME_3
    state = _rotate(state ^ ((ports >> np.uint64(24)) * _PRIME_5), 11) * _PRIME_1
    state = _rotate(state ^ (protocol * _PRIME_5), 11) * _PRIME_1
    return _avalanche(state)


@inlined
def _finish(address: int, offset: int, end: int, state: np.uint64) -> np.uint64:
    while offset + 8 <= end:
        state = _rotate(state ^ _round(_0, word_at(address, offset)), 27) * _PRIME_1 + _PRIME_4
        offset += 8
    if offset + 4 <= end:
        state ^= np.uint64(little_32(address, offset)) * _PRIME_1
        state = _rotate(state, 23) * _PRIME_2 + _PRIME_3
        offset += 4
    while offset < end:
        state = _rotate(state ^ (np.uint64(byte_at(address, offset)) * _PRIME_5), 11) * _PRIME_1
        offset += 1
    return _avalanche(state)


@inlined
def _avalanche(state: np.uint64) -> np.uint64:
    state = (state ^ (state >> np.uint64(33))) * _PRIME_2
    state = (state ^ (state >> np.uint64(29))) * _PRIME_3
    return state ^ (state >> _HALF)


def hash_rows(rows: UInt8Array, seed: np.uint64) -> UInt64Array:
    """The XXH64 of every row of a two-dimensional byte array."""
    hashes = np.empty(rows.shape[0], np.uint64)
    _hash_rows(rows, seed, hashes)
    return hashes


@kernel
def _hash_rows(rows: UInt8Array, seed: np.uint64, hashes: UInt64Array) -> None:
    for i in range(rows.shape[0]):
        hashes[i] = hash_slice(rows[i], 0, rows.shape[1], seed)


@kernel
def hash_pieces(data: UInt8Array, end: Int64Array, seed: np.uint64) -> UInt64Array:
    """The XXH64 of every piece of `data`, which lie one after the other up to their ends."""
    hashes = np.empty(end.shape[0], np.uint64)
    start = signed(0)
    for i in range(end.shape[0]):
        hashes[i] = hash_at(address_of(data) + start, end[i] - start, seed)
        start = end[i]
    return hashes


def mix_column(column: UInt64Array) -> UInt64Array:
    """`mix` of every word of a column."""
    mixed = np.empty_like(column)
    _mix_column(column, mixed)
    return mixed


@kernel
def _mix_column(column: UInt64Array, mixed: UInt64Array) -> None:
    for i in range(column.shape[0]):
        mixed[i] = mix(column[i])


def salt_table(count: int, salt: int) -> UInt64Array:
    """`hashing.salt_for` of ``0 … count − 1``: one word per hash function, made once per sketch."""
    return np.array([hashing.salt_for(j, salt) for j in range(count)], np.uint64)
