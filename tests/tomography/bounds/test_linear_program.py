"""The linear system behind bounds: true times solve it, whole or cut, and its rows say no more than was proved."""

from __future__ import annotations

import numpy as np
import pytest

from collection_worlds import MS, simulated
from sojourn.tomography.bounds.constraints import ConstraintOptions, Sums, bound
from sojourn.tomography.bounds.linear_program import LinearProgram, System, linear_system


def row_sums(system: System, times: np.ndarray) -> np.ndarray:
    return np.add.reduceat(times[system.later] - times[system.earlier], system.start[:-1])


@pytest.mark.parametrize(
    ("ack_loss", "loss", "sums"),
    [(0.0, 0.0, Sums.EXACT), (0.0, 0.0, Sums.AUTO), (0.1, 0.1, Sums.AUTO), (0.1, 0.0, Sums.UNUSED)],
)
def test_true_times_solve_every_row(ack_loss: float, loss: float, sums: Sums) -> None:
    options = ConstraintOptions(sums=sums)
    for period_s in (10.0, 1.0):
        trace, truth = simulated(100, 96, ack_loss, loss, period_s)
        system = linear_system(trace, bound(trace, options), options)
        values = row_sums(system, truth)
        assert (values >= system.low_ns).all()
        assert (values <= system.high_ns).all()
        assert len(values) > 100


def test_equations_have_rows_from_below_as_well() -> None:
    trace, truth = simulated(100, 96)
    upper, exact = (ConstraintOptions(sums=sums) for sums in (Sums.UPPER, Sums.EXACT))
    rows = [linear_system(trace, bound(trace, options), options) for options in (upper, exact)]
    many = [np.diff(system.start) > 1 for system in rows]
    assert (rows[0].low_ns[many[0]] < 0).all()
    assert (rows[1].low_ns[many[1]] > 0).any()
    # Sums that count more than their members' delays would break them.
    over = truth.copy()
    over[trace.start[:-1] + 1] -= 2 * MS
    assert (row_sums(rows[1], over) < rows[1].low_ns).any()


def test_every_unknown_knows_its_rows() -> None:
    trace, _truth = simulated(60, 96)
    system = linear_system(trace, bound(trace), ConstraintOptions())
    for unknown in range(0, len(system), 7):
        place = system.place[unknown]
        touches = (system.later == place) | (system.earlier == place)
        expected = np.unique(np.searchsorted(system.start, np.flatnonzero(touches), side="right") - 1)
        assert (
            np.unique(system.row[system.row_start[unknown] : system.row_start[unknown + 1]]).tolist()
            == expected.tolist()
        )


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_a_cut_program_holds_for_true_times(share: float) -> None:
    trace, truth = simulated(100, 96, 0.1, 0.1)
    bounds = bound(trace)
    system = linear_system(trace, bounds, ConstraintOptions())
    random = np.random.default_rng(1)
    inside = np.sort(random.choice(len(system), int(share * len(system)), replace=False))
    program = LinearProgram(system, bounds, inside)
    x = (truth[system.place[inside]] - program.middle_ns) / MS
    values = program._matrix @ x
    assert (values >= program._low - 1e-9).all()
    assert (values <= program._high + 1e-9).all()
    # What a solve proves is never more than what the truth, or the solution itself, shows to be possible.
    for _ in range(20):
        objective = random.normal(size=len(inside)) * (random.uniform(size=len(inside)) < 0.1)
        solution = program.solve(objective)
        assert solution is not None
        assert program.proved(objective) <= min(objective @ x, objective @ solution) + 1e-6
        assert program.proved(objective) > objective @ solution - 1e-3
