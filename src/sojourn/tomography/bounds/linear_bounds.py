"""Bounds by linear programming: the exact least and most of every unknown arrival and delay (Domo, Section IV.C).

Propagation looks at one constraint at a time; a linear program looks at all of a sub-graph's at once, so its bounds are
never wider. Times beyond a sub-graph stay within the bounds that they have. One program serves all unknowns of a
sub-graph's core: only its objective changes, and each solve starts where the last one ended (a warm start). A bound
that any solution attains is exact already and needs no solve of its own: sums of many objectives come first, and settle
most.

Sub-graphs: vertices are unknowns; an edge joins two that a constraint ties together: the times of a delay, those of a
proved order, neighbours on one path, and the first time of a sum of delays with each of its others (all pairs of them
would be quadratic). `partition` divides all unknowns into cores of about equal size, starting from slices of time;
`surround` grows a core to a sub-graph of a given size, breadth first, so that the core lies far from its edge. Both
then refine the cut by balanced label propagation (Ugander and Backstrom): vertices move to where more of their
neighbours are, best first, as long as there is room; each move cuts fewer edges than before, so it ends.

Guarantee: as that of the bounds they start from. A bound is what the solve's dual values prove, computed again from the
rows, so that no tolerance of the solver can break it. Every solve's status is checked; an unsolved bound keeps what
propagation gave and is counted.
Cost: a few ms for a solve in a sub-graph of 10 000 unknowns, O(edges) for each of a few passes of partitioning; nothing
is shared, so that cores can go to workers.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.core.executors.executor import Executor, LocalExecutor
from sojourn.core.kernels import kernel
from sojourn.core.results import Advance
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, tighten
from sojourn.tomography.bounds.linear_program import NS_PER_MS, LinearProgram, System, linear_system
from sojourn.tomography.trace import CollectionTrace

PASSES = 20
ROOM = 1.05  # a part may become larger than its share by this
FRINGE = 1.2  # how far beyond a sub-graph's size its edge may move


@dataclass(frozen=True)
class Graph:
    """The neighbours of vertex u are `neighbour[start[u]:start[u + 1]]`; each edge is listed at both its ends."""

    start: Int64Array
    neighbour: Int64Array

    def __len__(self) -> int:
        return len(self.start) - 1


def constraint_graph(system: System) -> Graph:
    """The unknowns that constraints tie together."""
    counts = np.diff(system.start)
    first = np.repeat(system.column[system.later[system.start[:-1]]], counts)
    later, earlier = system.column[system.later], system.column[system.earlier]
    single = np.repeat(counts == 1, counts)
    # Unknowns of one packet that follow each other belong together even where no row ties them.
    follows = np.flatnonzero(np.diff(system.place) == 1)
    one = np.concatenate([np.where(single, earlier, first), first, follows])
    other = np.concatenate([later, np.where(single, -1, earlier), follows + 1])
    exists = (one >= 0) & (other >= 0) & (one != other)
    pairs = np.unique(np.sort(np.stack([one[exists], other[exists]]), axis=0), axis=1)
    ends, neighbours = np.concatenate([pairs[0], pairs[1]]), np.concatenate([pairs[1], pairs[0]])
    arranged = np.lexsort((neighbours, ends))
    return Graph(np.searchsorted(ends[arranged], np.arange(len(system) + 1)).astype(np.int64), neighbours[arranged])


def partition(graph: Graph, times: Int64Array, size: int) -> Int64Array:
    """The part of every vertex, each about as large as `size` or a little smaller, of few cut edges.

    `times` gives the order in which vertices are sliced at first.
    """
    parts = -(-len(graph) // size)
    label = np.empty(len(graph), np.int64)
    label[np.argsort(times, kind="stable")] = np.arange(len(graph)) * parts // max(len(graph), 1)
    limit = np.full(parts, int(np.ceil(ROOM * len(graph) / max(parts, 1))))
    everywhere = np.arange(len(graph))
    _balance(graph.start, graph.neighbour, everywhere, label, limit, np.bincount(label, minlength=parts))
    return label


def surround(graph: Graph, core: Int64Array, size: int) -> Int64Array:
    """The sub-graph around `core` of at most `size` vertices (more only if the core has more), in ascending order."""
    size = max(size, len(core))
    reached = _reach(graph.start, graph.neighbour, core, int(FRINGE * size))
    if len(reached) <= size:
        return np.sort(reached)
    inside, beyond = 0, 1
    label = np.full(len(graph), beyond)
    label[reached[:size]] = inside
    limit, members = np.array([size, len(graph)]), np.array([size, len(graph) - size])
    _balance(graph.start, graph.neighbour, reached[len(core) :], label, limit, members)
    return np.sort(reached[label[reached] == inside])


@kernel
def _reach(start: Int64Array, neighbour: Int64Array, core: Int64Array, most: int) -> Int64Array:
    """The core and what lies around it, nearest first, up to `most` vertices."""
    is_reached = np.zeros(len(start) - 1, np.bool_)
    queue = np.empty(max(min(most, len(start) - 1), len(core)), np.int64)
    queue[: len(core)] = core
    is_reached[core] = True
    count, done = len(core), 0
    while done < count and count < len(queue):
        vertex = queue[done]
        done += 1
        for k in range(start[vertex], start[vertex + 1]):
            if not is_reached[neighbour[k]] and count < len(queue):
                is_reached[neighbour[k]] = True
                queue[count] = neighbour[k]
                count += 1
    return queue[:count]


@kernel
def _balance(
    start: Int64Array,
    neighbour: Int64Array,
    movable: Int64Array,
    label: Int64Array,
    limit: Int64Array,
    members: Int64Array,
) -> None:
    """Move vertices to where more of their neighbours are, largest gain first.

    No label has more than its limit, or is left by its last vertex. Gains are looked at again before each move, as
    earlier moves change them.
    """
    counts = np.zeros(len(limit), np.int64)
    gain, target = np.empty(len(movable), np.int64), np.empty(len(movable), np.int64)
    for _ in range(PASSES):
        for i in range(len(movable)):
            gain[i], target[i] = _best_move(movable[i], start, neighbour, label, counts)
        has_moved = False
        for i in np.argsort(-gain):
            if gain[i] <= 0:
                break
            vertex = movable[i]
            now, where = _best_move(vertex, start, neighbour, label, counts)
            if now > 0 and members[where] < limit[where] and members[label[vertex]] > 1:
                members[where] += 1
                members[label[vertex]] -= 1
                label[vertex] = where
                has_moved = True
        if not has_moved:
            break


@kernel
def _best_move(
    vertex: int, start: Int64Array, neighbour: Int64Array, label: Int64Array, counts: Int64Array
) -> tuple[int, int]:
    """How many fewer edges are cut if a vertex takes its neighbours' commonest other label, and that label."""
    own, best = label[vertex], label[vertex]
    for k in range(start[vertex], start[vertex + 1]):
        counts[label[neighbour[k]]] += 1
    for k in range(start[vertex], start[vertex + 1]):
        other = label[neighbour[k]]
        if other != own and (best == own or counts[other] > counts[best]):
            best = other
    gain = counts[best] - counts[own] if best != own else 0
    for k in range(start[vertex], start[vertex + 1]):
        counts[label[neighbour[k]]] = 0
    return gain, best


SMALLEST_CUT = 10
CORES_PER_CUT = 8  # a sub-graph is so many times as large as its core, which thus lies far from the edge
ATTAINED_MS = 1e-4
FEWEST_TOGETHER = 4
SECONDS_PER_BOUND = 1e-3  # about, of one processor, to see whether workers are worth starting


@dataclass(frozen=True)
class LinearBounds:
    """Tightened bounds; `asked` bounds were looked at by `solves` linear programs, `unsolved` of them in vain."""

    bounds: Bounds
    asked: int
    solves: int
    unsolved: int


def bound_linear(
    trace: CollectionTrace,
    bounds: Bounds,
    options: ConstraintOptions | None = None,
    *,
    cut: int = 10_000,
    packet: int | None = None,
    executor: Executor | None = None,
    advance: Advance | None = None,
) -> LinearBounds:
    """The bounds tightened by programs of at most `cut` unknowns each; of one packet only if it is given.

    `options` are those that the bounds were made with.
    """
    if cut < SMALLEST_CUT:
        raise ParameterError(f"a cut of {cut} unknowns", action=f"use {SMALLEST_CUT} or more")
    options = options or ConstraintOptions()
    system = linear_system(trace, bounds, options)
    graph = constraint_graph(system)
    cores = _cores(trace, bounds, system, graph, cut, packet)
    arrays = [bounds.low_ns.copy(), bounds.high_ns.copy(), bounds.least_ns.copy(), bounds.most_ns.copy()]
    counts: Counter[str] = Counter()
    done, total = 0, sum(map(len, cores))
    run = executor or LocalExecutor(1)
    solver = _CoreSolver(system, graph, bounds, cut)
    with closing(run.map(solver, cores, seconds=4 * SECONDS_PER_BOUND * total)) as answers:
        for core, (tightened, counted) in zip(cores, answers, strict=True):
            for values, (place, found) in zip(arrays, tightened, strict=True):
                values[place] = found
            counts.update(counted)
            done += len(core)
            if advance is not None:
                advance("bounding by linear programs", done / total)
    low, high, least, most = arrays
    narrowed = tighten(trace, replace(bounds, low_ns=low, high_ns=high, least_ns=least, most_ns=most), options)
    return LinearBounds(narrowed, counts["asked"], counts["solves"], counts["unsolved"])


def _cores(
    trace: CollectionTrace, bounds: Bounds, system: System, graph: Graph, cut: int, packet: int | None
) -> list[Int64Array]:
    """The unknowns to bound, in groups that share a program."""
    if packet is not None:
        inside = (system.place >= trace.start[packet]) & (system.place < trace.start[packet + 1])
        return [np.flatnonzero(inside)] if inside.any() else []
    if not len(system):
        return []
    middle = bounds.low_ns[system.place] + bounds.high_ns[system.place]
    label = partition(graph, middle, max(cut // CORES_PER_CUT, 1))
    order = np.argsort(label, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(label[order])) + 1)


# Places and their new values, of the earliest and latest arrivals, of the least and most delays; and counts.
_CoreAnswer = tuple[tuple[tuple[Int64Array, Int64Array], ...], dict[str, int]]


@dataclass(frozen=True)
class _CoreSolver:
    """Bounds the unknowns of a core: picklable, so that workers can."""

    system: System
    graph: Graph
    bounds: Bounds
    cut: int

    def __call__(self, core: Int64Array) -> _CoreAnswer:
        bounds, system = self.bounds, self.system
        program = LinearProgram(system, bounds, surround(self.graph, core, self.cut))
        arrivals = system.place[core]
        # A delay next to a known time is known with the other time's bounds.
        delays = arrivals[program.column(arrivals + 1) >= 0]
        targets = _Targets(program, bounds, arrivals, delays)
        targets.settle()
        low, high = targets.found()
        split = len(arrivals)
        return (
            ((arrivals, low[:split]), (arrivals, high[:split]), (delays, low[split:]), (delays, high[split:])),
            {"asked": 2 * len(low), "solves": program.solves, "unsolved": targets.unsolved},
        )


class _Targets:
    """What to bound: arrivals, then delays; each from below and from above."""

    def __init__(self, program: LinearProgram, bounds: Bounds, arrivals: Int64Array, delays: Int64Array) -> None:
        self._program = program
        self._plus = program.column(np.concatenate([arrivals, delays + 1]))
        self._minus = program.column(np.concatenate([np.full(len(arrivals), -1), delays]))
        self._zero_ns = program.middle_ns[self._plus] - np.where(self._minus < 0, 0, program.middle_ns[self._minus])
        self._low_ns = np.concatenate([bounds.low_ns[arrivals], bounds.least_ns[delays]])
        self._high_ns = np.concatenate([bounds.high_ns[arrivals], bounds.most_ns[delays]])
        self._low = (self._low_ns - self._zero_ns) / NS_PER_MS
        self._high = (self._high_ns - self._zero_ns) / NS_PER_MS
        self._is_pending = {1: self._low < self._high, -1: self._low < self._high}
        self._random = np.random.default_rng(len(arrivals))  # only chooses which objectives go together
        self.unsolved = 0

    def found(self) -> tuple[Int64Array, Int64Array]:
        """Bounds in ns, rounded outwards and never wider than they were."""
        low = np.floor(self._low * NS_PER_MS).astype(np.int64) + self._zero_ns - 1
        high = np.ceil(self._high * NS_PER_MS).astype(np.int64) + self._zero_ns + 1
        low, high = np.maximum(low, self._low_ns), np.minimum(high, self._high_ns)
        return np.minimum(low, high), high

    def settle(self) -> None:
        """Bound every target; none if the sub-graph has no solution at all."""
        if self._program.solve(np.zeros(len(self._program.middle_ns))) is None:
            self.unsolved += 2 * len(self._plus)
            return
        for sign in (1, -1):
            self._settle_together(sign)
            for target in np.flatnonzero(self._is_pending[sign]):
                if self._is_pending[sign][target]:
                    self._settle_one(int(target), sign)

    def _settle_together(self, sign: int) -> None:
        """Minimise many targets' sum: those that reach their bound in it are done; fewer at once as fewer do."""
        pending, share = self._is_pending[sign], 1.0
        while True:
            waiting = np.flatnonzero(pending)
            count = int(share * len(waiting))
            if count < FEWEST_TOGETHER:
                return
            chosen = self._random.choice(waiting, count, replace=False)
            x = self._program.solve(self._objective(chosen, sign))
            if x is None:
                return
            self._note(x)
            if 2 * int(pending[chosen].sum()) > count:
                share /= 2

    def _settle_one(self, target: int, sign: int) -> None:
        objective = self._objective(np.array([target]), sign)
        x = self._program.solve(objective)
        self._is_pending[sign][target] = False
        if x is None:
            self.unsolved += 1
            return
        proved = sign * self._program.proved(objective)
        if sign == 1:
            self._low[target] = max(self._low[target], proved)
        else:
            self._high[target] = min(self._high[target], proved)
        self._note(x)

    def _objective(self, targets: Int64Array, sign: int) -> FloatArray:
        objective = np.zeros(len(self._program.middle_ns))
        np.add.at(objective, self._plus[targets], sign)
        minus = self._minus[targets]
        np.add.at(objective, minus[minus >= 0], -sign)
        return objective

    def _note(self, x: FloatArray) -> None:
        """A solution proves that the bounds it attains cannot be tightened."""
        value = x[self._plus] - np.where(self._minus < 0, 0, x[self._minus])
        self._is_pending[1] &= value > self._low + ATTAINED_MS
        self._is_pending[-1] &= value < self._high - ATTAINED_MS
