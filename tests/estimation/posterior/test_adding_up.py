"""Flows add up to the whole: the distribution they share is moved to it as far as it may be off, large flows, too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sojourn.core.arrays import FloatArray
from sojourn.estimation.posterior.adding_up import ADDED_FLOWS, added_up
from sojourn.estimation.posterior.components import FlowPrior
from sojourn.estimation.posterior.evidence import Evidence, Whole
from sojourn.estimation.posterior.hierarchy import posterior_under


def prior_of(mean: float, *, apart: float, variance: float) -> FlowPrior:
    """Flows around a mean, log-normally; one packet's variance in units of the mean's square."""
    z = np.linspace(-3, 3, 24)
    centre = mean * np.exp(apart * z)
    weight = np.exp(-0.5 * z**2)
    width = 0.6 * (z[1] - z[0]) * apart * centre
    return FlowPrior(weight / weight.sum(), centre, width**2, variance * centre**2, 0.0, 0.0, is_log=True)


def world(
    *, seed: int, size: FloatArray, sampled: int, variance: float, apart: float = 0.2
) -> tuple[FloatArray, Evidence]:
    """Flows' realised means, of which so many packets each are sampled."""
    random = np.random.default_rng(seed)
    shape = 1 / variance
    mean = 5e6 * random.lognormal(-(apart**2) / 2, apart, len(size))
    true = mean * random.gamma(shape * size, 1 / (shape * size))
    some = np.minimum(float(sampled), size)
    means = mean * random.gamma(shape * some, 1 / (shape * some))
    nothing = np.zeros(len(size))
    squares = variance * mean**2 * np.maximum(some - 1, 0)
    return true, Evidence(nothing, nothing, np.where(some > 0, means, 0.0), some, squares, size)


def whole_of(true: FloatArray, size: FloatArray, off: float = 0.01) -> Whole:
    mean = float(np.average(true, weights=size))
    return Whole(mean, (off * mean) ** 2)


@pytest.mark.parametrize("wrong", [0.6, 0.8, 1.25, 1.6])
@pytest.mark.parametrize("flows", [500, 3 * ADDED_FLOWS])
def test_a_distribution_that_is_off_for_all_flows_is_moved_to_the_whole(wrong: float, flows: int) -> None:
    size = np.full(flows, 80.0)
    true, evidence = world(seed=1, size=size, sampled=1, variance=4.0)
    prior = prior_of(wrong * 5e6, apart=0.2, variance=4.0)
    moved, told = added_up(prior, replace(evidence, whole=whole_of(true, size)))
    before, after = (posterior_under(one, told).mean for one in (prior, moved))
    assert abs(np.average(after) / np.average(true) - 1) < 0.12
    assert np.median(np.abs(after / true - 1)) < (0.6 if abs(np.log(wrong)) > 0.3 else 0.95) * np.median(
        np.abs(before / true - 1)
    )


def test_what_flows_know_by_themselves_is_not_moved() -> None:
    """Means of 60 packets have no shape to be wrong about: the whole, 10 % off, tells nothing that they do not."""
    size = np.full(400, 80.0)
    true, evidence = world(seed=2, size=size, sampled=60, variance=1.0)
    prior = prior_of(5e6, apart=0.2, variance=1.0)
    high = whole_of(1.1 * true, size, off=0.001)
    moved, told = added_up(prior, replace(evidence, whole=high))
    before, after = posterior_under(prior, evidence), posterior_under(moved, told)
    assert np.median(np.abs(after.mean / before.mean - 1)) < 0.01
    assert np.median((after.high - after.low) / (before.high - before.low)) < 1.1


def test_a_flow_with_most_packets_is_what_the_others_leave_of_the_whole() -> None:
    """Ten times slower than the others, and known by a few packets: it would be drawn to them by a factor."""
    size = np.append(np.full(400, 60.0), 200_000.0)
    true, evidence = world(seed=3, size=size, sampled=6, variance=4.0)
    slow = np.append(np.ones(400), 10.0)
    true, evidence = true * slow, replace(evidence, sampled=evidence.sampled * slow, squares=evidence.squares * slow**2)
    prior = prior_of(5e6, apart=0.5, variance=4.0)
    moved, told = added_up(prior, replace(evidence, whole=whole_of(true, size)))
    alone, found = posterior_under(prior, evidence), posterior_under(moved, told)
    assert alone.mean[-1] < 0.6 * true[-1]
    assert found.mean[-1] == pytest.approx(true[-1], rel=0.06)
    assert found.low[-1] <= true[-1] <= found.high[-1]
    assert np.median(np.abs(found.mean / alone.mean - 1)[:-1]) < 0.1


def test_without_a_whole_or_with_delays_that_are_not_positive_nothing_is_moved() -> None:
    size = np.full(100, 50.0)
    true, evidence = world(seed=4, size=size, sampled=1, variance=1.0)
    prior = prior_of(5e6, apart=0.2, variance=1.0)
    assert added_up(prior, evidence) == (prior, evidence)
    told = replace(evidence, whole=whole_of(true, size))
    linear = prior._replace(is_log=False)
    assert added_up(linear, told) == (linear, told)
