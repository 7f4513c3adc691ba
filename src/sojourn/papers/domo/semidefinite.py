"""Domo's semidefinite relaxation of FIFO queues (§IV-A, Eq. 2 to 4), built as published: what it excludes, if anything.

Eq. 1 says of two packets at a node (u1 - u2)(u3 - u4) > 0, u1 and u2 their arrivals, u3 and u4 their departures. With
U = uuᵀ that is Tr(PU) > 0, and the equation is relaxed.

- As printed, (U u; uᵀ 1) ⪯ 0: no matrix with a 1 on its diagonal is negative semidefinite, so nothing is feasible.
- With its sign corrected, U ⪰ uuᵀ: every u is feasible. P has a positive eigenvalue (2, with v = (1, -1, 1, -1)/2), and
  U = uuᵀ + s vvᵀ makes Tr(PU) = uᵀPu + 2s as large as one likes. (One U for all pairs would change nothing: add s ττᵀ,
  τ any times that are in order.)

So the published program is Eq. 8 with order and sums alone. It is solved here by CVXPY on small windows, where that can
be seen: `relaxation` is the experiment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.errors import UsageError
from sojourn.papers.domo.worlds import NS_PER_MS, World, simulate
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale
from sojourn.tomography.bounds.constraints import ConstraintOptions, learn_omega
from sojourn.tomography.comparison import mnt_bounds, published_bounds

EXPERIMENT = "relaxation"
P = np.array([[0, 0, 1, -1], [0, 0, -1, 1], [1, -1, 0, 0], [-1, 1, 0, 0]]) / 2  # uᵀPu = (u1 - u2)(u3 - u4)
MARGIN = 1.0  # ms², for the ">" of Eq. 2
NODES, PERIOD_S, PACKETS = 400, 4.0, 30
SEEDS = {Scale.SMALL: (91, 92), Scale.PAPER: (91, 92, 93, 94)}
WINDOWS = {Scale.SMALL: 3, Scale.PAPER: 6}
TOLERANCE_MS = 0.55
BOUNDED = 6
SOLVER_MS = 0.1  # times that two solves of one program may differ by
TINY = 1e-3  # on the squares of all delays, so that there is one solution


class Fifo(StrEnum):
    """How Eq. 1 goes into the program."""

    NONE = "none"
    PRINTED = "Eq. 4 as printed"
    CORRECTED = "Eq. 4, sign corrected"
    PROVED = "order where it is proved"


@dataclass(frozen=True)
class SmallWindow:
    """A few packets in a row of a network's trace."""

    world: World
    packets: Int64Array

    @property
    def places(self) -> Int64Array:
        start = self.world.trace.start
        return np.concatenate([np.arange(start[p], start[p + 1]) for p in self.packets.tolist()])

    @property
    def visits(self) -> Int64Array:
        """Places where packets of two hops or more wait: the unknown delays."""
        return np.intersect1d(self.places, self.world.visits)


def small_windows(scale: Scale) -> list[SmallWindow]:
    """Windows of busy little networks: packets overlap at their nodes, so that their order matters."""
    found = []
    for seed in SEEDS[scale]:
        world = simulate(NODES, seed, period_s=PERIOD_S)
        by_time = np.argsort(world.trace.t0_ns, kind="stable")
        middle = len(by_time) // 2
        found += [
            SmallWindow(world, np.sort(by_time[middle + k * PACKETS : middle + (k + 1) * PACKETS]))
            for k in range(WINDOWS[scale])
        ]
    return found


def witness(u: FloatArray) -> FloatArray:
    """A U with U ⪰ uuᵀ and Tr(PU) >= MARGIN, whatever u is."""
    v = np.array([1, -1, 1, -1]) / 2
    lacking = max(MARGIN - float(u @ P @ u), 0.0) / float(v @ P @ v)
    matrix: FloatArray = np.outer(u, u) + lacking * np.outer(v, v)
    return matrix


def solve(window: SmallWindow, fifo: Fifo) -> FloatArray | None:
    """Arrival times of the window's places in ms from its start, by Eq. 5 to 8 and this FIFO; None if infeasible."""
    cvxpy = _cvxpy()
    times = _Times(cvxpy, window)
    delays = [times[v + 1] - times[v] for v in _all_visits(window).tolist()]
    node = window.world.trace.node[_all_visits(window)]
    differences = [delays[a] - delays[b] for a, b in combinations(range(len(delays)), 2) if node[a] == node[b]]
    objective = cvxpy.sum_squares(cvxpy.hstack(differences)) + TINY * cvxpy.sum_squares(cvxpy.hstack(delays))
    problem = cvxpy.Problem(cvxpy.Minimize(objective), _constraints(times, cvxpy, fifo))
    problem.solve(solver=cvxpy.CLARABEL)
    if not _is_solved(cvxpy, problem):
        return None
    found = (times[place] for place in window.places.tolist())
    return np.array([float(time if isinstance(time, float) else time.value) for time in found])


def widths(window: SmallWindow, fifo: Fifo) -> FloatArray | None:
    """How far the latest and the earliest of some unknown arrivals are apart (§IV-C), in ms; None if infeasible.

    The arrivals are the first that take part in a pair.
    """
    cvxpy = _cvxpy()
    times = _Times(cvxpy, window)
    chosen = sorted({place for x, y in _pairs(window) for place in (x, y) if place in times.column})[:BOUNDED]
    weight = cvxpy.Parameter(times.x.size)
    problem = cvxpy.Problem(cvxpy.Minimize(weight @ times.x), _constraints(times, cvxpy, fifo))
    found = []
    for place in chosen:
        ends = []
        for sign in (1.0, -1.0):
            weight.value = np.where(np.arange(times.x.size) == times.column[place], sign, 0.0)
            problem.solve(solver=cvxpy.CLARABEL)
            if not _is_solved(cvxpy, problem):
                return None
            ends.append(sign * float(problem.value))
        found.append(ends[1] - ends[0])
    return np.array(found)


def _constraints(times: _Times, cvxpy: Any, fifo: Fifo) -> list[Any]:
    # Eq. 5, for the times that are not both known.
    omega = learn_omega(times.window.world.trace) / NS_PER_MS
    rows = [times[v + 1] - times[v] >= omega for v in times.window.visits.tolist()]
    rows += _sum_rows(times, cvxpy)
    if fifo is Fifo.PROVED:
        rows += _proved_rows(times)
    elif fifo is not Fifo.NONE:
        sign = -1 if fifo is Fifo.PRINTED else 1
        rows += [row for pair in _pairs(times.window) for row in _relaxed_rows(times, cvxpy, pair, sign)]
    return rows


def _is_solved(cvxpy: Any, problem: Any) -> bool:
    return problem.status in (cvxpy.OPTIMAL, cvxpy.OPTIMAL_INACCURATE)


def _cvxpy() -> Any:
    try:
        import cvxpy
    except ImportError:
        raise UsageError("the semidefinite program needs the cvxpy package", action="install sojourn[papers]") from None
    return cvxpy


class _Times:
    """Every place's time in ms: a number where the trace has it, an unknown of `x` between origin and sink."""

    def __init__(self, cvxpy: Any, window: SmallWindow) -> None:
        trace = window.world.trace
        self.window = window
        self.begin_ns = int(trace.t0_ns[window.packets].min())
        ends = set(trace.start[:-1].tolist()) | set((trace.start[1:] - 1).tolist())
        unknown = [place for place in window.places.tolist() if place not in ends]
        self.column = {place: k for k, place in enumerate(unknown)}
        self.x = cvxpy.Variable(len(unknown))

    def __getitem__(self, place: int) -> Any:
        if place in self.column:
            return self.x[self.column[place]]
        trace = self.window.world.trace
        packet = int(np.searchsorted(trace.start, place, side="right")) - 1
        known = trace.t0_ns[packet] if place == trace.start[packet] else trace.sink_ns[packet]
        return float(known - self.begin_ns) / NS_PER_MS


def _all_visits(window: SmallWindow) -> Int64Array:
    places = window.places
    return places[window.world.trace.is_visit[places]]


def _sum_rows(times: _Times, cvxpy: Any) -> list[Any]:
    """Eq. 6 and 7 of the packets whose candidates are all in the window."""
    trace = times.window.world.trace
    groups = published_bounds(trace, ConstraintOptions()).groups
    inside = set(times.window.places.tolist())
    rows: list[Any] = []
    for g in np.flatnonzero(np.isin(groups.last, times.window.places)).tolist():
        entries = slice(groups.start[g], groups.start[g + 1])
        members, sure = groups.member[entries].tolist(), groups.is_sure[entries].tolist()
        total = groups.sum_ns[g] / NS_PER_MS
        at_least = sum(
            times[v + 1] - times[v] for v, is_sure in zip(members, sure, strict=True) if v in inside and is_sure
        )
        if isinstance(at_least, cvxpy.Expression):
            rows.append(at_least <= total + TOLERANCE_MS)
        if groups.is_closed[g] and inside.issuperset(members):
            at_most = sum(times[v + 1] - times[v] for v in members)
            if isinstance(at_most, cvxpy.Expression):
                rows.append(at_most >= total - TOLERANCE_MS)
    return rows


def _pairs(window: SmallWindow) -> list[tuple[int, int]]:
    """Visits of two packets at one node that may have overlapped there."""
    trace, visits = window.world.trace, _all_visits(window).tolist()
    packet = {v: int(np.searchsorted(trace.start, v, side="right")) - 1 for v in visits}
    return [
        (x, y)
        for x, y in combinations(visits, 2)
        if trace.node[x] == trace.node[y]
        and packet[x] != packet[y]
        and trace.t0_ns[packet[x]] < trace.sink_ns[packet[y]]
        and trace.t0_ns[packet[y]] < trace.sink_ns[packet[x]]
    ]


def _relaxed_rows(times: _Times, cvxpy: Any, pair: tuple[int, int], sign: int) -> list[Any]:
    """Eq. 2 and 4 of one pair; times count from a nearby one, as only their differences matter."""
    x, y = pair
    trace = times.window.world.trace
    packet = int(np.searchsorted(trace.start, x, side="right")) - 1
    near = float(trace.t0_ns[packet] - times.begin_ns) / NS_PER_MS
    u = cvxpy.hstack([times[place] - near for place in (x, y, x + 1, y + 1)])
    square = cvxpy.Variable((4, 4), symmetric=True)
    column = cvxpy.reshape(u, (4, 1), order="C")
    block = cvxpy.bmat([[square, column], [column.T, np.ones((1, 1))]])
    return [cvxpy.trace(P @ square) >= MARGIN, sign * block >> 0]


def _proved_rows(times: _Times) -> list[Any]:
    """Arrivals and departures of the pairs whose order MNT's bounds prove."""
    bounds = mnt_bounds(times.window.world.trace)
    inside = set(times.window.places.tolist())
    slack = ConstraintOptions().epsilon_ns / NS_PER_MS
    rows = []
    proved = np.flatnonzero(np.abs(bounds.order) == 1)
    for k in proved.tolist():
        x, y = int(bounds.first[k]), int(bounds.second[k])
        if x in inside and y in inside:
            x, y = (x, y) if bounds.order[k] == 1 else (y, x)
            both = ((times[x + 1], times[y + 1]), (times[x], times[y] + slack))
            rows += [a <= b for a, b in both if not (isinstance(a, float) and isinstance(b, float))]
    return rows


def relaxation(scale: Scale) -> Outcome:
    """Eq. 4 as printed and corrected, beside no FIFO at all and the order where it is proved."""
    try:
        _cvxpy()
    except UsageError as error:
        return Outcome([Claim(EXPERIMENT, "", f"left out: {error}")])
    windows = small_windows(scale)
    found = {fifo: [solve(window, fifo) for window in windows] for fifo in (Fifo.NONE, Fifo.PRINTED, Fifo.CORRECTED)}
    change = max(
        float(np.abs(corrected - none).max())
        for corrected, none in zip(found[Fifo.CORRECTED], found[Fifo.NONE], strict=True)
        if corrected is not None and none is not None
    )
    pairs = sum(len(_pairs(window)) for window in windows)
    solved = 100 * float(np.mean([times is not None for times in found[Fifo.PRINTED]]))
    widths_by = {
        fifo: np.concatenate([one for window in windows if (one := widths(window, fifo)) is not None])
        for fifo in (Fifo.NONE, Fifo.CORRECTED, Fifo.PROVED)
    }
    wide = {fifo: float(values.mean()) for fifo, values in widths_by.items()}
    random = np.random.default_rng(7)
    admitted = [_is_admitted(random.normal(0, 50, 4)) for _try in range(1_000)]
    feasible, narrower = 100 * float(np.mean(admitted)), wide[Fifo.CORRECTED] < wide[Fifo.NONE] - SOLVER_MS
    fixed = Fifo.CORRECTED
    rows = (
        ("%", f"windows of {PACKETS} packets with a solution, {Fifo.PRINTED}", (solved,), solved == 100),
        ("%", f"random u that are feasible, {fixed} (1,000 tries; half break Eq. 1)", (feasible,), not all(admitted)),
        ("ms", f"largest change of a time by {fixed}, over no FIFO ({pairs} pairs)", (change,), change > SOLVER_MS),
        (
            "ms",
            f"width of bounds: {fixed} (literal), proved (joint), no FIFO (baseline)",
            (wide[fixed], wide[Fifo.PROVED], wide[Fifo.NONE]),
            narrower,
        ),
    )
    claims = [Claim(EXPERIMENT, unit, what, *values, reproduced=met) for unit, what, values, met in rows]
    order = np.argsort(widths_by[Fifo.NONE], kind="stable")
    kinds: dict[Fifo, Kind] = {Fifo.NONE: "baseline", Fifo.CORRECTED: "literal", Fifo.PROVED: "joint"}
    lines = [
        Line("no FIFO" if fifo is Fifo.NONE else str(fifo), range(len(order)), widths_by[fifo][order].tolist(), kind)
        for fifo, kind in kinds.items()
    ]
    panels = {f"{len(windows)} windows of {PACKETS} packets": lines}
    label = "arrivals, by the width of their bounds without FIFO"
    return Outcome(claims, [Figure("relaxation-width", label, "width of the bounds, ms", panels)])


def _is_admitted(u: FloatArray) -> bool:
    """Whether `witness` makes u feasible, to rounding."""
    found = witness(u)
    scale = float(np.abs(found).max())
    gap = np.linalg.eigvalsh(found - np.outer(u, u)).min()
    return bool(gap >= -1e-12 * scale and np.trace(P @ found) >= MARGIN - 1e-12 * scale)
