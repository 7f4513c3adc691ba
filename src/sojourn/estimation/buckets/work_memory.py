"""What decoding many epochs of bucket arrays at once keeps in memory: a stack of them at a time.

Guarantee: of more than `MOST_STACKED` epochs (fewer of large arrays) only as many are spread out as arrays at a time,
and of the equations that they add no more rows are kept than there are unknowns. `StackedRows` are then the triangle of
a QR decomposition, taken stack by stack: all products of its columns are those of all rows, to rounding, without
squaring them first. Cost: O(k²) for each row of k columns; memory O((MOST_STACKED · n + k) · k) for epochs of n rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array

# Arrays with more buckets than this are large: their covariances take long to factorise, and most of their buckets are
# nobody's.
MANY_BUCKETS = 256
# Epochs that tell how measurements vary: more of them cost time and say no more. Of large arrays, as few as so many
# multiplications allow, but two: one has as many buckets as many small ones.
MOST_LEARNED, LEARNING_WORK = 100, 2e8
# More than the epochs that scales are learned from, whose stacks are used again and again, and so are kept.
MOST_STACKED = 128
# Of a stack's covariances, 8 MB: fewer epochs of large arrays go together.
MOST_NUMBERS = 1_000_000


def is_large(buckets: int) -> bool:
    """Whether an array of so many buckets is solved with fewer equations, and less often."""
    return buckets > MANY_BUCKETS


def most_learned(buckets: int, rows: int) -> int:
    """Of how many epochs with so many buckets, and equations, scales are learned.

    >>> most_learned(64, 64), most_learned(1000, 300), most_learned(4096, 2000)
    (100, 7, 2)
    """
    return round(min(max(LEARNING_WORK / rows**3, 2), MOST_LEARNED)) if is_large(buckets) else MOST_LEARNED


def stacked(sizes: Sequence[int]) -> list[Int64Array]:
    """The places of epochs of these sizes, those of one size together, so many at most."""
    of_all = np.array(sizes, np.int64)
    groups = [np.flatnonzero(of_all == size) for size in dict.fromkeys(sizes)]
    found: list[Int64Array] = []
    for size, group in zip(dict.fromkeys(sizes), groups, strict=True):
        step = min(max(MOST_NUMBERS // size**2, 1), MOST_STACKED)
        found += [group[at : at + step] for at in range(0, len(group), step)]
    return found


def are_kept(sizes: Sequence[int]) -> bool:
    """Whether epochs of these sizes are few enough to stay spread out."""
    return len(sizes) <= MOST_STACKED and sum(size**2 for size in sizes) <= MOST_NUMBERS


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
