"""What a collection answers: the hops of a packet, of a span of time, and what became of packets at each node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from sqlalchemy import Row, Select, func, select

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import UsageError
from sojourn.server.sinks.solving import LONG
from sojourn.server.sinks.store import WORD, CollectionState, to_row
from sojourn.server.sinks.tables import ANSWERS, PACKETS, SET_ASIDE, SET_ASIDE_WINDOWS
from sojourn.store.epochs import EpochStore
from sojourn.tomography.delays.nodes import NodeDelays, node_delays
from sojourn.tomography.trace import PacketRow

MOST_NAMED = 100  # packets of one name: sequence numbers wrap
MOST_PACKETS = 200_000  # that one table of nodes rests on


# The delay at one hop, its bounds and its interval; stores from before there were intervals have none.
HOP_FIELDS = ("delay_ns", "low_ns", "high_ns", "likely_low_ns", "likely_high_ns")


@dataclass(frozen=True)
class AnsweredPacket:
    """A packet and its hops; none unless its status is solved. `reason` is why it was set aside."""

    id: int
    row: PacketRow
    status: str
    hops: list[dict[str, Any]]
    reason: str | None = None


def unpacked(data: bytes, path: bytes) -> Int64Array:
    """An answer as it is stored: rows of delays, least, most and (but in old ones) likely least and most."""
    return np.frombuffer(data, LONG).reshape(-1, len(path) // WORD.itemsize - 1)


class SinkAnswers:
    """Reads the answers of collections."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store

    def packets(self, state: CollectionState, origin: int, sequence: int) -> list[AnsweredPacket]:
        """The packets of one name, newest first."""
        named = (PACKETS.c.origin == origin) & (PACKETS.c.sequence == sequence)
        query = _joined(state).where(named).order_by(PACKETS.c.t0_ns.desc()).limit(MOST_NAMED)
        with self._store.transaction() as connection:
            return [_answered(state, record) for record in connection.execute(query)]

    def between(
        self, state: CollectionState, from_ns: int, to_ns: int, *, after: tuple[int, int] | None = None, limit: int
    ) -> list[AnsweredPacket]:
        """Packets generated in a range, solved or not, in order; those behind a (time, id) only, if it is given."""
        query = _joined(state).where((PACKETS.c.t0_ns >= from_ns) & (PACKETS.c.t0_ns <= to_ns))
        if after is not None:
            same_time = (PACKETS.c.t0_ns == after[0]) & (PACKETS.c.id > after[1])
            query = query.where((PACKETS.c.t0_ns > after[0]) | same_time)
        with self._store.transaction() as connection:
            records = connection.execute(query.order_by(PACKETS.c.t0_ns, PACKETS.c.id).limit(limit)).all()
        return [_answered(state, record) for record in records]

    def nodes(self, state: CollectionState, from_ns: int, to_ns: int) -> tuple[NodeDelays, int]:
        """What became of packets generated in a range at each node; and how many solved packets that rests on."""
        there = (PACKETS.c.t0_ns >= from_ns) & (PACKETS.c.t0_ns <= to_ns) & (func.length(ANSWERS.c.data) > 0)
        query = select(PACKETS.c.t0_ns, PACKETS.c.path, ANSWERS.c.data).join(ANSWERS, ANSWERS.c.packet == PACKETS.c.id)
        query = query.where((PACKETS.c.collection == state.id) & there).limit(MOST_PACKETS + 1)
        with self._store.transaction() as connection:
            records = connection.execute(query).all()
        if len(records) > MOST_PACKETS:
            raise UsageError(
                f"more than {MOST_PACKETS:,} packets lie in the range",
                where=f"{state.node}/{state.name}",
                action="ask for a shorter one",
            )
        visits = list(_visits(records))
        node, came, left = (
            np.concatenate([visit[k] for visit in visits]) if visits else np.zeros(0, np.int64) for k in range(3)
        )
        return node_delays(node, came, left), len(records)


def _visits(records: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Node, coming and leaving of every visit, packet by packet."""
    for record in records:
        delay = unpacked(record.data, record.path)[0]
        left = record.t0_ns + np.cumsum(delay)
        path = np.frombuffer(record.path, WORD).astype(np.int64)
        yield path[:-1], left - delay, left


def _joined(state: CollectionState) -> Select[Any]:
    return (
        select(PACKETS, ANSWERS.c.data, SET_ASIDE_WINDOWS.c.reason)
        .outerjoin(ANSWERS, ANSWERS.c.packet == PACKETS.c.id)
        .outerjoin(SET_ASIDE, SET_ASIDE.c.packet == PACKETS.c.id)
        .outerjoin(SET_ASIDE_WINDOWS, SET_ASIDE_WINDOWS.c.id == SET_ASIDE.c.window)
        .where(PACKETS.c.collection == state.id)
    )


def _answered(state: CollectionState, record: Row[Any]) -> AnsweredPacket:
    row = to_row(record)
    if record.reason is not None:
        return AnsweredPacket(record.id, row, "set aside", [], record.reason)
    if record.data is None:
        is_late = state.begin_ns is not None and record.t0_ns < state.begin_ns
        return AnsweredPacket(record.id, row, "late" if is_late else "open", [])
    if not record.data:
        return AnsweredPacket(record.id, row, "left out", [])
    hops = unpacked(record.data, record.path).T.tolist()
    return AnsweredPacket(record.id, row, "solved", [dict(zip_longest(HOP_FIELDS, hop)) for hop in hops])
