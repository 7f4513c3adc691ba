"""The tables of a store of epochs, the same for SQLite and PostgreSQL, and the statements that the two spell apart.

Ids of instances are 64-bit words; databases have signed ones, so a word is stored as the signed number with its bits.
Rows are added unless they are there: SQLite has one writer at a time, but with PostgreSQL another query unit may add
the same row between a look and an insert, and one of the two would fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    case,
    inspect,
    or_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateColumn

SCHEMA_VERSION = 1
_NAME = String(200)
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")

METADATA = MetaData()

SCHEMA = Table("schema_version", METADATA, Column("version", Integer, primary_key=True))

NODES = Table(
    "nodes",
    METADATA,
    Column("name", _NAME, primary_key=True),
    Column("first_seen_ns", BigInteger, nullable=False),
    Column("last_seen_ns", BigInteger, nullable=False),
)

TAGS = Table(
    "node_tags",
    METADATA,
    Column("node", _NAME, primary_key=True),
    Column("tag", _NAME, primary_key=True),
    Index("node_tags_by_tag", "tag"),
)

STREAMS = Table(
    "streams",
    METADATA,
    Column("node", _NAME, primary_key=True),
    Column("name", _NAME, primary_key=True),
    Column("metric", _NAME, nullable=False),
    Column("unit", String(40), nullable=False),
    Column("granularity", String(40), nullable=False),
    Column("values_are", String(20)),  # increments or samples; null where an earlier agent did not say
)

EPOCHS = Table(
    "epochs",
    METADATA,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("node", _NAME, nullable=False),
    Column("stream", _NAME, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("first_ns", BigInteger),
    Column("last_ns", BigInteger),
    Column("recorded", BigInteger, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("node", "stream", "sequence", name="epoch_identity"),
    Index("epochs_by_time", "node", "stream", "last_ns"),
)

# Stored epochs whose keys are still to be entered in the directory, and how many of them are.
UNLISTED = Table(
    "unlisted_epochs",
    METADATA,
    Column("epoch", _NUMBER, primary_key=True, autoincrement=False),
    Column("listed", Integer, nullable=False),
)

# Stored epochs that could not be decoded, and why; they are left out of answers.
SET_ASIDE = Table(
    "epochs_set_aside",
    METADATA,
    Column("epoch", _NUMBER, primary_key=True, autoincrement=False),
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
    Column("node", _NAME, primary_key=True),
    Column("stream", _NAME, primary_key=True),
    Column("instance", BigInteger, primary_key=True, autoincrement=False),
    Column("first_ns", BigInteger, nullable=False),
    Column("last_ns", BigInteger, nullable=False),
)


def add_missing_columns(connection: Connection, table: Table) -> None:
    """Give a table of an earlier version the columns that have been added since."""
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for column in table.columns:
        if column.name not in there:
            text = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {text}")


_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@cache
def insert_new(dialect: str, table: Table) -> Any:
    """The statement that adds rows whose key is not there; built once, which takes longer than to run it."""
    return _INSERTS[dialect](table).on_conflict_do_nothing()


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows; where one with the same key is there (now), that one stays."""
    if rows:
        connection.execute(insert_new(connection.dialect.name, table), list(rows))


@cache
def _widening(dialect: str, table: Table) -> Any:
    statement = _INSERTS[dialect](table)
    here, new = table.c, statement.excluded
    span = {
        "first_ns": case((new.first_ns < here.first_ns, new.first_ns), else_=here.first_ns),
        "last_ns": case((new.last_ns > here.last_ns, new.last_ns), else_=here.last_ns),
    }
    key: list[Column[Any]] = list(table.primary_key.columns)
    is_wider = or_(new.first_ns < here.first_ns, new.last_ns > here.last_ns)
    return statement.on_conflict_do_update(index_elements=key, set_=span, where=is_wider)


def widen_spans(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows with a span (first_ns … last_ns); where one with the same key is there, its span grows to hold both."""
    if rows:
        connection.execute(_widening(connection.dialect.name, table), list(rows))
