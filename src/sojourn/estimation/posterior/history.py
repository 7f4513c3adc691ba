"""What a flow's run before says of its mean in the present one: a filter of each flow over time.

A flow's law has a mean m that moves from run to run. Of each flow a *state* is kept: m as the flow's own cells and
samples of all runs so far tell it (value and variance), without what flows have in common, which is learnt anew in
every run and would be counted twice. The state predicts the present mean as h + δ with variance v + κ·σ²:

- δ is what all flows have moved by (a clock that drifted or was set, the load of a common queue);
- κ is how far flows move beside that, in variances of one packet: distributed over a grid from none to a thousand
  deviations. Few flows that jump, all that move a little, half of them on another path: all are told by its weights.

Both are learnt from the flows at hand, by how their present evidence differs from the prediction beyond what both
variances say (expectation maximisation). The prediction is weighed with the present evidence under each κ, as likely as
that makes the difference (a filter of many models, as in Blom and Bar-Shalom's), so that a flow which jumped is not
drawn back. What it adds is one normal message, for `hierarchy`.

Guarantee: histories serve only where they pay. Packets that are sampled in the present run do not depend on them; if
these are not likelier by each flow's own history than by the histories of all flows, by what the parameters must gain
(Bayes's information criterion), they are not used, and the states go on. Deterministic; O(flows × `DRIFTS`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import FlowDelays
from sojourn.estimation.learning import KEPT_FLOWS, WIDTH
from sojourn.estimation.posterior.evidence import Evidence
from sojourn.estimation.posterior.hierarchy import SpreadLaw, refined_law, spread_law

# κ: variances of one packet by which a flow's mean moves.
DRIFTS = np.concatenate([[0.0], np.geomspace(1e-4, 1e6, 11)])
# Quantiles of the differences at which δ begins, and passes until the likeliest goes on alone.
STARTS, FIRST_PASSES = (0.25, 0.5, 0.75), 4
PASSES = 10
# How often variances and drift are learnt, each with the other as it was before.
ROUNDS = 2
# Flows to learn from, and to compare likelihoods of: more do not tell more.
LEARN_FLOWS, JUDGED_FLOWS = 600, 300
FEWEST_FLOWS = 30
# By which a state's variance grows in any case: a history counts for four runs like the present one at most.
DISCOUNT = 1.25
# What a flow that shows the smallest κ counts for beside the usual one.
MOST_TELLING = 30.0
# Components of the flows' distribution that histories are judged beside.
COMPONENTS = 48
# Part of cells' variance that is the same in all runs, as flows that share them are: correlations of 0 to 0.16 between
# the errors of two runs were seen.
SHARED = 0.15
# Means of a few packets have long upper tails: what their variance counts for, so that intervals of mice hold there.
SKEWED = 2.0
# Of all probability: an interval leaves out five times as much.
UNLIKELY = 0.01
# Parameters' worth of freedom: the shift, and the κ that a few flows can tell apart.
FREEDOM = 4
# Part of the present evidence's precision, below which a history is as good as none.
NEGLIGIBLE = 0.01
# Of the usual mean: less is taken for so much where variances go with the mean.
LEAST_MEAN = 0.05
_TINY = 1e-9
_LEAST = 1e-300


@dataclass(frozen=True, eq=False)
class History:
    """The states of flows after a run, and the means that were answered; NaN where there are none."""

    flow_id: UInt64Array
    value: FloatArray
    variance: FloatArray
    answered: FloatArray

    @classmethod
    def none(cls) -> History:
        """Before the first run."""
        nothing = np.empty(0)
        return cls(np.empty(0, np.uint64), nothing, nothing, nothing)

    @classmethod
    def of(cls, flows: FlowDelays | None) -> History:
        """What is known after a run that answered these flows."""
        if flows is None or flows.state_ns is None or flows.state_variance is None:
            return cls.none()
        return cls(flows.flow_id, flows.state_ns, flows.state_variance, flows.mean_ns)

    def less(self, base_ns: int) -> History:
        """The same of delays without a base."""
        return replace(self, value=self.value - base_ns, answered=self.answered - base_ns)

    def of_flows(self, flow_id: UInt64Array) -> History:
        """A row for each of these flows."""
        columns = (self.value, self.variance, self.answered)
        if not len(self.flow_id):
            return History(flow_id, *(np.full(len(flow_id), np.nan) for _ in columns))
        order = np.argsort(self.flow_id)
        place = np.minimum(np.searchsorted(self.flow_id, flow_id, sorter=order), len(order) - 1)
        rows = order[place]
        known = self.flow_id[rows] == flow_id
        return History(flow_id, *(np.where(known, column[rows], np.nan) for column in columns))

    def at(self, rows: Int64Array) -> History:
        return History(self.flow_id[rows], self.value[rows], self.variance[rows], self.answered[rows])


class Own(NamedTuple):
    """What a run itself says of each flow's m: value and variance (infinite: nothing), the variance of one packet that
    these rest on, and what of the variance comes again in every run."""

    value: FloatArray
    variance: FloatArray
    packet: FloatArray
    again: FloatArray

    @classmethod
    def of(cls, evidence: Evidence, law: SpreadLaw, mean: FloatArray) -> Own:
        """With packets' variances where means are as given: flows' own are low just when they are sampled low."""
        usual = float(np.nanmedian(mean))
        packet = law.variance(np.maximum(np.where(np.isnan(mean), usual, mean), LEAST_MEAN * usual)) + _TINY
        size = np.maximum(evidence.size, np.maximum(evidence.count, 1.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.maximum(1 / evidence.count - 1 / size, _TINY) * packet
            by_sample = np.where(evidence.count > 0, 1 / error, 0.0)
            total = by_sample + evidence.precision
            value = (by_sample * evidence.sampled + evidence.precision * evidence.value) / total
            variance = np.where(total > 0, 1 / total + packet / size, np.inf)
            by_cells = evidence.precision / total
            again = np.where(evidence.precision > 0, SHARED * by_cells**2 / evidence.precision, 0.0)
        return cls(np.where(total > 0, value, 0.0), variance, packet, again)

    def at(self, rows: Int64Array) -> Own:
        return Own(*(column[rows] for column in self))


@dataclass(frozen=True, eq=False)
class Drift:
    """What flows moved by since the run before: δ and its variance, and how κ is distributed over `DRIFTS`.

    ``pays`` says whether flows' own histories are worth anything.
    """

    shift: float
    doubt: float
    weight: FloatArray
    pays: bool = False

    def filtered(self, own: Own, past: History) -> tuple[FloatArray, FloatArray]:
        """The states with the present evidence: the moments of the filters of all κ."""
        ahead = past.value + self.shift
        # Discounted: what trends would lag behind, the farther the longer it is remembered.
        spread = (DISCOUNT * past.variance + self.doubt)[:, None] + DRIFTS * own.packet[:, None]
        total = spread + own.variance[:, None]
        off = np.where(np.isfinite(own.variance), own.value - ahead, 0.0)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = np.log(self.weight) - 0.5 * (np.log(total) + off**2 / total)
            part = _without_tail(np.where(np.isfinite(total), _normalised(exponent), self.weight))
        gain = spread / total
        move = gain * off
        mean = np.sum(part * move, axis=1)
        variance = np.sum(part * (spread * (1 - gain) + (move - mean[:, None]) ** 2), axis=1)
        return ahead + mean, np.maximum(variance, own.again)


class Message(NamedTuple):
    """What history says of a flow's present mean: a value and a precision (0: nothing)."""

    value: FloatArray
    precision: FloatArray


def learn_drift(own: Own, past: History) -> Drift | None:
    """How flows moved, without a judgement; None where too few have both a history and present evidence."""
    both = np.flatnonzero(np.isfinite(own.variance) & np.isfinite(past.variance) & np.isfinite(past.answered))
    if len(both) < FEWEST_FLOWS:
        return None
    rows = both
    if len(both) > LEARN_FLOWS:
        rows = np.random.default_rng(0).choice(both, LEARN_FLOWS, replace=False)
    some, history = own.at(rows), past.at(rows)
    off, noise = some.value - history.value, some.variance + history.variance
    spread = noise[:, None] + DRIFTS * some.packet[:, None]
    even = np.full(len(DRIFTS), 1 / len(DRIFTS))
    # By how small a κ a flow can show: mice are many, and would say nothing of what elephants do.
    tells = some.packet / noise
    tells = np.minimum(tells / np.median(tells), MOST_TELLING)
    seen = _Seen(off, spread, tells / tells.mean())
    # From several places: where half of the flows moved, what lies between is a shift of none.
    starts = (_Moved(float(shift), even) for shift in np.quantile(off, STARTS))
    found = max((_likelier(seen, start, FIRST_PASSES) for start in starts), key=lambda one: one.likelihood)
    found = _likelier(seen, found, PASSES)
    return Drift(found.shift, 1 / found.precision, found.weight)


def judged(drift: Drift, sampled: Own, past: History) -> Drift:
    """Whether histories pay, by what the sampled packets of the run say: cells err alike in all runs, which would look
    like flows that stay."""
    both = np.flatnonzero(np.isfinite(sampled.variance) & np.isfinite(past.variance))
    if len(both) < FEWEST_FLOWS:
        return drift
    rows = both
    if len(both) > JUDGED_FLOWS:
        rows = np.random.default_rng(1).choice(both, JUDGED_FLOWS, replace=False)
    gain = _gain(sampled.at(rows), past.at(rows), past.answered, drift) * len(both) / len(rows)
    return replace(drift, pays=gain > 0.5 * FREEDOM * math.log(len(both)))


class _Moved(NamedTuple):
    """δ and weights of κ, δ's precision and the logarithm of the likelihood before the last pass."""

    shift: float
    weight: FloatArray
    precision: float = 0.0
    likelihood: float = 0.0


class _Seen(NamedTuple):
    """How far each flow is from its history, the variance of that under each κ, and what the flow counts for."""

    off: FloatArray
    spread: FloatArray
    part: FloatArray


def _likelier(seen: _Seen, moved: _Moved, passes: int) -> _Moved:
    """After some passes of expectation maximisation."""
    inverse, scale = 1 / seen.spread, -0.5 * np.log(seen.spread)
    for _ in range(passes):
        exponent = np.log(moved.weight) + scale - (0.5 * (seen.off - moved.shift) ** 2)[:, None] * inverse
        most = exponent.max(axis=1, keepdims=True)
        part = np.exp(exponent - most)
        total = part.sum(axis=1, keepdims=True)
        part /= total
        each = np.sum(part * inverse, axis=1)
        weight = seen.part @ part + KEPT_FLOWS / len(DRIFTS)
        precision = float(each.sum())
        likelihood = float(seen.part @ (most + np.log(total))[:, 0])
        moved = _Moved(float(each @ seen.off) / precision, weight / weight.sum(), precision, likelihood)
    return moved


def _gain(own: Own, past: History, answered: FloatArray, drift: Drift) -> float:
    """By how much the present evidence is likelier where each flow is weighed by its own history.

    Without it, a flow may be wherever flows were answered: components at even parts of them. With it, these count as
    they fit the flow's history. Nothing else differs.
    """
    levels = (np.arange(COMPONENTS) + 0.5) / COMPONENTS
    centre = np.quantile(np.append(answered[np.isfinite(answered)] + drift.shift, own.value), levels)
    width = (WIDTH * np.gradient(centre)) ** 2 + 1.0
    total = own.variance[:, None] + width
    present = -0.5 * (np.log(total) + (own.value[:, None] - centre) ** 2 / total)
    present -= present.max(axis=1, keepdims=True)
    off = (past.value[:, None] + drift.shift - centre) ** 2
    seen = np.exp(present)
    without = seen.mean(axis=1)
    by_history = np.zeros_like(without)
    for kappa, weight in zip(DRIFTS.tolist(), drift.weight.tolist(), strict=True):
        spread = (past.variance + kappa * own.packet)[:, None] + width + drift.doubt
        by_history += weight * np.sum(_normalised(-0.5 * (np.log(spread) + off / spread)) * seen, axis=1)
    return float(np.sum(np.log(np.maximum(by_history, _LEAST) / without)))


def message_of(own: Own, past: History, drift: Drift, size: FloatArray) -> Message:
    """What the filtered states say beyond the present evidence, of means over `size` packets.

    History tells of m, not of the mean M of a run's packets, which is off by σ²/N; so is M from flows' common
    distribution (of variance τ²), by the same amount. Counted once: 1/(P + σ²/N) = 1/(τ² + σ²/N) + the precision, with
    P the variance of m by both.
    """
    value, variance = drift.filtered(own, past)
    present = np.where(np.isfinite(own.variance), 1 / own.variance, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = 1 / variance - present
        value = (value / variance - present * own.value) / precision
        precision = np.where(precision > NEGLIGIBLE * present, 1 / (1 / precision + own.again), 0.0)
        low, high = np.quantile(past.answered[np.isfinite(past.answered)], (0.16, 0.84))
        apart = ((high - low) / 2) ** 2 + _TINY
        each, both = SKEWED * own.packet / size, 1 / (1 / apart + precision)
        around = 1 / (both + each) - 1 / (apart + each)
    tells = np.isfinite(value) & (around > 0)
    return Message(np.where(tells, value, 0.0), np.where(tells, around, 0.0))


@dataclass(frozen=True, eq=False)
class Filter:
    """The flows of a run beside their past, with what was learnt of how they moved."""

    evidence: Evidence
    past: History
    law: SpreadLaw | None
    own: Own | None = None
    drift: Drift | None = None

    @classmethod
    def of(cls, evidence: Evidence, before: History, flow_id: UInt64Array) -> Filter:
        past, law = before.of_flows(flow_id), spread_law(evidence)
        both = np.isfinite(past.answered) & np.isfinite(past.variance)
        both &= (evidence.count > 0) | (evidence.precision > 0)
        if law is None or both.sum() < FEWEST_FLOWS:
            return cls(evidence, past, law)
        mean = past.answered
        for _ in range(ROUNDS):
            # Variances are those of the present means, which are known no better before it is known who moved.
            own = Own.of(evidence, refined_law(evidence, law, np.nan_to_num(mean)), mean)
            drift = learn_drift(own, past)
            if drift is None:
                break
            mean = drift.filtered(own, past)[0]
        if drift is not None:
            alone = replace(evidence, precision=np.zeros_like(evidence.precision))
            drift = judged(drift, Own.of(alone, refined_law(evidence, law, np.nan_to_num(mean)), mean), past)
        return cls(evidence, past, law, own, drift)

    def message(self, size: FloatArray) -> Message | None:
        """What history says of flows' means over so many packets; None where it is not worth anything."""
        if self.own is None or self.drift is None or not self.drift.pays:
            return None
        return message_of(self.own, self.past, self.drift, size)

    def states(self, mean: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Value and variance of each flow's state after the run, of which these means were answered."""
        if self.law is None or not np.isfinite(mean).any():
            return None
        own = Own.of(self.evidence, refined_law(self.evidence, self.law, mean), mean)
        alone = np.isfinite(own.variance)
        value, variance = np.where(alone, own.value, np.nan), np.where(alone, own.variance, np.nan)
        if self.drift is None or self.own is None:
            return value, variance
        known = np.isfinite(self.past.variance)
        # Both for the same variance of a packet: runs that happened to be low must not count for more.
        past = replace(self.past, variance=self.past.variance * (own.packet / self.own.packet))
        filtered = self.drift.filtered(own, past)
        return np.where(known, filtered[0], value), np.where(known, filtered[1], variance)


def _normalised(exponent: FloatArray) -> FloatArray:
    """Probabilities of each row from logarithms."""
    part = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    found: FloatArray = part / part.sum(axis=1, keepdims=True)
    return found


def _without_tail(part: FloatArray) -> FloatArray:
    """Probabilities of each row without the largest κ that are unlikely together: their squares would be all that
    counts, where no evidence rules them out."""
    beyond = np.cumsum(part[:, ::-1], axis=1)[:, ::-1]
    part = np.where(beyond > UNLIKELY, part, 0.0)
    found: FloatArray = part / part.sum(axis=1, keepdims=True)
    return found
