"""Numbers of packets by mean and variance: SciPy's distributions are the model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, nbinom, poisson

from sojourn.estimation.packets.panjer import add_masses, log_mass, log_rising

NUMBERS = np.arange(120)


def model(mean: float, variance: float):
    if variance == mean:
        return poisson(mean)
    if variance > mean:
        return nbinom(mean**2 / (variance - mean), mean / variance)
    return binom(round(mean / (1 - variance / mean)), 1 - variance / mean)


@pytest.mark.parametrize(("mean", "variance"), [(7.0, 7.0), (7.0, 20.0), (30.0, 24.0), (0.2, 0.3)])
def test_masses_are_those_of_the_distribution(mean: float, variance: float) -> None:
    mass = np.zeros(len(NUMBERS))
    add_masses(0.5, mean, variance, mass)
    assert mass == pytest.approx(0.5 * model(mean, variance).pmf(NUMBERS), rel=1e-8, abs=1e-12)


def test_masses_that_begin_below_the_least_number_are_right_where_they_are_not() -> None:
    numbers = np.arange(401)
    mass = np.zeros(len(numbers))
    add_masses(1.0, 360.0, 36.0, mass)
    assert mass == pytest.approx(model(360.0, 36.0).pmf(numbers), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("number", [0.0, 1.0, 5.0, 12.0, 13.0, 60.0])
def test_logarithms_of_masses_differ_between_means_as_the_distributions_do(number: float) -> None:
    for one, other in (((7.0, 20.0), (9.0, 9.0)), ((30.0, 60.0), (20.0, 21.0))):
        apart = log_mass(number, *one) - log_mass(number, *other)
        assert apart == pytest.approx(model(*one).logpmf(number) - model(*other).logpmf(number), abs=1e-8)


def test_few_factors_and_many_make_the_same_product() -> None:
    assert log_rising(3.5, 13.0) == pytest.approx(log_rising(3.5, 12.0) + np.log(15.5))
