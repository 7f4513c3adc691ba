"""`Sketch`: what all sketches share — tables, merging, subtracting, resetting, knowing when full.

Guarantee: a measurement is either recorded in all its counters or refused before any changes.
`record_batch` returns how many leading rows it recorded; fewer than all means that the next one
would push a counter out of its range: take a snapshot, reset, go on with the rest. Nothing wraps,
saturates or disappears unseen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import numpy as np

from sojourn.core.arrays import Int64Array, MeasurementBatch, PacketBatch
from sojourn.core.errors import MismatchError, SketchFullError, UsageError
from sojourn.sketches.kinds import sketch_type
from sojourn.sketches.parameters import Parameters

BLOCK_CELLS = 1 << 16

P = TypeVar("P", bound=Parameters)
B = TypeVar("B", PacketBatch, MeasurementBatch)


class Sketch(ABC, Generic[P, B]):
    """A fixed-size summary of a stream of measurements; linear.

    ``recorded`` counts every measurement offered and accepted, sampled or not; ``first_ns`` and
    ``last_ns`` frame them in time (``None`` while empty).
    """

    parameters_type: ClassVar[type[Parameters]]
    batch_type: ClassVar[Any] = PacketBatch

    def __init__(self, parameters: P) -> None:
        self.parameters = parameters
        self.arrays = self._new_arrays()
        self.recorded = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._frozen = False

    def _new_arrays(self) -> list[Int64Array]:
        return [table.zeros() for table in self.parameters.tables()]

    @abstractmethod
    def _record(self, batch: B) -> int:
        """Record rows from the front of `batch`; how many fitted."""

    def record_batch(self, batch: B) -> int:
        """Record `batch` up to the first row that does not fit; the number of rows recorded."""
        if self._frozen:
            raise UsageError("a snapshot cannot record", where=self.parameters.kind, action="copy it first")
        taken = self._record(batch) if len(batch) else 0
        if taken:
            times = batch.time_ns[:taken]
            first, last = int(times.min()), int(times.max())
            self.first_ns = first if self.first_ns is None else min(self.first_ns, first)
            self.last_ns = last if self.last_ns is None else max(self.last_ns, last)
            self.recorded += taken
        return taken

    def record(self, *row: int) -> None:
        """Record one measurement, given as the columns of a batch (the last may be left out), or raise
        `SketchFullError` and change nothing."""
        if not self.record_batch(self.batch_type.of(*([value] for value in row))):
            raise SketchFullError(
                "a counter has no room for this measurement",
                where=self.parameters.kind,
                action="take a snapshot and reset, or use wider counters",
            )

    @property
    def memory_bits(self) -> int:
        """Memory of the counters at their declared widths (not of the Python object)."""
        return self.parameters.memory_bits

    def column(self, name: str) -> Int64Array:
        """One field of every cell, in its canonical form (a copy)."""
        if name in self.parameters.places:
            table, column, field = self.parameters.places[name]
            return field.canonical(self.arrays[table][:, column])
        raise MismatchError(
            f"there is no field {name}",
            where=self.parameters.kind,
            action="record with the parameter that adds it",
        )

    def has(self, name: str) -> bool:
        """Whether the sketch keeps a field of that name."""
        return name in self.parameters.places

    def merge(self, other: Self) -> Self:
        """A new sketch that holds both streams; commutative and associative."""
        merged = self._combined(other, sign=1)
        merged.recorded = self.recorded + other.recorded
        firsts = [s.first_ns for s in (self, other) if s.first_ns is not None]
        lasts = [s.last_ns for s in (self, other) if s.last_ns is not None]
        merged.first_ns = min(firsts, default=None)
        merged.last_ns = max(lasts, default=None)
        return merged

    def subtract(self, other: Self) -> Self:
        """The inverse of `merge`: this stream without `other`, which must be part of it.

        The time frame stays that of the whole: which end `other` came from is not known.
        """
        rest = self._combined(other, sign=-1)
        rest.recorded = self.recorded - other.recorded
        rest.first_ns, rest.last_ns = self.first_ns, self.last_ns
        return rest

    def _combined(self, other: Self, *, sign: int) -> Self:
        self.parameters.require_equal(other.parameters)
        result = type(self)(self.parameters)
        for table, target, left, right in zip(
            self.parameters.tables(), result.arrays, self.arrays, other.arrays, strict=True
        ):
            # By blocks: what is computed on the way takes little memory, however large the table.
            for start in range(0, table.length, BLOCK_CELLS):
                block = slice(start, start + BLOCK_CELLS)
                for i, field in enumerate(table.fields):
                    one, two = left[block, i], right[block, i]
                    over = np.flatnonzero(field.overflows(one, two, sign))
                    if over.size:
                        raise SketchFullError(
                            f"{field.name} of cell {start + over[0]} would leave its {field.bits} bits "
                            f"({one[over[0]]} and {two[over[0]]})",
                            where=self.parameters.kind,
                            action="keep the epochs apart" if sign > 0 else "subtract only what was merged",
                        )
                    target[block, i] = field.combine(one, two, sign)
        return result

    def copy(self) -> Self:
        """An independent sketch with the same contents."""
        return self.merge(type(self)(self.parameters))

    def emptied(self) -> Self:
        """A new sketch that records as this one does, and holds nothing."""
        return type(self)(self.parameters)

    def snapshot(self) -> Self:
        """A copy that never changes: what an epoch holds; a sketch that is frozen already is its own."""
        return self if self._frozen else self.copy().freeze()

    def freeze(self) -> Self:
        """The sketch itself, which never changes from now on: for one that nobody else holds, without a copy."""
        for array in self.arrays:
            array.flags.writeable = False
        self._frozen = True
        return self

    def follow(self, before: Self | None) -> None:
        """Take over what a point knows beyond an epoch from its sketch before (few kinds know anything)."""

    def reset(self) -> None:
        """Forget everything recorded; parameters stay."""
        for array in self.arrays:
            array[:] = 0
        self.recorded = 0
        self.first_ns = self.last_ns = None

    def check(self) -> None:
        """Refuse contents that recording could never give (few kinds have any), by a `MismatchError`."""

    def __eq__(self, other: object) -> bool:
        """Same parameters and same contents."""
        if not isinstance(other, Sketch) or self.parameters != other.parameters:
            return NotImplemented if not isinstance(other, Sketch) else False
        return self.recorded == other.recorded and all(
            np.array_equal(self.column(field.name), other.column(field.name))
            for table in self.parameters.tables()
            for field in table.fields
        )

    __hash__ = None  # type: ignore[assignment]


AnySketch: TypeAlias = Sketch[Any, Any]


def new_sketch(parameters: Parameters) -> AnySketch:
    """An empty sketch with these parameters."""
    return sketch_type(parameters.kind)(parameters)
