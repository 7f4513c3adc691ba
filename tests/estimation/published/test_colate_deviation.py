"""Deviations from counter vectors: as published, put right by counts, and with intervals that are true."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.errors import MismatchError
from sojourn.core.estimates import Estimate, Reason
from sojourn.estimation.published.colate_deviation import estimate_centred_deviations, estimate_flow_deviations
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters
from worlds import DELAYS, START_NS, World, recorded, world

PUBLISHED = {"bits": 63, "wrap": False, "origin_ns": START_NS}
COUNTED = {"bits": 56, "count_bits": 20}


def vectors(truth: World, seed: int, **parameters):
    seeds = iter((seed, seed + 1))
    made = CounterVectorParameters(per_flow=20, salt=seed, **parameters)
    return recorded(truth, lambda: CounterVector(made, seed=next(seeds)))


def large_flows(truth: World, smallest: int = 200):
    exact = truth.per_flow
    large = np.flatnonzero((exact.sent >= smallest) & (exact.std_ns > 0))
    return exact.flow_id[large], exact.sent[large], exact.std_ns[large]


def test_theorem_3_changes_nothing() -> None:
    """Plain sums, denoised point by point, and wrapped sums without Theorem 3 give one answer."""
    truth = world(1, delays="per_flow", loss=0)
    flows, sizes, _ = large_flows(truth)
    plain = estimate_flow_deviations(*vectors(truth, 7, counters=3000, **PUBLISHED), flows, sizes)
    wrapped = estimate_flow_deviations(*vectors(truth, 7, counters=3000, bits=64), flows, sizes)
    # Plain sums are some 10¹² ns: a float keeps their difference to about 1 µs.
    np.testing.assert_allclose([a.value for a in plain], [a.value for a in wrapped], rtol=1e-4)


def test_repetitions_approach_the_closed_form() -> None:
    truth = world(2, delays="weibull", loss=0)
    flows, sizes, _ = large_flows(truth)
    pair = vectors(truth, 3, counters=3000, bits=64)
    closed = np.array([a.value for a in estimate_flow_deviations(*pair, flows, sizes)])
    apart = [
        np.median(np.abs(np.array([a.value for a in estimate_flow_deviations(*pair, flows, sizes, repetitions=r)])
                         - closed) / closed.mean())
        for r in (10, 1000)
    ]  # fmt: skip
    assert apart[1] < 0.02
    assert apart[1] < 0.3 * apart[0]


@pytest.mark.parametrize(
    ("estimate", "parameters", "limits"),
    [
        (estimate_flow_deviations, {"counters": 20_000, **PUBLISHED}, (0.90, 0.985)),
        (estimate_flow_deviations, {"counters": 2000, "bits": 64}, (0.90, 0.985)),
        (estimate_flow_deviations, {"counters": 2000, "choice": "random", **PUBLISHED}, (0.98, 1.0)),
        (estimate_centred_deviations, {"counters": 20_000, **COUNTED}, (0.90, 0.98)),
        (estimate_centred_deviations, {"counters": 2000, **COUNTED}, (0.90, 0.985)),
    ],
    ids=["published-roomy", "published-tight", "published-independent", "centred-roomy", "centred-tight"],
)
def test_intervals_cover(estimate, parameters, limits) -> None:
    """Five delay laws × 4 worlds, some 900 flows in all; intervals of flows in one world share counters.

    With 900 independent flows, 90 % instead of 95 % would be 7 standard errors; with a quarter as many, 3.4.
    Independent j: the interval is as wide as time stamps are large, and holds nearly everything.
    """
    inside = []
    for seed, delays in enumerate(list(DELAYS) * 4):
        truth = world(500 + seed, delays=delays, loss=0)
        flows, sizes, true = large_flows(truth)
        answers = estimate(*vectors(truth, seed, **parameters), flows, sizes)
        inside += [a.contains(s) for a, s in zip(answers, true, strict=True)]
    assert len(inside) > 700
    assert limits[0] <= np.mean(inside) <= limits[1]


def test_independent_choice_tells_nothing_and_says_so() -> None:
    truth = world(4, delays="weibull", loss=0)
    flows, sizes, true = large_flows(truth)
    pair = vectors(truth, 5, counters=20_000, choice="random", **PUBLISHED)
    answers = estimate_flow_deviations(*pair, flows, sizes)
    assert all(a.low == 0 and a.high > 100 * s for a, s in zip(answers, true, strict=True))
    assert all("independent j" in a.method for a in answers)


def test_a_flow_alone_has_the_closed_form_and_counts_halve_its_error() -> None:
    """One flow, no strangers, delays of 20 ± 2 ms: (σ² + μ²)/σ² = 101 drowns the published form, not the centred."""
    published, centred = [], []
    for seed in range(40):
        truth = world(seed, delays="gaussian", loss=0, flows=1, packets=2000)
        flows, sizes, true = large_flows(truth)
        pair = vectors(truth, seed, counters=5000, **COUNTED)
        published.append(abs(estimate_flow_deviations(*pair, flows, sizes)[0].value / true[0] - 1))
        centred.append(abs(estimate_centred_deviations(*pair, flows, sizes)[0].value / true[0] - 1))
    assert np.median(published) > 0.9
    assert np.median(centred) < 0.16


def test_losses_leave_the_flow_its_usable_counters() -> None:
    truth = world(6, delays="weibull", loss=0.002)
    flows, sizes, true = large_flows(truth)
    pair = vectors(truth, 8, counters=20_000, **COUNTED)
    for estimate in (estimate_flow_deviations, estimate_centred_deviations):
        answers = estimate(*pair, flows, sizes)
        answered = [(a, s) for a, s in zip(answers, true, strict=True) if isinstance(a, Estimate)]
        assert len(answered) > 0.9 * len(flows)
        assert np.mean([a.contains(s) for a, s in answered]) >= 0.85


def test_what_cannot_be_answered_says_why() -> None:
    counted = CounterVector(CounterVectorParameters(counters=50, per_flow=4, count_bits=8))
    answer = estimate_centred_deviations(counted, counted, np.array([1], np.uint64), np.array([5]))[0]
    assert answer.reason is Reason.NO_USABLE_CELLS
    plain = CounterVectorParameters(counters=50, per_flow=4)
    sender, receiver = CounterVector(plain), CounterVector(plain)
    sender.record(1, 1, 1000)
    answer = estimate_flow_deviations(sender, receiver, np.array([1], np.uint64), np.array([1]))[0]
    assert answer.reason is Reason.NO_USABLE_CELLS
    with pytest.raises(MismatchError, match="need counts"):
        estimate_centred_deviations(sender, receiver, np.array([1], np.uint64), np.array([1]))
