"""Epochs that arrive: which of them are new, and their rows.

Guarantee: of all epochs with one node, stream and number one is stored, ever, whoever sends it, how often, to which of
several query units, and whether it has been merged with others or removed since. Which numbers were stored is kept as
ranges (`database.SEQUENCES`), changed in the transaction that adds the epochs, by one writer of a node at a time: a
writer begins by noting that it heard of the node, and so has the node's row to itself until it ends. (A unique
constraint would not do: PostgreSQL has none across partitions, and a row that was merged has no number of its own.)

An epoch that its node dates more than `AHEAD_NS` after its arrival is placed so that it ends when it came, and by how
much it was moved is noted: it can be found, is forgotten in time, and its bytes stay as they came.

Cost: two short statements for each stream of a batch; a stream without gaps has one range, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from sqlalchemy import BigInteger, Connection, bindparam, delete, func, insert, select, update

from sojourn.epochs.wire import EncodedEpoch
from sojourn.store.database import AHEAD_NS, EPOCHS, NODES, SEQUENCES, insert_missing

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
        last_seen_ns=bindparam("now"), newest_ns=func.coalesce(bindparam("newest", type_=BigInteger), NODES.c.newest_ns)
    )
)


def see_nodes(connection: Connection, newest: Mapping[str, int | None], now_ns: int) -> None:
    """Nodes are alive now, and date their newest measurement so; nobody else changes them until the transaction ends.

    Their rows are taken in the order of their names, so that two writers do not wait for each other in a circle. (Two
    that enter the same new nodes at once may; the database ends one of them, which is then tried again.)
    """
    changes = [{"node": node, "now": now_ns, "newest": newest[node]} for node in sorted(newest)]
    if connection.execute(_SEEN, changes).rowcount < len(changes):
        rows = [{"name": node, "first_seen_ns": now_ns, "last_seen_ns": now_ns} for node in sorted(newest)]
        insert_missing(connection, NODES, rows)
        # Those that another has entered meanwhile are not ours yet.
        connection.execute(_SEEN, changes)


def newest_times(epochs: Iterable[EncodedEpoch]) -> dict[str, int | None]:
    """The time of each node's latest measurement, by its own clock."""
    found: dict[str, int | None] = {}
    for epoch in epochs:
        times = [time for time in (found.get(epoch.node), epoch.last_ns) if time is not None]
        found[epoch.node] = max(times, default=None)
    return found


# The range that holds or ends before the least number, and those that begin up to one behind the largest.
_OF_STREAM = (SEQUENCES.c.node == bindparam("node")) & (SEQUENCES.c.stream == bindparam("stream"))
_BEFORE = select(func.max(SEQUENCES.c.first_sequence)).where(
    _OF_STREAM & (SEQUENCES.c.first_sequence <= bindparam("low"))
)
_NEAR = (
    select(SEQUENCES.c.first_sequence, SEQUENCES.c.last_sequence)
    .where(_OF_STREAM)
    .where(SEQUENCES.c.first_sequence >= func.coalesce(_BEFORE.scalar_subquery(), bindparam("low")))
    .where(SEQUENCES.c.first_sequence <= bindparam("high"))
    .order_by(SEQUENCES.c.first_sequence)
)
_PLACE = (
    (SEQUENCES.c.node == bindparam("of_node"))
    & (SEQUENCES.c.stream == bindparam("of_stream"))
    & (SEQUENCES.c.first_sequence == bindparam("first"))
)
_EXTEND = update(SEQUENCES).where(_PLACE).values(last_sequence=bindparam("last"))
_ABSORB = delete(SEQUENCES).where(_PLACE)
_LARGEST = (1 << 63) - 1


def stored_among(connection: Connection, node: str, stream: str, numbers: Iterable[int]) -> set[int]:
    """Which of a stream's numbers were ever stored."""
    asked = set(numbers)
    return _held(_near(connection, node, stream, asked), asked) if asked else set()


def _near(connection: Connection, node: str, stream: str, numbers: set[int]) -> list[Span]:
    where = {"node": node, "stream": stream, "low": min(numbers), "high": min(max(numbers) + 1, _LARGEST)}
    return [(first, last) for first, last in connection.execute(_NEAR, where)]


def _held(spans: Sequence[Span], numbers: set[int]) -> set[int]:
    """The numbers that lie in ranges; both are short, or the numbers are in order."""
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


def claim(connection: Connection, node: str, stream: str, numbers: set[int]) -> set[int]:
    """Take those of a stream's numbers that were never stored; the caller has the node's row, and stores them."""
    near = _near(connection, node, stream, numbers)
    new = numbers - _held(near, numbers)
    if not new:
        return new
    before, after = dict(near), dict(joined(near, new))
    here = {"of_node": node, "of_stream": stream}
    if gone := [{**here, "first": first} for first in before.keys() - after.keys()]:
        connection.execute(_ABSORB, gone)
    if longer := [
        {**here, "first": f, "last": after[f]} for f in before.keys() & after.keys() if after[f] != before[f]
    ]:
        connection.execute(_EXTEND, longer)
    if added := after.keys() - before.keys():
        names = {"node": node, "stream": stream}
        rows = [{**names, "first_sequence": first, "last_sequence": after[first]} for first in sorted(added)]
        connection.execute(insert(SEQUENCES), rows)
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


_ADD = insert(EPOCHS).returning(EPOCHS.c.id, EPOCHS.c.node, EPOCHS.c.stream, EPOCHS.c.sequence)


def insert_new(connection: Connection, epochs: Sequence[EncodedEpoch], now_ns: int) -> dict[Identity, int]:
    """Add epochs whose identity is new, of several with one identity the first; the numbers of their rows.

    The caller has the rows of their nodes (`see_nodes`).
    """
    offered: dict[tuple[str, str], dict[int, EncodedEpoch]] = {}
    for epoch in epochs:
        offered.setdefault((epoch.node, epoch.stream), {}).setdefault(epoch.sequence, epoch)
    rows: list[dict[str, object]] = []
    for (node, stream), numbered in sorted(offered.items()):
        new = claim(connection, node, stream, set(numbered))
        rows += [_row(numbered[sequence], now_ns) for sequence in sorted(new)]
    if not rows:
        return {}
    made = connection.execute(_ADD, rows)
    return {(node, stream, sequence): number for number, node, stream, sequence in made}


def _row(epoch: EncodedEpoch, now_ns: int) -> dict[str, object]:
    at, shift = placed(epoch, now_ns)
    same = ("node", "stream", "sequence", "first_ns", "last_ns", "recorded", "data")
    beside = {"received_ns": now_ns, "size_bytes": len(epoch.data), "merged": 1, "shifted_ns": shift}
    return {**{name: getattr(at, name) for name in same}, **beside}


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
