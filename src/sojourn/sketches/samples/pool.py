"""The pool of a coordinated sample: packets ordered by group and hash, cut to a common level.

A group's row is ⟨cut, packets, held⟩: its threshold is 2ᵇ − cut (an empty sketch is all zeros), and its `held` packets
stand together in the pool, in the order of the groups. The level c is the largest with Σ min(packets, c) ≤ slots; a
group that was cut has more than c packets, so it counts c whatever it still holds: the level, and with it
the pool, is the same in whatever order packets came. O(pool + groups · log slots) per call.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.kernels import inlined, kernel, signed

__all__ = ["CUT", "HELD", "PACKETS", "cut_to_level", "merge_from_back", "sorted_waiting"]

# Columns of a group.
CUT, PACKETS, HELD = 0, 1, 2


def sorted_waiting(waiting: Int64Array, hash_bits: int) -> Int64Array:
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
def merge_from_back(groups: Int64Array, pool: Int64Array, waiting: Int64Array) -> None:
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
def cut_to_level(groups: Int64Array, pool: Int64Array, slots: int, everything: int) -> None:
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
