"""Where compiled kernels are kept, and who hears of it when one has to be compiled.

Kernels are kept in the first of these that can be written: what SOJOURN_CACHE_DIR (or Numba's own NUMBA_CACHE_DIR)
names; the package's own folder; a service's cache (systemd's CACHE_DIRECTORY); the user's cache; a folder of the
user's own in the directory for temporary files. Machine code is loaded from there, so that a folder that others may
write to is never taken by default. Nothing here imports Numba.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SOJOURN_CACHE_DIR"
_NUMBA_VARIABLE = "NUMBA_CACHE_DIR"
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class CompileStep:
    """A function that is about to be compiled, or was (`is_done`), and its name."""

    name: str
    is_done: bool


_observers: list[Callable[[CompileStep], None]] = []


def observe_compilation(observer: Callable[[CompileStep], None]) -> None:
    """Call `observer` before and after every compilation of this process."""
    _observers.append(observer)


def report_compilation(step: CompileStep) -> None:
    """Let all observers know; called where kernels are compiled."""
    for observer in _observers:
        observer(step)


def cache_directory() -> Path | None:
    """Where kernels are kept; None if nothing can be written, and every process compiles its own."""
    for variable in (VARIABLE, _NUMBA_VARIABLE):
        if named := os.environ.get(variable):
            return _usable(Path(named))
    if os.access(_PACKAGE, os.W_OK):
        return _PACKAGE
    service = os.environ.get("CACHE_DIRECTORY", "").split(":")[0]
    home = os.environ.get("XDG_CACHE_HOME") or (Path.home() / ".cache" if _has_home() else "")
    chosen = [Path(parent) / "sojourn" for parent in (service, home) if parent]
    found = next((path for path in chosen if _usable(path)), None)
    if found is not None or not hasattr(os, "getuid"):
        return found
    return _private(Path(tempfile.gettempdir()) / f"sojourn-kernels-{os.getuid()}")


def use_cache_directory() -> None:
    """Let Numba keep its kernels there, in this process and those that it starts."""
    found = cache_directory()
    if found is not None and found != _PACKAGE:
        os.environ[_NUMBA_VARIABLE] = str(found)
    elif VARIABLE in os.environ:
        os.environ.pop(_NUMBA_VARIABLE, None)


def _has_home() -> bool:
    try:
        return Path.home().is_dir()
    except RuntimeError:
        return False


def _usable(path: Path) -> Path | None:
    """The directory, made if need be, if it can be written."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return path if os.access(path, os.W_OK | os.X_OK) else None


def _private(path: Path) -> Path | None:
    """A directory in a place where anybody may write: only if it is this user's own and nobody else may write to it."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return path if is_own else None
