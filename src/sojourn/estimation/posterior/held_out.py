"""What a model says of flows, held against sampled packets that it did not see.

Each flow's sampled packets are parted into two halves by chance. The model answers from one half (and all cells); the
other half's mean b differs from the flow's true one only by its own noise, σ²·(1/n − 1/N), whatever the model believes.
Halves change places, so that every packet is used.

**Choice.** Simpler candidates answer from the same half: each flow by its own cells and samples alone, by its samples
alone, and one mean for all. Their squared errors towards b are compared flow by flow, in units of what the model
expects. Where a candidate is closer beyond doubt (`SURE` standard errors: for a candidate that is as good as the model
a chance of 10⁻⁴) and nearer to most flows (`MOSTLY`) in one class of sizes, it answers there.

**Calibration.** (m − b)² less b's own noise is, on average, the square of the model's error. Where that is beyond doubt
larger than what was claimed, intervals of the class are wider by the root of the ratio. They are never made narrower.

What a class does not say clearly by itself it shares with all flows, unless it speaks against that. Held-out noise
bounds what can be seen: claims of one per cent are not checked by a handful of packets that vary by a hundred.
Deterministic; O(sampled packets + flows).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.estimates import NORMAL_95
from sojourn.estimation.learning import SIZE_CLASSES, classes_of
from sojourn.estimation.posterior.components import FlowPrior
from sojourn.estimation.posterior.evidence import Evidence
from sojourn.estimation.posterior.hierarchy import FlowPosterior, SpreadLaw, posterior_under, spread_law

# Flows that are enough for a verdict.
FEWEST = 50
SURE = 3.7
MOSTLY = 2.0
MODEL, OWN, SAMPLES, COMMON = range(4)
NAMES = ("all", "own cells and samples", "own samples", "one mean")


class Halves(NamedTuple):
    """Two halves of each flow's sampled delays: how many, their mean, and the sum of squares around it (2 × flows)."""

    number: FloatArray
    mean: FloatArray
    squares: FloatArray


class Guess(NamedTuple):
    """Means of flows with their variances; NaN where there is none."""

    mean: FloatArray
    variance: FloatArray


@dataclass(frozen=True, eq=False)
class Verdict:
    """For each flow, which candidate answers, and the factor of its variance."""

    candidate: Int64Array
    widened: FloatArray

    def applied(self, model: FlowPosterior, evidence: Evidence) -> FlowPosterior:
        """The model's answers, or those of the candidates that were closer; intervals as wide as errors were."""
        mean, low, high = model.mean.copy(), model.low.copy(), model.high.copy()
        for number in (OWN, SAMPLES, COMMON):
            rows = self.candidate == number
            if rows.any():
                guess = _simple(evidence, spread_law(evidence))[number]
                rows &= np.isfinite(guess.mean + guess.variance) & np.isfinite(mean)
                half = NORMAL_95 * np.sqrt(guess.variance[rows])
                mean[rows], low[rows], high[rows] = guess.mean[rows], guess.mean[rows] - half, guess.mean[rows] + half
        root = np.sqrt(self.widened)
        return FlowPosterior(mean, mean - root * (mean - low), mean + root * (high - mean))


def judge(prior: FlowPrior, evidence: Evidence, halves: Halves) -> Verdict:
    """What held-out halves say of the model and of the simpler candidates."""
    rows = np.flatnonzero((halves.number > 0).all(axis=0))
    flows = len(evidence.value)
    verdict = Verdict(np.zeros(flows, np.int64), np.ones(flows))
    if len(rows) < FEWEST:
        return verdict
    some = evidence.select(rows)
    parted = Halves(*(column[:, rows] for column in halves))
    trials = [_trial(prior, some, parted, kept) for kept in (0, 1)]
    everywhere = np.ones(len(rows), bool)
    common = _choice(trials, everywhere, MODEL)
    excess = [_excess([trial[number] for trial in trials], everywhere, 1.0) for number in range(len(NAMES))]
    classes = classes_of(evidence.size)
    for number in range(len(SIZE_CLASSES) + 1):
        own = classes[rows] == number
        chosen = _choice(trials, own, common)
        members = classes == number
        verdict.candidate[members] = chosen
        verdict.widened[members] = _excess([trial[chosen] for trial in trials], own, excess[chosen])
    return verdict


class _Scored(NamedTuple):
    """A candidate's answers from one half against the other: the squared error less that one's noise, how far it is
    off with that noise, the variance that was claimed, and the weight of the flow, which is the same for all
    candidates."""

    square: FloatArray
    off: FloatArray
    claimed: FloatArray
    weight: FloatArray


def _trial(prior: FlowPrior, evidence: Evidence, halves: Halves, kept: int) -> list[_Scored]:
    """All candidates' answers from the half that is `kept`."""
    count, mean, squares = (column[kept] for column in halves)
    seen = replace(evidence, sampled=mean, count=count, squares=squares)
    model = posterior_under(prior, seen)
    claimed = ((model.high - model.low) / (2 * NORMAL_95)) ** 2
    law = spread_law(evidence)
    guesses = [Guess(model.mean, claimed), *_simple(seen, law)[1:]]
    other = 1 - kept
    total, size = evidence.count, np.maximum(evidence.size, evidence.count)
    one = evidence.squares / np.maximum(total - 1, 1.0)
    of_mean = np.maximum(1 / halves.number[other] - 1 / size, 0.0)
    noise = one * of_mean
    # Own squares would weigh flows more just when their delays happen to be low.
    usual = one if law is None else law.variance(model.mean)
    weight = 1 / np.maximum(usual * of_mean + claimed, 1e-12)
    scored = []
    for number, guess in enumerate(guesses):
        # What one half has too much of a flow's packets the other has too little: as far as the guess leans on it.
        leaning = np.clip(guess.variance / np.maximum(one * (1 / count - 1 / size), 1e-12), 0.0, 1.0)
        leaning = np.zeros(len(count)) if number == COMMON else leaning
        off = guess.mean - halves.mean[other]
        scored.append(_Scored(off**2 - noise - 2 * leaning * one / size, np.abs(off), guess.variance, weight))
    return scored


def _simple(evidence: Evidence, law: SpreadLaw | None) -> list[Guess]:
    """The simpler candidates, in the order of their numbers (the model's place is empty)."""
    flows = len(evidence.value)
    nothing = Guess(np.full(flows, np.nan), np.full(flows, np.nan))
    if law is None:
        return [nothing] * len(NAMES)
    count, size = evidence.count, np.maximum(evidence.size, np.maximum(evidence.count, 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = law.variance(np.where(count > 0, evidence.sampled, evidence.value))
        variance = (evidence.squares + usual) / np.maximum(count, 1.0) * np.maximum(1 / count - 1 / size, 0.0)
        sampled = np.where(count > 0, 1 / np.maximum(variance, 1e-12), 0.0)
        total = sampled + evidence.precision
        own = Guess((sampled * evidence.sampled + evidence.precision * evidence.value) / total, 1 / total)
        alone = Guess(np.where(count > 0, evidence.sampled, np.nan), np.where(count > 0, variance, np.nan))
    return [nothing, own, alone, _common(own, evidence)]


def _common(own: Guess, evidence: Evidence) -> Guess:
    """One mean for all; how far flows are from it is what their own means vary by beyond their variances."""
    known = np.isfinite(own.mean) & np.isfinite(own.variance)
    # Weights that do not go with the values: a flow's packets, of which many count alike.
    weight = np.where(known, 1 / (1 / np.maximum(evidence.count, 0.5) + 1 / 8), 0.0)
    total = float(weight.sum())
    if total <= 0:
        return Guess(np.full(len(known), np.nan), np.full(len(known), np.nan))
    weight /= total
    middle = float(np.sum(weight * np.where(known, own.mean, 0.0)))
    parts = weight * np.where(known, (own.mean - middle) ** 2 - own.variance, 0.0)
    doubt = math.sqrt(float(np.sum(parts**2)))
    apart = max(float(parts.sum()), 0.0) + doubt
    return Guess(np.full(len(known), middle), np.full(len(known), apart))


def _choice(trials: list[list[_Scored]], rows: BoolArray, usual: int) -> int:
    """The candidate that is closest to held-out halves, if that is beyond doubt; else the `usual` one, unless these
    flows speak against it."""
    found = {number: _gain(trials, rows, number) for number in (OWN, SAMPLES, COMMON)}
    best = max(found, key=lambda number: _sureness(found[number]))
    # A few flows with far outliers must not decide for the many.
    if _sureness(found[best]) > SURE and _sureness(_nearer(trials, rows, best)) > MOSTLY:
        return best
    return usual if usual in found and (not rows.any() or found[usual].sum() > 0) else MODEL


def _gain(trials: list[list[_Scored]], rows: BoolArray, number: int) -> FloatArray:
    """By how much a candidate is closer than the model, of each flow."""
    gain = np.zeros(int(rows.sum()))
    for trial in trials:
        part = trial[MODEL].weight * (trial[MODEL].square - trial[number].square)
        gain += np.where(np.isfinite(part), part, 0.0)[rows]
    return gain


def _nearer(trials: list[list[_Scored]], rows: BoolArray, number: int) -> FloatArray:
    """1 for each flow to which a candidate is nearer than the model, −1 where it is farther."""
    nearer = np.zeros(int(rows.sum()))
    for trial in trials:
        nearer += np.nan_to_num(np.sign(trial[MODEL].off - trial[number].off))[rows]
    return nearer


def _sureness(parts: FloatArray) -> float:
    """A sum in standard errors; of few parts nothing is sure."""
    error = math.sqrt(float(np.sum((parts - parts.mean()) ** 2))) if len(parts) >= FEWEST else 0.0
    return float(parts.sum()) / error if error > 0 else 0.0


def _excess(trials: list[_Scored], rows: BoolArray, usual: float) -> float:
    """The squared error over what was claimed, if that is beyond doubt more; else not above the `usual` one."""
    squares, claims = np.zeros(int(rows.sum())), np.zeros(int(rows.sum()))
    for trial in trials:
        known = np.isfinite(trial.square) & np.isfinite(trial.claimed)
        # As for the slope of squares over claims, whose noise goes with what is expected of a square.
        weight = np.where(known, trial.weight, 0.0)[rows] ** 2 * np.nan_to_num(trial.claimed)[rows]
        squares += weight * np.nan_to_num(trial.square)[rows]
        claims += weight * np.nan_to_num(trial.claimed)[rows]
    if float(claims.sum()) <= 0:
        return usual
    ratio = max(float(squares.sum() / claims.sum()), 1.0)
    return ratio if _sureness(squares - claims) > SURE else min(ratio, usual)
