"""Streams that the control unit assigns to nodes.

An assignment is a stream's configuration as the node's own configuration file would have it. A node's *version* grows
with every change, so that a node learns of changes by asking for what is newer than it knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, delete, func, insert, select, update

from sojourn.store.database import NAME
from sojourn.store.epochs import EpochStore

_METADATA = MetaData()

ASSIGNMENTS = Table(
    "assignments",
    _METADATA,
    Column("node", NAME, primary_key=True),
    Column("stream", NAME, primary_key=True),
    Column("configuration", Text),
    Column("version", BigInteger, nullable=False),
)


class AssignmentStore:
    """The assignments of all nodes; the one removed last stays as an empty row that carries the version."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store

    def assign(self, node: str, stream: str, configuration: Mapping[str, object] | None) -> int:
        """Set (or with None remove) what a node records under a stream's name; the new version."""
        with self._store.transaction(writes=True) as connection:
            return self.assign_with(connection, node, stream, configuration)

    def assign_with(
        self, connection: Connection, node: str, stream: str, configuration: Mapping[str, object] | None
    ) -> int:
        """The same as part of a transaction."""
        text = None if configuration is None else json.dumps(configuration, sort_keys=True)
        here = (ASSIGNMENTS.c.node == node) & (ASSIGNMENTS.c.stream == stream)
        latest = select(func.coalesce(func.max(ASSIGNMENTS.c.version), 0)).where(ASSIGNMENTS.c.node == node)
        version = int(connection.execute(latest).scalar_one()) + 1
        values = {"configuration": text, "version": version}
        if not connection.execute(update(ASSIGNMENTS).where(here).values(values)).rowcount:
            connection.execute(insert(ASSIGNMENTS).values(node=node, stream=stream, **values))
        # The version is in the latest row; what was withdrawn before need not be remembered.
        gone = (ASSIGNMENTS.c.node == node) & ASSIGNMENTS.c.configuration.is_(None)
        connection.execute(delete(ASSIGNMENTS).where(gone & (ASSIGNMENTS.c.version < version)))
        return version

    def count(self, connection: Connection, node: str) -> int:
        """How many streams a node is assigned."""
        here = (ASSIGNMENTS.c.node == node) & ASSIGNMENTS.c.configuration.is_not(None)
        return int(connection.execute(select(func.count()).select_from(ASSIGNMENTS).where(here)).scalar_one())

    def of(self, node: str) -> tuple[int, dict[str, dict[str, object]]]:
        """A node's version (0: never assigned anything) and its streams' configurations."""
        with self._store.transaction() as connection:
            rows = connection.execute(select(ASSIGNMENTS).where(ASSIGNMENTS.c.node == node)).all()
        version = max((row.version for row in rows), default=0)
        return version, {row.stream: json.loads(row.configuration) for row in rows if row.configuration is not None}

    def each(self) -> Iterator[tuple[str, int, dict[str, dict[str, object]]]]:
        """All nodes that are assigned something, with their versions and configurations, one after the other."""
        query = select(ASSIGNMENTS).order_by(ASSIGNMENTS.c.node)
        with self._store.transaction() as connection:
            rows = connection.execute(query, execution_options={"yield_per": 100})
            for node, group in groupby(rows, key=lambda row: str(row.node)):
                of_node = list(group)
                streams = {
                    row.stream: json.loads(row.configuration) for row in of_node if row.configuration is not None
                }
                if streams:
                    yield node, max(row.version for row in of_node), streams
