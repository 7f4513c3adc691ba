"""The store of epochs: what nodes sent, kept until asked for.

Guarantee: an epoch that `add` calls stored is on disk (SQLite: write-ahead log, synchronised at every commit). Node,
stream and sequence identify an epoch: the same bytes again are a duplicate, other bytes a conflict, and neither
changes what is there. Statements are SQLAlchemy Core, the same on SQLite and PostgreSQL.
Cost: one transaction per `add`; reading is by index over (node, stream, time). No transaction is long: many keys are
entered in the directory after their epoch is stored, some at a time (`list_keys`); which are missing is on disk, too.
Writers get their turns in the order in which they came.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError

from sojourn.core.errors import StoreError, UsageError
from sojourn.core.executors.turns import FairLock
from sojourn.core.keys import named_ids
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch, encode, encoded
from sojourn.store.dialects import insert_missing, widen_spans
from sojourn.store.tables import (
    EPOCHS,
    INSTANCES,
    METADATA,
    NODES,
    SCHEMA,
    SCHEMA_VERSION,
    SIGHTINGS,
    STREAMS,
    TAGS,
    UNLISTED,
    add_missing_columns,
)

__all__ = ["EpochStore", "NodeRecord", "Status", "StreamRecord", "is_store", "open_store", "read_store"]

MAX_QUERY_BYTES = 256 << 20
MAX_QUERY_EPOCHS = 100_000
BUSY_SECONDS = 10
# Keys that one transaction enters in the directory: tens of milliseconds, in which other writers wait.
SLICE_KEYS = 1000
DATABASE_NAME = "sojourn.sqlite"
PRIVATE = 0o600
POOL_CONNECTIONS = 20


class Status(StrEnum):
    """What became of an epoch that was offered."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class NodeRecord:
    """A node that has sent something."""

    name: str
    first_seen_ns: int
    last_seen_ns: int
    tags: tuple[str, ...]


@dataclass(frozen=True)
class StreamRecord:
    """A stream as its node announced it."""

    node: str
    name: str
    metric: str
    unit: str
    granularity: str
    values_are: str | None = None


def to_signed(word: int) -> int:
    """The signed number with a word's bits.

    >>> to_signed(2**64 - 1), to_signed(5)
    (-1, 5)
    """
    return word - (1 << 64) if word >> 63 else word


def to_word(number: int) -> int:
    """The word with a signed number's bits."""
    return number & ((1 << 64) - 1)


def is_store(place: str | Path) -> bool:
    """Whether there is a store in a directory already; a database at a URL is taken for one."""
    return "://" in str(place) or (Path(place) / DATABASE_NAME).exists()


def open_store(place: str | Path) -> EpochStore:
    """The store in a directory (SQLite, made if missing) or at a database URL."""
    text = str(place)
    try:
        if "://" in text:
            engine = create_engine(text, pool_pre_ping=not text.startswith("sqlite"))
        else:
            engine = _sqlite_in(Path(place))
    except (ArgumentError, ModuleNotFoundError) as error:
        kind = text.partition("://")[0]
        raise StoreError(
            f"databases of the kind {kind[:40]!r} cannot be opened ({error})",
            where="data",
            action="give a directory, or install the database's driver",
        ) from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return EpochStore(engine, where=str(place))


def read_store(url: URL) -> EpochStore:
    """A store that another process has opened (its engine's URL), for reading alone."""
    engine = create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _read_only_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return EpochStore(engine, where="data", is_read_only=True)


def _sqlite_in(directory: Path) -> Engine:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _keep_private(directory / DATABASE_NAME)
    # A path in an object is taken as it is; in a text, a question mark would end it.
    address = URL.create("sqlite", database=str(directory / DATABASE_NAME))
    # No thread of the query unit waits for another's connection: it would wait for that one's work, too.
    return create_engine(address, pool_size=POOL_CONNECTIONS, max_overflow=2 * POOL_CONNECTIONS)


def _keep_private(database: Path) -> None:
    """Let nobody but its owner read a database, whatever the directory allows; SQLite gives its log the same mode."""
    try:
        os.close(os.open(database, os.O_RDWR | os.O_CREAT, PRIVATE))
        for path in (database, *(database.with_name(database.name + end) for end in ("-wal", "-shm"))):
            with suppress(FileNotFoundError):
                if stat.S_IMODE(path.stat().st_mode) != PRIVATE:
                    path.chmod(PRIVATE)
    except OSError as error:
        raise StoreError(
            error.strerror or str(error), where=str(database), action="check that you own it and may write there"
        ) from None


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Readers beside the writer, every commit on disk, and waiting instead of failing when it is busy."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={BUSY_SECONDS * 1000}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _read_only_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
    connection.execute("PRAGMA query_only=ON")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its place at the start: one that began as a reader may find that another was faster, and fail."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class EpochStore:
    """Epochs, nodes, streams and the directory of keys in one database."""

    def __init__(self, engine: Engine, *, where: str, is_read_only: bool = False) -> None:
        self.engine = engine
        self.where = where
        self.is_read_only = is_read_only
        # SQLite has one writer at a time, and lets those that wait find out by trying again.
        self._turns = FairLock(seconds=BUSY_SECONDS) if engine.dialect.name == "sqlite" else nullcontext()
        if not is_read_only:
            self._prepare(where)

    def _prepare(self, where: str) -> None:
        with self.transaction(writes=True) as connection:
            METADATA.create_all(connection)
            add_missing_columns(connection, STREAMS)
            version = connection.execute(select(SCHEMA.c.version)).scalar()
            if version is None:
                insert_missing(connection, SCHEMA, [{"version": SCHEMA_VERSION}])
            elif version != SCHEMA_VERSION:
                raise StoreError(
                    f"it has schema {version}, this Sojourn works with {SCHEMA_VERSION}",
                    where=where,
                    action="use the Sojourn that made it, or another directory",
                )

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        """All or nothing; a database's own complaint becomes a `StoreError`."""
        turn = self._turns if writes else nullcontext()
        try:
            with (
                turn,
                self.engine.connect().execution_options(writes=writes) as connection,
                connection.begin(),
            ):
                yield connection
        except IntegrityError:
            raise
        except TimeoutError:
            raise StoreError("the database is busy", where=self.where, action="try again in a few seconds") from None
        except (OperationalError, DBAPIError) as error:
            cause = str(error.orig).strip().splitlines()
            raise StoreError(
                f"the database says: {cause[0] if cause else error}"[:300],
                where=self.where,
                action="check that it runs, that the disk has room and that you may write there",
            ) from None

    def add(self, epochs: Sequence[Epoch], *, now_ns: int | None = None) -> list[Status]:
        """Store epochs in one transaction, and then their keys; what became of each epoch."""
        statuses = self.add_encoded([encoded(encode(epoch)) for epoch in epochs], now_ns=now_ns)
        while self.list_keys():
            pass
        return statuses

    def add_encoded(self, epochs: Sequence[EncodedEpoch], *, now_ns: int | None = None) -> list[Status]:
        """Store epochs, whose counters and keys were checked, in one transaction; what became of each.

        A few keys are entered in the directory at once, many are left to `list_keys`.
        """
        now = time.time_ns() if now_ns is None else now_ns
        left = SLICE_KEYS
        statuses = []
        with self.transaction(writes=True) as connection:
            for epoch in epochs:
                number, status = self._add_one(connection, epoch, now)
                statuses.append(status)
                if status is Status.STORED and epoch.key_count:
                    if epoch.key_count <= left:
                        left -= epoch.key_count
                        self._see_keys(connection, epoch, epoch.keys(), now)
                    else:
                        connection.execute(insert(UNLISTED).values(epoch=number, listed=0))
            for node in sorted({epoch.node for epoch in epochs}):
                self._see_node(connection, node, now)
        return statuses

    def _add_one(self, connection: Connection, epoch: EncodedEpoch, now_ns: int) -> tuple[int, Status]:
        identity = (
            (EPOCHS.c.node == epoch.node) & (EPOCHS.c.stream == epoch.stream) & (EPOCHS.c.sequence == epoch.sequence)
        )
        row = {
            "node": epoch.node,
            "stream": epoch.stream,
            "sequence": epoch.sequence,
            "first_ns": epoch.first_ns,
            "last_ns": epoch.last_ns,
            "recorded": epoch.recorded,
            "received_ns": now_ns,
            "size_bytes": len(epoch.data),
            "data": epoch.data,
        }
        try:
            with connection.begin_nested():
                made = connection.execute(insert(EPOCHS).values(row))
        except IntegrityError:
            here = connection.execute(select(EPOCHS.c.id, EPOCHS.c.data).where(identity)).one()
            return here.id, Status.DUPLICATE if here.data == epoch.data else Status.CONFLICT
        return (made.inserted_primary_key or (0,))[0], Status.STORED

    def list_keys(self, *, pause: Callable[[], object] = lambda: None) -> bool:
        """Enter the keys of one epoch in the directory, if one waits for it, in short transactions; whether one did.

        `pause` is called between the transactions; one that raises leaves the rest to a later call.
        """
        columns = UNLISTED.c.epoch, UNLISTED.c.listed, EPOCHS.c.received_ns, EPOCHS.c.data
        waiting = select(*columns).join_from(UNLISTED, EPOCHS, UNLISTED.c.epoch == EPOCHS.c.id, isouter=True)
        with self.transaction() as connection:
            found = connection.execute(waiting.order_by(UNLISTED.c.epoch).limit(1)).first()
        if found is None:
            return False
        here = UNLISTED.c.epoch == found.epoch
        # An epoch may be forgotten before its keys are listed.
        epoch = None if found.data is None else encoded(found.data)
        keys = epoch.keys() if epoch else ()
        for start in range(found.listed, len(keys), SLICE_KEYS):
            part = keys[start : start + SLICE_KEYS]
            with self.transaction(writes=True) as connection:
                assert epoch is not None
                self._see_keys(connection, epoch, part, found.received_ns)
                connection.execute(update(UNLISTED).where(here).values(listed=start + len(part)))
            pause()
        with self.transaction(writes=True) as connection:
            connection.execute(delete(UNLISTED).where(here))
        return True

    def _see_node(self, connection: Connection, node: str, now_ns: int) -> None:
        seen = update(NODES).where(NODES.c.name == node).values(last_seen_ns=now_ns)
        if not connection.execute(seen).rowcount:
            insert_missing(connection, NODES, [{"name": node, "first_seen_ns": now_ns, "last_seen_ns": now_ns}])

    def _see_keys(self, connection: Connection, epoch: EncodedEpoch, keys: Sequence[bytes], now_ns: int) -> None:
        """Remember names, and when each was seen first and last in the stream."""
        ids, texts = named_ids(keys)
        names = {to_signed(word): text for word, text in zip(ids, texts, strict=True)}
        place = {
            "node": epoch.node,
            "stream": epoch.stream,
            "first_ns": epoch.first_ns or now_ns,
            "last_ns": epoch.last_ns or now_ns,
        }
        insert_missing(connection, INSTANCES, [{"id": number, "key": text} for number, text in names.items()])
        widen_spans(connection, SIGHTINGS, [{**place, "instance": number} for number in names])

    def announce(self, stream: StreamRecord, *, now_ns: int | None = None) -> None:
        """Remember what a stream measures."""
        values = {
            "metric": stream.metric,
            "unit": stream.unit,
            "granularity": stream.granularity,
            "values_are": stream.values_are,
        }
        here = (STREAMS.c.node == stream.node) & (STREAMS.c.name == stream.name)
        with self.transaction(writes=True) as connection:
            self._see_node(connection, stream.node, time.time_ns() if now_ns is None else now_ns)
            if not connection.execute(update(STREAMS).where(here).values(values)).rowcount:
                insert_missing(connection, STREAMS, [{"node": stream.node, "name": stream.name, **values}])

    def nodes(self, *, tag: str | None = None) -> list[NodeRecord]:
        """All nodes, by name; or those with a tag."""
        with self.transaction() as connection:
            tags: dict[str, list[str]] = {}
            for node, text in connection.execute(select(TAGS.c.node, TAGS.c.tag).order_by(TAGS.c.tag)):
                tags.setdefault(node, []).append(text)
            rows = connection.execute(select(NODES).order_by(NODES.c.name)).all()
        records = [NodeRecord(r.name, r.first_seen_ns, r.last_seen_ns, tuple(tags.get(r.name, ()))) for r in rows]
        return [record for record in records if tag is None or tag in record.tags]

    def set_tags(self, node: str, tags: Sequence[str], *, now_ns: int | None = None) -> None:
        """Replace a node's tags; the node may be one that has not been heard of yet."""
        with self.transaction(writes=True) as connection:
            self._see_node(connection, node, time.time_ns() if now_ns is None else now_ns)
            connection.execute(delete(TAGS).where(TAGS.c.node == node))
            if tags:
                connection.execute(insert(TAGS), [{"node": node, "tag": tag} for tag in sorted(set(tags))])

    def streams(self, *, node: str | None = None, metric: str | None = None) -> list[StreamRecord]:
        """Announced streams, by node and name."""
        query = select(STREAMS).order_by(STREAMS.c.node, STREAMS.c.name)
        if node is not None:
            query = query.where(STREAMS.c.node == node)
        if metric is not None:
            query = query.where(STREAMS.c.metric == metric)
        with self.transaction() as connection:
            return [StreamRecord(*row) for row in connection.execute(query)]

    def epochs(self, node: str, stream: str, from_ns: int, to_ns: int) -> list[Epoch]:
        """The epochs with measurements in ``from_ns … to_ns``, in order of their sequence."""
        self.check_range([(node, stream)], from_ns, to_ns)
        return [epoch.decode() for epoch in self.each_encoded(node, stream, from_ns, to_ns)]

    def check_range(self, streams: Sequence[tuple[str, str]], from_ns: int, to_ns: int) -> None:
        """Refuse a range of more epochs, of all the streams together, than one query may read."""
        count = size = 0
        with self.transaction() as connection:
            for node, stream in streams:
                here = _in_range(node, stream, from_ns, to_ns)
                sums = select(func.count(), func.coalesce(func.sum(EPOCHS.c.size_bytes), 0)).where(here)
                more, bytes_more = connection.execute(sums).one()
                count, size = count + more, size + bytes_more
        if count > MAX_QUERY_EPOCHS or size > MAX_QUERY_BYTES:
            raise UsageError(
                f"{count} epochs of {size} bytes lie in the range, the limits are {MAX_QUERY_EPOCHS} and "
                f"{MAX_QUERY_BYTES}",
                where=", ".join(f"{node}/{stream}" for node, stream in streams[:3]),
                action="ask for a shorter range, or for one node",
            )

    def each_encoded(self, node: str, stream: str, from_ns: int, to_ns: int) -> Iterator[EncodedEpoch]:
        """The same epochs one after the other, their counters packed; one is in memory at a time."""
        query = select(EPOCHS.c.data).where(_in_range(node, stream, from_ns, to_ns)).order_by(EPOCHS.c.sequence)
        with self.transaction() as connection:
            for data in connection.execution_options(yield_per=1).execute(query).scalars():
                yield encoded(data)

    def epoch_bytes(self, node: str, stream: str, sequence: int) -> bytes | None:
        """One epoch as it came."""
        identity = (EPOCHS.c.node == node) & (EPOCHS.c.stream == stream) & (EPOCHS.c.sequence == sequence)
        with self.transaction() as connection:
            data: bytes | None = connection.execute(select(EPOCHS.c.data).where(identity)).scalar()
        return data

    def frames(self, node: str, stream: str, *, limit: int) -> list[dict[str, int | None]]:
        """The latest epochs' sequence, frame, measurements and size, newest first."""
        columns = (EPOCHS.c.sequence, EPOCHS.c.first_ns, EPOCHS.c.last_ns, EPOCHS.c.recorded, EPOCHS.c.size_bytes)
        query = select(*columns).where((EPOCHS.c.node == node) & (EPOCHS.c.stream == stream))
        with self.transaction() as connection:
            rows = connection.execute(query.order_by(EPOCHS.c.sequence.desc()).limit(limit)).all()
        return [dict(row._mapping) for row in rows]

    def last_sequence(self, node: str, stream: str) -> int | None:
        """The highest sequence number stored, which a node without a memory goes on from."""
        query = select(func.max(EPOCHS.c.sequence)).where((EPOCHS.c.node == node) & (EPOCHS.c.stream == stream))
        with self.transaction() as connection:
            last: int | None = connection.execute(query).scalar()
        return last

    def keys(self, *, node: str | None = None, stream: str | None = None, limit: int = 1000) -> list[tuple[int, str]]:
        """Ids and texts of the keys seen, most recently seen first."""
        query = (
            select(INSTANCES.c.id, INSTANCES.c.key, func.max(SIGHTINGS.c.last_ns).label("last"))
            .join(SIGHTINGS, SIGHTINGS.c.instance == INSTANCES.c.id)
            .group_by(INSTANCES.c.id, INSTANCES.c.key)
            .order_by(func.max(SIGHTINGS.c.last_ns).desc(), INSTANCES.c.key)
            .limit(limit)
        )
        if node is not None:
            query = query.where(SIGHTINGS.c.node == node)
        if stream is not None:
            query = query.where(SIGHTINGS.c.stream == stream)
        with self.transaction() as connection:
            return [(to_word(row.id), row.key) for row in connection.execute(query)]

    def check(self) -> None:
        """Read one row; a `StoreError` if the database does not answer."""
        with self.transaction() as connection:
            connection.execute(select(SCHEMA.c.version)).scalar()

    def totals(self) -> dict[str, int]:
        """How much is stored."""
        with self.transaction() as connection:
            epochs, size = connection.execute(
                select(func.count(), func.coalesce(func.sum(EPOCHS.c.size_bytes), 0)).select_from(EPOCHS)
            ).one()
            nodes = connection.execute(select(func.count()).select_from(NODES)).scalar() or 0
            instances = connection.execute(select(func.count()).select_from(INSTANCES)).scalar() or 0
        return {"epochs": epochs, "epoch_bytes": size, "nodes": nodes, "instances": instances}

    def remove_some_before(self, time_ns: int, *, limit: int) -> int:
        """Forget at most some of the epochs that came, and were measured, before a time; how many, 0 when none is left.

        Numbers grow as epochs come, so the first rows are the oldest: what is kept is not looked through.
        """
        columns = EPOCHS.c.id, EPOCHS.c.received_ns, func.coalesce(EPOCHS.c.last_ns, EPOCHS.c.received_ns)
        after = -1
        while True:
            oldest = select(*columns).where(EPOCHS.c.id > after).order_by(EPOCHS.c.id).limit(limit)
            with self.transaction() as connection:
                rows = connection.execute(oldest).all()
            old = [number for number, received, last in rows if max(received, last) < time_ns]
            if old:
                with self.transaction(writes=True) as connection:
                    return connection.execute(delete(EPOCHS).where(EPOCHS.c.id.in_(old))).rowcount
            if not rows or all(received >= time_ns for _, received, _ in rows):
                return 0
            after = rows[-1][0]


def _in_range(node: str, stream: str, from_ns: int, to_ns: int) -> ColumnElement[bool]:
    """Which epochs of a stream have measurements in a range."""
    return (
        (EPOCHS.c.node == node)
        & (EPOCHS.c.stream == stream)
        & (EPOCHS.c.last_ns >= from_ns)
        & (EPOCHS.c.first_ns <= to_ns)
    )
