"""Revision 0001: the tables that Sojourn 0.1.0 made itself, before schemas had revisions.

Run on an empty database it makes them all; on one that Sojourn 0.1.0 made, only what is missing: tables were made by
the part that needed them, and three columns were added to tables that were there. Either way it is then of 0001.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
)
from sqlalchemy.schema import CreateColumn

revision = "0001"
down_revision = None

NAME = String(200)
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
# The columns that a database may lack though it has their table.
ADDED = {"streams": ("values_are",), "collections": ("set_aside", "halvings")}
FIRST = MetaData()

Table(
    "schema_version",
    FIRST,
    Column("version", Integer, primary_key=True),
)

Table(
    "nodes",
    FIRST,
    Column("name", NAME, primary_key=True),
    Column("first_seen_ns", BigInteger, nullable=False),
    Column("last_seen_ns", BigInteger, nullable=False),
)

Table(
    "node_tags",
    FIRST,
    Column("node", NAME, primary_key=True),
    Column("tag", NAME, primary_key=True),
    Index("node_tags_by_tag", "tag"),
)

Table(
    "streams",
    FIRST,
    Column("node", NAME, primary_key=True),
    Column("name", NAME, primary_key=True),
    Column("metric", NAME, nullable=False),
    Column("unit", String(40), nullable=False),
    Column("granularity", String(40), nullable=False),
    Column("values_are", String(20)),
)

Table(
    "epochs",
    FIRST,
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
    UniqueConstraint("node", "stream", "sequence", name="epoch_identity"),
    Index("epochs_by_time", "node", "stream", "last_ns"),
)

Table(
    "unlisted_epochs",
    FIRST,
    Column("epoch", NUMBER, primary_key=True, autoincrement=False),
    Column("listed", Integer, nullable=False),
)

Table(
    "epochs_set_aside",
    FIRST,
    Column("epoch", NUMBER, primary_key=True, autoincrement=False),
    Column("reason", Text, nullable=False),
    Column("since_ns", BigInteger, nullable=False),
)

Table(
    "instances",
    FIRST,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("key", String(512), nullable=False),
)

Table(
    "sightings",
    FIRST,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("instance", BigInteger, primary_key=True, autoincrement=False),
    Column("first_ns", BigInteger, nullable=False),
    Column("last_ns", BigInteger, nullable=False),
)

Table(
    "epoch_cuts",
    FIRST,
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
    Index("cuts_by_stream", "node", "stream", "sequence"),
)

Table(
    "stream_pairs",
    FIRST,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("from_node", NAME, nullable=False),
    Column("from_stream", NAME, nullable=False),
    Column("to_node", NAME, nullable=False),
    Column("to_stream", NAME, nullable=False),
    Column("sent_until", BigInteger, nullable=False),
    Column("received_until", BigInteger, nullable=False),
    UniqueConstraint("from_node", "from_stream", "to_node", "to_stream", name="pair_identity"),
    Index("pairs_back", "to_node", "from_node"),
)

Table(
    "answered_runs",
    FIRST,
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
    Column("clock", LargeBinary, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("reason", Text),
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
    ),
    Index("runs_by_time", "pair", "end_ns"),
)

Table(
    "tokens",
    FIRST,
    Column("id", String(16), primary_key=True),
    Column("name", NAME, nullable=False),
    Column("role", String(10), nullable=False),
    Column("node", NAME),
    Column("digest", LargeBinary(32), nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("revoked_ns", BigInteger),
)

Table(
    "segment_measurements",
    FIRST,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("node", NAME, nullable=False),
    Column("segment", Text, nullable=False),
    Column("dscp", Integer, nullable=False),
    Column("method", NAME, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("row", Text, nullable=False),
    UniqueConstraint("node", "segment", "dscp", "method", "start_ns", name="measurement_identity"),
    Index("measurements_by_time", "start_ns"),
)

Table(
    "fleet_segments",
    FIRST,
    Column("name", NAME, primary_key=True),
    Column("from_node", NAME, nullable=False, index=True),
    Column("from_interface", String(20), nullable=False),
    Column("from_direction", String(4), nullable=False),
    Column("to_node", NAME, nullable=False, index=True),
    Column("to_interface", String(20), nullable=False),
    Column("to_direction", String(4), nullable=False),
    Column("filter", String(1000), nullable=False),
    Column("epoch_ns", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger),
    Column("error", Float),
    Column("confidence", Float),
    Column("both_directions", Boolean, nullable=False),
    Column("planned_bytes", BigInteger, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
)

Table(
    "segment_generations",
    FIRST,
    Column("number", NUMBER, primary_key=True, autoincrement=True),
    Column("plan", Text, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("epoch_ns", BigInteger, nullable=False),
    Column("since_ns", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

Table(
    "point_recordings",
    FIRST,
    Column("node", NAME, primary_key=True),
    Column("interface", String(20), primary_key=True),
    Column("direction", String(4), primary_key=True),
    Column("filter", String(1000), primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("since_ns", BigInteger, nullable=False),
    Column("superseded_ns", BigInteger),
    Column("until_ns", BigInteger, index=True),
)

Table(
    "assignments",
    FIRST,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("configuration", Text),
    Column("version", BigInteger, nullable=False),
)

Table(
    "stream_owners",
    FIRST,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("instance", String(64), nullable=False),
    Column("floor", BigInteger),
    Column("released_ns", BigInteger),
)

Table(
    "agents_seen",
    FIRST,
    Column("node", NAME, primary_key=True),
    Column("instance", String(64), primary_key=True),
    Column("seen_ns", BigInteger, nullable=False),
)

Table(
    "stream_states",
    FIRST,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("state", String(20), nullable=False, index=True),
    Column("since_ns", BigInteger, nullable=False),
    Column("reason", Text),
)

Table(
    "collections",
    FIRST,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("node", NAME, nullable=False),
    Column("name", NAME, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("begin_ns", BigInteger),
    Column("close_ns", BigInteger),
    Column("period_ns", BigInteger),
    Column("newest_ns", BigInteger),
    Column("longest_ns", BigInteger, nullable=False),
    Column("may_be_exact", Boolean, nullable=False),
    Column("packets", BigInteger, nullable=False),
    Column("duplicates", BigInteger, nullable=False),
    Column("conflicts", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("windows", BigInteger, nullable=False),
    Column("solved", BigInteger, nullable=False),
    Column("left_out", BigInteger, nullable=False),
    Column("contradictions", BigInteger, nullable=False),
    Column("unsolved", BigInteger, nullable=False),
    Column("set_aside", BigInteger, nullable=False, server_default="0"),
    Column("halvings", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("node", "name", name="collection_identity"),
)

Table(
    "sink_packets",
    FIRST,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("collection", BigInteger, nullable=False),
    Column("origin", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("t0_ns", BigInteger, nullable=False),
    Column("sink_ns", BigInteger, nullable=False),
    Column("sum_ns", BigInteger, nullable=False),
    Column("path", LargeBinary, nullable=False),
    Column("direct_ns", BigInteger),
    UniqueConstraint("collection", "origin", "sequence", "t0_ns", name="packet_identity"),
    Index("sink_packets_by_time", "collection", "t0_ns"),
    Index("sink_packets_direct", "collection", "direct_ns"),
)

Table(
    "sink_late",
    FIRST,
    Column("packet", BigInteger, primary_key=True, autoincrement=False),
    Column("collection", BigInteger, nullable=False),
    Column("t0_ns", BigInteger, nullable=False),
    Column("is_due", Boolean, nullable=False),
    Index("sink_late_by_time", "collection", "t0_ns"),
)

Table(
    "sink_received",
    FIRST,
    Column("received_ns", BigInteger, primary_key=True, autoincrement=False),
    Column("last_packet", BigInteger, nullable=False),
)

Table(
    "sink_answers",
    FIRST,
    Column("packet", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)

Table(
    "sink_set_aside",
    FIRST,
    Column("packet", BigInteger, primary_key=True, autoincrement=False),
    Column("window", BigInteger, nullable=False),
    Index("sink_set_aside_by_window", "window"),
)

Table(
    "sink_set_aside_windows",
    FIRST,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("collection", BigInteger, nullable=False),
    Column("begin_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("packets", BigInteger, nullable=False),
    Column("reason", String(300), nullable=False),
    Index("sink_set_aside_by_collection", "collection"),
)


def upgrade() -> None:
    connection = op.get_bind()
    FIRST.create_all(connection)
    for name, columns in ADDED.items():
        _add_missing(connection, FIRST.tables[name], columns)
    connection.exec_driver_sql("INSERT INTO schema_version (version) VALUES (1) ON CONFLICT DO NOTHING")


def _add_missing(connection: Connection, table: Table, columns: tuple[str, ...]) -> None:
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for name in columns:
        if name not in there:
            text = CreateColumn(table.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {text}")
