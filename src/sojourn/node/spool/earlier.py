"""Spools as Sojourn kept them before there was a database: one file per epoch, taken over at the first start.

``STREAM-SEQUENCE.epoch`` waits; ``.sent`` may have arrived; ``NEWER.OLDER.merge`` holds both that it names, and takes
their place; ``STREAM.open`` is a checkpoint of the epoch that was being recorded. Nothing is doubled: what was taken
over is noted, by name and digest, in the transaction that takes it over, and files that are still there after a crash
are only removed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sojourn.core.errors import WireError
from sojourn.epochs.encoded import MAX_EPOCH_BYTES, encoded, hash_bytes_fast
from sojourn.node.spool.file import SpooledEpoch, State, insert, spooled

WAITING, SENT, MERGE, OPEN, DAMAGED = ".epoch", ".sent", ".merge", ".open", ".damaged"
_STATES = {WAITING: State.WAITING, MERGE: State.WAITING, SENT: State.SENT, OPEN: State.OPEN}
# Where two files have an epoch of one number: the one that may have arrived is the one that has to arrive again, and a
# checkpoint gives way to what was closed.
_RANK = {SENT: 0, MERGE: 1, WAITING: 2, OPEN: 3}


@dataclass(frozen=True)
class EarlierFile:
    """A file of an earlier spool: its entry, or why it cannot be read."""

    path: Path
    entry: SpooledEpoch | None
    digest: int = 0
    modified_ns: int = 0
    problem: str = ""


def earlier_files(directory: Path) -> Iterator[EarlierFile]:
    """The files of an earlier spool, those that stand for others first."""
    paths = [path for path in directory.iterdir() if path.suffix in _STATES]
    replaced: set[str] = set()
    for path in sorted(paths, key=lambda path: (_RANK[path.suffix], path.name)):
        if path.suffix == WAITING and path.stem in replaced:
            continue
        file = _read(path)
        if path.suffix == MERGE and file.entry is not None:
            replaced.update(path.stem.split("."))
        yield file


def _read(path: Path) -> EarlierFile:
    try:
        about = path.stat()
        if about.st_size > MAX_EPOCH_BYTES:
            return EarlierFile(path, None, problem=f"{about.st_size} bytes exceed {MAX_EPOCH_BYTES}")
        data = path.read_bytes()
        return EarlierFile(
            path, spooled(encoded(data), _STATES[path.suffix]), hash_bytes_fast(data) >> 1, about.st_mtime_ns
        )
    except (WireError, OSError) as error:
        return EarlierFile(path, None, problem=str(error))


def take_over(connection: sqlite3.Connection, directory: Path) -> tuple[int, list[EarlierFile]]:
    """Take an earlier spool's epochs into a database, within its transaction; how many, and the unreadable files."""
    taken = dict(connection.execute("SELECT name, digest FROM taken_over"))
    count = 0
    unreadable: list[EarlierFile] = []
    for file in earlier_files(directory):
        entry = file.entry
        if entry is None:
            unreadable.append(file)
        elif taken.get(file.path.name) != file.digest:
            count += _take_over_one(connection, entry, file.modified_ns)
            connection.execute("INSERT OR REPLACE INTO taken_over VALUES (?, ?)", (file.path.name, file.digest))
    return count, unreadable


def _take_over_one(connection: sqlite3.Connection, entry: SpooledEpoch, modified_ns: int) -> int:
    if connection.execute("SELECT 1 FROM entries WHERE stream = ? AND sequence = ?", entry.key).fetchone():
        return 0
    insert(connection, entry)
    if entry.state is State.OPEN:
        row = (entry.stream, entry.sequence, modified_ns)
        connection.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?, 1)", row)
    return 1


def put_aside(file: EarlierFile) -> str:
    """Rename a file that cannot be read, where the disk allows it; what is the matter with it."""
    with suppress(OSError):
        os.replace(file.path, file.path.with_suffix(DAMAGED))
        return f"{file.path.stem}{DAMAGED}: {file.problem}"
    return f"{file.path.name}: {file.problem}"


def remove_taken_over(connection: sqlite3.Connection, directory: Path) -> None:
    """Remove the files that a committed transaction took over, and those that they stood for."""
    for (name,) in connection.execute("SELECT name FROM taken_over").fetchall():
        path = directory / str(name)
        if path.suffix == MERGE:
            for stem in path.stem.split("."):
                (directory / f"{stem}{WAITING}").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    connection.execute("DELETE FROM taken_over")
