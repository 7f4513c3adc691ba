"""Quadratic programs of windows: OSQP first, Clarabel for what it leaves unconverged; every status is checked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from scipy import sparse

from sojourn.core.arrays import FloatArray
from sojourn.core.errors import UsageError
from sojourn.core.executors.interrupts import interrupts_held
from sojourn.tomography.delays.program import WindowProgram

__all__ = ["Solver"]

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
