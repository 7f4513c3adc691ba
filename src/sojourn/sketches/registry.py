"""All sketches by the name that epochs and commands give them."""

from __future__ import annotations

from typing import Any, TypeAlias

from sojourn.core.errors import ParameterError
from sojourn.sketches.bucket_array import BucketArray
from sojourn.sketches.counter_vector import CounterVector
from sojourn.sketches.lda import Lda
from sojourn.sketches.lds import Lds
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sample import Sample
from sojourn.sketches.sds import Sds
from sojourn.sketches.sketch import Sketch
from sojourn.sketches.stack import Stack

AnySketch: TypeAlias = Sketch[Any, Any]

SKETCHES: dict[str, type[AnySketch]] = {
    sketch.parameters_type.kind: sketch for sketch in (BucketArray, CounterVector, Lda, Lds, Sample, Sds, Stack)
}


def sketch_type(kind: str) -> type[AnySketch]:
    """The sketch class of a kind."""
    if kind not in SKETCHES:
        raise ParameterError(f"{kind[:40]!r} is no sketch", action=f"use one of {', '.join(SKETCHES)}")
    return SKETCHES[kind]


def new_sketch(parameters: Parameters) -> AnySketch:
    """An empty sketch with these parameters."""
    return sketch_type(parameters.kind)(parameters)
