"""The shape that flows share: how delays are distributed around their flow's mean, in units of how far they scatter.

A packet's delay x of a flow with mean M has the place z = (x − M)/M^(γ/2), with γ of the law by which variances go with
means (`hierarchy.SpreadLaw`): flows that differ by a factor have γ = 2, those that differ by a shift 0. The places of
all flows' packets together are the shape G. A flow's distribution is a mixture of that and of its own packets,

    H(t) = a·G((t − M)/M^(γ/2)) + b·#{x ≤ t},        a + b·n = 1,

which `places_of` inverts: O(log n + log places) for each level.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.kernels import inlined, kernel


class SampledDelays(NamedTuple):
    """Flows' sampled delays, ``start[f] … start[f + 1]`` those of flow f, sorted; of which half each is, by chance; and
    the flows of which nothing was left out."""

    start: Int64Array
    delay_ns: FloatArray
    half: Int64Array
    whole: BoolArray


class Shape(NamedTuple):
    """Places in order, the part of all packets' weight that lies below the middle of each, and γ."""

    place: FloatArray
    level: FloatArray
    power: float

    def scale(self, mean: FloatArray) -> FloatArray:
        """The unit of places around a mean."""
        found: FloatArray = np.maximum(mean, 1e-9) ** (self.power / 2) if self.power else np.ones(len(mean))
        return found

    def at(self, level: float) -> float:
        """The place below which a part of the packets lies."""
        return float(np.interp(level, self.level, self.place))

    def below(self, place: FloatArray) -> FloatArray:
        """The part of the packets that lies below places."""
        return np.interp(place, self.place, self.level)


def shape_of(place: FloatArray, weight: FloatArray, power: float) -> Shape:
    """The shape of weighed places."""
    order = np.argsort(place, kind="stable")
    reached = np.cumsum(weight[order])
    return Shape(place[order], (reached - weight[order] / 2) / reached[-1], power)


class Mixed(NamedTuple):
    """Of some flows: mean, unit of places, and what G and one own packet weigh at each level (flows × levels)."""

    mean: FloatArray
    scale: FloatArray
    shared: FloatArray
    own: FloatArray


def places_of(delays: SampledDelays, rows: Int64Array, mixed: Mixed, shape: Shape, expected: FloatArray) -> FloatArray:
    """The delays below which the expected parts of flows' packets lie (`rows` × levels × any); infinite where no packet
    of any flow is that far off."""
    found = np.empty_like(expected)
    _invert(delays.start, delays.delay_ns, rows, mixed, shape, expected, found)
    return found


@kernel
def _invert(
    start: Int64Array,
    delay: FloatArray,
    rows: Int64Array,
    mixed: Mixed,
    shape: Shape,
    expected: FloatArray,
    found: FloatArray,
) -> None:
    for r in range(len(rows)):
        own = delay[start[rows[r]] : start[rows[r] + 1]]
        mean, scale = mixed.mean[r], mixed.scale[r]
        below = np.empty(len(own))
        for i in range(len(own)):
            below[i] = _interpolated((own[i] - mean) / scale, shape.place, shape.level)
        for number in range(expected.shape[1]):
            shared, each = mixed.shared[r, number], mixed.own[r, number]
            for k in range(expected.shape[2]):
                level = expected[r, number, k]
                first, last = 0, len(own)  # the first own packet up to which the level is reached
                while first < last:
                    middle = (first + last) // 2
                    if shared * below[middle] + each * (middle + 1) >= level:
                        last = middle
                    else:
                        first = middle + 1
                left = level - each * first
                if first < len(own) and shared * below[first] < left:
                    found[r, number, k] = own[first]
                else:
                    found[r, number, k] = mean + scale * _inverse(left / max(shared, 1e-12), shape.level, shape.place)


@inlined
def _interpolated(value: float, known: FloatArray, reached: FloatArray) -> float:
    """What is reached at a value, between the known ones; the first and the last beyond."""
    if value <= known[0]:
        return reached[0] if value == known[0] else 0.0
    if value >= known[-1]:
        return reached[-1] if value == known[-1] else 1.0
    at = np.searchsorted(known, value, side="right")
    step = known[at] - known[at - 1]
    part = (value - known[at - 1]) / step if step > 0 else 0.0
    return float(reached[at - 1] + part * (reached[at] - reached[at - 1]))


@inlined
def _inverse(level: float, known: FloatArray, place: FloatArray) -> float:
    """The place of a level; infinite before the first and beyond the last."""
    if level < known[0]:
        return -np.inf
    if level > known[-1]:
        return np.inf
    return _interpolated(level, known, place)
