"""Late packets: those that came after the window of their time was solved, until they are answered as well.

A late packet is answered from a window of its own around it; what was answered before stays as it was told. That is
done after the next window of the collection, one stretch of late packets for each window so that stragglers at most
double the work, or at once for all that were there when the closing was asked for (they are *due*).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, delete, func, insert, select, update

from sojourn.epochs.store import EpochStore
from sojourn.server.sink_store import CHUNK, CollectionState, StoredPacket, is_there, packed, to_row
from sojourn.server.sink_tables import ANSWERS, COLLECTIONS, LATE, PACKETS
from sojourn.tomography.stretches import SolvedStretch, Stretch, packet_key

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
        self, state: CollectionState, stretch: Stretch, packets: Sequence[StoredPacket], solved: SolvedStretch
    ) -> int:
        """Store the answers of the late packets that a stretch was solved for; how many were found."""
        asked = {packet.id: packet for packet in packets if stretch.begin_ns <= packet.row[3] < stretch.end_ns}
        with self._store.transaction(writes=True) as connection:
            if not is_there(connection, state):
                return 0
            # Those that another query unit has answered meanwhile, or that were removed, are late no more.
            late = list(_late_among(connection, list(asked)))
            answers = [solved.answers.get(packet_key(asked[number].row)) for number in late]
            for begin in range(0, len(late), CHUNK):
                some = late[begin : begin + CHUNK]
                rows = [{"packet": n, "data": packed(a)} for n, a in zip(some, answers[begin:], strict=False)]
                connection.execute(insert(ANSWERS), rows)
                connection.execute(delete(LATE).where(LATE.c.packet.in_(some)))
            found = sum(answer is not None for answer in answers)
            added = {
                "late": -len(late),
                "windows": 1,
                "solved": found,
                "left_out": len(late) - found,
                "unsolved": 0 if solved.is_solved else 1,
            }
            changes: dict[str, object] = {key: COLLECTIONS.c[key] + count for key, count in added.items()}
            if not solved.may_be_exact:
                changes["may_be_exact"] = False
            connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == state.id).values(changes))
        return found


def _late_among(connection: Connection, packets: list[int]) -> Iterator[int]:
    for begin in range(0, len(packets), CHUNK):
        query = select(LATE.c.packet).where(LATE.c.packet.in_(packets[begin : begin + CHUNK]))
        yield from connection.execute(query).scalars().all()
