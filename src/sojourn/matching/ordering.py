"""Packets in order of time, from sources that are nearly so.

Captures of several queues are out of order by some ten milliseconds. `InOrder` gives packets in the order of their
times as long as none is older than the newest one by more than ``span_ns``; one that is older than that comes when it
does, is counted, and is joined all the same.

Memory: the packets of one span. Time: a look at each packet where they are in order, a sort where they are not.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.kernels import kernel
from sojourn.matching.join_table import Columns

SPAN_NS = 1_000_000_000


class InOrder:
    """Holds the packets of the latest ``span_ns`` back, and gives the others in order of time.

    ``first_ns`` and ``last_ns`` are the lowest and the highest time of all that were taken.
    """

    def __init__(self, span_ns: int = SPAN_NS) -> None:
        self.span_ns = span_ns
        self.late = 0
        self._held: deque[Columns] = deque()
        self._given_ns = np.iinfo(np.int64).min
        self.first_ns, self.last_ns = np.iinfo(np.int64).max, np.iinfo(np.int64).min

    def take(self, packets: Columns) -> list[Columns]:
        """Add packets; those that may go, in order."""
        if len(packets.order_ns):
            self._hold(packets)
        return self._release(self.last_ns - self.span_ns)

    def until(self, order_ns: int) -> list[Columns]:
        """Those that may go because no packet before this time is still to come."""
        return self._release(order_ns)

    def end(self) -> list[Columns]:
        """All that are left."""
        return self._release(np.iinfo(np.int64).max)

    def _hold(self, packets: Columns) -> None:
        order_ns = packets.order_ns
        lowest, highest, is_in_order = _survey(order_ns)
        self.first_ns, self.last_ns = min(self.first_ns, lowest), max(self.last_ns, highest)
        last = int(self._held[-1].order_ns[-1]) if self._held else self._given_ns
        if not is_in_order or int(order_ns[0]) < last:
            packets = _sorted(_joined([*self._held, packets]))
            self._held.clear()
            self.late += int(np.searchsorted(packets.order_ns, self._given_ns))
        self._held.append(packets)

    def _release(self, until_ns: int) -> list[Columns]:
        free = []
        while self._held and int(self._held[0].order_ns[0]) <= until_ns:
            packets = self._held.popleft()
            count = int(np.searchsorted(packets.order_ns, until_ns, side="right"))
            if count < len(packets.order_ns):
                self._held.appendleft(_taken(packets, slice(count, None)))
                packets = _taken(packets, slice(0, count))
            self._given_ns = max(self._given_ns, int(packets.order_ns[-1]))
            free.append(packets)
        return free


@kernel
def _survey(order_ns: Int64Array) -> tuple[int, int, bool]:
    """The lowest and the highest of some times, and whether they rise."""
    lowest = highest = order_ns[0]
    falls = 0
    for i in range(1, order_ns.shape[0]):
        lowest, highest = min(lowest, order_ns[i]), max(highest, order_ns[i])
        falls += order_ns[i] < order_ns[i - 1]
    return lowest, highest, falls == 0


@kernel
def _settle(packets: Columns, has_times: bool, has_classes: bool, most: int) -> bool:
    """Sort in place, moving each row past those before it that are later; False where that takes too many moves.

    Without times of their own (or classes) rows have none to move.
    """
    packet_id, flow, order_ns, time_ns, dscp = packets
    moves = 0
    for i in range(1, order_ns.shape[0]):
        k = i
        while k > 0 and order_ns[k - 1] > order_ns[k]:
            order_ns[k - 1], order_ns[k] = order_ns[k], order_ns[k - 1]
            packet_id[k - 1], packet_id[k] = packet_id[k], packet_id[k - 1]
            flow[k - 1], flow[k] = flow[k], flow[k - 1]
            if has_times:
                time_ns[k - 1], time_ns[k] = time_ns[k], time_ns[k - 1]
            if has_classes:
                dscp[k - 1], dscp[k] = dscp[k], dscp[k - 1]
            k -= 1
            moves += 1
            if moves > most:
                return False
    return True


def _sorted(packets: Columns) -> Columns:
    """The rows in the order of time, equals in the order that they have. `packets` are the caller's own to change."""
    has_times, has_classes = packets.order_ns is not packets.time_ns, len(packets.dscp) > 0
    if _settle(packets, has_times, has_classes, 4 * len(packets.flow)):
        return packets
    return _taken(packets, np.argsort(packets.order_ns, kind="stable"))


def _joined(parts: list[Columns]) -> Columns:
    """A copy of all of them, one after the other."""
    packet_id, flow, order_ns = (np.concatenate([part[k] for part in parts]) for k in range(3))
    same = all(part.order_ns is part.time_ns for part in parts)
    time_ns = order_ns if same else np.concatenate([part.time_ns for part in parts])
    return Columns(packet_id, flow, order_ns, time_ns, np.concatenate([part.dscp for part in parts]))


def _taken(packets: Columns, rows: Int64Array | slice) -> Columns:
    """These rows; where nothing is corrected both times are one column, and stay so."""
    order_ns = packets.order_ns[rows]
    same = packets.order_ns is packets.time_ns
    time_ns = order_ns if same else packets.time_ns[rows]
    dscp = packets.dscp[rows] if len(packets.dscp) else packets.dscp
    return Columns(packets.packet_id[rows], packets.flow[rows], order_ns, time_ns, dscp)
