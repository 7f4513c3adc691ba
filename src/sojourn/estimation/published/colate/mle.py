"""Theorem 3 of COLATE: what strangers put into a flow's counters, by maximum likelihood.

With τ the sum of all strangers' time stamps, the paper takes a counter's share of them, ξ, as binomial (τ trials, each
with probability 1/n); the flow's own part is then w = S − ξ. Setting the derivative of the likelihood to zero gives

    ψ(τ − ξ + 1) − ψ(ξ + 1) = ln(n − 1)        (Eq. 7, ξ = S − w)

whose left side falls in ξ from +∞ to −∞: one root, found by halving the bracket (−1, τ + 1). The equation does not
know S. Its root is the same for all m counters of a flow, close to τ/n, and what Theorem 4 makes of the w are
differences, in which it cancels. The theorem is solved as published, and changes nothing.

Guarantee: the root to the last digits that floats have. Cost: about 10 µs a root.

Shahzad and Liu, "Noise Can Help", §4.2.1.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.errors import ParameterError
from sojourn.core.kernels import inlined, kernel

__all__ = ["stranger_part"]

ASYMPTOTIC = 10.0
HALVINGS = 200


@inlined
def _digamma(x: float) -> float:
    """ψ for x > 0: its asymptotic series after stepping x up; within 10⁻¹²."""
    below = 0.0
    while x < ASYMPTOTIC:
        below += 1 / x
        x += 1
    inverse = 1 / (x * x)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse * (1 / 240 - inverse / 132))))
    return math.log(x) - 0.5 / x - series - below


@kernel
def _roots(stranger_total: FloatArray, log_others: float) -> FloatArray:
    """ξ of each total; bisection over x = ξ + 1 in (0, τ + 2)."""
    roots = np.empty(len(stranger_total))
    for i in range(len(stranger_total)):
        tau = stranger_total[i]
        low, high = 0.0, tau + 2
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            if _digamma(tau + 2 - middle) - _digamma(middle) > log_others:
                low = middle
            else:
                high = middle
        roots[i] = high - 1
    return roots


def stranger_part(stranger_total: FloatArray, counters: int) -> FloatArray:
    """ξ, the strangers' part of one counter, for each sum τ of all strangers' time stamps.

    >>> stranger_part(np.array([1e6]), 1000).round(1)
    array([999.5])
    """
    if counters < 2 or not (stranger_total >= 0).all():
        raise ParameterError(
            f"Theorem 3 with {counters} counters and a total of {stranger_total.min(initial=0):g}",
            where="colate",
            action="use two counters or more, and time stamps that are not negative",
        )
    return _roots(stranger_total.astype(np.float64), math.log(counters - 1))
