"""Steps: whose turn it is among an instance's m buckets.

Two ways to go round them, so that measurements spread evenly instead of by chance:

- exact (`round-robin`): a table of instance ids with a step each, grown as instances appear;
- hashed (`hashed-steps`): 64 small counters, an instance uses the one its hash names. For m ≤ 8 that
  is 64 × 3 bits = 24 bytes, whatever the number of instances.

Steps decide where the next measurement goes and nothing else: they are not part of an epoch.
"""

from __future__ import annotations

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import BoolArray, Int64Array, UInt64Array
from sojourn.core.hash_kernels import mix, mix_column
from sojourn.core.kernels import inlined, kernel

__all__ = ["HASHED_STEPS", "Steps", "find_step", "shared_steps"]

HASHED_STEPS = 64
_STEP_SALT = np.uint64(hashing.salt_for(1 << 22, 0))


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
