"""Files from outside, opened for reading: what cannot be read is an `InputError` that names the file and says why.

Pipes, sockets and terminals are read as they come. Other devices are refused, as they need not end (``/dev/zero``).
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TypeAlias

from sojourn.core.errors import InputError

FilePath: TypeAlias = str | os.PathLike[str]


def open_input(path: FilePath) -> io.BufferedReader:
    """The bytes of the file at `path`."""
    name = os.fspath(path)
    try:
        mode = os.stat(name).st_mode
        # A directory is left to the system's own words.
        file = open(name, "rb") if not stat.S_ISBLK(mode) else None  # noqa: SIM115 - for the caller
    except (OSError, ValueError) as error:
        raise unreadable(error, name) from error
    if file is None or (stat.S_ISCHR(mode) and not file.isatty()):
        if file is not None:
            file.close()
        raise InputError("this is a device", where=name, action="give a file or a pipe")
    return file


@contextmanager
def input_bytes(path: FilePath) -> Iterator[IO[bytes]]:
    """The same as a context; ``-`` is stdin, which stays open."""
    if os.fspath(path) == "-":
        yield sys.stdin.buffer
        return
    with open_input(path) as file:
        yield file


def shown_name(path: FilePath) -> str:
    """What messages call a file; ``-`` is stdin."""
    return "stdin" if os.fspath(path) == "-" else os.fspath(path)


def unreadable(error: OSError | ValueError, name: str = "") -> InputError:
    """What the system says of a file, as an error of ours; ``ValueError`` is that of a name no file can have.

    >>> str(unreadable(FileNotFoundError(2, "No such file or directory", "a.pcap")))
    'a.pcap: No such file or directory'
    """
    filename = getattr(error, "filename", None) or name
    return InputError(getattr(error, "strerror", None) or str(error), where=str(filename) or "''")
