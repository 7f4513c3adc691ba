"""Percentiles of flows with few sampled packets, from their mean and the shape that flows share, where that predicts.

A flow's packets are draws from a distribution F of its own, and F is a draw from a Dirichlet process around the shared
shape G at the flow's mean (`shape`): of α packets' weight, so that n own packets leave F(t) as Beta(s·H(t), s·(1 −
H(t))) with s = α + n and H = (α·G + #{x ≤ t})/s. With α = 0 that is the flow's own sample, with α → ∞ the shape alone.
Of N packets that were delivered, N − n are drawn from F; the mean's own error moves the answer, and its interval, by as
much as that changes it (Ferguson, "A Bayesian Analysis of Some Nonparametric Problems", 1973).

**Learnt from packets that were held out.** Sampled packets are parted into halves by chance; means come from one half
(and all cells), places around them from the other: G. How many of a flow's other half lie below G's q-quantile is
beta-binomial given the first half: α, for each level and class of sizes, is the *least* that is not clearly less likely
than the likeliest (by `DOUBT`). So flows that differ in shape, means that are worse than they claim, and few flows to
tell all make α small, and intervals wide.

**Only where it predicts.** The pinball loss of the held-out packets, from the value of this model and from the flow's
own sample quantile, are compared flow by flow; the model answers in a class and at a level if it is better beyond doubt
(`held_out.SURE`), for flows with fewer than α sampled packets, or too few for an interval of their own. All others keep
their own quantiles with intervals that assume nothing (`order_statistics`).

Deterministic; O(sampled packets + flows), 0.1 s and a few µs a flow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.estimates import LEVELS, NORMAL_95
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.learning import SIZE_CLASSES, classes_of
from sojourn.estimation.order_statistics import MISS, row_quantiles
from sojourn.estimation.percentiles.beta import HIGH, LOW, MEDIAN, reached
from sojourn.estimation.percentiles.shape import Mixed, SampledDelays, Shape, places_of, shape_of
from sojourn.estimation.posterior.components import FlowPrior
from sojourn.estimation.posterior.evidence import Evidence
from sojourn.estimation.posterior.held_out import FEWEST, SURE
from sojourn.estimation.posterior.hierarchy import BLOCK_FLOWS, FlowPosterior, SpreadLaw, posterior_under, spread_law

# α to choose from: packets' worth of what flows have in common. The least of them is nothing in common.
WORTH = np.geomspace(3.0, 10_000.0, 15)
# Of twice the logarithm of the likelihood, below the most: what is less likely is so beyond doubt (97.5 % on one side).
DOUBT = 4.0
# Sampled packets that tell a flow's own shape: more of them do not count more in what all share.
TELLING = 30
# Flows to learn from, of each class of sizes.
LEARN_IN_CLASS = 1_000
# Delivered packets of a flow that tells of the shape: those of smaller ones are near their mean because they make it.
LEAST_SIZE = 10
MOST_CORRELATED = 0.98
# Of α, what lies beyond a level: a Dirichlet process of less ends before it, as flows need not.
LEAST_BEYOND = 1 / 8
LEVEL = np.array(list(LEVELS.values()))
# Sampled packets that give a level an interval of their own (`order_statistics`).
ENOUGH = np.ceil(np.maximum(math.log(MISS) / np.log(LEVEL), math.log2(2 / MISS)))


@dataclass(frozen=True, eq=False)
class SharedShape:
    """What was learnt: the shape, α for classes × levels (0: it does not predict), and how many packets G is worth."""

    shape: Shape
    worth: FloatArray
    told_by: float

    def worth_of(self, size: FloatArray) -> FloatArray:
        """α for flows × levels, as far as G itself is known."""
        found = self.worth[classes_of(size)]
        with np.errstate(divide="ignore"):
            limited: FloatArray = 1 / (1 / found + 1 / self.told_by)
        return limited


def share_percentiles(
    found: FloatArray, delays: SampledDelays, evidence: Evidence, learnt: SharedShape, answer: FlowPosterior
) -> BoolArray:
    """Fill in the percentiles (flows × levels × value, low, high) that the shape predicts; which these are.

    `found` are flows' own, `answer` is what is known of each flow's mean, by all of its packets.
    """
    is_shared = np.zeros(found.shape[:2], bool)
    for first in range(0, len(found), BLOCK_FLOWS):
        block = slice(first, first + BLOCK_FLOWS)
        some = FlowPosterior(answer.mean[block], answer.low[block], answer.high[block])
        _share(found[block], is_shared[block], first, delays, evidence.size[block], learnt, some)
    return is_shared


def _share(
    found: FloatArray,
    is_shared: BoolArray,
    first: int,
    delays: SampledDelays,
    size: FloatArray,
    learnt: SharedShape,
    answer: FlowPosterior,
) -> None:
    """Fill in what the shape predicts of some flows, from the `first` on."""
    block = slice(first, first + len(found))
    count = np.diff(delays.start[first : block.stop + 1]).astype(np.float64)
    worth = learnt.worth_of(size)
    few = np.isnan(found[:, :, 0]) | (count[:, None] < worth)
    asked = few & (worth > 0) & ~delays.whole[block, None]
    asked &= np.isfinite(answer.mean + answer.low + answer.high)[:, None]
    rows = np.flatnonzero(asked.any(axis=1))
    if not len(rows):
        return
    some = FlowPosterior(answer.mean[rows], answer.low[rows], answer.high[rows])
    worth, size = np.maximum(worth[rows], WORTH[0]), np.maximum(size, count)[rows]
    answers = _answers(delays, first + rows, learnt.shape, worth, size, some)
    known = np.isfinite(answers).all(axis=2) & asked[rows]
    found[rows] = _in_order(np.where(known[:, :, None], answers, found[rows]), known)
    is_shared[rows] = known


def _answers(
    delays: SampledDelays, rows: Int64Array, shape: Shape, worth: FloatArray, size: FloatArray, answer: FlowPosterior
) -> FloatArray:
    """Value, low and high of every level."""
    count = np.diff(delays.start)[rows].astype(np.float64)
    mixed, expected = _mixed(shape, worth, count, size, answer.mean)
    found = places_of(delays, rows, mixed, shape, expected)
    middle = np.ascontiguousarray(expected[:, :, MEDIAN : MEDIAN + 1])
    ends = []
    for mean, end, sign in ((answer.low, LOW, -1.0), (answer.high, HIGH, 1.0)):
        moved = mixed._replace(mean=mean, scale=shape.scale(mean))
        value = places_of(delays, rows, moved, shape, middle)[:, :, 0]
        with np.errstate(invalid="ignore"):
            by_mean = np.maximum(sign * (value - found[:, :, MEDIAN]), 0.0)
            by_shape = np.maximum(sign * (found[:, :, end] - found[:, :, MEDIAN]), 0.0)
            ends.append(found[:, :, MEDIAN] + sign * np.hypot(by_mean, by_shape))
    return np.stack([found[:, :, MEDIAN], *ends], axis=2)


def _mixed(
    shape: Shape, worth: FloatArray, count: FloatArray, size: FloatArray, mean: FloatArray
) -> tuple[Mixed, FloatArray]:
    """The weights of the shape and of own packets, and the parts of packets expected below value, low and high.

    Of N packets, n are known; of the others a number lies below t that is beta-binomial, whose variance the weight of
    one Beta for all N has. A percentile is between two packets: that of few is not their last.
    """
    count, size = count[:, None], size[:, None]
    rest = np.maximum(size - count, 1.0)
    told = _told(count)
    total = worth + count * told
    each = told * rest / total / (rest + count)
    correlated = (1 + (rest - 1) / (total + 1)) / rest * (rest / (rest + count)) ** 2
    level = (0.5 + (rest + count - 1) * LEVEL) / (rest + count)
    expected = reached(1 / correlated - 1, level)
    # Own packets tell nothing beyond the first and the last of them: there is room for one more, as far as they count.
    beyond = each * count * told / total
    expected *= (1 + beyond)[:, :, None]
    expected[:, :, MEDIAN] -= beyond / 2
    expected[:, :, LOW] -= beyond
    each = each + 1 / (rest + count)
    return Mixed(mean, shape.scale(mean), np.maximum(1 - count * each, 0.0), each), expected


def _told(count: FloatArray) -> FloatArray:
    """How far a packet counts as a draw around each level: fully where there are enough for an interval of their own.

    Fewer packets hardly ever reach a level at the end of a distribution, and would seem to say that it ends there.
    """
    found: FloatArray = np.minimum(count / ENOUGH, 1.0)
    return found


def _in_order(found: FloatArray, is_shared: BoolArray) -> FloatArray:
    """No percentile that is shared is below a lower one."""
    before = np.full(len(found), -np.inf)
    for number in range(found.shape[1]):
        shared = is_shared[:, number]
        found[shared, number, 0] = np.maximum(found[shared, number, 0], before[shared])
        found[shared, number, 2] = np.maximum(found[shared, number, 2], found[shared, number, 0])
        before = np.fmax(before, found[:, number, 0])
    return found


class _Trial(NamedTuple):
    """Of some flows: means from one half, with the ends of their intervals; that half, and the other."""

    posterior: FlowPosterior
    seen: SampledDelays
    held: SampledDelays


def learn_shape(delays: SampledDelays, evidence: Evidence, prior: FlowPrior) -> SharedShape | None:
    """What flows have in common beyond their means, and what that is worth; None where too few tell."""
    law = spread_law(evidence)
    rows = _learning_rows(delays, evidence)
    if law is None or len(rows) < FEWEST:
        return None
    some, size = _selected(delays, rows), evidence.size[rows]
    trials = [_trial(some, evidence.select(rows), prior, kept) for kept in (0, 1)]
    found = _shape(trials, law, size)
    if found is None:
        return None
    shape, flow_weight = found
    likelihood = _likelihoods(trials, shape)
    worth = _worth(likelihood, classes_of(size))
    told_by = _told_by(trials, flow_weight, float(np.median(worth[worth > 0])) if (worth > 0).any() else WORTH[0])
    worth *= _is_better(trials, shape, worth, size)
    return SharedShape(shape, worth, told_by) if worth.any() else None


def _learning_rows(delays: SampledDelays, evidence: Evidence) -> Int64Array:
    """Some of the sampled flows of each class of sizes, at first of those with two packets: one tells how it lies, two
    tell whether flows differ in that."""
    count, classes = np.diff(delays.start), classes_of(evidence.size)
    order = np.lexsort((np.random.default_rng(0).random(len(count)), count < 2))
    chosen = [
        order[(count[order] > 0) & (classes[order] == number)][:LEARN_IN_CLASS]
        for number in range(len(SIZE_CLASSES) + 1)
    ]
    return np.sort(np.concatenate(chosen))


def _selected(delays: SampledDelays, rows: Int64Array, half: int | None = None) -> SampledDelays:
    """The delays of some flows, or of one half of them."""
    count = np.diff(delays.start)[rows]
    first = np.repeat(delays.start[:-1][rows] - np.cumsum(count) + count, count)
    place = first + np.arange(len(first))
    flow = np.repeat(np.arange(len(rows)), count)
    if half is not None:
        kept = delays.half[place] == half
        place, flow = place[kept], flow[kept]
    start = np.concatenate([[0], np.cumsum(np.bincount(flow, minlength=len(rows)))])
    return SampledDelays(start, delays.delay_ns[place], delays.half[place], delays.whole[rows])


def _trial(delays: SampledDelays, evidence: Evidence, prior: FlowPrior, kept: int) -> _Trial:
    every = np.arange(len(delays.whole))
    seen, held = _selected(delays, every, kept), _selected(delays, every, 1 - kept)
    flow, count = _flow_of(seen), np.diff(seen.start).astype(np.float64)
    mean = np.bincount(flow, seen.delay_ns, len(every)) / np.maximum(count, 1.0)
    squares = np.bincount(flow, (seen.delay_ns - mean[flow]) ** 2, len(every)).astype(np.float64)
    half = replace(evidence, sampled=mean, count=count, squares=squares)
    return _Trial(posterior_under(prior, half), seen, held)


def _flow_of(delays: SampledDelays) -> Int64Array:
    return np.repeat(np.arange(len(delays.whole)), np.diff(delays.start))


def _shape(trials: list[_Trial], law: SpreadLaw, size: FloatArray) -> tuple[Shape, FloatArray] | None:
    """The places of packets around means that they have no part in; and each flow's weight.

    These vary by the mean's own error, too, by which they are moved towards it; means that are worse than one
    packet tell nothing.
    """
    places, weights, of_flow = [], [], np.zeros(len(size))
    for posterior, _, held in trials:
        flow, count = _flow_of(held), np.diff(held.start)
        within = np.maximum(law.variance(posterior.mean), 1e-9)
        error = ((posterior.high - posterior.low) / (2 * NORMAL_95)) ** 2
        tells = (error <= within) & (size >= LEAST_SIZE) & (posterior.mean > 0 if law.power else True)
        closer = np.sqrt(within / (within + error))
        scale = np.maximum(posterior.mean, 1e-9) ** (law.power / 2)
        weight = np.where(tells, 1 / (1 + count / TELLING), 0.0)
        kept = weight[flow] > 0
        places.append((closer[flow] * (held.delay_ns - posterior.mean[flow]) / scale[flow])[kept])
        weights.append(weight[flow][kept])
        of_flow += weight * count
    place, weight = np.concatenate(places), np.concatenate(weights)
    if (of_flow > 0).sum() < FEWEST:
        return None
    return shape_of(place, weight, law.power), of_flow


def _told_by(trials: list[_Trial], flow_weight: FloatArray, worth: float) -> float:
    """How many independent packets would tell G as well: those of a flow depend on each other by 1/(α + 1)."""
    count = np.maximum(sum(np.diff(trial.held.start) for trial in trials), 1)
    part = 1 / count + (1 - 1 / count) / (worth + 1)
    return float(flow_weight.sum() ** 2 / np.sum(flow_weight**2 * part))


def _likelihoods(trials: list[_Trial], shape: Shape) -> FloatArray:
    """The logarithm of each flow's, for levels × `WORTH`."""
    flows = len(trials[0].posterior.mean)
    found, told = np.zeros((flows, len(LEVEL), len(WORTH))), np.zeros(flows)
    for posterior, seen, held in trials:
        flow_seen, flow_held = _flow_of(seen), _flow_of(held)
        told += np.diff(held.start) > 0
        for number, level in enumerate(LEVEL.tolist()):
            place = shape.at(level)
            limit = posterior.mean + shape.scale(posterior.mean) * place
            below = [
                np.bincount(flow, delay <= limit[flow], flows).astype(np.float64)
                for flow, delay in ((flow_seen, seen.delay_ns), (flow_held, held.delay_ns))
            ]
            ends = [shape.below((limit - mean) / shape.scale(mean)) for mean in (posterior.low, posterior.high)]
            moved = ((ends[0] - ends[1]) / (2 * NORMAL_95)) ** 2 / (level * (1 - level))
            count = np.diff(seen.start).astype(np.float64)
            told = _told(count[:, None])[:, number]
            numbers = _Numbers(told * below[0], told * count, below[1], np.diff(held.start), moved)
            _beta_binomial(numbers, level, WORTH, found[:, number])
    # Both halves tell of the same flow: not twice as much.
    return found / np.maximum(told, 1.0)[:, None, None]


class _Numbers(NamedTuple):
    """Of each flow: packets of one half below a limit, of how many; of the other, of how many; and the correlation that
    the mean's error adds."""

    below_seen: FloatArray
    seen: FloatArray
    below_held: FloatArray
    held: Int64Array
    moved: FloatArray


@kernel
def _beta_binomial(numbers: _Numbers, level: float, worth: FloatArray, found: FloatArray) -> None:
    """Add each flow's log likelihood for every α."""
    for f in range(len(numbers.seen)):
        if numbers.held[f] == 0:
            continue
        for k in range(len(worth)):
            total = worth[k] + numbers.seen[f]
            expected = (worth[k] * level + numbers.below_seen[f]) / total
            correlated = 1 / (total + 1) + numbers.moved[f] * (worth[k] / total) ** 2
            weight = 1 / min(correlated, MOST_CORRELATED) - 1
            a, b = weight * expected, weight * (1 - expected)
            above = numbers.held[f] - numbers.below_held[f]
            found[f, k] += _log_beta(numbers.below_held[f] + a, above + b) - _log_beta(a, b)


@inlined
def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _worth(likelihood: FloatArray, classes: Int64Array) -> FloatArray:
    """α for classes × levels: a class's own, or that of all flows where it says little and nothing against that."""
    everywhere = likelihood.sum(axis=0)
    common = _least_likely(everywhere)
    found = np.zeros((len(SIZE_CLASSES) + 1, len(LEVEL)))
    for number in range(len(found)):
        own = classes == number
        summed = likelihood[own].sum(axis=0)
        agrees = 2 * (summed.max(axis=1) - summed[np.arange(len(LEVEL)), common]) < DOUBT
        chosen = _least_likely(summed) if own.sum() >= FEWEST else np.where(agrees, common, 0)
        found[number] = np.where(chosen > 0, WORTH[chosen], 0.0)
    # Few packets tell of the ends of a distribution: flows are not known to be more alike there.
    found = np.minimum.accumulate(found, axis=1)
    return np.where(found * np.minimum(LEVEL, 1 - LEVEL) >= LEAST_BEYOND, found, 0.0)


def _least_likely(summed: FloatArray) -> Int64Array:
    """The number of the least α that is not beyond doubt less likely than another; 0 is nothing in common."""
    found: Int64Array = np.argmax(2 * (summed.max(axis=1, keepdims=True) - summed) < DOUBT, axis=1)
    return found


def _is_better(trials: list[_Trial], shape: Shape, worth: FloatArray, size: FloatArray) -> BoolArray:
    """Whether held-out packets are predicted better than by own quantiles, beyond doubt, of classes × levels."""
    gain, classes, counted = np.zeros((len(size), len(LEVEL))), classes_of(size), np.zeros(len(size), bool)
    for posterior, seen, held in trials:
        count = np.diff(seen.start)
        rows = np.flatnonzero((count > 0) & (np.diff(held.start) > 0))
        counted[rows] = True
        of_flow = np.maximum(worth[classes], WORTH[0])[rows]
        mixed, expected = _mixed(shape, of_flow, count[rows].astype(float), size[rows], posterior.mean[rows])
        ours = np.full(gain.shape, np.nan)
        middle = np.ascontiguousarray(expected[:, :, MEDIAN : MEDIAN + 1])
        ours[rows] = places_of(seen, rows, mixed, shape, middle)[:, :, 0]
        own = np.stack([row_quantiles(seen.start, seen.delay_ns, level) for level in LEVEL.tolist()], axis=1)
        part = (_pinball(held, own) - _pinball(held, ours)) / np.maximum(np.abs(posterior.mean), 1.0)[:, None]
        gain += np.where(np.isfinite(part), part, 0.0)
    common = np.array([_sureness(gain[counted, number]) > SURE for number in range(len(LEVEL))])
    found = np.zeros(worth.shape, bool)
    for number in range(len(found)):
        own_rows = (classes == number) & counted
        for level in range(len(LEVEL)):
            parts = gain[own_rows, level]
            sure = _sureness(parts)
            found[number, level] = sure > SURE or (common[level] and (len(parts) < FEWEST or sure > 0))
    return found


def _pinball(held: SampledDelays, value: FloatArray) -> FloatArray:
    """The mean loss of each flow's packets, for every level."""
    flow, count = _flow_of(held), np.diff(held.start)
    off = held.delay_ns[:, None] - value[flow]
    loss = np.maximum(LEVEL * off, (LEVEL - 1) * off)
    sums = np.stack([np.bincount(flow, column, len(count)) for column in loss.T], axis=1)
    found: FloatArray = sums / np.maximum(count, 1)[:, None]
    return found


def _sureness(parts: FloatArray) -> float:
    """A sum in standard errors; of few parts nothing is sure."""
    error = math.sqrt(float(np.sum((parts - parts.mean()) ** 2))) if len(parts) >= FEWEST else 0.0
    return float(parts.sum()) / error if error > 0 else 0.0
