"""The secret of pseudonyms: 32 random bytes, as 64 hexadecimal digits in a file that nobody but its owner can read.

Who has it turns pseudonyms into addresses, and names into pseudonyms: it lies on nodes and with operators, never with
the query unit. ``openssl rand -hex 32`` makes one as well, where the mode of its file is seen to.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from sojourn.core.errors import InputError, UsageError

SECRET_BYTES = 32
_DIGITS = re.compile(rb"[0-9a-fA-F]{64}\s*")
_MOST_BYTES = 256
_MAKE = "sojourn pseudonym key -w FILE makes one"


def make_secret(path: Path) -> None:
    """A new secret in a new file of mode 0600; one that is there is never overwritten: its pseudonyms would be lost."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(
            "there is a file already", where=str(path), action="choose another name; without a key its names are lost"
        ) from None
    with open(file, "w", encoding="ascii") as opened:
        opened.write(f"{secrets.token_hex(SECRET_BYTES)}\n")
        opened.flush()
        os.fsync(opened.fileno())


def read_secret(path: Path) -> bytes:
    """The secret in a file, which is refused where others could have read it."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            raise InputError("not a file", where=str(path), action=_MAKE)
        if others := state.st_mode & 0o077:
            raise UsageError(
                f"others than its owner may use it (mode {stat.S_IMODE(state.st_mode) | others:04o})",
                where=str(path),
                action=f"chmod 600 {path}; if others may have read it, make a new one",
            )
        text = os.read(file, _MOST_BYTES)
    finally:
        os.close(file)
    if not _DIGITS.fullmatch(text):
        raise InputError("not a key of pseudonyms (64 hexadecimal digits)", where=str(path), action=_MAKE)
    return bytes.fromhex(text.decode("ascii"))
