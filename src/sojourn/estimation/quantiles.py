"""Quantiles of the distributions that intervals are made of, for the 95 % level.

Student's t by its expansion around the normal quantile (Fisher and Cornish): within 1 % for three degrees of
freedom or more, and exact values below. χ² by the cube of a normal (Wilson and Hilferty): within 4 % from five
degrees of freedom on; with fewer its lower quantile is too low (0 for one), so that intervals err to the wide side.

Not SciPy's ``stdtrit`` and ``chdtri``: importing scipy.special takes 0.15 s of CPU in a `sojourn measure` that needs
nothing else of it (scipy.stats 0.8 s).
"""

from __future__ import annotations

import math

NORMAL_95 = 1.959963984540054
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


def spread_95(degrees: float) -> tuple[float, float]:
    """What a variance estimated with so many degrees of freedom is multiplied by for its 95 % interval.

    The degrees need not be whole; the upper factor is infinite where they are too few.

    >>> [round(factor, 3) for factor in spread_95(100)]
    [0.772, 1.347]
    """
    if not degrees > 0:
        return 0.0, math.inf
    width = 2 / (9 * degrees)
    lower, upper = (max(0.0, 1 - width + sign * NORMAL_95 * math.sqrt(width)) ** 3 for sign in (-1, 1))
    return 1 / upper, 1 / lower if lower > 0 else math.inf
