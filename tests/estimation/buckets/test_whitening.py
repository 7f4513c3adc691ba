"""Equations with their covariance taken out: by forward substitution, private buckets first."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.estimation.buckets.whitening import SHARED, whitened, whitened_rows


def test_whitening_is_forward_substitution() -> None:
    random = np.random.default_rng(8)
    half = random.normal(size=(3, 7, 7))
    factor, columns = np.linalg.cholesky(half @ half.transpose(0, 2, 1) + np.eye(7)), random.normal(size=(3, 7, 4))
    white = whitened(factor, columns)
    assert np.allclose(factor @ white, columns, rtol=1e-12, atol=1e-12)


def test_a_covariance_of_private_buckets_that_is_none_is_refused() -> None:
    """As a dense factorisation refuses it."""
    covariance = np.array([[[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    for owner in (np.array([[0, 0, SHARED]]), np.full((1, 3), SHARED)):
        with pytest.raises(np.linalg.LinAlgError):
            whitened_rows(covariance.copy(), np.ones((1, 3, 2)), owner)
