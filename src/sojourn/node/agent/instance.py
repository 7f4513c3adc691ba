"""Who an agent is: a random number, kept beside its spool, that tells agents with one node's name apart.

An agent that is started again with its spool is the same; one that is installed anew, or whose spool is lost, is
another. Where the number cannot be kept it holds for one run.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

__all__ = ["FILE_NAME", "instance_of"]

FILE_NAME = "agent-id"
_ID = re.compile(r"[0-9a-f]{32}")


def instance_of(spool: Path) -> str:
    """The number of the agent whose spool this is, made at the first time."""
    path = spool / FILE_NAME
    new = secrets.token_hex(16)
    try:
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        if kept := _kept(path):
            return kept
        # Put in place whole: an agent that is killed here must not come back as nobody.
        aside = spool / f"{FILE_NAME}.{new}"
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(new + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        return new
    return new


def _kept(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            text = file.read(64).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    return text if _ID.fullmatch(text) else None
