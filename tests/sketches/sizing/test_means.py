"""Epochs planned for means: more salts help, and the promise is what queues of that kind give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.errors import ParameterError
from sojourn.core.estimates import Estimate
from sojourn.estimation.buckets.queries import estimate_means_jointly
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.sizing.means import SHORTEST_NS, Variation, plan_epochs, predicted_mean_deviations

SECOND = 1_000_000_000
SIZES = 80.0 * np.arange(1, 31)


def test_the_variance_of_values_is_shared_out_between_epochs_and_values() -> None:
    variation = Variation(values=1.5, alike_ns=SECOND)
    for epoch_ns in (1, SECOND // 10, SECOND, 100 * SECOND):
        drift, values = variation.of_epochs(epoch_ns)
        assert drift + values == pytest.approx(1.5**2)
    assert variation.of_epochs(1)[0] == pytest.approx(1.5**2, rel=1e-3)
    # Of an average over t ≫ T there are t/2T independent values.
    assert variation.of_epochs(100 * SECOND)[0] == pytest.approx(1.5**2 * 2 / 100, rel=0.02)


def test_more_epochs_with_salts_of_their_own_are_better_and_longer_questions_too() -> None:
    options = {"n": 20, "m": 5, "variation": Variation(values=1.5)}
    median = {
        (seconds, epochs): np.median(
            predicted_mean_deviations(SIZES * seconds / 40, epochs=epochs, period_ns=seconds * SECOND, **options)
        )
        for seconds, epochs in ((40, 16), (40, 160), (400, 160))
    }
    assert median[40, 160] < median[40, 16]
    assert median[400, 160] < median[40, 160]


def test_a_plan_takes_the_fewest_epochs_that_keep_the_error() -> None:
    easy = plan_epochs(SIZES, 40 * SECOND, n=100, m=3, variation=Variation(values=0.3), error=0.3)
    hard = plan_epochs(SIZES, 40 * SECOND, n=20, m=5, variation=Variation(values=1.5), error=0.07)
    assert easy.is_kept
    assert easy.share >= 0.95
    assert not hard.is_kept
    assert easy.epochs < hard.epochs
    assert hard.epoch_ns >= SHORTEST_NS


def test_queues_like_those_planned_for_give_what_was_promised() -> None:
    """Two worlds of 30 flows, values by an Ornstein–Uhlenbeck process in logarithms: 60 answers."""
    variation = Variation(values=1.0, alike_ns=SECOND // 2, between=0.5)
    plan = plan_epochs(SIZES, 40 * SECOND, n=20, m=5, variation=variation, error=0.07, confidence=0.6)
    errors = np.concatenate([_errors(seed, plan.epochs, variation) for seed in (3, 4)])
    assert np.mean(errors <= 0.07) == pytest.approx(plan.share, abs=0.2)
    assert np.median(errors) == pytest.approx(plan.median_error, rel=0.6)


def _errors(seed: int, epochs: int, variation: Variation) -> np.ndarray:
    random = np.random.default_rng([seed, 63])
    ids = random.integers(1, 2**63, len(SIZES), dtype=np.uint64)
    mean = 1e7 * random.lognormal(0, variation.between, len(SIZES))
    flow, second, value = [], [], []
    for f, size in enumerate(SIZES):
        at = np.sort(random.uniform(0, 40, random.poisson(size)))
        stays = np.exp(-np.diff(at, prepend=-100.0) * SECOND / variation.alike_ns)
        state, spread = np.zeros(len(at)), math.sqrt(math.log(1 + variation.values**2))
        for i in range(len(at)):
            state[i] = (state[i - 1] * stays[i] if i else 0.0) + math.sqrt(1 - stays[i] ** 2) * random.normal()
        flow.append(np.full(len(at), f))
        second.append(at)
        value.append(mean[f] * np.exp(spread * state - spread**2 / 2))
    who, at, took = np.concatenate(flow), np.concatenate(second), np.concatenate(value).astype(np.int64)
    slot, arrays = (at / 40 * epochs).astype(int), []
    for epoch in range(epochs):
        rows = np.flatnonzero(slot == epoch)
        rows = rows[np.argsort(at[rows])]
        parameters = BucketArrayParameters(buckets=20, per_instance=5, bits=48, count_bits=24, salt=epoch)
        array = BucketArray(parameters)
        array.record_batch(MeasurementBatch.of(ids[who[rows]], took[rows], (1e9 * at[rows]).astype(np.int64)))
        arrays.append(array)
    answers = estimate_means_jointly(arrays, ids, unit="ns")
    truth = np.bincount(who, took) / np.bincount(who)
    pairs = zip(answers, truth, strict=True)
    return np.array([abs(a.value / t - 1) if isinstance(a, Estimate) else 1.0 for a, t in pairs])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 20, "m": 30}, "30 for each"),
        ({"n": 20, "m": 5, "period_ns": 5}, "a period of 5 ns"),
    ],
)
def test_what_cannot_be_planned_is_said(options, words: str) -> None:
    period_ns = options.pop("period_ns", SECOND)
    with pytest.raises(ParameterError, match=words):
        plan_epochs(SIZES, period_ns, **options)


def test_a_variation_is_checked() -> None:
    with pytest.raises(ParameterError, match="variation"):
        Variation(values=float("nan"))
