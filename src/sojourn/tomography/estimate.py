"""The most likely delay of every packet at every hop: a sparse quadratic program for each window.

Delays at one node are alike (Domo, Eq. 8). Instead of all pairs of them, each delay is held to its node's centre: that
weighs every visit once, not by its node's traffic. Rounds alternate between the two: centres come from the last round's
delays (an even division of the packets' times at first), and delays minimise squared distances to them; `likeness` says
how. All of it within the guaranteed bounds, the proved FIFO order and the sums. Where S may over-count
(acknowledgements or packets lost) it is an upper bound which pulls its members up, with a penalty like the logarithm of
what remains; harder in small groups, as those over-count least.

Guarantee: every answer lies within the bounds. Every solve's status is checked: what OSQP leaves unconverged Clarabel
solves; what neither does is counted, and keeps its last round's answer or the middle of its bounds.
Cost: about 0.05 ms for a delay.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.errors import UsageError
from sojourn.core.executor import Executor, LocalExecutor
from sojourn.core.interrupts import interrupts_held
from sojourn.core.kernels import kernel
from sojourn.tomography.constraints import Bounds
from sojourn.tomography.levels import node_levels
from sojourn.tomography.likeness import Likeness
from sojourn.tomography.program import NS_PER_MS, Programs, WindowProgram
from sojourn.tomography.trace import CollectionTrace
from sojourn.tomography.windows import Window, WindowOptions, windows

__all__ = ["EstimateOptions", "Estimates", "estimate"]

REMAINS = 3.0  # what remains of S costs like log(1 + remains / REMAINS centres)
NARROW = 0.55
SECONDS_PER_PLACE = 15e-6  # about, of one processor, to see whether workers are worth starting
OSQP_SETTINGS = {"verbose": False, "eps_abs": 0.05, "eps_rel": 1e-3, "max_iter": 2_000, "check_termination": 10}


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """How to solve; tolerance and queue-entry time are those the bounds were made with."""

    window: WindowOptions = field(default_factory=WindowOptions)
    rounds: int = 10
    pull: float = 0.3
    tolerance_ns: int = 550_000
    epsilon_ns: int = 2_100_000


@dataclass(frozen=True)
class Estimates:
    """The arrival time of every place.

    `solves` counts programs by solver, windows whose sums had to be `relaxed` to their full tolerance, and those that
    stayed `unsolved`.
    """

    arrival_ns: Int64Array
    solves: dict[str, int]

    @property
    def delay_ns(self) -> Int64Array:
        """Of every place but the last; meaningless at a sink's place, as the next one is another packet's."""
        return np.diff(self.arrival_ns, append=self.arrival_ns[-1])


def estimate(
    trace: CollectionTrace,
    bounds: Bounds,
    options: EstimateOptions | None = None,
    *,
    executor: Executor | None = None,
    advance: Callable[[str, float], None] | None = None,
) -> Estimates:
    """Arrival times of every place, window by window; the executor's workers solve windows side by side."""
    options = options or EstimateOptions()
    arrival = (bounds.low_ns + bounds.high_ns) // 2
    solves: Counter[str] = Counter()
    done = 0
    pieces = list(windows(trace.t0_ns, trace.period_ns, options.window))
    seconds = SECONDS_PER_PLACE * len(trace.node) / options.window.ratio
    run = executor or LocalExecutor(1)
    with closing(run.map(_WindowSolver(trace, bounds, options, node_levels(trace)), pieces, seconds=seconds)) as solved:
        for window, (delay_ns, counts) in zip(pieces, solved, strict=True):
            solves.update(counts)
            is_kept = np.isin(window.packets, window.kept, assume_unique=True)
            _keep(
                trace.start, window.packets, is_kept, delay_ns,
                bounds.low_ns, bounds.high_ns, bounds.least_ns, bounds.most_ns, arrival,
            )  # fmt: skip
            done += len(window.kept)
            if advance is not None:
                advance("solving windows", done / len(trace))
    return Estimates(arrival, {name: count for name, count in solves.items() if count})


class _WindowSolver:
    """Solves one window: the delays of its packets' visits in ns, and what the solves came to.

    Travels to workers without its programs; each thread there makes its own, as making one uses scratch space.
    """

    def __init__(self, trace: CollectionTrace, bounds: Bounds, options: EstimateOptions, level: FloatArray) -> None:
        self._given = trace, bounds, options, level
        self._here = threading.local()

    def __reduce__(self) -> tuple[type[_WindowSolver], tuple[CollectionTrace, Bounds, EstimateOptions, FloatArray]]:
        return _WindowSolver, self._given

    def __call__(self, window: Window) -> tuple[Int64Array, Counter[str]]:
        solves: Counter[str] = Counter()
        for programs, failure in zip(self._makers(), ("relaxed", "unsolved"), strict=True):
            delay, is_finished = _solve_rounds(programs.make(window.packets), self._given[2], solves)
            if is_finished:
                break
            solves[failure] += 1
        return np.rint(delay * NS_PER_MS).astype(np.int64), solves

    def _makers(self) -> list[Programs]:
        if not hasattr(self._here, "makers"):
            trace, bounds, options, level = self._given
            # Sums pull their members to the edge of their tolerance: a narrow one is better, if it leaves a solution.
            tolerances = (int(NARROW * options.tolerance_ns), options.tolerance_ns)
            self._here.makers = [
                Programs(trace, bounds, tolerance_ns=t, epsilon_ns=options.epsilon_ns, level=level) for t in tolerances
            ]
        makers: list[Programs] = self._here.makers
        return makers


@kernel
def _keep(
    start: Int64Array,
    packets: Int64Array,
    is_kept: BoolArray,
    delay: Int64Array,
    low: Int64Array,
    high: Int64Array,
    least: Int64Array,
    most: Int64Array,
    arrival: Int64Array,
) -> None:
    """Take over the delays of the packets kept as arrivals, each brought into what is left of its bounds.

    A solver meets bounds only to its tolerance; going from the origin on, an arrival within reach of the one before
    always exists, as the bounds are a fixpoint.
    """
    visit = 0
    for k in range(len(packets)):
        for place in range(start[packets[k]], start[packets[k] + 1] - 1):
            if is_kept[k]:
                earliest = max(low[place + 1], arrival[place] + least[place])
                latest = min(high[place + 1], arrival[place] + most[place])
                within = max(min(arrival[place] + delay[visit], latest), earliest)
                arrival[place + 1] = max(min(within, high[place + 1]), low[place + 1])
            visit += 1


def _solve_rounds(program: WindowProgram, options: EstimateOptions, solves: Counter[str]) -> tuple[FloatArray, bool]:
    """The delays of the program's visits in ms, and whether every round had a solution.

    Centres come from the last round's delays, then delays from the centres; the first to have no solution ends it.
    """
    x = np.zeros(program.delay.shape[1])
    if not len(x):
        return program.delay_known, True
    solver, likeness = _Solver(program, solves), Likeness(program)
    for number in range(options.rounds):
        square, linear = likeness.objective()
        better = solver.solve(square, linear + _pull(program, options.pull, likeness.scale, x, number))
        if better is None:
            return np.asarray(program.delay @ x + program.delay_known), False
        x = better
        likeness.learn(x, number)
        if likeness.is_rearranged:
            solver.forget()
    return np.asarray(program.delay @ x + program.delay_known), True


def _pull(program: WindowProgram, strength: float, scale: float, x: FloatArray, number: int) -> FloatArray:
    """The linear cost of the unknowns that pulls groups up to their sums: the slope of the penalty where it stands."""
    remains = np.maximum(-(program.pull @ x + program.pull_known), 0) if number else 0.0
    slope = strength * scale**2 * (1 + 3 / (program.pull_members - 0.9)) / (remains + REMAINS * scale)
    return np.asarray(-(program.pull.T @ slope))


class _Solver:
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
        """The unknowns that minimise the objective given; None if no solver gets there."""
        program = self._program
        if self._problem is None:
            self._problem = _osqp(square, linear, program)
            if self._last is not None:
                self._problem.warm_start(x=self._last.x, y=self._last.y)
        else:
            self._problem.update(Px=square.data, q=linear)
        with interrupts_held():  # OSQP would take Ctrl-C for itself, and say so on stdout
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
    """The program's solution by an interior-point method: slower, but it gets there."""
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
