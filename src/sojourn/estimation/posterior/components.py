"""A flow's posterior where flows' means are a mixture of components: its likelihood, moments and quantiles.

Each flow is observed by cells, normal around a value with a precision, and by sampled packets, whose mean is skewed as
means of a few delays are (`skewness`). Kernels: O(flows × components), about 3 µs a flow, quantiles as much again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.estimates import NORMAL_95
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.joint.messages import TINY
from sojourn.estimation.learning import SIZE_CLASSES, classes_of
from sojourn.estimation.normal import normal_below
from sojourn.estimation.posterior.evidence import Evidence
from sojourn.estimation.posterior.skewness import LOG_NORMAL, LogShape, of_logarithm

NEGLIGIBLE = 1e-5
MOST_STEPS = 60
PRECISE = 1e-6  # of ten deviations or more; what the next step would change is the square of it
NOWHERE = 40.0  # e⁻⁴⁰ of a flow's likeliest component: below what numbers of 64 bits add up to
_TINY = 1e-9
# One packet varies alike whatever its flow's size is.
ALIKE = np.ones(len(SIZE_CLASSES) + 1)


class Observed(NamedTuple):
    """The evidence as kernels take it: the ``error`` of a sampled mean is in units of σ² (infinite without a sample),
    ``each`` is 1/N, ``vary`` the factor of σ² in its class of sizes, ``log_size`` log N, and ``doubt`` the variance of
    that."""

    value: FloatArray
    precision: FloatArray
    sampled: FloatArray
    error: FloatArray
    each: FloatArray
    vary: FloatArray
    log_size: FloatArray
    doubt: FloatArray


class FlowPrior(NamedTuple):
    """Components: weight, centre, squared width, σ² there; β and log size around which it turns; how delays are skewed,
    and the factors of σ² in classes of sizes; how probably flows are alike, and the mean that all of them have then."""

    weight: FloatArray
    centre: FloatArray
    width2: FloatArray
    within: FloatArray
    slope: float
    pivot: float
    is_log: bool
    shape: LogShape = LOG_NORMAL
    vary: FloatArray = ALIKE
    alike: float = 0.0
    common: float = 0.0

    @property
    def of_alike(self) -> FlowPrior:
        """The one component of flows that are alike."""
        relative = float(self.weight @ (self.within / self.centre**2))
        columns = (np.ones(1), np.array([self.common]), np.array([_TINY * self.common**2]))
        within = np.array([relative * self.common**2])
        return self._replace(weight=columns[0], centre=columns[1], width2=columns[2], within=within)


def observed(evidence: Evidence, vary: FloatArray = ALIKE) -> Observed:
    """The evidence of flows whose packets vary by such factors in classes of sizes."""
    size = np.maximum(evidence.size, np.maximum(evidence.count, 1.0))
    # Packets that were not sampled are more where the size may be larger: who seems to be sampled whole may not be.
    largest = size if evidence.size_doubt is None else size * np.exp(np.sqrt(evidence.size_doubt))
    with np.errstate(divide="ignore"):
        error = np.where(evidence.count > 0, np.maximum(1 / evidence.count - 1 / largest, 0.0), np.inf)
    sampled = np.where(evidence.count > 0, evidence.sampled, 0.0)
    each = 1 / size if evidence.each is None else np.maximum(evidence.each, 1 / size)
    factor = vary[classes_of(evidence.size)]
    return Observed(evidence.value, evidence.precision, sampled, error, each, factor, np.log(size), np.zeros(len(size)))


class _Scratch(NamedTuple):
    """Of the components: their shares in a flow, its mean and variance in each; before, the logarithms of weights."""

    own: FloatArray
    mean: FloatArray
    variance: FloatArray
    log_weight: FloatArray


@inlined
def _new_scratch(prior: FlowPrior) -> _Scratch:
    count = len(prior.weight)
    return _Scratch(np.empty(count), np.empty(count), np.empty(count), np.log(prior.weight + 1e-300))


@inlined
def _components(f: int, observed: Observed, prior: FlowPrior, scratch: _Scratch) -> float:
    """Fill in a flow's posterior components; the logarithm of its likelihood."""
    own, mean, variance, log_weight = scratch
    value, precision = observed.value[f], observed.precision[f]
    sampled, error, each = observed.sampled[f], observed.error[f], observed.each[f]
    vary = observed.vary[f]
    turn = np.exp(prior.slope * (observed.log_size[f] - prior.pivot)) if prior.slope != 0.0 else 1.0
    # What is not known of the size is not known of what goes with it.
    turned = prior.slope * prior.slope * observed.doubt[f]
    most = -np.inf
    for k in range(len(own)):
        # As where γ is 2, which it is where flows differ by factors.
        within = prior.within[k] * (turn * turn) * vary
        centre, spread = prior.centre[k] * turn, prior.width2[k] * turn * turn + within * each + _TINY
        spread += turned * centre * centre
        # Half the logarithm of all variances together: one of a product takes less time than several.
        exponent, scale = log_weight[k], 1.0
        if precision > 0.0:
            total = spread + 1.0 / precision
            scale = total
            exponent -= 0.5 * (value - centre) ** 2 / total
            centre += spread / total * (value - centre)
            spread /= 1.0 + spread * precision
        if error < np.inf:
            noise = error * within + 1.0
            total = spread + noise
            if prior.is_log:
                # Delays are skewed, and so are means of a few of them: as logarithms of a normal's are.
                place = max(centre, 1e-6 * prior.centre[k] * turn)
                relative, below = of_logarithm(total, noise, within, error, place * place, prior.shape)
                off = np.log(max(sampled / place, 1e-3)) + 0.5 * below
                scale *= relative
                exponent -= 0.5 * off * off / relative
            else:
                scale *= total
                exponent -= 0.5 * (sampled - centre) ** 2 / total
            centre += spread / total * (sampled - centre)
            spread *= noise / total
        exponent -= 0.5 * np.log(scale)
        # What is out of all range is as unlikely as can be.
        exponent = exponent if exponent > -1 / TINY else -1 / TINY
        own[k], mean[k], variance[k] = exponent, centre, spread
        most = max(most, exponent)
    total = 0.0
    for k in range(len(own)):
        own[k] = np.exp(own[k] - most) if own[k] > most - NOWHERE else 0.0
        total += own[k]
    for k in range(len(own)):
        own[k] /= total
    return float(most + np.log(total))


class Likelihoods(NamedTuple):
    """Of flows: the shares of components where all weigh 1, and the logarithm of the likelihood then.

    What weights make of them takes no exponential of any component: they are learnt in many passes.
    """

    share: FloatArray
    log: FloatArray

    @classmethod
    def of(cls, observed: Observed, prior: FlowPrior) -> Likelihoods:
        even = prior._replace(weight=np.ones(len(prior.weight)))
        found = cls(np.empty((len(observed.value), len(even.weight))), np.empty(len(observed.value)))
        _fill_shares(observed, even, found.share, found.log)
        return found

    def weighed(self, weight: FloatArray, telling: FloatArray) -> tuple[FloatArray, float]:
        """Flows per component under such weights, and the logarithm of the likelihood of all; each flow counts by what
        it is `telling`."""
        total = self.share @ weight
        return weight * ((telling / total) @ self.share), float(telling @ (self.log + np.log(total)))


@kernel
def _fill_shares(observed: Observed, prior: FlowPrior, share: FloatArray, likelihood: FloatArray) -> None:
    scratch = _new_scratch(prior)
    for f in range(len(observed.value)):
        likelihood[f] = _components(f, observed, prior, scratch)
        share[f] = scratch.own


@kernel
def likelihood_of(observed: Observed, prior: FlowPrior, likelihood: FloatArray) -> None:
    """The logarithm of each flow's likelihood."""
    scratch = _new_scratch(prior)
    for f in range(len(observed.value)):
        likelihood[f] = _components(f, observed, prior, scratch)


@kernel
def moments_of(observed: Observed, prior: FlowPrior, moments: FloatArray) -> None:
    """Each flow's mean and variance (2 × flows), given its posterior components."""
    scratch = _new_scratch(prior)
    own, mean, variance, _ = scratch
    for f in range(len(observed.value)):
        _components(f, observed, prior, scratch)
        centre = square = 0.0
        for k in range(len(own)):
            centre += own[k] * mean[k]
            square += own[k] * (mean[k] * mean[k] + variance[k])
        moments[0, f], moments[1, f] = centre, square - centre * centre


@kernel
def quantiles_of(observed: Observed, prior: FlowPrior, quantiles: FloatArray) -> None:
    """Median, low and high of each flow."""
    scratch = _new_scratch(prior)
    own, mean, variance, _ = scratch
    for f in range(len(observed.value)):
        _components(f, observed, prior, scratch)
        kept = 0
        low, high = np.inf, -np.inf
        centre = square = 0.0
        for k in range(len(own)):
            if own[k] > NEGLIGIBLE:
                centre += own[k] * mean[k]
                square += own[k] * (mean[k] * mean[k] + variance[k])
                deviation = np.sqrt(variance[k])
                own[kept], mean[kept], variance[kept] = own[k], mean[k], 1.0 / deviation
                low, high = min(low, mean[kept] - 5 * deviation), max(high, mean[kept] + 5 * deviation)
                kept += 1
        reach = NORMAL_95 * np.sqrt(max(square - centre * centre, 0.0))
        for number, level in enumerate((0.5, 0.025, 0.975)):
            # Where a normal of the same moments would have it.
            start = centre + (level - 0.5) / 0.475 * reach
            quantiles[f, number] = _quantile(level, start, (low, high), own[:kept], mean[:kept], variance[:kept])


@inlined
def _quantile(
    level: float,
    start: float,
    bracket: tuple[float, float],
    own: FloatArray,
    mean: FloatArray,
    precision: FloatArray,
) -> float:
    """Where a mixture's distribution function reaches a level, by Newton's steps that bisect where these leave the
    bracket: four or so. `precision` is 1/deviation of each component."""
    low, high = bracket
    place = min(max(start, low), high)
    precise = PRECISE * (high - low)
    for _ in range(MOST_STEPS):
        reached = density = 0.0
        for k in range(len(own)):
            below, slope = normal_below((place - mean[k]) * precision[k])
            reached += own[k] * below
            density += own[k] * slope * precision[k]
        if reached < level:
            low = place
        else:
            high = place
        before = place
        place += (level - reached) / max(density, TINY)
        if not low < place < high:
            place = 0.5 * (low + high)
        if abs(place - before) < precise:
            break
    return place
