"""Flows' means add up to the whole's, which the flow-blind LDA knows without any model.

What a model of skewed delays gets wrong it gets wrong of all flows alike, and no held-out packet shows it where flows
have a few each. The mean of all packets does, with the error that the LDA states. Two things may be wrong, and both are
told by it, in proportion to what each may be off by:

- the distribution that flows share, by a factor e^b for all of them. b is normal around 0 (`_doubt`); what it may
  still be off by when the whole is known is room between flows;
- single flows with a good part of all packets: what the others leave of the whole is one more observation of them.

Linear in b around the factor found (two steps of Newton's). O(flows × components); of more than `ADDED_FLOWS` flows
some, by their packets. In the statistics of surveys this is benchmarking of small areas (Rao and Molina, "Small Area
Estimation", section 6.4.6).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.estimation.posterior.components import FlowPrior, Observed, likelihood_of, moments_of, observed
from sojourn.estimation.posterior.evidence import Evidence, Whole

# What a learnt shape may be wrong by: as much as it says, the mean of logarithms being half of their variance below the
# mean's own. At most: of one packet in a long tail a model is wrong by a third, or by a half.
WRONG, MOST_DOUBT = 0.5, 0.4
MOST_MOVED = 1.0
STEP = 0.2
# Over which it is taken where a distribution with narrow modes is likeliest.
SHIFT = 0.02
FITTINGS = 2
ADDED_FLOWS = 4_000
# Of a flow's variance: what is left of the whole tells it nothing if it takes less away.
LEAST_TOLD = 0.01
_TINY = 1e-9


class _Parts(NamedTuple):
    """Of the flows that are added up: their rows, what was observed of them, each one's part of all packets, and how
    often it stands for one."""

    row: Int64Array
    seen: Observed
    share: FloatArray
    often: FloatArray


def added_up(prior: FlowPrior, evidence: Evidence) -> tuple[FlowPrior, Evidence]:
    """The prior and the evidence with what is known of the whole."""
    whole = evidence.whole
    if whole is None or not prior.is_log or whole.mean <= 0:
        return prior, evidence
    parts = _parts(prior, evidence)
    means, variances = _moments(parts, prior)
    step = STEP if float(parts.share @ means) < whole.mean else -STEP
    leaning = np.maximum((_moments(parts, _moved(prior, step))[0] - means) / step, 0.0)
    own = _own_doubt(prior, parts, means)
    told = _with_rest(evidence, whole, parts, (means, variances, leaning * own))
    noise = whole.variance + float(parts.share**2 @ variances)
    parts = parts._replace(seen=observed(told.select(parts.row), prior.vary))
    return _fitted(prior, whole.mean, noise, parts, _doubt(prior, parts, own)), told


def _own_doubt(prior: FlowPrior, parts: _Parts, means: FloatArray) -> FloatArray:
    """How far each flow's own observations may be off for all flows alike, as a logarithm.

    A mean of many packets has no shape to be wrong about, nor has one that cells know.
    """
    relative = float(prior.weight @ (prior.within / prior.centre**2))
    seen = parts.seen
    with np.errstate(divide="ignore"):
        told = 1 / np.maximum(relative * seen.vary * seen.error, _TINY) + seen.precision * means**2
    return np.minimum(WRONG * np.log1p(1 / np.maximum(told, _TINY)), MOST_DOUBT)


def _doubt(prior: FlowPrior, parts: _Parts, own: FloatArray) -> float:
    """The same of the distribution: on average, each flow counting by what it says of where that is. Narrow modes that
    well-known flows show do not move."""
    higher, lower = np.empty((2, len(own)))
    likelihood_of(parts.seen, _moved(prior, SHIFT), higher)
    likelihood_of(parts.seen, _moved(prior, -SHIFT), lower)
    weight = parts.often * (higher - lower) ** 2
    total = float(weight.sum())
    return float(weight @ own) / total if total > 0 else 0.0


def _parts(prior: FlowPrior, evidence: Evidence) -> _Parts:
    """All flows if they are few, else some, each as often as its packets are many."""
    flows = len(evidence.size)
    share = evidence.size / float(evidence.size.sum())
    row, often = np.arange(flows), np.ones(flows)
    if flows > ADDED_FLOWS:
        places = np.searchsorted(np.cumsum(share), (np.arange(ADDED_FLOWS) + 0.5) / ADDED_FLOWS)
        row, times = np.unique(np.minimum(places, flows - 1), return_counts=True)
        often = times / (flows * share[row])
        share = times / ADDED_FLOWS
    return _Parts(row, observed(evidence.select(row), prior.vary), share, often)


def _moments(parts: _Parts, prior: FlowPrior) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of each flow."""
    found = np.empty((2, len(parts.row)))
    moments_of(parts.seen, prior, found)
    return found[0], found[1]


def _moved(prior: FlowPrior, factor: float) -> FlowPrior:
    """The same distribution of means that are greater by a factor, given by its logarithm."""
    times = math.exp(factor)
    return prior._replace(centre=prior.centre * times, width2=prior.width2 * times**2, within=prior.within * times**2)


def _fitted(prior: FlowPrior, whole: float, noise: float, parts: _Parts, doubt: float) -> FlowPrior:
    """The prior moved by the likeliest factor, with room for what is not known of that; `noise` is the variance of the
    flows' sum and of the whole, apart from what flows have in common."""
    factor, usual = 0.0, max(doubt, _TINY) ** -2
    for _ in range(FITTINGS):
        total = float(parts.share @ _moments(parts, _moved(prior, factor))[0])
        step = STEP if total < whole else -STEP
        beyond = float(parts.share @ _moments(parts, _moved(prior, factor + step))[0])
        slope = max((beyond - total) / step, 0.0)
        precision = slope**2 / noise + usual
        factor += (slope * (whole - total) / noise - factor * usual) / precision
        factor = min(max(factor, -MOST_MOVED), MOST_MOVED)
        doubt = precision**-0.5
    moved = _moved(prior, factor)
    return moved._replace(width2=moved.width2 + (doubt * moved.centre) ** 2)


def _with_rest(
    evidence: Evidence, whole: Whole, parts: _Parts, moments: tuple[FloatArray, FloatArray, FloatArray]
) -> Evidence:
    """The evidence with what the other flows leave of the whole for those that it tells something."""
    mean, variance, leaning = moments
    own = parts.share * mean, parts.share**2 * variance, parts.share * leaning
    total, noise, common = (float(part.sum()) for part in own)
    left = whole.mean - (total - own[0])
    of_left = whole.variance + (noise - own[1]) + (common - own[2]) ** 2
    tells = own[1] > LEAST_TOLD * of_left
    rows, share = parts.row[tells], evidence.size[parts.row[tells]] / float(evidence.size.sum())
    told = share**2 / of_left[tells]
    precision, value = evidence.precision.copy(), evidence.value.copy()
    precision[rows] += told
    value[rows] += told / precision[rows] * (left[tells] / share - value[rows])
    return replace(evidence, value=value, precision=precision)
