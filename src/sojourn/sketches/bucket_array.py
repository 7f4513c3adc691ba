"""Bucket array: sums (and counts) of a metric per instance in tens of bytes.

n buckets of b bits; an instance owns the m buckets H(I, 1) … H(I, m), shared with other instances. A
measurement goes into one of them, chosen by the *spreading*:

- ``random``: uniformly (as published);
- ``sequence``: the measurement's sequence number modulo m, so that a later measurement about the same
  packet finds the same bucket;
- ``round-robin``: each of the instance's buckets in turn, by a table of instance ids with a step each that grows as
  instances appear;
- ``hashed-steps``: in turn, by 64 shared steps (24 bytes for m ≤ 8), of which an instance uses the one its hash names.

Steps decide where the next measurement goes and nothing else: they are not part of an epoch.

Guarantee: every measurement is in exactly one bucket, and a bucket is the sum of its measurements: in
range, or with ``wrap`` modulo 2ᵇ (exact while the final sum fits: for time stamps that are added and
subtracted again). Give each epoch its own salt and the same instances collide differently in each.
Memory: n × (b + count bits) + steps. Time: one hash, at most two updates, O(1).

Shahzad and Ganji, "IoTm", §II.
"""

from __future__ import annotations

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import BoolArray, Int64Array, MeasurementBatch, UInt64Array
from sojourn.core.hash_kernels import bucket, mix, mix_column, to_range
from sojourn.core.kernels import inlined, kernel
from sojourn.sketches.bucket_parameters import SPREADINGS, BucketArrayParameters
from sojourn.sketches.parameters import counter_limit
from sojourn.sketches.sketch import Sketch

__all__ = [
    "HASHED_STEPS",
    "SPREADINGS",
    "BucketArray",
    "BucketArrayParameters",
    "Steps",
    "find_step",
    "shared_steps",
]

_RANDOM, _SEQUENCE = 0, 1
HASHED_STEPS = 64
_STEP_SALT = np.uint64(hashing.salt_for(1 << 22, 0))
_DRAW_GAMMA = np.uint64(hashing.GOLDEN_GAMMA)


@inlined
def find_step(instance_id: np.uint64, owners: UInt64Array, next_step: Int64Array) -> np.int64:
    """The slot of an instance's step, claimed if new (−1 marks a free slot).

    A table without `owners` is shared: the hash alone names the slot. Slots are a power of two and a
    table is kept at most half full, so a probe ends after about 1.5 looks.
    """
    mask = next_step.shape[0] - 1
    slot = np.int64(mix(instance_id ^ _STEP_SALT) & np.uint64(mask))
    if owners.shape[0] == 0:
        return slot
    while next_step[slot] >= 0 and owners[slot] != instance_id:
        slot = np.int64((slot + 1) & mask)
    if next_step[slot] < 0:
        owners[slot] = instance_id
        next_step[slot] = 0
    return slot


def shared_steps(instance_id: UInt64Array) -> BoolArray:
    """Which of these instances share their hashed step with another of them: those do not go round evenly."""
    slot = mix_column(instance_id ^ _STEP_SALT) & np.uint64(HASHED_STEPS - 1)
    shared: BoolArray = np.bincount(slot.astype(np.int64), minlength=HASHED_STEPS)[slot.astype(np.int64)] > 1
    return shared


@kernel
def _move(owners: UInt64Array, steps: Int64Array, to_owners: UInt64Array, to: Int64Array) -> None:
    for slot in range(steps.shape[0]):
        if steps[slot] >= 0:
            to[find_step(owners[slot], to_owners, to)] = steps[slot]


class Steps:
    """The step table of one bucket array."""

    def __init__(self, *, hashed: bool) -> None:
        self.hashed = hashed
        self.reset()

    def reset(self) -> None:
        self.owners = np.empty(0 if self.hashed else HASHED_STEPS, np.uint64)
        self.next_step = np.full(HASHED_STEPS, 0 if self.hashed else -1, np.int64)

    def reserve(self, newcomers: int) -> None:
        """Make room for that many more instances, at most half of the table used."""
        if self.hashed:
            return
        wanted = 2 * (int(np.count_nonzero(self.next_step >= 0)) + newcomers)
        if wanted <= len(self.next_step):
            return
        slots = 1 << (wanted - 1).bit_length()
        owners, next_step = np.empty(slots, np.uint64), np.full(slots, -1, np.int64)
        _move(self.owners, self.next_step, owners, next_step)
        self.owners, self.next_step = owners, next_step

    def memory_bits(self, buckets_per_instance: int) -> int:
        """Memory at the narrowest width that holds a step, and 64 bits per owner."""
        step_bits = max(1, (buckets_per_instance - 1).bit_length())
        return len(self.next_step) * step_bits + len(self.owners) * 64


@inlined
def _choose(
    spreading: int,
    per_instance: int,
    draw: np.uint64,
    sequence: np.uint64,
    step: np.int64,
) -> np.int64:
    """j of the paper, by the array's spreading."""
    if spreading == _RANDOM:
        return to_range(mix(draw * _DRAW_GAMMA), np.uint64(per_instance))
    if spreading == _SEQUENCE:
        return np.int64(sequence % np.uint64(per_instance))
    return step


@kernel
def _record(
    table: Int64Array,
    instance_id: UInt64Array,
    value: Int64Array,
    sequence: UInt64Array,
    function_salts: UInt64Array,
    spreading: int,
    draw: np.uint64,
    owners: UInt64Array,
    next_step: Int64Array,
    lowest: int,
    highest: int,
    count_limit: int,
) -> int:
    """One pass over the measurements; the index of the first that does not fit."""
    size = np.uint64(table.shape[0])
    per_instance = function_salts.shape[0]
    in_turn = spreading > _SEQUENCE
    for i in range(len(instance_id)):
        slot = step = np.int64(0)
        if in_turn:
            slot = find_step(instance_id[i], owners, next_step)
            step = next_step[slot]
        j = _choose(spreading, per_instance, draw + np.uint64(i), sequence[i], step)
        target = bucket(instance_id[i], function_salts[j], size)
        v, held = value[i], table[target, 0]
        if lowest < highest and ((v > 0 and held > highest - v) or (v < 0 and held < lowest - v)):
            return i
        if count_limit:
            if table[target, 1] >= count_limit:
                return i
            table[target, 1] += 1
        table[target, 0] = held + v
        if in_turn:
            next_step[slot] = (step + 1) % per_instance
    return len(instance_id)


class BucketArray(Sketch[BucketArrayParameters, MeasurementBatch]):
    """The node unit's structure.

    ``seed`` drives random spreading; it never needs to be known to read the buckets.
    """

    parameters_type = BucketArrayParameters
    batch_type = MeasurementBatch

    def __init__(self, parameters: BucketArrayParameters, *, seed: int = 0) -> None:
        super().__init__(parameters)
        self._draws = hashing.mix64(seed & hashing.MASK)
        self._steps = Steps(hashed=parameters.spreading != "round-robin")

    def _record(self, batch: MeasurementBatch) -> int:
        p = self.parameters
        total = p.tables()[0].fields[0]
        if p.spreading == "round-robin":
            self._steps.reserve(len(np.unique(batch.instance_id)))
        spreading = SPREADINGS.index(p.spreading), np.uint64(self._draws), self._steps.owners, self._steps.next_step
        low, high = (0, 0) if p.wrap else (total.lowest, total.highest)
        most = counter_limit(p.count_bits) if p.count_bits else 0
        ids, values, numbers = batch.instance_id, batch.value, batch.sequence
        taken = _record(self.arrays[0], ids, values, numbers, p.function_salts, *spreading, low, high, most)
        self._draws = (self._draws + taken) & hashing.MASK
        return taken

    def reset(self) -> None:
        super().reset()
        self._steps.reset()

    @property
    def memory_bits(self) -> int:
        """Buckets, counts and, where measurements go in turn, the steps."""
        in_turn = self.parameters.spreading in ("round-robin", "hashed-steps")
        steps = self._steps.memory_bits(self.parameters.per_instance) if in_turn else 0
        return super().memory_bits + steps
