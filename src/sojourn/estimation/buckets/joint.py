"""IoTm, decoded jointly: what every listed instance added to shared buckets, from all buckets of all epochs at once.

The buckets of epoch e obey B_e = A_e·s_e + noise, where A_e[i, f] is the share of instance f's hash functions that name
bucket i, and s_e what the instances added. Two covariances make that decodable:

- *spreading*: measurements that choose j by chance leave κ·(diag(A s) − A diag(s) Aᵀ); measurements that take turns
  leave at most one measurement per hash function, whatever their number; packets' numbers choose in between (ρ);
- *change*: s_e = λ·w_e + u_e with a common rate λ and Var u = κ·λ·w + ω²·(λ·w)².

Rates come from all epochs by generalised least squares with λ ≥ 0 and a wide prior, iterated because the covariances
depend on λ; an instance's prior is as wide as its own rate of the pass before, so that a burst is not shrunk to the
others. Each epoch's amounts are the best linear prediction around the rates. κ (1 for counts), ω and ρ come from the
marginal likelihood. Epochs with salts of their own let instances outnumber buckets.

The list of instances may lack some. What they added is then a rate more, spread over all buckets, with a deviation φ
from bucket to bucket; it is part of the model where that makes the buckets much likelier, and the answers'
method says so.

Guarantee: 95 % intervals that cover 90–98 % where the list is complete; of an incomplete list see docs/maths/iotm.md.
Cost: O(epochs · (c³ + n·k²)) for k instances and n buckets, c of them of several instances (all, in small arrays).
docs/maths/iotm.md derives it. Shahzad and Ganji, "IoTm", §III, answers one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered, student_95
from sojourn.estimation.buckets.equations import (
    METHOD,
    EpochEquations,
    EquationStack,
    equations_of,
    with_remainders,
)
from sojourn.estimation.buckets.whitening import SHARED, whitened_rows
from sojourn.estimation.buckets.work_memory import StackedRows, are_kept, is_large, most_learned, stacked
from sojourn.sketches.bucket_array import BucketArray

METHOD_INCOMPLETE = "iotm joint, list incomplete"
PASSES = 3
# A rate's prior deviation in mean rates: wide enough for one instance to hold nearly everything.
PRIOR_WIDTH = 3.0
# What a bucket may be off by without a reason, in units of an average bucket: keeps the covariance regular.
SLACK = 1e-3
# Instances that may have a dispersion of their own: so many, so far above the median rate; and how large it is, as
# parts of all that they added.
MOST_BURSTS, BURST_RATE, BURSTS = 12, 10.0, (0.03, 0.1, 0.3, 1.0)
EVENNESS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01)
# Deviations of what unlisted instances added to a bucket, in average buckets: tried first, and beside the best.
UNLISTED, UNLISTED_BESIDE = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), (0.6, 0.8, 1.0, 1.3, 1.7)
# Buckets beyond the instances that a test of the list needs: counts have a known spread, that of values is learned.
SPARE_OF_COUNTS, SPARE_OF_VALUES = 1, 5
# By how much −2 × the log likelihood must fall before a list counts as incomplete: of 640 complete
# lists in 16 worlds none fell by even 1 (docs/maths/iotm.md), but values may be spread as no model is.
INCOMPLETE_BY_COUNTS, INCOMPLETE_BY_VALUES = 4.0, 12.0
# Beyond that: by so much for each bucket, or a rate of the unlisted of so many deviations.
FALL_EACH, SIGNIFICANT = 0.05, 3.0
# Where κ is looked for, by its logarithm over a first guess; and how far from that of the pass before.
LOG_KAPPA, NEAR = (-6.0, 6.0), 1.5
CHANGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.7, 3.0)
# Measurements that come at once: the TCP and the MQTT acknowledgement of one message are two.
BUNCHES = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Scales:
    """How measurements vary: κ, the dispersion of their values; ω, the change of rates between epochs; ρ, how far their
    choice of bucket is by chance; φ, the deviation of what unlisted instances added, in average buckets; β, how many
    measurements come at once, of which an epoch then has a number that varies β times as much."""

    kappa: float = 1.0
    change: float = 0.0
    chance: float = 1.0
    unlisted: float = 0.0
    bunch: float = 1.0


@dataclass(frozen=True, eq=False)
class Amounts:
    """What instances added: in all epochs together (with the error's covariance) and in each.

    ``by_epoch`` and ``deviation`` are epochs × instances; ``degrees`` are those of freedom left, few where the spread
    of the values had to be learned from few buckets. An epoch is expected to hold its ``weight`` times the ``rate``,
    and differs as ``scales`` say. Where the list is not complete, all that it lacks is one more, the last, in ``rate``
    and ``rate_error``, which times its transpose is the covariance of the rates. ``unbounded`` is the total whose parts
    may be below 0. The total's error is ``by_rate`` times that of the rates, and one of its own.
    """

    total: FloatArray
    total_covariance: FloatArray
    by_epoch: FloatArray
    deviation: FloatArray
    degrees: int
    rate: FloatArray
    rate_error: FloatArray
    weight: FloatArray
    scales: Scales
    unbounded: FloatArray
    own_covariance: FloatArray
    by_rate: FloatArray

    def of_group(self, members: Sequence[int]) -> tuple[float, float]:
        """What instances, by their place in the list, added together, and the variance of its error."""
        # An instance's amounts are cut off at 0; added up, what is cut off would make a group of small ones too large.
        amounts = self.total if len(members) == 1 else self.unbounded
        variance = self.total_covariance[np.ix_(members, members)].sum()
        return float(amounts[members].sum()), max(float(variance), 0.0)

    @property
    def is_complete(self) -> bool:
        """Whether the listed instances explain the buckets."""
        return not self.scales.unlisted


class _Model:
    """All epochs' equations under given scales."""

    def __init__(self, epochs: list[EpochEquations], *, single_values: bool, by_number: bool) -> None:
        self.epochs = epochs
        self.by_number = by_number
        self.instances = int(epochs[0].shares.shape[1])
        self.single_values = single_values
        self.whole_rate = max(sum(float(e.held.sum()) for e in epochs), 1.0) / len(epochs)
        self.mean_rate = self.whole_rate / self.instances
        self.prior_mean = np.full(self.instances, self.mean_rate)
        self.prior_width = np.full(self.instances, PRIOR_WIDTH * self.mean_rate)
        self.own_kappa = np.full(self.instances, np.nan)

    def with_unlisted(self) -> _Model:
        """The model in which a last instance, spread over all buckets, is all those that the list lacks."""
        epochs = [
            replace(
                epoch,
                shares=np.column_stack([epoch.shares, epoch.sizes / epoch.sizes.sum()]),
                chance=np.append(epoch.chance, 1.0),
                owner=np.full(len(epoch.owner), SHARED),
            )
            for epoch in self.epochs
        ]
        model = _Model(epochs, single_values=self.single_values, by_number=self.by_number)
        model.prior_mean = np.append(self.prior_mean, 0.0)
        model.prior_width = np.append(self.prior_width, model.whole_rate)
        model.own_kappa = np.append(self.own_kappa, np.nan)
        return model

    @property
    def is_large(self) -> bool:
        """Whether a solution takes long."""
        return any(is_large(len(epoch.rows.place)) for epoch in self.epochs)

    def thinned(self) -> _Model:
        """The model of as many epochs, evenly spaced, as scales are learned from, where there are more."""
        most = min(most_learned(len(epoch.rows.place), len(epoch.held)) for epoch in self.epochs)
        if len(self.epochs) <= most:
            return self
        chosen = np.linspace(0, len(self.epochs) - 1, most).astype(int)
        return self.with_epochs([self.epochs[e] for e in chosen])

    def with_epochs(self, epochs: list[EpochEquations]) -> _Model:
        """The same model of other equations."""
        model = _Model(epochs, single_values=self.single_values, by_number=self.by_number)
        model.prior_mean, model.prior_width, model.own_kappa = self.prior_mean, self.prior_width, self.own_kappa
        return model

    def widen(self, rate: FloatArray) -> None:
        """Let no instance's prior be narrower than the rate it seems to have."""
        self.prior_width = np.hypot(PRIOR_WIDTH * self.mean_rate, rate)

    @cached_property
    def _places(self) -> list[Int64Array]:
        return stacked([len(epoch.held) for epoch in self.epochs])

    @cached_property
    def _kept(self) -> list[EquationStack]:
        return [EquationStack([self.epochs[e] for e in places]) for places in self._places]

    def stacks(self) -> Iterator[tuple[Int64Array, EquationStack]]:
        """All epochs by stacks, with their places; kept where they are few, else made one after the other."""
        kept = are_kept([len(epoch.held) for epoch in self.epochs])
        for i, places in enumerate(self._places):
            yield places, self._kept[i] if kept else EquationStack([self.epochs[e] for e in places])

    def normal_equations(self, rate: FloatArray, scales: Scales) -> tuple[FloatArray, FloatArray, float]:
        """(whitened matrix, whitened right side, log determinant) of the rates' equations.

        Of more epochs than are stacked it is a triangle with the same products: the other rows would be zero.
        """
        found, log_determinant = StackedRows(self.instances + 1), 0.0
        for _, stack in self.stacks():
            rows, of_stack = whitened_rows(self.around(rate, stack, scales), stack.columns, stack.owner)
            log_determinant += of_stack
            found.add(rows)
        return found.rows[:, :-1], found.rows[:, -1], log_determinant

    def changes(self, rate: FloatArray, stack: EquationStack, scales: Scales) -> FloatArray:
        """The variance of what each instance added in an epoch, around λ·w."""
        amount = stack.weight[:, None] * rate
        if len(self.epochs) == 1:
            return np.zeros_like(amount)
        return scales.bunch * self._dispersed(amount, scales) + (scales.change * amount) ** 2

    def _dispersed(self, amount: FloatArray, scales: Scales) -> FloatArray:
        found: FloatArray = amount * np.where(np.isnan(self.own_kappa), scales.kappa, self.own_kappa)
        return found

    def around(self, rate: FloatArray, stack: EquationStack, scales: Scales) -> FloatArray:
        """The covariances of all epochs' buckets around A·λ·w: spread and change together."""
        amount = stack.weight[:, None] * rate
        chance = scales.chance * stack.chance if self.single_values else np.ones_like(amount)
        scattered = self._dispersed(amount, scales) * chance
        found = scales.kappa**2 * stack.remainders
        found += stack.summed_squares(self.changes(rate, stack, scales) - scattered)
        buckets = stack.sizes.sum(axis=1)
        slack = SLACK * np.maximum(1.0, stack.of_buckets(amount * chance).sum(axis=1) / buckets)
        unlisted = (scales.unlisted * stack.held.sum(axis=1) / buckets) ** 2
        diagonal = np.arange(stack.held.shape[1])
        found[:, diagonal, diagonal] += stack.of_buckets(scattered) + (slack + unlisted)[:, None] * stack.sizes
        return found

    def solve(self, rate: FloatArray, scales: Scales) -> FloatArray:
        """λ ≥ 0 that fits best, under its prior."""
        from scipy.optimize import nnls

        matrix, side, _ = self.normal_equations(rate, scales)
        matrix = np.concatenate([matrix, np.diag(1 / self.prior_width)])
        side = np.concatenate([side, self.prior_mean / self.prior_width])
        scale = self.mean_rate
        solution: FloatArray = nnls(matrix * scale, side, maxiter=30 * self.instances)[0] * scale
        return solution

    def precision(self, matrix: FloatArray) -> FloatArray:
        """Of the rates, prior included."""
        found: FloatArray = matrix.T @ matrix + np.diag(self.prior_width**-2.0)
        return found

    def rate_error(self, rate: FloatArray, scales: Scales) -> FloatArray:
        """L, where L·Lᵀ is the covariance of the rates' errors.

        By a triangle: where instances outnumber buckets, the squares of what buckets say would drown the prior's, which
        is all that is known in some directions.
        """
        matrix, _, _ = self.normal_equations(rate, scales)
        triangle = np.linalg.qr(np.concatenate([matrix, np.diag(1 / self.prior_width)]), mode="r")
        found: FloatArray = np.linalg.inv(np.asarray(triangle, np.float64))
        return found

    def misfit(self, rate: FloatArray, scales: Scales) -> float:
        """−2 × the marginal log likelihood of the scales, at the rates that they make likeliest nearby."""
        matrix, side, log_determinant = self.normal_equations(rate, scales)
        residual = side - matrix @ rate
        away = (rate - self.prior_mean) / self.prior_width
        prior = float(away @ away) + 2 * float(np.log(self.prior_width).sum())
        precision = float(np.linalg.slogdet(self.precision(matrix))[1])
        return float(residual @ residual) + log_determinant + precision + prior

    @property
    def degrees(self) -> int:
        """Buckets beyond the rates."""
        return sum(len(e.held) for e in self.epochs) - self.instances


def decode_amounts(
    sketches: Sequence[BucketArray],
    instance_id: UInt64Array,
    *,
    field: str = "sum",
    is_complete: bool | None = None,
) -> Amounts:
    """What each listed instance added to a field of the epochs' arrays; together and in each.

    Whether the list of instances is complete is tested unless it is known.
    """
    of_ones = field == "count" or all(int(s.column(field).sum()) == s.recorded for s in sketches)
    model = _Model(
        equations_of(sketches, instance_id, field, of_ones),
        single_values=of_ones,
        by_number=sketches[0].parameters.spreading == "sequence",
    )
    rate = np.full(model.instances, model.mean_rate)
    guess = 1.0
    if not of_ones:  # E[v²]/E[v] as if values were exponential, where few buckets can tell
        total = sum(float(np.abs(s.column(field)).sum()) for s in sketches)
        guess = max(2 * total / max(sum(s.recorded for s in sketches), 1), 1e-9)
    scales, near = Scales(guess), None
    for _ in range(PASSES):
        rate = model.solve(rate, scales)
        model.widen(rate)
        learned = model.thinned() if model.is_large else model
        _find_bursts(learned, rate, scales)
        model.own_kappa = learned.own_kappa
        if of_ones:
            model = model.with_epochs(with_remainders(model.epochs, sketches, field, rate))
        scales = _fit(model.thinned(), rate, guess, near=near)
        near = scales if model.is_large else None
    for _ in range(PASSES):
        rate = model.solve(rate, scales)
    if not is_complete:
        found = _fit_unlisted(model, rate, scales, guess, known=is_complete is False)
        model, rate, scales = found or (model, rate, scales)
    return _predict(model, rate, scales, listed=len(instance_id))


def _find_bursts(model: _Model, rate: FloatArray, scales: Scales) -> None:
    """Give instances far above the others a dispersion of their own where that makes the buckets likelier.

    A burst is a few values of which each is a good part of all that the instance added; the others' values say nothing
    about them, and theirs would make everybody's uncertain. They are tried together first, as any that is left out
    keeps the others' κ large, and then one by one.
    """
    if model.single_values or model.degrees < 5:
        return
    largest = np.argsort(-rate)[:MOST_BURSTS]
    apart = largest[rate[largest] > BURST_RATE * float(np.median(rate))]
    if not len(apart):
        return
    before = model.own_kappa.copy()
    best = (model.misfit(rate, scales), before, scales)
    for part in BURSTS:
        model.own_kappa = before.copy()
        model.own_kappa[apart] = part * rate[apart]
        for kappa in (scales.kappa / share for share in (1, 8, 64, 512)):
            tried = replace(scales, kappa=kappa)
            best = min(best, (model.misfit(rate, tried), model.own_kappa.copy(), tried), key=lambda one: one[0])
    _, model.own_kappa, scales = best
    for f in apart.tolist():
        choices = []
        for own in (math.nan, *(part * rate[f] for part in BURSTS)):
            model.own_kappa[f] = own
            choices.append((model.misfit(rate, scales), own))
        model.own_kappa[f] = min(choices, key=lambda one: one[0])[1]


def _fit_unlisted(
    model: _Model, rate: FloatArray, scales: Scales, guess: float, *, known: bool
) -> tuple[_Model, FloatArray, Scales] | None:
    """The model with instances that are not listed, its rates and scales, if they make the buckets much likelier.

    Where it is ``known`` that the list lacks some, whatever the buckets say.
    """
    spare, fall = SPARE_OF_VALUES, INCOMPLETE_BY_VALUES
    if model.single_values:
        spare, fall = SPARE_OF_COUNTS, INCOMPLETE_BY_COUNTS
    if not known and model.degrees < spare:
        return None
    wider = model.with_unlisted()
    limit = math.inf if known else model.misfit(rate, scales) - fall
    # Where values vary, κ has taken up what unlisted instances added: with them it may be far smaller.
    kappas = [scales.kappa] if model.single_values else [scales.kappa / part for part in (1, 8, 64)]
    tried = [replace(scales, kappa=kappa, unlisted=share) for share in UNLISTED for kappa in kappas]
    screened = [_solved(wider, np.append(rate, 0.0), one) for one in tried]
    misfit, among, found = min(screened, key=lambda one: one[0])
    if misfit > limit or not (known or _are_seen(wider, among, found, limit + fall - misfit)):
        return None
    for _ in range(PASSES - 1):
        _, among, found = _solved(wider, among, _fit(wider.thinned(), among, guess, unlisted=found.unlisted))
        beside = [replace(found, unlisted=factor * found.unlisted) for factor in UNLISTED_BESIDE]
        _, among, found = min((_solved(wider, among, one) for one in beside), key=lambda one: one[0])
    return wider, among, found


def _are_seen(model: _Model, rate: FloatArray, scales: Scales, fall: float) -> bool:
    """Whether what unlisted instances seem to add is more than a deviation φ that makes up for a model of real traffic.

    Over many epochs such a deviation makes the buckets a little likelier each; then their rate has to be significant.
    """
    if fall > FALL_EACH * (model.degrees + model.instances):
        return True
    variance = float(np.square(model.rate_error(rate, scales)[-1]).sum())
    return float(rate[-1]) > SIGNIFICANT * math.sqrt(variance)


def _solved(model: _Model, rate: FloatArray, scales: Scales) -> tuple[float, FloatArray, Scales]:
    """How badly the scales fit, and their rates, which begin near those given."""
    found = model.solve(rate, scales)
    return model.misfit(found, scales), found, scales


def _fit(model: _Model, rate: FloatArray, guess: float, *, unlisted: float = 0.0, near: Scales | None = None) -> Scales:
    """The scales of the highest likelihood; κ is 1 for counts, ω is 0 in a single epoch, ρ is free only where packets'
    numbers choose. They are looked for near those of the pass before, if these are given."""
    from scipy.optimize import minimize_scalar

    changes: tuple[float, ...] = CHANGES if len(model.epochs) > 1 else (0.0,)
    lowest, highest = LOG_KAPPA
    if near is not None:
        at, log_kappa = CHANGES.index(near.change), math.log(near.kappa / guess)
        changes = changes[max(at - 1, 0) : at + 2]
        lowest, highest = max(lowest, log_kappa - NEAR), min(highest, log_kappa + NEAR)
    if model.single_values:
        chances = EVENNESS if model.by_number and model.degrees >= 5 else (1.0,)
        choices = [Scales(1.0, change, chance, unlisted) for change in changes for chance in chances]
        found = min(choices, key=lambda scales: model.misfit(rate, scales))
        return found if len(model.epochs) == 1 else _fit_bunches(model, rate, found)

    def scales_of(log_kappa: float, change: float) -> Scales:
        return Scales(guess * float(np.exp(log_kappa)), change, 1.0, unlisted)

    if model.degrees < 5:
        return Scales(guess, changes[min(2, len(changes) - 1)], 1.0, unlisted)
    best = (np.inf, Scales(guess))
    for change in changes:
        found = minimize_scalar(
            lambda log_kappa, change=change: model.misfit(rate, scales_of(log_kappa, change)),
            bounds=(lowest, highest),
            method="bounded",
            options={"xatol": 0.05},
        )
        best = min(best, (float(found.fun), scales_of(found.x, change)), key=lambda pair: pair[0])
    return best[1]


def _fit_bunches(model: _Model, rate: FloatArray, found: Scales) -> Scales:
    """The scales with the likeliest β, and with the change that is the likeliest beside it."""
    beside = [change for change in CHANGES if change <= found.change]
    choices = [replace(found, bunch=bunch, change=change) for bunch in BUNCHES for change in beside]
    return min(choices, key=lambda scales: model.misfit(rate, scales))


def _predict(model: _Model, rate: FloatArray, scales: Scales, *, listed: int) -> Amounts:
    """Best linear predictions of the listed instances' amounts in each epoch, and the covariance of their sum."""
    rate_error = model.rate_error(rate, scales)
    own_covariance, carried = np.zeros_like(rate_error), np.zeros_like(rate_error)
    amounts, deviations = np.zeros((2, len(model.epochs), model.instances))
    for places, stack in model.stacks():
        vary = model.changes(rate, stack, scales)
        of_change = stack.shares * vary[:, None, :]
        gain = np.linalg.solve(model.around(rate, stack, scales), of_change).transpose(0, 2, 1)
        amount = rate * stack.weight[:, None]
        surprise = stack.held - stack.of_buckets(amount)
        amounts[places] = amount + np.einsum("ekn,en->ek", gain, surprise)
        of_rate = stack.weight[:, None, None] * (np.eye(model.instances) - gain @ stack.shares)
        # Two covariances for each epoch, of which only sums and diagonals are needed.
        own = vary - np.einsum("ekn,enk->ek", gain, of_change)
        variance = own + np.square(of_rate @ rate_error).sum(axis=2)
        deviations[places] = np.sqrt(np.maximum(variance, 0.0))
        own_covariance += np.diag(vary.sum(axis=0)) - np.tensordot(gain, of_change, axes=((0, 2), (0, 1)))
        carried += of_rate.sum(axis=0)
    of_rates = carried @ rate_error
    total_covariance = own_covariance + of_rates @ of_rates.T
    predicted = amounts[:, :listed]
    by_epoch = np.maximum(predicted, 0.0)
    # The spread of counts is known; that of values, and of what unlisted instances added, was learned.
    degrees = 10**6 if model.single_values and not scales.unlisted else max(model.degrees, 1)
    weight = np.array([epoch.weight for epoch in model.epochs])
    return Amounts(
        by_epoch.sum(axis=0),
        total_covariance[:listed, :listed],
        by_epoch,
        deviations[:, :listed],
        degrees,
        rate,
        rate_error,
        weight,
        scales,
        predicted.sum(axis=0),
        own_covariance[:listed, :listed],
        carried[:listed],
    )


def estimate_sums_jointly(
    sketches: Sequence[BucketArray], instance_id: UInt64Array, *, unit: str, groups: Sequence[Sequence[int]] = ()
) -> list[Answer]:
    """The sum of each instance's measurements over all epochs, or of each group's (places in the list) taken together.

    The method says where the list is not complete. The errors of a group's members depend on each other, as they share
    buckets: its interval comes from their covariance.
    """
    groups = groups or [[f] for f in range(len(instance_id))]
    if not any(sketch.recorded for sketch in sketches):
        return [Unanswered(Reason.NOTHING_RECORDED)] * len(groups)
    # Counts spread as is known, values as they please: what the list lacks shows in the counts first.
    counts = decode_amounts(sketches, instance_id, field="count") if sketches[0].has("count") else None
    amounts = decode_amounts(sketches, instance_id, is_complete=None if counts is None else counts.is_complete)
    recorded = sum(sketch.recorded for sketch in sketches)
    method = METHOD if amounts.is_complete else METHOD_INCOMPLETE
    signed = sketches[0].parameters.signed
    answers: list[Answer] = []
    for members in groups:
        value, variance = amounts.of_group(members)
        half = student_95(amounts.degrees) * math.sqrt(variance)
        samples = recorded if counts is None else max(round(counts.of_group(members)[0]), 0)
        estimate = Estimate.around(value, half, samples=samples, method=method, unit=unit)
        answers.append(estimate if signed else estimate.not_below(0.0))
    return answers
