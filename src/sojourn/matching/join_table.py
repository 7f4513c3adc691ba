"""The table of packets on their way, and the kernel that joins two points' packets through it.

Slots of open addressing (a word each, backward-shift deletion) lead from an identity to rows of packets: the list of
those that wait at the sender, and the list of those that wait at the receiver. Waiting rows stand in a line from the
oldest to the newest, in which they leave. Pairs are remembered for a while in a ring, chained by the hash of their
identity, so that they leave it without being looked for. Rules and costs are those of `joining`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.core import hashing
from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.kernels import borrowing_inlined, borrowing_kernel, kernel, signed

SENDER, RECEIVER = 0, 1
LATE_COPY_NS = 1_000_000_000  # a network's second copy may wait in a queue; a host that repeats itself is slower

ROW = np.dtype(
    [
        ("packet_id", np.uint64),
        ("order_ns", np.int64),
        ("kept_ns", np.int64),  # when its copy that counts was seen
        ("time_ns", np.int64),
        ("position", np.int64),
        ("number", np.int64),
        ("flow", np.int32),
        ("flags", np.int32),
        ("next", np.int32),  # in the list of its identity's copies
        ("tail", np.int32),
        ("older", np.int32),  # in the line of those that leave
        ("newer", np.int32),
    ]
)
RECENT = np.dtype([("packet_id", np.uint64), ("sent_ns", np.int64), ("got_ns", np.int64), ("before", np.int64)])
Rows: TypeAlias = NDArray[np.void]

# A slot is a word: 30 bits of the identity's hash, 1 of the point, 31 of the row; 0 is free, as is row 0.
_POINT_SHIFT, _TAG_SHIFT = 31, 32
ROW_MASK = (1 << 31) - 1
_GOLDEN = np.uint64(hashing.GOLDEN_GAMMA)
_TAG_BITS = np.uint64(34)
_MOST_SLOTS = 1 << 30

# Flags of a waiting row.
IS_RECEIVER, SHADOW, LATE, _DETACHED = 1, 2, 4, 8

# Marks: what a kernel leaves for the next call.
(
    NEXT_SENT,
    _NEXT_GOT,
    PAIRS,
    ALONE,
    _FREE,
    _FREE_COUNT,
    _OLDEST_WAITING,
    _NEWEST_WAITING,
    OLDEST_RECENT,  # a count of pairs; where it is in the ring follows from it
    NEXT_RECENT,
    BASE_SENT,
    _BASE_GOT,
    SURE_SENT,
    _SURE_GOT,
    CROWDED,
    SHADOWS_SENT,
    SHADOWS_GOT,
    NOW,
    MARKS,
) = range(19)

# Settings.
_MAX_DELAY, _LOW, _HIGH, _DUPLICATE, _MIRRORED_SENT, _MIRRORED_GOT, _MOST_ROWS = range(7)

# Why a kernel returned.
HUNGRY, _ALONE_FULL, ROWS_FULL, RECENT_FULL = 0, 1, 2, 3


NO_CLASSES = np.empty(0, np.uint8)


class Columns(NamedTuple):
    """Packets of one point in order of time: ``order_ns`` on the common clock, ``time_ns`` as captured.

    ``dscp`` is empty where it is not asked for; joining does not look at it.
    """

    packet_id: UInt64Array
    flow: Int64Array
    order_ns: Int64Array
    time_ns: Int64Array
    dscp: UInt8Array = NO_CLASSES

    @classmethod
    def none(cls) -> Columns:
        nothing = np.empty(0, np.int64)
        return cls(np.empty(0, np.uint64), nothing, nothing, nothing)


class Table(NamedTuple):
    rows: Rows
    slots: Int64Array
    recent: Rows
    heads: Int64Array
    numbers: Int64Array
    marks: Int64Array


@kernel
def free_rows(rows: Rows, first: int, marks: Int64Array) -> None:
    """Put the rows from `first` on into the list of free ones."""
    for row in range(rows.shape[0] - 1, first - 1, -1):
        rows[row].next = marks[_FREE]
        marks[_FREE] = row
        marks[_FREE_COUNT] += 1


@kernel
def spread(slots: Int64Array, wider: Int64Array) -> Int64Array:
    """All words in a table of twice the size; those of one identity may change places, which have no meaning."""
    mask = wider.shape[0] - 1
    for word in slots:
        if word:
            at = (word >> _TAG_SHIFT) & mask
            while wider[at]:
                at = (at + 1) & mask
            wider[at] = word
    return wider


@kernel
def spread_recent(recent: Rows, wider: Rows, heads: Int64Array, marks: Int64Array) -> None:
    """All pairs that are remembered in a ring of twice the size, with heads of their own (all −1)."""
    for at in range(marks[OLDEST_RECENT], marks[NEXT_RECENT]):
        row = at & (wider.shape[0] - 1)
        wider[row] = recent[at & (recent.shape[0] - 1)]
        head = signed((wider[row].packet_id * _GOLDEN) >> _TAG_BITS) & (heads.shape[0] - 1)
        wider[row].before = heads[head]
        heads[head] = at


@borrowing_inlined
def _word(tag: int, side: int, row: int) -> int:
    return (tag << _TAG_SHIFT) | (side << _POINT_SHIFT) | row


@borrowing_inlined
def _free_slot(slots: Int64Array, hole: int) -> None:
    """Backward-shift deletion: what was pushed behind the slot moves up."""
    mask = slots.shape[0] - 1
    at = (hole + 1) & mask
    while slots[at]:
        home = (slots[at] >> _TAG_SHIFT) & mask
        if ((at - home) & mask) >= ((at - hole) & mask):
            slots[hole] = slots[at]
            hole = at
        at = (at + 1) & mask
    slots[hole] = 0


@borrowing_inlined
def _line_up(rows: Rows, marks: Int64Array, row: int) -> None:
    """To the young end of those that wait."""
    newest = marks[_NEWEST_WAITING]
    rows[row].older = newest
    rows[row].newer = 0
    if newest:
        rows[newest].newer = row
    else:
        marks[_OLDEST_WAITING] = row
    marks[_NEWEST_WAITING] = row


@borrowing_inlined
def _step_out(rows: Rows, marks: Int64Array, row: int) -> None:
    """Out of the line, and free."""
    older, newer = rows[row].older, rows[row].newer
    if older:
        rows[older].newer = newer
    else:
        marks[_OLDEST_WAITING] = newer
    if newer:
        rows[newer].older = older
    else:
        marks[_NEWEST_WAITING] = older
    rows[row].next = marks[_FREE]
    marks[_FREE] = row
    marks[_FREE_COUNT] += 1


@borrowing_inlined
def _slot_of(rows: Rows, slots: Int64Array, packet_id: np.uint64, side: int) -> int:
    """The slot of an identity's list, which is there."""
    mask = slots.shape[0] - 1
    tag = signed((packet_id * _GOLDEN) >> _TAG_BITS)
    wanted = (tag << 1) | side
    at: int = tag & mask
    while (slots[at] >> _POINT_SHIFT) != wanted or rows[slots[at] & ROW_MASK].packet_id != packet_id:
        at = (at + 1) & mask
    return at


@borrowing_inlined
def _leave_list(rows: Rows, slots: Int64Array, slot: int, row: int) -> bool:
    """Take the oldest copy out of its list; whether its slot is without a list now."""
    following = rows[row].next
    if not following:
        return True
    rows[following].tail = rows[row].tail
    slots[slot] = (slots[slot] & ~ROW_MASK) | following
    return False


@borrowing_inlined
def _expire_waiting(table: Table, alone: Int64Array) -> None:
    """The oldest that waits leaves alone."""
    rows, slots, marks = table.rows, table.slots, table.marks
    row = marks[_OLDEST_WAITING]
    flags = rows[row].flags
    if not flags & _DETACHED:
        slot = _slot_of(rows, slots, rows[row].packet_id, flags & IS_RECEIVER)
        if _leave_list(rows, slots, slot, row):
            _free_slot(slots, slot)
    count = marks[ALONE]
    alone[0, count] = rows[row].position
    alone[1, count] = rows[row].flow
    alone[2, count] = rows[row].number
    alone[3, count] = rows[row].time_ns
    alone[4, count] = flags
    marks[ALONE] = count + 1
    _step_out(rows, marks, row)


@borrowing_inlined
def _find(rows: Rows, slots: Int64Array, packet_id: np.uint64, tag: int) -> tuple[int, int, int]:
    """The slots of an identity's sender list and receiver list (−1: there is none), and a free one."""
    mask = slots.shape[0] - 1
    at = tag & mask
    sent = got = -1
    while slots[at]:
        word = slots[at]
        if (word >> _TAG_SHIFT) == tag and rows[word & ROW_MASK].packet_id == packet_id:
            if (word >> _POINT_SHIFT) & 1 == SENDER:
                sent = at
            else:
                got = at
        at = (at + 1) & mask
    return sent, got, at


@borrowing_inlined
def _latest_pair(table: Table, packet_id: np.uint64, tag: int) -> int:
    """Where the ring remembers the identity's latest pair; −1: it does not."""
    recent, heads, oldest = table.recent, table.heads, table.marks[OLDEST_RECENT]
    mask = recent.shape[0] - 1
    at: int = heads[tag & (heads.shape[0] - 1)]
    while at >= oldest:
        row: int = at & mask
        if recent[row].packet_id == packet_id:
            return row
        at = recent[at & mask].before
    return signed(-1)


@borrowing_inlined
def _remember(table: Table, packet_id: np.uint64, tag: int, sent_ns: int, got_ns: int) -> None:
    """The latest pair of its identity."""
    heads, at = table.heads, table.marks[NEXT_RECENT]
    row = at & (table.recent.shape[0] - 1)
    head = tag & (heads.shape[0] - 1)
    table.recent[row].packet_id = packet_id
    table.recent[row].sent_ns = sent_ns
    table.recent[row].got_ns = got_ns
    table.recent[row].before = heads[head]
    heads[head] = at
    table.marks[NEXT_RECENT] = at + 1


@borrowing_inlined
def _wait(table: Table, packets: Columns, at: int, flags: int, slot: int, free: int, tag: int) -> int:
    """A row for a packet that waits, at the end of its identity's list unless it is detached; the row."""
    rows, slots, marks = table.rows, table.slots, table.marks
    row: int = marks[_FREE]
    marks[_FREE] = rows[row].next
    marks[_FREE_COUNT] -= 1
    side = flags & IS_RECEIVER
    rows[row].packet_id = packets.packet_id[at]
    rows[row].order_ns = packets.order_ns[at]
    rows[row].time_ns = packets.time_ns[at]
    rows[row].position = marks[BASE_SENT + side] + at
    rows[row].flow = packets.flow[at]
    rows[row].flags = flags
    rows[row].next = 0
    rows[row].tail = row
    _line_up(rows, marks, row)
    if flags & _DETACHED:
        return row
    if slot >= 0:
        head = slots[slot] & ROW_MASK
        rows[rows[head].tail].next = row
        rows[head].tail = row
    else:
        slots[free] = _word(tag, side, row)
    return row


@borrowing_inlined
def _partner(table: Table, slot: int, order_ns: int, side: int, settings: Int64Array, alone: bool) -> tuple[int, bool]:
    """The oldest row of the other point's list that fits (0: none does), and whether rows have left the list.

    Rows that are too far away for this packet are so for all that follow. `alone` is a packet without copies at its
    own point.
    """
    rows, slots = table.rows, table.slots
    low, high = settings[_LOW], settings[_HIGH]
    is_changed = False
    while True:
        row = slots[slot] & ROW_MASK
        if alone and not rows[row].next and not rows[row].flags & (SHADOW | LATE):
            return row, is_changed  # without copies at either point it may be as late as any
        if side == RECEIVER:
            delay = order_ns - rows[row].order_ns
            is_passed, fits = delay > high, delay >= low
        else:
            delay = rows[row].order_ns - order_ns
            is_passed, fits = delay < low, delay <= high
        if not is_passed:
            return (row if fits else signed(0)), is_changed
        rows[row].flags |= _DETACHED
        is_changed = True
        if _leave_list(rows, slots, slot, row):
            _free_slot(slots, slot)
            return signed(0), is_changed


@borrowing_inlined
def _copy_flags(table: Table, own: int, recent: int, order_ns: int, side: int, settings: Int64Array) -> tuple[int, int]:
    """What a packet's earlier copies make of it: its flags, and when the copy was seen that it may be a shadow of."""
    rows, slots, marks = table.rows, table.slots, table.marks
    kept_ns, flags = order_ns, signed(side)
    if own >= 0:
        before = rows[rows[slots[own] & ROW_MASK].tail].kept_ns
        if order_ns - before <= settings[_DUPLICATE]:
            kept_ns, flags = before, flags | SHADOW
    if recent >= 0:
        sent_ns, got_ns = table.recent[recent].sent_ns, table.recent[recent].got_ns
        before = sent_ns if side == SENDER else got_ns
        if order_ns - before <= settings[_DUPLICATE]:
            kept_ns, flags = before, flags | SHADOW
        if side == RECEIVER and (order_ns - got_ns <= LATE_COPY_NS or order_ns - sent_ns <= settings[_HIGH]):
            flags |= LATE
    if flags & SHADOW:
        marks[SHADOWS_SENT + side] += 1
        if settings[_MIRRORED_SENT + side]:
            flags |= _DETACHED
    return flags, kept_ns


@borrowing_inlined
def _match_or_wait(table: Table, packets: Columns, at: int, side: int, settings: Int64Array, pairs: Int64Array) -> None:
    rows, slots, numbers, marks = table.rows, table.slots, table.numbers, table.marks
    packet_id, order_ns, flow = packets.packet_id[at], packets.order_ns[at], packets.flow[at]
    tag = signed((packet_id * _GOLDEN) >> _TAG_BITS)
    sent, got, free = _find(rows, slots, packet_id, tag)
    recent = _latest_pair(table, packet_id, tag)
    own, other = (sent, got) if side == SENDER else (got, sent)
    flags, kept_ns = signed(side), order_ns
    if own >= 0 or recent >= 0:
        flags, kept_ns = _copy_flags(table, own, recent, order_ns, side, settings)
    number = signed(0)
    if side == SENDER:
        if not flags & SHADOW:
            numbers[flow] += 1
        number = numbers[flow] - 1
    row = signed(0)
    if other >= 0 and not flags & _DETACHED:
        row, is_changed = _partner(table, other, order_ns, side, settings, own < 0 and recent < 0)
        if is_changed:
            sent, got, free = _find(rows, slots, packet_id, tag)
            own, other = (sent, got) if side == SENDER else (got, sent)
    if not row:
        row = _wait(table, packets, at, flags, own, free, tag)
        rows[row].number = number
        rows[row].kept_ns = kept_ns
        return
    found = marks[PAIRS]
    marks[PAIRS] = found + 1
    pairs[SENDER + side, found] = marks[BASE_SENT + side] + at
    pairs[RECEIVER - side, found] = rows[row].position
    pairs[2, found] = flow if side == SENDER else signed(rows[row].flow)
    pairs[3, found] = number if side == SENDER else rows[row].number
    pairs[4 + side, found] = packets.time_ns[at]
    pairs[5 - side, found] = rows[row].time_ns
    pairs[6, found] = own >= 0 or recent >= 0 or rows[row].next != 0 or rows[row].flags & SHADOW != 0
    waited_ns = rows[row].order_ns
    sent_ns, got_ns = (order_ns, waited_ns) if side == SENDER else (waited_ns, order_ns)
    if _leave_list(rows, slots, other, row):
        _free_slot(slots, other)
    _step_out(rows, marks, row)
    _remember(table, packet_id, tag, sent_ns, got_ns)


@borrowing_inlined
def _make_room(table: Table, now: int, settings: Int64Array, alone: Int64Array) -> int:
    """Those whose time is over leave, so that there is a free row; otherwise what is missing."""
    rows, recent, marks = table.rows, table.recent, table.marks
    while marks[_OLDEST_WAITING] and rows[marks[_OLDEST_WAITING]].order_ns < now - settings[_MAX_DELAY]:
        if marks[ALONE] == alone.shape[1]:
            return _ALONE_FULL
        _expire_waiting(table, alone)
    oldest, mask = marks[OLDEST_RECENT], recent.shape[0] - 1
    while oldest < marks[NEXT_RECENT] and max(recent[oldest & mask].sent_ns, recent[oldest & mask].got_ns) < (
        now - LATE_COPY_NS
    ):
        oldest += 1
    if marks[NEXT_RECENT] - oldest > mask:
        if mask + 1 < settings[_MOST_ROWS]:
            return RECENT_FULL
        oldest += 1
    marks[OLDEST_RECENT] = oldest
    if marks[_FREE_COUNT]:
        return 0
    if rows.shape[0] < settings[_MOST_ROWS]:
        return ROWS_FULL
    if marks[ALONE] == alone.shape[1]:
        return _ALONE_FULL
    _expire_waiting(table, alone)
    marks[CROWDED] += 1
    return 0


@borrowing_kernel
def join_packets(
    table: Table,
    sender: Columns,
    receiver: Columns,
    settings: Int64Array,
    pairs: Int64Array,
    alone: Int64Array,
) -> int:
    """Join until a point has no packets left, or there is no room; why it ended."""
    marks = table.marks
    marks[PAIRS] = marks[ALONE] = 0
    sent, got = sender.flow.shape[0], receiver.flow.shape[0]
    while True:
        i, j = marks[NEXT_SENT], marks[_NEXT_GOT]
        if i >= sent and j >= got:
            return HUNGRY
        # Of two at the same time the sender's is first.
        next_sent = sender.order_ns[i] if i < sent else marks[SURE_SENT]
        next_got = receiver.order_ns[j] if j < got else marks[_SURE_GOT]
        is_sender = next_sent <= next_got
        if i >= sent if is_sender else j >= got:
            return HUNGRY
        now = sender.order_ns[i] if is_sender else receiver.order_ns[j]
        why = _make_room(table, now, settings, alone)
        if why:
            return why
        marks[NOW] = now
        if is_sender:
            _match_or_wait(table, sender, i, SENDER, settings, pairs)
            marks[NEXT_SENT] = i + 1
        else:
            _match_or_wait(table, receiver, j, RECEIVER, settings, pairs)
            marks[_NEXT_GOT] = j + 1


@borrowing_kernel
def flush(table: Table, alone: Int64Array) -> int:
    """What waits leaves, as far as there is room; how many."""
    marks = table.marks
    marks[ALONE] = 0
    while marks[_OLDEST_WAITING] and marks[ALONE] < alone.shape[1]:
        _expire_waiting(table, alone)
    count: int = marks[ALONE]
    return count
