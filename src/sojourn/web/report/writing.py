"""Where a report goes: a whole file or none, and never in the place of what it was made from.

An older file of the name is replaced, as by ``-w``: in one step, when all of the new one is on the disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sojourn.core.errors import UsageError
from sojourn.core.files import FilePath
from sojourn.web.report.library import echarts_script

_ENDINGS = (".html", ".htm")


def check_target(path: FilePath, inputs: Iterable[FilePath] = ()) -> Path:
    """The file to write, or the reason why it cannot be one: asked before the work, not after it."""
    name = os.fspath(path)
    if name == "-":
        raise UsageError("a report is a file", where="report", action="name one, such as report.html")
    target = Path(name)
    if target.suffix.lower() not in _ENDINGS:
        raise UsageError(f"{name!r} is no name of a page", where="report", action="let it end with .html")
    if target.is_dir():
        raise UsageError("it is a directory", where=name, action="name a file in it")
    if target.exists() and not target.is_file():
        raise UsageError("it is no file", where=name, action="name a file")
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"there is no directory {folder}", where=name, action="make it, or name another")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"nothing can be written in {folder}", where=name, action="name a directory of your own")
    if any(_is_same(target, each) for each in inputs):
        raise UsageError("it is what is measured", where=name, action="name another file")
    echarts_script()  # what a page is made of is there
    return target


def _is_same(target: Path, other: FilePath) -> bool:
    with suppress(OSError, ValueError):
        return os.path.samefile(target, other)
    return False


def write_page(target: Path, page: str) -> None:
    """Write all of it, or leave what was there; on a full disk an `OSError` that names the file."""
    part = None
    try:
        descriptor, part = tempfile.mkstemp(prefix=f".{target.name[:100]}-", suffix=".part", dir=target.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            os.chmod(part, _usual_mode())
            file.write(page)
            file.flush()
            os.fsync(descriptor)
        os.replace(part, target)
        part = None
    except OSError as error:
        error.filename = str(target)
        error.filename2 = None
        raise
    finally:
        if part is not None:
            with suppress(OSError):
                os.unlink(part)


def _usual_mode() -> int:
    """What `open` would give a new file."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
