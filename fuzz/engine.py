"""The fuzzing process: one target, instrumented, under limits of time and memory.

Python functions of the product are instrumented after import, one by one; kernels only where the interpreter runs them
(`interpreted`), since their compiler would not take instrumented code.
"""

from __future__ import annotations

import ctypes
import inspect
import resource
import sys
import time
from types import FunctionType, ModuleType

import atheris

from fuzz.target import Target

__all__ = ["LimitError", "fuzz"]

MAX_SECONDS = 1.0
MAX_GROWTH_BYTES = 200 << 20
_HANG_SECONDS = 25
_RSS_LIMIT_MB = 3000


class LimitError(Exception):
    """An input took too much time or memory."""


def _functions(module: ModuleType) -> set[FunctionType]:
    """The plain functions and methods that a module defines."""
    found = set()
    for value in vars(module).values():
        members = [value]
        if inspect.isclass(value) and value.__module__ == module.__name__:
            members = [getattr(m, "fget", None) or getattr(m, "__func__", m) for m in vars(value).values()]
        found.update(m for m in members if isinstance(m, FunctionType) and m.__module__ == module.__name__)
    return found


def _instrument() -> int:
    """Let the fuzzer see the branches of everything in Sojourn that is Python; how many functions."""
    modules = [m for name, m in sys.modules.items() if name.startswith("sojourn.")]
    functions = set().union(*map(_functions, modules))
    for function in functions:
        atheris.instrument_func(function)
    return len(functions)


def _leave_network() -> None:
    """Names in filters would be looked up; where the system allows it (as root), no query leaves the process."""
    new_network_namespace = 0x40000000
    if ctypes.CDLL(None).unshare(new_network_namespace):
        print("the network is reachable: names in filters are looked up", file=sys.stderr)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(target: Target, arguments: list[str], *, limited: bool) -> None:
    """Run libFuzzer with its own arguments; never returns.

    `limited` turns an input that takes over a second of processor time, or raises the peak of memory by over 200 MB,
    into a finding. The seeds are run before, without limits, so that kernels are compiled and tables exist.
    """
    _leave_network()
    for seed in target.seeds():
        target.run(seed[: target.max_input])

    def run_one(data: bytes) -> None:
        peak, start = _peak_bytes(), time.process_time()
        target.run(data)
        seconds, growth = time.process_time() - start, _peak_bytes() - peak
        if limited and seconds > MAX_SECONDS:
            raise LimitError(f"{len(data)} bytes took {seconds:.1f} s")
        if limited and growth > MAX_GROWTH_BYTES:
            raise LimitError(f"{len(data)} bytes took {growth >> 20} MB more")

    print(f"{_instrument()} functions instrumented", file=sys.stderr)
    options = [
        sys.argv[0],
        f"-max_len={target.max_input}",
        f"-timeout={_HANG_SECONDS if limited else 20 * _HANG_SECONDS}",
        f"-rss_limit_mb={_RSS_LIMIT_MB}",
        *arguments,
    ]
    if target.mutate is None:
        atheris.Setup(options, run_one)
    else:
        atheris.Setup(options, run_one, custom_mutator=target.mutate)
    atheris.Fuzz()
