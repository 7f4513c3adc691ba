"""Late packets: those that came after the window of their time was solved, until they are answered as well.

A late packet is answered from a window of its own around it; what was answered before stays as it was told. That is
done after the next window of the collection, one span of late packets for each window so that stragglers at most
double the work, or at once for all that were there when the closing was asked for (they are *due*).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, delete, func, select, update

from sojourn.server.sinks.solving import SolvedWindow
from sojourn.server.sinks.store import (
    CHUNK,
    CollectionState,
    StoredPacket,
    is_there,
    keep_answers,
    set_packets_aside,
    to_row,
)
from sojourn.server.sinks.tables import COLLECTIONS, LATE, PACKETS
from sojourn.store.epochs import EpochStore
from sojourn.tomography.delays.streaming import WindowSpan, packet_key

__all__ = ["LatePackets"]


class LatePackets:
    """The late packets of collections."""

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
            if not is_there(connection, state):
                return 0
            # Those that another query unit has answered meanwhile, or that were removed, are late no more.
            late = list(_late_among(connection, list(asked)))
            answers = [(number, solved.answers.get(packet_key(asked[number].row))) for number in late]
            added = keep_answers(connection, answers, solved) | {"late": -len(late)}
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
            if not is_there(connection, state):
                return 0
            count = set_packets_aside(connection, state, span, packets, reason)
            connection.execute(delete(LATE).where(LATE.c.packet.in_(packets)))
            changes = {"set_aside": COLLECTIONS.c.set_aside + count, "late": COLLECTIONS.c.late - count}
            connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == state.id).values(changes))
        return count


def _late_among(connection: Connection, packets: list[int]) -> Iterator[int]:
    for begin in range(0, len(packets), CHUNK):
        query = select(LATE.c.packet).where(LATE.c.packet.in_(packets[begin : begin + CHUNK]))
        yield from connection.execute(query).scalars().all()
