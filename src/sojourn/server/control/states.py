"""How nodes' streams fare: what each agent reported last of those that it records, or should and cannot."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text, delete, select

from sojourn.server.models import StreamState
from sojourn.store.database import NAME, insert_missing
from sojourn.store.epochs import EpochStore

_METADATA = MetaData()

STATES = Table(
    "stream_states",
    _METADATA,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("state", String(20), nullable=False, index=True),
    Column("since_ns", BigInteger, nullable=False),
    Column("reason", Text),
)


class StreamStateStore:
    """The states of all nodes' streams; a node's are replaced as a whole."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store

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

    def of_points(self) -> dict[tuple[str, str], StreamState]:
        """The states of all points of segments, by node and stream."""
        query = select(STATES).where(STATES.c.stream.like("point:%"))
        with self._store.transaction() as connection:
            rows = connection.execute(query).all()
        return {
            (row.node, row.stream): StreamState(state=row.state, since_ns=row.since_ns, reason=row.reason)
            for row in rows
        }

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
