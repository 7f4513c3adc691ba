"""Notifications in the store: who has to be told what, until that is delivered or given up.

Guarantee: a notification is made in the transaction of what it tells (`notify`), and has an id that is never given
again. Of several query units on one database one sends it at a time (`claim`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)

from sojourn.store.database import NUMBER, Database

METADATA = MetaData()
MOST_PAUSE_NS = 600_000_000_000  # longer than a notification ever waits to be sent again

NOTIFICATIONS = Table(
    "notifications",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("violation", NUMBER),  # what it tells of: one of these two
    Column("node_event", NUMBER),
    Column("url", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_ns", BigInteger),  # when it is sent (again); none: delivered or given up
    Column("delivered_ns", BigInteger),
    Column("error", Text),
    Index("notifications_due", "next_ns"),
    Index("notifications_of_violation", "violation"),
    Index("notifications_of_node_event", "node_event"),
)


@dataclass(frozen=True, kw_only=True)
class Notification:
    """What has to be sent to whom."""

    id: str
    url: str
    body: str
    created_ns: int
    attempts: int
    next_ns: int


def notify(
    connection: Connection,
    url: str,
    said: Mapping[str, Any],
    now_ns: int,
    *,
    violation: int | None = None,
    node_event: int | None = None,
) -> None:
    """Have somebody told, as part of the caller's transaction; the body gets the notification's id."""
    number = secrets.token_hex(16)
    row = {
        "id": number,
        "violation": violation,
        "node_event": node_event,
        "url": url,
        "body": json.dumps({"id": number, **said}, ensure_ascii=False),
        "created_ns": now_ns,
        "attempts": 0,
        "next_ns": now_ns,
    }
    connection.execute(insert(NOTIFICATIONS).values(row))


def forget_about(connection: Connection, column: str, numbers: Iterable[int]) -> None:
    """Forget what was told, or is still to be told, of violations or of nodes' events."""
    connection.execute(delete(NOTIFICATIONS).where(NOTIFICATIONS.c[column].in_(list(numbers))))


class NotificationStore:
    """The notifications of one store."""

    def __init__(self, store: Database) -> None:
        self._store = store

    def due(self, now_ns: int, *, limit: int, receivers: int = 1000) -> list[Notification]:
        """Notifications whose time has come, the oldest first: so many at most for each of so many receivers.

        However many wait for one, those for others are found. What is to be sent later than any pause lasts was put off
        by a clock that has been set back since, and is due.
        """
        is_due = (NOTIFICATIONS.c.next_ns <= now_ns) | (NOTIFICATIONS.c.next_ns > now_ns + MOST_PAUSE_NS)
        urls = select(NOTIFICATIONS.c.url).where(is_due).group_by(NOTIFICATIONS.c.url)
        urls = urls.order_by(func.min(NOTIFICATIONS.c.next_ns)).limit(receivers)
        names = Notification.__dataclass_fields__
        rows: list[Any] = []
        with self._store.transaction() as connection:
            for url in connection.execute(urls).scalars().all():
                query = select(NOTIFICATIONS).where(is_due & (NOTIFICATIONS.c.url == url))
                query = query.order_by(NOTIFICATIONS.c.created_ns).limit(limit)
                rows += connection.execute(query)
        return [Notification(**{name: getattr(row, name) for name in names}) for row in rows]

    def waiting(self) -> int:
        """How many notifications are not delivered yet."""
        query = select(func.count()).select_from(NOTIFICATIONS).where(NOTIFICATIONS.c.next_ns.is_not(None))
        with self._store.transaction() as connection:
            return int(connection.execute(query).scalar_one())

    def claim(self, one: Notification, until_ns: int) -> bool:
        """Whether nobody else sends it now; who claims one that is not delivered by then has it sent again."""
        here = (NOTIFICATIONS.c.id == one.id) & (NOTIFICATIONS.c.next_ns == one.next_ns)
        values = {"next_ns": until_ns, "attempts": one.attempts + 1}
        with self._store.transaction(writes=True) as connection:
            return bool(connection.execute(update(NOTIFICATIONS).where(here).values(values)).rowcount)

    def settle(self, number: str, *, next_ns: int | None, delivered_ns: int | None = None, error: str | None) -> None:
        """Note how sending ended: delivered, to be tried again, or given up (neither)."""
        values = {"next_ns": next_ns, "delivered_ns": delivered_ns, "error": error}
        with self._store.transaction(writes=True) as connection:
            connection.execute(update(NOTIFICATIONS).where(NOTIFICATIONS.c.id == number).values(values))

    def give_up_oldest(self, most: int) -> int:
        """Give up notifications beyond so many that wait, the oldest first; how many."""
        waiting = select(NOTIFICATIONS.c.id).where(NOTIFICATIONS.c.next_ns.is_not(None))
        kept = waiting.order_by(NOTIFICATIONS.c.created_ns.desc()).limit(most)
        there = NOTIFICATIONS.c.next_ns.is_not(None) & NOTIFICATIONS.c.id.not_in(kept)
        values = {"next_ns": None, "error": "given up: too many wait"}
        with self._store.transaction(writes=True) as connection:
            return connection.execute(update(NOTIFICATIONS).where(there).values(values)).rowcount
