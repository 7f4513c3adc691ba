"""One window's quadratic program: unknown arrival times, constraints and objective as sparse matrices, its solvers.

Unknowns are the arrival times between origin and sink, in ms from the middle of their bounds: small numbers, which
first-order solvers need. Every delay is a difference of two places, each an unknown or a known time. Rows that the
bounds already imply are left out. OSQP solves it, Clarabel what that leaves unconverged; every status is checked.
Cost: O(places + pairs + members) of the window in numpy, once the trace's pairs and groups are sorted by packet.

Objective. A visit waits for the packet before it at its node and is then *served*: its service begins when it arrives,
or when the packet before it leaves if that is later. Services at a node are similar (Domo says so of delays, Eq. 8,
which is true where queues are short). Each is shrunk towards its node's centre: the median of the node's services,
itself shrunk towards the window's median as if `PRIOR_VISITS` more visits had been seen there. Few packets say little
of a node, and without that prior centres drift to whatever the bounds leave open: where sums are missing, dividing a
packet's time evenly would beat them. Nodes that differ for the whole trace have a prior of their own (`node_factors`).

Services are skewed: a retransmission may double one, nothing makes it much shorter. So the loss is Huber's: a service
`HUBER` centres off pulls no harder than one at that distance, and one below its centre weighs `BELOW` times as much as
one above. A packet without a sum gives no evidence which of its hops was slow: its time is divided more evenly
(`UNSUMMED_HUBER`). The services of a node weigh less the wider they scatter. All is measured in centres, so no unit of
time matters.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, ranges
from sojourn.core.errors import UsageError
from sojourn.core.executors.interrupts import interrupts_held
from sojourn.tomography.bounds.constraints import Bounds
from sojourn.tomography.trace import CollectionTrace

NS_PER_MS = 1e6
LARGEST_PULL = 20  # groups with more members give little evidence of each


@dataclass(frozen=True)
class WindowProgram:
    """Delays are `delay @ x + delay_known`, and `low <= rows @ x <= high` (bounds of x first); all in ms.

    Every visit's departure, from some time on, is `departure @ x + departure_known`.
    `pull @ x + pull_known` is each whole group's sum of delays less S, which is at most 0 but for rounding. If sums are
    elastic, the last `excesses` unknowns are how far sums of delays exceed S: 0 or more, and to be charged for.
    """

    visits: Int64Array
    node: Int64Array  # of every visit, numbered from 0 within the window
    nodes: int
    is_summed: BoolArray  # of every visit: whether a sum includes its packet, at any node
    factor: FloatArray  # of every node: its usual delay over the whole trace, relative to the others'
    delay: sparse.csr_matrix
    delay_known: FloatArray
    departure: sparse.csr_matrix
    departure_known: FloatArray
    rows: sparse.csc_matrix
    low: FloatArray
    high: FloatArray
    pull: sparse.csr_matrix
    pull_known: FloatArray
    pull_members: Int64Array
    excesses: int


class _Times:
    """A window's places as unknowns or known times; `local` is the index of each place of the trace in the window."""

    def __init__(self, bounds: Bounds, places: Int64Array, local: Int64Array) -> None:
        base = int(bounds.low_ns[places].min())
        self.low = (bounds.low_ns[places] - base) / NS_PER_MS
        self.high = (bounds.high_ns[places] - base) / NS_PER_MS
        self.local = local
        is_unknown = bounds.high_ns[places] > bounds.low_ns[places]
        self.column = np.where(is_unknown, np.cumsum(is_unknown) - 1, -1)
        self.unknowns = int(is_unknown.sum())
        self.places = np.flatnonzero(is_unknown)

    def matrix(
        self, row: Int64Array, place: Int64Array, sign: FloatArray, rows: int
    ) -> tuple[sparse.csr_matrix, FloatArray]:
        """Sums of times as a matrix over the unknowns and what the known ones add; places count within the window."""
        column = self.column[place]
        open_ = column >= 0
        matrix = sparse.csr_matrix((sign[open_], (row[open_], column[open_])), shape=(rows, self.unknowns))
        known = np.zeros(rows)
        np.add.at(known, row[~open_], (sign * self.low[place])[~open_])
        return matrix, known

    def differences(self, later: Int64Array, earlier: Int64Array) -> tuple[sparse.csr_matrix, FloatArray]:
        number = np.arange(len(later))
        ones = np.ones(len(later))
        return self.matrix(
            np.concatenate([number, number]),
            np.concatenate([later, earlier]),
            np.concatenate([ones, -ones]),
            len(later),
        )


@dataclass(frozen=True)
class _Rows:
    """Rows `low <= matrix @ x + known <= high`."""

    matrix: sparse.csr_matrix
    known: FloatArray
    low: FloatArray
    high: FloatArray


class Programs:
    """Makes the programs of a trace's windows; has its proved pairs and its groups by packet."""

    def __init__(
        self,
        trace: CollectionTrace,
        bounds: Bounds,
        *,
        tolerance_ns: int,
        epsilon_ns: int,
        factor: FloatArray | None = None,
        is_elastic: bool = False,
    ) -> None:
        self._trace, self._bounds, self._is_elastic = trace, bounds, is_elastic
        self._factor = np.ones(len(trace.node)) if factor is None else factor
        self._tolerance, self._epsilon = tolerance_ns / NS_PER_MS, epsilon_ns / NS_PER_MS
        self._local = np.full(len(trace.node), -1, np.int64)
        owner, is_local = trace.owner, trace.hop == 0
        proved = np.abs(bounds.order) == 1
        forward = bounds.order[proved] == 1
        a, b = bounds.first[proved], bounds.second[proved]
        earlier, later = np.where(forward, a, b), np.where(forward, b, a)
        arranged = np.argsort(owner[earlier], kind="stable")
        self._earlier, self._later = earlier[arranged], later[arranged]
        self._pair_start = np.searchsorted(owner[self._earlier], np.arange(len(trace) + 1))
        # A local packet may be stamped after a forwarded one that it is ahead of in the queue.
        self._slack = np.where(is_local[self._earlier] & ~is_local[self._later], self._epsilon, 0.0)
        self._group_of = np.full(len(trace), -1, np.int64)
        self._group_of[owner[bounds.groups.last]] = np.arange(len(bounds.groups.last))
        groups = bounds.groups
        speaks = np.repeat(groups.is_used, np.diff(groups.start)) & ~groups.is_out
        self._is_summed = np.zeros(len(trace), np.bool_)
        self._is_summed[owner[groups.member[speaks]]] = True

    def make(self, packets: Int64Array) -> WindowProgram:
        """The program of a window's packets."""
        trace, bounds = self._trace, self._bounds
        lengths = np.diff(trace.start)[packets]
        places, offset = ranges(trace.start[packets], lengths)
        self._local[places] = np.arange(len(places))
        times = _Times(bounds, places, self._local)
        # A packet that went straight to the sink has nothing unknown but shows how long its node takes.
        visit = np.flatnonzero(offset < np.repeat(lengths - 1, lengths))
        delay, delay_known = times.differences(visit + 1, visit)
        departure, departure_known = times.matrix(np.arange(len(visit)), visit + 1, np.ones(len(visit)), len(visit))
        pull, pull_known, pull_members, sums = self._sum_rows(times, packets)
        blocks = [
            _delay_rows(bounds, times, places[visit], visit, delay, delay_known),
            self._fifo_rows(times, packets),
            sums,
        ]
        self._local[places] = -1
        nodes, place, node = np.unique(trace.node[places[visit]], return_index=True, return_inverse=True)
        unknown_low, unknown_high = times.low[times.places], times.high[times.places]
        middle = (unknown_low + unknown_high) / 2
        excesses = len(sums.known) if self._is_elastic else 0
        if excesses:
            blocks[-1] = _elastic(sums)
            for matrix in (delay, departure, pull, *(block.matrix for block in blocks[:-1])):
                matrix.resize(matrix.shape[0], len(middle) + excesses)
            unknown_low, middle = (np.append(each, np.zeros(excesses)) for each in (unknown_low, middle))
            unknown_high = np.append(unknown_high, np.full(excesses, np.inf))
        rows = sparse.vstack([sparse.identity(len(middle)), *(block.matrix for block in blocks)], format="csc")
        at_middle = rows @ middle
        return WindowProgram(
            visits=places[visit],
            node=node,
            nodes=len(nodes),
            is_summed=np.repeat(self._is_summed[packets], lengths - 1),
            factor=self._factor[places[visit][place]],
            delay=delay,
            delay_known=delay_known + delay @ middle,
            departure=departure,
            departure_known=departure_known + departure @ middle,
            rows=rows,
            low=np.concatenate([unknown_low, *(block.low - block.known for block in blocks)]) - at_middle,
            high=np.concatenate([unknown_high, *(block.high - block.known for block in blocks)]) - at_middle,
            pull=pull,
            pull_known=pull_known + pull @ middle,
            pull_members=pull_members,
            excesses=excesses,
        )

    def _fifo_rows(self, times: _Times, packets: Int64Array) -> _Rows:
        """The first of two packets at a node arrives and leaves first, where the bounds leave that open."""
        pairs, _offset = ranges(self._pair_start[packets], np.diff(self._pair_start)[packets])
        pairs = pairs[times.local[self._later[pairs]] >= 0]
        x, y = times.local[self._earlier[pairs]], times.local[self._later[pairs]]
        earlier, later = np.concatenate([x + 1, x]), np.concatenate([y + 1, y])
        slack = np.concatenate([np.zeros(len(x)), self._slack[pairs]])
        is_open = times.high[earlier] > times.low[later] + slack
        matrix, known = times.differences(later[is_open], earlier[is_open])
        return _Rows(matrix, known, -slack[is_open], np.full(int(is_open.sum()), np.inf))

    def _sum_rows(self, times: _Times, packets: Int64Array) -> tuple[sparse.csr_matrix, FloatArray, Int64Array, _Rows]:
        """The sums as rows; and, where S is an upper bound, whole groups once more as what pulls members up to it."""
        groups, is_exact = self._bounds.groups, self._bounds.is_exact
        used = self._group_of[packets]
        used = used[used >= 0]
        used = used[groups.is_used[used]]
        counts = np.diff(groups.start)[used]
        entry, _offset = ranges(groups.start[used], counts)
        row = np.repeat(np.arange(len(used)), counts)
        possible = ~groups.is_out[entry]
        entry, row = entry[possible], row[possible]
        inside = times.local[groups.member[entry]] >= 0
        whole = np.bincount(row[inside], minlength=len(used)) == np.bincount(row, minlength=len(used))
        entry, row = entry[inside], row[inside]
        members = np.bincount(row, minlength=len(used))
        total = groups.sum_ns[used] / NS_PER_MS
        sure = groups.is_sure[entry]
        at_least, known_least = _summed(times, row[sure], groups.member[entry[sure]], len(used))
        at_most, known_most = _summed(times, row, groups.member[entry], len(used))
        has_unknown = np.diff(at_most.indptr) > 0
        is_equation = has_unknown & whole & groups.is_closed[used] & is_exact
        is_settled = np.bincount(row[sure], minlength=len(used)) == members
        # Where every member is sure one row has both limits; two rows of the same members would slow the solver down.
        upper = np.flatnonzero(has_unknown)
        lower = np.flatnonzero(is_equation & ~is_settled)
        from_below = np.where(is_equation & is_settled, total - self._tolerance, -np.inf)
        rows = _Rows(
            sparse.vstack([at_least[upper], at_most[lower]], format="csr"),
            np.concatenate([known_least[upper], known_most[lower]]),
            np.concatenate([from_below[upper], total[lower] - self._tolerance]),
            np.concatenate([total[upper] + self._tolerance, np.full(len(lower), np.inf)]),
        )
        may_pull = has_unknown & whole & groups.is_whole[used]
        pulled = np.flatnonzero(may_pull & (members <= LARGEST_PULL) & (not is_exact))
        return at_most[pulled], known_most[pulled] - total[pulled], members[pulled], rows


class ThreadPrograms:
    """What `make` makes of what is given, for each thread its own, as making a window's program uses scratch space.

    Travels to workers without them.
    """

    def __init__(self, make: Callable[..., list[Programs]], *given: Any) -> None:
        self._make, self._given, self._here = make, given, threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadPrograms, (self._make, *self._given)

    def __call__(self) -> list[Programs]:
        if not hasattr(self._here, "made"):
            self._here.made = self._make(*self._given)
        made: list[Programs] = self._here.made
        return made


def _delay_rows(
    bounds: Bounds,
    times: _Times,
    place: Int64Array,
    visit: Int64Array,
    delay: sparse.csr_matrix,
    known: FloatArray,
) -> _Rows:
    """Least and most delay of each visit, where its times' bounds do not imply it."""
    least, most = bounds.least_ns[place] / NS_PER_MS, bounds.most_ns[place] / NS_PER_MS
    says_more = (least > times.low[visit + 1] - times.high[visit]) | (most < times.high[visit + 1] - times.low[visit])
    kept = np.flatnonzero(says_more & (np.diff(delay.indptr) > 0))
    return _Rows(delay[kept], known[kept], least[kept], most[kept])


def _elastic(rows: _Rows) -> _Rows:
    """Rows that an unknown of their own, added behind the others, lets exceed their upper limit."""
    excess = sparse.identity(len(rows.known), format="csr")
    return _Rows(sparse.hstack([rows.matrix, -excess], format="csr"), rows.known, rows.low, rows.high)


def _summed(times: _Times, row: Int64Array, member: Int64Array, rows: int) -> tuple[sparse.csr_matrix, FloatArray]:
    """The members' delays added up in the rows given."""
    local = times.local[member]
    ones = np.ones(len(row))
    return times.matrix(
        np.concatenate([row, row]), np.concatenate([local + 1, local]), np.concatenate([ones, -ones]), rows
    )


# Chosen on seeds 1 to 20 of `sojourn lab wireless`; docs/maths/tomography.md has what each of them brings.
PRIOR_VISITS = 60.0
SPREAD_VISITS = 30.0
HUBER, UNSUMMED_HUBER, BELOW = 0.45, 1.0, 2.5
LARGEST_SPREAD = 4.0
LEAST_CENTRE_MS = 0.1
SETTLING = range(1, 4)  # the rounds after which it is decided again who waited for whom
CROWDED = 0.05  # where more visits than this waited for others, totals do not show how nodes differ
TINY = 1e-6


class NodeCentres:
    """The centres of a window's nodes, learnt from round to round, and the squares of the distances to them."""

    def __init__(self, program: WindowProgram) -> None:
        self._program = program
        self._rows, self._known = program.delay, program.delay_known
        self._count = np.bincount(program.node, minlength=program.nodes)
        self._factor = program.factor / np.median(program.factor[program.node])
        # With every unknown in the middle of its bounds delays still add up to the packets' times.
        self.scale = max(float(program.delay_known.mean()), LEAST_CENTRE_MS)
        self._centre = self.scale * self._factor / self._factor[program.node].mean()
        self._weight = np.ones(len(program.node))
        self._reach = np.where(program.is_summed, HUBER, UNSUMMED_HUBER)
        self.is_rearranged = False

    def objective(self) -> tuple[sparse.csc_matrix, FloatArray]:
        """Upper triangle and linear part of the weighted squares of all distances."""
        weighted = sparse.diags(2 * self._weight) @ self._rows
        square = self._rows.T @ weighted + TINY * sparse.identity(self._rows.shape[1])
        off = self._known - self._centre[self._program.node]
        return sparse.triu(square, format="csc"), np.asarray(weighted.T @ off)

    def learn(self, x: FloatArray, number: int) -> None:
        """Take what round `number` found: who waited for whom, centres and weights."""
        self.is_rearranged = number in SETTLING and self._rearrange(x)
        node, nodes = self._program.node, self._program.nodes
        service = self._rows @ x + self._known
        self.scale = max(float(np.median(service / self._factor[node])), LEAST_CENTRE_MS)
        own = medians(service, node, nodes)
        prior = self.scale * self._factor
        self._centre = (PRIOR_VISITS * prior + self._count * own) / (PRIOR_VISITS + self._count)
        off = service - self._centre[node]
        size = np.abs(off)
        reach = self._reach * self.scale
        self._weight = np.where(off < 0, BELOW, 1.0) * reach / np.maximum(size, reach) * self._steadiness(size)[node]

    def _steadiness(self, off: FloatArray) -> FloatArray:
        """How little each node's services scatter, 1 for the usual; few visits count as usual."""
        capped = np.minimum(off, LARGEST_SPREAD * self.scale)
        usual = max(float(capped.mean()), TINY)
        total = np.bincount(self._program.node, capped, self._program.nodes)
        steadiness: FloatArray = usual * (SPREAD_VISITS + self._count) / (SPREAD_VISITS * usual + total)
        return steadiness

    def _rearrange(self, x: FloatArray) -> bool:
        """Let services begin where the packet before left, if that is after the arrival; whether anything changed."""
        program = self._program
        delay = program.delay @ x + program.delay_known
        departure = program.departure @ x + program.departure_known
        before, has_waited = served_behind(program.node, departure - delay, departure)
        if has_waited.mean() > CROWDED:
            self._factor = np.ones(program.nodes)
        begin = sparse.vstack([program.departure - program.delay, program.departure], format="csr")
        begin_known = np.concatenate([program.departure_known - program.delay_known, program.departure_known])
        source = np.where(has_waited, len(delay) + before, np.arange(len(delay)))
        rows = program.departure - begin[source]
        is_same = (rows != self._rows).nnz == 0
        self._rows, self._known = rows, program.departure_known - begin_known[source]
        return not is_same


def served_behind(node: Int64Array, arrival: FloatArray, departure: FloatArray) -> tuple[Int64Array, BoolArray]:
    """The visit that left each one's node just before it (itself if none did), and whether it had to wait for that."""
    order = np.lexsort((arrival, departure, node))
    before = np.arange(len(node))
    follows = np.diff(node[order]) == 0
    before[order[1:]] = np.where(follows, order[:-1], order[1:])
    return before, (departure[before] > arrival) & (before != np.arange(len(node)))


def medians(values: FloatArray, group: Int64Array, groups: int) -> FloatArray:
    """The median of each group's values; every group has one."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=groups)
    start = np.cumsum(counts) - counts
    ordered = values[order]
    middle: FloatArray = (ordered[start + (counts - 1) // 2] + ordered[start + counts // 2]) / 2
    return middle


OSQP_SETTINGS = {"verbose": False, "eps_abs": 0.05, "eps_rel": 1e-3, "max_iter": 2_000, "check_termination": 10}


class Solver:
    """Solves a window's rounds, each from where the last one ended, and counts by whom."""

    def __init__(self, program: WindowProgram, solves: Counter[str]) -> None:
        self._program = program
        self._solves = solves
        self._problem: Any = None
        self._last: Any = None

    def forget(self) -> None:
        """The next program has another pattern."""
        self._problem = None

    def solve(self, square: sparse.csc_matrix, linear: FloatArray) -> FloatArray | None:
        """The unknowns that minimise the objective given; None if no solver converges."""
        program = self._program
        if self._problem is None:
            self._problem = _osqp(square, linear, program)
            if self._last is not None:
                self._problem.warm_start(x=self._last.x, y=self._last.y)
        else:
            self._problem.update(Px=square.data, q=linear)
        with interrupts_held():  # OSQP would take Ctrl-C for itself, and print that to stdout
            result = self._problem.solve(raise_error=False)
        if result.info.status == "solved":
            self._solves["osqp"] += 1
            self._last = result
            return np.asarray(result.x)
        if result.info.status == "interrupted":
            raise KeyboardInterrupt
        x = _clarabel(square, linear, program)
        self._solves["clarabel"] += x is not None
        return x


def _osqp(square: sparse.csc_matrix, linear: FloatArray, program: WindowProgram) -> Any:
    """The program set up for OSQP."""
    try:
        import osqp
    except ImportError:
        raise UsageError("tomography needs the osqp package", action="install sojourn[tomography]") from None
    problem = osqp.OSQP()
    problem.setup(square, linear, program.rows, program.low, program.high, **OSQP_SETTINGS)
    return problem


def _clarabel(square: sparse.csc_matrix, linear: FloatArray, program: WindowProgram) -> FloatArray | None:
    """The program's solution by an interior-point method: slower, but it converges."""
    try:
        import clarabel
    except ImportError:
        raise UsageError("tomography needs the clarabel package", action="install sojourn[tomography]") from None
    above, below = np.isfinite(program.high), np.isfinite(program.low)
    stacked = sparse.vstack([program.rows[above], -program.rows[below]], format="csc")
    limits = np.concatenate([program.high[above], -program.low[below]])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones = [clarabel.NonnegativeConeT(len(limits))]
    solution = clarabel.DefaultSolver(square, linear, stacked, limits, cones, settings).solve()
    return np.asarray(solution.x) if str(solution.status) in ("Solved", "AlmostSolved") else None
