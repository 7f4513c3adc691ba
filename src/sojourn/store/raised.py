"""What is raised and cleared: violations of objectives, and events of nodes; both are rows with the same life.

A row is raised once, open until it is cleared, and forgotten some time after that, with what was told of it. Rows have
an ``id``, a ``node``, ``raised_ns`` and ``cleared_ns``, which is null while they are open.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, select, true

from sojourn.store.notifications import forget_about


def is_open(table: Table) -> ColumnElement[bool]:
    """The rows that are not cleared."""
    return table.c.cleared_ns.is_(None)


def latest_raised(
    table: Table,
    of: ColumnElement[bool] | None = None,
    *,
    open_ones: bool | None = None,
    since_ns: int | None = None,
    among: Collection[str] | None = None,
    limit: int,
) -> Select[Any]:
    """Rows, the latest first: all or `of` something, open or cleared, open since a time or later, of some nodes."""
    query = select(table).order_by(table.c.raised_ns.desc(), table.c.id.desc()).limit(limit)
    query = query.where(true() if of is None else of)
    if among is not None:
        query = query.where(table.c.node.in_(sorted(among)))
    if open_ones is not None:
        query = query.where(is_open(table) == open_ones)
    if since_ns is not None:
        query = query.where(is_open(table) | (table.c.cleared_ns >= since_ns))
    return query


def forget_cleared(connection: Connection, table: Table, told: str, before_ns: int, *, limit: int) -> int:
    """Forget at most some of the rows that were cleared before a time, with what was told of them; how many."""
    old = select(table.c.id).where(table.c.cleared_ns < before_ns).order_by(table.c.id).limit(limit)
    numbers = list(connection.execute(old).scalars())
    forget_about(connection, told, numbers)
    return connection.execute(delete(table).where(table.c.id.in_(numbers))).rowcount
