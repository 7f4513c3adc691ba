"""What databases say differently: rows that are added unless they are there.

SQLite has one writer at a time; with PostgreSQL another query unit may add the same row between a look and an insert,
and one of the two would fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

__all__ = ["insert_missing"]

_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows; where one with the same key is there (now), that one stays."""
    if rows:
        connection.execute(_INSERTS[connection.dialect.name](table).on_conflict_do_nothing(), list(rows))
