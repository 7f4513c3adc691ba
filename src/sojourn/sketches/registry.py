"""All sketches by the name that epochs and commands give them; a sketch's module is imported when it is first used."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

from sojourn.core.errors import ParameterError
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sketch import Sketch

AnySketch: TypeAlias = Sketch[Any, Any]

# The module and the class of each kind.
SKETCHES = {
    "bucket_array": ("bucket_array", "BucketArray"),
    "counter_vector": ("counter_vector", "CounterVector"),
    "lda": ("lda", "Lda"),
    "lds": ("lds", "Lds"),
    "sample": ("sample", "Sample"),
    "sds": ("sds", "Sds"),
    "segment": ("stack", "Stack"),
}


@cache
def sketch_type(kind: str) -> type[AnySketch]:
    """The sketch class of a kind."""
    if kind not in SKETCHES:
        raise ParameterError(f"{kind[:40]!r} is no sketch", action=f"use one of {', '.join(SKETCHES)}")
    module, name = SKETCHES[kind]
    found: type[AnySketch] = getattr(import_module(f"sojourn.sketches.{module}"), name)
    return found


def new_sketch(parameters: Parameters) -> AnySketch:
    """An empty sketch with these parameters."""
    return sketch_type(parameters.kind)(parameters)
