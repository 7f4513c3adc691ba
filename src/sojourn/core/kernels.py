"""The one way Sojourn compiles a hot loop.

`kernel` compiles a function for columns of numbers: no Python objects inside, the GIL released,
machine code cached beside the source. `inlined` is for the small pieces that kernels share.
Both keep the function's own signature for type checkers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

__all__ = ["inlined", "kernel"]

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` with Numba, cached on disk, without the GIL."""
    return cast(F, njit(cache=True, nogil=True)(function))


def inlined(function: F) -> F:
    """Compile `function` so that LLVM inlines it into the kernels that call it."""
    return cast(F, njit(cache=True, nogil=True, forceinline=True)(function))
