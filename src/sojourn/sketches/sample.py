"""Coordinated sample: the same packets kept at both ends, fair to small flows, in fixed memory.

Flows hash to `groups`; each group has its own threshold and keeps the packets whose hash lies below it, as
⟨hash, flow tag, time⟩. All groups draw from one pool of `slots`. The *level* c is the largest number for which
Σ min(packets of the group, c) fits the pool; a group of more than c packets keeps those below its (c + 1)-th
smallest hash and is *cut*, the others keep everything. An elephant can therefore take no slot from a group below
the level, and what small flows leave free goes to the large ones.

Guarantee: what is kept depends only on which packets were recorded, not on their order or on how they were split
over sketches that are merged. A group holds **all** its packets below its threshold, so below the smaller of two
ends' thresholds both hold a random sample (by hash) of the same packets, whatever was lost between them. The share
kept is known per group (`shares`), and every group counts all its packets. Identical packets have one hash: a flood
of them can lower its group's threshold to that hash, and no further.
Two packets of a flow of N share a hash of b bits with probability N·2⁻ᵇ, two flows of a group of F a tag of f bits
with F·2⁻ᶠ. Times are kept modulo 2ᵗ ns: differences are exact while every delay stays below `max_delay_ns`.
Memory: (slots + waiting) × (b + f + t) bits, groups × (b + count + held bits). Packets that fall below their
threshold wait in a sixteenth as many slots until they are sorted in, by a merge in place.
A group's row is ⟨cut, packets, held⟩: its threshold is 2ᵇ − cut (an empty sketch is all zeros), and its `held` packets
are next to each other in the pool, in the order of the groups. A group that was cut has more than c packets, so it
counts c whatever it still has: the level, and with it the pool, is the same in whatever order packets came.
Time: two hashes and one group per packet, O(1); of N packets about slots · ln(N/slots) are sorted in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import MismatchError, SketchFullError, UsageError
from sojourn.core.hash_kernels import mix, mix_column, to_range
from sojourn.core.kernels import inlined, kernel, signed
from sojourn.sketches.parameters import Field, Kind, Parameters, Table, counter_limit, integer
from sojourn.sketches.sketch import Sketch

FLOW_FUNCTION = 1 << 24
MOST_SLOTS = 1 << 24
PACKET_FUNCTION = FLOW_FUNCTION + 1
WAITING_SHARE = 16  # one waiting packet for so many slots: sorting in then costs a merge per sixteenth of the pool
LEAST_WAITING = 16
# Columns of a group.
CUT, PACKETS, HELD = 0, 1, 2
_HALF = np.uint64(32)


@dataclass(frozen=True, kw_only=True)
class SampleParameters(Parameters):
    """Size of a sample, and how much of a packet's hash, flow and time a slot holds."""

    kind = "sample"

    slots: int = integer("n", 1, MOST_SLOTS)
    groups: int = integer("g", 1, 2**20)
    hash_bits: int = integer("b", 8, 42, default=32)
    flow_bits: int = integer("f", 1, 32, default=16)
    time_bits: int = integer("t", 2, 63, default=40)
    count_bits: int = integer("c", 1, 63, default=32)
    max_delay_ns: int = integer("delay", 1, 2**62, default=10_000_000_000)
    salt: int = integer("salt", 0, 2**64 - 1, default=0)

    def _check_together(self) -> None:
        if self.slots < self.groups:
            raise self.error(f"{self.slots} slots for {self.groups} groups", "give at least one slot per group")
        if self.max_delay_ns > counter_limit(self.time_bits - 1):
            raise self.error(
                f"a time of {self.time_bits} bits cannot tell a delay of {self.max_delay_ns} ns",
                "widen time_bits or lower max_delay_ns",
            )

    def tables(self) -> tuple[Table, ...]:
        groups = (
            Field("cut", self.hash_bits, Kind.KEPT),
            Field("packets", self.count_bits, Kind.COUNT),
            Field("held", (self.slots + 1).bit_length(), Kind.COUNT),
        )
        slots = (
            Field("hash", self.hash_bits, Kind.KEPT),
            Field("flow", self.flow_bits, Kind.KEPT),
            Field("time", self.time_bits, Kind.KEPT),
        )
        return (Table("groups", self.groups, groups), Table("slots", self.slots, slots))

    @property
    def waiting(self) -> int:
        """Slots for packets that are not sorted in yet; no part of an epoch."""
        return max(LEAST_WAITING, self.slots // WAITING_SHARE)

    @property
    def memory_bits(self) -> int:
        """Groups, slots and the packets that wait (with their group's number)."""
        slot_bits = self.hash_bits + self.flow_bits + self.time_bits
        group_bits = (self.groups - 1).bit_length()
        return super().memory_bits + self.waiting * (slot_bits + group_bits)

    @property
    def everything(self) -> int:
        """The threshold below which every hash lies."""
        return 1 << self.hash_bits

    @cached_property
    def shape(self) -> _Shape:
        return _Shape(
            flow_salt=np.uint64(hashing.salt_for(FLOW_FUNCTION, self.salt)),
            packet_salt=np.uint64(hashing.salt_for(PACKET_FUNCTION, self.salt)),
            hash_shift=np.uint64(64 - self.hash_bits),
            flow_mask=np.uint64((1 << self.flow_bits) - 1),
            time_mask=(1 << self.time_bits) - 1,
            everything=self.everything,
            count_limit=counter_limit(self.count_bits),
        )

    def locate(self, flow_id: UInt64Array) -> tuple[Int64Array, Int64Array]:
        """The group and the tag of flows."""
        hashed = mix_column(flow_id ^ self.shape.flow_salt)
        group = ((hashed >> _HALF) * np.uint64(self.groups)) >> _HALF
        return group.astype(np.int64), (hashed & self.shape.flow_mask).astype(np.int64)


@dataclass(frozen=True, eq=False)
class KeptPackets:
    """The packets of a sample, ordered by group, hash, flow and time."""

    group: Int64Array
    hash: Int64Array
    flow: Int64Array
    time: Int64Array

    def select(self, rows: BoolArray) -> KeptPackets:
        return KeptPackets(self.group[rows], self.hash[rows], self.flow[rows], self.time[rows])

    def __len__(self) -> int:
        return len(self.hash)


class _Shape(NamedTuple):
    """How packets find their group and what is kept of them, as the kernel reads it."""

    flow_salt: np.uint64
    packet_salt: np.uint64
    hash_shift: np.uint64
    flow_mask: np.uint64
    time_mask: int
    everything: int
    count_limit: int


@kernel
def _offer(
    groups: Int64Array,
    waiting: Int64Array,
    count: int,
    flow_id: UInt64Array,
    packet_id: UInt64Array,
    time_ns: Int64Array,
    start: int,
    shape: _Shape,
) -> tuple[int, int]:
    """Count packets from `start` on and let those below their threshold wait: where it stopped, how many wait.

    It stops at the first packet whose group's counter has no room, or that would wait without room.
    """
    size = np.uint64(groups.shape[0])
    for i in range(start, len(flow_id)):
        flow_hash = mix(flow_id[i] ^ shape.flow_salt)
        group = to_range(flow_hash, size)
        if groups[group, PACKETS] >= shape.count_limit:
            return i, count
        hashed = max(np.int64(mix(packet_id[i] ^ shape.packet_salt) >> shape.hash_shift), np.int64(1))
        if hashed + groups[group, CUT] < shape.everything:
            if count == waiting.shape[0]:
                return i, count
            waiting[count, 0] = group
            waiting[count, 1] = hashed
            waiting[count, 2] = np.int64(flow_hash & shape.flow_mask)
            waiting[count, 3] = time_ns[i] & shape.time_mask
            count += 1
        groups[group, PACKETS] += 1
    return len(flow_id), count


class Sample(Sketch[SampleParameters, PacketBatch]):
    """A coordinated sample at one observation point."""

    parameters_type = SampleParameters

    def __init__(self, parameters: SampleParameters) -> None:
        self._waiting = np.zeros((parameters.waiting, 4), np.int64)
        self._waits = 0
        super().__init__(parameters)
        # Room behind the slots lets the waiting packets be merged in place.
        self._pool = np.zeros((parameters.slots + parameters.waiting, 3), np.int64)
        self._tables[1] = self._pool[: parameters.slots]

    @property
    def arrays(self) -> list[Int64Array]:
        """The tables, with all packets sorted in."""
        self._settle()
        return self._tables

    @arrays.setter
    def arrays(self, tables: list[Int64Array]) -> None:
        self._tables = tables

    def _record(self, batch: PacketBatch) -> int:
        row = 0
        while True:
            room = self._tables[0], self._waiting, self._waits
            row, self._waits = _offer(*room, batch.flow_id, batch.packet_id, batch.time_ns, row, self.parameters.shape)
            if row == len(batch) or self._waits < len(self._waiting):
                return row
            self._settle()

    def _settle(self) -> None:
        """Sort the waiting packets in and cut what exceeds the level."""
        if self._waits:
            groups = self._tables[0]
            _merge_from_back(
                groups, self._pool, _sorted_waiting(self._waiting[: self._waits], self.parameters.hash_bits)
            )
            self._waits = 0
            _cut_to_level(groups, self._pool, self.parameters.slots, self.parameters.everything)

    def kept(self) -> KeptPackets:
        """All packets in the slots."""
        groups, slots = self.arrays
        held = groups[:, HELD]
        rows = slots[: int(held.sum())]
        return KeptPackets(np.repeat(np.arange(len(held)), held), rows[:, 0], rows[:, 1], rows[:, 2])

    @property
    def thresholds(self) -> Int64Array:
        """Each group's threshold: it holds all its packets with smaller hashes, and no others."""
        return self.parameters.everything - self.arrays[0][:, CUT]

    @property
    def shares(self) -> FloatArray:
        """The share of its packets that each group keeps, in expectation; 1 where nothing was cut."""
        return self.thresholds / self.parameters.everything

    def _combined(self, other: Self, *, sign: int) -> Self:
        """The union of both samples, cut to the level of all their packets."""
        p = self.parameters
        if sign < 0:
            raise UsageError("what a sample dropped cannot come back", where=p.kind, action="keep the epochs apart")
        p.require_equal(other.parameters)
        result = type(self)(p)
        groups = result._tables[0]
        own, others = self.arrays, other.arrays
        groups[:, PACKETS] = own[0][:, PACKETS] + others[0][:, PACKETS]
        if (over := groups[:, PACKETS].max()) > counter_limit(p.count_bits) or groups[:, PACKETS].min() < 0:
            raise SketchFullError(
                f"a group of {over} packets would leave its {p.count_bits} bits",
                where=p.kind,
                action="keep the epochs apart",
            )
        groups[:, CUT] = np.maximum(own[0][:, CUT], others[0][:, CUT])
        for sample in (self, other):
            kept = sample.kept()
            result._take(kept.select(kept.hash < p.everything - groups[kept.group, CUT]))
        _cut_to_level(groups, result._pool, p.slots, p.everything)
        return result

    def _take(self, kept: KeptPackets) -> None:
        """Packets of another sample, as many at a time as can wait."""
        rows = np.column_stack((kept.group, kept.hash, kept.flow, kept.time))
        for start in range(0, len(rows), len(self._waiting)):
            part = rows[start : start + len(self._waiting)]
            part = part[part[:, 1] < self.parameters.everything - self._tables[0][part[:, 0], CUT]]
            self._waiting[: len(part)] = part
            self._waits = len(part)
            self._settle()

    def shifted(self, offset_ns: int) -> Self:
        """The sample that a clock ahead by `offset_ns` would have kept; the order of equal packets stays."""
        result = self.copy()
        held = int(result.arrays[0][:, HELD].sum())
        mask = (1 << self.parameters.time_bits) - 1
        result.arrays[1][:held, 2] = (result.arrays[1][:held, 2] + offset_ns) & mask
        return result

    def reset(self) -> None:
        super().reset()
        self._waits = 0

    def check(self) -> None:
        """Refuse tables that recording could not have filled (`epochs.wire` asks for decoded ones)."""
        groups, slots = self.arrays
        held = groups[:, HELD]
        if int(held.sum()) > len(slots) or (held > groups[:, PACKETS]).any():
            raise MismatchError("groups hold more packets than there are", where="groups.held")
        if int(groups[:, PACKETS].sum()) != self.recorded:
            raise MismatchError("the groups' packets do not add up to those recorded", where="groups.packets")
        kept = self.kept()
        if slots[len(kept) :].any():
            raise MismatchError("an empty slot is not zero", where="slots")
        if (kept.hash < 1).any() or (kept.hash >= self.thresholds[kept.group]).any():
            raise MismatchError("a packet lies outside its group's threshold", where="slots.hash")
        order = np.lexsort((kept.time, kept.flow, kept.hash, kept.group))
        if (np.diff(order) != 1).any():
            raise MismatchError("packets are not in order", where="slots")


def _sorted_waiting(waiting: Int64Array, hash_bits: int) -> Int64Array:
    """Rows ⟨group, hash, flow, time⟩ in that order."""
    key = (waiting[:, 0] << hash_bits) | waiting[:, 1]
    order = np.argsort(key)
    ordered = key[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.lexsort((waiting[:, 3], waiting[:, 2], key))
    return waiting[order]


@inlined
def _follows(group: int, slots: Int64Array, row: int, waiting: Int64Array, other: int) -> bool:
    """Whether a packet in the pool belongs behind one that waits."""
    if group != waiting[other, 0]:
        return bool(group > waiting[other, 0])
    for column in range(3):
        if slots[row, column] != waiting[other, column + 1]:
            return bool(slots[row, column] > waiting[other, column + 1])
    return False


@kernel
def _merge_from_back(groups: Int64Array, pool: Int64Array, waiting: Int64Array) -> None:
    """Merge ordered packets into the pool, largest first, so that nothing is overwritten before it has moved.

    The pool has room for as many rows as its groups hold and wait together.
    """
    row = signed(-1)
    for group in range(groups.shape[0]):
        row += groups[group, HELD]
    other = signed(waiting.shape[0] - 1)
    target = row + waiting.shape[0]
    group = signed(groups.shape[0] - 1)
    left = groups[group, HELD]
    while other >= 0:
        while row >= 0 and left == 0:
            group -= 1
            left = groups[group, HELD]
        if row >= 0 and _follows(group, pool, row, waiting, other):
            pool[target] = pool[row]
            row -= 1
            left -= 1
        else:
            pool[target] = waiting[other, 1:]
            other -= 1
        target -= 1
    for i in range(waiting.shape[0]):
        groups[waiting[i, 0], HELD] += 1


@kernel
def _needed(groups: Int64Array, level: int) -> int:
    """Σ min(packets, level): the slots that a level calls for."""
    total = signed(0)
    for group in range(groups.shape[0]):
        total += level if groups[group, CUT] > 0 else min(groups[group, HELD], level)
    return total


@kernel
def _cut_to_level(groups: Int64Array, pool: Int64Array, slots: int, everything: int) -> None:
    """Find the level and drop what lies above it or at or above its group's threshold."""
    low, high = signed(1), signed(slots)
    while low < high:
        middle = (low + high + 1) // 2
        if _needed(groups, middle) <= slots:
            low = middle
        else:
            high = middle - 1
    read = signed(0)
    write = signed(0)
    for group in range(groups.shape[0]):
        held = groups[group, HELD]
        threshold = everything - groups[group, CUT]
        keep = min(held, low)
        if held > low:
            threshold = min(threshold, pool[read + low, 0])
        while keep > 0 and pool[read + keep - 1, 0] >= threshold:
            keep -= 1
        for i in range(keep):
            for column in range(3):
                pool[write + i, column] = pool[read + i, column]
        groups[group, CUT] = everything - threshold
        groups[group, HELD] = keep
        read += held
        write += keep
    pool[write:read] = 0
