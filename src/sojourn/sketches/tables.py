"""Tables: the counters a sketch is made of, described so that code can treat all sketches alike.

A table is an ``int64`` array with one row per cell and one column per field, so that the fields of
a cell share a cache line. A field's *kind* says how two values combine and which values it may hold:

========  =========================  ==================================================
kind      combines by                may hold
========  =========================  ==================================================
count     addition, checked          0 … 2ᵇ − 1 (at most 2⁶³ − 1)
signed    addition, checked          −2ᵇ⁻¹ … 2ᵇ⁻¹ − 1
modular   addition modulo 2ᵇ         any residue, kept centred around zero
digest    exclusive or               any b bits
kept      the sketch as a whole      any b bits (a packet's hash, flow or time)
========  =========================  ==================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.errors import ParameterError

__all__ = ["Field", "Kind", "Table", "counter_limit"]

MAX_CELLS = 1 << 28


class Kind(StrEnum):
    """How values of a field combine."""

    COUNT = "count"
    SIGNED = "signed"
    MODULAR = "modular"
    DIGEST = "digest"
    KEPT = "kept"


def counter_limit(bits: int) -> int:
    """The largest value of an unsigned counter: 2ᵇ − 1, and never more than 2⁶³ − 1."""
    return (1 << min(bits, 63)) - 1


@dataclass(frozen=True, slots=True)
class Field:
    """One counter of every cell."""

    name: str
    bits: int
    kind: Kind

    @property
    def is_centred(self) -> bool:
        """Whether values are read as two's complement."""
        return self.kind in (Kind.SIGNED, Kind.MODULAR)

    @property
    def is_counted(self) -> bool:
        return self.kind is Kind.COUNT

    @property
    def lowest(self) -> int:
        return -(1 << (self.bits - 1)) if self.kind is Kind.SIGNED else 0

    @property
    def highest(self) -> int:
        bits = self.bits - 1 if self.kind is Kind.SIGNED else self.bits
        return counter_limit(bits)

    def canonical(self, column: Int64Array) -> Int64Array:
        """The one representation of each value, in which equal contents are equal numbers."""
        spare = 64 - self.bits
        if self.kind is Kind.MODULAR:
            return (column << spare) >> spare
        if self.kind in (Kind.DIGEST, Kind.KEPT) and spare:
            return column & np.int64((1 << self.bits) - 1)
        return column.copy()

    def combine(self, left: Int64Array, right: Int64Array, sign: int) -> Int64Array:
        """`left` plus (or minus) `right`; modulo 2⁶⁴, so check counts with `overflows` first."""
        if self.kind is Kind.DIGEST:
            return left ^ right
        return self.canonical(left + right if sign > 0 else left - right)

    def overflows(self, left: Int64Array, right: Int64Array, sign: int) -> BoolArray:
        """Where the combination would leave the field's range."""
        if self.kind in (Kind.MODULAR, Kind.DIGEST):
            return np.zeros(len(left), bool)
        if sign > 0:
            too_high = (right > 0) & (left > self.highest - np.maximum(right, 0))
            too_low = (right < 0) & (left < self.lowest - np.minimum(right, 0))
        else:
            too_high = (right < 0) & (left > self.highest + np.minimum(right, 0))
            too_low = (right > 0) & (left < self.lowest + np.maximum(right, 0))
        return too_high | too_low


@dataclass(frozen=True, slots=True)
class Table:
    """A named array of cells with the same fields."""

    name: str
    length: int
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.length <= MAX_CELLS:
            raise ParameterError(f"a table of {self.length} cells is outside 1 … {MAX_CELLS}", where=self.name)

    @property
    def bits(self) -> int:
        """Memory of the table: cells times the widths of their fields."""
        return self.length * sum(field.bits for field in self.fields)

    @property
    def decoded_bytes(self) -> int:
        """Memory of the table as an array."""
        return 8 * self.length * len(self.fields)

    def zeros(self) -> Int64Array:
        return np.zeros((self.length, len(self.fields)), np.int64)
