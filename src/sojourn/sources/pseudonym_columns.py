"""Pseudonyms of columns: ids by a table, packets by SipHash-2-4, in kernels.

The table has two generations. What is looked up in the earlier one moves into the present one, so that an instance is
forgotten only when `most` others have been measured since. Memory: 24 bytes an entry in each. Cost: 7 to 15 ns for a
packet with its id, 2 to 6 of them for the hash (a million packets of 20,000 flows, one core).

    J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF" (2012)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.flows.table import empty_slots, fill_slots, find_slot
from sojourn.core.arrays import BoolArray, MeasurementBatch, PacketBatch, UInt64Array, lengthened
from sojourn.core.kernels import inlined, kernel
from sojourn.core.pseudonyms.mapping import Pseudonyms

FIRST_CAPACITY = 1 << 10
# SipHash's four words of state begin as these ("somepseudorandomlygeneratedbytes"), and the length of its message.
_WORDS = tuple(np.uint64(w) for w in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573))
_WORD_0, _WORD_1, _WORD_2, _WORD_3 = _WORDS
_EIGHT_BYTES, _FINAL = np.uint64(8 << 56), np.uint64(0xFF)
_BITS = np.uint64(64)
Words = tuple[np.uint64, np.uint64]
_State = tuple[np.uint64, np.uint64, np.uint64, np.uint64]


@inlined
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    shift = np.uint64(bits)
    return (value << shift) | (value >> (_BITS - shift))


@inlined
def _sip_rounds(state: _State, count: int) -> _State:
    a, b, c, d = state
    for _ in range(count):
        a += b
        b = _rotate(b, 13) ^ a
        a = _rotate(a, 32)
        c += d
        d = _rotate(d, 16) ^ c
        a += d
        d = _rotate(d, 21) ^ a
        c += b
        b = _rotate(b, 17) ^ c
        c = _rotate(c, 32)
    return a, b, c, d


@inlined
def keyed_hash(first: np.uint64, second: np.uint64, word: np.uint64) -> np.uint64:
    """SipHash-2-4 of the eight bytes of a word, under a key of two words."""
    a, b, c, d = _sip_rounds((first ^ _WORD_0, second ^ _WORD_1, first ^ _WORD_2, second ^ _WORD_3 ^ word), 2)
    a, b, c, d = _sip_rounds((a ^ word, b, c, d ^ _EIGHT_BYTES), 2)
    a, b, c, d = _sip_rounds((a ^ _EIGHT_BYTES, b, c ^ _FINAL, d), 4)
    return a ^ b ^ c ^ d


@kernel
def _hash_column(first: np.uint64, second: np.uint64, column: UInt64Array, hashed: UInt64Array) -> None:
    for i in range(column.shape[0]):
        hashed[i] = keyed_hash(first, second, column[i])


@kernel
def _rename(
    slots: NDArray[np.int32],
    ids: UInt64Array,
    named: UInt64Array,
    earlier_slots: NDArray[np.int32],
    earlier_ids: UInt64Array,
    earlier_named: UInt64Array,
    first: np.uint64,
    second: np.uint64,
    column: UInt64Array,
    renamed: UInt64Array,
    from_earlier: BoolArray,
) -> None:
    """The id of each row's pseudonym; `from_earlier` marks those that the earlier generation knows."""
    for i in range(column.shape[0]):
        row = slots[find_slot(slots, ids, column[i])]
        if row >= 0:
            renamed[i] = named[row]
            continue
        row = earlier_slots[find_slot(earlier_slots, earlier_ids, column[i])]
        if row >= 0:
            renamed[i] = earlier_named[row]
            from_earlier[i] = True
        else:
            renamed[i] = keyed_hash(first, second, column[i])


@kernel
def _enter(
    slots: NDArray[np.int32],
    ids: UInt64Array,
    named: UInt64Array,
    count: int,
    clear: UInt64Array,
    hidden: UInt64Array,
) -> int:
    """Enter what is not there yet; there is room. How many there are then."""
    for i in range(clear.shape[0]):
        slot = find_slot(slots, ids, clear[i])
        if slots[slot] < 0:
            slots[slot] = count
            ids[count], named[count] = clear[i], hidden[i]
            count += 1
    return count


class _Generation:
    """Clear ids and those of their pseudonyms, by open addressing; grows by doubling."""

    def __init__(self) -> None:
        self.count = 0
        self.ids, self.named = np.zeros((2, FIRST_CAPACITY), np.uint64)
        self.slots = empty_slots(FIRST_CAPACITY)

    def add(self, clear: UInt64Array, hidden: UInt64Array) -> None:
        """Take in ids, some of which may be there."""
        if (needed := self.count + len(clear)) > len(self.ids):
            self.ids, self.named = lengthened(self.ids, needed), lengthened(self.named, needed)
            self.slots = empty_slots(len(self.ids))
            fill_slots(self.slots, self.ids, self.count)
        self.count = int(_enter(self.slots, self.ids, self.named, self.count, clear, hidden))


class ColumnIds:
    """The ids of pseudonyms by those of clear keys, and the keyed hashes of packets."""

    def __init__(self, pseudonyms: Pseudonyms, most: int) -> None:
        self._most = most
        self._unknown, self._packet = (_words(pseudonyms, purpose) for purpose in ("flow", "packet"))
        self._now, self._earlier = _Generation(), _Generation()

    def rehearse(self) -> None:
        """Compile, or load, what is needed for the first packet."""
        self.learn([(1, 1)])
        self.renamed(PacketBatch.of([1], [1], [1], [1]))
        self._now = _Generation()

    def learn(self, ids: Sequence[tuple[int, int]]) -> None:
        """Know some instances by both their ids, clear and hidden."""
        if ids:
            clear, hidden = np.array(ids, np.uint64).T
            self._add(np.ascontiguousarray(clear), np.ascontiguousarray(hidden))

    def _add(self, clear: UInt64Array, hidden: UInt64Array) -> None:
        if self._now.count >= self._most:
            self._now, self._earlier = _Generation(), self._now
        self._now.add(clear, hidden)

    def renamed(self, batch: MeasurementBatch | PacketBatch) -> Any:
        """The rows under the ids of pseudonyms; packets under keyed hashes of their own."""
        if isinstance(batch, PacketBatch):
            packet_id = np.empty_like(batch.packet_id)
            _hash_column(*self._packet, batch.packet_id, packet_id)
            return replace(batch, flow_id=self._ids(batch.flow_id), packet_id=packet_id)
        return replace(batch, instance_id=self._ids(batch.instance_id))

    def _ids(self, column: UInt64Array) -> UInt64Array:
        renamed, from_earlier = np.empty_like(column), np.zeros(len(column), np.bool_)
        tables = [(one.slots, one.ids, one.named) for one in (self._now, self._earlier)]
        _rename(*tables[0], *tables[1], *self._unknown, column, renamed, from_earlier)
        if from_earlier.any():
            late, first = np.unique(column[from_earlier], return_index=True)
            self._add(late, renamed[from_earlier][first])
        return renamed


def _words(pseudonyms: Pseudonyms, purpose: str) -> Words:
    first, second = pseudonyms.hash_key(purpose)
    return np.uint64(first), np.uint64(second)
