"""Captures that come through pipes.

A pipe can be read only once, and measuring reads each capture twice: what comes through one is kept in a temporary file
of at most `MOST_PIPED_BYTES`.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import IO

from sojourn.capture.files.reader import require_capture
from sojourn.core.errors import InputError, UsageError
from sojourn.core.files import input_bytes, shown_name
from sojourn.core.units import format_bytes

MOST_PIPED_BYTES = 4 << 30
PIPE_BLOCK_BYTES = 1 << 20


def kept_pipes(paths: tuple[str, str], stack: ExitStack) -> tuple[tuple[str, str], list[str]]:
    """Paths that can be read again, and a note for each pipe; what was kept of pipes goes when the stack is closed."""
    if paths == ("-", "-"):
        raise UsageError("both captures cannot come from stdin", where="measure", action="save one to a file")
    kept = [
        stack.enter_context(tempfile.NamedTemporaryFile(suffix=".pcap")) if is_pipe(path) else None  # noqa: SIM115
        for path in paths
    ]
    with ThreadPoolExecutor(2) as pool:  # whoever writes both may write them in turns
        sizes = list(pool.map(_keep, paths, kept))
    first, second = (path if file is None else file.name for path, file in zip(paths, kept, strict=True))
    notes = [
        f"{shown_name(path)} is a pipe: {format_bytes(size)} of it were kept in a temporary file, to be read twice"
        for path, size in zip(paths, sizes, strict=True)
        if size
    ]
    return (first, second), notes


def is_pipe(path: str) -> bool:
    """Whether what is there can be read only once."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if path == "-" else os.stat(path).st_mode
    except (OSError, ValueError):
        return path == "-"
    return path == "-" or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def _keep(path: str, file: IO[bytes] | None) -> int:
    """Copy a pipe to a file; how many bytes came."""
    if file is None:
        return 0
    size = 0
    with input_bytes(path) as pipe:
        while block := pipe.read(PIPE_BLOCK_BYTES):
            if not size:
                require_capture(block[:4], shown_name(path))
            size += len(block)
            if size > MOST_PIPED_BYTES:
                raise InputError(
                    f"more than {format_bytes(MOST_PIPED_BYTES)} come through this pipe",
                    where=shown_name(path),
                    action="save it to a file, or use record and estimate",
                )
            file.write(block)
    file.flush()
    return size
