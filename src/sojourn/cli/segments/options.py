"""Options of the commands that measure segments, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from sojourn.core.errors import ParameterError


class Method(StrEnum):
    """How a flow sketch is decoded."""

    LITERAL = "literal"
    JOINT = "joint"

    @property
    def literal(self) -> Literal["joint", "literal"]:
        return self.value


class SketchName(StrEnum):
    """What the points record."""

    AUTO = "auto"
    LDS = "lds"
    COLATE = "colate"
    SAMPLE = "sample"
    LDA = "lda"
    EXACT = "exact"


@dataclass(frozen=True)
class SketchOptions:
    """What is recorded, and how it is decoded."""

    sketch: Annotated[
        SketchName,
        typer.Option(
            help="auto: cells and samples, the best of both; lds, colate, sample: one structure per flow; "
            "lda: the whole segment; exact: match all (measure)."
        ),
    ] = SketchName.AUTO
    method: Annotated[
        Method, typer.Option(help="lds, colate: decode all flows jointly, or flow by flow as published.")
    ] = Method.JOINT
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the sketches at each point; 1MB by default.")
    ] = None
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter of the sketch; repeatable."),
    ] = None

    def given(self) -> dict[str, Any]:
        """As the functions of `segments` take it."""
        return {
            "sketch": self.sketch.value,
            "method": self.method.value,
            "memory": self.memory,
            "parameters": parse_changes(self.parameter),
        }


def parse_changes(parameter: list[str] | None) -> dict[str, str]:
    """Parameters of a sketch as NAME=VALUE."""
    pairs = [text.partition("=") for text in parameter or []]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ParameterError(f"parameter {name!r} has no value", action="write NAME=VALUE, such as rows=4")
    return {name.strip(): value.strip() for name, _, value in pairs}
