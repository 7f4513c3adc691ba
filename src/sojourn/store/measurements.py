"""Measurements of segments: what probers send, and what routers' epochs say, kept and asked for together.

A probed interval is known by its node, segment, class, method and start: the same row again is a duplicate, another one
a conflict, and neither changes what is there. What LDAs inside routers measured is not kept twice: it is read from
their epochs when asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError

from sojourn.core.errors import UsageError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch
from sojourn.estimation.buckets.queries import NO_LIMIT_BYTES
from sojourn.mplane.measurements import Segment, SegmentKind, SegmentMeasurement, from_row, measured_by, to_line
from sojourn.mplane.router.epochs import RouterStream, segment_measurements
from sojourn.store.arrivals import Status
from sojourn.store.database import AHEAD_NS, EPOCHS, NAME, NUMBER
from sojourn.store.epochs import SOUND, EpochStore

# Rows that one answer may hold; epochs that it may rest on.
MAX_ROWS = 20_000
MAX_EPOCHS = 40_000
_METADATA = MetaData()

MEASUREMENTS = Table(
    "segment_measurements",
    _METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("node", NAME, nullable=False),
    Column("segment", Text, nullable=False),
    Column("dscp", Integer, nullable=False),
    Column("method", String(200), nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("row", Text, nullable=False),
    Column("received_ns", BigInteger),  # null in rows of Sojourn 0.1.0
    UniqueConstraint("node", "segment", "dscp", "method", "start_ns", name="measurement_identity"),
    Index("measurements_by_time", "start_ns"),
)


class MeasurementStore:
    """The measurements of one store."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store

    def add(self, measurements: Sequence[SegmentMeasurement], *, now_ns: int | None = None) -> list[Status]:
        """Store rows in one transaction; what became of each."""
        now = time.time_ns() if now_ns is None else now_ns
        with self._store.transaction(writes=True) as connection:
            return [self._add_one(connection, one, now) for one in measurements]

    def _add_one(self, connection: Connection, one: SegmentMeasurement, now_ns: int) -> Status:
        identity: dict[str, object] = {
            "node": measured_by(one.segment),
            "segment": f"{one.segment.kind} {json.dumps(one.segment.hops, ensure_ascii=False)}",
            "dscp": one.dscp,
            "method": one.method,
            "start_ns": one.start_ns,
        }
        text = to_line(one)
        beside: dict[str, object] = {"end_ns": one.end_ns, "row": text, "received_ns": now_ns}
        try:
            with connection.begin_nested():
                connection.execute(insert(MEASUREMENTS).values(**identity, **beside))
        except IntegrityError:
            here = [MEASUREMENTS.c[name] == value for name, value in identity.items()]
            stored = connection.execute(select(MEASUREMENTS.c.row).where(*here)).scalar()
            return Status.DUPLICATE if stored == text else Status.CONFLICT
        return Status.STORED

    def between(
        self,
        from_ns: int,
        to_ns: int,
        *,
        node: str | None = None,
        segment: str | None = None,
        most_bytes: int = NO_LIMIT_BYTES,
    ) -> list[SegmentMeasurement]:
        """The intervals that begin in ``from_ns … to_ns``, in time order; of a node, or of a segment by its text.

        Routers' epochs that take more than `most_bytes` together once they are decoded are refused before that.
        """
        found = [*self._probed(from_ns, to_ns, node), *self._inside_routers(from_ns, to_ns, node, most_bytes)]
        chosen = [one for one in found if segment is None or str(one.segment) == segment]
        if len(chosen) > MAX_ROWS:
            raise _too_many(f"{len(chosen)} measurements")
        return sorted(chosen, key=lambda one: (one.start_ns, one.segment, one.dscp))

    def measured(self, since_ns: int) -> dict[Segment, int]:
        """The segments that were measured since a time, and until when each was."""
        probed = select(MEASUREMENTS.c.segment, func.max(MEASUREMENTS.c.end_ns).label("last_ns"))
        probed = probed.where(MEASUREMENTS.c.start_ns >= since_ns).group_by(MEASUREMENTS.c.segment)
        inside = select(EPOCHS.c.node, EPOCHS.c.stream, func.max(EPOCHS.c.sequence).label("last"))
        inside = inside.where(EPOCHS.c.stream.like("router:%")).group_by(EPOCHS.c.node, EPOCHS.c.stream)
        found: dict[Segment, int] = {}
        with self._store.transaction() as connection:
            for text, last_ns in connection.execute(probed.limit(MAX_ROWS)):
                kind, _, hops = text.partition(" [")
                found[Segment(SegmentKind(kind), tuple(json.loads(f"[{hops}")))] = last_ns
            for router, name, last in connection.execute(inside.limit(MAX_ROWS)):
                stream = RouterStream.parse(name)
                if stream is not None and (last_ns := (last + 1) * stream.interval_ns) >= since_ns:
                    segment = Segment.inside(stream.ingress, router, stream.egress)
                    found[segment] = max(last_ns, found.get(segment, 0))
        return found

    def _probed(self, from_ns: int, to_ns: int, node: str | None) -> list[SegmentMeasurement]:
        query = select(MEASUREMENTS.c.row).where(MEASUREMENTS.c.start_ns.between(from_ns, to_ns)).limit(MAX_ROWS + 1)
        if node is not None:
            query = query.where(MEASUREMENTS.c.node == node)
        with self._store.transaction() as connection:
            rows = connection.execute(query).scalars().all()
        if len(rows) > MAX_ROWS:
            raise _too_many(f"more than {MAX_ROWS} measurements")
        return [from_row(json.loads(text)) for text in rows]

    def _inside_routers(self, from_ns: int, to_ns: int, node: str | None, most_bytes: int) -> list[SegmentMeasurement]:
        epochs: list[Epoch] = []
        count = decoded = 0

        def admit(epoch: EncodedEpoch) -> None:
            nonlocal count, decoded
            count, decoded = count + 1, decoded + epoch.decoded_bytes
            if decoded > most_bytes:
                raise _too_many(f"epochs of more than {most_bytes} bytes of counters")
            if count > MAX_EPOCHS:
                raise _too_many(f"more than {MAX_EPOCHS} epochs")

        streams = select(EPOCHS.c.node, EPOCHS.c.stream).where(EPOCHS.c.stream.like("router:%")).distinct()
        if node is not None:
            streams = streams.where(EPOCHS.c.node == node)
        with self._store.transaction() as connection:
            of_routers = connection.execute(streams).all()
        for owner, name in of_routers:
            stream = RouterStream.parse(name)
            if stream is None:
                continue
            first, last = -(-from_ns // stream.interval_ns), to_ns // stream.interval_ns
            wanted = (EPOCHS.c.node == owner) & (EPOCHS.c.stream == name) & EPOCHS.c.sequence.between(first, last)
            epochs += self._store.decoded(select(EPOCHS.c.id, EPOCHS.c.data).where(wanted & SOUND), admit)
        return segment_measurements(epochs)

    def remove_some_before(self, time_ns: int, *, limit: int) -> int:
        """Forget at most some of the probed intervals that ended before a time, the first to begin; how many.

        One that its node dates far ahead of its arrival is as old as that.
        """
        ended = (MEASUREMENTS.c.start_ns < time_ns) & (MEASUREMENTS.c.end_ns < time_ns)
        is_ahead = MEASUREMENTS.c.end_ns - AHEAD_NS > MEASUREMENTS.c.received_ns
        old = ended | (is_ahead & (MEASUREMENTS.c.received_ns < time_ns))
        first = select(MEASUREMENTS.c.id).where(old).order_by(MEASUREMENTS.c.start_ns).limit(limit)
        with self._store.transaction(writes=True) as connection:
            return connection.execute(delete(MEASUREMENTS).where(MEASUREMENTS.c.id.in_(first))).rowcount


def _too_many(what: str) -> UsageError:
    return UsageError(f"{what} lie in the range", where="segments", action="ask for a shorter one, or for one node")
