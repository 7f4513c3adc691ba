"""Moderated variances: the special functions are right, and what samples share is found again."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from sojourn.estimation import sample as variances
from sojourn.estimation.sample import usual_variance


def test_the_special_functions_equal_scipys() -> None:
    x = np.r_[np.linspace(0.05, 10, 200), 50, 1000]
    np.testing.assert_allclose(variances._digamma(x), special.digamma(x), atol=1e-8)
    np.testing.assert_allclose(variances._trigamma(x), special.polygamma(1, x), rtol=1e-6)
    for value in (0.01, 0.5, 3.0, 40.0):
        assert special.polygamma(1, variances._inverse_trigamma(value)) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("degrees", [3.0, 10.0])
def test_the_variance_and_its_degrees_are_found_again(degrees: float) -> None:
    """4000 samples of 2 to 12 values whose variances differ as d₀ says: v₀ within 5 %, d₀ within a fifth."""
    random = np.random.default_rng(1)
    true = 7.0 * degrees / random.chisquare(degrees, 4000)
    own = random.integers(1, 12, 4000).astype(np.float64)
    usual = usual_variance(true * random.chisquare(own) / own, own)
    assert usual.variance == pytest.approx(7.0, rel=0.05)
    assert usual.degrees == pytest.approx(degrees, rel=0.2)


def test_equal_variances_are_recognised_and_a_single_value_borrows_them() -> None:
    random = np.random.default_rng(2)
    own = np.full(500, 4.0)
    usual = usual_variance(9.0 * random.chisquare(own) / own, own)
    assert usual.degrees > 20
    moderated, degrees = usual.moderate(np.array([np.nan, 9.0]), np.array([0.0, 4.0]))
    np.testing.assert_allclose(moderated, 9.0, rtol=0.1)
    assert degrees.tolist() == [usual.degrees, usual.degrees + 4]


def test_too_few_samples_lend_nothing() -> None:
    usual = usual_variance(np.array([1.0, 2.0, 0.0, np.nan]), np.array([3.0, 3.0, 3.0, 0.0]))
    moderated, degrees = usual.moderate(np.array([np.nan, 5.0]), np.array([0.0, 2.0]))
    assert np.isnan(moderated[0])
    assert (moderated[1], degrees.tolist()) == (5.0, [0.0, 2.0])
