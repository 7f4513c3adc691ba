"""Lines under and between points: the geometry of clock estimation.

Points are (time, delay) in nanoseconds relative to some origin, as floats. `lower_hull` is Andrew's
monotone chain, O(n) for points in the order of time; everything else works on the few hull vertices.

A clock reading θ(x) = a + b·x fits when θ lies below every forward point and above every backward one.
The set of such lines is convex, so its extremes are found by searching concave functions of the slope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import kernel

__all__ = ["Corridor", "Line", "line_under", "lower_hull"]

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


@kernel
def lower_hull(x: FloatArray, y: FloatArray) -> Int64Array:
    """Rows of the lower convex hull's vertices, from left to right; `x` must not decrease."""
    chain = np.empty(x.shape[0], np.int64)
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
    return chain[:size].copy()


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
