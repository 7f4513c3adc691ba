"""What a flow's size must lie between, given every flow that shares its cells: peeling, with integers.

In a cell that takes all packets of its flows N_c = Σ p_f. So p_f is at most N_c minus the least that the others can be,
and at least N_c minus the most. Each bound that moves moves others: a cell with one unknown flow left is solved, its
flow subtracted from the other cells, and so on. Flows whose bounds meet are known exactly. With four rows that needs
about 1.3 cells per flow; with fewer, bounds stay apart but still help.

A contradiction (lower above upper) means that the cells hold flows that are not on the list; upper bounds are
true all the same.

Time: O(edges) per pass; the number of passes grows with the logarithm of the flows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.joint.incidence import Incidence

__all__ = ["SizeBounds", "size_bounds"]

MOST_PASSES = 200
FULL = 1 - 1e-9


@dataclass(frozen=True, eq=False)
class SizeBounds:
    """Each flow's least and largest possible size; not ``consistent``: some cells hold unlisted flows."""

    low: Int64Array
    high: Int64Array
    consistent: bool

    @property
    def exact(self) -> BoolArray:
        met: BoolArray = self.low == self.high
        return met


def size_bounds(incidence: Incidence, count: Int64Array) -> SizeBounds:
    """Bounds from the cells' counts; groups that sample or spread only bound from above."""
    length = incidence.group_length
    high = _row_bounds(incidence.cell, incidence.share, incidence.groups, count, FULL)
    low = np.zeros(incidence.flows, np.int64)
    if length > 1:
        return SizeBounds(low, high, True)
    whole = (incidence.share >= FULL) & (incidence.cell >= 0)
    cell = np.where(whole, incidence.cell, -1)
    if _tighten(cell, count, low, high, MOST_PASSES):
        return SizeBounds(low, high, True)
    return SizeBounds(
        np.zeros_like(low), _row_bounds(incidence.cell, incidence.share, incidence.groups, count, FULL), False
    )


@kernel
def _row_bounds(cell: Int64Array, share: FloatArray, groups: int, count: Int64Array, full: float) -> Int64Array:
    """The smallest sum of a group's cells, over the groups that take all packets."""
    length = cell.shape[1] // groups
    high = np.full(cell.shape[0], count.sum())
    for f in range(cell.shape[0]):
        for g in range(groups):
            total = np.int64(0)
            taken = 0.0
            for e in range(g * length, (g + 1) * length):
                if cell[f, e] >= 0:
                    total += count[cell[f, e]]
                    taken += share[f, e]
            if taken >= full:
                high[f] = min(high[f], total)
    return high


@kernel
def _tighten(cell: Int64Array, count: Int64Array, low: Int64Array, high: Int64Array, most_passes: int) -> bool:
    """Tighten until nothing moves; False at a contradiction."""
    least = np.zeros(len(count), np.int64)
    most = np.zeros(len(count), np.int64)
    for f in range(cell.shape[0]):
        _move(cell[f], least, most, low[f], high[f])
    for _ in range(most_passes):
        moved = False
        for f in range(cell.shape[0]):
            if low[f] == high[f]:
                continue
            lower, upper = _squeeze(cell[f], count, least, most, low[f], high[f])
            if lower > upper:
                return False
            if lower > low[f] or upper < high[f]:
                moved = True
                _move(cell[f], least, most, lower - low[f], upper - high[f])
                low[f], high[f] = lower, upper
        if not moved:
            break
    return bool(np.all(least <= count))


@inlined
def _squeeze(
    own: Int64Array, count: Int64Array, least: Int64Array, most: Int64Array, low: int, high: int
) -> tuple[int, int]:
    """A flow's bounds, given the bounds of all others in its cells."""
    lower, upper = low, high
    for e in range(len(own)):
        c = own[e]
        if c >= 0:
            upper = min(upper, count[c] - (least[c] - low))
            lower = max(lower, count[c] - (most[c] - high))
    return lower, upper


@inlined
def _move(own: Int64Array, least: Int64Array, most: Int64Array, lower: int, upper: int) -> None:
    """Add to the sums of bounds in a flow's cells."""
    for e in range(len(own)):
        if own[e] >= 0:
            least[own[e]] += lower
            most[own[e]] += upper
