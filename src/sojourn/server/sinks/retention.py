"""Old packets of collections: removed so long after they came, a few at a time, and that is logged.

When each packet came is not stored. Their numbers rise as they come, so it is noted now and then up to which number
they had come: a packet is kept for the time given, and up to `LOOK_SECONDS` longer. A sink's own clock, which may start
anywhere, has no part in it.

Guarantee: a packet goes with its answers in one transaction, which also takes it from its collection's counters; a
collection goes with its last packet. Transactions are of `CHUNK` packets with pauses between them, so that sinks and
windows have their turn. Memory: one chunk.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from sojourn.core.errors import SojournError
from sojourn.core.units import format_time, plural
from sojourn.server.sinks.tables import ANSWERS, COLLECTIONS, LATE, PACKETS, RECEIVED, SET_ASIDE, SET_ASIDE_WINDOWS
from sojourn.server.upkeep import Periodic
from sojourn.store.epochs import EpochStore

LOOK_SECONDS = 3600.0
CHUNK = 500
PAUSE_SECONDS = 0.02
_LOG = logging.getLogger("sojourn.retention")


class SinkRetention(Periodic):
    """Keeps packets of collections for a time. Without `keep_ns` times are noted, no more."""

    def __init__(
        self,
        store: EpochStore,
        keep_ns: int | None,
        *,
        forget: Callable[[int], None],
        clock: Callable[[], int | None] = time.time_ns,
        tell: Callable[[str], None] = _LOG.info,
    ) -> None:
        self._store, self._keep_ns = store, keep_ns
        self._forget, self._tell, self._clock = forget, tell, clock
        seconds = LOOK_SECONDS if keep_ns is None else min(LOOK_SECONDS, max(1.0, keep_ns / 1e10))
        super().__init__("sojourn-sink-retention", seconds)

    def work(self) -> None:
        """Look at what has come, and remove what is too old."""
        try:
            # What has come is noted by the clock as it is; nothing is removed while that is in doubt.
            self.look(time.time_ns(), may_remove=self._keep_ns is not None and self._clock() is not None)
        except (SojournError, SQLAlchemyError) as error:
            self._tell(f"warning: old packets are not removed: {error}")

    def look(self, now_ns: int, *, may_remove: bool = True) -> int:
        """Note what has come until now, and remove what is too old; how many packets that were."""
        self._note(now_ns)
        if self._keep_ns is None or not may_remove:
            return 0
        before_ns = now_ns - self._keep_ns
        with self._store.transaction() as connection:
            old = select(func.max(RECEIVED.c.last_packet)).where(RECEIVED.c.received_ns <= before_ns)
            last: int | None = connection.execute(old).scalar()
        removed: Counter[str] = Counter()
        while last is not None and not self._stopping.is_set():
            packets, gone, is_all = self._remove_some(last)
            removed += packets
            for collection in gone:
                self._forget(collection)
            if is_all:
                break
            self._stopping.wait(PAUSE_SECONDS)
        for name, count in sorted(removed.items()):
            self._tell(f"removed {plural(count, 'packet')} of {name} that came before {format_time(before_ns)}")
        return removed.total()

    def _note(self, now_ns: int) -> None:
        with self._store.transaction(writes=True) as connection:
            newest = connection.execute(select(func.max(PACKETS.c.id))).scalar() or 0
            noted = connection.execute(select(func.max(RECEIVED.c.last_packet))).scalar() or 0
            if newest > noted:
                connection.execute(delete(RECEIVED).where(RECEIVED.c.received_ns == now_ns))
                connection.execute(insert(RECEIVED).values(received_ns=now_ns, last_packet=newest))

    def _remove_some(self, last: int) -> tuple[Counter[str], list[int], bool]:
        """Remove the first packets up to a number; with the last of them goes the note of it.

        Gives packets by their collection, the collections gone with them, and whether that was all. Numbers may be
        given again once all packets are gone, so a note must not outlive its packets.
        """
        with self._store.transaction(writes=True) as connection:
            first = select(PACKETS.c.id, PACKETS.c.collection).where(PACKETS.c.id <= last)
            records = connection.execute(first.order_by(PACKETS.c.id).limit(CHUNK + 1)).all()
            is_all, records = len(records) <= CHUNK, records[:CHUNK]
            numbers = [record.id for record in records]
            # No other writer has the collections' rows meanwhile.
            theirs = COLLECTIONS.c.id.in_(sorted({record.collection for record in records}))
            locked = select(COLLECTIONS).where(theirs).order_by(COLLECTIONS.c.id).with_for_update()
            names = {row.id: f"{row.node}/{row.name}" for row in connection.execute(locked)}
            gone = _uncount(connection, numbers)
            connection.execute(delete(ANSWERS).where(ANSWERS.c.packet.in_(numbers)))
            connection.execute(delete(LATE).where(LATE.c.packet.in_(numbers)))
            _take_from_windows(connection, numbers)
            connection.execute(delete(PACKETS).where(PACKETS.c.id.in_(numbers)))
            if is_all:
                connection.execute(delete(RECEIVED).where(RECEIVED.c.last_packet <= last))
        return Counter(names[record.collection] for record in records), gone, is_all


def _uncount(connection: Connection, numbers: list[int]) -> list[int]:
    """Take packets from their collections' counters; the collections that have none left are removed and given."""
    size = func.length(ANSWERS.c.data)
    query = (
        select(
            PACKETS.c.collection,
            func.count().label("packets"),
            func.count().filter(size > 0).label("solved"),
            func.count().filter(size == 0).label("left_out"),
            func.count(LATE.c.packet).label("late"),
            func.count(SET_ASIDE.c.packet).label("set_aside"),
        )
        .outerjoin(ANSWERS, ANSWERS.c.packet == PACKETS.c.id)
        .outerjoin(LATE, LATE.c.packet == PACKETS.c.id)
        .outerjoin(SET_ASIDE, SET_ASIDE.c.packet == PACKETS.c.id)
        .where(PACKETS.c.id.in_(numbers))
        .group_by(PACKETS.c.collection)
    )
    for counts in connection.execute(query).mappings().all():
        names = ("packets", "solved", "left_out", "late", "set_aside")
        changes = {name: COLLECTIONS.c[name] - counts[name] for name in names}
        connection.execute(update(COLLECTIONS).where(COLLECTIONS.c.id == counts["collection"]).values(changes))
    empty = COLLECTIONS.c.packets == 0
    gone = list(connection.execute(select(COLLECTIONS.c.id).where(empty)).scalars().all())
    connection.execute(delete(COLLECTIONS).where(COLLECTIONS.c.id.in_(gone)))
    return gone


def _take_from_windows(connection: Connection, numbers: list[int]) -> None:
    """Take packets from the windows that were set aside; those without any left are removed."""
    here, windows = SET_ASIDE.c.packet.in_(numbers), SET_ASIDE_WINDOWS.c
    counts = connection.execute(select(SET_ASIDE.c.window, func.count()).where(here).group_by(SET_ASIDE.c.window)).all()
    for window, count in counts:
        changes = {"packets": windows.packets - count}
        connection.execute(update(SET_ASIDE_WINDOWS).where(windows.id == window).values(changes))
    connection.execute(delete(SET_ASIDE).where(here))
    touched = windows.id.in_([window for window, _count in counts])
    connection.execute(delete(SET_ASIDE_WINDOWS).where(touched & (windows.packets == 0)))
