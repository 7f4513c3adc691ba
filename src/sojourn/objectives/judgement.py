"""Three-valued judgement of an answer by its own interval: met, violated, or undecided.

A condition is *violated* where the interval lies wholly on the bad side of its limit, *met* where it lies wholly on the
good side, and *undecided* where the limit is inside, or there is no answer. So a violation is raised and cleared by the
interval itself: between the two nothing changes.

**False alarms.** An evaluation looks at many instances and conditions at once. With a stated rate α for all of them
together, each of T tests is made at α/T, one-sided (Bonferroni): whatever the dependence between instances, an
evaluation raises something that is not so with probability α at most, also where every true value is exactly at its
limit. The intervals of answers are 95 % ones; at another level a side is as wide as Student's quantiles with `DEGREES`
of freedom say: they have heavier tails than the normal's, which intervals made of estimated variances need.

**Loss** is judged as the rate that packets are lost at: Clopper and Pearson's interval of the counted packets, exact
for independent losses. Where the count itself is not exact, each bound is that of its own bound.

**Change.** Of two independent answers the difference has the distances of both to their bounds, squared and added, each
side by itself (Zou and Donner).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

from sojourn.core.estimates import Estimate
from sojourn.objectives.condition import Condition

# Of Student's t, by which intervals are widened: chosen in simulated epochs (docs/commands/objective.md).
DEGREES = 10


class State(StrEnum):
    """What an answer says of a condition."""

    MET = "met"
    VIOLATED = "violated"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class LossCount:
    """Packets lost of those sent; ``low`` and ``high`` where the number is not exact."""

    lost: float
    low: float
    high: float
    sent: int

    def at(self, alarm: float) -> Estimate:
        """The rate of loss, of which either bound is wrong with probability `alarm` at most."""
        from scipy.special import betaincinv

        low, high = (min(max(count, 0.0), self.sent) for count in (self.low, self.high))
        lower = 0.0 if low <= 0 else float(betaincinv(low, self.sent - low + 1, alarm))
        upper = 1.0 if high >= self.sent else float(betaincinv(high + 1, self.sent - high, 1 - alarm))
        value = min(max(self.lost / self.sent, lower), upper)
        return Estimate(value, lower, upper, self.sent, "count", "share", 1 - 2 * alarm)


@dataclass(frozen=True, slots=True)
class Bounded:
    """An estimate, and bounds that the truth is within for certain."""

    estimate: Estimate
    least: float
    most: float


Evidence: TypeAlias = Estimate | LossCount | Bounded


def alarm_of_each(false_alarms: float, tests: int) -> float:
    """The rate of false alarms of one of so many tests, for a rate of all of them together."""
    return false_alarms / max(tests, 1)


@lru_cache(maxsize=4096)
def _widening(level: float, alarm: float) -> float:
    """How many times as wide as an interval of a level one is of which either bound is wrong at a rate."""
    from scipy.special import stdtrit

    return float(stdtrit(DEGREES, 1 - alarm) / stdtrit(DEGREES, (1 + level) / 2))


def widened(evidence: Evidence, alarm: float) -> Estimate:
    """The estimate with an interval of which either bound is wrong with probability `alarm` at most."""
    if isinstance(evidence, LossCount):
        return evidence.at(alarm)
    if isinstance(evidence, Bounded):
        found = widened(evidence.estimate, alarm)
        low = min(max(found.low, evidence.least), found.value)
        return replace(found, low=low, high=max(min(found.high, evidence.most), found.value))
    times = _widening(evidence.level, alarm)
    low = evidence.value - times * (evidence.value - evidence.low)
    high = evidence.value + times * (evidence.high - evidence.value)
    return replace(evidence, low=low, high=high, level=1 - 2 * alarm)


def difference(now: Estimate, before: Estimate) -> Estimate:
    """How far one answer lies above another."""
    value = now.value - before.value
    below = math.hypot(now.value - now.low, before.high - before.value)
    above = math.hypot(now.high - now.value, before.value - before.low)
    return replace(now, value=value, low=value - below, high=value + above, samples=min(now.samples, before.samples))


def judge(condition: Condition, estimate: Estimate | None) -> State:
    """What an interval says of a condition; nothing is known without one.

    >>> from sojourn.objectives.condition import parse_condition
    >>> judge(parse_condition("mean < 10ms"), Estimate(12e6, 9e6, 15e6, 5, "lda")).value
    'undecided'
    """
    if estimate is None:
        return State.UNDECIDED
    low, high = (estimate.low, estimate.high) if not condition.above else (-estimate.high, -estimate.low)
    limit = -condition.limit if condition.above else condition.limit
    if low > limit:
        return State.VIOLATED
    return State.MET if high <= limit else State.UNDECIDED


def decide(
    condition: Condition, now: Evidence | None, before: Evidence | None, alarm: float
) -> tuple[State, Estimate | None]:
    """The state of a condition, and the value and interval that it rests on."""
    if now is None or (condition.is_change and before is None):
        return State.UNDECIDED, None
    found = widened(now, alarm)
    if condition.is_change:
        assert before is not None
        found = difference(found, widened(before, alarm))
    return judge(condition, found), found
