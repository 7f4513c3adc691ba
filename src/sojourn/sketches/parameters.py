"""Parameters of sketches: frozen, validated where they are made, and known to the wire format; and their tables.

A parameter is declared with its symbol (the papers' letter, which is also its name on the wire) and
the values it may take::

    buckets: int = integer("n", 1, 2**28)

Validation, the mapping to and from the wire and the error texts follow from that declaration.

Tables are the counters a sketch is made of, described so that code can treat all sketches the same way.

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

Parameters alone need no numpy, which agents that record metrics do without; what works on columns imports it.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sojourn.core.errors import MismatchError, ParameterError, SojournError, WireError

if TYPE_CHECKING:
    from sojourn.core.arrays import BoolArray, Int64Array

MAX_CELLS = 1 << 28
MAX_BANKS = 32
_MISSING: Any = dataclasses.MISSING

Check = Callable[[object], str]


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


@dataclasses.dataclass(frozen=True, slots=True)
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
        import numpy as np

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
        import numpy as np

        if self.kind in (Kind.MODULAR, Kind.DIGEST):
            return np.zeros(len(left), bool)
        if sign > 0:
            too_high = (right > 0) & (left > self.highest - np.maximum(right, 0))
            too_low = (right < 0) & (left < self.lowest - np.minimum(right, 0))
        else:
            too_high = (right < 0) & (left > self.highest + np.minimum(right, 0))
            too_low = (right > 0) & (left < self.lowest + np.maximum(right, 0))
        return too_high | too_low


@dataclasses.dataclass(frozen=True, slots=True)
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
        import numpy as np

        return np.zeros((self.length, len(self.fields)), np.int64)


def _declare(symbol: str, default: Any, check: Check) -> Any:
    metadata = {"symbol": symbol, "check": check}
    return dataclasses.field(default=default, metadata=metadata)


def integer(symbol: str, low: int, high: int, *, default: Any = _MISSING) -> Any:
    """A whole number in ``low … high``."""

    def check(value: object) -> str:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return "" if whole and low <= value <= high else f"use a whole number in {low} … {high}"  # type: ignore[operator]

    return _declare(symbol, default, check)


def choice(symbol: str, values: tuple[str, ...], *, default: Any = _MISSING) -> Any:
    """One of some words."""

    def check(value: object) -> str:
        known = isinstance(value, str) and value in values
        return "" if known else f"use one of {', '.join(values)}"

    return _declare(symbol, default, check)


def checked_text(symbol: str, problem_with: Callable[[str], str], *, default: Any = _MISSING) -> Any:
    """A text that `problem_with` has nothing to say of."""

    def check(value: object) -> str:
        return problem_with(value) if isinstance(value, str) else "use a text"

    return _declare(symbol, default, check)


def flag(symbol: str, *, default: bool) -> Any:
    """Yes or no."""

    def check(value: object) -> str:
        return "" if isinstance(value, bool) else "use true or false"

    return _declare(symbol, default, check)


def probabilities(symbol: str, *, default: Any = _MISSING) -> Any:
    """One to 32 sampling probabilities, each above 0 and at most 1."""

    def check(value: object) -> str:
        good = (
            isinstance(value, tuple)
            and 1 <= len(value) <= MAX_BANKS
            and all(isinstance(p, float) and math.isfinite(p) and 0 < p <= 1 for p in value)
        )
        return "" if good else f"use a tuple of 1 to {MAX_BANKS} numbers above 0 and at most 1"

    return _declare(symbol, default, check)


def _brief(value: object) -> str:
    """A parameter's value on one line."""
    return " ".join(str(value).split())[:60] or "(none)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters(ABC):
    """Base of every sketch's parameters; two sketches merge when theirs are equal."""

    kind: ClassVar[str]
    # How hard epochs compress the counters: the fastest, where what there is to gain are zeros among others.
    compression: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list) or (isinstance(value, tuple) and value):
                value = tuple(float(p) if type(p) is int else p for p in value)
                object.__setattr__(self, field.name, value)
            if action := field.metadata["check"](value):
                raise self.error(f"{field.name} is {_brief(value)}", action)
        self._check_together()
        self.tables()

    def _check_together(self) -> None:  # noqa: B027
        """Refuse combinations that no single parameter's range rules out (few kinds have any)."""

    @abstractmethod
    def tables(self) -> tuple[Table, ...]:
        """The counters these parameters stand for."""

    def error(self, what: str, action: str) -> ParameterError:
        return ParameterError(what, where=self.kind, action=action)

    @cached_property
    def places(self) -> dict[str, tuple[int, int, Field]]:
        """Where the sketch keeps each field: its table, its column there, and the field itself."""
        tables = enumerate(self.tables())
        return {field.name: (at, i, field) for at, table in tables for i, field in enumerate(table.fields)}

    @property
    def memory_bits(self) -> int:
        """Memory of all counters, at their declared widths."""
        return sum(table.bits for table in self.tables())

    @property
    def decoded_bytes(self) -> int:
        """Memory of all counters when they are worked with: 8 bytes each, whatever their width."""
        return sum(table.decoded_bytes for table in self.tables())

    def require_equal(self, other: Parameters) -> None:
        """Raise a `MismatchError` that shows both sides of every difference."""
        if self is other:
            return
        if type(self) is not type(other):
            raise MismatchError(f"a sketch of kind {self.kind} cannot be combined with one of kind {other.kind}")
        names = [field.name for field in dataclasses.fields(self)]
        pairs = [(n, getattr(self, n), getattr(other, n)) for n in names]
        different = [f"{n} {_brief(left)} and {_brief(right)}" for n, left, right in pairs if left != right]
        if different:
            raise MismatchError(
                f"parameters differ: {', '.join(different)}",
                where=self.kind,
                action="record both with the same parameters and salt, and both with keys or without",
            )

    def to_mapping(self) -> dict[str, object]:
        """Symbols and values, defaults left out."""
        mapping: dict[str, object] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                mapping[field.metadata["symbol"]] = list(value) if isinstance(value, tuple) else value
        return mapping

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        """The inverse of `to_mapping`, for content that is not trusted."""
        names = {field.metadata["symbol"]: field.name for field in dataclasses.fields(cls)}
        if unknown := [symbol for symbol in mapping if symbol not in names]:
            raise WireError(f"unknown parameter {unknown[0]!r:.40}", where=f"{cls.kind} parameters")
        try:
            return cls(**{names[symbol]: value for symbol, value in mapping.items()})
        except SojournError as error:
            raise WireError(error.what, where=f"{cls.kind} parameters") from None
        except TypeError:
            missing = sorted(set(names) - set(mapping))
            raise WireError(
                f"a parameter is missing (given {sorted(mapping)}, absent {missing})",
                where=f"{cls.kind} parameters",
            ) from None
