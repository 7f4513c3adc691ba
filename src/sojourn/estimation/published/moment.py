"""The moment estimator: what one instance added to counters that it shares with others.

An instance owns m' distinct of the n counters. What the others put there is, on average, what they put into
any counter, so

    sum of the instance ≈ Σ own counters − m' · mean of the n − m' other counters,

which is COLATE's Theorem 2, (n·ΣS − m·t)/(n − m), and IoTm's moment form, with hash functions that name the
same counter counted once. Its error is the spread of the other counters: with s² their variance, the
variance is s²·(m' + m'²/(n − m')), and the interval is Student's with n − m' − 1 degrees of freedom.

The ratio of two such sums (a mean: sum over count) has Fieller's interval: all r for which the moment
estimate of (sum − r · count) is not significantly different from zero. Where the count itself is not, that is
every r, and there is no answer.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered, student_95


class SharedCounters:
    """Counters of one or two fields with their running totals, so that one instance costs O(m)."""

    def __init__(self, *fields: Int64Array | FloatArray) -> None:
        columns = np.stack([field.astype(np.float64) for field in fields], axis=1)
        self.means: FloatArray = columns.mean(axis=0)
        # Centred: the squares of large counters would drown their spread.
        self.centred: FloatArray = columns - self.means
        self.scatter: FloatArray = self.centred.T @ self.centred

    def sums_of(self, own: Int64Array) -> tuple[FloatArray, FloatArray, int]:
        """Each field's sum for the instance that owns distinct counters `own`, the covariance of their
        errors, and the degrees of freedom."""
        owned, others = len(own), len(self.centred) - len(own)
        fields = self.centred.shape[1]
        if others < 2 or owned < 1:
            return np.zeros(fields), np.full((fields, fields), np.inf), 0
        own_centred = self.centred[own]
        own_sum = own_centred.sum(axis=0)
        other_mean = -own_sum / others
        scatter = self.scatter - own_centred.T @ own_centred - others * np.outer(other_mean, other_mean)
        spread = scatter / (others - 1) * (owned + owned**2 / others)
        return own_sum - owned * other_mean, spread, others - 1

    def own_totals(self, own: Int64Array) -> list[float]:
        """The plain totals of each field over `own`, the instance's part and the strangers'."""
        totals: list[float] = (self.centred[own].sum(axis=0) + len(own) * self.means).tolist()
        return totals

    def sum_of(self, own: Int64Array) -> tuple[float, float]:
        """The first field's sum and half the width of its 95 % interval."""
        sums, spread, degrees = self.sums_of(own)
        return float(sums[0]), student_95(degrees) * math.sqrt(max(spread[0, 0], 0.0))


def ratio_of(sums: FloatArray, spread: FloatArray, degrees: int, *, unit: str, method: str) -> Answer:
    """The first of two sums over the second, with Fieller's interval, if the second is not noise."""
    numerator, denominator = float(sums[0]), float(sums[1])
    if degrees < 1:
        return Unanswered(Reason.NO_USABLE_CELLS)
    t = student_95(degrees) ** 2
    a = denominator**2 - t * float(spread[1, 1])
    b = denominator * numerator - t * float(spread[0, 1])
    c = numerator**2 - t * float(spread[0, 0])
    if a <= 0 or denominator < 1:
        return Unanswered(Reason.LOST_IN_NOISE)
    value = numerator / denominator
    root = math.sqrt(max(b**2 - a * c, 0.0))
    low, high = min(value, (b - root) / a), max(value, (b + root) / a)
    return Estimate(value, low, high, round(denominator), method, unit)
