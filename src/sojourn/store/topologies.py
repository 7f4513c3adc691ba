"""Networks to plan measurement in: topology files as they were given, by name.

A file is kept as it came, so that what is planned from it is what `sojourn mplane` plans from it; it was read once
before it is stored. A name that is taken is given the new file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, MetaData, Table, Text, delete, insert, select
from sqlalchemy import func as sql

from sojourn.core.errors import UsageError
from sojourn.store.database import NAME, Database

METADATA = MetaData()
MOST_TOPOLOGIES = 100  # of one store, of a few MiB each

TOPOLOGIES = Table(
    "topologies",
    METADATA,
    Column("name", NAME, primary_key=True),
    Column("file_name", NAME, nullable=False),
    Column("directed", Boolean),
    Column("content", LargeBinary, nullable=False),
    Column("routers", Integer, nullable=False),
    Column("links", Integer, nullable=False),
    Column("stored_ns", BigInteger, nullable=False),
    Column("stored_by", Text, nullable=False),
)


@dataclass(frozen=True, kw_only=True)
class TopologyFile:
    """A file, whether its links lead one way as listed (None: as is usual for its format), and what is in it."""

    file_name: str
    directed: bool | None
    content: bytes
    routers: int
    links: int


@dataclass(frozen=True, kw_only=True)
class StoredTopology:
    """One of the topologies, without its file."""

    name: str
    file_name: str
    directed: bool | None
    routers: int
    links: int
    stored_ns: int
    stored_by: str


_SHOWN = [column for column in TOPOLOGIES.c if column.name != "content"]


class TopologyStore:
    """The topologies of one store."""

    def __init__(self, store: Database) -> None:
        self._store = store

    def put(self, name: str, file: TopologyFile, *, who: str) -> StoredTopology:
        """Store a file under a name, in the place of what had it."""
        row = {**vars(file), "name": name, "stored_ns": time.time_ns(), "stored_by": who}
        with self._store.transaction(writes=True) as connection:
            connection.execute(delete(TOPOLOGIES).where(TOPOLOGIES.c.name == name))
            if (connection.execute(select(sql.count()).select_from(TOPOLOGIES)).scalar() or 0) >= MOST_TOPOLOGIES:
                action = "remove one that is not needed"
                raise UsageError(f"there are {MOST_TOPOLOGIES} topologies already", where="topologies", action=action)
            connection.execute(insert(TOPOLOGIES).values(row))
        del row["content"]
        return StoredTopology(**row)

    def all(self) -> list[StoredTopology]:
        """All of them, by name."""
        with self._store.transaction() as connection:
            rows = connection.execute(select(*_SHOWN).order_by(TOPOLOGIES.c.name)).all()
        return [StoredTopology(**row._mapping) for row in rows]

    def named(self, name: str) -> TopologyFile | None:
        """The file that is stored under a name."""
        columns = [TOPOLOGIES.c[field] for field in TopologyFile.__dataclass_fields__]
        with self._store.transaction() as connection:
            row = connection.execute(select(*columns).where(TOPOLOGIES.c.name == name)).one_or_none()
        return None if row is None else TopologyFile(**row._mapping)

    def remove(self, name: str) -> bool:
        """Forget one; whether there was one."""
        with self._store.transaction(writes=True) as connection:
            return connection.execute(delete(TOPOLOGIES).where(TOPOLOGIES.c.name == name)).rowcount > 0
