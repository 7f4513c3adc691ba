"""What a clock leaves in delays: lines under and between points, the floor's trend, and steps.

**Lines.** Points are (time, delay) in nanoseconds relative to some origin, as floats. `lower_hull` is Andrew's monotone
chain, O(n) for points in the order of time; everything else works on the few hull vertices. A clock reading
θ(x) = a + b·x fits when θ lies below every forward point and above every backward one. The set of such lines is convex,
so its extremes are found by searching concave functions of the slope.

**Trend.** Queueing moves delays by far more than a clock does, but only upwards. The smallest delay of each of up
to `MOST_BLOCKS` runs of packets follows the floor. The trend of these minima is called significant when

1. the Mann–Kendall test rejects "no trend" at 1 %, with runs made longer until neighbouring minima are
   uncorrelated (a long busy period is not a trend);
2. the drift over the whole capture exceeds `SIGNIFICANT_SPREADS` spreads of the minima around the line.

The test supposes a steady load. Simulated single queues at steady loads of 0.3 to 0.99 raised a false alarm
in at most 0.5 % of captures (a test repeats this); a load that rises from 0.2 to 0.98 during the capture in
up to 2 %. The slope's interval is Sen's (1968) at 99 %, widened by the minima's spread; it covered the truth in
95 to 100 % of captures, least often for a few hundred packets at load 0.95.

**Steps.** A clock that is set lifts or lowers every delay from one packet to the next and for good. Reported where

1. the floor (smallest delay of each run of packets) jumps by more than `CLEAR_RANGES` times the range of
   the floor on either side, after removing a steady trend; and
2. it does so at once: between two packets, the `NEIGHBOURS` delays before and after leave at least half
   of the jump free; and
3. it lasts: up to the next step the higher side never comes back to half of the jump, nor falls or rises
   faster than a clock drifts.

A queue that fills passes every level between and fails the second condition; one that a long stall filled
at once drains, and fails the third. A change of route passes all: in one direction the two cannot be told
apart, in two directions a clock moves both delays by the same amount in opposite senses and a route does not.
Simulated queues without steps showed one in at most 1.2 % of captures (heavy-tailed service, one direction).
A step smaller than the delays' own scatter is not found.

Cost: O(packets), and O(`MOST_BLOCKS`²) for the trend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
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


MOST_STEP_BLOCKS, FEWEST_STEP_BLOCKS = 512, 16
PACKETS_PER_BLOCK = 8
WINDOW_BLOCKS = 8
TREND_BLOCKS = 32
CLEAR_RANGES = 4.0
NEIGHBOURS = 8
LEAST_JUMP_NS = 10_000.0
MOST_STEPS = 16
AGREEMENT = 0.25


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The receiver's clock jumped by ``jump_ns`` when the sender's clock read about ``time_ns``.

    ``received_ns`` is the receiver's reading at the first packet after the jump, and ``uncertainty_ns``
    how far the jump's size may be off.
    """

    time_ns: int
    received_ns: int
    jump_ns: int
    uncertainty_ns: int

    def has_happened(self, received_ns: Int64Array, sent_ns: Int64Array | None = None) -> BoolArray:
        """Whether each reading of the receiver's clock is from after the jump.

        A clock set back reads some times twice; there the packet's time at the sender decides, and
        without it the later of the two is assumed.
        """
        if self.jump_ns > 0:
            return received_ns >= self.received_ns - self.jump_ns // 2
        after: BoolArray = received_ns >= self.received_ns
        if sent_ns is not None:
            after &= (sent_ns >= self.time_ns) | (received_ns > self.received_ns - self.jump_ns)
        return after


def find_steps(sent_ns: Int64Array, delay_ns: Int64Array, *, steepest: float) -> tuple[ClockStep, ...]:
    """Steps in the floor of raw delays, in time order; packets in the order of the sender's clock."""
    blocks = min(MOST_STEP_BLOCKS, len(delay_ns) // PACKETS_PER_BLOCK)
    if blocks < FEWEST_STEP_BLOCKS:
        return ()
    x = (sent_ns - sent_ns[0]).astype(np.float64)
    y = (delay_ns - delay_ns[0]).astype(np.float64)
    rows = block_minima(y, blocks)
    y -= np.clip(_steady_slope(x[rows], y[rows]), -steepest, steepest) * x
    minima = y[rows]
    jumps, ranges = _jumps(minima)
    clear = np.abs(jumps) > np.maximum(CLEAR_RANGES * ranges, LEAST_JUMP_NS)
    sharp: dict[int, int] = {}
    while clear.any() and len(sharp) < MOST_STEPS:
        block = int(np.argmax(np.where(clear, np.abs(jumps), 0.0)))
        clear[max(0, block - WINDOW_BLOCKS // 2) : block + WINDOW_BLOCKS // 2 + 1] = False
        row = _sharp_edge(y, block, blocks, jumps[block])
        if row is not None:
            sharp[block] = row
    return tuple(
        ClockStep(
            time_ns=int(sent_ns[sharp[block]]),
            received_ns=int(sent_ns[sharp[block]] + delay_ns[sharp[block]]),
            jump_ns=round(float(jumps[block])),
            uncertainty_ns=round(float(ranges[block])),
        )
        for block in _lasting(sorted(sharp), x[rows], minima, jumps, steepest)
    )


def _lasting(blocks: list[int], times: FloatArray, minima: FloatArray, jumps: FloatArray, steepest: float) -> list[int]:
    """Of splits behind these blocks, those whose higher side stays up; dropping one lengthens the others."""
    kept = list(blocks)
    while True:
        bounds = [-1, *kept, len(minima) - 1]
        lasting = [
            block
            for before, block, after in zip(bounds, kept, bounds[2:], strict=False)
            if _stays_up(times, minima, jumps[block], before, block, after, steepest)
        ]
        if len(lasting) == len(kept):
            return kept
        kept = lasting


def _stays_up(
    times: FloatArray,
    minima: FloatArray,
    jump: float,
    before: int,
    block: int,
    after: int,
    steepest: float,
) -> bool:
    """Whether the side that a jump leaves higher, up to the next split, is a level of its own."""
    left, right = slice(before + 1, block + 1), slice(block + 1, after + 1)
    higher, lower = (right, left) if jump > 0 else (left, right)
    near = minima[lower][-WINDOW_BLOCKS:] if jump > 0 else minima[lower][:WINDOW_BLOCKS]
    if minima[higher].min() < np.median(near) + abs(jump) / 2:
        return False
    return not is_draining(times[higher], minima[higher], steepest=steepest)


def _steady_slope(x: FloatArray, y: FloatArray) -> float:
    """The floor's trend, as the median over pairs of blocks a fixed distance apart; few steps spoil few."""
    lag = min(TREND_BLOCKS, len(x) // 4)
    return float(np.median((y[lag:] - y[:-lag]) / np.maximum(x[lag:] - x[:-lag], 1.0)))


def _jumps(minima: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For a split after each block: the jump of the floor, and its larger range on the two sides."""
    jumps = np.zeros(len(minima))
    ranges = np.full(len(minima), np.inf)
    for i in range(WINDOW_BLOCKS - 1, len(minima) - WINDOW_BLOCKS):
        left = minima[i + 1 - WINDOW_BLOCKS : i + 1]
        right = minima[i + 1 : i + 1 + WINDOW_BLOCKS]
        jumps[i] = np.median(right) - np.median(left)
        ranges[i] = max(np.ptp(left), np.ptp(right))
    return jumps, ranges


def _sharp_edge(y: FloatArray, block: int, blocks: int, jump: float) -> int | None:
    """The first row after the step near the split behind `block`, if the jump is sharp."""
    sign = 1.0 if jump > 0 else -1.0
    edges = np.linspace(0, len(y), blocks + 1).astype(np.int64)
    start = max(NEIGHBOURS, int(edges[max(0, block - 1)]))
    end = min(len(y) - NEIGHBOURS, int(edges[min(blocks, block + 3)]))
    if end <= start:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(sign * y[start - NEIGHBOURS : end + NEIGHBOURS], NEIGHBOURS)
    room = windows[NEIGHBOURS:].min(axis=1) - windows[:-NEIGHBOURS].max(axis=1)
    best = int(np.argmax(room))
    return start + best if room[best] >= abs(jump) / 2 else None


def confirmed_steps(
    forward: tuple[ClockStep, ...], backward: tuple[ClockStep, ...], *, apart_ns: int
) -> tuple[tuple[ClockStep, ...], tuple[ClockStep, ...]]:
    """Steps that both directions show, at most `apart_ns` apart and of about the same size.

    Each is given twice, as forward and as backward packets meet it: they are on their way at the time, so
    that the sender sees the first packet after the step before it in one direction and after it in the other.
    """
    found: list[tuple[ClockStep, ClockStep]] = []
    for ahead in forward:
        for back in backward:
            difference = abs(ahead.jump_ns - back.jump_ns)
            largest = max(abs(ahead.jump_ns), abs(back.jump_ns))
            if abs(ahead.time_ns - back.time_ns) <= apart_ns and difference <= AGREEMENT * largest:
                found.append((_combined(ahead, back), _combined(back, ahead)))
                break
    return tuple(ahead for ahead, _ in found), tuple(back for _, back in found)


def _combined(own: ClockStep, other: ClockStep) -> ClockStep:
    """A step as one direction meets it, with what both know of its size."""
    uncertainty = abs(own.jump_ns - other.jump_ns) // 2 + max(own.uncertainty_ns, other.uncertainty_ns)
    return ClockStep(
        time_ns=own.time_ns,
        received_ns=min(own.received_ns, other.received_ns),
        jump_ns=(own.jump_ns + other.jump_ns) // 2,
        uncertainty_ns=uncertainty,
    )
