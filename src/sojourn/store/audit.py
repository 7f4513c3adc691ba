"""The audit log: which administrative actions were done, by whom, from where and when.

Guarantee: what is entered is never changed, and forgotten only by its age. An action is entered once it is done, with
the token that it was done with (never its secret), or the user of the machine where the store is.
"""

from __future__ import annotations

import getpass
import os
import time
from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Index, MetaData, String, Table, Text, delete, insert, select

from sojourn.store.database import NUMBER, Database

METADATA = MetaData()
MOST_TEXT = 2000
LOCAL = "local"

AUDIT = Table(
    "audit_log",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("at_ns", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("address", String(200), nullable=False),
    Column("what", Text, nullable=False),
    Index("audit_by_time", "at_ns"),
)


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """One action."""

    id: int
    at_ns: int
    who: str
    address: str
    what: str


def local_user() -> str:
    """Who works on the machine where the store is."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "?"
    return f"user {name} ({os.getuid()})"


class AuditLog:
    """The audit log of one store."""

    def __init__(self, store: Database) -> None:
        self._store = store

    def enter(self, what: str, *, who: str | None = None, address: str = LOCAL, now_ns: int | None = None) -> None:
        """Enter an action; without a token's words, it was done on this machine."""
        row = {
            "at_ns": time.time_ns() if now_ns is None else now_ns,
            "who": (who or local_user())[:MOST_TEXT],
            "address": address[:200],
            "what": what[:MOST_TEXT],
        }
        with self._store.transaction(writes=True) as connection:
            connection.execute(insert(AUDIT).values(row))

    def entries(self, *, from_ns: int, to_ns: int, about: str = "", limit: int) -> list[AuditEntry]:
        """Actions of a range of time whose words have a text, the latest first."""
        query = select(AUDIT).where((AUDIT.c.at_ns >= from_ns) & (AUDIT.c.at_ns <= to_ns))
        if about:
            query = query.where(
                AUDIT.c.what.contains(about, autoescape=True) | AUDIT.c.who.contains(about, autoescape=True)
            )
        query = query.order_by(AUDIT.c.at_ns.desc(), AUDIT.c.id.desc()).limit(limit)
        with self._store.transaction() as connection:
            return [AuditEntry(**row._mapping) for row in connection.execute(query)]

    def remove_some_before(self, time_ns: int, *, limit: int) -> int:
        """Forget at most some of the actions before a time."""
        old = select(AUDIT.c.id).where(AUDIT.c.at_ns < time_ns).order_by(AUDIT.c.id).limit(limit)
        with self._store.transaction(writes=True) as connection:
            numbers = list(connection.execute(old).scalars())
            return connection.execute(delete(AUDIT).where(AUDIT.c.id.in_(numbers))).rowcount
