"""The normal distribution by a table is that of ``erf``."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sojourn.core.kernels import kernel
from sojourn.estimation.normal import FAR, PER_DEVIATION, normal_below


@kernel
def below(z, found) -> None:
    for i in range(len(z)):
        found[i, 0], found[i, 1] = normal_below(z[i])


def test_shares_and_densities_are_those_of_the_normal_distribution() -> None:
    """At every place of the table, between two, and at both ends."""
    z = np.linspace(-FAR - 0.5, FAR + 0.5, 13 * 3 * PER_DEVIATION + 1)
    found = np.empty((len(z), 2))
    below(z, found)
    inside = np.abs(z) < FAR
    share = np.array([0.5 * math.erfc(-one * math.sqrt(0.5)) for one in z.tolist()])
    assert np.abs(found[:, 0] - share)[inside].max() < 1e-10
    assert found[z <= -FAR].max() == 0.0
    assert found[z >= FAR, 0].min() == 1.0
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    assert found[inside, 1] == pytest.approx(density[inside], abs=1e-8)
    assert np.all(np.diff(found[:, 0]) >= 0)
