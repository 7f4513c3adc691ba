"""Partitions by time on PostgreSQL: a day of epochs, of their places and of answered runs is a table of its own.

Made two days ahead, by whichever query unit is first; dropped whole when they are old, which takes no longer for many
rows than for few and leaves no holes. What comes while there is no partition for its day (a clock that is far off, or a
query unit that was away) goes into the default one, and is moved when its day's is made. SQLite has one table, and
nothing here does anything there.

A table is partitioned by when its rows came, by the query unit's clock: nodes' clocks may say anything. Since epochs
that are dated ahead are moved (`arrivals`), no row of a partition is about a time later than its end and `AHEAD_NS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, MetaData, Table, func, select, text

from sojourn.store.database import AHEAD_NS, CUTS, EPOCHS, RUNS

DAY_NS = 86_400_000_000_000
DAYS_AHEAD = 2
# Partitions are made and dropped by one at a time ("partiti" in ASCII).
LOCK = 0x70617274697469
# Dropping one waits for all who read, and keeps others waiting meanwhile: better later than long.
LOCK_MILLISECONDS = 2000
PARTITIONED: dict[Table, str] = {EPOCHS: "received_ns", CUTS: "received_ns", RUNS: "answered_ns"}
_BOUNDS = re.compile(r"FOR VALUES FROM \((MINVALUE|'-?\d+')\) TO \((MAXVALUE|'-?\d+')\)")
_PARTITIONS = text(
    "SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bound FROM pg_inherits i "
    "JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(:name)"
)


@dataclass(frozen=True)
class Partition:
    """A part of a table, and the times from and before which its rows came; the default one has none."""

    name: str
    begin_ns: int | None
    end_ns: int | None

    @property
    def is_day(self) -> bool:
        return self.begin_ns is not None and self.end_ns is not None and self.end_ns - self.begin_ns <= DAY_NS

    def is_before(self, time_ns: int) -> bool:
        """Whether all that it holds, or ever will, came and is about times before this one."""
        return self.end_ns is not None and self.end_ns + AHEAD_NS <= time_ns


def partitions_of(connection: Connection, table: Table) -> list[Partition]:
    """The partitions of a table, the oldest first and the default one last; none on SQLite."""
    if connection.dialect.name != "postgresql":
        return []
    found = [_partition(row.name, row.bound) for row in connection.execute(_PARTITIONS, {"name": table.name})]
    return sorted(found, key=lambda one: (one.begin_ns is None and one.end_ns is None, one.end_ns or 0))


def _partition(name: str, bound: str) -> Partition:
    match = _BOUNDS.fullmatch(bound)
    begin, end = (_bound(said) for said in match.groups()) if match else (None, None)
    return Partition(name, begin, end)


def _bound(said: str) -> int | None:
    return int(said.strip("'")) if said.endswith("'") else None


def prepare_partitions(connection: Connection, now_ns: int) -> None:
    """Make the partitions of today and of the next days, where they are missing."""
    if connection.dialect.name != "postgresql":
        return
    today = now_ns // DAY_NS
    days = range(today, today + DAYS_AHEAD + 1)
    if all(_missing(connection, table, days) == [] for table in PARTITIONED):
        return
    take_turn(connection)
    for table, column in PARTITIONED.items():
        for day in _missing(connection, table, days):
            _make(connection, table, column, day)


def take_turn(connection: Connection) -> None:
    """Be the only one who makes or drops partitions, until the transaction ends."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})


def _missing(connection: Connection, table: Table, days: range) -> list[int]:
    bounded = [one for one in partitions_of(connection, table) if one.end_ns is not None]
    covered = [(-(1 << 63) if one.begin_ns is None else one.begin_ns, one.end_ns) for one in bounded]
    # A day that another partition holds but a part of cannot be had as a whole.
    return [
        day
        for day in days
        if not any(begin < (day + 1) * DAY_NS and day * DAY_NS < (end or 0) for begin, end in covered)
    ]


def _make(connection: Connection, table: Table, column: str, day: int) -> None:
    """A day's partition, with what came into the default one meanwhile."""
    begin, end = day * DAY_NS, (day + 1) * DAY_NS
    name = f"{table.name}_{datetime.fromtimestamp(begin // 10**9, UTC):%Y%m%d}"
    default = f"{table.name}_default"
    for statement in (
        f"LOCK TABLE {default} IN ACCESS EXCLUSIVE MODE",
        f"CREATE TABLE {name} (LIKE {table.name} INCLUDING DEFAULTS)",
        f"WITH moved AS (DELETE FROM {default} WHERE {column} >= {begin} AND {column} < {end} RETURNING *) "
        f"INSERT INTO {name} SELECT * FROM moved",
        f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES FROM ({begin}) TO ({end})",
    ):
        connection.exec_driver_sql(statement)


def as_table(table: Table, partition: Partition) -> Table:
    """A partition, to be asked as the table that it is a part of."""
    return table.to_metadata(MetaData(), name=partition.name)


def drop(connection: Connection, table: Table, partition: Partition) -> int:
    """Remove a partition with all that is in it; how many rows that were."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")
    count = int(connection.execute(select(func.count()).select_from(as_table(table, partition))).scalar_one())
    connection.exec_driver_sql(f"DROP TABLE {partition.name}")
    return count
