"""Names for the column types that pass between packages; the numbers of several ranges as one column."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolArray", "FloatArray", "Int64Array", "UInt8Array", "UInt64Array", "ranges"]

BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]
Int64Array: TypeAlias = NDArray[np.int64]
UInt8Array: TypeAlias = NDArray[np.uint8]
UInt64Array: TypeAlias = NDArray[np.uint64]


def ranges(start: Int64Array, count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The numbers from each start on, as many as its count, one range after the other; and each one's place in its.

    >>> ranges(np.array([10, 20]), np.array([3, 1]))
    (array([10, 11, 12, 20]), array([0, 1, 2, 0]))
    """
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(start, count) + offset, offset
