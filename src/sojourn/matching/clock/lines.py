"""What a clock leaves in delays: lines under and between points, and the floor's trend.

**Lines.** Points are (time, delay) in nanoseconds relative to some origin, as floats. `lower_hull` is Andrew's monotone
chain, O(n) for points in the order of time; everything else works on the few hull vertices. A clock reading
θ(x) = a + b·x fits when θ lies below every forward point and above every backward one. The set of such lines is convex,
so its extremes are found by searching concave functions of the slope.

**Trend.** Queueing moves delays by far more than a clock does, but only upwards. The smallest delay of each of up
to `MOST_BLOCKS` runs of packets follows the floor. The trend of these minima is called significant when

1. the Mann–Kendall test rejects "no trend" at 1 %, with runs made longer until neighbouring minima are
   uncorrelated (a long busy period is not a trend);
2. the drift over the whole capture exceeds `SIGNIFICANT_SPREADS` spreads of the minima around the line.

A trend is not yet a rate: the minima of a clock that was set by less than delays scatter are ranked like those of a
drift. Where two levels describe the minima nearly as well as the line does (`STEP_COSTS_MORE`), the slope's interval
therefore reaches to 0, and a slope is a rate only if its interval leaves out 0 (`Trend.is_rate`).

The test supposes a steady load. Simulated single queues at steady loads of 0.3 to 0.99 raised a false alarm
in at most 0.5 % of captures (a test repeats this); a load that rises from 0.2 to 0.98 during the capture in
up to 2 %. The slope's interval is Sen's (1968) at 99 %, widened by the minima's spread; it covered the truth in
95 to 100 % of captures, least often for a few hundred packets at load 0.95.

Cost: O(packets), and O(`MOST_BLOCKS`²) for the trend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import kernel

SEARCH_STEPS = 200


@dataclass(frozen=True, slots=True)
class Line:
    """``level + slope · x``."""

    level: float
    slope: float


@dataclass(frozen=True, eq=False)
class Corridor:
    """All lines with |slope| ≤ ``steepest`` that stay over the points ``below`` and under ``above``.

    >>> points = np.array([0.0, 1.0]), np.array([3.0, 3.0])
    >>> corridor = Corridor((points[0], points[1] - 2), points, 0.5)
    >>> corridor.width(0.0), corridor.middle(0.0)
    (2.0, Line(level=2.0, slope=0.0))
    """

    below: tuple[FloatArray, FloatArray]
    above: tuple[FloatArray, FloatArray]
    steepest: float

    def _ceiling(self, slope: float) -> float:
        return float(np.min(self.above[1] - slope * self.above[0]))

    def _floor(self, slope: float) -> float:
        return float(np.max(self.below[1] - slope * self.below[0]))

    def width(self, slope: float) -> float:
        """The vertical room for lines of this slope; negative when none fits."""
        return self._ceiling(slope) - self._floor(slope)

    def middle(self, slope: float) -> Line:
        """The line of this slope that leaves as much room above as below."""
        return Line((self._ceiling(slope) + self._floor(slope)) / 2, slope)

    @cached_property
    def best_slope(self) -> float:
        """The slope with the most room."""
        return _highest(self.width, -self.steepest, self.steepest)

    @cached_property
    def slopes(self) -> tuple[float, float]:
        """The least and the greatest slope that fit; the best one twice when none does."""
        best = self.best_slope
        if self.width(best) < 0:
            return best, best
        return _reach(self.width, best, -self.steepest), _reach(self.width, best, self.steepest)

    @cached_property
    def levels(self) -> tuple[float, float]:
        """The least and the greatest level at x = 0 of the lines that fit."""
        top = self._ceiling(_highest(self._ceiling, *self.slopes))
        bottom = self._floor(_highest(lambda slope: -self._floor(slope), *self.slopes))
        return min(bottom, top), max(bottom, top)


def lower_hull(x: FloatArray, y: FloatArray) -> Int64Array:
    """Rows of the lower convex hull's vertices, from left to right; `x` must not decrease."""
    chain = np.empty(len(x), np.int64)
    return chain[: _chain_up(x, y, chain)].copy()


@kernel
def _chain_up(x: FloatArray, y: FloatArray, chain: Int64Array) -> int:
    """Fill `chain` with the hull's rows; how many there are."""
    size = 0
    for i in range(x.shape[0]):
        if size and x[chain[size - 1]] == x[i]:
            if y[chain[size - 1]] <= y[i]:
                continue
            size -= 1
        while size >= 2:
            p, q = chain[size - 2], chain[size - 1]
            if (x[q] - x[p]) * (y[i] - y[p]) > (y[q] - y[p]) * (x[i] - x[p]):
                break
            size -= 1
        chain[size] = i
        size += 1
    return size


def line_under(x: FloatArray, y: FloatArray, mean_x: float) -> Line:
    """The line under all points with the least area (sum of distances) between: the hull's edge at the mean.

    `x`, `y` are the hull's vertices and `mean_x` is the mean over all points (Moon, Skelly and Towsley,
    "Estimation and removal of clock skew from network delay measurements", §IV).

    >>> line_under(np.array([0.0, 2.0, 4.0]), np.array([1.0, 0.0, 4.0]), 1.5)
    Line(level=1.0, slope=-0.5)
    """
    if len(x) == 1:
        return Line(float(y[0]), 0.0)
    right = int(np.clip(np.searchsorted(x, mean_x), 1, len(x) - 1))
    slope = float((y[right] - y[right - 1]) / (x[right] - x[right - 1]))
    return Line(float(y[right] - slope * x[right]), slope)


def _highest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a concave function is highest, by ternary search."""
    for _ in range(SEARCH_STEPS):
        if high - low <= 1e-18:
            break
        third = (high - low) / 3
        if function(low + third) < function(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _reach(function: Callable[[float], float], inside: float, outside: float) -> float:
    """How far from `inside` towards `outside` the function stays at or above 0, rounded outwards."""
    if function(outside) >= 0:
        return outside
    for _ in range(SEARCH_STEPS):
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            break
        if function(middle) >= 0:
            inside = middle
        else:
            outside = middle
    return outside


MOST_BLOCKS, FEWEST_BLOCKS = 32, 8
FEWEST_PACKETS_PER_BLOCK = 16
SIGNIFICANT_SPREADS = 4.0
REJECT_AT_1_PERCENT = 2.576
SPREAD_PER_DEVIATION = 1.4826
# How much further from the minima the best two levels have to be than the line to be ruled out. Under a scatter of
# 60 ms, at 100 packets/s for 30 s: steps of 1 to 5 ms were at most 1.04 (80 seeds each), 19 of 20 drifts of 100 ppm at
# least 1.06.
STEP_COSTS_MORE = 1.05


@dataclass(frozen=True, slots=True)
class Trend:
    """The slope of the floor (delay per time), its 99 % interval, and whether it is more than noise."""

    slope: float
    low: float
    high: float
    significant: bool

    @property
    def is_rate(self) -> bool:
        """Whether it is more than noise, and neither a step nor a clock that stands explains it."""
        return self.significant and not self.low <= 0 <= self.high

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
    low, high = low - margin, high + margin
    if _cost_of_step(minima) <= STEP_COSTS_MORE * float(np.sum(np.abs(residual))):
        low, high = min(low, 0.0), max(high, 0.0)
    return Trend(slope, low, high, bool(significant))


def _cost_of_step(values: FloatArray) -> float:
    """The least sum of distances of values from two levels, one of the first ones and one of the others."""

    def cost(level: FloatArray) -> float:
        return float(np.sum(np.abs(level - np.median(level))))

    return min(cost(values[:split]) + cost(values[split:]) for split in range(1, len(values)))


def is_draining(x: FloatArray, y: FloatArray, *, steepest: float) -> bool:
    """Whether values fall or rise, beyond doubt, faster than `steepest`: as queues do and clocks do not."""
    stride = max(1, len(x) // MOST_BLOCKS)
    x, y = x[::stride], y[::stride]
    return _mann_kendall(y)[0] > REJECT_AT_1_PERCENT and abs(float(np.median(_pair_slopes(x, y)))) > steepest


def _pair_slopes(x: FloatArray, y: FloatArray) -> FloatArray:
    """Theil–Sen: the slopes between all pairs of points, ascending; importing scipy.stats takes 0.8 s of CPU."""
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
