"""Variances of many small samples, each improved by what the others show.

A variance from three delays is hardly one, and too small just when the mean is off. The variances of all samples
together show how large they usually are (v₀) and how much they really differ: as if each came with d₀ degrees of
freedom of its own, estimated from the spread of their logarithms (beyond what chance gives it). The moderated variance
(d₀v₀ + d·s²)/(d₀ + d) then has d₀ + d degrees, and a sample of one has v₀ and d₀.

Smyth, "Linear Models and Empirical Bayes Methods for Assessing Differential Expression" (2004), §6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray

__all__ = ["UsualVariance", "usual_variance"]

MOST_DEGREES = 1000.0
_ASYMPTOTIC = 6.0


@dataclass(frozen=True)
class UsualVariance:
    """v₀ and d₀; without enough samples to tell, nothing is borrowed (d₀ = 0)."""

    variance: float
    degrees: float

    def moderate(self, variance: FloatArray, degrees: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The variances with their degrees of freedom, improved."""
        total = degrees + self.degrees
        own = np.where(degrees > 0, degrees * np.nan_to_num(variance), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return (own + self.degrees * self.variance) / total, total


def usual_variance(variance: FloatArray, degrees: FloatArray) -> UsualVariance:
    """What the samples that vary at all have in common."""
    varied = (degrees > 0) & (variance > 0)
    if varied.sum() < 3:
        return UsualVariance(0.0, 0.0)
    half = degrees[varied] / 2
    centred = np.log(variance[varied]) - _digamma(half) + np.log(half)
    mean = float(centred.mean())
    excess = float(centred.var(ddof=1)) - float(_trigamma(half).mean())
    degrees_0 = MOST_DEGREES if excess <= 0 else min(MOST_DEGREES, 2 * _inverse_trigamma(excess))
    half_0 = np.array([degrees_0 / 2])
    return UsualVariance(math.exp(mean + float(_digamma(half_0)[0]) - math.log(degrees_0 / 2)), degrees_0)


def _digamma(x: FloatArray) -> FloatArray:
    """ψ, by its asymptotic series after stepping x above 6; within 10⁻⁹."""
    shift = np.zeros_like(x)
    while (x < _ASYMPTOTIC).any():
        low = x < _ASYMPTOTIC
        shift = shift - np.where(low, 1 / x, 0.0)
        x = np.where(low, x + 1, x)
    inverse = 1 / x**2
    return shift + np.log(x) - 0.5 / x - inverse * (1 / 12 - inverse * (1 / 120 - inverse / 252))


def _trigamma(x: FloatArray) -> FloatArray:
    """ψ′, likewise; within 10⁻⁷."""
    shift = np.zeros_like(x)
    while (x < _ASYMPTOTIC).any():
        low = x < _ASYMPTOTIC
        shift = shift + np.where(low, 1 / x**2, 0.0)
        x = np.where(low, x + 1, x)
    inverse = 1 / x**2
    return shift + 1 / x + inverse / 2 + inverse / x * (1 / 6 - inverse * (1 / 30 - inverse / 42))


def _inverse_trigamma(value: float) -> float:
    """The x with ψ′(x) = `value`, by bisection: ψ′ falls."""
    low, high = 1e-3, MOST_DEGREES
    for _ in range(60):
        middle = math.sqrt(low * high)
        if float(_trigamma(np.array([middle]))[0]) > value:
            low = middle
        else:
            high = middle
    return low
