"""Reading and writing numbers at addresses inside kernels.

Numba counts references to every array that a function is given, with atomic operations that cost more than
the decoding of a packet. Kernels that hand bytes to many small functions therefore take the address once and
hand on that integer. Nothing is checked here, exactly as with a Numba index: whoever reads has checked before
that the bytes exist. Take addresses of a kernel's own parameters only; its caller keeps those alive.

Numbers are ``int64`` inside kernels (`signed`), because Numba makes a float of a ``uint64`` beside a signed
integer; to a type checker they are plain integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sojourn.core.kernels import inlined

__all__ = [
    "address_of",
    "big_16",
    "big_32",
    "byte_at",
    "little_32",
    "number_16",
    "number_32",
    "put_byte",
    "put_word",
    "signed",
    "word_at",
]

if TYPE_CHECKING:
    signed = int
else:
    signed = np.int64


def _loader(bits: int, *, swapped: bool = False, result: Any = types.int64) -> Callable[[int, int], Any]:
    """A function ``(address, offset)`` that loads an unsigned number of so many bits, aligned or not."""

    @intrinsic
    def load(_context: Any, _address: Any, _offset: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(builder.add(*arguments), ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            if swapped:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return result(types.int64, types.int64), generate

    return cast(Callable[[int, int], Any], load)


def _storer(bits: int, kind: Any) -> Callable[[int, int, Any], None]:
    """A function ``(address, offset, value)`` that stores the lowest so many bits."""

    @intrinsic
    def store(_context: Any, _address: Any, _offset: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            address, offset, value = arguments
            pointer = builder.inttoptr(builder.add(address, offset), ir.IntType(bits).as_pointer())
            builder.store(value if bits == 64 else builder.trunc(value, ir.IntType(bits)), pointer, align=1)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64, kind), generate

    return cast(Callable[[int, int, Any], None], store)


byte_at: Callable[[int, int], int] = _loader(8)
big_16: Callable[[int, int], int] = _loader(16, swapped=True)
big_32: Callable[[int, int], int] = _loader(32, swapped=True)
little_16: Callable[[int, int], int] = _loader(16)
little_32: Callable[[int, int], int] = _loader(32)
word_at: Callable[[int, int], np.uint64] = _loader(64, result=types.uint64)
put_byte: Callable[[int, int, int], None] = _storer(8, types.int64)
put_word: Callable[[int, int, np.uint64], None] = _storer(64, types.uint64)


@inlined
def address_of(data: NDArray[Any]) -> int:
    """Where the bytes of a contiguous array begin."""
    return signed(data.ctypes.data)


@inlined
def number_16(address: int, offset: int, big: bool) -> int:
    """Two bytes in a file's own order."""
    return big_16(address, offset) if big else little_16(address, offset)


@inlined
def number_32(address: int, offset: int, big: bool) -> int:
    """Four bytes in a file's own order."""
    return big_32(address, offset) if big else little_32(address, offset)
