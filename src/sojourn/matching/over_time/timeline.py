"""When packets were sent and how long they took: the whole of a capture as a picture, in fixed memory.

Time is cut into columns of one length, a millisecond doubled as often as it takes for all packets to fit into
`COLUMNS`; delays are counted in the buckets of `matching.percentiles`. So each column has its packets, losses and mean
exactly, and percentiles within 1/128.

Which flows are measured is known at the end only, so packets are kept apart by what their flow's first delay was,
positive or not: those that travel from the sender to the receiver, and those that travel back. Should a flow have been
taken for another kind than the end finds, the numbers of packets show it, and there is no picture rather than a wrong
one.

Memory: 33 MB, of which what is never used is never touched, and a byte a flow. Time: 10 to 20 ns a packet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import FloatArray, Int64Array, lengthened
from sojourn.core.kernels import borrowing_kernel
from sojourn.matching.consumers import LostColumns, MatchedColumns
from sojourn.matching.exact import ExactMatch
from sojourn.matching.percentiles import CODES, bounds_of, code_at, code_of, percentiles_of

COLUMNS = 256
CLASSES = 64  # of delays, at most, in the picture
_FIRST_WIDTH_NS = 1_000_000
_AHEAD, _BACK, _UNKNOWN = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Timeline:
    """Columns of time, each with the packets sent in it, those lost, the delays' mean and percentiles (by the names of
    answers, NaN where nothing was received), and ``packets``: how many had delays of each class.

    ``edges_ns`` are the ends of classes, one more than there are; ``lost`` is None where losses are not known.
    """

    start_ns: Int64Array
    width_ns: int
    received: Int64Array
    lost: Int64Array | None
    delays: Mapping[str, FloatArray]
    edges_ns: Int64Array
    packets: Int64Array

    def columns(self) -> dict[str, Any]:
        """By the names of answers of intervals."""
        known = {} if self.lost is None else {"sent": self.received + self.lost, "lost": self.lost}
        ends = {"start_ns": self.start_ns, "end_ns": self.start_ns + self.width_ns}
        return {**ends, **known, "received": self.received, **self.delays}


class TimelineTotals:
    """A `PacketConsumer` that makes a `Timeline` of all packets."""

    def __init__(self) -> None:
        self._width_ns = _FIRST_WIDTH_NS
        self._span: tuple[int, int] | None = None  # the first and the last time
        self._table = np.zeros((2, COLUMNS, CODES), np.int64)
        self._sums = np.zeros((2, COLUMNS))
        self._extremes = _no_extremes()
        self._lost = np.zeros((3, COLUMNS), np.int64)
        self._kind = np.zeros(0, np.uint8)

    def take_matched(self, packets: MatchedColumns) -> None:
        if len(packets):
            first = self._reach(packets.sent_ns, packets.flow)
            where = packets.flow, packets.sent_ns, packets.delay_ns
            _add(where, (first, self._width_ns), self._kind, self._table, self._sums, self._extremes)

    def take_lost(self, packets: LostColumns) -> None:
        if len(packets):
            first = self._reach(packets.sent_ns, packets.flow)
            column = packets.sent_ns // self._width_ns - first
            np.add.at(self._lost, (self._kind[packets.flow], column), 1)

    def columns(self, flow: Int64Array) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002
        """Flows have nothing of this."""
        return {}

    def totals(self, flow: Int64Array) -> Mapping[str, float | int | None]:  # noqa: ARG002
        return {}

    def timeline(self, match: ExactMatch) -> Timeline | None:
        """The picture of the flows that `match` measures; None where it cannot be told from those that it does not."""
        sides = [side for side in (_AHEAD, _BACK) if int(self._table[side].sum()) == match.aggregate.received]
        if not sides or not match.aggregate.received or self._span is None:
            return None
        side = sides[0]
        lost = self._lost[side] + self._lost[_UNKNOWN]
        lost_known = int(lost.sum()) == match.aggregate.lost
        used = np.flatnonzero(self._table[side].any(axis=1) | (lost > 0))
        span = slice(int(used[0]), int(used[-1]) + 1)
        table = self._table[side, span]
        column, code = np.nonzero(table)
        count = table[column, code]
        each = np.arange(len(table))
        starts, ends = np.searchsorted(column, each, "left"), np.searchsorted(column, each, "right")
        received = table.sum(axis=1)
        mean = np.where(received > 0, self._sums[side, span] / np.maximum(received, 1), np.nan)
        edges, packets = _in_classes(table)
        return Timeline(
            start_ns=(self._span[0] // self._width_ns + span.start + each) * self._width_ns,
            width_ns=self._width_ns,
            received=received,
            lost=lost[span] if lost_known else None,
            delays={"mean_ns": mean, **percentiles_of(starts, ends, code, count, self._extremes[side, span])},
            edges_ns=edges,
            packets=packets,
        )

    def _reach(self, sent_ns: Int64Array, flow: Int64Array) -> int:
        """Have room for packets of these times and flows; the number of the first column."""
        self._kind = lengthened(self._kind, int(flow.max()) + 1, _UNKNOWN)
        low, high = int(sent_ns.min()), int(sent_ns.max())
        before = self._span or (low, high)
        low, high = min(before[0], low), max(before[1], high)
        width = self._width_ns
        while high // width - low // width >= COLUMNS:
            width *= 2
        if self._span is not None and (width != self._width_ns or low // width != before[0] // width):
            self._lay_out(before, width, low // width)
        self._width_ns, self._span = width, (low, high)
        return low // width

    def _lay_out(self, span: tuple[int, int], width: int, first: int) -> None:
        """Have columns of another length, or begin earlier; what was counted in `span` moves along."""
        begin = span[0] // self._width_ns
        table, sums = np.zeros_like(self._table), np.zeros_like(self._sums)
        extremes, lost = _no_extremes(), np.zeros_like(self._lost)
        for column in range(span[1] // self._width_ns - begin + 1):
            place = (begin + column) * self._width_ns // width - first
            lost[:, place] += self._lost[:, column]
            sums[:, place] += self._sums[:, column]
            for side in (_AHEAD, _BACK):
                low, high = self._extremes[side, column].tolist()
                if low <= high:  # only what was counted is touched
                    least, most = code_of(np.array([low, high])).tolist()
                    codes = slice(least, most + 1)
                    table[side, place, codes] += self._table[side, column, codes]
                    extremes[side, place] = min(extremes[side, place, 0], low), max(extremes[side, place, 1], high)
        self._table, self._sums, self._extremes, self._lost = table, sums, extremes, lost


def _no_extremes() -> Int64Array:
    limits = np.iinfo(np.int64)
    extremes = np.empty((2, COLUMNS, 2), np.int64)
    extremes[..., 0], extremes[..., 1] = limits.max, limits.min
    return extremes


def _in_classes(table: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The edges of at most `CLASSES` classes of delays, and how many packets of each column are in each."""
    used = np.flatnonzero(table.any(axis=0))
    first, last = int(used[0]), int(used[-1])
    step = -(-(last + 1 - first) // CLASSES)
    begins = np.arange(first, last + 1, step)
    least, _ = bounds_of(begins)
    _, largest = bounds_of(np.array([min(int(begins[-1]) + step - 1, CODES - 1)]))
    edges = np.concatenate([least, largest + 1])
    return edges, np.add.reduceat(table[:, first : last + 1], begins - first, axis=1)


@borrowing_kernel
def _add(
    packets: tuple[Int64Array, Int64Array, Int64Array],
    columns: tuple[int, int],
    kind: NDArray[np.uint8],
    table: Int64Array,
    sums: FloatArray,
    extremes: Int64Array,
) -> None:
    flow, sent_ns, delay_ns = packets
    first, width = columns
    for i in range(flow.shape[0]):
        own, delay = flow[i], delay_ns[i]
        if kind[own] == _UNKNOWN:
            kind[own] = _BACK if delay < 0 else _AHEAD
        side = kind[own]
        column = sent_ns[i] // width - first
        table[side, column, code_at(delay)] += 1
        sums[side, column] += delay
        extremes[side, column, 0] = min(extremes[side, column, 0], delay)
        extremes[side, column, 1] = max(extremes[side, column, 1], delay)
