"""Which agent a node's stream belongs to, so that two with one node's name do not spoil each other's numbers.

An agent is known by a number of its own (`instance_of`). The first that announces or sends a stream owns it; another
one is refused (409) while the owner is heard of, and accepted once the owner has been silent for a while, has left, or
was released by an admin. Agents without a number (of earlier versions) own nothing, and are refused only while one that
does is there.

Guarantee: epochs of two owners never have one number. The former owner may still have epochs in its spool, numbered on
from what was stored; the new one's numbers begin at the microseconds since 1970 (`floor`), which no stream reaches by
counting. So both are stored, whoever comes back.
All of this is in the database: whichever process or query unit an agent reaches, its name is as much its own.
Cost: one read for a request of the owner, one write every `SEEN_NS` of each agent.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, MetaData, String, Table, bindparam, select, update

from sojourn.store.database import NAME, insert_missing
from sojourn.store.epochs import EpochStore

_METADATA = MetaData()

OWNERS = Table(
    "stream_owners",
    _METADATA,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("instance", String(64), nullable=False),
    Column("floor", BigInteger),
    Column("released_ns", BigInteger),
)

AGENTS = Table(
    "agents_seen",
    _METADATA,
    Column("node", NAME, primary_key=True),
    Column("instance", String(64), primary_key=True),
    Column("seen_ns", BigInteger, nullable=False),
)

# Streams with their owners, and when these were heard of.
_HEARD = (AGENTS.c.node == OWNERS.c.node) & (AGENTS.c.instance == OWNERS.c.instance)
_OWNED = select(OWNERS, AGENTS.c.seen_ns).outerjoin(AGENTS, _HEARD)

# How exactly it is known when an agent was heard of; agents ask for their assignments every half a minute.
SEEN_NS = 20_000_000_000
# How long a released name waits for another agent.
RELEASED_NS = 3_600_000_000_000
# The time of an agent that has left.
LEFT = -1


class TakenError(Exception):
    """Another agent has the name; the text says what to do."""


class OwnerStore:
    """The owners of all streams; safe from several threads."""

    def __init__(self, store: EpochStore, *, silence_ns: int, started_ns: int | None = None) -> None:
        """`started_ns` is when the query unit started, which is the same for all its processes."""
        self._store = store
        self._silence_ns = silence_ns
        # Nobody could be heard of before: an agent must not lose its name to the one that is faster after a restart.
        self._started_ns = time.time_ns() if started_ns is None else started_ns

    def claim(self, node: str, streams: Collection[str], instance: str | None) -> dict[str, int | None]:
        """Make an agent the owner of streams, all or none; the numbers after which its epochs of each begin.

        Raises `TakenError` if one of them is another's.
        """
        now = time.time_ns()
        with self._store.transaction() as connection:
            rows = _rows(connection, node, streams)
            if instance is None:
                for row in rows.values():
                    self._require_open(row, now)
                return {stream: rows[stream].floor if stream in rows else None for stream in streams}
        if any(stream not in rows or rows[stream].instance != instance for stream in streams):
            with self._store.transaction(writes=True) as connection:
                rows = self._take(connection, node, streams, instance, now)
        self._note(node, instance, next((row.seen_ns for row in rows.values()), None))
        return {stream: rows[stream].floor for stream in streams}

    def _take(
        self, connection: Connection, node: str, streams: Collection[str], instance: str, now_ns: int
    ) -> dict[str, Any]:
        free = [{"node": node, "stream": stream, "instance": instance} for stream in streams]
        insert_missing(connection, OWNERS, free)
        for row in _rows(connection, node, streams).values():
            if row.instance == instance:
                continue
            self._require_open(row, now_ns)
            here = (OWNERS.c.node == node) & (OWNERS.c.stream == row.stream) & (OWNERS.c.instance == row.instance)
            new = {"instance": instance, "floor": now_ns // 1000, "released_ns": None}
            if not connection.execute(update(OWNERS).where(here).values(new)).rowcount:
                raise TakenError(_taken(node, row.stream))
        return _rows(connection, node, streams)

    def _require_open(self, row: Any, now_ns: int) -> None:
        """Refuse whoever is not the owner, unless that one is silent or released."""
        if row.released_ns is not None and now_ns - row.released_ns < RELEASED_NS:
            return
        seen = row.seen_ns or 0
        if seen != LEFT and now_ns - max(seen, self._started_ns) < self._silence_ns:
            raise TakenError(_taken(row.node, row.stream))

    def require_owner(self, node: str, instance: str | None) -> None:
        """Refuse an agent that owns none of a node's streams while another that is there does; note that it is."""
        if instance is None:
            return
        now = time.time_ns()
        with self._store.transaction() as connection:
            rows = connection.execute(_OWNED.where(OWNERS.c.node == node)).all()
            if not any(row.instance == instance for row in rows):
                for row in rows:
                    self._require_open(row, now)
            seen_ns = connection.execute(select(AGENTS.c.seen_ns).where(_is(node, instance))).scalar()
        self._note(node, instance, seen_ns)

    def _note(self, node: str, instance: str, seen_ns: int | None) -> None:
        """Note that an agent was heard of just now, unless it is known that it was a moment ago."""
        now = time.time_ns()
        if seen_ns is not None and 0 <= now - seen_ns < SEEN_NS:
            return
        here = _is(node, instance)
        with self._store.transaction(writes=True) as connection:
            if not connection.execute(update(AGENTS).where(here).values(seen_ns=now)).rowcount:
                insert_missing(connection, AGENTS, [{"node": node, "instance": instance, "seen_ns": now}])

    def release(self, node: str) -> list[str]:
        """Let another agent take over all streams of a node at once; their names.

        The owner keeps them until another comes: the one that goes on sending would otherwise be first again.
        """
        here = OWNERS.c.node == node
        with self._store.transaction(writes=True) as connection:
            connection.execute(update(OWNERS).where(here).values(released_ns=time.time_ns()))
            return list(connection.execute(select(OWNERS.c.stream).where(here).order_by(OWNERS.c.stream)).scalars())

    def leave(self, node: str, instance: str) -> list[str]:
        """Note that an agent ends, so that nobody waits for it to be silent; the names of its streams."""
        here = _is(node, instance)
        its = (OWNERS.c.node == node) & (OWNERS.c.instance == instance)
        with self._store.transaction(writes=True) as connection:
            connection.execute(update(AGENTS).where(here).values(seen_ns=LEFT))
            return list(connection.execute(select(OWNERS.c.stream).where(its).order_by(OWNERS.c.stream)).scalars())


def _is(node: str, instance: str) -> ColumnElement[bool]:
    """An agent, among those that were heard of."""
    return (AGENTS.c.node == node) & (AGENTS.c.instance == instance)


# Every message of a node takes it, and SQLAlchemy takes longer to build it than the database to answer it.
_OWNED_AMONG = _OWNED.where(
    (OWNERS.c.node == bindparam("node")) & OWNERS.c.stream.in_(bindparam("streams", expanding=True))
)


def _rows(connection: Connection, node: str, streams: Collection[str]) -> dict[str, Any]:
    found = connection.execute(_OWNED_AMONG, {"node": node, "streams": sorted(streams)})
    return {row.stream: row for row in found}


def _taken(node: str, stream: str) -> str:
    return (
        f"another agent sends stream {stream} under the name {node}; give one of them another name, or release it: "
        f"sojourn nodes release {node}"
    )
