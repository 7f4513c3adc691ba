"""Key reporter: which flows are new in an epoch, from a small rotating Bloom filter.
 Two halves of m bits. An id is entered into the active half by k hashes; it is new if neither half has it. When the
active half has taken `keys` ids, the older one is emptied and becomes the active one. However many ids come, the
filter therefore never fills up: of more than 2 · `keys` ids some are reported twice (harmless: a list of keys has
each once).

Guarantee: an id that was not reported before is **missed** with at most the probability that both halves together give
a false positive, 2·(1 − e^(−k·keys/m))ᵏ at their fullest; m and k are chosen so that this stays below `missed`.
What was missed so far, in expectation, is counted from the halves' true fill (`expected_missed`). Packets of one
id count as one trial: a missed id stays missed until the half that hides it is emptied.
Memory: 2·m bits; m = 1.44·log₂(2/missed)·keys: 5.2 bytes per key at 1 in 10 000. Time: one hash and at most 2·k probes
per packet, O(1).

Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors" (1970).
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import mix
from sojourn.core.kernels import inlined, kernel

KEY_FUNCTION = 1 << 25
MOST_KEYS = 1 << 24
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORD = np.uint64(63)
_WORD_SHIFT = np.uint64(6)
_ONE = np.uint64(1)
# Columns of the state: the active half, ids in it, bits set in either half, rotations.
ACTIVE, LOAD, SET_0, SET_1, ROTATIONS = range(5)


@inlined
def _bit(hashed: np.uint64, number: int, bits: np.uint64) -> np.uint64:
    """The place of an id's bit in a half; the hash's two halves make all functions (Kirsch and Mitzenmacher)."""
    word = ((hashed >> _HALF) + np.uint64(number) * ((hashed & _LOW_HALF) | _ONE)) & _LOW_HALF
    return (word * bits) >> _HALF


@inlined
def _has(half: UInt64Array, hashed: np.uint64, hashes: int, bits: np.uint64) -> bool:
    for number in range(hashes):
        place = _bit(hashed, number, bits)
        if not (half[place >> _WORD_SHIFT] >> (place & _WORD)) & _ONE:
            return False
    return True


@inlined
def _enter(half: UInt64Array, hashed: np.uint64, hashes: int, bits: np.uint64) -> int:
    """Set an id's bits; how many were not set."""
    fresh = 0
    for number in range(hashes):
        place = _bit(hashed, number, bits)
        flag = _ONE << (place & _WORD)
        if not half[place >> _WORD_SHIFT] & flag:
            half[place >> _WORD_SHIFT] |= flag
            fresh += 1
    return fresh


@kernel
def _first_seen(
    halves: UInt64Array,
    state: Int64Array,
    missed: FloatArray,
    ids: UInt64Array,
    salt: np.uint64,
    hashes: int,
    bits: np.uint64,
    keys: int,
    new: BoolArray,
) -> None:
    for i in range(len(ids)):
        hashed = mix(ids[i] ^ salt)
        active = state[ACTIVE]
        if _has(halves[active], hashed, hashes, bits):
            continue
        if not _has(halves[1 - active], hashed, hashes, bits):
            new[i] = True
            clear = 1.0
            for half in range(2):
                clear *= 1.0 - (state[SET_0 + half] / bits) ** hashes
            missed[0] += 1.0 / clear - 1.0
        if state[LOAD] == keys:
            active = 1 - active
            halves[active][:] = 0
            state[ACTIVE], state[LOAD], state[SET_0 + active] = active, 0, 0
            state[ROTATIONS] += 1
        state[SET_0 + active] += _enter(halves[active], hashed, hashes, bits)
        state[LOAD] += 1


class KeyReporter:
    """Reports of each packet's id whether it is seen for the first time since the last `reset`."""

    def __init__(self, keys: int = 4096, *, missed: float = 1e-4, salt: int = 0) -> None:
        if not 1 <= keys <= MOST_KEYS:
            raise ParameterError(f"keys is {keys}", where="key reporter", action=f"use 1 to {MOST_KEYS}")
        if not 1e-9 <= missed <= 0.5:
            raise ParameterError(f"missed is {missed}", where="key reporter", action="use a share of 1e-9 to 0.5")
        self.keys, self.missed = keys, missed
        self.hashes = max(1, round(math.log2(2 / missed)))
        self.half_bits = _bits_for(keys, self.hashes, missed / 2)
        self._salt = np.uint64(hashing.salt_for(KEY_FUNCTION, salt))
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next epoch begins."""
        self._halves = np.zeros((2, -(-self.half_bits // 64)), np.uint64)
        self._state = np.zeros(5, np.int64)
        self._missed = np.zeros(1)
        self.reported = 0

    def first_seen(self, ids: UInt64Array) -> BoolArray:
        """A mask of the rows whose id was not seen before."""
        new = np.zeros(len(ids), bool)
        shape = self._salt, self.hashes, np.uint64(self.half_bits)
        _first_seen(self._halves, self._state, self._missed, ids, *shape, self.keys, new)
        self.reported += int(np.count_nonzero(new))
        return new

    @property
    def false_positive_rate(self) -> float:
        """The probability that the next new id is missed."""
        fills = self._state[SET_0 : SET_1 + 1] / self.half_bits
        return float(1 - np.prod(1 - fills**self.hashes))

    @property
    def expected_missed(self) -> float:
        """How many ids were missed so far, in expectation."""
        return float(self._missed[0])

    @property
    def rotations(self) -> int:
        """How often the older half was emptied; above 1, ids may have been reported twice."""
        return int(self._state[ROTATIONS])

    @property
    def memory_bits(self) -> int:
        """Both halves."""
        return 2 * self.half_bits


def _bits_for(keys: int, hashes: int, rate: float) -> int:
    """The bits of a half in which `keys` ids give at most that false-positive rate."""
    bits = math.ceil(-hashes * keys / math.log1p(-(rate ** (1 / hashes))))
    return max(64, bits)
