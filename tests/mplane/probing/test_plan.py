"""Means of probed intervals: their 95 % intervals hold the interval's own mean, also where delays are correlated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sojourn.mplane.probing.plan import mean_of

TRIALS = 600


def queue(random: np.random.Generator, load: float) -> np.ndarray:
    """The delay in a queue over one second, every 0.1 ms: it builds up and drains, correlated over tens of ms."""
    arrivals = random.poisson(load * 0.1, 30_000)
    work = np.where(arrivals > 0, random.gamma(np.maximum(arrivals, 1), 1.0), 0.0)
    level = np.cumsum(work - 0.1)
    return (level - np.minimum(np.minimum.accumulate(level), 0))[20_000:] + 1.0


def slow_wander(random: np.random.Generator, load: float) -> np.ndarray:
    """A delay that wanders so slowly that an interval sees one or two swings of it."""
    steps = random.normal(size=2000).cumsum() / math.sqrt(2000)
    return 5 * np.exp(load * (steps - steps.mean()))


@pytest.mark.parametrize(
    ("course", "load", "probes"),
    [(queue, 0.5, 20), (queue, 0.9, 20), (queue, 0.9, 100), (slow_wander, 1.0, 20), (slow_wander, 1.0, 100)],
    ids=["light queue", "full queue", "full queue, many probes", "slow wander", "slow wander, many probes"],
)
def test_intervals_hold_the_mean_of_correlated_delays(course, load: float, probes: int) -> None:
    """95 % nominal; 92 % or more of 600 are asked for, which a true 94 % misses once in 50; seeds are fixed."""
    random = np.random.default_rng(20)
    held = 0
    for _ in range(TRIALS):
        delay = course(random, load)
        seen = delay[random.integers(0, len(delay), max(random.poisson(probes), 3))]
        estimate = mean_of(seen)
        held += estimate.contains(delay.mean())
    assert held / TRIALS >= 0.92


def test_skewness_is_taken_out() -> None:
    """Student's interval misses the mean of skewed delays too often; the transformed one does not."""
    random = np.random.default_rng(21)
    student = held = 0
    for _ in range(TRIALS):
        delays = random.gamma(0.3, 1 / 0.3, 20)
        half = 2.093 * delays.std(ddof=1) / math.sqrt(20)
        student += abs(delays.mean() - 1) <= half
        held += mean_of(delays).contains(1.0)
    assert student / TRIALS < 0.9 < held / TRIALS


def test_few_or_equal_delays() -> None:
    assert mean_of(np.empty(0)) is None
    assert mean_of(np.array([5.0, 7.0])).high == math.inf
    still = mean_of(np.full(9, 4.0))
    assert (still.low, still.value, still.high, still.samples) == (4.0, 4.0, 4.0, 9)
