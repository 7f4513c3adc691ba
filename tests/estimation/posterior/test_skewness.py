"""The shape of delays, told by their logarithms, and what it says of means of a few."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sojourn.core.arrays import FloatArray
from sojourn.estimation.posterior.evidence import Evidence, Logarithms
from sojourn.estimation.posterior.skewness import LOG_NORMAL, LogShape, log_shape, of_logarithm

Draw = Callable[[np.random.Generator, int], FloatArray]
FLOWS = 20_000
SHAPES: dict[str, tuple[Draw, float]] = {
    "log-normal": (lambda random, n: random.lognormal(-0.32, 0.8, n), float(np.expm1(0.64))),
    "exponential": (lambda random, n: random.exponential(1.0, n), 1.0),
    "weibull 0.5": (lambda random, n: random.weibull(0.5, n) / 2, 5.0),
    "gamma 0.3": (lambda random, n: random.gamma(0.3, 1 / 0.3, n), 1 / 0.3),
    "pareto 2.5": (lambda random, n: (random.pareto(2.5, n) + 1) * 0.6, 0.8),
}


def drawn(kind: str, n: int, seed: int = 1) -> tuple[FloatArray, Evidence]:
    """Delays of flows, n of each, and what a sample of them tells."""
    draw, _ = SHAPES[kind]
    delays = 3e6 * draw(np.random.default_rng(seed), FLOWS * n).reshape(FLOWS, n)
    logs, nothing = np.log(delays), np.zeros(FLOWS)
    squares = n * delays.var(axis=1)
    evidence = Evidence(nothing, nothing, delays.mean(axis=1), np.full(FLOWS, float(n)), squares, np.full(FLOWS, 1e4))
    return delays, Evidence(**(vars(evidence) | {"logs": Logarithms(logs.mean(axis=1), n * logs.var(axis=1))}))


@pytest.mark.parametrize("kind", SHAPES)
def test_the_shape_is_told_by_two_packets_of_each_flow(kind: str) -> None:
    """Variance and mean of one packet's logarithm, given the variance of delays, against those of all packets."""
    relative = SHAPES[kind][1]
    delays, evidence = drawn(kind, 2)
    shape = log_shape(evidence, np.full(FLOWS, relative))
    usual = np.log1p(relative)
    assert shape.spread * usual == pytest.approx(np.log(delays).var(), rel=0.05)
    assert shape.offset * usual == pytest.approx(-2 * np.log(delays / 3e6).mean(), rel=0.25)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", SHAPES)
def test_means_of_a_few_packets_are_as_skewed_as_it_says(kind: str, n: int) -> None:
    """The logarithm of n packets' mean: its variance within a third, and how far it lies below within a ninth of the
    deviation."""
    relative = SHAPES[kind][1]
    shape = log_shape(drawn(kind, 3)[1], np.full(FLOWS, relative))
    logs = np.log(drawn(kind, n, seed=2)[0].mean(axis=1) / 3e6)
    noise = relative / n
    variance, below = of_logarithm.py_func(noise, noise, relative, 1 / n, 1.0, shape)
    assert variance == pytest.approx(logs.var(), rel=0.33)
    assert -0.5 * below == pytest.approx(logs.mean(), abs=0.12 * logs.std() + 0.005)


def test_without_logarithms_or_with_few_flows_delays_are_taken_for_log_normal() -> None:
    _, evidence = drawn("exponential", 2)
    assert log_shape(Evidence(**(vars(evidence) | {"logs": None})), np.ones(FLOWS)) == LOG_NORMAL
    assert log_shape(evidence.select(np.arange(4)), np.ones(4)) == LOG_NORMAL
    assert log_shape(evidence, np.zeros(FLOWS)) == LOG_NORMAL


def test_log_normal_delays_are_themselves() -> None:
    variance, below = of_logarithm.py_func(0.5, 0.4, 0.8, 0.5, 1.0, LogShape(1.0, 1.0))
    assert variance == below == pytest.approx(np.log1p(0.5))
