"""The noise that strangers leave in an instance's counters, drawn from the counters themselves.

What others put into m' counters is distributed as what they put into any m' counters, so random subsets of the
counters are draws of the noise: with its heavy tail (most subsets meet no elephant, a few meet one), which a
normal interval around the moment estimate would miss. Draws are made once per m' and shared by all instances.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray

__all__ = ["CounterNoise"]

DRAWS = 2000
TAILS = (0.025, 0.975)


class CounterNoise:
    """Sums over random subsets of counters; seeded, so repeatable."""

    def __init__(self, values: FloatArray, seed: int = 0) -> None:
        self._values = values
        self._seed = seed
        self._drawn: dict[int, FloatArray] = {}

    def draws(self, owned: int) -> FloatArray:
        """`DRAWS` sums over `owned` counters each."""
        if owned not in self._drawn:
            random = np.random.default_rng((self._seed, owned))
            chosen = random.integers(0, len(self._values), (DRAWS, owned))
            self._drawn[owned] = self._values[chosen].sum(axis=1)
        return self._drawn[owned]

    def bounds_of_sum(self, own_sum: float, owned: int) -> tuple[float, float]:
        """The 95 % interval of the instance's part of `own_sum`."""
        low, high = np.quantile(self.draws(owned), TAILS)
        return own_sum - float(high), own_sum - float(low)
