"""Streams of nodes: which ones the control unit assigns to each node, and how they fare there.

An assignment is a stream's configuration as the node's own configuration file would have it. A node's *version* grows
with every change, so that a node learns of changes by asking for what is newer than it knows. The states of a node's
streams are what its agent reported last, of those that it records, or should and cannot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text, delete, func, insert, select, update

from sojourn.server.models.fleet import StreamState
from sojourn.store.epochs import EpochStore
from sojourn.store.tables import insert_missing

_METADATA = MetaData()

ASSIGNMENTS = Table(
    "assignments",
    _METADATA,
    Column("node", String(200), primary_key=True),
    Column("stream", String(200), primary_key=True),
    Column("configuration", Text),
    Column("version", BigInteger, nullable=False),
)


class AssignmentStore:
    """The assignments of all nodes; a removed one stays as an empty row that carries its version."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store
        store.create(_METADATA)

    def assign(self, node: str, stream: str, configuration: Mapping[str, object] | None) -> int:
        """Set (or with None remove) what a node records under a stream's name; the new version."""
        text = None if configuration is None else json.dumps(configuration, sort_keys=True)
        here = (ASSIGNMENTS.c.node == node) & (ASSIGNMENTS.c.stream == stream)
        with self._store.transaction(writes=True) as connection:
            latest = select(func.coalesce(func.max(ASSIGNMENTS.c.version), 0)).where(ASSIGNMENTS.c.node == node)
            version = int(connection.execute(latest).scalar_one()) + 1
            values = {"configuration": text, "version": version}
            if not connection.execute(update(ASSIGNMENTS).where(here).values(values)).rowcount:
                connection.execute(insert(ASSIGNMENTS).values(node=node, stream=stream, **values))
        return version

    def of(self, node: str) -> tuple[int, dict[str, dict[str, object]]]:
        """A node's version (0: never assigned anything) and its streams' configurations."""
        with self._store.transaction() as connection:
            rows = connection.execute(select(ASSIGNMENTS).where(ASSIGNMENTS.c.node == node)).all()
        version = max((row.version for row in rows), default=0)
        return version, {row.stream: json.loads(row.configuration) for row in rows if row.configuration is not None}


STATES = Table(
    "stream_states",
    _METADATA,
    Column("node", String(200), primary_key=True),
    Column("stream", String(200), primary_key=True),
    Column("state", String(20), nullable=False, index=True),
    Column("since_ns", BigInteger, nullable=False),
    Column("reason", Text),
)


class StreamStateStore:
    """The states of all nodes' streams; a node's are replaced as a whole."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store
        store.create(_METADATA)

    def replace(self, node: str, states: Mapping[str, StreamState]) -> None:
        """Set the states of a node's streams; what is not among them is forgotten."""
        rows = [
            {"node": node, "stream": name, **state.model_dump(), "reason": _printable(state.reason)}
            for name, state in states.items()
        ]
        with self._store.transaction(writes=True) as connection:
            connection.execute(delete(STATES).where(STATES.c.node == node))
            insert_missing(connection, STATES, rows)

    def of(self, node: str) -> dict[str, StreamState]:
        """The states of a node's streams, by name."""
        query = select(STATES).where(STATES.c.node == node).order_by(STATES.c.stream)
        with self._store.transaction() as connection:
            rows = connection.execute(query).all()
        return {row.stream: StreamState(state=row.state, since_ns=row.since_ns, reason=row.reason) for row in rows}

    def failed(self) -> dict[str, dict[str, str]]:
        """The streams that cannot be recorded now and why, by node."""
        query = select(STATES).where(STATES.c.state == "failed").order_by(STATES.c.node, STATES.c.stream)
        found: dict[str, dict[str, str]] = {}
        with self._store.transaction() as connection:
            for row in connection.execute(query):
                found.setdefault(row.node, {})[row.stream] = row.reason or ""
        return found


def _printable(text: str | None) -> str | None:
    """A node's words as a terminal can show them."""
    return None if text is None else "".join(sign if sign.isprintable() else " " for sign in text)
