"""Removing what is old: epochs with what is noted beside them, and answered runs.

Guarantee: an epoch goes only when both its last measurement and its arrival are before the time given, so neither a
node that was long away nor one whose clock is behind loses what it has just sent. One whose clock is ahead keeps its
epochs no longer than others: they count as measured when they came (`arrivals`). That a number was stored is never
forgotten.

On PostgreSQL a day's partition goes as a whole, once all of it is old: an epoch may stay a day and an hour longer. Rows
of partitions that are longer than a day (what was there before tables were partitioned) and of the default one go by
themselves, as they do on SQLite: a few at a time, so that nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, Table, delete, func, or_, select

from sojourn.store.database import AHEAD_NS, CUTS, EPOCHS, RUNS, SET_ASIDE, Database
from sojourn.store.upkeep.partitions import as_table, drop, partitions_of, take_turn


def remove_epochs(database: Database, time_ns: int, *, limit: int) -> int:
    """Forget epochs that came, and were measured, before a time: a partition, or at most some rows of a table.

    How many; 0 when none is left. The places of epochs go with them.
    """
    if dropped := _drop_oldest(database, EPOCHS, time_ns):
        return dropped
    while _drop_oldest(database, CUTS, time_ns):
        pass
    return next(
        filter(None, (_remove_rows(database, table, time_ns, limit) for table in _by_rows(database, EPOCHS))), 0
    )


def _drop_oldest(database: Database, table: Table, time_ns: int) -> int:
    """Drop partitions that are old as a whole, up to and with the first that was not empty; the rows that it had."""
    with database.transaction() as connection:
        old = [one for one in partitions_of(connection, table) if one.is_before(time_ns)]
    for partition in old:
        with database.transaction(writes=True) as connection:
            take_turn(connection)
            if partition not in partitions_of(connection, table):
                continue  # another query unit was faster
            if table is EPOCHS:
                there = select(as_table(table, partition).c.id)
                connection.execute(delete(SET_ASIDE).where(SET_ASIDE.c.epoch.in_(there)))
            if removed := drop(connection, table, partition):
                return removed
    return 0


def _by_rows(database: Database, table: Table) -> Sequence[Table]:
    """The tables whose rows go by themselves: on SQLite the table, else its partitions that are not one of a day."""
    with database.transaction() as connection:
        parts = partitions_of(connection, table)
    return [as_table(table, one) for one in parts if not one.is_day] if parts else [table]


def _remove_rows(database: Database, table: Table, time_ns: int, limit: int) -> int:
    """Forget at most some of the old epochs of a table.

    Numbers grow as epochs come, so the first rows are the oldest: what is kept is not looked through.
    """
    columns = table.c.id, table.c.received_ns, func.coalesce(table.c.last_ns, table.c.received_ns)
    after = -1
    while True:
        oldest = select(*columns).where(table.c.id > after).order_by(table.c.id).limit(limit)
        with database.transaction() as connection:
            rows = connection.execute(oldest).all()
        old = [number for number, received, last in rows if max(received, last) < time_ns]
        if old:
            with database.transaction(writes=True) as connection:
                return _delete(connection, table, old)
        if not rows or all(received >= time_ns for _, received, _ in rows):
            return 0
        after = rows[-1][0]


def _delete(connection: Connection, table: Table, numbers: Sequence[int]) -> int:
    for beside in (SET_ASIDE, CUTS):
        connection.execute(delete(beside).where(beside.c.epoch.in_(numbers)))
    return connection.execute(delete(table).where(table.c.id.in_(numbers))).rowcount


def remove_runs(database: Database, time_ns: int, *, limit: int) -> int:
    """Forget answered runs that ended, and were answered, before a time: a partition, or at most some; how many."""
    if dropped := _drop_oldest(database, RUNS, time_ns):
        return dropped
    for table in _by_rows(database, RUNS):
        first = select(table.c.id).where(_old_runs(table, time_ns)).order_by(table.c.id).limit(limit)
        with database.transaction(writes=True) as connection:
            if removed := connection.execute(delete(table).where(table.c.id.in_(first))).rowcount:
                return removed
    return 0


def _old_runs(table: Table, time_ns: int) -> ColumnElement[bool]:
    """A run that its sender dates far ahead of its answer is as old as that."""
    is_ahead = table.c.end_ns - AHEAD_NS > table.c.answered_ns
    return (table.c.answered_ns < time_ns) & or_(table.c.end_ns < time_ns, is_ahead)
