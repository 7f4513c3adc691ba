"""Epochs that arrive: which of them are new, and their rows.

Guarantee: of all epochs with one node, stream and number one is stored, ever, whoever sends it, how often, to which of
several query units, and whether it has been merged with others or removed since. Which numbers were stored is kept as
ranges (`database.SEQUENCES`), changed in the transaction that adds the epochs, by one writer of a node at a time: a
writer begins by noting that it heard of the node, and so has the node's row to itself until it ends. (A unique
constraint would not do: PostgreSQL has none across partitions, and a row that was merged has no number of its own.)

An epoch that its node dates more than `AHEAD_NS` after its arrival is placed so that it ends when it came, and by how
much it was moved is noted: it can be found, is forgotten in time, and its bytes stay as they came.

Cost: a statement that reads the ranges of a batch's streams, and one that changes them; a stream without gaps has one
range, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, case, delete, func, insert, or_, select, update

from sojourn.epochs.wire import EncodedEpoch
from sojourn.store.database import (
    AHEAD_NS,
    EPOCHS,
    NODES,
    POSTGRESQL,
    SEQUENCES,
    as_lists,
    as_written,
    given_columns,
    insert_missing,
)

Identity = tuple[str, str, int]
Span = tuple[int, int]  # the first and the last number of a range


class Status(StrEnum):
    """What became of an epoch that was offered."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"


def identity_of(epoch: EncodedEpoch) -> Identity:
    return epoch.node, epoch.stream, epoch.sequence


_SEEN = (
    update(NODES)
    .where(NODES.c.name == bindparam("node"))
    .values(
        last_seen_ns=bindparam("now"),
        newest_ns=func.coalesce(bindparam("newest", type_=BigInteger), NODES.c.newest_ns),
        sent_bytes=bindparam("sent", type_=BigInteger)
        + case((NODES.c.sent_day == bindparam("day"), func.coalesce(NODES.c.sent_bytes, 0)), else_=0),
        sent_day=bindparam("day"),
    )
)
DAY_NS = 86_400_000_000_000


def see_nodes(
    connection: Connection, newest: Mapping[str, int | None], now_ns: int, *, sent: Mapping[str, int] | None = None
) -> None:
    """Nodes are alive now, and date their newest measurement so; nobody else changes them until the transaction ends.

    What they `sent`, in bytes, is added to that of the day.

    Their rows are taken in the order of their names, so that two writers do not wait for each other in a circle. (Two
    that enter the same new nodes at once may; the database ends one of them, which is then tried again.)
    """
    more, day = sent or {}, now_ns // DAY_NS
    changes = [
        {"node": node, "now": now_ns, "newest": newest[node], "day": day, "sent": more.get(node, 0)}
        for node in sorted(newest)
    ]
    if connection.execute(_SEEN, changes).rowcount < len(changes):
        rows = [{"name": node, "first_seen_ns": now_ns, "last_seen_ns": now_ns} for node in sorted(newest)]
        insert_missing(connection, NODES, rows)
        # Those that another has entered meanwhile are not ours yet.
        connection.execute(_SEEN, changes)


def newest_times(epochs: Iterable[EncodedEpoch]) -> dict[str, int | None]:
    """The time of each node's latest measurement, by its own clock."""
    found: dict[str, int | None] = {}
    for epoch in epochs:
        newest = found.setdefault(epoch.node, epoch.last_ns)
        if newest is None or (epoch.last_ns is not None and epoch.last_ns > newest):
            found[epoch.node] = epoch.last_ns
    return found


def sent_bytes(epochs: Iterable[EncodedEpoch]) -> dict[str, int]:
    """How much each node sent."""
    found: dict[str, int] = {}
    for epoch in epochs:
        found[epoch.node] = found.get(epoch.node, 0) + len(epoch.data)
    return found


# Streams whose ranges one statement reads.
AT_ONCE = 50
_LARGEST = (1 << 63) - 1
_Place = tuple[str, str]  # node and stream
_PLACE = (
    (SEQUENCES.c.node == bindparam("of_node"))
    & (SEQUENCES.c.stream == bindparam("of_stream"))
    & (SEQUENCES.c.last_sequence == bindparam("ended"))
)
_EXTEND = update(SEQUENCES).where(_PLACE).values(first_sequence=bindparam("first"), last_sequence=bindparam("last"))
_ABSORB = delete(SEQUENCES).where(_PLACE)


def stored_among(connection: Connection, node: str, stream: str, numbers: Iterable[int]) -> set[int]:
    """Which of a stream's numbers were ever stored."""
    asked = set(numbers)
    place = node, stream
    return _held(_near(connection, {place: asked}).get(place, []), asked) if asked else set()


@cache
def _reading(dialect: str, paramstyle: Any, streams: int) -> tuple[str, tuple[str, ...]]:
    """The statement for so many streams' ranges near some numbers as the driver takes it, and its values' order."""
    c = SEQUENCES.c
    near = [
        (c.node == bindparam(f"node{i}"))
        & (c.stream == bindparam(f"stream{i}"))
        & (c.last_sequence >= bindparam(f"low{i}"))
        & (c.first_sequence <= bindparam(f"high{i}"))
        for i in range(streams)
    ]
    columns = c.node, c.stream, c.first_sequence, c.last_sequence
    return as_written(dialect, paramstyle, select(*columns).where(or_(*near)).order_by(c.last_sequence))


def _near(connection: Connection, numbers: Mapping[_Place, set[int]]) -> dict[_Place, list[Span]]:
    """The ranges of streams that hold or touch what lies from the least to the largest of some numbers, in order."""
    found: dict[_Place, list[Span]] = {}
    asked = list(numbers.items())
    for start in range(0, len(asked), AT_ONCE):
        values: dict[str, object] = {}
        some = asked[start : start + AT_ONCE]
        for i, ((node, stream), wanted) in enumerate(some):
            low, high = min(wanted) - 1, min(max(wanted) + 1, _LARGEST)
            values |= {f"node{i}": node, f"stream{i}": stream, f"low{i}": low, f"high{i}": high}
        text, order = _reading(connection.dialect.name, connection.dialect.paramstyle, len(some))
        given: Any = tuple(map(values.__getitem__, order)) if order else values
        for node, stream, first, last in connection.exec_driver_sql(text, given):
            found.setdefault((node, stream), []).append((first, last))
    return found


def _held(spans: Sequence[Span], numbers: set[int]) -> set[int]:
    """The numbers that lie in ranges, which are in order."""
    held: set[int] = set()
    place = 0
    for number in sorted(numbers):
        while place < len(spans) and spans[place][1] < number:
            place += 1
        if place < len(spans) and spans[place][0] <= number:
            held.add(number)
    return held


def joined(spans: Sequence[Span], numbers: Iterable[int]) -> list[Span]:
    """Ranges with some more numbers.

    >>> joined([(0, 4), (9, 9)], [5, 8, 20])
    [(0, 5), (8, 9), (20, 20)]
    """
    found: list[Span] = []
    for first, last in sorted([*spans, *((number, number) for number in numbers)]):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def claim(connection: Connection, numbers: Mapping[_Place, set[int]]) -> dict[_Place, set[int]]:
    """Take those of streams' numbers that were never stored; the caller has the nodes' rows, and stores them."""
    near = _near(connection, numbers)
    new: dict[_Place, set[int]] = {}
    gone: list[dict[str, object]] = []
    longer: list[dict[str, object]] = []
    added: list[dict[str, object]] = []
    for (node, stream), wanted in numbers.items():
        before = near.get((node, stream), [])
        new[node, stream] = fresh = wanted - _held(before, wanted)
        here, left = {"of_node": node, "of_stream": stream}, list(before)
        for first, last in joined(before, fresh) if fresh else ():
            inside = [span for span in left if first <= span[0] and span[1] <= last]
            left = [span for span in left if span not in inside]
            if not inside:
                added.append({"node": node, "stream": stream, "first_sequence": first, "last_sequence": last})
            elif inside != [(first, last)]:
                # One of those that become one grows, the others go before it does.
                longer.append({**here, "ended": inside[0][1], "first": first, "last": last})
                gone += ({**here, "ended": span[1]} for span in inside[1:])
    for statement, rows in ((_ABSORB, gone), (_EXTEND, longer), (insert(SEQUENCES), added)):
        if rows:
            connection.execute(statement, rows)
    return new


def placed(epoch: EncodedEpoch, now_ns: int) -> tuple[EncodedEpoch, int | None]:
    """An epoch with the times that it is found by, and by how much they were moved if its node dates it far ahead."""
    if epoch.first_ns is None or epoch.last_ns is None or epoch.last_ns - now_ns <= AHEAD_NS:
        return epoch, None
    shift = epoch.last_ns - now_ns
    return moved(epoch, shift), shift


def moved(epoch: EncodedEpoch, shift_ns: int | None) -> EncodedEpoch:
    """An epoch that was so much earlier than it says."""
    if shift_ns is None or epoch.first_ns is None or epoch.last_ns is None:
        return epoch
    return replace(epoch, first_ns=epoch.first_ns - shift_ns, last_ns=epoch.last_ns - shift_ns)


_COLUMNS = ("node", "stream", "sequence", "first_ns", "last_ns", "recorded", "data")
_BESIDE = ("received_ns", "size_bytes", "merged", "shifted_ns")
# Rows that one statement adds: whatever their number, there are three statements.
_TOGETHER = (100, 10, 1)


@cache
def _adding_lists(paramstyle: Any) -> str:
    """The statement that adds any number of epochs that come as a list for each column."""
    c, names = EPOCHS.c, [*_COLUMNS, *_BESIDE]
    addition = insert(EPOCHS).from_select(names, given_columns(EPOCHS, names))
    return as_lists(paramstyle, addition.returning(c.id, c.node, c.stream, c.sequence))


@cache
def _adding(dialect: str, paramstyle: Any, rows: int) -> tuple[str, tuple[str, ...]]:
    """The statement that adds so many epochs as the driver takes it, and its values' order.

    SQLAlchemy would go through the values of each row anew, which takes longer than the database does.
    """
    values: list[dict[str, Any]] = [
        {name: bindparam(f"{name}{i}") for name in (*_COLUMNS, *_BESIDE)} for i in range(rows)
    ]
    c = EPOCHS.c
    return as_written(dialect, paramstyle, insert(EPOCHS).values(values).returning(c.id, c.node, c.stream, c.sequence))


def _add(connection: Connection, rows: Sequence[tuple[object, ...]]) -> Iterator[tuple[int, str, str, int]]:
    """Add rows of epochs; the number, node, stream and sequence of each."""
    if connection.dialect.name == POSTGRESQL:
        lists = dict(zip((*_COLUMNS, *_BESIDE), map(list, zip(*rows, strict=True)), strict=True))
        yield from connection.exec_driver_sql(_adding_lists(connection.dialect.paramstyle), lists).all()
        return
    start = 0
    while left := len(rows) - start:
        together = next(count for count in _TOGETHER if count <= left)
        text, order = _adding(connection.dialect.name, connection.dialect.paramstyle, together)
        flat = [value for row in rows[start : start + together] for value in row]
        names = [f"{name}{i}" for i in range(together) for name in (*_COLUMNS, *_BESIDE)]
        given: Any = tuple(flat) if order == tuple(names) else _arranged(dict(zip(names, flat, strict=True)), order)
        yield from connection.exec_driver_sql(text, given).all()
        start += together


def _arranged(values: dict[str, object], order: tuple[str, ...]) -> object:
    """Values as a driver takes them: by place, or by name."""
    return tuple(map(values.__getitem__, order)) if order else values


def insert_new(connection: Connection, epochs: Sequence[EncodedEpoch], now_ns: int) -> dict[Identity, int]:
    """Add epochs whose identity is new, of several with one identity the first; the numbers of their rows.

    The caller has the rows of their nodes (`see_nodes`).
    """
    offered: dict[tuple[str, str], dict[int, EncodedEpoch]] = {}
    for epoch in epochs:
        offered.setdefault((epoch.node, epoch.stream), {}).setdefault(epoch.sequence, epoch)
    new = claim(connection, {place: set(numbered) for place, numbered in sorted(offered.items())})
    rows = [_row(offered[place][sequence], now_ns) for place, fresh in new.items() for sequence in sorted(fresh)]
    if not rows:
        return {}
    return {(node, stream, sequence): number for number, node, stream, sequence in _add(connection, rows)}


def _row(epoch: EncodedEpoch, now_ns: int) -> tuple[object, ...]:
    """The values of `_COLUMNS` and `_BESIDE`."""
    at, shift = placed(epoch, now_ns)
    same = at.node, at.stream, at.sequence, at.first_ns, at.last_ns, at.recorded, at.data
    return (*same, now_ns, len(epoch.data), 1, shift)


def statuses_of(
    connection: Connection, epochs: Sequence[EncodedEpoch], numbers: Mapping[Identity, int]
) -> list[Status]:
    """What became of each epoch, given those that were stored; what is there already is compared one at a time.

    What was merged or removed since cannot be compared: its number was stored, so it is taken for a copy.
    """
    if len(numbers) == len(epochs):  # every one was new, and none was offered twice
        return [Status.STORED] * len(epochs)
    statuses: list[Status] = []
    offered: dict[Identity, list[int]] = {}
    for index, epoch in enumerate(epochs):
        earlier = offered.setdefault(identity_of(epoch), [])
        earlier.append(index)
        if identity_of(epoch) not in numbers:
            statuses.append(Status.DUPLICATE)
        elif len(earlier) == 1:
            statuses.append(Status.STORED)
        else:
            statuses.append(Status.DUPLICATE if epochs[earlier[0]].data == epoch.data else Status.CONFLICT)
    others = offered.keys() - numbers.keys()
    for node, stream in sorted({place[:2] for place in others}):
        sequences = [place[2] for place in others if place[:2] == (node, stream)]
        here = (EPOCHS.c.node == node) & (EPOCHS.c.stream == stream) & (EPOCHS.c.merged == 1)
        query = select(EPOCHS.c.sequence, EPOCHS.c.data).where(here & EPOCHS.c.sequence.in_(sequences))
        for sequence, data in connection.execute(query, execution_options={"yield_per": 1}):
            for index in offered[node, stream, sequence]:
                if epochs[index].data != data:
                    statuses[index] = Status.CONFLICT
    return statuses
