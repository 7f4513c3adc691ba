"""Kernels run by the interpreter: the fuzzer sees their branches, and every load is checked.

With ``NUMBA_DISABLE_JIT=1`` a kernel is the Python function it was written as. Loads and stores at addresses exist in
compiled code only; `check_memory` replaces them by ones that raise unless the bytes belong to an array whose address
the running kernel has taken. It must be called before any module that imports them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["OutOfRangeError", "check_memory"]

# A kernel takes the addresses of two arrays at most; older ones are no longer its business.
_regions: deque[tuple[int, int, memoryview]] = deque(maxlen=2)


class OutOfRangeError(Exception):
    """A kernel read or wrote bytes of no array that it was given."""


def _address_of(data: NDArray[Any]) -> int:
    address = data.__array_interface__["data"][0]
    _regions.append((address, address + data.nbytes, memoryview(data.reshape(-1).view(np.uint8))))
    return int(address)


def _bytes_at(address: int, offset: int, size: int) -> memoryview:
    at = int(address) + int(offset)
    for start, end, view in reversed(_regions):
        if start <= at and at + size <= end:
            return view[at - start : at - start + size]
    raise OutOfRangeError(f"{size} bytes at offset {int(offset)} of the address taken")


def _loader(size: int, order: Any) -> Callable[[int, int], int]:
    return lambda address, offset: int.from_bytes(_bytes_at(address, offset, size), order)


def _load_word(address: int, offset: int) -> np.uint64:
    return np.uint64(int.from_bytes(_bytes_at(address, offset, 8), "little"))


def _storer(size: int) -> Callable[[int, int, int], None]:
    mask = (1 << 8 * size) - 1

    def store(address: int, offset: int, value: int) -> None:
        _bytes_at(address, offset, size)[:] = (int(value) & mask).to_bytes(size, "little")

    return store


def check_memory() -> None:
    """Put checked Python functions in the place of loads and stores at addresses."""
    from sojourn.core import kernels

    if kernels.address_of is _address_of:
        return
    users = [name for name in sys.modules if name.startswith("sojourn.capture")]
    if users:
        raise RuntimeError(f"{users[0]} was imported before memory was checked")
    replacements: dict[str, object] = {
        "address_of": _address_of,
        "byte_at": _loader(1, "big"),
        "big_16": _loader(2, "big"),
        "big_32": _loader(4, "big"),
        "little_16": _loader(2, "little"),
        "little_32": _loader(4, "little"),
        "word_at": _load_word,
        "put_byte": _storer(1),
        "put_word": _storer(8),
    }
    for name, replacement in replacements.items():
        setattr(kernels, name, replacement)
    np.seterr(over="ignore")  # kernels count on words that wrap around
