"""Joining two streams of packets: which packet of one observation point is which packet of the other, in one pass.

Both points' packets are taken in the order of time, whichever is next, and each either finds its packet among those
that wait at the other side or waits itself. What waits longer than ``max_delay`` leaves unmatched.

Guarantee: packets pair only with packets of the same 64-bit identity, each at most once, and the older copy first; no
pair is further apart than ``max_delay``. The result depends on the packets and their order alone, not on how they were
cut into batches.

**Copies.** Identical packets pair only within the window of usual delays (``low_ns`` … ``high_ns``, both directions'),
so that after a loss the next copy does not take the lost one's place. A copy that follows another of its point within
``duplicate_ns`` (a mirror port that sees a packet enter and leave) is a duplicate if nothing at the other point pairs
with it; where a point is known to mirror (``mirrored``), it is one at once. So is an unmatched copy at the receiver
that follows a pair of the same packet within `LATE_COPY_NS`, or that its sent packet could still have become.

Memory: one row of 72 bytes and two words for each packet that waits, 48 bytes for each that was matched within
`LATE_COPY_NS`: O(packets in flight), whatever the length of the captures, and `MOST_ROWS` of either at most; where
these do not suffice the oldest leave early, and those that wait are counted (``crowded``). Time: O(1) per packet, about
50 ns where that fits the cache; open addressing with backward-shift deletion, and a list of the copies of an identity,
so that a flood of one packet costs no more than others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.matching.join_table import (
    ALONE,
    BASE_SENT,
    CROWDED,
    HUNGRY,
    IS_RECEIVER,
    LATE,
    MARKS,
    NEXT_SENT,
    NOW,
    PAIRS,
    RECEIVER,
    RECENT,
    RECENT_FULL,
    ROW,
    ROWS_FULL,
    SENDER,
    SHADOW,
    SHADOWS_GOT,
    SHADOWS_SENT,
    SURE_SENT,
    Columns,
    Table,
    flush,
    free_rows,
    join_packets,
    spread,
    spread_recent,
)

NO_LIMIT_NS = 1 << 62
MOST_ROWS = 1 << 21
ALONE_ROWS = 1 << 14


@dataclass(frozen=True)
class JoinSettings:
    """How far apart pairs may be: at all, and (signed, receiver minus sender) where there are copies."""

    max_delay_ns: int = NO_LIMIT_NS
    low_ns: int = -NO_LIMIT_NS
    high_ns: int = NO_LIMIT_NS
    duplicate_ns: int = 100_000
    mirrored: tuple[bool, bool] = (False, False)
    most_rows: int = MOST_ROWS

    def __post_init__(self) -> None:
        for name in ("max_delay_ns", "duplicate_ns"):
            if (value := getattr(self, name)) < 0:
                raise ParameterError(f"{name} is {value}", action="use 0 or more")

    def words(self) -> Int64Array:
        limits = min(self.max_delay_ns, NO_LIMIT_NS), self.low_ns, self.high_ns, self.duplicate_ns
        return np.array([*limits, *self.mirrored, self.most_rows], np.int64)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Packets seen at both points, in match order. Positions count each point's packets from 0.

    ``received_ns`` is as captured. ``copied`` says that there are other packets like it.
    """

    sender_position: Int64Array
    receiver_position: Int64Array
    flow: Int64Array
    number: Int64Array
    sent_ns: Int64Array
    received_ns: Int64Array
    copied: Int64Array

    def __len__(self) -> int:
        return len(self.flow)

    def select(self, rows: BoolArray) -> Pairs:
        return Pairs(*(column[rows] for column in vars(self).values()))

    def copy(self) -> Pairs:
        """One that can be kept."""
        return Pairs(*(column.copy() for column in vars(self).values()))


@dataclass(frozen=True, eq=False)
class Alone:
    """Packets of either point (``is_receiver``) that left unmatched, oldest first; ``is_copy`` of a matched one."""

    position: Int64Array
    flow: Int64Array
    number: Int64Array
    time_ns: Int64Array
    flags: Int64Array

    def __len__(self) -> int:
        return len(self.flow)

    @property
    def is_receiver(self) -> BoolArray:
        found: BoolArray = (self.flags & IS_RECEIVER) != 0
        return found

    @property
    def is_shadow(self) -> BoolArray:
        found: BoolArray = (self.flags & SHADOW) != 0
        return found

    @property
    def is_copy(self) -> BoolArray:
        found: BoolArray = (self.flags & (SHADOW | LATE)) != 0
        return found

    def select(self, rows: BoolArray) -> Alone:
        return Alone(*(column[rows] for column in vars(self).values()))


class Joiner:
    """Joins two streams; `take` a point's next packets when it `wants` them, `end` a point that has no more."""

    def __init__(self, settings: JoinSettings, *, capacity: int = 1 << 10) -> None:
        self._settings = settings.words()
        self._sides = [Columns.none(), Columns.none()]
        self._rows, self._slots = np.zeros(capacity, ROW), np.zeros(2 * capacity, np.int64)
        self._recent, self._heads = np.zeros(capacity, RECENT), np.full(2 * capacity, -1, np.int64)
        self._numbers = np.zeros(1 << 10, np.int64)
        self._pairs = np.empty((7, 0), np.int64)
        self._marks = np.zeros(MARKS, np.int64)
        self._marks[SURE_SENT : SURE_SENT + 2] = -NO_LIMIT_NS
        free_rows(self._rows, 1, self._marks)

    @property
    def capacity(self) -> int:
        """The rows that the table has room for: as many packets were in flight at most, to the next power of two."""
        return len(self._rows)

    @property
    def crowded(self) -> int:
        """Packets that left before ``max_delay`` because there was no room for more."""
        return int(self._marks[CROWDED])

    @property
    def shadows(self) -> tuple[int, int]:
        """Packets of each point that closely followed another copy of theirs."""
        return int(self._marks[SHADOWS_SENT]), int(self._marks[SHADOWS_GOT])

    @property
    def now_ns(self) -> int:
        """The time on the common clock of the packet that was joined last."""
        return int(self._marks[NOW])

    def use(self, settings: JoinSettings) -> None:
        """Go on with other settings."""
        self._settings = settings.words()

    @property
    def wants(self) -> int | None:
        """The point whose packets are needed to go on; None when both have ended and all is joined."""
        left = [int(self._marks[NEXT_SENT + side]) < len(self._sides[side].flow) for side in (SENDER, RECEIVER)]
        hungry = [s for s in (SENDER, RECEIVER) if not left[s] and self._marks[SURE_SENT + s] < NO_LIMIT_NS]
        return hungry[0] if hungry else None

    def is_empty(self, side: int) -> bool:
        """Whether all of a point's packets are joined."""
        return int(self._marks[NEXT_SENT + side]) >= len(self._sides[side].flow)

    def take(self, side: int, packets: Columns) -> None:
        """The next packets of a point, which has none left to join."""
        self._marks[BASE_SENT + side] += len(self._sides[side].flow)
        self._marks[NEXT_SENT + side] = 0
        self._sides[side] = packets
        most = int(packets.flow.max(initial=-1)) + 1
        if side == SENDER and most > len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.zeros(max(most, len(self._numbers)), np.int64)])

    def until(self, side: int, order_ns: int) -> None:
        """A point has no more packets before this time."""
        self._marks[SURE_SENT + side] = max(int(self._marks[SURE_SENT + side]), order_ns)

    def end(self, side: int) -> None:
        """A point has no more packets."""
        self.until(side, NO_LIMIT_NS)

    def join(self) -> Iterator[tuple[Pairs, Alone]]:
        """Join until one of the points has to give more packets. The columns of pairs are used again for the next."""
        left = [len(columns.flow) - int(self._marks[NEXT_SENT + s]) for s, columns in enumerate(self._sides)]
        if sum(left) >= self._pairs.shape[1]:
            self._pairs = np.empty((7, 2 * sum(left) + 1), np.int64)
        while True:
            alone = np.empty((5, ALONE_ROWS), np.int64)
            sides = self._sides[SENDER], self._sides[RECEIVER]
            why = join_packets(self._table(), *sides, self._settings, self._pairs, alone)
            found, left_alone = int(self._marks[PAIRS]), int(self._marks[ALONE])
            if found or left_alone:
                yield Pairs(*self._pairs[:, :found]), Alone(*alone[:, :left_alone])
            if why == HUNGRY:
                return
            if why == ROWS_FULL:
                self._grow()
            elif why == RECENT_FULL:
                self._remember_more()

    def _table(self) -> Table:
        return Table(self._rows, self._slots, self._recent, self._heads, self._numbers, self._marks)

    def flush(self) -> Iterator[Alone]:
        """All that still waits, oldest first."""
        while True:
            alone = np.empty((5, ALONE_ROWS), np.int64)
            count = flush(self._table(), alone)
            if count:
                yield Alone(*alone[:, :count])
            if count < ALONE_ROWS:
                return

    def _grow(self) -> None:
        before = len(self._rows)
        self._rows = np.concatenate([self._rows, np.zeros(before, ROW)])
        free_rows(self._rows, before, self._marks)
        self._slots = spread(self._slots, np.zeros(2 * len(self._slots), np.int64))

    def _remember_more(self) -> None:
        wider, self._heads = np.zeros(2 * len(self._recent), RECENT), np.full(2 * len(self._heads), -1, np.int64)
        spread_recent(self._recent, wider, self._heads, self._marks)
        self._recent = wider
