"""One posterior of flows' means from all that was recorded of them: cells, samples, and the flows themselves.

Cells (decoded jointly) say of a flow's realised mean M, over its N delivered packets, that it is normal around a value
with a precision; n sampled packets say that M is normal around their mean with variance σ²·(1/n − 1/N). Both are
observations of the same M, and M is around its flow's own law: variance σ²/N around a mean m that flows share a
distribution of. That distribution is learnt from the flows at hand:

- m is distributed as a mixture of components on an even grid of log m (of m itself, where clocks leave delays that are
  not positive): flows that differ by factors, that are alike, that are of two kinds are all told by its weights, which
  maximise the likelihood of all observations (expectation maximisation);
- the grid moves with a flow's size, log m + β·log N, if flows are likelier so by what a parameter must gain (Bayes's
  information criterion);
- one packet's variance goes with the mean, σ² = c·m^γ: γ is 0, 1 or 2, by which variances of flows' samples agree best,
  c is the usual one of these (so that a few outliers do not speak for all).

The answer is the posterior's median, the interval the middle 95 % of it. A flow with neither cells nor samples is
answered by the distribution alone. Deterministic; O(flows × components), about 10 µs a flow. Efron, "Large-Scale
Inference", chapter 1, for the idea that flows' own distribution is the prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.estimation.learning import KEPT_FLOWS, POWERS, WIDTH, classes_of, learning_rows
from sojourn.estimation.order_statistics import quantile_of_sorted
from sojourn.estimation.posterior.components import ALIKE, FlowPrior, Likelihoods, observed, quantiles_of
from sojourn.estimation.posterior.evidence import FEWEST_FLOWS, SURELY, Evidence, Moments, moments
from sojourn.estimation.posterior.skewness import LOG_NORMAL, LogShape, log_shape
from sojourn.estimation.sample import usual_variance

COMPONENTS = 48
PASSES = 15
MOST_RATIO = 30.0
# Part of the largest weight that every component has to begin with.
EVEN = 1e-3
# How often the distribution and the law are learnt, each with the other as it was before.
ROUNDS = 2
# The part of a finer grid's components that go where flows are, the rest is even.
MOSTLY = 0.8
SHAPES = (0.0, 0.1, 0.3, 1.0, 2.0)
# Parameters' worth of freedom that a mixture of so many components uses.
FREEDOM = 5
# By moments: flows that are further apart are known to be; less by this factor is less.
MOST_ALIKE, CLEARLY = 0.5, 0.75
# Standard errors beyond which packets of a class of sizes vary otherwise than the others, told by so many flows.
OTHERWISE, MANY_FLOWS = 4.0, 50
# Of flows that moments call alike, the part that may differ: large ones do where most are small.
DIFFER = 0.1
# Flows that are answered at a time: each takes up to 1 kB of intermediate results.
BLOCK_FLOWS = 1 << 14
_TINY = 1e-9


@dataclass(frozen=True, eq=False)
class SpreadLaw:
    """σ² = c·m^γ of one packet around its flow's mean, how such delays are skewed, and the factors of σ² in classes of
    sizes. Flows whose few packets all took no time at all vary as those with the ``least`` mean."""

    factor: float
    power: float
    shape: LogShape = LOG_NORMAL
    vary: FloatArray = field(default_factory=lambda: ALIKE)
    least: float = 0.0

    def variance(self, mean: FloatArray) -> FloatArray:
        found: FloatArray = self.factor * np.maximum(mean, self.least) ** self.power
        return found

    def variance_of(self, mean: FloatArray, size: FloatArray) -> FloatArray:
        """The same of flows of such sizes."""
        return self.variance(mean) * self.vary[classes_of(size)]


@dataclass(frozen=True, eq=False)
class FlowPosterior:
    """Median and 95 % interval of each flow's realised mean."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray

    def at_least(self, least: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The same where no delay is less; what cells say of a flow may be off by as much as they leave open."""
        high = np.where(self.low < least, np.maximum(self.high, least + (self.high - self.low) / 2), self.high)
        return np.maximum(self.mean, least), np.maximum(self.low, least), high


def flow_posterior(
    evidence: Evidence, law: SpreadLaw | None = None, *, asked: BoolArray | None = None
) -> FlowPosterior | None:
    """The posterior of all flows, or of those `asked` for; None where too few of them tell anything. `law` where
    samples do not tell it."""
    prior = learnt_prior(evidence, law)
    if prior is None:
        return None
    return posterior_under(prior, evidence, asked=asked)


def learnt_prior(evidence: Evidence, law: SpreadLaw | None = None) -> FlowPrior | None:
    """What flows have in common; None where too few of them tell anything.

    It is learnt twice, from flows' own means and from one mean for all: where delays are skewed and flows alike, their
    own means are low just when their packets vary little. The likelier one is taken.
    """
    law = spread_law(evidence) or law
    if law is None:
        return None
    rough, variance = _rough(evidence, law)
    telling = np.isfinite(variance) & np.isfinite(rough)
    if telling.sum() < FEWEST_FLOWS:
        return None
    rows = np.flatnonzero(telling)
    rows = rows[learning_rows(len(rows))]
    some = evidence.select(rows)
    weight = 1 / (variance[rows] + np.median(variance[rows]) + _TINY)
    common = np.full(len(rows), float(np.average(rough[rows], weights=weight)))
    found = [_learnt(some, law), _learnt(some, refined_law(some, law, common))]
    prior, _ = max(found, key=lambda one: one[1])
    return _narrowed(prior, moments(evidence))


def posterior_under(prior: FlowPrior, evidence: Evidence, *, asked: BoolArray | None = None) -> FlowPosterior:
    """The posterior of all flows, or of those `asked` for (NaN for the others).

    Where means go with sizes, intervals have room for what is not known of these.
    """
    quantiles = np.full((len(evidence.value), 3), np.nan)
    rows = np.arange(len(quantiles)) if asked is None else np.flatnonzero(asked)
    for block in np.split(rows, range(BLOCK_FLOWS, len(rows), BLOCK_FLOWS)):
        quantiles[block] = _answers(prior, evidence.select(block))
    return FlowPosterior(quantiles[:, 0], quantiles[:, 1], quantiles[:, 2])


def _answers(prior: FlowPrior, some: Evidence) -> FloatArray:
    """Median, low and high of some flows."""
    found = _posterior_quantiles(some, prior)
    if prior.alike:
        # Where a few sampled packets tell flows apart they may tell chance. What flows may differ by the interval has.
        alike = _posterior_quantiles(some, prior.of_alike)[:, 0]
        found[:, 0] += prior.alike * (alike - found[:, 0])
    if prior.slope and some.size_doubt is not None:
        wide = _posterior_quantiles(some, prior, some.size_doubt)
        found[:, 1] = np.minimum(found[:, 1], wide[:, 1])
        found[:, 2] = np.maximum(found[:, 2], wide[:, 2])
    # Components whose widths differ by many orders are parted to a part of the widest only.
    found[:, 1] = np.minimum(found[:, 1], found[:, 0])
    found[:, 2] = np.maximum(found[:, 2], found[:, 0])
    return found


def _narrowed(prior: FlowPrior, found: Moments | None) -> FlowPrior:
    """The prior, or a normal one if by moments flows are clearly less far apart than it says.

    The shape of a few delays' mean is known roughly only, and a likely prior explains what is left as differences
    between flows. Moments need no shape.
    """
    if found is None or not prior.is_log or not (found.mean > 0 and found.apart <= MOST_ALIKE * found.mean):
        return prior
    if not prior.slope and found.common > 0:
        prior = prior._replace(alike=found.alike, common=found.common)
    place = np.log(prior.centre)
    spread = float(prior.weight @ ((place - prior.weight @ place) ** 2 + prior.width2 / prior.centre**2))
    deviation = max(found.apart / found.mean, _TINY)
    if deviation > CLEARLY * math.sqrt(spread):
        return prior
    z = np.linspace(-3.0, 3.0, COMPONENTS // 2)
    weight = np.exp(-0.5 * z**2)
    relative = np.exp(deviation * z - 0.5 * deviation**2)
    width = WIDTH * (z[1] - z[0]) * deviation * found.mean * relative
    within = found.within * relative**2
    parts = (
        (weight / weight.sum() * (1 - DIFFER), prior.weight * DIFFER),
        (found.mean * relative, prior.centre),
        (width**2, prior.width2),
        (within, prior.within),
    )
    weight, centre, width2, within = (np.concatenate(part) for part in parts)
    return prior._replace(weight=weight, centre=centre, width2=width2, within=within)


def _learnt(evidence: Evidence, law: SpreadLaw) -> tuple[FlowPrior, float]:
    """The distribution that flows share, and the logarithm of its likelihood; law and distribution in turns."""
    prior, likelihood = None, 0.0
    mean, _ = _rough(evidence, law)
    for _ in range(ROUNDS):
        if prior is not None:
            mean = _posterior_quantiles(evidence, prior)[:, 0]
            law = refined_law(evidence, law, mean)
        law = _shaped(evidence, law, mean)
        prior, likelihood = _distribution(evidence, law, prior)
    assert prior is not None
    return prior, likelihood


def _shaped(evidence: Evidence, law: SpreadLaw, mean: FloatArray) -> SpreadLaw:
    """The law with the skew of delays that vary as it says."""
    usual = np.maximum(mean, 0.0) ** 2
    relative = np.divide(law.variance_of(mean, evidence.size), usual, out=np.zeros(len(mean)), where=usual > 0)
    return replace(law, shape=log_shape(evidence, relative))


def _posterior_quantiles(evidence: Evidence, prior: FlowPrior, doubt: FloatArray | None = None) -> FloatArray:
    """Median, low and high of each flow, whose logarithm of the size has the variance `doubt` (None: it is known)."""
    quantiles = np.empty((len(evidence.value), 3))
    seen = observed(evidence, prior.vary)
    quantiles_of(seen if doubt is None else seen._replace(doubt=doubt), prior, quantiles)
    return quantiles


def spread_law(evidence: Evidence) -> SpreadLaw | None:
    """How one packet varies, from the flows with at least two sampled ones that differ."""
    degrees = np.maximum(evidence.count - 1, 0.0)
    tells = (degrees > 0) & (evidence.squares > 0)
    if tells.sum() < FEWEST_FLOWS:
        return None
    least = _least_mean(evidence)
    mean, degrees = np.maximum(evidence.sampled[tells], least), degrees[tells]
    variance, weight = evidence.squares[tells] / degrees, np.minimum(degrees, 10.0)
    powers = POWERS if (mean > 0).all() else POWERS[:1]
    found = []
    for power in powers:
        ratio = variance / mean**power
        logs = np.log(ratio)
        centre = float(np.average(logs, weights=weight))
        found.append((float(np.average((logs - centre) ** 2, weights=weight)), power, ratio))
    _, power, ratio = min(found, key=lambda one: one[0])
    usual = usual_variance(ratio, degrees)
    return SpreadLaw(usual.variance, power, least=least) if usual.variance > 0 else None


def _least_mean(evidence: Evidence) -> float:
    """The mean of all sampled delays where some flow's are all 0, as by clocks that tell no short ones; else 0."""
    sampled = evidence.count > 0
    mean, count = evidence.sampled[sampled], evidence.count[sampled]
    return float(np.average(mean, weights=count)) if len(mean) and float(mean.min()) == 0 else 0.0


def refined_law(evidence: Evidence, law: SpreadLaw, mean: FloatArray) -> SpreadLaw:
    """The law with c as all samples together have it, around means that lean on each other: where delays are skewed,
    a few packets' own mean is low just when they vary little."""
    degrees = np.maximum(evidence.count - 1, 0.0)
    usual = law.variance(mean)
    tells = (degrees > 0) & (usual > 0)
    if tells.sum() < FEWEST_FLOWS:
        return law
    degrees = degrees[tells]
    ratio = np.minimum(evidence.squares[tells] / usual[tells], MOST_RATIO * degrees)
    classes = classes_of(evidence.size[tells])
    apart = _otherwise(ratio, degrees, classes)
    rest = ~apart[classes]
    if not rest.any():
        apart, rest = np.zeros(len(ALIKE), bool), np.ones(len(ratio), bool)
    factor = float(ratio[rest].sum() / degrees[rest].sum())
    of_class = _per_class(ratio, classes) / np.maximum(_per_class(degrees, classes), 1.0)
    return replace(law, factor=law.factor * factor, vary=np.where(apart, of_class / factor, 1.0))


def _otherwise(ratio: FloatArray, degrees: FloatArray, classes: Int64Array) -> BoolArray:
    """In which classes of sizes packets vary beyond doubt by another factor than all together do."""
    all_of_them = float(ratio.sum() / degrees.sum())
    found, known = _per_class(ratio, classes), np.maximum(_per_class(degrees, classes), 1.0)
    factor = found / known
    error = np.sqrt(_per_class((ratio - factor[classes] * degrees) ** 2, classes)) / known
    total = math.sqrt(float(np.sum((ratio - all_of_them * degrees) ** 2))) / float(degrees.sum())
    many = _per_class(np.ones(len(ratio)), classes) >= MANY_FLOWS
    apart: BoolArray = many & (np.abs(factor - all_of_them) > OTHERWISE * np.hypot(error, total))
    return apart


def _per_class(values: FloatArray, classes: Int64Array) -> FloatArray:
    found: FloatArray = np.bincount(classes, values, len(ALIKE)).astype(np.float64)
    return found


def _rough(evidence: Evidence, law: SpreadLaw) -> tuple[FloatArray, FloatArray]:
    """Each flow's mean from its own observations, and its variance around the flow's law."""
    seen = observed(evidence)
    sampled, error, each = seen.sampled, seen.error, seen.each
    usual = law.variance_of(np.where(evidence.count > 0, sampled, evidence.value), evidence.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_sample = np.where(np.isfinite(error), 1 / np.maximum(error * usual, 1e-12), 0.0)
        total = by_sample + evidence.precision
        mean = (by_sample * sampled + evidence.precision * evidence.value) / total
        variance = 1 / total + usual * each
    return mean, np.where(total > 0, variance, np.inf)


def _distribution(evidence: Evidence, law: SpreadLaw, before: FlowPrior | None) -> tuple[FlowPrior, float]:
    """The likeliest distribution under a law; its grid is finest where it had most flows `before`."""
    rough, variance = _rough(evidence, law)
    log_size = np.log(np.maximum(evidence.size, 1.0))
    pivot = float(log_size.mean())
    positive = evidence.logs is not None
    grid = (
        _grid(law, rough, variance, 0.0, pivot, positive=positive)
        if before is None or before.slope
        else _finer(law, before)
    )
    best = _likeliest(evidence, grid, rough, variance)
    slope = _slope(rough, variance, log_size) if grid.is_log else 0.0
    if slope:
        turned = rough / np.exp(slope * (log_size - pivot))
        grid = _grid(law, turned, variance, slope, pivot, positive=positive)
        if before is not None and before.slope:
            grid = _finer(law, before._replace(slope=slope))
        other, likelihood = _likeliest(evidence, grid, turned, variance)
        cost = 0.5 * math.log(len(rough))
        best = max(best, (other, likelihood - cost), key=lambda one: one[1])
    return best


def _grid(
    law: SpreadLaw, mean: FloatArray, variance: FloatArray, slope: float, pivot: float, *, positive: bool
) -> FlowPrior:
    """Even components over where flows lie, on the scale of logarithms if all of them are positive."""
    ordered = np.sort(mean)
    low, high = quantile_of_sorted(ordered, 0.0025), quantile_of_sorted(ordered, 0.9975)
    # A single flow is far from all others where that is known of it.
    far = mean[variance <= (SURELY * mean) ** 2]
    if len(far):
        low, high = min(low, float(far.min())), max(high, float(far.max()))
    sharp = mean[variance <= np.median(variance)]
    is_log = (positive or bool((sharp > 0).all())) and high > 0
    if is_log:
        low = max(low, quantile_of_sorted(ordered[ordered > 0], 0.0025))
        log = np.linspace(math.log(low) - 0.05, math.log(high) + 0.05, COMPONENTS)
        centre = np.exp(log)
        width = WIDTH * (log[1] - log[0]) * centre
    else:
        room = 0.05 * (high - low) + 1.0
        # No flow is faster than those whose delays are 0.
        least = max(low - room, 0.0) if law.least > 0 else low - room
        centre = np.linspace(least, high + room, COMPONENTS)
        width = np.full(COMPONENTS, WIDTH * (centre[1] - centre[0]))
    weight = np.full(COMPONENTS, 1 / COMPONENTS)
    return FlowPrior(weight, centre, width**2, law.variance(centre), slope, pivot, is_log, law.shape, law.vary)


def _finer(law: SpreadLaw, prior: FlowPrior) -> FlowPrior:
    """A grid over the same range with most components where most flows are."""
    place = np.log(prior.centre) if prior.is_log else prior.centre
    step = np.maximum(np.gradient(place), _TINY)
    mass = MOSTLY * prior.weight + (1 - MOSTLY) * step / step.sum()
    first = place[0] if law.least > 0 and not prior.is_log else place[0] - step[0] / 2
    edges = np.concatenate([[first], place[1:] - step[1:] / 2, [place[-1] + step[-1] / 2]])
    below = np.append(0.0, np.cumsum(mass / mass.sum()))
    place = np.interp((np.arange(COMPONENTS) + 0.5) / COMPONENTS, below, edges)
    width = WIDTH * np.maximum(np.gradient(place), _TINY)
    centre = np.exp(place) if prior.is_log else place
    width = width * centre if prior.is_log else width
    return prior._replace(centre=centre, width2=width**2, within=law.variance(centre), shape=law.shape, vary=law.vary)


def _normal_shapes(mean: FloatArray, variance: FloatArray, prior: FlowPrior) -> list[FloatArray]:
    """Weights of normals, as wide as flows differ beyond what observations do, and narrower and wider ones."""
    if prior.is_log:
        known = mean > 0
        noise = np.log1p(variance[known] / mean[known] ** 2) + _TINY**2
        y, place = np.log(mean[known]) + noise / 2, np.log(prior.centre)
    else:
        y, noise, place = mean, variance + _TINY, prior.centre
    weight = 1 / (noise + np.median(noise))
    middle = float(np.average(y, weights=weight))
    between = float(np.average((y - middle) ** 2 - noise, weights=weight))
    step = np.gradient(place)
    least = 0.25 * float(step[np.argmin(np.abs(place - middle))]) ** 2
    shapes = []
    for factor in SHAPES:
        shape = np.exp(-0.5 * (place - middle) ** 2 / max(factor * between, least)) + EVEN
        shape *= step
        shapes.append(shape / shape.sum())
    return shapes


def _slope(mean: FloatArray, variance: FloatArray, log_size: FloatArray) -> float:
    """β of log mean on log size, by the flows whose means are known well enough to have a logarithm."""
    known = (mean > 0) & (variance < 0.25 * mean**2)
    if known.sum() < 2 * FEWEST_FLOWS:
        return 0.0
    y, x = np.log(mean[known]), log_size[known]
    x = x - x.mean()
    square = float(x @ x)
    return float(x @ (y - y.mean())) / square if square > 0 else 0.0


def _likeliest(evidence: Evidence, prior: FlowPrior, mean: FloatArray, variance: FloatArray) -> tuple[FlowPrior, float]:
    """The likeliest weights, and the logarithm of the likelihood less what they cost: a normal's, or freer ones after
    some passes of expectation maximisation."""
    seen, telling = Likelihoods.of(observed(evidence, prior.vary), prior), _telling(mean, variance)
    found = [(seen.weighed(shape, telling)[1], shape) for shape in _normal_shapes(mean, variance, prior)]
    likelihood, normal = max(found, key=lambda one: one[0])
    free = normal
    for _ in range(PASSES):
        share, freer = seen.weighed(free, telling)
        share += KEPT_FLOWS * normal
        free = share / share.sum()
    cost = 0.5 * FREEDOM * math.log(max(float(telling.sum()), 1.0))
    is_free = freer - cost > likelihood
    weight, likelihood = (free, freer - cost) if is_free else (normal, likelihood)
    return prior._replace(weight=weight), likelihood


def _telling(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """What each flow counts for: one whose mean is known worse than by all of itself says little of it, and what
    thousands of such say together is the shape of their errors, which nobody knows."""
    weight = 1 / (variance + np.median(variance) + _TINY)
    usual = float(np.average(mean, weights=weight))
    relative = variance / np.maximum(np.maximum(mean, usual), _TINY) ** 2
    most = max(quantile_of_sorted(np.sort(relative), 0.1), 1.0)
    counts: FloatArray = np.minimum(most / np.maximum(relative, _TINY), 1.0)
    return counts
