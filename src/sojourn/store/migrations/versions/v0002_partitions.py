"""Revision 0002: numbers of stored epochs apart from the epochs, partitions by time, and what retention goes by.

- ``stored_sequences``: which numbers of a stream were stored, as ranges. It is what makes storage exactly once, also
  where the epochs themselves were merged or removed, and where they are in partitions, across which PostgreSQL has no
  unique constraint.
- ``epochs``: how many epochs a row holds (``merged``), and by how much its times were moved because its node dated it
  ahead of its arrival (``shifted_ns``). Those that are there and dated more than an hour ahead are moved now.
- ``epoch_cuts`` and ``segment_measurements``: when they came. ``nodes``: the latest time by a node's own clock.
- ``lost_epochs``: numbers that were acknowledged once and are not stored. ``store_facts``: what a store knows of
  itself.
- On PostgreSQL ``epochs``, ``epoch_cuts`` and ``answered_runs`` become partitioned; the rows that are there are not
  copied: their table becomes the first partition.
"""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NAME = sa.String(200)
AHEAD_NS = 3_600_000_000_000
DAY_NS = 86_400_000_000_000
# The partitioned tables: the column of a row's number, and of the time that it is partitioned by; indices.
PARTITIONED = {
    "epochs": (
        "id",
        "received_ns",
        {"epoch_identity": "node, stream, sequence", "epochs_by_time": "node, stream, last_ns"},
    ),
    "epoch_cuts": ("epoch", "received_ns", {"cuts_by_stream": "node, stream, sequence"}),
    "answered_runs": (
        "id",
        "answered_ns",
        {
            "runs_by_time": "pair, end_ns",
            "run_totals": "end_ns, pair, start_ns, sent, received, lost, raw_mean_ns, least_raw_ns, raw_p99_ns",
        },
    ),
}


def upgrade() -> None:
    _add_tables()
    _add_columns()
    op.execute(
        "INSERT INTO stored_sequences (node, stream, first_sequence, last_sequence) "
        "SELECT node, stream, MIN(sequence), MAX(sequence) FROM (SELECT node, stream, sequence, "
        "sequence - ROW_NUMBER() OVER (PARTITION BY node, stream ORDER BY sequence) AS island FROM epochs) AS numbered "
        "GROUP BY node, stream, island"
    )
    op.execute(
        "UPDATE nodes SET newest_ns = (SELECT MAX(last_ns) FROM epochs WHERE epochs.node = nodes.name "
        f"AND epochs.last_ns - {AHEAD_NS} <= epochs.received_ns)"
    )
    # The right-hand sides are what the row had before.
    op.execute(
        "UPDATE epochs SET shifted_ns = last_ns - received_ns, first_ns = first_ns - (last_ns - received_ns), "
        f"last_ns = received_ns WHERE last_ns - {AHEAD_NS} > received_ns"
    )
    op.execute(
        "UPDATE epoch_cuts SET received_ns = "
        "COALESCE((SELECT received_ns FROM epochs WHERE epochs.id = epoch_cuts.epoch), 0)"
    )
    # A Sojourn that knows no revisions goes by this number, and must not work with what it does not know.
    op.execute("UPDATE schema_version SET version = 2")
    if op.get_bind().dialect.name == "postgresql":
        for table in PARTITIONED:
            _partition(table)
    op.execute("CREATE INDEX epochs_shifted ON epochs (node, stream) WHERE shifted_ns IS NOT NULL")


def _add_tables() -> None:
    op.create_table(
        "stored_sequences",
        sa.Column("node", NAME, primary_key=True),
        sa.Column("stream", NAME, primary_key=True),
        sa.Column("first_sequence", sa.BigInteger, nullable=False),
        sa.Column("last_sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    )
    op.create_table(
        "lost_epochs",
        sa.Column("node", NAME, primary_key=True),
        sa.Column("stream", NAME, primary_key=True),
        sa.Column("first_sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column("found_ns", sa.BigInteger, nullable=False),
    )
    facts = op.create_table(
        "store_facts", sa.Column("name", NAME, primary_key=True), sa.Column("value", sa.Text, nullable=False)
    )
    op.bulk_insert(facts, [{"name": "store_id", "value": secrets.token_hex(8)}])


def _add_columns() -> None:
    op.add_column("epochs", sa.Column("merged", sa.Integer, nullable=False, server_default="1"))
    op.add_column("epochs", sa.Column("shifted_ns", sa.BigInteger))
    op.add_column("epoch_cuts", sa.Column("received_ns", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("segment_measurements", sa.Column("received_ns", sa.BigInteger))
    op.add_column("nodes", sa.Column("newest_ns", sa.BigInteger))


def _partition(table: str) -> None:
    """Make a table the first partition of a new one with its name; an empty one goes."""
    number, time, indices = PARTITIONED[table]
    before = f"{table}_before"
    newest = op.get_bind().execute(sa.text(f"SELECT MAX({time}) FROM {table}")).scalar()
    op.execute(f"ALTER TABLE {table} RENAME TO {before}")
    op.execute(f"ALTER TABLE {before} DROP CONSTRAINT {table}_pkey")
    if table == "epochs":
        op.execute(f"ALTER TABLE {before} DROP CONSTRAINT epoch_identity")
    for index in indices:
        op.execute(f"ALTER INDEX IF EXISTS {index} RENAME TO {index}_before")
    op.execute(f"CREATE TABLE {table} (LIKE {before} INCLUDING DEFAULTS) PARTITION BY RANGE ({time})")
    if number == "id":  # the numbers go on, also when the table that they were made for is gone
        op.execute(f"ALTER SEQUENCE {table}_id_seq OWNED BY {table}.id")
    op.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({number}, {time})")
    for index, columns in indices.items():
        op.execute(f"CREATE INDEX {index} ON {table} ({columns})")
    if newest is None:
        op.execute(f"DROP TABLE {before}")
    else:
        end = (newest // DAY_NS + 1) * DAY_NS
        op.execute(f"ALTER TABLE {table} ATTACH PARTITION {before} FOR VALUES FROM (MINVALUE) TO ({end})")
    op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")
