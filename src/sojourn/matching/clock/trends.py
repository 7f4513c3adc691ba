"""Is the floor of the delays rising or falling, and how fast? A test that queueing does not fool.

Queueing moves delays by far more than a clock does, but only upwards. The smallest delay of each of up
to `MOST_BLOCKS` runs of packets follows the floor. The trend of these minima is called significant when

1. the Mann–Kendall test rejects "no trend" at 1 %, with runs made longer until neighbouring minima are
   uncorrelated (a long busy period is not a trend);
2. the drift over the whole capture exceeds `SIGNIFICANT_SPREADS` spreads of the minima around the line.

The test supposes a steady load. Simulated single queues at steady loads of 0.3 to 0.99 raised a false alarm
in at most 0.5 % of captures (a test repeats this); a load that rises from 0.2 to 0.98 during the capture in
up to 2 %. The slope's interval is Sen's (1968) at 99 %, widened by the minima's spread; it held the truth in
95 to 100 % of captures, least often for a few hundred packets at load 0.95.

Cost: O(points) for the minima, then O(`MOST_BLOCKS`²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array

__all__ = ["Trend", "block_minima", "floor_trend", "is_draining"]

MOST_BLOCKS, FEWEST_BLOCKS = 32, 8
FEWEST_PACKETS_PER_BLOCK = 16
SIGNIFICANT_SPREADS = 4.0
REJECT_AT_1_PERCENT = 2.576
SPREAD_PER_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True)
class Trend:
    """The slope of the floor (delay per time), its 99 % interval, and whether it is more than noise."""

    slope: float
    low: float
    high: float
    significant: bool

    def times(self, sign: int) -> Trend:
        """The trend of the mirrored points when `sign` is −1."""
        return self if sign > 0 else Trend(-self.slope, -self.high, -self.low, self.significant)


NO_TREND = Trend(0.0, -math.inf, math.inf, False)


def block_minima(y: FloatArray, blocks: int) -> Int64Array:
    """The row of the smallest value in each of `blocks` runs of (nearly) equal length."""
    edges = np.linspace(0, len(y), blocks + 1).astype(np.int64)
    least = np.minimum.reduceat(y, edges[:-1])
    hits = np.flatnonzero(y == np.repeat(least, np.diff(edges)))
    return hits[np.searchsorted(hits, edges[:-1])]


def floor_trend(x: FloatArray, y: FloatArray) -> Trend:
    """The trend of the lower edge of the points, which are in the order of `x`."""
    blocks = MOST_BLOCKS
    while blocks * FEWEST_PACKETS_PER_BLOCK > len(y) and blocks >= FEWEST_BLOCKS:
        blocks //= 2
    if blocks < FEWEST_BLOCKS or x[-1] <= x[0]:
        return NO_TREND
    while True:
        rows = block_minima(y, blocks)
        times, minima = x[rows], y[rows]
        slopes = _pair_slopes(times, minima)
        slope = float(np.median(slopes))
        residual = minima - slope * times
        residual -= np.median(residual)
        if _rank_correlation(residual) < 0.5 / math.sqrt(blocks) or blocks <= FEWEST_BLOCKS:
            break
        blocks //= 2
    spread = SPREAD_PER_DEVIATION * float(np.median(np.abs(residual)))
    reach = float(times[-1] - times[0])
    score, deviation = _mann_kendall(minima)
    significant = score > REJECT_AT_1_PERCENT and abs(slope) * reach > SIGNIFICANT_SPREADS * spread
    half = REJECT_AT_1_PERCENT * deviation / 2
    middle = len(slopes) / 2
    low = float(slopes[max(0, math.floor(middle - half) - 1)])
    high = float(slopes[min(len(slopes) - 1, math.ceil(middle + half))])
    margin = spread / reach
    return Trend(slope, low - margin, high + margin, bool(significant))


def is_draining(x: FloatArray, y: FloatArray, *, steepest: float) -> bool:
    """Whether values fall or rise, beyond doubt, faster than `steepest`: as queues do and clocks do not."""
    stride = max(1, len(x) // MOST_BLOCKS)
    x, y = x[::stride], y[::stride]
    return _mann_kendall(y)[0] > REJECT_AT_1_PERCENT and abs(float(np.median(_pair_slopes(x, y)))) > steepest


def _pair_slopes(x: FloatArray, y: FloatArray) -> FloatArray:
    """Theil–Sen: the slopes between all pairs of points, ascending."""
    first, second = np.triu_indices(len(x), 1)
    run = np.maximum(x[second] - x[first], 1.0)
    slopes: FloatArray = np.sort((y[second] - y[first]) / run)
    return slopes


def _rank_correlation(values: FloatArray) -> float:
    """Correlation of each value's rank with its successor's."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable") - (len(values) - 1) / 2
    return float(np.sum(ranks[1:] * ranks[:-1]) / np.sum(ranks * ranks))


def _mann_kendall(values: FloatArray) -> tuple[float, float]:
    """|z| of the Mann–Kendall statistic (with ties), and the statistic's deviation."""
    n = len(values)
    signs = np.sign(values[None, :] - values[:, None])
    statistic = abs(float(np.triu(signs, 1).sum()))
    ties = np.unique(values, return_counts=True)[1].astype(np.float64)
    variance = (n * (n - 1) * (2 * n + 5) - float(np.sum(ties * (ties - 1) * (2 * ties + 5)))) / 18
    if variance <= 0:
        return 0.0, 0.0
    return max(statistic - 1, 0.0) / math.sqrt(variance), math.sqrt(variance)
