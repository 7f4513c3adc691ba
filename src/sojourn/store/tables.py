"""The tables of a store of epochs, the same for SQLite and PostgreSQL.

Ids of instances are 64-bit words; databases have signed ones, so a word stands as the signed number with its bits.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    inspect,
)
from sqlalchemy import Connection as DatabaseConnection
from sqlalchemy.schema import CreateColumn

__all__ = [
    "EPOCHS",
    "INSTANCES",
    "METADATA",
    "NODES",
    "SCHEMA",
    "SCHEMA_VERSION",
    "SIGHTINGS",
    "STREAMS",
    "TAGS",
    "UNLISTED",
    "add_missing_columns",
]

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


def add_missing_columns(connection: DatabaseConnection, table: Table) -> None:
    """Give a table of an earlier version the columns that have been added since."""
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for column in table.columns:
        if column.name not in there:
            text = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {text}")
