"""How the round-trip time kernels are compiled: without counting references to their arrays.

They hand ten arrays through several inlined functions for every packet. Numba counts the references it
takes on the way (two atomic operations per array and call) and does not see that the counts cancel; that
took two thirds of the time. A kernel that allocates nothing can do without: its caller holds the arrays.
One that does allocate fails to compile here, so nothing can be freed too early.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

__all__ = ["borrowing_inlined", "borrowing_kernel"]

F = TypeVar("F", bound=Callable[..., object])

_BORROWING: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}


def borrowing_kernel(function: F) -> F:
    """`core.kernels.kernel` for functions that only borrow their arrays."""
    return cast(F, njit(**_BORROWING)(function))


def borrowing_inlined(function: F) -> F:
    """`core.kernels.inlined` for functions that only borrow their arrays."""
    return cast(F, njit(forceinline=True, **_BORROWING)(function))
