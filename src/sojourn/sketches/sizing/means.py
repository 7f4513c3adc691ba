"""How many epochs a bucket array should record in, each under a salt of its own, where means are asked for.

A bucket's sum is Σ_f a_f·c_f·q_f over the instances that name it, with q_f the mean of f's values in the epoch: f's own
mean and a deviation of variance ω². Values that stay alike for a time T (a queue) vary as an Ornstein–Uhlenbeck process
does: of their variance v², an epoch's mean has

    ω²(t) = v²·2(x − 1 + e⁻ˣ)/x²,   x = t/T,

and values ν = v² − ω² around that. In few long epochs there are few equations; in many short ones each is noisier, by
ω² up to v² and by the few values in it. Salts of their own make the noise of epochs independent even where q_f is not,
as others share the buckets: short epochs win until they hold a few values of each instance.

Guarantee: the deviations are the joint decoder's (`estimation.buckets.rtt`) over drawn arrays, for values that vary as
assumed. Cost: some 10 ms for each candidate of 20 buckets and 50 instances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.errors import ParameterError
from sojourn.sketches.sizing.iotm import MOST_INSTANCES, EpochPlan, error_at, share_within, shares_of_targets

# The shortest epoch of an agent.
SHORTEST_NS = 100_000_000
# At most as many as a query decodes within seconds.
CANDIDATES = (1, 2, 5, 10, 16, 25, 40, 64, 100, 160, 250, 400, 600, 1024)
# Fewer epochs that keep almost as many answers within the error are taken: each is sent and stored.
ALMOST = 0.02
# Arrays drawn for a candidate: information adds up over epochs, so that so many stand for all.
DRAWS = 24
# Variance that turns leave in one of an instance's buckets.
REMAINDER = 1 / 6


@dataclass(frozen=True, kw_only=True)
class Variation:
    """How values vary: ``values`` is their deviation over their instance's mean, ``alike_ns`` the time that they stay
    alike, ``between`` the deviation of instances' means over the mean of all."""

    values: float = 1.0
    alike_ns: int = 500_000_000
    between: float = 0.6

    def __post_init__(self) -> None:
        known = (self.values, self.between, float(self.alike_ns))
        if not all(math.isfinite(number) and number > 0 for number in known):
            raise ParameterError(f"variation {self}", where="iotm sizing", action="use positive numbers")

    def of_epochs(self, epoch_ns: float) -> tuple[float, float]:
        """(ω², ν): the variance of an epoch's mean, and of values around it, over the squared mean."""
        x = max(epoch_ns / self.alike_ns, 1e-6)
        drift = self.values**2 * min(1.0, 2 * (x - 1 + math.exp(-x)) / x**2)
        return drift, self.values**2 - drift


def predicted_mean_deviations(
    sizes: FloatArray, *, n: int, m: int, epochs: int, period_ns: int, variation: Variation
) -> FloatArray:
    """Relative standard deviations of instances' means, for values in turns."""
    amount, k = sizes / epochs, len(sizes)
    drift, values = variation.of_epochs(period_ns / epochs)
    random = np.random.default_rng([n, m, epochs])
    information, carried, own = np.zeros((k, k)), np.zeros((k, k)), np.zeros((k, k))
    draws = min(epochs, DRAWS)
    for _ in range(draws):
        shares = shares_of_targets(random.integers(0, n, (k, m)), n)
        counted = shares * amount
        # Who sent what is known by the buckets' counts but for chance: that mixes instances of different means.
        mixed = variation.between**2 * ((shares * amount) @ shares.T + np.diag((shares > 0).sum(axis=1) * REMAINDER))
        around = drift * counted @ counted.T + mixed + np.diag(shares @ (values * amount) + 1e-3)
        solved = np.linalg.solve(around, counted)
        information += counted.T @ solved
        gain = drift * solved.T
        carried += np.eye(k) - gain @ counted
        own += drift * (np.eye(k) - gain @ counted)
    precision = np.eye(k) / variation.between**2 + information * (epochs / draws)
    carried /= draws
    covariance = own / (draws * epochs) + carried @ np.linalg.solve(precision, carried.T)
    found: FloatArray = np.sqrt(np.maximum(np.diag(covariance), 0.0) + values / np.maximum(sizes, 1.0))
    return found


def plan_epochs(
    sizes: FloatArray,
    period_ns: int,
    *,
    n: int,
    m: int,
    variation: Variation | None = None,
    error: float = 0.07,
    confidence: float = 0.95,
) -> EpochPlan:
    """The fewest epochs of a period that keep the error at the confidence, or else as many as help."""
    if not (1 <= len(sizes) <= MOST_INSTANCES and 1 <= m <= n):
        raise ParameterError(
            f"{len(sizes)} instances in {n} buckets, {m} for each", where="iotm sizing", action="use 1 ≤ m ≤ n"
        )
    if period_ns < SHORTEST_NS:
        raise ParameterError(f"a period of {period_ns} ns", where="iotm sizing", action="use at least 100 ms")
    known = variation or Variation()
    plans = [
        _plan(sizes, period_ns, epochs, (n, m), known, error, confidence)
        for epochs in CANDIDATES
        if epochs == 1 or period_ns / epochs >= SHORTEST_NS
    ]
    enough = [plan for plan in plans if plan.is_kept]
    best = max(plan.share for plan in plans)
    return enough[0] if enough else next(plan for plan in plans if plan.share >= best - ALMOST)


def _plan(
    sizes: FloatArray,
    period_ns: int,
    epochs: int,
    array: tuple[int, int],
    variation: Variation,
    error: float,
    confidence: float,
) -> EpochPlan:
    n, m = array
    relative = predicted_mean_deviations(sizes, n=n, m=m, epochs=epochs, period_ns=period_ns, variation=variation)
    share = share_within(relative, error)
    return EpochPlan(
        epochs=epochs,
        epoch_ns=period_ns // epochs,
        error=error_at(relative, confidence),
        median_error=error_at(relative, 0.5),
        share=share,
        is_kept=share >= confidence,
    )
