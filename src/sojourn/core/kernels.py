"""The one way Sojourn compiles a hot loop, and the loads and stores that kernels share.

`kernel` compiles a function for columns of numbers: no Python objects inside, the GIL released, machine code cached
on disk. `inlined` is for the small pieces that kernels share. All keep the function's own signature for type
checkers.

`borrowing_kernel` and `borrowing_inlined` compile without counting references to arrays, for kernels that hand many
arrays through inlined functions for every packet: Numba counts the references taken on the way (two atomic operations
per array and call) and does not see that the counts cancel. A function that allocates nothing can do without, as its
caller owns the arrays; one that allocates fails to compile, so nothing can be freed too early. A division by 0 gives
infinity there instead of an exception.

For the same reason kernels that hand bytes to many small functions take the address once (`address_of`) and hand on
that integer. Nothing is checked then, exactly as with a Numba index: whoever reads has checked before that the bytes
exist. Take addresses of a kernel's own parameters only; its caller keeps those alive. Numbers are ``int64`` inside
kernels (`signed`), because Numba makes a float of a ``uint64`` beside a signed integer; to a type checker they are
plain integers.

Where kernels are cached is `core/compiling.py`'s choice; where nothing can be, every process compiles its own. A cached
kernel is compiled anew when its own file changes, not when one that it inlines does: `make` clears the caches after any
change.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from sojourn.core.compiling import CompileStep, cache_directory, report_compilation, use_cache_directory

if TYPE_CHECKING:
    signed = int
else:
    signed = np.int64

_LOG = logging.getLogger("sojourn.kernels")

F = TypeVar("F", bound=Callable[..., object])


@contextmanager
def _absent(*names: str) -> Iterator[None]:
    """Let modules that are not loaded yet look as if they were not installed."""
    # Another thread may be importing one of them, and would not find it.
    hidden = [name for name in names if name not in sys.modules and threading.active_count() == 1]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


# What Numba takes in where it is installed and no kernel uses; loading it takes longer than all the rest of Numba.
# PyYAML reads a file of settings in the working directory.
_UNUSED = ("scipy.linalg", "cffi")
with _absent("scipy", *([] if os.path.exists(".numba_config.yaml") else ["yaml"]), *_UNUSED):
    from numba import config, njit, types, version_info
    from numba.core import cgutils, event
    from numba.core.registry import cpu_target
    from numba.core.runtime.nrt import rtsys
    from numba.core.sigutils import normalize_signature
    from numba.extending import intrinsic


class _Compilation(event.Listener):
    """Passes on what Numba compiles; what it finds in its cache is no such event."""

    def on_start(self, event: Any) -> None:
        with _absent(*_UNUSED):
            cpu_target.target_context.refresh()
        report_compilation(CompileStep(event.data["dispatcher"].py_func.__name__, is_done=False))

    def on_end(self, event: Any) -> None:
        report_compilation(CompileStep(event.data["dispatcher"].py_func.__name__, is_done=True))


# Releases of Numba that load a kernel from the cache without their registries (tests/core/test_kernels.py); with any
# other the registries are filled first, as Numba does by itself.
_LOADS_ALONE = (0, 61) <= version_info.short <= (0, 68)

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
    return _compiled(function, **_BORROWING)


def borrowing_inlined(function: F) -> F:
    """`inlined` for functions that allocate nothing."""
    return _compiled(function, **_BORROWING, forceinline=True)


# They divide as numpy does: a check for 0 before every division takes as long as the division.
_BORROWING: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}


def _compiled(function: F, **options: Any) -> F:
    try:
        dispatcher = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return cast(F, njit(nogil=True, **options)(function))
    cache: Any = getattr(dispatcher, "_cache", None)
    if hasattr(cache, "load_overload"):
        cache.load_overload = partial(_load, cache, cache.load_overload)
        cache.save_overload = partial(_save, cache, cache.save_overload)
    return cast(F, dispatcher)


def _load(cache: Any, load: Callable[[Any, Any], Any], signature: Any, context: Any) -> Any:
    """Load a kernel from the cache, which is machine code and needs Numba's runtime alone; None where it is not there.

    Numba fills its registries of types and functions first, in a fifth of a second, though only a compilation looks
    into them and sees to it by itself. What a crash or a full disk left of a file is forgotten and compiled anew; so is
    code for other types, which two processes leave that number their files alike.
    """
    rtsys.initialize(context)
    if _LOADS_ALONE:
        context.refresh = _leave_as_it_is
    try:
        with _absent(*_UNUSED):
            found = load(signature, context)
        if found is None or found.signature.args == normalize_signature(signature)[0]:  # type: ignore[no-untyped-call]
            return found
    except Exception:  # whatever unpickling damaged bytes comes to
        pass
    finally:
        if _LOADS_ALONE:
            del context.refresh
    _keep(cache, cache.flush)
    return None


def _save(cache: Any, save: Callable[[Any, Any], None], signature: Any, compiled: Any) -> None:
    _keep(cache, partial(save, signature, compiled))


def _keep(cache: Any, write: Callable[[], None]) -> None:
    """Write to the cache; where the disk is full or nothing may be written, the kernel is this process's alone."""
    try:
        write()
    except OSError as error:
        cache.disable()
        _say_that_nothing_is_kept(error.strerror)


@lru_cache(1)
def _say_that_nothing_is_kept(reason: str) -> None:
    what = "compiled code cannot be kept, and every run compiles anew"
    _LOG.warning("%s: %s: %s; set SOJOURN_CACHE_DIR to another directory", cache_directory(), what, reason)


def _leave_as_it_is() -> None:
    """Instead of filling registries."""


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


def _prefetcher() -> Callable[[int], None]:
    """A function ``(address)`` that has the cache line of an address loaded; any address will do."""

    @intrinsic
    def load_ahead(_context: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
            module, name = builder.module, "llvm.prefetch.p0"
            function = cgutils.get_or_insert_function(module, kind, name)  # type: ignore[no-untyped-call]
            # For writing, to be kept in all caches, as data.
            flags = [ir.Constant(flag, value) for value in (1, 3, 1)]
            builder.call(function, [builder.inttoptr(arguments[0], pointer), *flags])
            return context.get_dummy_value()

        return types.none(types.int64), generate

    return cast(Callable[[int], None], load_ahead)


prefetch: Callable[[int], None] = _prefetcher()
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
