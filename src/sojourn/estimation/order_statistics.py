"""Percentiles from a random sample, with intervals that assume nothing of the distribution.

The number of a sample's n packets that are no slower than the population's q-quantile is binomial (n, q), whatever the
delays are. So the r-th and the s-th of the sorted sample enclose that quantile with the probability of r ≤ B < s: the
ranks are those that leave 2.5 % on either side at most (David and Nagaraja, "Order Statistics", §7.1). A sample without
replacement of a finite population, as ours are, leaves less.

A sample that is too small for a rank has none: 95 % for the median take 6 packets, for p99 299 (the largest of them
bounds it then, and nearly all of the 5 % are spent on that side), for p99.9 2,997. Where a bound is missing there is no
value either, but the other bound is given.

*Weighed* samples, of groups that were sampled at different rates, have n = (Σw)²/Σw² packets in effect (Kish), and
ranks are shares of the weight (Woodruff 1952).
O(samples · log samples), and O(n) for each distinct sample size.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.estimates import LEVELS

MISS = 0.05
# Of the 5 %, what the side without enough packets for its half may take.
MOST_ON_ONE_SIDE = 0.0499


@lru_cache(maxsize=65_536)
def bounding_ranks(count: int, level: float) -> tuple[int, int]:
    """The ranks, from 1 on, whose delays enclose a quantile with 95 %; 0, or more than `count`, where there is none.

    >>> bounding_ranks(100, 0.5), bounding_ranks(5, 0.5), bounding_ranks(298, 0.99), bounding_ranks(299, 0.99)
    ((40, 61), (0, 5), (291, 299), (289, 299))
    """
    below = _binomial(count, level)  # P(B < r) for r = 0 … n + 1
    above = 1 - below
    left = right = MISS / 2
    if right < above[count] <= MOST_ON_ONE_SIDE:  # only the largest packet can bound it: the other side has the rest
        left, right = MISS - above[count], above[count]
    elif left < below[1] <= MOST_ON_ONE_SIDE:
        left, right = below[1], MISS - below[1]
    low = int(np.searchsorted(below, left, "right")) - 1
    high = int(np.searchsorted(-above, -right, "left"))
    return low, high


def _binomial(count: int, level: float) -> FloatArray:
    """P(B < r) for r = 0 … count + 1."""
    k = np.arange(count + 1)
    steps = np.log(np.arange(1, count + 1))
    factorial = np.concatenate([[0.0], np.cumsum(steps)])
    logs = factorial[-1] - factorial - factorial[::-1] + k * math.log(level) + (count - k) * math.log1p(-level)
    return np.asarray(np.minimum(np.concatenate([[0.0], np.cumsum(np.exp(logs))]), 1.0))


def sample_percentiles(start: Int64Array, delay_ns: FloatArray, is_whole: BoolArray) -> FloatArray:
    """Value, low and high of every level for the rows ``start[i] … start[i + 1]``, each sorted; NaN where unknown.

    Of rows that are whole, nothing was left out: their percentiles are exact. The shape is (rows, levels, 3).
    """
    counts = np.diff(start)
    found = np.full((len(counts), len(LEVELS), 3), np.nan)
    padded = np.append(delay_ns, np.nan)
    sizes, at = np.unique(counts, return_inverse=True)
    for number, level in enumerate(LEVELS.values()):
        ranks = np.array([bounding_ranks(int(n), level) for n in sizes]).reshape(-1, 2)[at]
        value = row_quantiles(start, delay_ns, level)
        low = np.where(ranks[:, 0] > 0, padded[start[:-1] + ranks[:, 0] - 1], np.nan)
        high = np.where(ranks[:, 1] <= counts, padded[np.minimum(start[:-1] + ranks[:, 1] - 1, len(delay_ns))], np.nan)
        known = ~np.isnan(low) & ~np.isnan(high)
        found[:, number, 0] = np.where(known | is_whole, value, np.nan)
        found[:, number, 1] = np.where(is_whole, value, np.minimum(low, value))
        found[:, number, 2] = np.where(is_whole, value, np.maximum(high, value))
    return found


def weighed_percentiles(delay_ns: FloatArray, weight: FloatArray, *, is_whole: bool) -> FloatArray:
    """The same for one population of which packets stand for `weight` of its packets each; shape (levels, 3)."""
    found = np.full((len(LEVELS), 3), np.nan)
    if not len(delay_ns):
        return found
    if is_whole:
        return np.repeat(np.quantile(delay_ns, list(LEVELS.values()))[:, None], 3, axis=1)
    order = np.argsort(delay_ns, kind="stable")
    delays, reached = delay_ns[order], np.cumsum(weight[order])
    count = int(reached[-1] ** 2 / float(np.sum(weight**2)) + 1e-6)

    def at(share: float) -> float:
        # The rounding of sums, and of stored weights, must not make the next packet of what is reached exactly.
        place = int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-6), "left"))
        return float(delays[min(place, len(delays) - 1)])

    for number, level in enumerate(LEVELS.values()):
        low, high = bounding_ranks(count, level)
        value = at(level)
        bounds = min(at(low / count), value) if low > 0 else math.nan, max(at(high / count), value)
        found[number, 1] = bounds[0]
        if high <= count:
            found[number, 2] = bounds[1]
            found[number, 0] = value if low > 0 else math.nan
    return found


def row_quantiles(start: Int64Array, delay_ns: FloatArray, level: float) -> FloatArray:
    """numpy's linear interpolation, for the rows ``start[i] … start[i + 1]``, each sorted; NaN of an empty one."""
    counts, padded = np.diff(start), np.append(delay_ns, np.nan)
    rank = np.maximum(counts - 1, 0) * level
    lower = np.floor(rank).astype(np.int64)
    last = len(padded) - 1
    empty = counts == 0
    near = padded[np.where(empty, last, start[:-1] + lower)]
    far = padded[np.where(empty, last, start[:-1] + np.minimum(lower + 1, np.maximum(counts - 1, 0)))]
    return np.asarray(near + (rank - lower) * (far - near))


def quantile_of_sorted(values: FloatArray, level: float) -> float:
    """numpy's linear interpolation in one sorted column, which its own function takes ten times as long for.

    >>> quantile_of_sorted(np.array([1.0, 2.0, 4.0]), 0.75)
    3.0
    """
    rank = (len(values) - 1) * level
    lower = int(rank)
    near, far = values[lower], values[min(lower + 1, len(values) - 1)]
    return float(near + (rank - lower) * (far - near))
