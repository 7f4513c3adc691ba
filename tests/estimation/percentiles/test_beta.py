"""Quantiles of quantiles: the table agrees with SciPy's beta distribution, within it and at its ends."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import betainc
from scipy.stats import beta

from sojourn.core.arrays import FloatArray
from sojourn.core.kernels import kernel
from sojourn.estimation.percentiles.beta import HIGH, LOW, MEDIAN, PROBABILITIES, incomplete_beta, reached


@kernel
def _columns(a: FloatArray, b: FloatArray, x: FloatArray, found: FloatArray) -> None:
    for i in range(len(a)):
        found[i] = incomplete_beta(a[i], b[i], x[i])


def test_the_incomplete_beta_function_is_scipy_s() -> None:
    random = np.random.default_rng(1)
    a, b = 10 ** random.uniform(-3, 4, (2, 2_000))
    x = random.uniform(0.001, 0.999, 2_000)
    found = np.empty(2_000)
    _columns(a, b, x, found)
    assert found == pytest.approx(betainc(a, b, x), abs=1e-7)


@pytest.mark.parametrize("level", [0.3, 0.5, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("weight", [0.5, 3.0, 17.0, 150.0, 4_000.0])
def test_what_is_expected_below_has_the_wanted_probability(level: float, weight: float) -> None:
    """A distribution function that is Beta around the h found exceeds the level as often as asked for."""
    found = reached(np.array([weight]), np.array([level]))[0]
    for h, wanted in zip(found, PROBABILITIES, strict=True):
        assert beta.sf(level, weight * h, weight * (1 - h)) == pytest.approx(wanted, abs=0.02)
    assert found[LOW] < found[MEDIAN] < found[HIGH]


def test_one_packet_is_where_it_is_expected_to_be() -> None:
    """With no weight at all a percentile is that of a single packet, whatever the level."""
    found = reached(np.array([1e-9]), np.array([0.9]))[0]
    assert found == pytest.approx(PROBABILITIES, abs=0.01)
