"""Epochs that nodes were told are stored, and that are not: what a backup that was restored has lost.

A node says with each stream that it announces up to which number it was told that epochs are stored. Numbers behind the
last that the store ever had (`database.SEQUENCES`, which neither retention nor merging changes) were stored after the
backup was made. They are noted and reported; what the node still has of them it sends again, as the answer tells it
which number the store has last. So a store that was restored is recognised, whichever tool restored it.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from sojourn.store.arrivals import Span
from sojourn.store.database import LOST, SEQUENCES


def note_acknowledged(connection: Connection, node: str, stream: str, acknowledged: int, now_ns: int) -> Span | None:
    """A node says up to which number it was told that a stream is stored; the numbers that are not, if they are news.

    The caller has the node's row.
    """
    here = (SEQUENCES.c.node == node) & (SEQUENCES.c.stream == stream)
    newest = select(SEQUENCES.c.last_sequence).where(here).order_by(SEQUENCES.c.last_sequence.desc()).limit(1)
    last = connection.execute(newest).scalar()
    first = 0 if last is None else int(last) + 1
    if acknowledged < first:
        return None
    lost = (LOST.c.node == node) & (LOST.c.stream == stream) & (LOST.c.first_sequence >= first)
    if connection.execute(select(LOST.c.last_sequence).where(lost)).scalar() == acknowledged:
        return None
    connection.execute(delete(LOST).where(lost))
    row = {"node": node, "stream": stream, "first_sequence": first, "last_sequence": acknowledged}
    connection.execute(insert(LOST).values(**row, found_ns=now_ns))
    return first, acknowledged


def losses(connection: Connection) -> dict[tuple[str, str], list[Span]]:
    """The numbers that nodes were told are stored and that are not (any more), without those that came again since."""
    found: dict[tuple[str, str], list[Span]] = {}
    for row in connection.execute(select(LOST).order_by(LOST.c.node, LOST.c.stream, LOST.c.first_sequence)):
        here = (SEQUENCES.c.node == row.node) & (SEQUENCES.c.stream == row.stream)
        near = (SEQUENCES.c.last_sequence >= row.first_sequence) & (SEQUENCES.c.first_sequence <= row.last_sequence)
        spans = select(SEQUENCES.c.first_sequence, SEQUENCES.c.last_sequence).where(here & near)
        stored = [(first, last) for first, last in connection.execute(spans.order_by(SEQUENCES.c.first_sequence))]
        left = _without((row.first_sequence, row.last_sequence), stored)
        if left:
            found.setdefault((row.node, row.stream), []).extend(left)
    return found


def _without(span: Span, stored: list[Span]) -> list[Span]:
    """A range without others, which are in order.

    >>> _without((5, 20), [(0, 6), (9, 9), (15, 30)])
    [(7, 8), (10, 14)]
    """
    left: list[Span] = []
    begin, end = span
    for first, last in stored:
        if first > begin:
            left.append((begin, min(first - 1, end)))
        begin = max(begin, last + 1)
    return [*left, (begin, end)] if begin <= end else left
