"""Clocks that tick every ten milliseconds show most delays as none at all: nothing is known exactly for that."""

from __future__ import annotations

import numpy as np
import pytest
from bench.auto.trial import Drawn, answered
from bench.auto.worlds import DELAYS, World

from sojourn.core.arrays import FloatArray
from sojourn.estimation.sample import moderated

TICK_NS = 10_000_000


def ticks(random: np.random.Generator, mean: FloatArray) -> FloatArray:
    return np.floor(mean * random.gamma(4.0, 0.25, len(mean)) / TICK_NS) * TICK_NS


@pytest.mark.parametrize(("memory", "lost"), [(32_000, 0.002), (128_000, 0.002), (128_000, 0.01)])
def test_delays_of_no_time_are_no_proof_of_a_mean(memory: int, lost: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some 90 flows per world that claimed a mean to 2 ns, one half to all were wrong."""
    monkeypatch.setitem(DELAYS, "quantised", ticks)
    drawn = Drawn.of(World(name="coarse", flows=3_000, packets=300_000, delays="quantised", lost=lost), 0)
    flows, _ = answered(drawn.plan("auto", memory, 0), drawn.traffic)
    truth = drawn.traffic.truth
    known = flows.answered & (truth.received > 0)
    sharp = known & (flows.high_ns - flows.low_ns <= 2)
    np.testing.assert_allclose(flows.mean_ns[sharp], truth.mean_ns[sharp], rtol=1e-6, atol=1)
    posterior = known & ~sharp
    held = (flows.low_ns - 1 <= truth.mean_ns) & (truth.mean_ns <= flows.high_ns + 1)
    assert held[posterior].mean() > 0.9
    assert flows.mean_ns[known & (flows.samples > 0)].min() >= 0


def test_samples_that_took_no_time_vary_as_others_do() -> None:
    mean = np.array([0.0, 2e6, 2e6, 2e6])
    variance, _ = moderated(np.array([0.0, 1e12, 0.0, 0.0]), np.full(4, 3.0), mean)
    assert variance[0] == pytest.approx((1.5e6) ** 2 / 4e12 * variance[1])
    assert variance[0] > 1e9
