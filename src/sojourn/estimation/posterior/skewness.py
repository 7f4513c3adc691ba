"""How delays of one flow are skewed, by their logarithms: what a mean of a few packets tells of its flow's mean.

Means of few packets are as skewed as delays are: that of n log-normal ones with the relative variance q is nearly
log-normal with log(1 + q/n). Others are not. Of one packet's logarithm, the variance within flows and how far its mean
lies below the mean's logarithm are told by the packets at hand, whatever their shape; both are kept over what they were
for log-normal delays of the same variance. Means of n packets are between that and a normal: what is more than
log-normal (many short delays: gamma, Weibull) falls with n², what is less (few long ones: Pareto) is less by the same
part until a mean varies by a fifth or so. Of simulated means of one to eight packets, variances are within a third of
that (tests/estimation/test_skewness.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.kernels import inlined
from sojourn.estimation.posterior.evidence import FEWEST_FLOWS, Evidence

# Packets of a flow that count: more of them must not decide for all.
MOST_TELLING = 10.0
# Of a mean that varies by less than the root of its inverse, half of what the shape has less is forgotten.
NEARLY_NORMAL = 20.0
# Nothing is said of delays that hardly vary.
LEAST_VARIED = 1e-4
_TINY = 1e-9


class LogShape(NamedTuple):
    """Of one packet's delay, by its logarithm: the variance, and twice how far its mean lies below the mean's own
    logarithm, both over those of log-normal delays that vary as much.

    Exponential delays have 2.3 and 1.6, Pareto's with 1.5 have 0.1 and 0.25.
    """

    spread: float
    offset: float


LOG_NORMAL = LogShape(1.0, 1.0)


def log_shape(evidence: Evidence, relative: FloatArray) -> LogShape:
    """What sampled delays tell of their shape, given each flow's variance over its mean's square. O(flows)."""
    if evidence.logs is None:
        return LOG_NORMAL
    n = evidence.count
    told = (n > 1) & (relative > LEAST_VARIED)
    if float(np.sum(n[told] - 1)) < FEWEST_FLOWS:
        return LOG_NORMAL
    n, one = n[told], np.log1p(relative[told])
    weight = np.minimum(n - 1, MOST_TELLING)
    spread = float(weight @ (evidence.logs.squares[told] / (n - 1))) / float(weight @ one)
    # How far the mean of logarithms is below the logarithm of the mean, of n packets: half of it for n − half for one.
    below = float(weight @ (np.log(evidence.sampled[told]) - evidence.logs.mean[told]))
    usual = 0.5 * float(weight @ (one - np.log1p(relative[told] / n)))
    more = 0.5 * float(weight @ (one * (1 - 1 / n**2)))
    return LogShape(spread, below / usual if below <= usual else 1 + (below - usual) / more)


@inlined
def of_logarithm(
    total: float, noise: float, within: float, error: float, square: float, shape: LogShape
) -> tuple[float, float]:
    """Of the logarithm of some packets' mean: the variance, and twice how far it is expected below the mean's own.

    `total` is the variance of their mean, `noise` what the choice of packets has of it, `within` a packet's own and
    `error` the part of that; `square` that of the mean.
    """
    variance = below = np.log1p(total / square)
    if shape.spread != 1.0 or shape.offset != 1.0:
        near = NEARLY_NORMAL * noise / square
        fewer = np.log1p(noise / square) * near / (1 + near)
        more = np.log1p(within / square) * error * error
        variance += (shape.spread - 1.0) * (more if shape.spread > 1.0 else fewer)
        below += (shape.offset - 1.0) * (more if shape.offset > 1.0 else fewer)
    return max(variance, _TINY**2), below
