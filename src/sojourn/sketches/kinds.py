"""All kinds of sketches by the name that epochs and commands give them; a module is imported when it is first used.

Guarantee: the parameters of a bucket array are known without numpy or a compiler (`parameters_type`), so that what
records metrics, spools and sends them needs neither. Every other kind comes with its kernels.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from sojourn.core.errors import ParameterError
from sojourn.sketches.parameters import Parameters

if TYPE_CHECKING:
    from sojourn.sketches.sketch import AnySketch

BUCKETS, STACK = "bucket_array", "segment"
# The module and the class of each kind.
SKETCHES = {
    BUCKETS: ("bucket_array", "BucketArray"),
    "counter_vector": ("counter_vector", "CounterVector"),
    "lda": ("lda", "Lda"),
    "lds": ("lds", "Lds"),
    "receipt": ("ledgers.receipt", "Receipt"),
    "sample": ("sample", "Sample"),
    "sds": ("sds", "Sds"),
    STACK: ("stack", "Stack"),
}


@cache
def sketch_type(kind: str) -> type[AnySketch]:
    """The sketch class of a kind."""
    if kind not in SKETCHES:
        raise ParameterError(f"{kind[:40]!r} is no sketch", action=f"use one of {', '.join(SKETCHES)}")
    module, name = SKETCHES[kind]
    found: type[AnySketch] = getattr(import_module(f"sojourn.sketches.{module}"), name)
    return found


def parameters_type(kind: str) -> type[Parameters]:
    """The class of a kind's parameters."""
    if kind != BUCKETS:
        return sketch_type(kind).parameters_type
    from sojourn.sketches.bucket_parameters import BucketArrayParameters

    return BucketArrayParameters
