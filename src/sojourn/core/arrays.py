"""Names for the column types that pass between packages."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolArray", "FloatArray", "Int64Array", "UInt8Array", "UInt64Array"]

BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]
Int64Array: TypeAlias = NDArray[np.int64]
UInt8Array: TypeAlias = NDArray[np.uint8]
UInt64Array: TypeAlias = NDArray[np.uint64]
