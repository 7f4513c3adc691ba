"""IoTm decoded jointly: small errors, intervals that cover, in worlds that it was not tuned to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from iotm_worlds import disk_world
from sojourn.core.arrays import MeasurementBatch
from sojourn.core.errors import MismatchError, ParameterError
from sojourn.core.estimates import Reason
from sojourn.estimation.buckets import equations, joint, work_memory
from sojourn.estimation.buckets.equations import equations_of, shares_of
from sojourn.estimation.buckets.joint import decode_amounts, estimate_sums_jointly
from sojourn.estimation.buckets.whitening import SHARED
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters


def decoded(runs: int, **options) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors and whether intervals cover, runs × processes."""
    errors, covers = [], []
    for seed in range(runs):
        world = disk_world(seed, **options)
        answers = estimate_sums_jointly(world.epochs, world.ids, unit="operations")
        errors.append([abs(a.value - t) / t for a, t in zip(answers, world.total, strict=True)])
        covers.append([a.contains(t) for a, t in zip(answers, world.total, strict=True)])
    return np.array(errors), np.array(covers)


@pytest.mark.parametrize("sizes", ["zipf", "lognormal", "linear"])
def test_turns_put_all_ten_processes_within_5_per_cent(sizes: str) -> None:
    """n = 20, m = 5, b = 16 as published; in at least 95 % of 100 runs (98 % expected: false alarm below 2 %)."""
    errors, covers = decoded(100, sizes=sizes, spreading="round-robin")
    assert (errors <= 0.05).all(axis=1).mean() >= 0.95
    assert 0.90 <= covers.mean() <= 0.98


@pytest.mark.parametrize("sizes", ["zipf", "lognormal"])
def test_chance_leaves_a_median_error_of_3_per_cent(sizes: str) -> None:
    """1000 answers; the median lies about 2.3 % ± 0.1 %: false alarm below 10⁻⁴."""
    errors, covers = decoded(100, sizes=sizes, spreading="random")
    assert np.median(errors) <= 0.03
    assert 0.90 <= covers.mean() <= 0.98


def test_hashed_steps_lie_between() -> None:
    errors, covers = decoded(60, spreading="hashed-steps")
    assert np.median(errors) <= 0.005
    assert covers.mean() >= 0.90


@pytest.mark.parametrize("spreading", ["random", "round-robin"])
def test_values_other_than_one_widen_the_intervals(spreading: str) -> None:
    """600 answers, correlated within a run: below 90 % with a probability under 10⁻²."""
    errors, covers = decoded(60, spreading=spreading, largest=19, bits=32)
    assert np.median(errors) <= 0.06
    assert 0.90 <= covers.mean() <= 0.98


@pytest.mark.parametrize("burst", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("spreading", ["random", "round-robin"])
def test_salted_epochs_answer_for_each_and_for_all(spreading: str, burst: float) -> None:
    """8 runs × 10 epochs × 30 processes in 20 buckets, steady and in bursts."""
    inside, total_inside = [], []
    for seed in range(8):
        world = disk_world(seed, sizes="lognormal", processes=30, epochs=10, burst=burst, spreading=spreading)
        amounts = decode_amounts(world.epochs, world.ids)
        inside.append(np.abs(amounts.by_epoch - world.by_epoch) <= 1.96 * amounts.deviation + 0.5)
        deviation = np.sqrt(np.diag(amounts.total_covariance))
        total_inside.append(np.abs(amounts.total - world.total) <= 1.96 * deviation + 0.5)
    assert 0.90 <= np.mean(inside) <= 0.99
    assert 0.90 <= np.mean(total_inside) <= 0.99


def test_short_salted_epochs_decode_more_processes_than_buckets() -> None:
    """Fifty processes in 20 buckets: one epoch tells little, ten with salts of their own tell most."""
    once, _ = decoded(5, sizes="lognormal", processes=50, spreading="round-robin", bits=32)
    often, _ = decoded(5, sizes="lognormal", processes=50, spreading="round-robin", epochs=10)
    assert np.median(often) < 0.05 < 0.2 < np.median(once)


def test_estimates_add_up_to_what_was_recorded() -> None:
    world = disk_world(3, spreading="random")
    total = decode_amounts(world.epochs, world.ids).total.sum()
    assert total == pytest.approx(world.total.sum(), rel=1e-3)


def test_counts_say_how_many_measurements_an_answer_rests_on() -> None:
    world = disk_world(1, largest=9, bits=32, count_bits=16)
    answers = estimate_sums_jointly(world.epochs, world.ids, unit="operations")
    assert answers[0].samples == pytest.approx(10_000, rel=0.05)
    assert answers[0].low >= 0


def test_shares_of_an_instance_add_up_to_one() -> None:
    parameters = BucketArrayParameters(buckets=7, per_instance=5, salt=4)
    shares = shares_of(parameters, np.arange(30, dtype=np.uint64))
    assert shares.sum(axis=0) == pytest.approx(1.0)
    assert shares * 5 == pytest.approx(np.round(shares * 5))


def test_what_cannot_be_decoded_is_said() -> None:
    empty = BucketArray(BucketArrayParameters(buckets=20, per_instance=5))
    answers = estimate_sums_jointly([empty], np.arange(3, dtype=np.uint64), unit="x")
    assert [a.reason for a in answers] == [Reason.NOTHING_RECORDED] * 3
    with pytest.raises(MismatchError, match="no epochs"):
        decode_amounts([], np.arange(3, dtype=np.uint64))
    with pytest.raises(ParameterError, match="too many to decode together"):
        shares_of(BucketArrayParameters(buckets=1 << 20, per_instance=1), np.arange(100, dtype=np.uint64))


def covariances(model, rate, epoch, scales) -> tuple[np.ndarray, np.ndarray]:
    """That of an epoch's buckets around A·s, and the diagonal of that of s around λ·w."""
    amount = rate * epoch.weight
    chance = scales.chance * epoch.chance if model.single_values else np.ones(model.instances)
    scattered = scales.kappa * amount * chance
    spread = np.diag(epoch.shares @ scattered) - (epoch.shares * scattered) @ epoch.shares.T
    slack = joint.SLACK * max(1.0, float((epoch.shares @ (amount * chance)).mean()))
    unlisted = (scales.unlisted * float(epoch.held.mean())) ** 2
    spread += scales.kappa**2 * epoch.remainders + (slack + unlisted) * np.eye(len(epoch.held))
    return spread, scales.bunch * scales.kappa * amount + (scales.change * amount) ** 2


def arrays_of_ids(number: int, sizes: tuple[int, ...] = (24,)) -> tuple[list[BucketArray], np.ndarray]:
    """So many arrays of thirty instances, of these numbers of buckets in turn."""
    random = np.random.default_rng(3)
    ids = random.integers(0, 2**63, 30).astype(np.uint64)
    sketches = []
    for salt in range(number):
        size = sizes[salt % len(sizes)]
        sketch = BucketArray(BucketArrayParameters(buckets=size, per_instance=3, bits=40, count_bits=24, salt=salt))
        who = random.permutation(np.repeat(ids, random.poisson(20, len(ids))))
        values, none = random.integers(1, 9, len(who)), np.zeros(len(who), np.uint64)
        sketch.record_batch(MeasurementBatch(who, values, np.arange(len(who)), none))
        sketches.append(sketch)
    return sketches, ids


@pytest.mark.parametrize("field", ["sum", "count"])
@pytest.mark.parametrize("unlisted", [False, True])
def test_covariances_of_all_epochs_are_those_of_each(field: str, unlisted: bool) -> None:
    """Assembled from instances' few buckets, against the formula of one epoch."""
    (sketches, ids), random, of_ones = arrays_of_ids(4), np.random.default_rng(4), field == "count"
    model = joint._Model(equations_of(sketches, ids, field, of_ones), single_values=of_ones, by_number=False)
    model = model.with_unlisted() if unlisted else model
    rate, scales = random.uniform(1, 100, model.instances), joint.Scales(2.0, 0.3, 0.7, 0.2 * unlisted)
    matrix, side, log_determinant = model.normal_equations(rate, scales)
    rows, sides, logs = [], [], 0.0
    for epoch in model.epochs:
        spread, vary = covariances(model, rate, epoch, scales)
        factor = np.linalg.cholesky(spread + (epoch.shares * vary) @ epoch.shares.T)
        rows.append(np.linalg.solve(factor, epoch.shares * epoch.weight))
        sides.append(np.linalg.solve(factor, epoch.held))
        logs += 2 * float(np.log(np.diag(factor)).sum())
    assert np.allclose(matrix, np.concatenate(rows), rtol=1e-9, atol=1e-12)
    assert np.allclose(side, np.concatenate(sides), rtol=1e-9)
    assert log_determinant == pytest.approx(logs, rel=1e-12)


@pytest.mark.parametrize("sizes", [(24,), (24, 16)])
@pytest.mark.parametrize("field", ["sum", "count"])
def test_epochs_in_many_stacks_are_decoded_as_in_one(field: str, sizes: tuple[int, ...], monkeypatch) -> None:
    """A triangle stands for the equations of stacks that are let go; both are products of the same columns."""
    sketches, ids = arrays_of_ids(40, sizes)
    whole = decode_amounts(sketches, ids, field=field)
    monkeypatch.setattr(work_memory, "MOST_STACKED", 7)
    parts = decode_amounts(sketches, ids, field=field)
    for name in ("total", "total_covariance", "by_epoch", "deviation", "rate", "by_rate"):
        found, expected = getattr(parts, name), getattr(whole, name)
        assert np.allclose(found, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max()), name


@pytest.mark.parametrize("field", ["sum", "count"])
def test_large_arrays_are_decoded_by_the_buckets_that_instances_name(field: str, monkeypatch) -> None:
    """As by all of their buckets: κ is learned from fewer, so that intervals differ a little."""
    sketches, ids = arrays_of_ids(3, (300,))
    few = decode_amounts(sketches, ids, field=field)
    monkeypatch.setattr(work_memory, "MANY_BUCKETS", 300)
    whole = decode_amounts(sketches, ids, field=field)
    assert few.is_complete
    assert whole.is_complete
    assert np.allclose(few.total, whole.total, rtol=0.02, atol=0.002 * whole.total.max())
    assert np.allclose(few.deviation, whole.deviation, rtol=0.3, atol=0.01 * whole.deviation.max())


@pytest.mark.parametrize("field", ["sum", "count"])
def test_buckets_of_one_instance_alone_are_taken_out_as_by_a_dense_factorisation(field: str) -> None:
    """Most buckets of these are named by one or none: products and determinants are the same, to rounding."""
    (sketches, ids), random, of_ones = arrays_of_ids(3, (300,)), np.random.default_rng(6), field == "count"
    model = joint._Model(equations_of(sketches, ids, field, of_ones), single_values=of_ones, by_number=False)
    rate, scales = random.uniform(1, 100, model.instances), joint.Scales(2.0, 0.3, 0.7)
    matrix, side, log_determinant = model.normal_equations(rate, scales)
    assert all(np.count_nonzero(epoch.owner != SHARED) > len(ids) for epoch in model.epochs)
    dense = model.with_epochs([replace(e, owner=np.full(len(e.owner), SHARED)) for e in model.epochs])
    whole, sides, expected = dense.normal_equations(rate, scales)
    assert len(matrix) < len(whole)
    assert log_determinant == pytest.approx(expected, rel=1e-12)
    assert np.allclose(matrix.T @ matrix, whole.T @ whole, rtol=1e-9, atol=1e-12)
    assert np.allclose(matrix.T @ side, whole.T @ sides, rtol=1e-9)
    assert side @ side == pytest.approx(sides @ sides, rel=1e-9)


def test_unlisted_instances_are_noticed_in_large_arrays() -> None:
    """Also where most of them are in buckets that nobody else names."""
    sketches, ids = arrays_of_ids(3, (300,))
    assert not decode_amounts(sketches, ids[:-6], field="count").is_complete


def test_predictions_of_stacked_epochs_are_those_of_each() -> None:
    """Amounts, deviations and the covariance of the total, against the formulas of one epoch after the other."""
    sketches, ids = arrays_of_ids(5)
    model = joint._Model(equations_of(sketches, ids, "sum", False), single_values=False, by_number=False)
    rate, scales = np.random.default_rng(5).uniform(1, 100, 30), joint.Scales(2.0, 0.3)
    found = joint._predict(model, rate, scales, listed=30)
    own, carried, of_rates = np.zeros((30, 30)), np.zeros((30, 30)), found.rate_error @ found.rate_error.T
    precision = model.precision(model.normal_equations(rate, scales)[0])
    assert np.allclose(of_rates @ precision, np.eye(30), atol=1e-9)
    for e, epoch in enumerate(model.epochs):
        spread, vary = covariances(model, rate, epoch, scales)
        around = spread + (epoch.shares * vary) @ epoch.shares.T
        gain = np.linalg.solve(around, epoch.shares * vary).T
        amount = rate * epoch.weight + gain @ (epoch.held - epoch.shares @ rate * epoch.weight)
        of_rate = epoch.weight * (np.eye(30) - gain @ epoch.shares)
        of_epoch = np.diag(vary) - gain @ (epoch.shares * vary)
        variance = np.diag(of_epoch + of_rate @ of_rates @ of_rate.T)
        assert np.allclose(found.by_epoch[e], np.maximum(amount, 0), rtol=1e-9)
        assert np.allclose(found.deviation[e], np.sqrt(variance), rtol=1e-9)
        own, carried = own + of_epoch, carried + of_rate
    assert np.allclose(found.own_covariance, own, rtol=1e-9, atol=1e-9)
    assert np.allclose(found.total_covariance, own + carried @ of_rates @ carried.T, rtol=1e-9)


@pytest.mark.parametrize("amount", [0.3, 4.0, 60.0, 5000.0])
def test_remainders_of_few_measurements_fill_the_first_buckets(amount: float) -> None:
    """The mean of x_j = [j < r] − r/m over drawn numbers; 20 000 of them leave a standard error of 0.004."""
    drawn = np.random.default_rng(9).poisson(amount, 20_000) % 5
    left = (np.arange(5) < drawn[:, None]) - drawn[:, None] / 5
    mean, covariance = equations._of_remainder(5)
    known = np.searchsorted(equations._amounts_of_turns(5), amount)
    assert mean[known] == pytest.approx(left.mean(axis=0), abs=0.03)
    assert covariance[known] == pytest.approx(np.cov(left, rowvar=False), abs=0.03)
