"""Column types and batches of columns: numpy arrays are the only form in which data moves between packages.

A batch is checked when it is made (equal lengths, exact types) and then trusted by the kernels.
Times are ``int64`` nanoseconds since the Unix epoch, ids ``uint64``. A slice is a view, not a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import MismatchError, ParameterError

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
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __len__(self) -> int:
        return len(next(iter(self.columns().values())))

    def select(self, rows: slice | NDArray[np.generic]) -> Self:
        """The given rows (a slice, indices or a mask) as a batch of the same type."""
        return type(self)(**{name: column[rows] for name, column in self.columns().items()})

    @classmethod
    def concatenate(cls, batches: Sequence[Self]) -> Self:
        """All rows of `batches`, in their order."""
        if not batches:
            raise ParameterError("nothing to concatenate", where=cls.__name__)
        names = batches[0].columns()
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


@dataclass(frozen=True, eq=False)
class PacketBatch(_Batch):
    """Packets seen at one observation point.

    ``packet_id`` is the hash of the bytes that do not change in flight: equal at both ends.
    """

    flow_id: UInt64Array
    packet_id: UInt64Array
    time_ns: Int64Array
    size_bytes: Int64Array

    @classmethod
    def of(cls, flow_id: object, packet_id: object, time_ns: object, size_bytes: object | None = None) -> PacketBatch:
        """A batch from any integer sequences; sizes default to 0.

        >>> len(PacketBatch.of([1, 1], [10, 11], [1_000, 2_000]))
        2
        """
        times = _as_column(time_ns, np.int64, "time_ns")
        sizes = np.zeros(len(times), np.int64) if size_bytes is None else size_bytes
        return cls(
            _as_column(flow_id, np.uint64, "flow_id"),  # type: ignore[arg-type]
            _as_column(packet_id, np.uint64, "packet_id"),  # type: ignore[arg-type]
            times,  # type: ignore[arg-type]
            _as_column(sizes, np.int64, "size_bytes"),  # type: ignore[arg-type]
        )


@dataclass(frozen=True, eq=False)
class MeasurementBatch(_Batch):
    """Measurements ``(instance, value, time)``.

    ``sequence`` is what spreading by sequence number uses (a packet's number or hash); 0 elsewhere.
    """

    instance_id: UInt64Array
    value: Int64Array
    time_ns: Int64Array
    sequence: UInt64Array

    @classmethod
    def of(
        cls, instance_id: object, value: object, time_ns: object, sequence: object | None = None
    ) -> MeasurementBatch:
        """A batch from any integer sequences; sequence numbers default to 0."""
        times = _as_column(time_ns, np.int64, "time_ns")
        numbers = np.zeros(len(times), np.uint64) if sequence is None else sequence
        return cls(
            _as_column(instance_id, np.uint64, "instance_id"),  # type: ignore[arg-type]
            _as_column(value, np.int64, "value"),  # type: ignore[arg-type]
            times,  # type: ignore[arg-type]
            _as_column(numbers, np.uint64, "sequence"),  # type: ignore[arg-type]
        )
