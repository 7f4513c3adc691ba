"""Epochs that nodes were told are stored, and that are not: what a backup that was restored has lost.

A node says with each stream that it announces which numbers it was told are stored, as far as they have no gap. Those
that the store never had (`database.SEQUENCES`, which neither retention nor merging changes) came after its backup was
made. They are noted and reported; what the node still has it sends as always, and what comes again is not lost. So a
store that was restored is recognised, whichever tool restored it, and whatever came first afterwards.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from sojourn.store.arrivals import Span
from sojourn.store.database import LOST, SEQUENCES


def note_acknowledged(connection: Connection, node: str, stream: str, told: Span, now_ns: int) -> list[Span]:
    """A node was told that these numbers of a stream are stored; those that are not, if they are news."""
    found: list[Span] = []
    for first, last in _missing(connection, node, stream, told):
        here = (LOST.c.node == node) & (LOST.c.stream == stream)
        known = here & (LOST.c.first_sequence <= first) & (LOST.c.last_sequence >= last)
        if connection.execute(select(LOST.c.first_sequence).where(known)).first() is None:
            connection.execute(delete(LOST).where(here & LOST.c.first_sequence.between(first, last)))
            row = {"node": node, "stream": stream, "first_sequence": first, "last_sequence": last}
            connection.execute(insert(LOST).values(**row, found_ns=now_ns))
            found.append((first, last))
    return found


def _missing(connection: Connection, node: str, stream: str, told: Span) -> list[Span]:
    """The numbers among these that were never stored."""
    here = (SEQUENCES.c.node == node) & (SEQUENCES.c.stream == stream)
    near = (SEQUENCES.c.last_sequence >= told[0]) & (SEQUENCES.c.first_sequence <= told[1])
    spans = select(SEQUENCES.c.first_sequence, SEQUENCES.c.last_sequence).where(here & near)
    rows = connection.execute(spans.order_by(SEQUENCES.c.last_sequence))
    return _without(told, [(first, last) for first, last in rows])


def losses(connection: Connection) -> dict[tuple[str, str], list[Span]]:
    """The numbers that nodes were told are stored and that are not, without those that came again since."""
    found: dict[tuple[str, str], list[Span]] = {}
    for row in connection.execute(select(LOST).order_by(LOST.c.node, LOST.c.stream, LOST.c.first_sequence)).all():
        left = _missing(connection, row.node, row.stream, (row.first_sequence, row.last_sequence))
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
