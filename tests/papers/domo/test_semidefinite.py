"""The published relaxation of FIFO queues: nothing is feasible as printed, everything with the sign corrected."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.papers.domo import semidefinite as domo_relaxation
from sojourn.papers.domo.semidefinite import MARGIN, Fifo, P, relaxation, small_windows, solve, widths, witness
from sojourn.papers.reproduction import Scale
from sojourn.tomography.bounds.constraints import learn_omega
from sojourn.tomography.comparison import published_bounds

TIMES = st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4).map(np.array)


@pytest.fixture(scope="module")
def window() -> domo_relaxation.SmallWindow:
    """The first window that holds pairs of packets whose order is in question."""
    return next(one for one in small_windows(Scale.SMALL) if len(domo_relaxation._pairs(one)) > 5)


@given(TIMES)
def test_p_is_the_product_of_eq_1(u: np.ndarray) -> None:
    assert u @ P @ u == pytest.approx((u[0] - u[1]) * (u[2] - u[3]), rel=1e-9, abs=1e-6)


@given(TIMES)
def test_every_u_is_feasible_with_the_sign_corrected(u: np.ndarray) -> None:
    found = witness(u)
    scale = max(float(np.abs(found).max()), 1.0)
    assert np.linalg.eigvalsh(found - np.outer(u, u)).min() >= -1e-12 * scale
    block = np.block([[found, u[:, None]], [u[None], np.ones((1, 1))]])
    assert np.linalg.eigvalsh(block).min() >= -1e-9 * scale
    assert np.trace(P @ found) >= MARGIN - 1e-9 * scale


def test_nothing_is_feasible_as_printed(window: domo_relaxation.SmallWindow) -> None:
    assert solve(window, Fifo.PRINTED) is None
    assert widths(window, Fifo.PRINTED) is None


def test_with_its_sign_corrected_the_relaxation_is_no_fifo_at_all(window: domo_relaxation.SmallWindow) -> None:
    none, corrected = solve(window, Fifo.NONE), solve(window, Fifo.CORRECTED)
    assert none is not None
    assert corrected is not None
    assert np.abs(corrected - none).max() < 0.05
    free, relaxed, proved = (widths(window, fifo) for fifo in (Fifo.NONE, Fifo.CORRECTED, Fifo.PROVED))
    assert free is not None
    assert relaxed is not None
    assert proved is not None
    assert relaxed == pytest.approx(free, abs=0.05)
    assert (proved <= free + 0.05).all()


def test_solutions_keep_the_order_and_the_sums(window: domo_relaxation.SmallWindow) -> None:
    times = solve(window, Fifo.NONE)
    assert times is not None
    trace = window.world.trace
    place = {p: k for k, p in enumerate(window.places.tolist())}
    delay = {v: times[place[v + 1]] - times[place[v]] for v in window.visits.tolist()}
    assert min(delay.values()) >= learn_omega(trace) / 1e6 - 1e-3
    groups = published_bounds(trace).groups
    checked = 0
    for g in np.flatnonzero(np.isin(groups.last, list(delay))).tolist():
        entries = slice(groups.start[g], groups.start[g + 1])
        sure = groups.member[entries][groups.is_sure[entries]].tolist()
        if set(sure) <= delay.keys():
            checked += 1
            assert sum(delay[v] for v in sure) <= groups.sum_ns[g] / 1e6 + 0.551
    assert checked > 5


def test_the_experiment_says_so_in_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domo_relaxation, "SEEDS", {Scale.SMALL: (91,)})
    monkeypatch.setattr(domo_relaxation, "WINDOWS", {Scale.SMALL: 1})
    monkeypatch.setattr(domo_relaxation, "BOUNDED", 2)
    outcome = relaxation(Scale.SMALL)
    printed, admitted, change, width = outcome.claims
    assert (printed.literal, printed.reproduced) == (0, False)
    assert (admitted.literal, admitted.reproduced) == (100, False)
    assert change.literal is not None
    assert change.literal < 0.05
    assert not change.reproduced
    assert width.literal == pytest.approx(width.baseline, abs=0.05)
    assert not width.reproduced
    assert [len(lines) for lines in outcome.figures[0].panels.values()] == [3]


def test_without_the_solver_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    claims = relaxation(Scale.SMALL).claims
    assert [claim.quantity for claim in claims] == [
        "left out: the semidefinite program needs the cvxpy package; install sojourn[papers]"
    ]
