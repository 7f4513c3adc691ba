"""How flows' means are distributed, learned from the flows themselves, and what it makes of each flow's message.

The cells tell of each flow a value and a precision (`delays`); many say little of mice. What mice can be, the distribution
of well-known flows says: a mixture of normals on an even grid, whose weights maximise the likelihood of all messages
(expectation maximisation). Two groups of flows (a fast and a slow path) give two peaks, and no flow is then answered
with the empty middle between them. The answer is the posterior's median; the interval holds 95 % of the posterior.

Each component is as wide as the grid is fine, plus σ²/p: the mean of p packets scatters around its flow's own.
Time: O(flows × components in reach × 40). The interval rests on the assumption that small and large flows are
distributed alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.delays import DelayMessages

__all__ = ["Mixture", "learn_mixture", "posterior"]

COMPONENTS = 48
WIDTH = 0.7
LEARN_FLOWS = 20_000
LEARN_PASSES = 60
DEVIATIONS = 3.5
TAILS = (0.5, 0.025, 0.975)
BISECTIONS = 22


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weights of normals with these centres (excess over the prior mean) and one width."""

    weight: FloatArray
    centre: FloatArray
    width: float


def learn_mixture(said: DelayMessages, size: FloatArray) -> Mixture:
    """The distribution of flows' own means; flows of which little is known add little."""
    deviation = np.sqrt(said.between)
    variance = 1 / np.maximum(said.precision, 1e-300) + said.within / size
    telling = np.flatnonzero(variance < 4 * said.between)
    if len(telling) > LEARN_FLOWS:
        telling = np.random.default_rng(0).choice(telling, LEARN_FLOWS, replace=False)
    sharp = telling[variance[telling] < 0.1 * said.between]
    reach = [-DEVIATIONS * deviation, DEVIATIONS * deviation]
    if len(sharp):
        low, high = np.quantile(said.value[sharp], (0.0025, 0.9975))
        reach = [min(low, -deviation), max(high, deviation)]
    centre = np.linspace(reach[0], reach[1], COMPONENTS)
    width = WIDTH * float(centre[1] - centre[0]) + 1e-12
    normal = np.exp(-0.5 * (centre / max(deviation, 1e-12)) ** 2) + 1e-3
    weight = normal / normal.sum()
    for _ in range(LEARN_PASSES):
        if not len(telling):
            break
        share = _responsibility(said.value[telling], variance[telling] + width**2, weight, centre)
        # A few flows' worth of the normal shape keeps tails that few flows show.
        weight = (share + 3 * normal / normal.sum()) / (len(telling) + 3)
    return Mixture(weight, centre, width)


@kernel
def _responsibility(value: FloatArray, variance: FloatArray, weight: FloatArray, centre: FloatArray) -> FloatArray:
    """Flows per component."""
    total = np.zeros(len(weight))
    own = np.empty(len(weight))
    for f in range(len(value)):
        _component_shares(value[f], 1.0 / variance[f], weight, centre, own)
        total += own
    return total


@inlined
def _component_shares(value: float, precision: float, weight: FloatArray, centre: FloatArray, own: FloatArray) -> None:
    """Posterior weights of the components; `precision` is of value around a centre."""
    nearest = np.inf
    for k in range(len(centre)):
        nearest = min(nearest, (centre[k] - value) ** 2)
    total = 0.0
    for k in range(len(centre)):
        exponent = -0.5 * precision * ((centre[k] - value) ** 2 - nearest)
        own[k] = weight[k] * np.exp(exponent) if exponent > -40.0 else 0.0
        total += own[k]
    for k in range(len(centre)):
        own[k] /= total


def posterior(said: DelayMessages, size: FloatArray, mixture: Mixture) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Median, low and high of each flow's mean excess."""
    quantiles = np.empty((len(size), 3))
    _quantiles(
        said.value,
        said.precision,
        said.within / size,
        mixture.weight,
        mixture.centre,
        mixture.width**2,
        np.array(TAILS),
        quantiles,
        BISECTIONS,
    )
    return quantiles[:, 0], quantiles[:, 1], quantiles[:, 2]


@kernel
def _quantiles(
    value: FloatArray,
    precision: FloatArray,
    scatter: FloatArray,
    weight: FloatArray,
    centre: FloatArray,
    width2: float,
    tails: FloatArray,
    quantiles: FloatArray,
    bisections: int,
) -> None:
    own = np.empty(len(weight))
    mean = np.empty(len(weight))
    for f in range(len(value)):
        around = width2 + scatter[f]
        spread = 1.0 / (1.0 / around + precision[f])
        deviation = np.sqrt(spread)
        _component_shares(value[f], precision[f] / (1.0 + precision[f] * around), weight, centre, own)
        kept = 0
        low, high = np.inf, -np.inf
        for k in range(len(centre)):
            if own[k] > 1e-6:
                own[kept] = own[k]
                mean[kept] = spread * (centre[k] / around + precision[f] * value[f])
                low, high = min(low, mean[kept]), max(high, mean[kept])
                kept += 1
        for i in range(len(tails)):
            quantiles[f, i] = _quantile(
                tails[i], own, mean, kept, deviation, low - 5 * deviation, high + 5 * deviation, bisections
            )


@inlined
def _quantile(
    tail: float, own: FloatArray, mean: FloatArray, kept: int, deviation: float, low: float, high: float, bisections: int
) -> float:
    """Where the mixture's distribution function reaches `tail`, by bisection."""
    total = 0.0
    for k in range(kept):
        total += own[k]
    for _ in range(bisections):
        middle = 0.5 * (low + high)
        below = 0.0
        for k in range(kept):
            below += own[k] * _normal_below((middle - mean[k]) / deviation)
        if below < tail * total:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@inlined
def _normal_below(z: float) -> float:
    """The normal distribution function."""
    return 0.5 * (1.0 + math.erf(z * 0.7071067811865476))
