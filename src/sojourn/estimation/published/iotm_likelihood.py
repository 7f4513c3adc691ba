"""The likelihood of IoTm's Eq. 2 to 4, and the sum that makes it largest (the root of Eq. 7), compiled.

A bucket of the instance is the sum of two binomials, Binom(s_I, 1/m) of its own and Binom(s − s_I, 1/n) of all others.
Where buckets hold little, Eq. 2 is summed over all splits of a bucket: the first in logarithms of gammas, each further
one from the one before by the ratio of both. Above `EXACT_UP_TO` both binomials are taken as normals.

Cost: about a hundred looks per instance, each O(m · bucket) up to `EXACT_UP_TO` (a few ns per split), O(m) above.

Shahzad and Ganji, "IoTm", §II-C.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import inlined, kernel

__all__ = ["EXACT_UP_TO", "log_likelihood", "most_likely_sums"]

EXACT_UP_TO = 1024
GRID = 48
TOLERANCE = 1e-3
WHOLE = 32
# The golden section, and where sums of splits are scaled before they leave the range of a float.
_GOLDEN = (math.sqrt(5) - 1) / 2
_LARGE = 1e200


@inlined
def _log_choose(many: float, few: float) -> float:
    return math.lgamma(many + 1) - math.lgamma(few + 1) - math.lgamma(many - few + 1)


@inlined
def _log_kept(count: float, chance: float) -> float:
    """The logarithm of (1 − chance)^count; nothing left over is certain even where it could not be."""
    if count == 0:
        return 0.0
    return count * math.log1p(-chance) if chance < 1 else -math.inf


@kernel
def _log_split(own_sum: float, held: float, total: float, n: float, m: float) -> float:
    """The logarithm of Eq. 2: over all ways to split a bucket between the instance and the others."""
    others = total - own_sum
    own = max(0.0, math.ceil(held - others))
    last = min(held, math.floor(own_sum))
    if own > last:
        return -math.inf
    if m == 1 or n == 1:
        # Every unit of one side lands here: one split at most has a chance.
        own = own_sum if m == 1 else held - others
        if own != math.floor(own) or own < 0 or own > held or (m == 1 and n == 1 and held != total):
            return -math.inf
        last = own
    rest = held - own
    log_first = _log_choose(own_sum, own) + _log_kept(own_sum - own, 1 / m) - own * math.log(m)
    log_first += _log_choose(others, rest) + _log_kept(others - rest, 1 / n) - rest * math.log(n)
    odds = (n - 1) / (m - 1) if m > 1 else 0.0
    term = together = 1.0
    while own < last:
        term *= (own_sum - own) / (own + 1) * rest / (others - rest + 1) * odds
        own += 1
        rest -= 1
        together += term
        if together > _LARGE:
            log_first += math.log(_LARGE)
            term /= _LARGE
            together /= _LARGE
    return log_first + math.log(together)


@kernel
def _log_normal(own_sum: float, buckets: FloatArray, total: float, n: float, m: float) -> float:
    mean = own_sum / m + (total - own_sum) / n
    variance = max(own_sum / m * (1 - 1 / m) + (total - own_sum) / n * (1 - 1 / n), 1e-9)
    found = 0.0
    for held in buckets:
        found -= 0.5 * ((held - mean) ** 2 / variance + math.log(2 * math.pi * variance))
    return found


@kernel
def _log_likelihood(own_sum: float, buckets: FloatArray, total: float, n: float, m: float) -> float:
    if buckets.max() > EXACT_UP_TO:
        return _log_normal(own_sum, buckets, total, n, m)
    found = 0.0
    for held in buckets:
        found += _log_split(own_sum, held, total, n, m)
    return found


def log_likelihood(own_sum: float, buckets: FloatArray, total: float, *, n: int, m: int) -> float:
    """The logarithm of Eq. 4 for an instance that added `own_sum` of `total`."""
    return _log_likelihood(float(own_sum), np.asarray(buckets, np.float64), float(total), float(n), float(m))


@kernel
def _refined(low: float, high: float, buckets: FloatArray, total: float, n: float, m: float) -> float:
    """Where the likelihood is largest between two sums, by sections in the golden ratio."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left = _log_likelihood(left, buckets, total, n, m)
    at_right = _log_likelihood(right, buckets, total, n, m)
    while high - low > TOLERANCE + 1e-12 * high:
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = _log_likelihood(left, buckets, total, n, m)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = _log_likelihood(right, buckets, total, n, m)
    return left if at_left >= at_right else right


@kernel
def _most_likely(buckets: FloatArray, total: float, n: float, m: float) -> float:
    """The root of Eq. 7: own sums are looked at evenly and where moments have them, then around the best."""
    guess = (n * buckets.sum() - m * total) / (n - m) if n > m else total
    looks = np.unique(np.append(np.linspace(0.0, total, GRID), min(max(guess, 0.0), total)))
    best, at_best = 0, -math.inf
    for i in range(len(looks)):
        found = _log_likelihood(looks[i], buckets, total, n, m)
        if found > at_best:
            best, at_best = i, found
    low, high = looks[max(best - 1, 0)], looks[min(best + 1, len(looks) - 1)]
    result: float = looks[best]
    # A sum of few units gains a split, and some likelihood, at every whole number: sections may miss the best of these.
    first = math.ceil(low)
    for i in range(WHOLE + 1):
        look = _refined(low, high, buckets, total, n, m) if i == WHOLE else min(first + i, high)
        found = _log_likelihood(look, buckets, total, n, m)
        if found > at_best:
            result, at_best = look, found
    return result


@kernel
def _most_likely_each(buckets: FloatArray, total: float, n: float, m: float) -> FloatArray:
    found = np.zeros(len(buckets))
    for i in range(len(buckets)):
        if buckets[i].max() > 0:
            found[i] = _most_likely(buckets[i], total, n, m)
    return found


def most_likely_sums(buckets: Int64Array | FloatArray, total: float, *, n: int) -> FloatArray:
    """The own sum in 0 … total for which each instance's buckets (a row of m) are most likely."""
    held: FloatArray = np.maximum(np.asarray(buckets, np.float64), 0.0)
    if total <= 0:
        return np.zeros(len(held))
    return _most_likely_each(np.ascontiguousarray(held), float(total), float(n), float(held.shape[1]))
