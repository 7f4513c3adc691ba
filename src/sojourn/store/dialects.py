"""What databases say differently: rows that are added unless they are there, or else brought up to date.

SQLite has one writer at a time; with PostgreSQL another query unit may add the same row between a look and an insert,
and one of the two would fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Table, case, or_
from sqlalchemy.dialects import postgresql, sqlite

__all__ = ["insert_missing", "widen_spans"]

_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows; where one with the same key is there (now), that one stays."""
    if rows:
        connection.execute(_INSERTS[connection.dialect.name](table).on_conflict_do_nothing(), list(rows))


def widen_spans(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows with a span (first_ns … last_ns); where one with the same key is there, its span grows to hold both."""
    if not rows:
        return
    statement = _INSERTS[connection.dialect.name](table)
    here, new = table.c, statement.excluded
    span = {
        "first_ns": case((new.first_ns < here.first_ns, new.first_ns), else_=here.first_ns),
        "last_ns": case((new.last_ns > here.last_ns, new.last_ns), else_=here.last_ns),
    }
    key: list[Column[Any]] = list(table.primary_key.columns)
    is_wider = or_(new.first_ns < here.first_ns, new.last_ns > here.last_ns)
    connection.execute(statement.on_conflict_do_update(index_elements=key, set_=span, where=is_wider), list(rows))
