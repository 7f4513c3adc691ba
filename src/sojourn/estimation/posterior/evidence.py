"""What was observed of each flow's mean, and what moments of that say of all flows: how far they are apart.

Moments need no shape of delays or flows: sampled means vary by τ² + σ²/n, packets of a flow by σ². Three things tell τ:

- squares of sampled means, whatever delays are. Where delays are skewed a few of them decide;
- squares of the means of delays' logarithms, of flows that differ by factors: those have hardly a tail. They are asked
  where their standard error is smaller and the squares of delays do not contradict them;
- cells, whose held-out likelihood tells it with the flows' means, unless what they say of single flows is further
  apart.

The mean of all is that of sampled means, of what cells say, and of the whole as the flow-blind LDA knows it, by their
precision. O(flows).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.estimation.normal import normal_below

FEWEST_FLOWS = 8
# Means of more packets are as good as normal, whatever the shape of one delay.
FEW_PACKETS = 8
# Standard errors by which squares say that flows are further apart than logarithms do, if they contradict these.
CONTRADICTED = 2.0
# Squares over what they are expected to be: messages claim a third too little where cells are few.
MOST_SQUARES = 2.0
# A flow's mean is known that is known to this part.
SURELY = 0.2
_TINY = 1e-9


class Logarithms(NamedTuple):
    """Of each flow's sampled delays: the mean of their logarithms, and the sum of squares around it."""

    mean: FloatArray
    squares: FloatArray

    def select(self, rows: Int64Array) -> Logarithms:
        return Logarithms(self.mean[rows], self.squares[rows])


class Whole(NamedTuple):
    """What is known of all packets' mean, and the variance of that."""

    mean: float
    variance: float


@dataclass(frozen=True, eq=False)
class Evidence:
    """What was observed of each flow: the cells' value and precision (0: none), the sampled packets' mean, number and
    sum of squares around it, the number of packets delivered, the variance of its logarithm and the expectation of its
    inverse (None: it is known); the logarithms of sampled delays if all are positive; how far cells say that flows are
    apart; the mean of all packets."""

    value: FloatArray
    precision: FloatArray
    sampled: FloatArray
    count: FloatArray
    squares: FloatArray
    size: FloatArray
    size_doubt: FloatArray | None = None
    each: FloatArray | None = None
    logs: Logarithms | None = None
    apart: float = math.inf
    whole: Whole | None = None

    def select(self, rows: Int64Array) -> Evidence:
        return replace(
            self,
            value=self.value[rows],
            precision=self.precision[rows],
            sampled=self.sampled[rows],
            count=self.count[rows],
            squares=self.squares[rows],
            size=self.size[rows],
            size_doubt=None if self.size_doubt is None else self.size_doubt[rows],
            each=None if self.each is None else self.each[rows],
            logs=None if self.logs is None else self.logs.select(rows),
        )


class Moments(NamedTuple):
    """Of all flows: the mean, how far theirs may be from it, a packet's variance; how probably they are alike, and the
    mean then, in which each packet counts as much."""

    mean: float
    apart: float
    within: float
    alike: float
    common: float


class _Dispersion(NamedTuple):
    """How far flows are apart by their own means: the middle of these, and the variance beyond what packets of the same
    flow vary by, with its standard error."""

    middle: float
    variance: float
    doubt: float
    within: float

    @property
    def most(self) -> float:
        """The variance and half a standard error."""
        return max(self.variance, 0.0) + 0.5 * self.doubt

    def alike(self, most: float) -> float:
        """How probable it is that there is none, if that is as probable as any, up to `most`."""
        if not self.doubt > 0:
            return 0.0
        reach, place = most / self.doubt, max(self.variance / self.doubt, 0.0)
        apart = (normal_below(reach - place)[0] - normal_below(-place)[0]) / reach
        none = normal_below(place)[1]
        return none / (none + apart) if none > 0 else 0.0


def _dispersion(n: FloatArray, mean: FloatArray, squares: FloatArray, weight: FloatArray) -> _Dispersion:
    """Of flows with n packets each, by moments."""
    degrees = float(np.sum(n - 1))
    middle = float(np.average(mean, weights=weight))
    parts = weight**2 * (mean - middle) ** 2 - float(np.sum(weight**2 / n)) / degrees * squares
    doubt = math.sqrt(float(np.sum((parts - parts.mean()) ** 2)))
    total = float(np.sum(weight**2))
    return _Dispersion(middle, float(parts.sum()) / total, doubt / total, float(squares.sum()) / degrees)


def moments(evidence: Evidence) -> Moments | None:
    """By sampled packets: how much their means vary beyond what packets of the same flow do.

    None if too few tell, or nobody needs them.

    No flow's weight goes with its values, or the mean of skewed delays would be too low. Flows with many packets count
    alike, however many these are. Of skewed delays a few decide on the squares: logarithms tell flows apart that
    differ by factors, and are asked where their standard error is smaller and squares do not contradict them.
    """
    sampled = evidence.count > 0
    n = evidence.count[sampled]
    if float(np.sum(n - 1)) < FEWEST_FLOWS or np.median(n) > FEW_PACKETS:
        return None
    weight = 1 / (1 / n + 1 / float(np.median(n)))
    found = _dispersion(n, evidence.sampled[sampled], evidence.squares[sampled], weight)
    told = found
    logs = _by_logarithms(evidence, n, weight, found)
    if logs is not None and logs.doubt < found.doubt and found.variance - logs.most < CONTRADICTED * found.doubt:
        told = logs
    apart = math.sqrt(told.most)
    alike = told.alike(found.middle**2)
    if evidence.apart < apart and _agrees(evidence, found.within, evidence.apart):
        apart = evidence.apart
    heard = bool((evidence.precision > 0).any())
    if heard and (not _agrees(evidence, found.within, 0.0) or _surely_apart(evidence, found.within)):
        alike = 0.0
    mean = _middle(evidence, weight, apart, found.within)
    # Where delays are skewed, a flow's precision goes with its value, and draws the mean of all down.
    common = _middle(evidence, weight, apart, found.within, by_size=True)
    return Moments(mean, math.hypot(apart, mean - common), found.within, alike, common)


def _by_logarithms(evidence: Evidence, n: FloatArray, weight: FloatArray, found: _Dispersion) -> _Dispersion | None:
    """How far flows are apart by the logarithms of their delays, as delays."""
    if evidence.logs is None or found.middle <= 0:
        return None
    sampled = evidence.count > 0
    logs = _dispersion(n, evidence.logs.mean[sampled], evidence.logs.squares[sampled], weight)
    unit = found.middle**2
    return logs._replace(variance=logs.variance * unit, doubt=logs.doubt * unit)


def _middle(evidence: Evidence, weight: FloatArray, apart: float, within: float, *, by_size: bool = False) -> float:
    """The mean of all flows by sampled means of such weights, by cells and by what is known of the whole.

    Cells count by their precision, or by their flows' sizes, which do not go with values.
    """
    found = [(_weighed(evidence.sampled[evidence.count > 0], weight), within / float(weight.sum()) + _TINY)]
    heard = evidence.precision > 0
    if heard.any():
        claimed, size = 1 / evidence.precision[heard] + apart**2, evidence.size[heard]
        usual = float(np.median((claimed - apart**2) * size)) / size + apart**2 if by_size else claimed
        weight = 1 / (usual + _TINY)
        variance = float(weight**2 @ claimed) / float(weight.sum()) ** 2
        found.append((_weighed(evidence.value[heard], weight), variance + _TINY))
    if evidence.whole is not None:
        # Packets' mean is the flows' as far as these are alike.
        share = evidence.size / float(evidence.size.sum())
        found.append((evidence.whole.mean, evidence.whole.variance + apart**2 * float(share @ share) + _TINY))
    values, variances = map(np.array, zip(*found, strict=True))
    return _weighed(values, 1 / variances)


def _weighed(values: FloatArray, weight: FloatArray) -> float:
    return float(np.average(values, weights=weight))


def _agrees(evidence: Evidence, within: float, apart: float) -> bool:
    """Whether what cells say of single flows is no further apart than flows are said to be."""
    heard = evidence.precision > 0
    if not heard.any():
        return False
    claimed = 1 / evidence.precision[heard]
    weight = 1 / (claimed + np.median(claimed) + apart**2)
    value = evidence.value[heard]
    expected = apart**2 + claimed + within / evidence.size[heard]
    squares = (value - np.average(value, weights=weight)) ** 2
    return bool(np.sum(weight**2 * squares) <= MOST_SQUARES * np.sum(weight**2 * expected))


def _surely_apart(evidence: Evidence, within: float) -> bool:
    """Whether most flows that cells know well are beyond doubt off the middle of these, however many mice agree."""
    with np.errstate(divide="ignore"):
        well = evidence.precision * (SURELY * evidence.value) ** 2 >= 1
    if well.sum() < FEWEST_FLOWS:
        return False
    value, expected = evidence.value[well], 1 / evidence.precision[well] + within / evidence.size[well]
    return float(np.median((value - np.median(value)) ** 2 / expected)) > CONTRADICTED**2
