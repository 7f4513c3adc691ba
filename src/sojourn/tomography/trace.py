"""A sink's trace as columns: packets in the order in which the sink got them, their paths as one flat column.

Packet i visits `node[start[i]:start[i + 1]]`, its origin first and the sink last. Those places are what all of
tomography counts by: a *place* is one node on one packet's path. Sequence numbers are unwrapped (they grow along an
origin's packets, and two that differ by 1 had no packet between them). Memory: 8 bytes a place and 48 a packet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.errors import InputError

MISSING = -1  # a sum of delays that was not recorded or does not fit its two bytes
UNREADABLE = -2  # a sum of delays that is no time: counted apart, not used either
SUM_LIMIT_NS = 65_535_000_000
LONGEST_PATH = 256
LATEST_NS = 1 << 62
LARGEST_NODE = 1 << 31
LARGEST_SEQUENCE = 1 << 40  # unwrapped, they still fit 63 bits
LONGEST_NS = 1 << 50  # 13 days from origin to sink: sums of many such delays still fit
_WRAPS = (1 << 8, 1 << 16, 1 << 32)
_WRAP_ZONE = 8  # a sequence number that falls from this near a power of two to this near 0 has wrapped

PacketRow = tuple[int, int, list[int], int, int, int]
"""Origin, sequence number, path, generation time, time at the sink and sum of delays (or `MISSING`), times in ns."""


@dataclass(frozen=True)
class CollectionTrace:
    """Packets in order of arrival at the sink; `ignored` and `notes` count what was left out or repaired, by reason."""

    sink: int
    origin: Int64Array
    sequence: Int64Array
    t0_ns: Int64Array
    sink_ns: Int64Array
    sum_ns: Int64Array
    start: Int64Array
    node: Int64Array
    shown_sequence: Int64Array  # as in the trace
    ignored: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def owner(self) -> Int64Array:
        """The packet of every place."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    @property
    def hop(self) -> Int64Array:
        """The position of every place on its path."""
        return np.arange(len(self.node)) - np.repeat(self.start[:-1], np.diff(self.start))

    @property
    def is_visit(self) -> BoolArray:
        """Every place but the sink's: where a packet waited."""
        visit = np.ones(len(self.node), np.bool_)
        visit[self.start[1:] - 1] = False
        return visit

    @property
    def is_looping(self) -> BoolArray:
        """Which packets came back to a node that they had left."""
        owner = self.owner
        order = np.lexsort((self.node, owner))
        again = (np.diff(owner[order]) == 0) & (np.diff(self.node[order]) == 0)
        looping = np.zeros(len(self), np.bool_)
        looping[owner[order[1:][again]]] = True
        return looping

    @property
    def gaps(self) -> int:
        """How many packets are missing by their sequence numbers."""
        order = np.lexsort((self.sequence, self.origin))
        same = np.diff(self.origin[order]) == 0
        steps = np.diff(self.sequence[order])[same] - 1
        return int(np.minimum(steps, 1 << 16).sum())

    @property
    def is_complete(self) -> bool:
        """Whether no packet seems to be missing: no gap, and every origin has packets from beginning to end."""
        edge = 3 * self.period_ns // 2
        order = np.lexsort((self.t0_ns, self.origin))
        change = np.flatnonzero(np.diff(self.origin[order])) + 1
        first = self.t0_ns[order][np.concatenate([[0], change])]
        last = self.t0_ns[order][np.concatenate([change - 1, [len(order) - 1]])]
        from_begin = (first - self.t0_ns.min() <= edge).all()
        return bool(self.gaps == 0 and from_begin and (self.t0_ns.max() - last <= edge).all())

    @property
    def period_ns(self) -> int:
        """The usual time between two packets of one origin."""
        order = np.lexsort((self.sequence, self.origin))
        steps = np.diff(self.t0_ns[order])
        usable = (np.diff(self.origin[order]) == 0) & (np.diff(self.sequence[order]) == 1) & (steps > 0)
        if not usable.any():
            return max(int(self.sink_ns.max() - self.t0_ns.min()), 1)
        return int(np.median(steps[usable]))


def make_trace(rows: Iterable[PacketRow], ignored: Counter[str] | None = None) -> CollectionTrace:
    """Columns from rows of any order; what cannot be used is counted by reason, and nothing usable is an error."""
    ignored, notes = Counter(ignored or {}), Counter[str]()
    kept = [row for row in rows if not _count(ignored, packet_fault(row))]
    if not kept:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in ignored.items())
        raise InputError("the trace has no usable packet" + (f" ({reasons})" if reasons else ""))
    sink = Counter(row[2][-1] for row in kept).most_common(1)[0][0]
    kept = [row for row in kept if not _count(ignored, "" if row[2][-1] == sink else "path that ends elsewhere")]
    kept.sort(key=lambda row: (row[4], row[3]))
    unique: dict[tuple[int, int, int], PacketRow] = {}
    for row in kept:
        if (row[0], row[1], row[3]) in unique:
            ignored["duplicate of a packet"] += 1
        else:
            unique[(row[0], row[1], row[3])] = row
    return _columns(list(unique.values()), sink, ignored, notes)


def _count(counter: Counter[str], reason: str) -> bool:
    if reason:
        counter[reason] += 1
    return bool(reason)


def packet_fault(row: PacketRow) -> str:
    """Why a packet cannot be used; empty when it can."""
    origin, sequence, path, t0, at_sink, _sum = row
    checks = (
        (len(path) < 2, "path without a hop"),
        (len(path) > LONGEST_PATH, f"path of more than {LONGEST_PATH} nodes"),
        (any(not 0 <= node <= LARGEST_NODE for node in path) or origin < 0, "unknown node"),
        (not path or path[0] != origin, "path that starts elsewhere than at the origin"),
        (any(a == b for a, b in pairwise(path)), "path with a hop from a node to itself"),
        (bool(path) and path[-1] in path[:-1], "path through the sink"),
        (sequence < 0, "negative sequence number"),
        (sequence > LARGEST_SEQUENCE, "sequence number out of range"),
        (t0 < 0 or at_sink < 0, "negative time"),
        (max(t0, at_sink) > LATEST_NS, "time out of range"),
        (at_sink <= t0, "arrival at the sink before the generation"),
        (at_sink - t0 > LONGEST_NS, "delay of more than 13 days"),
    )
    return next((reason for is_wrong, reason in checks if is_wrong), "")


def _columns(rows: list[PacketRow], sink: int, ignored: Counter[str], notes: Counter[str]) -> CollectionTrace:
    lengths = np.array([len(row[2]) for row in rows])
    origin, shown, t0, at_sink, sums = (np.array([row[k] for row in rows], np.int64) for k in (0, 1, 3, 4, 5))
    saturated = sums >= SUM_LIMIT_NS
    notes["sum of delays that may have overflowed, not used"] = int(saturated.sum())
    notes["sum of delays that is no time, not used"] = int((sums == UNREADABLE).sum())
    notes["sum of delays missing"] = int((sums == MISSING).sum())
    notes["path with a loop"] = sum(len(set(row[2])) < len(row[2]) for row in rows)
    sums = np.where(saturated | (sums < 0), MISSING, sums)
    return CollectionTrace(
        sink=sink,
        origin=origin,
        sequence=_unwrap(origin, shown, t0, notes),
        t0_ns=t0,
        sink_ns=at_sink,
        sum_ns=sums,
        start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        node=np.array([node for row in rows for node in row[2]], np.int64),
        shown_sequence=shown,
        ignored={reason: count for reason, count in ignored.items() if count},
        notes={reason: count for reason, count in notes.items() if count},
    )


def _unwrap(origin: Int64Array, shown: Int64Array, t0: Int64Array, notes: Counter[str]) -> Int64Array:
    """Sequence numbers that grow with the generation time of each origin's packets.

    A fall from just below a power of two to just above 0 is a wrap and goes on counting; any other fall is a node that
    was reset: its next packet counts as after a gap, as what was lost meanwhile is unknown.
    """
    order = np.lexsort((shown, t0, origin))
    unwrapped = shown.copy()
    shift, last_origin, last_shown = 0, -1, 0
    for place in order.tolist():
        number = int(shown[place])
        if origin[place] != last_origin:
            shift = 0
        elif number <= last_shown:
            wrap = next((w for w in _WRAPS if w - _WRAP_ZONE <= last_shown < w and number < _WRAP_ZONE), 0)
            notes["sequence number that wrapped" if wrap else "sequence number that started anew"] += 1
            shift += wrap or last_shown - number + 2
        unwrapped[place] = number + shift
        last_origin, last_shown = int(origin[place]), number
    return unwrapped
