"""Checks of what is configured: files and their modes, directories and their disks, the query unit.

Only what somebody configured is looked at, and the query unit is asked one question (`/health`), without a token.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from sojourn.core.errors import ServerError, SojournError
from sojourn.core.units import format_bytes
from sojourn.doctor.finding import Finding, Verdict
from sojourn.node.transports.broker import is_broker
from sojourn.node.transports.exchange import checked_address, connect, exchange

LEAST_FREE, FREE_TO_WARN = 100 << 20, 1 << 30
ANSWER_SECONDS = 3.0
_MOST_HEALTH = 1 << 16
_PORTS = {"mqtt": 1883, "mqtts": 8883}


def secret(name: str, path: Path) -> Iterator[Finding]:
    """A file that holds a token, a password or a key: for its owner alone, or its owner's group."""
    try:
        status = path.stat()
        with open(path, "rb"):
            pass
    except OSError as error:
        yield Finding("fail", name, f"{path}: {error.strerror}", "see that the file is there and this user may read it")
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o007:
        yield Finding("fail", name, f"{path} has mode {mode:04o}: everybody may read it", f"chmod o-rwx {path}")
    elif mode & 0o030:
        yield Finding("warn", name, f"{path} has mode {mode:04o}: its group may write it", f"chmod g-wx {path}")
    else:
        yield Finding("ok", name, f"{path} has mode {mode:04o}")


def directory(name: str, path: Path) -> Iterator[Finding]:
    """A directory that is written to: it has to be there, or be makeable, on a disk with room."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        yield Finding("fail", name, f"{place} is no directory", "name another")
        return
    if not os.access(place, os.W_OK | os.X_OK) or _is_read_only(place):
        which = "" if place == path else f" ({path} is not there yet)"
        yield Finding(
            "fail", name, f"{place} cannot be written{which}", "see its owner and mode, and how it is mounted"
        )
        return
    free = shutil.disk_usage(place).free
    if free < FREE_TO_WARN:
        verdict: Verdict = "fail" if free < LEAST_FREE else "warn"
        yield Finding(verdict, name, f"{path}: {format_bytes(free)} free", "make room, or use another disk")
    else:
        yield Finding("ok", name, f"{path}: {format_bytes(free)} free")


def _is_read_only(place: Path) -> bool:
    """Root may write anywhere but where nobody can."""
    return bool(os.statvfs(place).f_flag & getattr(os, "ST_RDONLY", 1))


def reachable(name: str, server: str, ca_file: Path | None = None) -> Iterator[Finding]:
    """A query unit that answers, or a broker that lets us connect."""
    if is_broker(server):
        yield from _broker(name, server)
        return
    try:
        connections = connect(checked_address(server, where=name), "", ca_file=ca_file)
        limits = {"seconds": ANSWER_SECONDS, "most_bytes": _MOST_HEALTH}
        exchange(connections, server, "GET", "/health", **limits)  # type: ignore[arg-type]
    except ServerError as error:
        yield Finding("fail", name, f"{error.where}: {error.what}", "see that it runs, and that the address is right")
    except SojournError as error:
        yield Finding("fail", name, str(error))
    else:
        yield Finding("ok", name, f"{server} answers and is well")


def _broker(name: str, server: str) -> Iterator[Finding]:
    parts = urlsplit(server)
    host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 1883)
    try:
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except OSError as error:
        what = f"{host}:{port} cannot be reached: {error.strerror or error}"
        yield Finding("fail", name, what, "is the broker running, and is the address right?")
    else:
        yield Finding("ok", name, f"the broker at {host}:{port} accepts connections")
