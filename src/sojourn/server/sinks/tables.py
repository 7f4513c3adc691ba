"""The tables of collections: what sinks sent, and the answers found; the same for SQLite and PostgreSQL.

Answers are only ever added. A collection's row carries its counters and how far its windows are solved; it changes in
the transaction that adds or removes packets or adds answers, so that all are always of one mind.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

from sojourn.store.database import NAME, NUMBER

METADATA = MetaData()

COUNTERS = (
    "packets", "duplicates", "conflicts", "late", "refused", "windows", "solved", "left_out", "contradictions",
    "unsolved",
)  # fmt: skip

COLLECTIONS = Table(
    "collections",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("node", NAME, nullable=False),
    Column("name", NAME, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("begin_ns", BigInteger),  # packets generated before have been solved, or are in `LATE`
    Column("close_ns", BigInteger),  # up to here everything was asked to be solved
    Column("period_ns", BigInteger),
    Column("newest_ns", BigInteger),  # the latest generation time
    Column("longest_ns", BigInteger, nullable=False),  # the longest way of a packet to the sink
    Column("may_be_exact", Boolean, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in COUNTERS),
    Column("set_aside", BigInteger, nullable=False, server_default="0"),  # packets without an answer, for good
    Column(
        "halvings", BigInteger, nullable=False, server_default="0"
    ),  # how often windows are halved, see `SinkWorker`
    UniqueConstraint("node", "name", name="collection_identity"),
)

PACKETS = Table(
    "sink_packets",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("collection", BigInteger, nullable=False),
    Column("origin", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("t0_ns", BigInteger, nullable=False),
    Column("sink_ns", BigInteger, nullable=False),
    Column("sum_ns", BigInteger, nullable=False),
    Column("path", LargeBinary, nullable=False),  # 32-bit words, lowest byte first
    Column("direct_ns", BigInteger),  # the delay of a packet that went straight to the sink
    UniqueConstraint("collection", "origin", "sequence", "t0_ns", name="packet_identity"),
    Index("sink_packets_by_time", "collection", "t0_ns"),
    Index("sink_packets_direct", "collection", "direct_ns"),
)

LATE = Table(
    "sink_late",
    METADATA,
    Column("packet", BigInteger, primary_key=True, autoincrement=False),
    Column("collection", BigInteger, nullable=False),
    Column("t0_ns", BigInteger, nullable=False),
    Column("is_due", Boolean, nullable=False),  # whether its answer was asked for
    Index("sink_late_by_time", "collection", "t0_ns"),
)

RECEIVED = Table(
    "sink_received",
    METADATA,
    Column("received_ns", BigInteger, primary_key=True, autoincrement=False),  # by then …
    Column("last_packet", BigInteger, nullable=False),  # … packets up to this number had come
)

ANSWERS = Table(
    "sink_answers",
    METADATA,
    Column("packet", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),  # 64-bit words, see `unpacked`; empty if left out
)

SET_ASIDE = Table(
    "sink_set_aside",
    METADATA,
    Column("packet", BigInteger, primary_key=True, autoincrement=False),
    Column("window", BigInteger, nullable=False),
    Index("sink_set_aside_by_window", "window"),
)

SET_ASIDE_WINDOWS = Table(
    "sink_set_aside_windows",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("collection", BigInteger, nullable=False),
    Column("begin_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("packets", BigInteger, nullable=False),  # those that are still there
    Column("reason", String(300), nullable=False),
    Index("sink_set_aside_by_collection", "collection"),
)
