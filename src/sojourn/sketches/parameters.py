"""Parameters of sketches: frozen, validated where they are made, and known to the wire format.

A parameter is declared with its symbol (the papers' letter, which is also its name on the wire) and
the values it may take::

    buckets: int = integer("n", 1, 2**28)

Validation, the mapping to and from the wire and the error texts follow from that declaration.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from sojourn.core.errors import MismatchError, ParameterError, SojournError, WireError
from sojourn.sketches.tables import Table

__all__ = ["Parameters", "checked_text", "choice", "flag", "integer", "probabilities"]

MAX_BANKS = 32
_MISSING: Any = dataclasses.MISSING

Check = Callable[[object], str]


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
        if type(self) is not type(other):
            raise MismatchError(f"a sketch of kind {self.kind} cannot be combined with one of kind {other.kind}")
        names = [field.name for field in dataclasses.fields(self)]
        pairs = [(n, getattr(self, n), getattr(other, n)) for n in names]
        different = [f"{n} {_brief(left)} and {_brief(right)}" for n, left, right in pairs if left != right]
        if different:
            raise MismatchError(
                f"parameters differ: {', '.join(different)}",
                where=self.kind,
                action="record both with the same parameters and salt",
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
