"""The one way Sojourn compiles a hot loop.

`kernel` compiles a function for columns of numbers: no Python objects inside, the GIL released, machine code cached
on disk. `inlined` is for the small pieces that kernels share. All keep the function's own signature for type
checkers.

`borrowing_kernel` and `borrowing_inlined` compile without counting references to arrays, for kernels that hand many
arrays through inlined functions for every packet: Numba counts the references taken on the way (two atomic operations
per array and call) and does not see that the counts cancel. A function that allocates nothing can do without, as its
caller holds the arrays; one that allocates fails to compile, so nothing can be freed too early.

Where they are cached is `core/compiling.py`'s choice; where nothing can be, every process compiles its own. Whoever
observes compilation there hears of every kernel that is not in the cache.

A cached kernel is compiled anew when its own file changes, not when one that it inlines does: `make` clears the caches
after any change.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import config, njit
from numba.core import event

from sojourn.core.compiling import CompileStep, report_compilation, use_cache_directory

__all__ = ["borrowing_inlined", "borrowing_kernel", "inlined", "kernel"]

F = TypeVar("F", bound=Callable[..., object])


class _Compilation(event.Listener):
    """Passes on what Numba compiles; what it finds in its cache is no such event."""

    def on_start(self, event: Any) -> None:
        report_compilation(CompileStep(event.data["dispatcher"].py_func.__name__, is_done=False))

    def on_end(self, event: Any) -> None:
        report_compilation(CompileStep(event.data["dispatcher"].py_func.__name__, is_done=True))


use_cache_directory()
config.CACHE_DIR = os.environ.get("NUMBA_CACHE_DIR", "")  # type: ignore[attr-defined]
event.register("numba:compile", _Compilation())  # type: ignore[no-untyped-call]


def kernel(function: F) -> F:
    """Compile `function` with Numba, cached on disk, without the GIL."""
    return _compiled(function)


def inlined(function: F) -> F:
    """Compile `function` so that LLVM inlines it into the kernels that call it."""
    return _compiled(function, forceinline=True)


def borrowing_kernel(function: F) -> F:
    """`kernel` for functions that allocate nothing."""
    return _compiled(function, _nrt=False)


def borrowing_inlined(function: F) -> F:
    """`inlined` for functions that allocate nothing."""
    return _compiled(function, _nrt=False, forceinline=True)


def _compiled(function: F, **options: Any) -> F:
    try:
        return cast(F, njit(cache=True, nogil=True, **options)(function))
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return cast(F, njit(nogil=True, **options)(function))
