"""Where a distribution that is known with so much weight reaches a level: quantiles of quantiles.

If F(t), the part of a flow's packets that are no slower than t, is Beta(s·h, s·(1 − h)) for every t, with h the part
that is expected, then the flow's q-quantile is below t with probability P(F(t) ≥ q). `reached` finds the h at which
that is a half, 2.5 % and 97.5 %: the t that has it expected below is the median of the quantile, or an end of its
interval. With s → 0 (one packet) h is that probability, with s → ∞ it is q.

Solved once for a grid of log s and logit q (0.1 s a process), interpolated in between: within 1 % of the distance to q.
The incomplete beta function by its continued fraction (Abramowitz and Stegun, 26.5.8); SciPy's would cost every
`sojourn measure` the 0.15 s of importing it, a test compares the two.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import inlined, kernel

MEDIAN, LOW, HIGH = range(3)
PROBABILITIES = (0.5, 0.025, 0.975)
LEAST_WEIGHT, MOST_WEIGHT, WEIGHTS = 0.01, 1e5, 36
LEAST_LEVEL, MOST_LEVEL, LEVELS_BETWEEN = 0.02, 0.9995, 36
HALVINGS = 26
FARTHEST = 16.0  # logits: 10⁻⁷ away from nothing, or all
FRACTION_STEPS, FRACTION_PRECISION, NOTHING = 300, 1e-9, 1e-300


def reached(weight: FloatArray, level: FloatArray) -> FloatArray:
    """h of each s and q for the three `PROBABILITIES`, along a last axis."""
    table = _table()
    low, high = math.log(LEAST_WEIGHT), math.log(MOST_WEIGHT)
    across = np.clip((np.log(np.clip(weight, LEAST_WEIGHT, MOST_WEIGHT)) - low) / (high - low), 0, 1) * (WEIGHTS - 1)
    low, high = _logit(LEAST_LEVEL), _logit(MOST_LEVEL)
    bounded = np.clip(level, LEAST_LEVEL, MOST_LEVEL)
    along = (np.log(bounded / (1 - bounded)) - low) / (high - low) * (LEVELS_BETWEEN - 1)
    row, column = (_before(place, count) for place, count in ((across, WEIGHTS), (along, LEVELS_BETWEEN)))
    right, down = (along - column)[..., None], (across - row)[..., None]
    upper = (1 - right) * table[row, column] + right * table[row, column + 1]
    lower = (1 - right) * table[row + 1, column] + right * table[row + 1, column + 1]
    found: FloatArray = 1 / (1 + np.exp(-((1 - down) * upper + down * lower)))
    return found


def _before(place: FloatArray, count: int) -> Int64Array:
    return np.minimum(place.astype(np.int64), count - 2)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


@lru_cache(maxsize=1)
def _table() -> FloatArray:
    """Logits of h, for weights × levels × probabilities."""
    table = np.empty((WEIGHTS, LEVELS_BETWEEN, len(PROBABILITIES)))
    levels = np.linspace(_logit(LEAST_LEVEL), _logit(MOST_LEVEL), LEVELS_BETWEEN)
    _solve(np.geomspace(LEAST_WEIGHT, MOST_WEIGHT, WEIGHTS), 1 / (1 + np.exp(-levels)), np.array(PROBABILITIES), table)
    return table


@kernel
def _solve(weight: FloatArray, level: FloatArray, probability: FloatArray, table: FloatArray) -> None:
    for i in range(len(weight)):
        for j in range(len(level)):
            for k in range(len(probability)):
                low, high = -FARTHEST, FARTHEST
                for _ in range(HALVINGS):
                    middle = 0.5 * (low + high)
                    expected = 1 / (1 + math.exp(-middle))
                    above = 1 - incomplete_beta(weight[i] * expected, weight[i] * (1 - expected), level[j])
                    if above < probability[k]:
                        low = middle
                    else:
                        high = middle
                table[i, j, k] = 0.5 * (low + high)


@inlined
def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised one: P(Beta(a, b) ≤ x)."""
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(1 - x))
    # The fraction converges soon on the side of x where most of the distribution is beyond.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


@inlined
def _fraction(a: float, b: float, x: float) -> float:
    """By the method of Lentz."""
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), NOTHING)
    found = d
    for m in range(1, FRACTION_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / _not_zero(1 + even * d), _not_zero(1 + even / c)
        found *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / _not_zero(1 + odd * d), _not_zero(1 + odd / c)
        found *= d * c
        if abs(d * c - 1) < FRACTION_PRECISION:
            break
    return found


@inlined
def _not_zero(value: float) -> float:
    return value if abs(value) > NOTHING else NOTHING
