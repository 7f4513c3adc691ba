"""Which epochs a query unit called stored: of each stream the latest numbers without a gap, in memory and on disk.

A query unit that was restored from a backup lacks some of them, and is told of all; numbers before a gap (epochs that
were merged here have one number, a number may be skipped after a kill) are forgotten, so that none is named that was
never sent. Cost: a row a stream, written with the removal of what was acknowledged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

TABLE = (
    "CREATE TABLE IF NOT EXISTS acknowledged (stream TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL);"
)
Span = tuple[int, int]  # the first and the last number


def joined(earlier: Span | None, later: Span) -> Span:
    """Both, if they overlap or touch; else the one with the larger numbers.

    >>> joined((0, 4), (5, 7)), joined((0, 4), (6, 7)), joined((6, 9), (2, 3)), joined(None, (1, 1))
    ((0, 7), (6, 7), (6, 9), (1, 1))
    """
    if earlier is None:
        return later
    if later[0] <= earlier[1] + 1 and earlier[0] <= later[1] + 1:
        return min(earlier[0], later[0]), max(earlier[1], later[1])
    return max(earlier, later)


class Acknowledged:
    """The numbers of all streams; what memory has and the disk not is written with `write`."""

    def __init__(self) -> None:
        self._spans: dict[str, Span] = {}
        self._unwritten: set[str] = set()

    def add(self, numbers: Iterable[tuple[str, int]]) -> None:
        """These were acknowledged, by stream and in the order of their numbers."""
        for stream, number in numbers:
            self._spans[stream] = joined(self._spans.get(stream), (number, number))
            self._unwritten.add(stream)

    def write(self, connection: sqlite3.Connection) -> None:
        rows = [(stream, *self.of(connection, stream)) for stream in sorted(self._unwritten)]
        connection.executemany("INSERT OR REPLACE INTO acknowledged VALUES (?, ?, ?)", rows)
        self._unwritten.clear()

    def of(self, connection: sqlite3.Connection, stream: str) -> Span:
        """A stream's latest numbers; (0, -1) if there are none."""
        row = connection.execute("SELECT first, last FROM acknowledged WHERE stream = ?", (stream,)).fetchone()
        known = self._spans.get(stream)
        found: Span | None = None if row is None else (row[0], row[1])
        if known is not None:
            self._spans[stream] = found = joined(found, known)
        return found or (0, -1)
