"""The Gaussian model of delays: its cut-off laws, its draws, and the spreads that it takes from totals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats

from collection_worlds import MS, simulated
from sojourn.tomography.bounds.constraints import bound
from sojourn.tomography.delays.estimate import estimate
from sojourn.tomography.delays.posterior import Posteriors, _solve, _truncated
from sojourn.tomography.trace import MISSING


@given(st.floats(-30, 30), st.floats(0.1, 20), st.floats(-20, 20), st.floats(0.5, 60))
def test_cut_off_laws_have_the_moments_that_scipy_finds(
    centre: float, spread: float, least: float, width: float
) -> None:
    most = least + width
    mean, variance = _truncated(np.array([centre]), np.array([spread]), np.array([least]), np.array([most]))
    assert least <= mean[0] <= most
    assert 0 < variance[0] <= spread**2 + 1e-9
    if width / spread > 0.1 and max((least - centre) / spread, (centre - most) / spread) < 6:
        law = stats.truncnorm((least - centre) / spread, (most - centre) / spread, centre, spread)
        assert mean[0] == pytest.approx(law.mean(), abs=0.02 * spread)
        assert variance[0] == pytest.approx(law.var(), rel=0.05, abs=1e-4 * spread**2)


def test_draws_scatter_as_the_inverse_says() -> None:
    """4,096 draws: each variance is within 10 % with a false-alarm rate of 1 in 100,000 (4.5 deviations)."""
    random = np.random.default_rng(5)
    matrix = sparse.random(60, 20, density=0.2, random_state=random, format="csr") + sparse.eye(60, 20)
    precision, value = random.uniform(0.5, 4, 60), random.normal(size=60)
    mean, draws = _solve(matrix.tocsr(), precision, value, random, 4_096)
    dense = matrix.toarray()
    inverse = np.linalg.inv(dense.T @ (precision[:, None] * dense))
    assert mean == pytest.approx(inverse @ dense.T @ (precision * value))
    assert (draws**2).mean(1) == pytest.approx(np.diag(inverse), rel=0.1)


def test_spreads_come_from_totals_as_estimates_are_too_alike() -> None:
    trace, truth = simulated(225, 12_008)
    trace = replace(trace, sum_ns=np.full(len(trace), MISSING))
    bounds = bound(trace)
    arrival = estimate(trace, bounds).arrival_ns
    answer = Posteriors(trace, bounds, arrival).of(np.arange(len(trace)))
    _nodes, node = np.unique(trace.node[answer.place], return_inverse=True)

    def spread(times: np.ndarray) -> float:
        delay = (times[answer.place + 1] - times[answer.place]) / MS
        return float((delay - (np.bincount(node, delay) / np.bincount(node))[node]).std())

    found = float(np.sqrt((answer.spread**2).mean()))
    assert spread(arrival) < 0.9 * spread(truth)
    assert found == pytest.approx(spread(truth), rel=0.25)


def test_a_chunk_without_unknowns_is_known() -> None:
    trace, _truth = simulated(100, 12_006)
    bounds = bound(trace)
    arrival = estimate(trace, bounds).arrival_ns
    direct = np.flatnonzero(np.diff(trace.start) == 2)
    answer = Posteriors(trace, bounds, arrival).of(direct)
    assert (answer.deviation == 0).all()
    assert np.allclose(answer.mean, (trace.sink_ns - trace.t0_ns)[direct] / MS)
    assert (answer.hops == 1).all()
