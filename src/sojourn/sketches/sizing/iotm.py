"""How large a bucket array has to be, and how many buckets an instance should own: the paper's open question.

**As published** every stranger s_k puts a share X of itself into the instance's m buckets, E X = m/n,
Var X = (1/n)(1 − m/n), so the moment form of Eq. 7 is off by a variance of

    Σ s_k² / (n − m)        (+ m·Σ s_k / (n − m) where j is random),

which grows with m: the best m is 1, and no m brings it below the mean square of the strangers over n.

**Decoded jointly** strangers are unknowns, not noise. What is left is the covariance of `iotm_joint`: with turns the
remainders, (1 − 1/m²)/12 to 1/6 for each hash function, against shares of 1/m, so that the variance grows with m² − 1;
with random j what chance leaves. Against a small m there is only that two instances, or three in two buckets, must
not share all they own: the chance of that falls like n⁻ᵐ. The best m is therefore small but not 1; which one it is for
given n and sizes is computed here by averaging the decoder's covariance over drawn arrays.

Fewer buckets than instances need several epochs with salts of their own, and rates that change little between them.

Cost: a few milliseconds for each candidate of tens of buckets. Shahzad and Ganji, "IoTm", §IV-A and VI.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.errors import ParameterError
from sojourn.sketches.bucket_array import HASHED_STEPS, SPREADINGS, BucketArrayParameters

MOST_INSTANCES = 2000
# Arrays drawn to compare candidates, and to check the one that looks good: the luckiest of many is not that good.
DRAWS, CHECK_DRAWS = 16, 200
LARGEST_M = 8
EPOCHS = (1, 2, 5, 10, 20)
# Buckets per instance to try: below one only with several epochs.
LOADS = (0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
FEWEST_BITS = 8
ROOM = 1.25


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a node measures: instances, measurements per second, the time that one question spans, the tail of
    the instances' sizes (Zipf's law with exponent 1/tail) and how far their rates change between epochs."""

    instances: int
    rate: float
    period_ns: int
    tail: float = 1.0
    change: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.instances <= MOST_INSTANCES:
            raise self._error(f"{self.instances} instances", f"use 1 … {MOST_INSTANCES}")
        if not (math.isfinite(self.rate) and self.rate > 0 and self.period_ns > 0):
            raise self._error(f"{self.rate:g} measurements/s in {self.period_ns} ns", "use positive numbers")
        if not 0.3 <= self.tail <= 10:
            raise self._error(f"tail {self.tail:g}", "use 0.3 … 10")
        if not 0 <= self.change <= 10:
            raise self._error(f"change {self.change:g}", "use 0 … 10, the deviation of a rate over its mean")
        if not self.instances <= self.measurements <= 1e12:
            raise self._error(f"{self.measurements:g} measurements", "use at least one for each instance, 10¹² at most")

    @staticmethod
    def _error(what: str, action: str) -> ParameterError:
        return ParameterError(what, where="iotm sizing", action=action)

    @property
    def measurements(self) -> float:
        return self.rate * self.period_ns / 1e9

    @property
    def sizes(self) -> FloatArray:
        """Measurements of each instance in the period, largest first."""
        weight = np.arange(1, self.instances + 1, dtype=np.float64) ** (-1 / self.tail)
        sizes: FloatArray = weight / weight.sum() * self.measurements
        return sizes


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """So many epochs of a period; ``error`` is what the wanted share of answers about it stays below, ``share`` the
    share of them within the wanted error."""

    epochs: int
    epoch_ns: int
    error: float
    median_error: float
    share: float
    is_kept: bool


@dataclass(frozen=True, kw_only=True)
class IotmPlan(EpochPlan):
    """A sized array, and its epochs."""

    parameters: BucketArrayParameters

    @property
    def memory_bits(self) -> int:
        """Buckets, and the 64 hashed steps where they are used; not what the node keeps of instances."""
        step_bits = max(1, (self.parameters.per_instance - 1).bit_length())
        steps = HASHED_STEPS * step_bits if self.parameters.spreading == "hashed-steps" else 0
        return self.parameters.memory_bits + steps


def published_deviation(sizes: FloatArray, *, n: int, m: int, by_chance: bool = True) -> FloatArray:
    """Standard deviation of the published estimate of each instance, from the sizes of all."""
    if not 1 <= m < n:
        raise ParameterError(f"m = {m} of n = {n} buckets", where="iotm sizing", action="use 1 ≤ m < n")
    squares, total = float((sizes**2).sum()), float(sizes.sum())
    variance = squares - sizes**2 + (m * (total - sizes) if by_chance else 0.0)
    return np.sqrt(variance / (n - m))


def predicted_deviations(
    sizes: FloatArray, *, n: int, m: int, spreading: str, epochs: int = 1, change: float = 0.0, draws: int = DRAWS
) -> FloatArray:
    """Standard deviations of jointly decoded totals, draws × instances: the decoder's covariance over drawn arrays."""
    random = np.random.default_rng([n, m, epochs, draws])
    amount = sizes / epochs
    varying = amount + (change * amount) ** 2 if epochs > 1 else np.zeros(len(sizes))
    found = []
    for _ in range(max(2, draws // epochs)):
        information = np.diag(1 / (3 * amount.mean()) ** 2 * np.ones(len(sizes)))
        own, carried = np.zeros_like(information), np.zeros_like(information)
        for _ in range(epochs):
            target = random.integers(0, n, (len(sizes), m))
            shares = shares_of_targets(target, n)
            spread = _spread(target, shares, amount, _chance(spreading, len(sizes), random))
            solved = np.linalg.solve(spread + (shares * varying) @ shares.T, shares)
            information += shares.T @ solved
            gain = (solved * varying).T
            own += np.diag(varying) - gain @ (shares * varying)
            carried += np.eye(len(sizes)) - gain @ shares
        covariance = own + carried @ np.linalg.solve(information, carried.T)
        found.append(np.sqrt(np.maximum(np.diag(covariance), 0.0)))
    return np.array(found)


def shares_of_targets(target: np.ndarray, n: int) -> FloatArray:
    """A: buckets × instances, from the buckets (instances × m) that hash functions name."""
    instances, m = target.shape
    shares = np.zeros((n, instances))
    np.add.at(shares, (target.ravel(), np.repeat(np.arange(instances), m)), 1.0 / m)
    return shares


def _chance(spreading: str, instances: int, random: np.random.Generator) -> FloatArray:
    """1 for instances that choose by chance: all, none, or those that share a hashed step."""
    if spreading == "hashed-steps":
        slot = random.integers(0, HASHED_STEPS, instances)
        return (np.bincount(slot, minlength=HASHED_STEPS)[slot] > 1).astype(np.float64)
    return np.full(instances, 0.0 if spreading == "round-robin" else 1.0)


def _spread(target: np.ndarray, shares: FloatArray, amount: FloatArray, chance: FloatArray) -> FloatArray:
    """The covariance of buckets around A·s: by chance, and of remainders (as `iotm_joint` has it, without ties)."""
    n, m = len(shares), target.shape[1]
    scattered = amount * chance
    spread = np.diag(shares @ scattered) - (shares * scattered) @ shares.T
    left = np.tril(np.ones((m, m)), -1) - np.arange(m)[:, None] / m
    remainder = np.cov(left, rowvar=False, bias=True).reshape(m, m)
    rows = target[chance == 0]
    np.add.at(spread, (rows[:, :, None], rows[:, None, :]), np.broadcast_to(remainder, (len(rows), m, m)))
    slack = 1e-3 * max(1.0, float((shares @ scattered).mean()))
    found: FloatArray = spread + slack * np.eye(n)
    return found


def share_within(relative: FloatArray, error: float) -> float:
    """The share of answers within an error, for normal errors of these relative deviations."""
    return float(np.vectorize(math.erf)(error / (math.sqrt(2) * np.maximum(relative, 1e-12))).mean())


def error_at(relative: FloatArray, share: float) -> float:
    """The error that a share of answers stays below, by bisection."""
    low, high = 0.0, 1e-6
    while share_within(relative, high) < share and high < 1e6:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if share_within(relative, middle) < share else (low, middle)
    return high


def plan_bucket_array(
    workload: Workload,
    *,
    error: float = 0.05,
    confidence: float = 0.95,
    memory_bytes: int | None = None,
    spreading: str = "round-robin",
    epochs: Sequence[int] = EPOCHS,
) -> IotmPlan:
    """The smallest array that keeps the error at the confidence; with a memory, the best that fits it.

    `epochs` are the numbers of epochs that the period may be recorded in.
    """
    if spreading not in SPREADINGS:
        raise ParameterError(
            f"spreading {spreading}", where="iotm sizing", action=f"use one of {', '.join(SPREADINGS)}"
        )
    room = math.inf if memory_bytes is None else 8 * memory_bytes
    counts = sorted({max(3, math.ceil(load * workload.instances)) for load in LOADS})
    plans: list[IotmPlan] = []
    for buckets in counts:
        if buckets * FEWEST_BITS <= room:
            plans += _plans_of(workload, buckets, error, confidence, spreading, epochs)
        if memory_bytes is None and plans and plans[-1].is_kept:
            return plans[-1]
    fitting = [plan for plan in plans if plan.memory_bits <= room]
    if not fitting:
        least = min((plan.memory_bits for plan in plans), default=counts[0] * FEWEST_BITS)
        raise ParameterError(
            f"no array for {workload.instances} instances fits {memory_bytes} bytes",
            where="iotm sizing",
            action=f"give more than {-(-least // 8)} bytes, or use a random spreading",
        )
    return min(fitting, key=lambda plan: (plan.error, plan.memory_bits))


def _plans_of(
    workload: Workload, buckets: int, error: float, confidence: float, spreading: str, candidates: Sequence[int]
) -> list[IotmPlan]:
    """Plans for n buckets with more and more epochs, up to the first that keeps the error."""
    plans: list[IotmPlan] = []
    for epochs in candidates:
        enough = workload.measurements / epochs >= workload.instances and epochs * buckets >= workload.instances
        if enough and not (plans and plans[-1].is_kept):
            plans.append(_plan(workload, buckets, epochs, error, confidence, spreading))
    return plans


def _plan(workload: Workload, buckets: int, epochs: int, error: float, confidence: float, spreading: str) -> IotmPlan:
    """The plan for n buckets and some epochs with the best of a few m, checked if it seems to keep the error."""
    candidates = [m for m in (2, 3, 4, 5) if m < buckets]
    plans = [_predicted(workload, buckets, m, epochs, error, confidence, spreading, DRAWS) for m in candidates]
    best = min(plans, key=lambda plan: plan.error)
    if not best.is_kept:
        return best
    m = best.parameters.per_instance
    return _predicted(workload, buckets, m, epochs, error, confidence, spreading, CHECK_DRAWS)


def _predicted(
    workload: Workload,
    buckets: int,
    m: int,
    epochs: int,
    error: float,
    confidence: float,
    spreading: str,
    draws: int,
) -> IotmPlan:
    sizes = workload.sizes
    deviations = predicted_deviations(
        sizes, n=buckets, m=m, spreading=spreading, epochs=epochs, change=workload.change, draws=draws
    )
    relative = deviations / sizes
    share = share_within(relative, error)
    # A rate above its mean by three deviations still fits; beyond that the array is full before its time, no more.
    busiest = sizes / epochs * (1 + 3 * workload.change if epochs > 1 else 1.0)
    return IotmPlan(
        parameters=BucketArrayParameters(
            buckets=buckets, per_instance=m, bits=_bits(busiest, buckets, m), spreading=spreading
        ),
        epochs=epochs,
        epoch_ns=workload.period_ns // epochs,
        error=error_at(relative, confidence),
        median_error=error_at(relative, 0.5),
        share=share,
        is_kept=share >= confidence,
    )


def _bits(amount: FloatArray, buckets: int, m: int) -> int:
    """Bits that the fullest bucket of an epoch needs, with room for a quarter more."""
    random = np.random.default_rng([buckets, m])
    fullest = [
        float((shares_of_targets(random.integers(0, buckets, (len(amount), m)), buckets) @ amount).max())
        for _ in range(DRAWS)
    ]
    return max(FEWEST_BITS, math.ceil(math.log2(ROOM * max(fullest) + 5 * math.sqrt(max(fullest)) + 2)))
