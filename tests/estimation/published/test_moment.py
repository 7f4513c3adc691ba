"""The moment estimator and IoTm: unbiased, with intervals that cover; quantiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.errors import MismatchError
from sojourn.core.estimates import Answer, Estimate, Reason, student_95
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.published.iotm import estimate_sums
from sojourn.estimation.published.moment import SharedCounters, ratio_of
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

PROCESSES = np.arange(1, 11, dtype=np.uint64)


@given(st.lists(st.integers(-(10**6), 10**6), min_size=4, max_size=30), st.data())
def test_the_sum_is_theorem_2(values: list[int], data) -> None:
    own = data.draw(st.sets(st.integers(0, len(values) - 1), min_size=1, max_size=len(values) - 2))
    n, m, total = len(values), len(own), sum(values)
    theorem = (n * sum(values[i] for i in own) - m * total) / (n - m)
    value, half = SharedCounters(np.array(values)).sum_of(np.array(sorted(own)))
    assert value == pytest.approx(theorem, abs=1e-6 * (1 + abs(total)))
    others = [values[i] for i in range(n) if i not in own]
    spread = np.std(others, ddof=1) * np.sqrt(m + m**2 / (n - m))
    assert half == pytest.approx(student_95(n - m - 1) * spread, rel=1e-6, abs=1e-5 * max(map(abs, values)) + 1e-9)


def disk_io(seed: int, **parameters) -> tuple[BucketArray, np.ndarray, np.ndarray]:
    """Ten skewed processes; the sums and means of their IO sizes."""
    random = np.random.default_rng(seed)
    process = random.choice(10, 5000, p=np.arange(1, 11) / 55)
    value = random.integers(1, 20, 5000)
    sketch = BucketArray(BucketArrayParameters(salt=seed, bits=32, spreading="random", **parameters), seed=seed)
    sketch.record_batch(MeasurementBatch.of(PROCESSES[process], value, np.arange(5000)))
    sums = np.bincount(process, value, 10)
    return sketch, sums, sums / np.bincount(process, minlength=10)


def moment_means(sketch: BucketArray, instance_id: np.ndarray) -> list[Answer]:
    p = sketch.parameters
    shared = SharedCounters(sketch.column("sum"), sketch.column("count"))
    own = bucket_matrix(instance_id, p.function_salts, np.uint64(p.buckets))
    return [ratio_of(*shared.sums_of(np.unique(row)), unit="operations", method="moments") for row in own]


@pytest.mark.parametrize("buckets", [20, 400])
def test_sum_intervals_cover(buckets: int) -> None:
    """200 runs × 10 processes; 95 % intervals, at least 90 %: false alarm below 10⁻³."""
    inside = []
    for seed in range(200):
        sketch, sums, _ = disk_io(seed, buckets=buckets, per_instance=5)
        answers = estimate_sums(sketch, PROCESSES, unit="operations")
        inside += [a.contains(s) for a, s in zip(answers, sums, strict=True)]
    assert np.mean(inside) >= 0.90


def test_the_sum_is_unbiased_over_salts() -> None:
    """Within 4 standard errors of the truth over 300 epochs: false alarm below 10⁻⁴ per process."""
    relative = []
    for seed in range(300):
        sketch, sums, _ = disk_io(seed, buckets=40, per_instance=5)
        relative.append([a.value for a in estimate_sums(sketch, PROCESSES, unit="operations")] - sums)
    error = np.array(relative)
    assert (np.abs(error.mean(axis=0)) < 4 * error.std(axis=0) / np.sqrt(len(error))).all()


def test_mean_intervals_cover_those_who_are_heard() -> None:
    inside = []
    for seed in range(60):
        sketch, _, means = disk_io(seed, buckets=400, per_instance=5, count_bits=16)
        answers = moment_means(sketch, PROCESSES)
        inside += [a.contains(m) for a, m in zip(answers, means, strict=True) if isinstance(a, Estimate)]
    assert len(inside) > 300
    assert np.mean(inside) >= 0.90


def test_a_mean_needs_counts() -> None:
    sketch, _, _ = disk_io(0, buckets=20, per_instance=5)
    with pytest.raises(MismatchError, match="no field count"):
        moment_means(sketch, PROCESSES)


def test_a_stranger_is_lost_in_noise_and_an_empty_array_says_so() -> None:
    sketch, _, _ = disk_io(0, buckets=400, per_instance=5, count_bits=16)
    assert moment_means(sketch, np.array([12345], np.uint64))[0].reason is Reason.LOST_IN_NOISE
    empty = BucketArray(BucketArrayParameters(buckets=20, per_instance=5))
    assert estimate_sums(empty, PROCESSES, unit="x")[0].reason is Reason.NOTHING_RECORDED


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042)])
def test_student_quantiles(degrees: int, quantile: float) -> None:
    assert student_95(degrees) == pytest.approx(quantile, rel=0.01)
