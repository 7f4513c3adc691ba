"""XXH64 and the mixing of ``(id, j, salt)`` into buckets, in plain Python.

This is the model that the Numba kernels (`hash_kernels`) are tested against, and what code that
hashes a few keys uses: it needs no compiler and starts at once. A key is hashed once, in 64-bit
arithmetic; what is done for every packet and measurement, the mixing, needs only 32-bit words, so that
a micro-controller can afford it. Both are exact: a small board, a kernel and this file agree bit for bit.

Cost: about 5 µs per key in CPython; O(length).
"""

from __future__ import annotations

MASK = (1 << 64) - 1
HALF_MASK = (1 << 32) - 1

# XXH64's five primes (Y. Collet, xxHash specification).
PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F
PRIME_3 = 0x165667B19E3779F9
PRIME_4 = 0x85EBCA77C2B2AE63
PRIME_5 = 0x27D4EB2F165667C5

# 2⁶⁴ divided by the golden ratio: multiples of it are spread evenly over the 64-bit words.
GOLDEN_GAMMA = 0x9E3779B97F4A7C15

# Multipliers of a 32-bit mixing function with little bias (C. Wellons, hash-prospector; shifts 16, 15, 15).
MIX_1 = 0x21F0AAAD
MIX_2 = 0xD35A2D97
# What the second and third round add, from the golden ratio and √2: equal rounds would make the mix undo itself.
ROUND_2 = 0x9E3779B9
ROUND_3 = 0x6A09E667


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & MASK


def _round(accumulator: int, lane: int) -> int:
    return _rotate((accumulator + lane * PRIME_2) & MASK, 31) * PRIME_1 & MASK


def _word(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def hash_bytes(data: bytes, seed: int = 0) -> int:
    """The XXH64 of `data`.

    >>> f"{hash_bytes(b''):016x}"
    'ef46db3751d8e999'
    """
    length = len(data)
    offset = 0
    if length >= 32:
        lanes = [seed + PRIME_1 + PRIME_2, seed + PRIME_2, seed, seed - PRIME_1]
        lanes = [lane & MASK for lane in lanes]
        while offset + 32 <= length:
            for i in range(4):
                lanes[i] = _round(lanes[i], _word(data, offset + 8 * i, 8))
            offset += 32
        state = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            state = ((state ^ _round(0, lane)) * PRIME_1 + PRIME_4) & MASK
    else:
        state = (seed + PRIME_5) & MASK
    return _finish(data, offset, (state + length) & MASK)


def _finish(data: bytes, offset: int, state: int) -> int:
    """Take in the last 0–31 bytes, then avalanche."""
    length = len(data)
    while offset + 8 <= length:
        state = _rotate(state ^ _round(0, _word(data, offset, 8)), 27) * PRIME_1 + PRIME_4 & MASK
        offset += 8
    if offset + 4 <= length:
        state ^= _word(data, offset, 4) * PRIME_1 & MASK
        state = _rotate(state, 23) * PRIME_2 + PRIME_3 & MASK
        offset += 4
    while offset < length:
        state = _rotate(state ^ (data[offset] * PRIME_5 & MASK), 11) * PRIME_1 & MASK
        offset += 1
    state = (state ^ (state >> 33)) * PRIME_2 & MASK
    state = (state ^ (state >> 29)) * PRIME_3 & MASK
    return state ^ (state >> 32)


def mix32(value: int) -> int:
    """A bijection of 32-bit words in which every bit moves every bit."""
    value = (value ^ (value >> 16)) * MIX_1 & HALF_MASK
    value = (value ^ (value >> 15)) * MIX_2 & HALF_MASK
    return value ^ (value >> 15)


def mix64(value: int) -> int:
    """A bijection of 64-bit words in which every bit moves every bit: three Feistel rounds of `mix32`."""
    high, low = value >> 32, value & HALF_MASK
    high ^= mix32(low)
    low ^= mix32(high + ROUND_2 & HALF_MASK)
    high ^= mix32(low + ROUND_3 & HALF_MASK)
    return high << 32 | low


def salt_for(j: int, salt: int) -> int:
    """The word that selects hash function number `j` of the family that `salt` names."""
    return mix64((salt + (j + 1) * GOLDEN_GAMMA) & MASK)
