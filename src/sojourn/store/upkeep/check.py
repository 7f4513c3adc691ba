"""What a store says of itself, without changing it: schema, contents, whether it is whole, and what it has lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from sqlalchemy import Connection, func, select, text

from sojourn.core.errors import StoreError
from sojourn.core.units import format_bytes, format_instant, plural
from sojourn.store.database import EPOCHS, INSTANCES, NODES, SET_ASIDE, Database, engine_at, fact
from sojourn.store.migrations.upgrading import FIRST_VERSION, HEAD, require_known, revision_of
from sojourn.store.upkeep.backup import RESTORED
from sojourn.store.upkeep.losses import losses
from sojourn.store.upkeep.partitions import partitions_of

# The revision that a database of Sojourn 0.1.0 has, which has no revisions.
UNNUMBERED = f"{FIRST_VERSION:04}"


def _opened(place: str) -> Database:
    return Database(engine_at(place), where=place)


def schema_of(place: str) -> str:
    """The schema of a store."""
    with closing(_opened(place)) as database, database.transaction() as connection:
        return revision_of(connection) or UNNUMBERED


def examine(place: str) -> list[str]:
    """Lines about a store; a `StoreError` if it is damaged, or of a later Sojourn."""
    with closing(_opened(place)) as database, database.transaction() as connection:
        revision = revision_of(connection)
        require_known(connection, revision, where=place)
        _require_whole(connection, place)
        if revision != HEAD:
            return [
                f"schema {revision or UNNUMBERED}; {HEAD} is the latest (sojourn serve or store upgrade upgrades it)"
            ]
        return [f"schema {HEAD}, the latest", *_contents(connection), *_lost(connection)]


def _require_whole(connection: Connection, place: str) -> None:
    """SQLite looks through its pages; of a PostgreSQL that is its own affair (pg_amcheck)."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("PRAGMA quick_check(1)")).scalar_one()
        if found != "ok":
            raise StoreError(f"it is damaged: {found}", where=place, action="restore a backup (sojourn store restore)")


def _contents(connection: Connection) -> Iterator[str]:
    sums = func.count(), func.coalesce(func.sum(EPOCHS.c.merged), 0), func.coalesce(func.sum(EPOCHS.c.size_bytes), 0)
    rows, held, size = connection.execute(select(*sums)).one()
    merged = f", merged from {int(held):,}" if held > rows else ""
    yield f"{plural(rows, 'epoch')}{merged}, {format_bytes(int(size))}"
    for table, noun in ((NODES, "node"), (INSTANCES, "instance"), (SET_ASIDE, "epoch set aside")):
        count = connection.execute(select(func.count()).select_from(table)).scalar_one()
        if count or table is not SET_ASIDE:
            yield plural(count, noun, "epochs set aside" if table is SET_ASIDE else "")
    if parts := partitions_of(connection, EPOCHS):
        yield f"{plural(len(parts), 'partition')} of epochs, {parts[0].name} is the oldest"


def _lost(connection: Connection) -> Iterator[str]:
    restored = fact(connection, RESTORED)
    if restored is not None:
        yield f"restored from a backup at {format_instant(int(restored))}"
    for (node, stream), spans in losses(connection).items():
        numbers = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in spans)
        yield f"lost: epochs {numbers} of {node}/{stream} were acknowledged and are not stored"
