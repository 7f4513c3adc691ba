"""Quantiles of the distributions that intervals are made of, for the 95 % level.

Student's t by its expansion around the normal quantile (Fisher and Cornish): within 1 % for three degrees of
freedom or more, and exact values below. Chi-square by the cube of a normal (Wilson and Hilferty): within 2 % likewise.
"""

from __future__ import annotations

import math

__all__ = ["NORMAL_95", "chi_square_95", "student_95"]

NORMAL_95 = 1.959963984540054
_CHI_SQUARE_FEW = {1: (0.000982, 5.0239), 2: (0.050636, 7.3778)}
_STUDENT_FEW = {1: 12.7062, 2: 4.3027}


def student_95(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t; infinite without a degree of freedom.

    >>> round(student_95(10), 3)
    2.228
    """
    if degrees < 1:
        return math.inf
    if degrees in _STUDENT_FEW:
        return _STUDENT_FEW[degrees]
    z, v = NORMAL_95, float(degrees)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def chi_square_95(degrees: int) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of chi-square.

    >>> [round(q, 2) for q in chi_square_95(10)]
    [3.24, 20.48]
    """
    if degrees < 1:
        return 0.0, math.inf
    if degrees in _CHI_SQUARE_FEW:
        return _CHI_SQUARE_FEW[degrees]
    ninth = 2 / (9 * degrees)
    low, high = (degrees * (1 - ninth + z * math.sqrt(ninth)) ** 3 for z in (-NORMAL_95, NORMAL_95))
    return max(low, 0.0), high
