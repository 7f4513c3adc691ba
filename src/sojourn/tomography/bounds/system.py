"""All that bounds may use of a trace as one linear system over its unknown arrival times.

Every statement is a row: a sum of differences of two times that lies within limits. A visit's delay is one difference,
a proved order of two packets at a node two rows of one, a sum of delays one row of all its sure members (and another of
all possible ones, from below, where sums are equations). Rows that the bounds of their times imply are left out. The
statements are those that `constraints.bound` has used, so that true times solve the system where they lie within its
bounds; `ROUNDING_NS` is left for time stamps that are rounded.
Cost: O(places + pairs + members) in time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums
from sojourn.tomography.bounds.propagation import ROUNDING_NS
from sojourn.tomography.trace import CollectionTrace

__all__ = ["UNLIMITED_NS", "System", "linear_system"]

UNLIMITED_NS = 1 << 62


@dataclass(frozen=True)
class System:
    """Row r: the differences `later - earlier` of entries `start[r]` to `start[r + 1]` sum to within its limits.

    `place` has the unknowns' places, `column` each place's number among the unknowns, or -1. The rows of unknown u are
    `row[row_start[u]:row_start[u + 1]]`.
    """

    place: Int64Array
    column: Int64Array
    start: Int64Array
    later: Int64Array
    earlier: Int64Array
    low_ns: Int64Array
    high_ns: Int64Array
    row_start: Int64Array
    row: Int64Array

    def __len__(self) -> int:
        return len(self.place)


@dataclass(frozen=True)
class _Rows:
    """Rows by their number (ascending) for each entry, the entries' places, and the limits of each row."""

    number: Int64Array
    later: Int64Array
    earlier: Int64Array
    low: Int64Array
    high: Int64Array


def linear_system(trace: CollectionTrace, bounds: Bounds, options: ConstraintOptions) -> System:
    """The system behind `bounds`, which were made with `options`."""
    blocks = [_delay_rows(trace, bounds), _fifo_rows(trace, bounds, options.epsilon_ns)]
    blocks.append(_sum_rows(bounds, options.tolerance_ns, is_lower=False))
    if options.sums is Sums.EXACT:
        blocks.append(_sum_rows(bounds, options.tolerance_ns, is_lower=True))
    before = np.cumsum([0, *(len(block.low) for block in blocks)])
    number = np.concatenate([block.number + shift for block, shift in zip(blocks, before, strict=False)])
    later, earlier = (np.concatenate([getattr(block, end) for block in blocks]) for end in ("later", "earlier"))
    low, high = (np.concatenate([getattr(block, end) for block in blocks]) for end in ("low", "high"))
    is_unknown = bounds.high_ns > bounds.low_ns
    column = np.where(is_unknown, np.cumsum(is_unknown) - 1, -1)
    ends = np.concatenate([column[later], column[earlier]])
    rows = np.concatenate([number, number])[ends >= 0]
    ends = ends[ends >= 0]
    arranged = np.lexsort((rows, ends))
    unknowns = int(is_unknown.sum())
    return System(
        place=np.flatnonzero(is_unknown),
        column=column,
        start=np.searchsorted(number, np.arange(len(low) + 1)).astype(np.int64),
        later=later,
        earlier=earlier,
        low_ns=low,
        high_ns=high,
        row_start=np.searchsorted(ends[arranged], np.arange(unknowns + 1)).astype(np.int64),
        row=rows[arranged],
    )


def _single(later: Int64Array, earlier: Int64Array, low: Int64Array, high: Int64Array) -> _Rows:
    high = np.where(high == UNLIMITED_NS, high, high + ROUNDING_NS)
    return _Rows(np.arange(len(later)), later, earlier, low - ROUNDING_NS, high)


def _delay_rows(trace: CollectionTrace, bounds: Bounds) -> _Rows:
    """Least and most delay of a visit, where its times' bounds do not say as much."""
    visit = np.flatnonzero(trace.is_visit)
    low, high, least, most = bounds.low_ns, bounds.high_ns, bounds.least_ns[visit], bounds.most_ns[visit]
    says_more = (least > low[visit + 1] - high[visit]) | (most < high[visit + 1] - low[visit])
    kept = visit[says_more]
    return _single(kept + 1, kept, least[says_more], most[says_more])


def _fifo_rows(trace: CollectionTrace, bounds: Bounds, epsilon_ns: int) -> _Rows:
    """The first of two packets at a node leaves and arrives first, where it is proved and the bounds leave it open."""
    proved = np.abs(bounds.order) == 1
    is_forward = bounds.order[proved] == 1
    a, b = bounds.first[proved], bounds.second[proved]
    x, y = np.where(is_forward, a, b), np.where(is_forward, b, a)
    is_local = trace.hop == 0
    # A local packet may be stamped after a forwarded one that it is ahead of in the queue.
    early = np.where(is_local[x] & ~is_local[y], epsilon_ns, 0)
    later, earlier = np.concatenate([y + 1, y]), np.concatenate([x + 1, x])
    low = np.concatenate([np.zeros_like(early), -early])
    is_open = bounds.low_ns[later] - bounds.high_ns[earlier] < low
    return _single(later[is_open], earlier[is_open], low[is_open], np.full(int(is_open.sum()), UNLIMITED_NS))


def _sum_rows(bounds: Bounds, tolerance_ns: int, *, is_lower: bool) -> _Rows:
    """Sums of delays: sure members from above; or possible ones from below, where all that can be in it is known."""
    groups = bounds.groups
    counts = np.diff(groups.start)
    group = np.repeat(np.arange(len(counts)), counts)
    is_member = ~groups.is_out if is_lower else groups.is_sure
    is_told = groups.is_used & groups.is_closed if is_lower else groups.is_used
    chosen = is_member & is_told[group]
    edge = (bounds.least_ns if is_lower else bounds.most_ns)[groups.member]
    reach = np.bincount(group[chosen], edge[chosen].astype(np.float64), minlength=len(counts))
    limit = groups.sum_ns + (-tolerance_ns if is_lower else tolerance_ns)
    says_more = reach < limit if is_lower else reach > limit
    chosen &= says_more[group]
    used, number = np.unique(group[chosen], return_inverse=True)
    visit = groups.member[chosen]
    unlimited = np.full(len(used), UNLIMITED_NS)
    low, high = (limit[used], unlimited) if is_lower else (-unlimited, limit[used])
    return _Rows(number, visit + 1, visit, low, high)
