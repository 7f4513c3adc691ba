"""Stack: several sketches of the same packets as one, so that a stream that needs them is one stream.

Guarantee: a packet is recorded in all parts or in none, every part has seen the same packets, and the stack is linear
as its parts are: merging, subtracting and resetting are theirs. Its tables are those of the parts, one after the other
(``flows.cells``, ``segment.cells`` …), so that packing, size checks and stores need not know of it.
Memory and time: the sums of the parts'. A batch that one part has no room for is taken back from the parts before it,
which costs one more sketch of each for a moment.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from sojourn.core.arrays import Int64Array, PacketBatch
from sojourn.core.errors import MismatchError, WireError
from sojourn.sketches.kinds import sketch_type
from sojourn.sketches.ledgers.receipt import ReceiptParameters
from sojourn.sketches.parameters import Parameters, Table
from sojourn.sketches.sample import SampleParameters
from sojourn.sketches.sketch import Sketch, new_sketch

MOST_PARTS = 8
PACKET_KINDS = ("counter_vector", "lda", "lds", "receipt", "sample")
# Nothing can be taken back from these: they come last, and what always has room comes after what may have none.
RECORDED_LAST = (SampleParameters.kind, ReceiptParameters.kind)
_NAME = re.compile(r"[a-z]{1,16}")

AnyPart = Sketch[Any, PacketBatch]


def _problem_with_parts(parts: object) -> str:
    """What keeps a tuple of names and parameters from being a stack; empty where nothing does."""
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= MOST_PARTS:
        return f"use 1 to {MOST_PARTS} parts"
    names = [name for name, _ in parts]
    if len(set(names)) < len(names) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        return "name each part by letters of its own"
    if any(parameters.kind not in PACKET_KINDS for _, parameters in parts):
        return f"use parts of kind {', '.join(PACKET_KINDS)}"
    for last in RECORDED_LAST:
        if sum(parameters.kind == last for _, parameters in parts) > 1:
            return f"use one {last} at most"
    return ""


@dataclass(frozen=True, kw_only=True)
class StackParameters(Parameters):
    """The parts' parameters by name, in the order of their tables."""

    kind = "segment"

    @property
    def compression(self) -> int:  # type: ignore[override]
        """As hard as any part needs it."""
        return max(parameters.compression for _, parameters in self.parts)

    parts: tuple[tuple[str, Parameters], ...] = dataclasses.field(
        metadata={"symbol": "parts", "check": _problem_with_parts}
    )

    def tables(self) -> tuple[Table, ...]:
        return tuple(
            Table(
                f"{name}.{table.name}",
                table.length,
                tuple(replace(field, name=f"{name}.{field.name}") for field in table.fields),
            )
            for name, parameters in self.parts
            for table in parameters.tables()
        )

    @property
    def memory_bits(self) -> int:
        return sum(parameters.memory_bits for _, parameters in self.parts)

    def require_equal(self, other: Parameters) -> None:
        if self is other:
            return
        if isinstance(other, StackParameters) and [name for name, _ in self.parts] == [name for name, _ in other.parts]:
            for (_, mine), (_, others) in zip(self.parts, other.parts, strict=True):
                mine.require_equal(others)
            return
        if isinstance(other, StackParameters):
            names = [", ".join(name for name, _ in stack.parts) for stack in (self, other)]
            raise MismatchError(
                f"one holds {names[0]}, the other {names[1]}",
                action="record both with one --sketch, and both with keys or without",
            )
        super().require_equal(other)

    def to_mapping(self) -> dict[str, object]:
        """Each part's kind, and its parameters by their symbols."""
        return {name: [parameters.kind, parameters.to_mapping()] for name, parameters in self.parts}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        if len(mapping) > MOST_PARTS:
            raise WireError(f"{len(mapping)} parts exceed {MOST_PARTS}", where="segment parameters")
        parts = tuple((str(name), _part_of(part)) for name, part in mapping.items())
        if problem := _problem_with_parts(parts):
            raise WireError(f"parts cannot be used: {problem}", where="segment parameters")
        return cls(parts=parts)


def _part_of(part: object) -> Parameters:
    if not isinstance(part, list) or len(part) != 2 or part[0] not in PACKET_KINDS or not isinstance(part[1], dict):
        raise WireError("expected [kind, parameters] of a part", where="segment parameters")
    return sketch_type(part[0]).parameters_type.from_mapping(part[1])


class Stack(Sketch[StackParameters, PacketBatch]):
    """Several sketches at one observation point, recorded together."""

    parameters_type = StackParameters

    def __init__(self, parameters: StackParameters, parts: dict[str, AnyPart] | None = None) -> None:
        self._parts = parts or {name: new_sketch(part) for name, part in parameters.parts}
        super().__init__(parameters)

    def _new_arrays(self) -> list[Int64Array]:
        return []

    @property
    def arrays(self) -> list[Int64Array]:
        """The tables of all parts."""
        return [array for part in self._parts.values() for array in part.arrays]

    @arrays.setter
    def arrays(self, _tables: list[Int64Array]) -> None:
        """They are the parts'."""

    @property
    def parts(self) -> dict[str, AnyPart]:
        """The parts by name, each with the stack's count and times, which are those of all."""
        for part in self._parts.values():
            part.recorded, part.first_ns, part.last_ns = self.recorded, self.first_ns, self.last_ns
        return self._parts

    def _record(self, batch: PacketBatch) -> int:
        taken = len(batch)
        recorded: list[AnyPart] = []
        for part in sorted(self._parts.values(), key=_place_in_line):
            fitted = part.record_batch(batch if taken == len(batch) else batch.select(slice(0, taken)))
            if fitted < taken:
                for earlier in recorded:
                    _take_back(earlier, batch.select(slice(fitted, taken)))
                taken = fitted
            recorded.append(part)
        return taken

    def _combined(self, other: Self, *, sign: int) -> Self:
        self.parameters.require_equal(other.parameters)
        parts = {name: part._combined(other._parts[name], sign=sign) for name, part in self._parts.items()}
        return type(self)(self.parameters, parts)

    def freeze(self) -> Self:
        for part in self._parts.values():
            part.freeze()
        return super().freeze()

    def follow(self, before: Self | None) -> None:
        for name, part in self._parts.items():
            part.follow(None if before is None else before._parts[name])

    def reset(self) -> None:
        for part in self._parts.values():
            part.reset()
        super().reset()

    def check(self) -> None:
        for part in self.parts.values():
            part.check()


def _place_in_line(part: AnyPart) -> int:
    kind = part.parameters.kind
    return RECORDED_LAST.index(kind) + 1 if kind in RECORDED_LAST else 0


def _take_back(part: AnyPart, batch: PacketBatch) -> None:
    """Undo the recording of packets, by subtracting a sketch of them."""
    undone = part.emptied()
    undone.record_batch(batch)
    for array, rest in zip(part.arrays, part._combined(undone, sign=-1).arrays, strict=True):
        array[:] = rest
