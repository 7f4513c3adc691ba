"""Virtual repetitions of COLATE: a flow's sum of squared latencies from the differences of its counters, d_1 … d_m.

A permutation pairs the counters; the squared differences of the m/2 pairs add up to one estimate (Theorem 4, Eq. 9 and
10), and the paper averages over γ random permutations. Every two counters are a pair in a share 1/(m − 1) of all
permutations, so the average over all of them is

    E = m/(m − 1) · Σ(d_j − d̄)²,

which γ repetitions approach as 1/√γ. Repetitions take away the permutations' chance, not that of how packets fell on
counters: E is known to ± √(2/(m − 1)) with any γ.

Shahzad and Liu, "Noise Can Help", §4.2.2.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.core.kernels import kernel

__all__ = ["all_repetitions", "virtual_repetitions"]


def all_repetitions(difference: FloatArray) -> float:
    """E of Theorem 4 over all permutations of d_1 … d_m: m/(m − 1) · Σ(d_j − d̄)².

    >>> all_repetitions(np.array([1.0, 3.0]))
    4.0
    """
    m = len(difference)
    return m / (m - 1) * float(np.sum((difference - difference.mean()) ** 2))


def virtual_repetitions(difference: FloatArray, repetitions: int, *, seed: int = 0) -> float:
    """E of Theorem 4 over `repetitions` random permutations; O(repetitions · m).

    An odd m, which the paper excludes, leaves one counter out each time and scales by what is missing.
    """
    if repetitions < 1:
        raise ParameterError(f"{repetitions} virtual repetitions", where="colate", action="use 1 or more")
    random = np.random.default_rng(seed)
    return _repeat(difference, random.integers(0, 2**63, (repetitions, len(difference))))


@kernel
def _repeat(difference: FloatArray, order: Int64Array) -> float:
    """Eq. 9 and 10 for the permutation that sorts each row of `order`."""
    m = len(difference)
    total = 0.0
    for row in range(len(order)):
        permutation = np.argsort(order[row])
        for pair in range(m // 2):
            total += (difference[permutation[2 * pair + 1]] - difference[permutation[2 * pair]]) ** 2
    return total / len(order) * (m / 2) / (m // 2)
