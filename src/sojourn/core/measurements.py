"""Measurements as plain columns, for nodes that have no room for numpy, whose columns are those of `core.arrays`.

Guarantee: numbers are whole and fit their columns (ids 64 bits without sign, values and times with); checked by `of`,
trusted where a source gives its own. Cost: 8 bytes for each number, and the number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

from sojourn.core.errors import MismatchError, ParameterError

if TYPE_CHECKING:
    from sojourn.core.arrays import MeasurementBatch

_WORD, _SIGNED = (0, 2**64 - 1), (-(2**63), 2**63 - 1)


@dataclass(frozen=True, eq=False, slots=True)
class Measurements:
    """Values of instances at times; ``sequence`` numbers them where somebody spreads by it, and may be left out."""

    instance_id: Sequence[int]
    value: Sequence[int]
    time_ns: Sequence[int]
    sequence: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.instance_id)

    @classmethod
    def of(cls, instance_id: Iterable[object], value: Iterable[object], time_ns: Iterable[object]) -> Measurements:
        """Measurements from any integers.

        >>> len(Measurements.of([1, 1], [10, 11], [1_000, 2_000]))
        2
        """
        columns = (("instance_id", instance_id, _WORD), ("value", value, _SIGNED), ("time_ns", time_ns, _SIGNED))
        ids, values, times = made = [_column(name, numbers, *limits) for name, numbers, limits in columns]
        if len({len(column) for column in made}) > 1:
            raise MismatchError(
                f"columns have {', '.join(str(len(column)) for column in made)} rows",
                where=cls.__name__,
                action="give every column one value per row",
            )
        return cls(ids, values, times)

    @classmethod
    def at(cls, time_ns: int, instance_id: Sequence[int], value: Sequence[int]) -> Measurements:
        """Values of one time."""
        return cls(instance_id, value, [time_ns] * len(instance_id))

    def select(self, rows: Sequence[int]) -> Measurements:
        """The given rows."""
        ids, values, times = ([column[row] for row in rows] for column in (self.instance_id, self.value, self.time_ns))
        return Measurements(ids, values, times, self.sequence and [self.sequence[row] for row in rows])

    def columns(self) -> MeasurementBatch:
        """The same as columns of numpy."""
        from sojourn.core.arrays import MeasurementBatch

        sequence = () if self.sequence is None else (self.sequence,)
        return MeasurementBatch.of(self.instance_id, self.value, self.time_ns, *sequence)


def plain(batch: MeasurementBatch) -> Measurements:
    """Columns of numpy as plain ones."""
    columns = (batch.instance_id, batch.value, batch.time_ns, batch.sequence)
    return Measurements(*(column.tolist() for column in columns))


def _column(name: str, numbers: Iterable[object], lowest: int, highest: int) -> list[int]:
    try:
        column = [index(number) for number in numbers]  # type: ignore[arg-type]
    except TypeError:
        column = [highest + 1]
    if column and not (lowest <= min(column) and max(column) <= highest):
        raise ParameterError(
            f"column {name} has values that are no whole numbers of 64 bits", action="give whole numbers in its range"
        )
    return column
