"""The store of collections: packets of sinks, appended; windows of them, taken and answered.

Guarantee: packets that `append` counts as stored are on disk (see `EpochStore`). Origin, sequence number and generation
time identify a packet: the same again is a duplicate, another path, arrival or sum is a conflict, and neither changes
what is there. A packet generated before what has been solved is late (`LatePackets`).
Writers of one collection take turns by its row. Memory: one batch, or the packets of one window.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, delete, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from sojourn.core.errors import UsageError
from sojourn.server.door.limits import Limits
from sojourn.server.sinks.solving import SolvedWindow
from sojourn.server.sinks.tables import (
    ANSWERS,
    COLLECTIONS,
    COUNTERS,
    LATE,
    PACKETS,
    SET_ASIDE,
    SET_ASIDE_WINDOWS,
)
from sojourn.store.epochs import EpochStore
from sojourn.tomography.delays.estimate import WindowSpan, packet_key
from sojourn.tomography.trace import PacketRow

WORD = np.dtype("<u4")
CHUNK = 500
REASONS_SHOWN = 5
LONGEST_REASON = 300
LONGER_AGAIN = 16  # after so many windows that were halved, one is tried that is halved once less
MOST_DIRECT = 32
LONGEST_WAY_NS = 3_600 * 10**9  # a packet that took longer is not looked for beside others


# A collection's row: counters, and how far it is solved; ``open`` counts the packets whose window has not been solved.
CollectionState: TypeAlias = Row[Any]
_C = COLLECTIONS.c
_STATES = select(COLLECTIONS, (_C.packets - _C.late - _C.solved - _C.left_out - _C.set_aside).label("open"))


@dataclass(frozen=True)
class Appended:
    """What became of the packets of one batch; late ones are among the stored."""

    stored: int = 0
    duplicates: int = 0
    conflicts: int = 0
    late: int = 0


@dataclass(frozen=True)
class StoredPacket:
    """A packet with its number in the store."""

    id: int
    row: PacketRow


def to_row(record: Row[Any]) -> PacketRow:
    """A packet as tomography takes it."""
    path = np.frombuffer(record.path, WORD).tolist()
    return record.origin, record.sequence, path, record.t0_ns, record.sink_ns, record.sum_ns


def _values(collection: int, row: PacketRow) -> dict[str, object]:
    origin, sequence, path, t0, at_sink, total = row
    name = {"collection": collection, "origin": origin, "sequence": sequence}
    times = {"t0_ns": t0, "sink_ns": at_sink, "sum_ns": total, "direct_ns": at_sink - t0 if len(path) == 2 else None}
    return {**name, **times, "path": np.array(path, WORD).tobytes()}


class SinkStore:
    """Collections in the database of an `EpochStore`."""

    def __init__(self, store: EpochStore, limits: Limits) -> None:
        self._store, self._limits = store, limits

    def collections(self) -> list[CollectionState]:
        """All collections, by node and name."""
        with self._store.transaction() as connection:
            return list(connection.execute(_STATES.order_by(COLLECTIONS.c.node, COLLECTIONS.c.name)))

    def find(self, node: str, name: str) -> CollectionState | None:
        """A node's collection, if there is one."""
        here = (COLLECTIONS.c.node == node) & (COLLECTIONS.c.name == name)
        with self._store.transaction() as connection:
            return connection.execute(_STATES.where(here)).one_or_none()

    def state(self, collection: int) -> CollectionState | None:
        """A collection by its number, unless it was removed."""
        with self._store.transaction() as connection:
            return connection.execute(_STATES.where(COLLECTIONS.c.id == collection)).one_or_none()

    def reasons(self, collections: Sequence[int]) -> dict[int, dict[str, int]]:
        """Why packets of collections were set aside: how many for the most frequent reasons of each."""
        windows = SET_ASIDE_WINDOWS.c
        count = func.sum(windows.packets)
        found: dict[int, dict[str, int]] = {}
        with self._store.transaction() as connection:
            for begin in range(0, len(collections), CHUNK):
                here = windows.collection.in_(collections[begin : begin + CHUNK])
                query = select(windows.collection, windows.reason, count).where(here)
                grouped = query.group_by(windows.collection, windows.reason).order_by(count.desc())
                for collection, reason, packets in connection.execute(grouped):
                    shown = found.setdefault(collection, {})
                    if len(shown) < REASONS_SHOWN:
                        shown[reason] = int(packets)
        return found

    def append(self, node: str, name: str, rows: Sequence[PacketRow], *, refused: int = 0) -> tuple[int, Appended]:
        """Add packets in one transaction; the collection (made if it is new) and what became of them."""
        try:
            return self._append(node, name, rows, refused)
        except IntegrityError:
            # Another query unit made the collection at the same time: now it is there.
            return self._append(node, name, rows, refused)

    def _append(self, node: str, name: str, rows: Sequence[PacketRow], refused: int) -> tuple[int, Appended]:
        with self._store.transaction(writes=True) as connection:
            state = self._locked(connection, node, name)
            if state.packets + len(rows) > self._limits.collection_packets:
                raise UsageError(
                    f"it would hold more than {self._limits.collection_packets:,} packets",
                    where=f"{node}/{name}",
                    action="begin another collection",
                )
            fresh, result = self._sorted_out(connection, state, rows)
            for begin in range(0, len(fresh), CHUNK):
                connection.execute(insert(PACKETS), [_values(state.id, row) for row in fresh[begin : begin + CHUNK]])
            if result.late:
                _note_late(connection, state, fresh)
            counts = {"duplicates": result.duplicates, "conflicts": result.conflicts, "late": result.late}
            added = {"packets": result.stored, **counts, "refused": refused}
            changes: dict[str, object] = {key: COLLECTIONS.c[key] + count for key, count in added.items() if count}
            if fresh:
                changes["newest_ns"] = max([row[3] for row in fresh] + [state.newest_ns or 0])
                changes["longest_ns"] = max([row[4] - row[3] for row in fresh] + [state.longest_ns])
            if changes:
                connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == state.id).values(changes))
        return state.id, result

    def _locked(self, connection: Connection, node: str, name: str) -> CollectionState:
        """The collection's row, which no other writer has meanwhile; a new one if there is none."""
        here = (COLLECTIONS.c.node == node) & (COLLECTIONS.c.name == name)
        row = connection.execute(_STATES.where(here).with_for_update()).one_or_none()
        if row is not None:
            return row
        of_node = select(func.count()).select_from(COLLECTIONS).where(COLLECTIONS.c.node == node)
        if connection.execute(of_node).scalar_one() >= self._limits.collections:
            raise UsageError(
                f"the node has {self._limits.collections} collections already",
                where=f"{node}/{name}",
                action="append to one of them",
            )
        values = {"node": node, "name": name, "created_ns": time.time_ns(), "longest_ns": 0, "may_be_exact": True}
        connection.execute(insert(COLLECTIONS).values(**values, **dict.fromkeys(COUNTERS, 0)))
        return connection.execute(_STATES.where(here).with_for_update()).one()

    def _sorted_out(
        self, connection: Connection, state: CollectionState, rows: Sequence[PacketRow]
    ) -> tuple[list[PacketRow], Appended]:
        """The packets that are new, and the numbers of all."""
        times = sorted({row[3] for row in rows})
        known: dict[tuple[int, int, int], PacketRow] = {}
        for begin in range(0, len(times), CHUNK):
            there = PACKETS.c.t0_ns.in_(times[begin : begin + CHUNK])
            query = select(PACKETS).where((PACKETS.c.collection == state.id) & there)
            for record in connection.execute(query):
                row = to_row(record)
                known[packet_key(row)] = row
        fresh: list[PacketRow] = []
        duplicates = conflicts = late = 0
        for row in rows:
            stored = known.setdefault(packet_key(row), row)
            if stored is row:
                fresh.append(row)
                late += state.begin_ns is not None and row[3] < state.begin_ns
            elif tuple(stored) == tuple(row):
                duplicates += 1
            else:
                conflicts += 1
        return fresh, Appended(len(fresh), duplicates, conflicts, late)

    def request_close(self, collection: int) -> None:
        """Ask for everything that has come so far to be solved, without waiting for what comes after it."""
        changes = {"close_ns": COLLECTIONS.c.newest_ns}
        with self._store.transaction(writes=True) as connection:
            connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == collection).values(changes))
            connection.execute(update(LATE).where(LATE.c.collection == collection).values(is_due=True))

    def first_time(self, collection: int, since_ns: int) -> int | None:
        """The earliest generation at or after a time."""
        here = (PACKETS.c.collection == collection) & (PACKETS.c.t0_ns >= since_ns)
        with self._store.transaction() as connection:
            first: int | None = connection.execute(select(func.min(PACKETS.c.t0_ns)).where(here)).scalar()
        return first

    def latest(self, collection: int, until_ns: int, limit: int) -> list[PacketRow]:
        """The packets generated last before a time."""
        here = (PACKETS.c.collection == collection) & (PACKETS.c.t0_ns < until_ns)
        query = select(PACKETS).where(here).order_by(PACKETS.c.t0_ns.desc()).limit(limit)
        with self._store.transaction() as connection:
            return [to_row(record) for record in connection.execute(query)]

    def quickest(self, collection: int) -> list[PacketRow]:
        """The packets that went straight to the sink in the shortest times, enough to learn the least delay from."""
        direct = (PACKETS.c.collection == collection) & PACKETS.c.direct_ns.is_not(None)
        query = select(PACKETS).where(direct).order_by(PACKETS.c.direct_ns).limit(MOST_DIRECT)
        with self._store.transaction() as connection:
            return [to_row(record) for record in connection.execute(query)]

    def extent(self, state: CollectionState, span: WindowSpan, limit: int) -> tuple[int, int]:
        """How many packets a span rests on, counted up to a limit, and the places on their paths; cheap."""
        some = select(PACKETS.c.path).where(_resting_on(state, span)).limit(limit).subquery()
        query = select(func.count(), func.coalesce(func.sum(func.length(some.c.path)), 0)).select_from(some)
        with self._store.transaction() as connection:
            packets, size = connection.execute(query).one()
        return int(packets), int(size) // WORD.itemsize

    def load(self, state: CollectionState, span: WindowSpan, limit: int) -> list[StoredPacket]:
        """The packets that a span rests on, the earliest generated first, up to a limit."""
        here = _resting_on(state, span)
        query = select(PACKETS).where(here).order_by(PACKETS.c.t0_ns, PACKETS.c.id).limit(limit)
        with self._store.transaction() as connection:
            return [StoredPacket(record.id, to_row(record)) for record in connection.execute(query)]

    def keep(
        self,
        state: CollectionState,
        span: WindowSpan,
        packets: Sequence[StoredPacket],
        solved: SolvedWindow,
        *,
        period_ns: int,
    ) -> bool:
        """Store a span's answers and go on behind it; false if another query unit was faster.

        Packets of the span, or from before it, that came while it was solved are late.
        """
        here = (PACKETS.c.collection == state.id) & (PACKETS.c.t0_ns >= (state.begin_ns or 0))
        here &= PACKETS.c.t0_ns < span.end_ns
        same = COLLECTIONS.c.begin_ns.is_not_distinct_from(state.begin_ns)
        with self._store.transaction(writes=True) as connection:
            if not _is_there(connection, state, same):
                return False
            records = connection.execute(select(PACKETS.c.id, PACKETS.c.t0_ns).where(here))
            there = {record.id: record.t0_ns for record in records}
            kept = [packet for packet in packets if packet.id in there]
            answers = [(packet.id, solved.answers.get(packet_key(packet.row))) for packet in kept]
            late = there.keys() - {packet.id for packet in kept}
            _insert_late(connection, state.id, [(number, there[number]) for number in late])
            added = _keep_answers(connection, answers, solved)
            added |= {"late": len(late), "contradictions": solved.conflicts}
            changes: dict[str, object] = {key: COLLECTIONS.c[key] + count for key, count in added.items()}
            changes |= {"begin_ns": span.end_ns, "period_ns": period_ns, "may_be_exact": solved.may_be_exact}
            if state.halvings and state.windows % LONGER_AGAIN == LONGER_AGAIN - 1:
                changes["halvings"] = state.halvings - 1
            connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == state.id).values(changes))
        return True

    def set_aside(self, state: CollectionState, span: WindowSpan, reason: str, *, period_ns: int) -> int:
        """Go on behind a span without answers, for good; how many packets that are.

        More packets than a window may have are set aside in several steps, except those of one instant.
        """
        there = (PACKETS.c.collection == state.id) & (PACKETS.c.t0_ns >= (state.begin_ns or 0))
        behind = select(PACKETS.c.t0_ns).where(there).order_by(PACKETS.c.t0_ns)
        same = COLLECTIONS.c.begin_ns.is_not_distinct_from(state.begin_ns)
        with self._store.transaction(writes=True) as connection:
            if not _is_there(connection, state, same):
                return 0
            next_ns = connection.execute(behind.limit(1).offset(self._limits.window_packets)).scalar()
            end_ns = span.end_ns if next_ns is None else min(span.end_ns, max(next_ns, span.begin_ns + 1))
            packets = select(PACKETS.c.id).where(there & (PACKETS.c.t0_ns < end_ns))
            count = _set_packets_aside(connection, state, replace(span, end_ns=end_ns), packets, reason)
            changes = {"set_aside": COLLECTIONS.c.set_aside + count, "begin_ns": end_ns, "period_ns": period_ns}
            connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == state.id).values(changes))
        return count

    def halve(self, state: CollectionState) -> None:
        """Have the collection's windows be half as long from now on, also after a restart."""
        changes = {"halvings": state.halvings + 1}
        with self._store.transaction(writes=True) as connection:
            if _is_there(connection, state, COLLECTIONS.c.halvings == state.halvings):
                connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == state.id).values(changes))

    def totals(self) -> dict[str, int]:
        """How much is stored."""
        counted = [func.coalesce(func.sum(COLLECTIONS.c[name]), 0) for name in ("packets", "windows")]
        with self._store.transaction() as connection:
            collections, packets, windows = connection.execute(select(func.count(), *counted)).one()
        return {"collections": int(collections), "packets": int(packets), "windows": int(windows)}


def _is_there(connection: Connection, state: CollectionState, also: ColumnElement[bool] | None = None) -> bool:
    """Whether the collection is still there (numbers are given again), and as expected; no other writer has it then."""
    here = (COLLECTIONS.c.id == state.id) & (COLLECTIONS.c.created_ns == state.created_ns)
    query = select(COLLECTIONS.c.id).where(here if also is None else here & also).with_for_update()
    return connection.execute(query).scalar() is not None


def _note_late(connection: Connection, state: CollectionState, rows: Sequence[PacketRow]) -> None:
    """Remember those of the packets just stored that are late."""
    late = {packet_key(row) for row in rows if row[3] < (state.begin_ns or 0)}
    times = sorted({t0 for _origin, _sequence, t0 in late})
    named = (PACKETS.c.id, PACKETS.c.origin, PACKETS.c.sequence, PACKETS.c.t0_ns)
    for begin in range(0, len(times), CHUNK):
        there = PACKETS.c.t0_ns.in_(times[begin : begin + CHUNK])
        records = connection.execute(select(*named).where((PACKETS.c.collection == state.id) & there)).all()
        found = [(number, t0) for number, origin, sequence, t0 in records if (origin, sequence, t0) in late]
        _insert_late(connection, state.id, found)


def _insert_late(connection: Connection, collection: int, packets: Sequence[tuple[int, int]]) -> None:
    for begin in range(0, len(packets), CHUNK):
        some = packets[begin : begin + CHUNK]
        values = [{"packet": n, "collection": collection, "t0_ns": t0, "is_due": False} for n, t0 in some]
        connection.execute(insert(LATE), values)


def _resting_on(state: CollectionState, span: WindowSpan) -> ColumnElement[bool]:
    since = span.since_ns - min(state.longest_ns, LONGEST_WAY_NS)
    here, t0 = PACKETS.c.collection == state.id, PACKETS.c.t0_ns
    return and_(here, t0 >= since, t0 < span.until_ns, PACKETS.c.sink_ns >= span.since_ns)


def _keep_answers(
    connection: Connection, answers: Sequence[tuple[int, bytes | None]], solved: SolvedWindow
) -> dict[str, int]:
    """Store the answers of packets, empty for those that could not be used; what that adds to the counters."""
    for begin in range(0, len(answers), CHUNK):
        some = [{"packet": number, "data": answer or b""} for number, answer in answers[begin : begin + CHUNK]]
        connection.execute(insert(ANSWERS), some)
    found = sum(answer is not None for _number, answer in answers)
    left_out, unsolved = len(answers) - found, 0 if solved.is_solved else 1
    return {"windows": 1, "solved": found, "left_out": left_out, "unsolved": unsolved}


def _set_packets_aside(
    connection: Connection, state: CollectionState, span: WindowSpan, packets: Select[tuple[int]], reason: str
) -> int:
    """Store that the packets of a query have no answer, and why; how many they are."""
    values = {"collection": state.id, "begin_ns": span.begin_ns, "end_ns": span.end_ns, "packets": 0}
    values["reason"] = reason[:LONGEST_REASON]
    windows = SET_ASIDE_WINDOWS.c
    window = connection.execute(insert(SET_ASIDE_WINDOWS).values(values).returning(windows.id)).scalar_one()
    numbered = packets.add_columns(literal(window))
    # Not all drivers are asked how many rows an insertion added unless one says so.
    addition = insert(SET_ASIDE).from_select(["packet", "window"], numbered)
    count = connection.execute(addition, execution_options={"preserve_rowcount": True}).rowcount
    connection.execute(update(SET_ASIDE_WINDOWS).where(windows.id == window).values(packets=count))
    return count


class LatePackets:
    """Packets that came after the window of their time was solved, until they are answered as well.

    A late packet is answered from a window of its own around it; answers given before stay. That is done after the next
    window of the collection, one stretch of late packets for each window so that stragglers at most double the work, or
    at once for all that were there when the closing was asked for (they are *due*).
    """

    def __init__(self, store: EpochStore) -> None:
        self._store = store

    def first_time(self, collection: int, *, only_due: bool) -> int | None:
        """The earliest generation of a late packet, or of one that is due."""
        here = LATE.c.collection == collection
        if only_due:
            here &= LATE.c.is_due
        with self._store.transaction() as connection:
            first: int | None = connection.execute(select(func.min(LATE.c.t0_ns)).where(here)).scalar()
        return first

    def load(self, collection: int, t0_ns: int, limit: int) -> list[StoredPacket]:
        """Late packets of one instant, up to a limit."""
        here = (LATE.c.collection == collection) & (LATE.c.t0_ns == t0_ns)
        query = select(PACKETS).join(LATE, LATE.c.packet == PACKETS.c.id).where(here).order_by(PACKETS.c.id)
        with self._store.transaction() as connection:
            return [StoredPacket(record.id, to_row(record)) for record in connection.execute(query.limit(limit))]

    def keep(
        self, state: CollectionState, span: WindowSpan, packets: Sequence[StoredPacket], solved: SolvedWindow
    ) -> int:
        """Store the answers of the late packets that a span was solved for; how many were found."""
        asked = {packet.id: packet for packet in packets if span.begin_ns <= packet.row[3] < span.end_ns}
        with self._store.transaction(writes=True) as connection:
            if not _is_there(connection, state):
                return 0
            # Those that another query unit has answered meanwhile, or that were removed, are late no more.
            late = list(_late_among(connection, list(asked)))
            answers = [(number, solved.answers.get(packet_key(asked[number].row))) for number in late]
            added = _keep_answers(connection, answers, solved) | {"late": -len(late)}
            for begin in range(0, len(late), CHUNK):
                connection.execute(delete(LATE).where(LATE.c.packet.in_(late[begin : begin + CHUNK])))
            changes: dict[str, object] = {key: COLLECTIONS.c[key] + count for key, count in added.items()}
            if not solved.may_be_exact:
                changes["may_be_exact"] = False
            connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == state.id).values(changes))
        return added["solved"]

    def set_aside(self, state: CollectionState, span: WindowSpan, reason: str, *, most: int) -> int:
        """Have late packets of a span without answers, for good; how many they are, so many at most."""
        here = (LATE.c.collection == state.id) & (LATE.c.t0_ns >= span.begin_ns) & (LATE.c.t0_ns < span.end_ns)
        packets = select(LATE.c.packet).where(here).order_by(LATE.c.t0_ns, LATE.c.packet).limit(most)
        with self._store.transaction(writes=True) as connection:
            if not _is_there(connection, state):
                return 0
            count = _set_packets_aside(connection, state, span, packets, reason)
            connection.execute(delete(LATE).where(LATE.c.packet.in_(packets)))
            changes = {"set_aside": COLLECTIONS.c.set_aside + count, "late": COLLECTIONS.c.late - count}
            connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == state.id).values(changes))
        return count


def _late_among(connection: Connection, packets: list[int]) -> Iterator[int]:
    for begin in range(0, len(packets), CHUNK):
        query = select(LATE.c.packet).where(LATE.c.packet.in_(packets[begin : begin + CHUNK]))
        yield from connection.execute(query).scalars().all()
