"""What decoding many epochs of bucket arrays at once keeps in memory: a stack of them at a time.

Guarantee: of more than `MOST_STACKED` epochs only as many are spread out as arrays at a time, and of the equations that
they add no more rows are kept than there are unknowns. `StackedRows` are then the triangle of a QR decomposition, taken
stack by stack: all products of its columns are those of all rows, to rounding, without squaring them first. Cost: O(k²)
for each row of k columns; memory O((MOST_STACKED · n + k) · k) for epochs of n rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array

# More than the epochs that scales are learned from, whose stacks are used again and again, and so are kept.
MOST_STACKED = 128


def stacked(sizes: Sequence[int]) -> list[Int64Array]:
    """The places of epochs of these sizes, those of one size together, `MOST_STACKED` at most."""
    of_all = np.array(sizes, np.int64)
    groups = [np.flatnonzero(of_all == size) for size in dict.fromkeys(sizes)]
    return [group[at : at + MOST_STACKED] for group in groups for at in range(0, len(group), MOST_STACKED)]


class StackedRows:
    """Rows of equations, as they come; once they are more than a stack's, a triangle with the same products."""

    def __init__(self, columns: int) -> None:
        self.rows: FloatArray = np.empty((0, columns))

    def add(self, rows: FloatArray) -> None:
        """Add the rows of a stack."""
        if not len(self.rows):
            self.rows = rows
            return
        both = np.concatenate([self.rows, rows])
        self.rows = np.asarray(np.linalg.qr(both, mode="r"), np.float64) if len(both) > both.shape[1] else both
