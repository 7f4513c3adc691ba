"""A database: SQLite in a directory, or PostgreSQL at a URL; opened, used in transactions, and the tables of epochs.

Guarantee: a transaction is all or nothing, and on disk when it ends (SQLite: write-ahead log, synchronised at every
commit); what a database complains of is a `StoreError`, a value that it cannot hold a `UsageError`. Writers get their
turns in the order in which they came. Only its owner can read a database in a directory, whatever that allows.

The tables are the same for both, and made by `migrations`; so are the statements but for those that the two spell
apart. Ids of instances are
64-bit words; databases have signed ones, so a word is stored as the signed number with its bits. Rows are added unless
they are there: SQLite has one writer at a time, but with PostgreSQL another query unit may add the same row between a
look and an insert, and one of the two would fail.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    case,
    cast,
    create_engine,
    event,
    func,
    make_url,
    or_,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, OperationalError

from sojourn.core.errors import StoreError, UsageError
from sojourn.core.executors.turns import FairLock

BUSY_SECONDS = 10
DATABASE_NAME = "sojourn.sqlite"
PRIVATE = 0o600
POOL_CONNECTIONS = 20


def is_store(place: str | Path) -> bool:
    """Whether there is a store in a directory already; a database at a URL is taken for one."""
    return "://" in str(place) or (Path(place) / DATABASE_NAME).exists()


def shown_place(place: str | Path | URL) -> str:
    """Where a database is, to be told to anybody: a URL without its password.

    >>> shown_place("postgresql+psycopg://sojourn:secret@db.example/fleet?password=secret&sslmode=require")
    'postgresql+psycopg://sojourn:***@db.example/fleet?password=***&sslmode=require'
    """
    if not isinstance(place, URL) and "://" not in str(place):
        return str(place)
    try:
        url = place if isinstance(place, URL) else make_url(str(place))
    except (ArgumentError, ValueError):
        return f"{str(place).partition('://')[0]}://…"
    secret = {name: "***" for name in url.query if "password" in name.lower()}
    shown = url.update_query_dict(secret) if secret else url
    return shown.render_as_string(hide_password=True).replace("%2A%2A%2A", "***")


def engine_at(place: str | Path | URL) -> Engine:
    """The database in a directory (SQLite, made if missing) or at a URL, to be written."""
    text = str(place)
    try:
        if isinstance(place, URL) or "://" in text:
            url = place if isinstance(place, URL) else make_url(text)
            engine = create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
        else:
            engine = _sqlite_in(Path(place))
    except (ArgumentError, ModuleNotFoundError, ValueError) as error:
        kind = text.partition("://")[0]
        raise StoreError(
            f"databases of the kind {kind[:40]!r} cannot be opened ({error})",
            where="data",
            action="give a directory, or install the database's driver",
        ) from None
    return _listened_to(engine, _prepare_sqlite)


def reading_engine(url: URL) -> Engine:
    """A database that another process has opened, for reading alone."""
    engine = create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _read_only_postgresql)
    return _listened_to(engine, _read_only_sqlite)


def _listened_to(engine: Engine, prepare: Callable[[Any, object], None]) -> Engine:
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", prepare)
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


def _read_only_postgresql(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    # Setting it began a transaction, at whose rollback it would be forgotten.
    connection.commit()


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

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        """All or nothing; a database's own complaint becomes a `StoreError`, one about a value a `UsageError`."""
        turn = self._turns if writes else nullcontext()
        try:
            with turn, self.engine.connect().execution_options(writes=writes) as connection, connection.begin():
                yield connection
        except IntegrityError:
            raise
        except DataError as error:
            # A NUL character, or more than fits: nothing that trying again would help.
            raise UsageError(
                f"the database cannot hold that: {_first_line(error)}"[:300], where="store", action="use printable text"
            ) from None
        except TimeoutError:
            raise StoreError("the database is busy", where=self.where, action="try again in a few seconds") from None
        except (OperationalError, DBAPIError) as error:
            raise StoreError(
                f"the database says: {_first_line(error)}"[:300],
                where=self.where,
                action="check that it runs, that the disk has room and that you may write there",
            ) from None


def _first_line(error: DBAPIError) -> str:
    """What the driver says, on one line."""
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else str(error)


# Epochs that are dated so far ahead of their arrival are taken for those of a wrong clock.
AHEAD_NS = 3_600_000_000_000
# The types of names and of row numbers, in all tables.
NAME = String(200)
NUMBER = BigInteger().with_variant(Integer(), "sqlite")

METADATA = MetaData()

SCHEMA = Table("schema_version", METADATA, Column("version", Integer, primary_key=True))

NODES = Table(
    "nodes",
    METADATA,
    Column("name", NAME, primary_key=True),
    Column("first_seen_ns", BigInteger, nullable=False),
    Column("last_seen_ns", BigInteger, nullable=False),
    Column("newest_ns", BigInteger),  # of its measurements, by its own clock
    Column("sent_day", BigInteger),  # the latest day since 1970 on which it sent something, and how much that was
    Column("sent_bytes", BigInteger),
)

TAGS = Table(
    "node_tags",
    METADATA,
    Column("node", NAME, primary_key=True),
    Column("tag", NAME, primary_key=True),
    Index("node_tags_by_tag", "tag"),
)

STREAMS = Table(
    "streams",
    METADATA,
    Column("node", NAME, primary_key=True),
    Column("name", NAME, primary_key=True),
    Column("metric", NAME, nullable=False),
    Column("unit", String(40), nullable=False),
    Column("granularity", String(40), nullable=False),
    Column("values_are", String(20)),  # increments or samples; null where an earlier agent did not say
)

_IS_SHIFTED = text("shifted_ns IS NOT NULL")
EPOCHS = Table(
    "epochs",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("node", NAME, nullable=False),
    Column("stream", NAME, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("first_ns", BigInteger),
    Column("last_ns", BigInteger),
    Column("recorded", BigInteger, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("merged", Integer, nullable=False, server_default="1"),  # how many epochs it holds
    Column("shifted_ns", BigInteger),  # first_ns and last_ns are so much earlier than its node says
    # On PostgreSQL, which has none across partitions, an index: `SEQUENCES` is what keeps numbers apart.
    UniqueConstraint("node", "stream", "sequence", name="epoch_identity"),
    Index("epochs_by_time", "node", "stream", "last_ns"),
    # The few that were moved, to be told of in answers.
    Index("epochs_shifted", "node", "stream", sqlite_where=_IS_SHIFTED, postgresql_where=_IS_SHIFTED),
)

# The numbers of a stream's epochs that were ever stored, as ranges that neither overlap nor touch.
SEQUENCES = Table(
    "stored_sequences",
    METADATA,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("first_sequence", BigInteger, nullable=False),
    # The key: those from a number on, which are few as numbers grow, are found by index.
    Column("last_sequence", BigInteger, primary_key=True, autoincrement=False),
)

# Numbers that a node was once told are stored, and that are not, because a backup from before was restored.
LOST = Table(
    "lost_epochs",
    METADATA,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("first_sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("last_sequence", BigInteger, nullable=False),
    Column("found_ns", BigInteger, nullable=False),
)

# The places of epochs that are cut at packets (see `runs`), pairs of their streams, and what runs of these say.
CUTS = Table(
    "epoch_cuts",
    METADATA,
    Column("epoch", NUMBER, primary_key=True, autoincrement=False),
    Column("node", NAME, nullable=False),
    Column("stream", NAME, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("first_ns", BigInteger),
    Column("last_ns", BigInteger),
    Column("recorded", BigInteger, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("begins", BigInteger),
    Column("ends", BigInteger),
    Column("sequences", BigInteger, nullable=False),
    Column("continues", Boolean, nullable=False),
    Column("missed", BigInteger, nullable=False),
    Column("synchronised", Boolean),
    Column("clock_error_ns", BigInteger),
    Column("clock_offset_ns", BigInteger),
    Column("received_ns", BigInteger, nullable=False),
    Index("cuts_by_stream", "node", "stream", "sequence"),
)

PAIRS = Table(
    "stream_pairs",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("from_node", NAME, nullable=False),
    Column("from_stream", NAME, nullable=False),
    Column("to_node", NAME, nullable=False),
    Column("to_stream", NAME, nullable=False),
    # The last epochs of either end that an answer rests on.
    Column("sent_until", BigInteger, nullable=False),
    Column("received_until", BigInteger, nullable=False),
    UniqueConstraint("from_node", "from_stream", "to_node", "to_stream", name="pair_identity"),
    Index("pairs_back", "to_node", "from_node"),
)

RUNS = Table(
    "answered_runs",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("pair", NUMBER, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("answered_ns", BigInteger, nullable=False),
    Column("follows", Boolean, nullable=False),
    Column("sent", BigInteger, nullable=False),
    Column("received", BigInteger, nullable=False),
    Column("flows", Integer, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("lost", BigInteger),
    Column("raw_mean_ns", Float),
    Column("least_raw_ns", BigInteger),
    Column("raw_p99_ns", Float),
    # Delays of runs with the same one have no step of a clock between them; null where points do not tell.
    Column("lead_ns", BigInteger),
    Column("clock", LargeBinary, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("reason", Text),
    # What ledgers tell of it; until a time, if there is one, what is to be asked of the sender's.
    Column("ledger", LargeBinary),
    Column("naming_until_ns", BigInteger),
    Index("runs_by_time", "pair", "end_ns"),
    Index("runs_to_name", "naming_until_ns"),
    Index("runs_by_number", "pair", "id"),
    # All that adding up many pairs takes: their answers are not read for it.
    Index(
        "run_totals",
        "end_ns",
        "pair",
        "start_ns",
        "sent",
        "received",
        "lost",
        "raw_mean_ns",
        "least_raw_ns",
        "raw_p99_ns",
        "lead_ns",
    ),
)

# What a store knows of itself, by name.
FACTS = Table("store_facts", METADATA, Column("name", NAME, primary_key=True), Column("value", Text, nullable=False))

# Stored epochs whose keys are still to be entered in the directory, and how many of them are.
UNLISTED = Table(
    "unlisted_epochs",
    METADATA,
    Column("epoch", NUMBER, primary_key=True, autoincrement=False),
    Column("listed", Integer, nullable=False),
)

# Stored epochs that could not be decoded, and why; they are left out of answers.
SET_ASIDE = Table(
    "epochs_set_aside",
    METADATA,
    Column("epoch", NUMBER, primary_key=True, autoincrement=False),
    Column("reason", Text, nullable=False),
    Column("since_ns", BigInteger, nullable=False),
)

INSTANCES = Table(
    "instances",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("key", String(512), nullable=False),
)

SIGHTINGS = Table(
    "sightings",
    METADATA,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("instance", BigInteger, primary_key=True, autoincrement=False),
    Column("first_ns", BigInteger, nullable=False),
    Column("last_ns", BigInteger, nullable=False),
)


def to_signed(word: int) -> int:
    """The signed number with a word's bits.

    >>> to_signed(2**64 - 1), to_signed(5)
    (-1, 5)
    """
    return word - (1 << 64) if word >> 63 else word


def to_word(number: int) -> int:
    """The word with a signed number's bits."""
    return number & ((1 << 64) - 1)


_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
POSTGRESQL = "postgresql"
_DIALECTS: dict[str, Any] = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


@cache
def insert_unless_there(dialect: str, table: Table) -> Any:
    """The statement that adds rows whose key is not there; built once, which takes longer than to run it."""
    return _INSERTS[dialect](table).on_conflict_do_nothing()


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows; where one with the same key is there (now), that one stays."""
    if rows:
        connection.execute(insert_unless_there(connection.dialect.name, table), list(rows))


def set_facts(connection: Connection, **values: object) -> None:
    """Note what the store shall know of itself, in the place of what it knew."""
    statement = _INSERTS[connection.dialect.name](FACTS)
    changed = statement.on_conflict_do_update(index_elements=["name"], set_={"value": statement.excluded.value})
    connection.execute(changed, [{"name": name, "value": str(value)} for name, value in values.items()])


def fact(connection: Connection, name: str) -> str | None:
    """What the store knows of itself by a name."""
    found: str | None = connection.execute(select(FACTS.c.value).where(FACTS.c.name == name)).scalar()
    return found


@cache
def _widening(dialect: str, table: Table) -> Any:
    names = [column.name for column in table.c]
    statement = _INSERTS[dialect](table)
    if dialect == POSTGRESQL:
        statement = statement.from_select(names, given_columns(table, names))
    here, new = table.c, statement.excluded
    span = {
        "first_ns": case((new.first_ns < here.first_ns, new.first_ns), else_=here.first_ns),
        "last_ns": case((new.last_ns > here.last_ns, new.last_ns), else_=here.last_ns),
    }
    key: list[Column[Any]] = list(table.primary_key.columns)
    is_wider = or_(new.first_ns < here.first_ns, new.last_ns > here.last_ns)
    return statement.on_conflict_do_update(index_elements=key, set_=span, where=is_wider)


def widen_spans(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows with a span (first_ns … last_ns); where one with the same key is there, its span grows to hold both.

    The driver gets the rows as they are: SQLAlchemy would build a set of parameters for each, which takes longer than
    the insert does.
    """
    if not rows:
        return
    name, paramstyle = connection.dialect.name, connection.dialect.paramstyle
    if name == POSTGRESQL:
        connection.exec_driver_sql(as_lists(paramstyle, _widening(name, table)), columns_of(_united(table, rows)))
    else:
        text, order = as_written(name, paramstyle, _widening(name, table))
        connection.exec_driver_sql(text, [tuple(map(row.__getitem__, order)) for row in rows])


def _united(table: Table, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows with one for each key: a statement changes a row once, and two instances of one id may come together."""
    names = [column.name for column in table.primary_key.columns]
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        other = found.setdefault(tuple(row[name] for name in names), row)
        if other is not row:
            first, last = min(row["first_ns"], other["first_ns"]), max(row["last_ns"], other["last_ns"])
            found[tuple(row[name] for name in names)] = {**row, "first_ns": first, "last_ns": last}
    return list(found.values())


def given_columns(table: Table, names: Sequence[str]) -> Select[Any]:
    """Rows of a table that come as a list for each column (PostgreSQL).

    A driver goes through a list faster than through as many values, which psycopg finds the places of in a statement
    of a hundred rows each time anew: three times as long as it takes to insert them.
    """
    # A cast to the column's own type would cut a text that is too long, instead of refusing it.
    kinds = [Text() if isinstance(table.c[name].type, String) else table.c[name].type for name in names]
    lists = [cast(bindparam(name), postgresql.ARRAY(kind)) for name, kind in zip(names, kinds, strict=True)]
    given = func.unnest(*lists).table_valued(*names, name="given").render_derived()
    return select(*(given.c[name] for name in names))


@cache
def as_lists(paramstyle: Any, statement: Any) -> str:
    """A statement with lists for columns as psycopg takes it: in binary, as it writes them as text ten times slower."""
    return as_written(POSTGRESQL, paramstyle, statement)[0].replace(")s", ")b")


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as lists, one for each of their names."""
    return {name: [row[name] for row in rows] for name in rows[0]}


@cache
def as_written(name: str, paramstyle: Any, statement: Any) -> tuple[str, tuple[str, ...]]:
    """A statement, which is built once, as a driver takes it, and the order of its values; none if that is by name."""
    compiled = statement.compile(dialect=_DIALECTS[name](paramstyle=paramstyle))
    return str(compiled), tuple(compiled.positiontup or ())
