"""Column types and batches of columns: numpy arrays are the only form in which data moves between packages.

A batch is checked when it is made (equal lengths, exact types) and then trusted by the kernels.
Times are ``int64`` nanoseconds since the Unix epoch, ids ``uint64``. A slice is a view, not a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import MismatchError, ParameterError

BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]
Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
UInt8Array: TypeAlias = NDArray[np.uint8]
UInt64Array: TypeAlias = NDArray[np.uint64]
_TYPES: dict[str, type[np.generic]] = {"Int64Array": np.int64, "UInt64Array": np.uint64}


def ranges(start: Int64Array, count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The numbers from each start on, as many as its count, one range after the other; and each one's place in its.

    >>> ranges(np.array([10, 20]), np.array([3, 1]))
    (array([10, 11, 12, 20]), array([0, 1, 2, 0]))
    """
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(start, count) + offset, offset


def lengthened(rows: NDArray[Any], count: int, fill: Any = 0) -> NDArray[Any]:
    """The rows, or twice as many (and `count` at least) where they are fewer than `count`; new ones are `fill`.

    >>> lengthened(np.array([7, 8]), 3).tolist()
    [7, 8, 0, 0]
    """
    if count <= len(rows):
        return rows
    longer = np.full((max(count, 2 * len(rows)), *rows.shape[1:]), fill, rows.dtype)
    longer[: len(rows)] = rows
    return longer


@dataclass(frozen=True, eq=False)
class _Batch:
    def __post_init__(self) -> None:
        length = None
        for name, column in self.columns().items():
            if column.ndim != 1:
                raise ParameterError(f"column {name} has {column.ndim} dimensions, expected 1")
            if length is not None and len(column) != length:
                raise MismatchError(
                    f"column {name} has {len(column)} rows, the first column {length}",
                    where=type(self).__name__,
                    action="give every column one value per row",
                )
            length = len(column)

    def columns(self) -> dict[str, NDArray[np.generic]]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.__dataclass_fields__))))

    @classmethod
    def of(cls, *columns: Any) -> Self:
        """A batch from any integer sequences; the last column may be left out, and is 0 then.

        >>> len(PacketBatch.of([1, 1], [10, 11], [1_000, 2_000]))
        2
        """
        declared = fields(cls)
        if len(columns) == len(declared) - 1:
            columns = (*columns, np.zeros(len(columns[0]), np.int64))
        pairs = zip(declared, columns, strict=True)
        return cls(*(_as_column(column, _TYPES[str(field.type)], field.name) for field, column in pairs))

    def select(self, rows: slice | NDArray[np.generic]) -> Self:
        """The given rows (a slice, indices or a mask) as a batch of the same type."""
        return type(self)(**{name: column[rows] for name, column in self.columns().items()})

    @classmethod
    def concatenate(cls, batches: Sequence[Self]) -> Self:
        """All rows of `batches`, in their order, with the columns of this type; there may be none."""
        if not batches:
            return cls.of([], [], [])
        names = (field.name for field in fields(cls))
        return cls(**{n: np.concatenate([b.columns()[n] for b in batches]) for n in names})


def _as_column(values: object, dtype: type[np.generic], name: str) -> NDArray[np.generic]:
    """`values` as a contiguous column of `dtype`; never by silently changing a number."""
    # Python integers go through objects: numpy would make floats of some that fit 64 bits.
    column = np.ascontiguousarray(values if isinstance(values, np.ndarray) else np.array(values, object))
    if column.dtype == dtype:
        return column
    integers = column.dtype.kind in "iub" or all(isinstance(v, int | np.integer) for v in column.flat)
    limits = np.iinfo(dtype)  # type: ignore[type-var]
    if column.size and not (integers and limits.min <= column.min() and column.max() <= limits.max):
        raise ParameterError(
            f"column {name} has values that are no {dtype.__name__}", action="give whole numbers in its range"
        )
    return column.astype(dtype)


def rows_of(known: UInt64Array, asked: UInt64Array) -> Int64Array:
    """The row of each asked id among the known ones, which are distinct; −1 where it is not there."""
    if not len(known):
        return np.full(len(asked), -1, np.int64)
    order = np.argsort(known)
    rows = order[np.minimum(np.searchsorted(known[order], asked), len(order) - 1)]
    return np.where(known[rows] == asked, rows, -1)


@dataclass(frozen=True, eq=False)
class PacketBatch(_Batch):
    """Packets seen at one observation point.

    ``packet_id`` is the hash of the bytes that do not change in flight: equal at both ends.
    """

    flow_id: UInt64Array
    packet_id: UInt64Array
    time_ns: Int64Array
    size_bytes: Int64Array


@dataclass(frozen=True, eq=False)
class ClassedBatch(PacketBatch):
    """Packets with their DSCP."""

    dscp: UInt8Array


@dataclass(frozen=True, eq=False)
class MeasurementBatch(_Batch):
    """Measurements ``(instance, value, time)``.

    ``sequence`` is what spreading by sequence number uses (a packet's number or hash); 0 elsewhere.
    """

    instance_id: UInt64Array
    value: Int64Array
    time_ns: Int64Array
    sequence: UInt64Array
