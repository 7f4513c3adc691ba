"""Numbers of packets by mean and variance: Panjer's class of distributions, which a step a + b/n leads along.

Negative binomial where the variance is above the mean, Poisson's where it is the same, binomial below. H. H. Panjer,
"Recursive Evaluation of a Family of Compound Distributions", ASTIN Bulletin 12 (1981).
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.kernels import borrowing_inlined

LEAST = -700.0  # the logarithm of what is as good as nothing, and still a number
FEW_FACTORS = 12.0
LARGE_PRODUCT = 1e100  # products are taken apart before they overflow


@borrowing_inlined
def log_rising(first: float, factors: float) -> float:
    """log first·(first + 1)·…, so many factors: Γ's ratio, which takes longer where factors are few."""
    if factors > FEW_FACTORS:
        return math.lgamma(first + factors) - math.lgamma(first)
    product = 1.0
    for i in range(int(factors)):
        product *= first + i
    return math.log(product)


@borrowing_inlined
def log_mass(number: float, mean: float, variance: float) -> float:
    """The logarithm of Panjer's distribution of a mean and a variance at a number, but for the number's factorial."""
    if mean <= 0.0:
        return 0.0 if number == 0.0 else -np.inf
    if variance > mean * (1 + 1e-6):
        size = mean * mean / (variance - mean)
        return log_rising(size, number) - size * math.log1p(mean / size) + number * math.log(mean / (size + mean))
    if variance > mean * (1 - 1e-6):
        return number * math.log(mean) - mean
    rate = 1.0 - variance / mean
    size = mean / rate
    if number > size + 1e-6:
        return -np.inf
    rest = (size - number) * math.log1p(-rate) if rate < 1.0 else (0.0 if size - number < 0.5 else -np.inf)
    return log_rising(max(size - number, 0.0) + 1.0, number) + number * math.log(rate) + rest


@borrowing_inlined
def add_masses(share: float, mean: float, variance: float, mass: FloatArray) -> None:
    """Add a share of the probability of each number from 0 on; O(numbers)."""
    a = 1.0 - mean / variance
    b = mean * mean / variance - a
    log_first = math.log1p(-a) * (a + b) / a if abs(a) > 1e-9 else -mean
    first, times = share * math.exp(max(log_first, LEAST)), 1.0
    for number in range(len(mass)):
        if number > 0:
            times *= a + b / number
            if times <= 0.0:
                break
            if times > LARGE_PRODUCT:
                # The first was below the least number that there is; this one is not.
                log_first += math.log(times)
                first, times = share * math.exp(max(log_first, LEAST)), 1.0
        mass[number] += first * times
