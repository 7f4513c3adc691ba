"""Sizing of bucket arrays: the derived errors are those of recorded and decoded arrays, and the best m is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.errors import ParameterError
from sojourn.estimation.buckets.joint import estimate_sums_jointly
from sojourn.estimation.published.iotm import estimate_sums
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.sizing.iotm import (
    Workload,
    error_at,
    plan_bucket_array,
    predicted_deviations,
    published_deviation,
)

MINUTES_10 = 600 * 10**9


def recorded(parameters: BucketArrayParameters, sizes, *, seed: int, epochs: int = 1, change: float = 0.0):
    """Arrays of processes that measure ones, their ids and true totals."""
    random = np.random.default_rng([seed, 31])
    ids = random.integers(0, 2**64, len(sizes), dtype=np.uint64)
    arrays, truth = [], np.zeros(len(sizes))
    for e in range(epochs):
        rate = random.gamma(1 / change**2, change**2, len(sizes)) if change and epochs > 1 else 1.0
        count = random.poisson(sizes / epochs * rate)
        process = random.permutation(np.repeat(np.arange(len(sizes)), count))
        array = BucketArray(replace(parameters, salt=1000 * seed + e), seed=seed + e)
        batch = MeasurementBatch.of(ids[process], np.ones(len(process), np.int64), np.arange(len(process)))
        assert array.record_batch(batch) == len(process)
        arrays.append(array)
        truth += count
    return arrays, ids, truth


def simulated_errors(parameters: BucketArrayParameters, sizes, *, runs: int, **options) -> np.ndarray:
    """Relative errors of joint decoding, runs × instances."""
    errors = []
    for seed in range(runs):
        arrays, ids, truth = recorded(parameters, sizes, seed=seed, **options)
        answers = estimate_sums_jointly(arrays, ids, unit="x")
        errors.append([abs(a.value - t) / max(t, 1) for a, t in zip(answers, truth, strict=True)])
    return np.array(errors)


@pytest.mark.parametrize("m", [1, 5])
def test_the_published_error_is_derived(m: int) -> None:
    """400 arrays: the root mean square error within 12 % of the derived one (standard error about 3 %)."""
    sizes = Workload(instances=10, rate=10, period_ns=MINUTES_10).sizes
    parameters = BucketArrayParameters(buckets=40, per_instance=m, bits=32, spreading="random")
    squares = []
    for seed in range(400):
        (array,), ids, truth = recorded(parameters, sizes, seed=seed)
        squares.append([(a.value - t) ** 2 for a, t in zip(estimate_sums(array, ids, unit="x"), truth, strict=True)])
    found = np.sqrt(np.mean(squares, axis=0))
    assert found == pytest.approx(published_deviation(sizes, n=40, m=m), rel=0.12)


def test_the_published_error_is_least_with_one_bucket_each() -> None:
    sizes = np.array([100.0, 50, 10])
    errors = [published_deviation(sizes, n=20, m=m)[0] for m in (1, 2, 5, 10)]
    assert errors == sorted(errors)


@pytest.mark.parametrize("spreading", ["random", "round-robin"])
def test_the_joint_error_is_derived(spreading: str) -> None:
    """Simulated medians within a quarter of the derived ones, for three m."""
    sizes = Workload(instances=10, rate=50, period_ns=MINUTES_10).sizes
    for m in (3, 5, 8):
        parameters = BucketArrayParameters(buckets=20, per_instance=m, bits=32, spreading=spreading)
        found = np.median(simulated_errors(parameters, sizes, runs=40))
        derived = error_at(predicted_deviations(sizes, n=20, m=m, spreading=spreading, draws=100) / sizes, 0.5)
        assert found == pytest.approx(derived, rel=0.25)


@pytest.mark.parametrize(("spreading", "instances", "buckets"), [("round-robin", 10, 20), ("random", 15, 20)])
def test_the_best_m_is_best_in_simulation(spreading: str, instances: int, buckets: int) -> None:
    """The error that 90 % of answers stay below is at most 1.3 times that of any other m in 60 runs."""
    sizes = Workload(instances=instances, rate=50, period_ns=MINUTES_10).sizes
    derived = {
        m: error_at(predicted_deviations(sizes, n=buckets, m=m, spreading=spreading) / sizes, 0.9) for m in range(1, 11)
    }
    best = min(derived, key=lambda m: derived[m])
    assert 2 <= best <= 5
    errors = {}
    for m in (1, 2, best, 8):
        parameters = BucketArrayParameters(buckets=buckets, per_instance=m, bits=32, spreading=spreading)
        errors[m] = np.quantile(simulated_errors(parameters, sizes, runs=60), 0.9)
    assert errors[best] <= 1.3 * min(errors.values())
    assert errors[1] > 3 * errors[best]


@pytest.mark.parametrize(
    ("instances", "options"),
    [
        (10, {}),
        (10, {"error": 0.01}),
        (30, {}),
        (10, {"spreading": "random", "error": 0.1}),
        (12, {"spreading": "hashed-steps"}),
    ],
    ids=str,
)
def test_a_plan_keeps_what_it_promises(instances: int, options) -> None:
    """30 runs: the share of answers within the error at least the confidence less 4 %."""
    workload = Workload(instances=instances, rate=60, period_ns=MINUTES_10)
    plan = plan_bucket_array(workload, **options)
    assert plan.is_kept
    errors = simulated_errors(plan.parameters, workload.sizes, runs=30, epochs=plan.epochs, change=workload.change)
    assert (errors <= options.get("error", 0.05)).mean() >= 0.91


def test_a_memory_is_kept_and_buys_less_than_more_of_it() -> None:
    workload = Workload(instances=20, rate=100, period_ns=MINUTES_10)
    small, large = (plan_bucket_array(workload, memory_bytes=size) for size in (30, 90))
    assert small.memory_bits <= 240
    assert large.memory_bits <= 720
    assert large.error < small.error


def test_steady_instances_may_outnumber_buckets() -> None:
    steady = plan_bucket_array(Workload(instances=40, rate=500, period_ns=MINUTES_10, change=0), error=0.1)
    changing = plan_bucket_array(Workload(instances=40, rate=500, period_ns=MINUTES_10, change=1), error=0.1)
    assert steady.parameters.buckets < 40 <= changing.parameters.buckets
    assert steady.epochs > 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"instances": 0}, "0 instances"),
        ({"rate": float("nan")}, "nan measurements"),
        ({"rate": 1e-9}, "at least one for each"),
        ({"tail": 0.1}, "tail 0.1"),
        ({"change": -1}, "change -1"),
    ],
)
def test_a_workload_is_checked(wrong, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Workload(**{"instances": 5, "rate": 10.0, "period_ns": MINUTES_10, **wrong})


def test_what_cannot_be_sized_is_said() -> None:
    workload = Workload(instances=50, rate=100, period_ns=MINUTES_10)
    with pytest.raises(ParameterError, match="fits 2 bytes"):
        plan_bucket_array(workload, memory_bytes=2)
    with pytest.raises(ParameterError, match="spreading x"):
        plan_bucket_array(workload, spreading="x")
    with pytest.raises(ParameterError, match="m = 20 of n = 20"):
        published_deviation(workload.sizes, n=20, m=20)
