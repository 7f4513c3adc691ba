"""The store of epochs: what nodes sent, kept until asked for.

Guarantee: an epoch that `add` calls stored is on disk (SQLite: write-ahead log, synchronised at every commit). Node,
stream and sequence identify an epoch: the same bytes again are a duplicate, other bytes a conflict, and neither
changes what is there. Statements are SQLAlchemy Core, the same on SQLite and PostgreSQL.

Epochs are stored as the bytes that came, and decoded where they are answered. One that cannot be decoded then is set
aside with its reason, on disk as well: it is left out of answers, and kept to be looked at.

Cost: one transaction per `add`, a few statements for the whole batch; reading is by index over (node, stream, time).
No transaction is long: many keys are entered in the directory after their epoch is stored, some at a time
(`list_keys`); which are missing is on disk, too. Writers get their turns in the order in which they came.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)

from sojourn.core.errors import KeyTextError, UsageError, WireError
from sojourn.core.keys import named_ids
from sojourn.core.units import format_age, plural
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch, encoded
from sojourn.store.arrivals import (
    Span,
    Status,
    identity_of,
    insert_new,
    moved,
    newest_times,
    see_nodes,
    sent_bytes,
    statuses_of,
    stored_among,
)
from sojourn.store.database import (
    EPOCHS,
    INSTANCES,
    NODES,
    SCHEMA,
    SEQUENCES,
    SET_ASIDE,
    SIGHTINGS,
    STREAMS,
    TAGS,
    UNLISTED,
    Database,
    engine_at,
    insert_missing,
    insert_unless_there,
    reading_engine,
    shown_place,
    to_signed,
    to_word,
)
from sojourn.store.directory import Names, Spans, see_keys, spans_of
from sojourn.store.migrations.upgrading import HEAD, upgrade
from sojourn.store.runs import note_cuts
from sojourn.store.upkeep.losses import note_acknowledged
from sojourn.store.upkeep.partitions import prepare_partitions
from sojourn.store.upkeep.retention import remove_epochs

Read = TypeVar("Read")

MAX_QUERY_BYTES = 256 << 20
MAX_QUERY_EPOCHS = 100_000
# Keys that one transaction enters in the directory: tens of milliseconds, in which other writers wait.
SLICE_KEYS = 1000
# Keys that were entered lately, whose ids are known without hashing, and which need no row: some 10 MB.
KNOWN_KEYS = 1 << 16
LONGEST_REASON = 300
READ_STORES = 4
_LOG = logging.getLogger("sojourn.store")


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
    values: str | None = None
    acknowledged: Span | None = None  # numbers that the node was told are stored


_Values = Mapping[str, object] | None  # of a statement that leaves some open


def open_store(place: str | Path | URL, *, is_prepared: bool = False) -> EpochStore:
    """The store in a directory (SQLite, made if missing) or at a database URL.

    One that another process has opened, and so prepared, need not even be there yet.
    """
    return EpochStore(engine_at(place), where=shown_place(place), is_prepared=is_prepared)


@lru_cache(maxsize=READ_STORES)
def read_store(url: URL) -> EpochStore:
    """A store that another process has opened (its engine's URL), for reading alone; opened once."""
    return EpochStore(reading_engine(url), where="data", is_read_only=True)


class EpochStore(Database):
    """Epochs, nodes, streams and the directory of keys in one database."""

    def __init__(self, engine: Engine, *, where: str, is_read_only: bool = False, is_prepared: bool = False) -> None:
        super().__init__(engine, where=where, is_read_only=is_read_only)
        self._known_keys: dict[bytes, int] = {}
        if not is_read_only and not is_prepared:
            self._prepare()

    def _prepare(self) -> None:
        with self.transaction(writes=True) as connection:
            if (before := upgrade(connection, where=self.where)) not in (None, "0000"):
                _LOG.info("the database was upgraded from schema %s to %s", before, HEAD)
            prepare_partitions(connection, time.time_ns())

    def add(self, epochs: Sequence[Epoch], *, now_ns: int | None = None) -> list[Status]:
        """Store epochs in one transaction, and then their keys; what became of each epoch."""
        statuses = self.add_encoded([EncodedEpoch.of(epoch) for epoch in epochs], now_ns=now_ns)
        while self.list_keys():
            pass
        return statuses

    def add_encoded(self, epochs: Sequence[EncodedEpoch], *, now_ns: int | None = None) -> list[Status]:
        """Store epochs as they are in one transaction; what became of each.

        A few keys are entered in the directory at once, many are left to `list_keys`.
        """
        if not epochs:
            return []
        now = time.time_ns() if now_ns is None else now_ns
        with self.transaction(writes=True) as connection:
            see_nodes(connection, newest_times(epochs), now, sent=sent_bytes(epochs))
            numbers = insert_new(connection, epochs, now)
            statuses = statuses_of(connection, epochs, numbers)
            offered = zip(epochs, statuses, strict=True)
            new = {numbers[identity_of(epoch)]: epoch for epoch, status in offered if status is Status.STORED}
            note_cuts(connection, new, now)
            listing = {number: epoch for number, epoch in new.items() if epoch.key_count}
            entered = self._enter_keys(connection, listing, now)
        self._remember(entered)
        return statuses

    def _enter_keys(self, connection: Connection, epochs: Mapping[int, EncodedEpoch], now_ns: int) -> dict[bytes, int]:
        """Enter the keys of epochs, by their numbers, as far as one transaction should; the ids of those that are new.

        The rest is left to `list_keys`, and so is all of it if one of them lists what is no key.
        """
        listed: list[tuple[EncodedEpoch, tuple[bytes, ...]]] = []
        later: list[int] = []
        lists: set[tuple[str, str, tuple[bytes, ...]]] = set()
        seen: dict[tuple[str, str], set[bytes]] = {}
        count = 0
        try:
            for number, epoch in epochs.items():
                if epoch.key_count > SLICE_KEYS or count >= SLICE_KEYS:
                    later.append(number)
                    continue
                keys = epoch.keys()
                listed.append((epoch, keys))
                if (one := (epoch.node, epoch.stream, keys)) not in lists:
                    lists.add(one)
                    seen.setdefault((epoch.node, epoch.stream), set()).update(keys)
                    count = sum(map(len, seen.values()))
            spans = spans_of(listed, now_ns)
            names = self._names(spans)
        except (WireError, KeyTextError):
            later, spans, names = list(epochs), {}, ({}, {})
        if later:
            connection.execute(insert(UNLISTED), [{"epoch": number, "listed": 0} for number in later])
        return see_keys(connection, spans, names)

    def _names(self, spans: Spans) -> Names:
        """The ids of all keys, and the texts of those that were not entered lately."""
        known = self._known_keys
        ids = {key: known.get(key) for firsts, _lasts in spans.values() for key in firsts}
        new = [key for key, number in ids.items() if number is None]
        words, texts = named_ids(new)
        ids.update(zip(new, map(to_signed, words), strict=True))
        return ids, dict(zip(new, texts, strict=True))

    def _remember(self, entered: Mapping[bytes, int]) -> None:
        """Know keys from now on: they are on disk, and never removed."""
        if len(self._known_keys) + len(entered) > KNOWN_KEYS:
            self._known_keys = {}
        self._known_keys.update(entered)

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
        try:
            # An epoch may be forgotten before its keys are listed.
            epoch = None if found.data is None else encoded(found.data)
            keys = epoch.keys() if epoch else ()
            for start in range(found.listed, len(keys), SLICE_KEYS):
                assert epoch is not None
                spans = spans_of([(epoch, keys[start : start + SLICE_KEYS])], found.received_ns)
                names = self._names(spans)
                with self.transaction(writes=True) as connection:
                    entered = see_keys(connection, spans, names)
                    connection.execute(update(UNLISTED).where(here).values(listed=start + SLICE_KEYS))
                self._remember(entered)
                pause()
        except (WireError, KeyTextError) as error:
            self.set_aside(found.epoch, error)
        with self.transaction(writes=True) as connection:
            connection.execute(delete(UNLISTED).where(here))
        return True

    def set_aside(self, number: int, reason: object) -> None:
        """Leave an epoch, by its row's number, out of answers from now on; its bytes stay, beside the reason."""
        if self.is_read_only:
            # That an epoch cannot be decoded is all that a reader ever has to write.
            with closing(open_store(self.engine.url)) as store:
                return store.set_aside(number, reason)
        row = select(EPOCHS.c.id, literal(str(reason)[:LONGEST_REASON]), literal(time.time_ns()))
        # Several workers may find the same one at once: the first one's reason stays.
        addition = insert_unless_there(self.engine.dialect.name, SET_ASIDE)
        with self.transaction(writes=True) as connection:
            connection.execute(addition.from_select(["epoch", "reason", "since_ns"], row.where(EPOCHS.c.id == number)))
        return None

    def set_aside_in(self, streams: Sequence[tuple[str, str]], from_ns: int, to_ns: int) -> list[str]:
        """Which epochs of streams are left out of answers about a range, each with its reason."""
        query = select(EPOCHS.c.sequence, SET_ASIDE.c.reason).join(SET_ASIDE, SET_ASIDE.c.epoch == EPOCHS.c.id)
        found: list[str] = []
        with self.transaction() as connection:
            for place in streams:
                for sequence, reason in connection.execute(query.where(_in_range(*place, from_ns, to_ns))):
                    name = f"epoch {sequence} of {'/'.join(place)}"
                    found.append(f"{name} cannot be decoded and is left out: {reason}")
        return found

    def moved_in(self, streams: Sequence[tuple[str, str]], from_ns: int, to_ns: int) -> list[str]:
        """Which nodes dated epochs of a range far ahead of their arrival: their times are those of their arrival."""
        query = select(func.count(), func.max(EPOCHS.c.shifted_ns)).where(EPOCHS.c.shifted_ns.is_not(None))
        found: list[str] = []
        with self.transaction() as connection:
            for place in streams:
                count, most_ns = connection.execute(query.where(_in_range(*place, from_ns, to_ns))).one()
                if count:
                    ahead = f"up to {format_age(most_ns)} ahead of its arrival, which counts instead"
                    found.append(f"{'/'.join(place)} dated {plural(count, 'epoch')} {ahead}")
        return found

    def stored_among(self, node: str, stream: str, sequences: Iterable[int]) -> set[int]:
        """Which of a stream's numbers were ever stored, whatever has become of their epochs."""
        with self.transaction() as connection:
            return stored_among(connection, node, stream, sequences)

    def meet(self, node: str, *, now_ns: int | None = None) -> None:
        """Know a node from now on; one that is known stays as it is."""
        with self.transaction() as connection:
            if connection.execute(select(NODES.c.name).where(NODES.c.name == node)).scalar() is not None:
                return
        now = time.time_ns() if now_ns is None else now_ns
        with self.transaction(writes=True) as connection:
            insert_missing(connection, NODES, [{"name": node, "first_seen_ns": now, "last_seen_ns": now}])

    def announce(self, stream: StreamRecord, *, now_ns: int | None = None) -> None:
        """Remember what a stream measures."""
        what = {"metric": stream.metric, "unit": stream.unit, "granularity": stream.granularity}
        values = {**what, "values_are": stream.values}
        here = (STREAMS.c.node == stream.node) & (STREAMS.c.name == stream.name)
        now = time.time_ns() if now_ns is None else now_ns
        lost: list[Span] = []
        with self.transaction(writes=True) as connection:
            see_nodes(connection, {stream.node: None}, now)
            if stream.acknowledged is not None:
                lost = note_acknowledged(connection, stream.node, stream.name, stream.acknowledged, now)
            if not connection.execute(update(STREAMS).where(here).values(values)).rowcount:
                insert_missing(connection, STREAMS, [{"node": stream.node, "name": stream.name, **values}])
        for span in lost:
            text = "warning: epochs %s to %s of %s/%s were acknowledged and are not stored: was a backup restored?"
            _LOG.warning(text, *span, stream.node, stream.name)

    def nodes(self, *, tag: str | None = None) -> list[NodeRecord]:
        """All nodes, by name; or those with a tag."""
        with self.transaction() as connection:
            tags: dict[str, list[str]] = {}
            for node, text in connection.execute(select(TAGS.c.node, TAGS.c.tag).order_by(TAGS.c.tag)):
                tags.setdefault(node, []).append(text)
            rows = connection.execute(select(NODES).order_by(NODES.c.name)).all()
        records = [NodeRecord(r.name, r.first_seen_ns, r.last_seen_ns, tuple(tags.get(r.name, ()))) for r in rows]
        return [record for record in records if tag is None or tag in record.tags]

    def set_tags(self, node: str, tags: Sequence[str]) -> None:
        """Replace a node's tags; the node may be one that has not been heard of yet."""
        with self.transaction(writes=True) as connection:
            self._hold(connection, node)
            self._tag(connection, node, sorted(set(tags)))

    def change_tags(self, node: str, add: Sequence[str], remove: Sequence[str], *, most: int) -> list[str]:
        """Give a node tags and take others from it in one transaction; all that it then has."""
        with self.transaction(writes=True) as connection:
            self._hold(connection, node)
            has = set(connection.execute(select(TAGS.c.tag).where(TAGS.c.node == node)).scalars())
            tags = sorted((has | set(add)) - set(remove))
            if len(tags) > most:
                raise UsageError(f"{node} would have {len(tags)} tags", where="tags", action=f"keep to {most}")
            self._tag(connection, node, tags)
        return tags

    def _hold(self, connection: Connection, node: str) -> None:
        """Let others who change the node's tags wait; a node that is not known yet is from now on."""
        # Being tagged is no sign of life: when a known node was seen last stays as it is.
        now_ns = time.time_ns()
        insert_missing(connection, NODES, [{"name": node, "first_seen_ns": now_ns, "last_seen_ns": now_ns}])
        connection.execute(select(NODES.c.name).where(NODES.c.name == node).with_for_update())

    def _tag(self, connection: Connection, node: str, tags: Sequence[str]) -> None:
        connection.execute(delete(TAGS).where(TAGS.c.node == node))
        if tags:
            connection.execute(insert(TAGS), [{"node": node, "tag": tag} for tag in tags])

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
        return list(self.each_epoch(node, stream, from_ns, to_ns, EncodedEpoch.decode))

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

    def each_epoch(
        self,
        node: str,
        stream: str,
        from_ns: int,
        to_ns: int,
        read: Callable[[EncodedEpoch], Read],
        *,
        numbers: tuple[int, int] | None = None,
    ) -> Iterator[Read]:
        """The same epochs, or those of some numbers, one after the other as they are read; see `each_of`."""
        here = _in_range(node, stream, from_ns, to_ns) & SOUND
        if numbers is not None:
            here &= EPOCHS.c.sequence.between(*numbers)
        columns = EPOCHS.c.id, EPOCHS.c.data, EPOCHS.c.shifted_ns
        return self.each_of(select(*columns).where(here).order_by(EPOCHS.c.sequence), read)

    def decoded(
        self, rows: Select[int, bytes], admit: Callable[[EncodedEpoch], object], values: _Values = None
    ) -> Iterator[Epoch]:
        """The epochs of rows themselves, of which `admit` may refuse one before it is decoded; see `each_of`."""

        def read(epoch: EncodedEpoch) -> Epoch:
            admit(epoch)
            return epoch.decode()

        return self.each_of(rows, read, values)

    def each_of(
        self, rows: Select[*tuple[Any, ...]], read: Callable[[EncodedEpoch], Read], values: _Values = None
    ) -> Iterator[Read]:
        """What is read of the epochs of sound rows (number, bytes, and how far moved), one in memory at a time.

        One that cannot be decoded, as a `WireError` of `read` says, is set aside, and left out then and later.
        """
        faults: dict[int, WireError] = {}
        with self.transaction() as connection:
            for number, data, *shift in connection.execute(rows, values, execution_options={"yield_per": 1}):
                try:
                    found = read(moved(encoded(data), shift[0] if shift else None))
                except WireError as error:
                    faults[number] = error
                else:
                    yield found
        for number, fault in faults.items():
            self.set_aside(number, fault)

    def numbered(
        self,
        node: str,
        stream: str,
        sequences: Sequence[int],
        *,
        admit: Callable[[EncodedEpoch], object] = lambda _: None,
    ) -> list[Epoch]:
        """The epochs of a stream with some numbers, in order; see `decoded`."""
        return list(self.decoded(_NUMBERED, admit, {"node": node, "stream": stream, "sequences": list(sequences)}))

    def epoch_bytes(self, node: str, stream: str, sequence: int) -> bytes | None:
        """One epoch as it came."""
        here = _of(node, stream) & (EPOCHS.c.sequence == sequence)
        with self.transaction() as connection:
            data: bytes | None = connection.execute(select(EPOCHS.c.data).where(here)).scalar()
        return data

    def frames(self, node: str, stream: str, *, limit: int) -> list[dict[str, int | str | None]]:
        """The latest epochs' sequence, frame, measurements, size and why they were set aside, newest first."""
        names = ("sequence", "first_ns", "last_ns", "recorded", "size_bytes", "merged", "shifted_ns")
        query = select(*(EPOCHS.c[name] for name in names), SET_ASIDE.c.reason.label("set_aside")).where(
            _of(node, stream)
        )
        query = query.outerjoin(SET_ASIDE, SET_ASIDE.c.epoch == EPOCHS.c.id)
        with self.transaction() as connection:
            rows = connection.execute(query.order_by(EPOCHS.c.sequence.desc()).limit(limit)).all()
        return [dict(row._mapping) for row in rows]

    def last_sequence(self, node: str, stream: str) -> int | None:
        """The highest sequence number ever stored, which a node without a memory goes on from."""
        here = (SEQUENCES.c.node == node) & (SEQUENCES.c.stream == stream)
        query = select(func.max(SEQUENCES.c.last_sequence)).where(here)
        with self.transaction() as connection:
            last: int | None = connection.execute(query).scalar()
        return last

    def active(self, node: str, stream: str, since_ns: int) -> int:
        """How many instances a stream has seen since a time, as far as their keys are listed."""
        here = (SIGHTINGS.c.node == node) & (SIGHTINGS.c.stream == stream) & (SIGHTINGS.c.last_ns >= since_ns)
        with self.transaction() as connection:
            return int(connection.execute(select(func.count()).select_from(SIGHTINGS).where(here)).scalar_one())

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

    def texts(self, ids: Sequence[int]) -> dict[int, str]:
        """The keys' texts of ids; those that are not in the directory have none."""
        query = select(INSTANCES.c.id, INSTANCES.c.key)
        found: dict[int, str] = {}
        with self.transaction() as connection:
            for some in _slices(ids):
                rows = connection.execute(query.where(INSTANCES.c.id.in_(some)))
                found.update((to_word(row.id), row.key) for row in rows)
        return found

    def sighted(self, streams: Sequence[tuple[str, str]], ids: Sequence[int]) -> set[int]:
        """Which ids any of some streams (by node and name) has ever reported."""
        found: set[int] = set()
        with self.transaction() as connection:
            for node, stream in streams:
                here = (SIGHTINGS.c.node == node) & (SIGHTINGS.c.stream == stream)
                for some in _slices(ids):
                    query = select(SIGHTINGS.c.instance).where(here & SIGHTINGS.c.instance.in_(some))
                    found.update(map(to_word, connection.execute(query).scalars()))
        return found

    def check(self) -> None:
        """Read one row; a `StoreError` if the database does not answer."""
        with self.transaction() as connection:
            connection.execute(select(SCHEMA.c.version)).scalar()

    def totals(self) -> dict[str, int]:
        """How much is stored."""
        with self.transaction() as connection:
            size = func.coalesce(func.sum(EPOCHS.c.size_bytes), 0)
            epochs, epoch_bytes = connection.execute(select(func.count(), size).select_from(EPOCHS)).one()
            counts = {
                name: connection.execute(select(func.count()).select_from(table)).scalar() or 0
                for name, table in (("epochs_set_aside", SET_ASIDE), ("nodes", NODES), ("instances", INSTANCES))
            }
        return {"epochs": epochs, "epoch_bytes": epoch_bytes, **counts}

    def remove_some_before(self, time_ns: int, *, limit: int) -> int:
        """Forget some of the epochs that came, and were measured, before a time; see `retention.remove_epochs`."""
        return remove_epochs(self, time_ns, limit=limit)


def _slices(ids: Sequence[int]) -> Iterator[list[int]]:
    """Ids as the database has them, as many at a time as a statement takes."""
    for start in range(0, len(ids), SLICE_KEYS):
        yield [to_signed(word) for word in ids[start : start + SLICE_KEYS]]


def _of(node: str, stream: str) -> ColumnElement[bool]:
    return (EPOCHS.c.node == node) & (EPOCHS.c.stream == stream)


def _in_range(node: str, stream: str, from_ns: int, to_ns: int) -> ColumnElement[bool]:
    return _of(node, stream) & (EPOCHS.c.last_ns >= from_ns) & (EPOCHS.c.first_ns <= to_ns)


SOUND = EPOCHS.c.id.not_in(select(SET_ASIDE.c.epoch))  # epochs that are not set aside
# Built once, which takes several times as long as to run it.
_NUMBERED = (
    select(EPOCHS.c.id, EPOCHS.c.data)
    .where((EPOCHS.c.node == bindparam("node")) & (EPOCHS.c.stream == bindparam("stream")) & SOUND)
    .where(EPOCHS.c.sequence.in_(bindparam("sequences", expanding=True)))
    .order_by(EPOCHS.c.sequence)
)
