"""A database: SQLite in a directory, or PostgreSQL at a URL; opened, and used in transactions.

Guarantee: a transaction is all or nothing, and on disk when it ends (SQLite: write-ahead log, synchronised at every
commit); what a database complains of is a `StoreError`. Writers get their turns in the order in which they came. Only
its owner can read a database in a directory, whatever that allows.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError

from sojourn.core.errors import StoreError
from sojourn.core.executors.turns import FairLock

BUSY_SECONDS = 10
DATABASE_NAME = "sojourn.sqlite"
PRIVATE = 0o600
POOL_CONNECTIONS = 20


def is_store(place: str | Path) -> bool:
    """Whether there is a store in a directory already; a database at a URL is taken for one."""
    return "://" in str(place) or (Path(place) / DATABASE_NAME).exists()


def engine_at(place: str | Path | URL) -> Engine:
    """The database in a directory (SQLite, made if missing) or at a URL, to be written."""
    text = str(place)
    try:
        if isinstance(place, URL) or "://" in text:
            url = place if isinstance(place, URL) else make_url(text)
            engine = create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
        else:
            engine = _sqlite_in(Path(place))
    except (ArgumentError, ModuleNotFoundError) as error:
        kind = text.partition("://")[0]
        raise StoreError(
            f"databases of the kind {kind[:40]!r} cannot be opened ({error})",
            where="data",
            action="give a directory, or install the database's driver",
        ) from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def reading_engine(url: URL) -> Engine:
    """A database that another process has opened, for reading alone."""
    engine = create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _read_only_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _sqlite_in(directory: Path) -> Engine:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _keep_private(directory / DATABASE_NAME)
    # A path in an object is taken as it is; in a text, a question mark would end it.
    address = URL.create("sqlite", database=str(directory / DATABASE_NAME))
    # No thread of the query unit waits for another's connection: it would wait for that one's work, too.
    return create_engine(address, pool_size=POOL_CONNECTIONS, max_overflow=2 * POOL_CONNECTIONS)


def _keep_private(database: Path) -> None:
    """Let nobody but its owner read a database, whatever the directory allows; SQLite gives its log the same mode."""
    try:
        os.close(os.open(database, os.O_RDWR | os.O_CREAT, PRIVATE))
        for path in (database, *(database.with_name(database.name + end) for end in ("-wal", "-shm"))):
            with suppress(FileNotFoundError):
                if stat.S_IMODE(path.stat().st_mode) != PRIVATE:
                    path.chmod(PRIVATE)
    except OSError as error:
        raise StoreError(
            error.strerror or str(error), where=str(database), action="check that you own it and may write there"
        ) from None


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Readers beside the writer, every commit on disk, and waiting instead of failing when it is busy."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={BUSY_SECONDS * 1000}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _read_only_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
    connection.execute("PRAGMA query_only=ON")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its place at the start: one that began as a reader may find that another was faster, and fail."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class Database:
    """An open database; what is stored there is for others to know."""

    def __init__(self, engine: Engine, *, where: str, is_read_only: bool = False) -> None:
        self.engine = engine
        self.where = where
        self.is_read_only = is_read_only
        # SQLite has one writer at a time, and lets those that wait find out by trying again.
        self._turns = FairLock(seconds=BUSY_SECONDS) if engine.dialect.name == "sqlite" else nullcontext()

    def create(self, tables: MetaData) -> None:
        """Make tables that are missing, unless it is only read."""
        if not self.is_read_only:
            with self.transaction(writes=True) as connection:
                tables.create_all(connection)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        """All or nothing; a database's own complaint becomes a `StoreError`."""
        turn = self._turns if writes else nullcontext()
        try:
            with (
                turn,
                self.engine.connect().execution_options(writes=writes) as connection,
                connection.begin(),
            ):
                yield connection
        except IntegrityError:
            raise
        except TimeoutError:
            raise StoreError("the database is busy", where=self.where, action="try again in a few seconds") from None
        except (OperationalError, DBAPIError) as error:
            cause = str(error.orig).strip().splitlines()
            raise StoreError(
                f"the database says: {cause[0] if cause else error}"[:300],
                where=self.where,
                action="check that it runs, that the disk has room and that you may write there",
            ) from None
