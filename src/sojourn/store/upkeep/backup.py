"""Backup and restoring of a store in a directory, and what a store says of itself.

A backup is one SQLite file, made by SQLite's own online backup: as of one moment, while the query unit goes on writing,
checked before it gets its name. Restoring copies one into a directory the same way, and leaves a mark in it, by which
the query unit knows that nodes may have been told that things are stored which are not. What nodes still have they
send; what is missing for good is found with their help (`losses`).

PostgreSQL has tools of its own for it, pg_dump and pg_restore.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sojourn.core.errors import StoreError, UsageError
from sojourn.store.database import DATABASE_NAME, PRIVATE, is_store

# Pages that are copied before writers have a turn.
PAGES = 1000
RESTORED = "restored_ns"


def back_up(directory: Path, target: Path) -> int:
    """Copy the database in a directory to a file that is not there yet; its bytes."""
    if not is_store(directory):
        raise UsageError(
            "there is no query unit's data", where=str(directory), action="give the --data of sojourn serve"
        )
    if target.exists():
        raise UsageError("the file is there already", where=str(target), action="give another name")
    draft = target.with_name(f"{target.name}.part")
    draft.unlink(missing_ok=True)
    with _complaints(target):
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))
        try:
            with closing(_opened(directory / DATABASE_NAME)) as source, closing(sqlite3.connect(draft)) as copy:
                source.backup(copy, pages=PAGES)
                # One file, which needs no log beside it.
                copy.execute("PRAGMA journal_mode=DELETE")
                _check(copy, draft)
            os.replace(draft, target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    return target.stat().st_size


def restore(source: Path, directory: Path, *, replace: bool = False) -> None:
    """Have a backup's contents in a directory; those of a database that is there only if they are to be replaced.

    The query unit must not run meanwhile.
    """
    if not source.is_file():
        raise UsageError("there is no such file", where=str(source), action="give a backup that was made before")
    if is_store(directory) and not replace:
        raise UsageError("there is data already", where=str(directory), action="give --replace, or another directory")
    with _complaints(source), closing(_opened(source)) as backup:
        _check(backup, source)
        if not backup.execute("SELECT 1 FROM sqlite_master WHERE name = 'epochs'").fetchone():
            raise StoreError("it is a database, but no query unit's", where=str(source), action="give a backup")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = directory / DATABASE_NAME
        os.close(os.open(place, os.O_RDWR | os.O_CREAT, PRIVATE))
        with closing(sqlite3.connect(place)) as database:
            backup.backup(database)
            if backup.execute("SELECT 1 FROM sqlite_master WHERE name = 'store_facts'").fetchone():
                row = RESTORED, str(time.time_ns())
                database.execute("INSERT OR REPLACE INTO store_facts (name, value) VALUES (?, ?)", row)
                database.commit()


def _opened(path: Path) -> sqlite3.Connection:
    """A database to be read, which must be there."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StoreError(f"it is damaged: {found}", where=str(path), action="use another backup")


@contextmanager
def _complaints(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(
            f"SQLite says: {error}", where=str(path), action="check the file, the disk and its rights"
        ) from None
    except OSError as error:
        raise StoreError(
            error.strerror or str(error), where=str(path), action="check the disk and its rights"
        ) from None
