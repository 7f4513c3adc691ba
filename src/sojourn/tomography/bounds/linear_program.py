"""All constraints on a trace's unknown arrival times as one linear system, and a sub-graph's linear program in HiGHS.

Every constraint is a row: a sum of differences of two times that lies within limits. A visit's delay is one difference,
a proved order of two packets at a node two rows of one, a sum of delays one row of all its sure members (and another of
all possible ones, from below, where sums are equations). Rows that the bounds of their times imply are left out. The
constraints are those that `constraints.bound` has used, so that true times solve the system where they lie within its
bounds; `ROUNDING_NS` is left for time stamps that are rounded.

A program's rows are set once, then one objective after the other. Unknowns are in ms from the middle of their bounds:
small numbers, as solvers want them, made from whole ns. Times beyond the sub-graph count with the end of their bounds
that weakens a row; delays beyond it with theirs.
Cost: O(places + pairs + members) in time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from sojourn.core.arrays import FloatArray, Int64Array, ranges
from sojourn.core.errors import UsageError
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums
from sojourn.tomography.bounds.propagation import ROUNDING_NS
from sojourn.tomography.trace import CollectionTrace

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
    """Least and most delay of a visit, where its times' bounds do not imply it."""
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


NS_PER_MS = 1e6
OPTIONS = {
    "output_flag": False,
    "presolve": "off",  # it would throw away what the last solve found
    "solver": "simplex",
    "simplex_strategy": 4,  # primal: a new objective leaves the last solution feasible
    "simplex_iteration_limit": 200_000,
    "threads": 1,
}


class LinearProgram:
    """`low <= matrix @ x <= high` and the bounds of x, for the unknowns `inside` (ascending) of a system."""

    def __init__(self, system: System, bounds: Bounds, inside: Int64Array) -> None:
        self._system, self._inside = system, inside
        place = system.place[inside]
        self.middle_ns = (bounds.low_ns[place] + bounds.high_ns[place]) // 2
        self._least = (bounds.low_ns[place] - self.middle_ns) / NS_PER_MS
        self._most = (bounds.high_ns[place] - self.middle_ns) / NS_PER_MS
        self._matrix, self._low, self._high = self._rows(bounds)
        self._matrix_by_column = self._matrix.T.tocsr()
        self._highs = self._load()
        self.solves = 0

    def column(self, place: Int64Array) -> Int64Array:
        """Each place's number in this program; -1 for known times and those beyond the sub-graph (and place -1)."""
        unknown = np.where(place < 0, -1, self._system.column[place])
        found = np.minimum(np.searchsorted(self._inside, unknown), max(len(self._inside) - 1, 0))
        return np.where(self._inside[found] == unknown, found, -1)

    def solve(self, objective: FloatArray) -> FloatArray | None:
        """A solution of the least objective, or None."""
        highs = self._highs
        highs.changeColsCost(len(objective), np.arange(len(objective), dtype=np.int32), objective)
        highs.run()
        self.solves += 1
        if str(highs.getModelStatus()) != "HighsModelStatus.kOptimal":
            highs.clearSolver()
            return None
        return np.asarray(highs.getSolution().col_value)

    def proved(self, objective: FloatArray) -> float:
        """What the last solve proves the objective to be at least, whatever its tolerances.

        For any multipliers y, objective @ x = y @ (matrix @ x) + (objective - y @ matrix) @ x, and each term is at
        least what its limits are. Multipliers of a limit that does not exist are rounding, and left out.
        """
        y = np.asarray(self._highs.getSolution().row_dual)
        limit = np.where(y > 0, self._low, self._high)
        y = np.where(np.isfinite(limit), y, 0.0)
        rest = objective - self._matrix_by_column @ y
        by_rows = y @ np.where(y == 0, 0.0, limit)
        return float(by_rows + rest @ np.where(rest > 0, self._least, self._most))

    def _rows(self, bounds: Bounds) -> tuple[sparse.csr_matrix, FloatArray, FloatArray]:
        """The rows that touch the sub-graph and constrain more than the bounds of its unknowns."""
        system, inside = self._system, self._inside
        rows = np.unique(system.row[ranges(system.row_start[inside], np.diff(system.row_start)[inside])[0]])
        counts = np.diff(system.start)[rows]
        entry, _offset = ranges(system.start[rows], counts)
        begin = np.cumsum(counts) - counts
        later, earlier = system.later[entry], system.earlier[entry]
        to, from_ = self.column(later), self.column(earlier)
        least, most = self._constants(bounds, later, earlier, to, from_)
        row = np.repeat(np.arange(len(rows)), counts)
        ends, columns = np.concatenate([row, row]), np.concatenate([to, from_])
        signs = np.repeat([1.0, -1.0], len(row))
        known = columns < 0
        shape = len(rows), len(inside)
        matrix = sparse.csr_matrix((signs[~known], (ends[~known], columns[~known])), shape=shape)
        if not len(rows):
            return matrix, np.zeros(0), np.zeros(0)
        low = _limit(system.low_ns[rows], np.add.reduceat(most, begin))
        high = _limit(system.high_ns[rows], np.add.reduceat(least, begin))
        positive, negative = matrix.maximum(0), matrix.minimum(0)
        says_more = positive @ self._most + negative @ self._least > high
        says_more |= positive @ self._least + negative @ self._most < low
        kept = np.flatnonzero(says_more)
        return matrix[kept], low[kept], high[kept]

    def _constants(
        self, bounds: Bounds, later: Int64Array, earlier: Int64Array, to: Int64Array, from_: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """What each difference adds to its row at least and at most beside the program's unknowns, in ns."""
        least = np.where(to >= 0, self.middle_ns[to], bounds.low_ns[later])
        most = np.where(to >= 0, self.middle_ns[to], bounds.high_ns[later])
        least -= np.where(from_ >= 0, self.middle_ns[from_], bounds.high_ns[earlier])
        most -= np.where(from_ >= 0, self.middle_ns[from_], bounds.low_ns[earlier])
        is_delay_beyond = (to < 0) & (from_ < 0) & (later == earlier + 1)
        least = np.where(is_delay_beyond, np.maximum(least, bounds.least_ns[earlier]), least)
        most = np.where(is_delay_beyond, np.minimum(most, bounds.most_ns[earlier]), most)
        return least, most

    def _load(self) -> Any:
        try:
            import highspy
        except ImportError:
            raise UsageError("linear bounds need the highspy package", action="install sojourn[tomography]") from None
        new_solver: Any = highspy.Highs
        highs = new_solver()
        for name, value in OPTIONS.items():
            highs.setOptionValue(name, value)
        program = highspy.HighsLp()
        program.num_row_, program.num_col_ = self._matrix.shape
        program.col_cost_ = np.zeros(len(self._inside))
        program.col_lower_, program.col_upper_ = self._least, self._most
        program.row_lower_, program.row_upper_ = self._low, self._high
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = self._matrix.indptr
        program.a_matrix_.index_ = self._matrix.indices
        program.a_matrix_.value_ = self._matrix.data
        highs.passModel(program)
        return highs


def _limit(limit_ns: Int64Array, constant_ns: Int64Array) -> FloatArray:
    """A row's limit in ms for what is left of it without its constant."""
    without = (limit_ns - constant_ns) / NS_PER_MS
    without[limit_ns == UNLIMITED_NS] = np.inf
    without[limit_ns == -UNLIMITED_NS] = -np.inf
    return without
