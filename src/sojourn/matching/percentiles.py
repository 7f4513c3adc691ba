"""Percentiles of every flow's delays within a stated relative error, and the histograms that they come from.

Guarantee: a percentile is within `RELATIVE_ERROR` of the one that numpy (``method="linear"``) gives for the same
delays, and between ``low`` and ``high``, which are certain: no chance is involved.

Delays are counted in buckets, 64 to each power of two: the sign, the exponent and the six leading bits of the fraction
of a floating-point number are the bucket. Its middle is at most 1/128 off (0.8 %): the guarantee of DDSketch (Masson,
Rim and Lee, 2019) by the layout of HdrHistogram, which needs no logarithm. Delays below 128 ns are counted one by one;
zero and negative ones (a clock that is off) have buckets as well.

Only buckets that have a packet take memory: one table of ⟨flow, bucket⟩ → count for all flows, 22 to 43 bytes an entry,
of which a flow has at most as many as packets, and rarely more than some dozens. O(1) a packet; the answer sorts the
entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import FloatArray, Int64Array, lengthened, ranges
from sojourn.core.estimates import LEVELS, percentile_columns
from sojourn.core.kernels import borrowing_inlined, borrowing_kernel, kernel
from sojourn.matching.consumers import LostColumns, MatchedColumns

FRACTION_BITS = 6
RELATIVE_ERROR = 1 / 128

_SHIFT = 52 - FRACTION_BITS
_ONE = 1023 << FRACTION_BITS  # the bucket of 1 ns
_ZERO = 1 << (FRACTION_BITS + 6)  # the code of no delay at all; negative delays have smaller ones
_CODE_BITS = FRACTION_BITS + 7
CODES = 1 << _CODE_BITS  # of buckets, from 0
_LEAST_SLOTS = 1 << 10
_SPREAD = np.int64(-7046029254386353131)  # 2⁶⁴ divided by the golden ratio, odd: it spreads consecutive keys


def code_of(delay_ns: Int64Array) -> Int64Array:
    """The bucket of each delay; codes are in the order of delays.

    >>> (code_of(np.array([-5, 0, 1, 2, 3])) - code_of(np.array([0]))).tolist()
    [-145, 0, 1, 65, 97]
    """
    bits = np.abs(delay_ns).astype(np.float64).view(np.int64)
    code = np.sign(delay_ns) * ((bits >> _SHIFT) - _ONE + 1)
    return np.where(delay_ns == 0, 0, code) + _ZERO


def bounds_of(code: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The least and the largest delay of buckets, in whole nanoseconds.

    >>> [bound.tolist() for bound in bounds_of(code_of(np.array([-1000, 0, 100, 1000])))]
    [[-1007, 0, 100, 1000], [-1000, 0, 100, 1007]]
    """
    sign, place = np.sign(code - _ZERO), np.maximum(np.abs(code - _ZERO) - 1, 0)
    near = np.ceil(_edge(place)).astype(np.int64)
    far = (np.ceil(np.minimum(_edge(place + 1), 2.0**62)) - 1).astype(np.int64)
    far = np.maximum(far, near)
    least, largest = np.where(sign < 0, -far, near), np.where(sign < 0, -near, far)
    return np.where(sign == 0, 0, least), np.where(sign == 0, 0, largest)


def _edge(place: Int64Array) -> FloatArray:
    edge: FloatArray = ((place + _ONE) << _SHIFT).view(np.float64)
    return edge


class FlowPercentiles:
    """A `PacketConsumer`: percentiles of each flow and of all, and histograms."""

    def __init__(self) -> None:
        self._table = np.zeros((_LEAST_SLOTS, 2), np.int64)
        self._used = 0
        self._extremes = np.zeros((0, 2), np.int64)
        self._sorted: tuple[Int64Array, Int64Array, Int64Array] | None = None

    @property
    def memory_bytes(self) -> int:
        return self._table.nbytes + self._extremes.nbytes

    def take_matched(self, packets: MatchedColumns) -> None:
        """Count delays; their order does not matter."""
        if not len(packets):
            return
        self._reach(int(packets.flow.max()) + 1, len(packets))
        self._sorted = None
        self._used += _count(self._table, self._extremes, packets.flow, packets.delay_ns)

    def take_lost(self, packets: LostColumns) -> None:
        """A lost packet has no delay."""

    def columns(self, flow: Int64Array) -> Mapping[str, NDArray[Any]]:
        """``p50_ns``, ``p50_low_ns``, ``p50_high_ns`` and so on of each flow."""
        owner, code, count = self._entries()
        starts, ends = np.searchsorted(owner, flow, "left"), np.searchsorted(owner, flow, "right")
        extremes = np.zeros((len(flow), 2), np.int64)
        known = flow < len(self._extremes)
        extremes[known] = self._extremes[flow[known]]
        return percentiles_of(starts, ends, code, count, extremes)

    def totals(self, flow: Int64Array) -> Mapping[str, float | int | None]:
        """The percentiles of all packets of some flows together."""
        _, code, count = self._of(flow)
        together = np.bincount(code, weights=count, minlength=1).astype(np.int64)
        codes = np.flatnonzero(together)
        extremes = np.zeros((1, 2), np.int64)
        if len(codes):
            mine = self._extremes[flow[flow < len(self._extremes)]]
            extremes[0] = mine[:, 0].min(), mine[:, 1].max()
        ends = np.array([len(codes)], np.int64)
        columns = percentiles_of(ends - ends, ends, codes, together[codes], extremes)
        return {name: None if np.isnan(column[0]) else column[0].item() for name, column in columns.items()}

    def histogram(self, flow: Int64Array) -> Mapping[str, NDArray[Any]]:
        """The buckets of some flows: ``flow``, ``from_ns`` and ``to_ns``, both included, and ``packets``, never 0."""
        owner, code, count = self._of(flow)
        least, largest = bounds_of(code)
        return {"flow": owner, "from_ns": least, "to_ns": largest, "packets": count}

    def _of(self, flow: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """The entries of some flows."""
        owner, code, count = self._entries()
        starts = np.searchsorted(owner, flow, "left")
        rows, _ = ranges(starts, np.searchsorted(owner, flow, "right") - starts)
        return owner[rows], code[rows], count[rows]

    def _reach(self, flows: int, more: int) -> None:
        """Have room for so many flows, and for so many new entries at most."""
        nothing_yet = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        self._extremes = lengthened(self._extremes, flows, nothing_yet)
        slots = len(self._table)
        while 4 * (self._used + more) > 3 * slots:
            slots *= 2
        if slots > len(self._table):
            table = np.zeros((slots, 2), np.int64)
            _move(self._table, table)
            self._table = table

    def _entries(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Flow, bucket and packets of all entries, by flow and delay; sorted once for many questions."""
        if self._sorted is not None:
            return self._sorted
        taken = self._table[self._table[:, 0] != 0]
        taken = taken[np.argsort(taken[:, 0])]
        key, count = np.ascontiguousarray(taken[:, 0]), np.ascontiguousarray(taken[:, 1])
        self._sorted = key >> _CODE_BITS, key & ((1 << _CODE_BITS) - 1), count
        return self._sorted


@borrowing_inlined
def code_at(delay: int) -> int:
    """The bucket of a delay: `code_of` in a kernel."""
    place = int(np.float64(abs(delay)).view(np.int64) >> _SHIFT) - _ONE + 1
    return _ZERO + (place if delay > 0 else -place if delay < 0 else 0)


@borrowing_kernel
def _count(table: Int64Array, extremes: Int64Array, flow: Int64Array, delay_ns: Int64Array) -> int:
    """Count delays in their flows' buckets, as `code_of` tells them; how many of these are new."""
    mask = table.shape[0] - 1
    new = 0
    for i in range(flow.shape[0]):
        own, delay = flow[i], delay_ns[i]
        key = (own << _CODE_BITS) | code_at(delay)  # never 0, as no code is
        slot = ((key * _SPREAD) >> 24) & mask
        while table[slot, 0] != key:
            if table[slot, 0] == 0:
                table[slot, 0] = key
                new += 1
                break
            slot = (slot + 1) & mask
        table[slot, 1] += 1
        extremes[own, 0] = min(extremes[own, 0], delay)
        extremes[own, 1] = max(extremes[own, 1], delay)
    return new


@borrowing_kernel
def _move(table: Int64Array, wider: Int64Array) -> None:
    mask = wider.shape[0] - 1
    for i in range(table.shape[0]):
        if table[i, 0] != 0:
            slot = ((table[i, 0] * _SPREAD) >> 24) & mask
            while wider[slot, 0] != 0:
                slot = (slot + 1) & mask
            wider[slot, 0], wider[slot, 1] = table[i, 0], table[i, 1]


def percentiles_of(
    starts: Int64Array, ends: Int64Array, code: Int64Array, count: Int64Array, extremes: Int64Array
) -> dict[str, NDArray[Any]]:
    """Of the delays in the entries ``starts[i] … ends[i]``; NaN where there are none."""
    least, largest = bounds_of(code)
    levels = np.array(list(LEVELS.values()))
    found = np.full((len(levels), 3, len(starts)), np.nan)
    _read(levels, (starts, ends), (least, largest, count), extremes, found)
    return percentile_columns(found)


@kernel
def _read(
    levels: FloatArray,
    rows: tuple[Int64Array, Int64Array],
    buckets: tuple[Int64Array, Int64Array, Int64Array],
    extremes: Int64Array,
    found: FloatArray,
) -> None:
    least, largest, count = buckets
    for i in range(rows[0].shape[0]):
        start, end = rows[0][i], rows[1][i]
        total = 0
        for row in range(start, end):
            total += count[row]
        if total == 0:
            continue
        row, below = start, 0  # packets in the buckets before this one; both only go up with the levels
        for k in range(levels.shape[0]):
            rank = (total - 1) * levels[k]
            lower = int(rank)
            share = rank - lower
            while below + count[row] <= lower:
                below += count[row]
                row += 1
            after = row + 1 if below + count[row] <= lower + 1 and row + 1 < end else row
            low, high = extremes[i, 0], extremes[i, 1]
            for side in range(2):
                place = row if side == 0 else after
                weight = 1 - share if side == 0 else share
                near, far = float(max(least[place], low)), float(min(largest[place], high))
                if side == 0:
                    found[k, 0, i] = found[k, 1, i] = found[k, 2, i] = 0.0
                found[k, 0, i] += weight * (near + far) / 2
                found[k, 1, i] += weight * near
                found[k, 2, i] += weight * far
