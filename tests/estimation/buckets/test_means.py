"""Means of values from bucket arrays that count: as close as the buckets allow, with intervals that hold the truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sojourn.core.arrays import MeasurementBatch, PacketBatch
from sojourn.core.errors import MismatchError
from sojourn.core.estimates import Estimate, Reason
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.estimation.buckets.queries import RangeQuery, RangeSelection, answer_total, estimate_means_jointly
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.lda import Lda, LdaParameters

PARAMETERS = BucketArrayParameters(buckets=32, per_instance=4, bits=48, count_bits=24)


def answer_instances(epochs, instance_id, query, *, unit):
    return RangeSelection(epochs, query).answers([[number] for number in instance_id], unit=unit)


def recorded(seed: int, instances: int, epochs: int) -> tuple[list[Epoch], np.ndarray, np.ndarray, np.ndarray]:
    """Epochs of values that differ between instances and vary within; ids, true sums and counts."""
    random = np.random.default_rng(seed)
    keys = [ProcessKey("p", i) for i in range(instances)]
    ids = np.array([key_id(key) for key in keys], np.uint64)
    means = random.lognormal(np.log(50_000), 0.7, instances)
    rates = random.lognormal(np.log(60), 0.8, instances)
    sums, counts, made = np.zeros(instances), np.zeros(instances), []
    for sequence in range(epochs):
        who = random.permutation(np.repeat(np.arange(instances), random.poisson(rates)))
        values = (means[who] * random.gamma(4, 1 / 4, len(who))).astype(np.int64)
        sketch = BucketArray(replace(PARAMETERS, salt=sequence % 16))
        times = sequence * 10**9 + np.arange(len(who))
        sketch.record_batch(MeasurementBatch.of(ids[who], values, times))
        sums += np.bincount(who, values, instances)
        counts += np.bincount(who, minlength=instances)
        made.append(Epoch("n", "s", sequence, sketch, tuple(keys)))
    return made, ids, sums, counts


@pytest.mark.parametrize("rate", [3, 60, 2_000, 100_000])
def test_a_single_epoch_of_more_instances_than_buckets_is_decoded(rate: int) -> None:
    """Fifty in 20 buckets, few values or many: in thirty directions of the rates only the prior knows anything.

    Four worlds, 200 intervals that hardly depend on each other; false alarm below 10⁻².
    """
    inside, errors, baseline = [], [], []
    for seed in range(4):
        random = np.random.default_rng([seed, rate])
        ids = random.integers(1, 2**63, 50, dtype=np.uint64)
        means, counts = random.lognormal(10.0, 0.7, 50), random.poisson(random.lognormal(np.log(rate), 0.8, 50))
        who = random.permutation(np.repeat(np.arange(50), counts))
        values = (means[who] * random.gamma(4, 1 / 4, len(who))).astype(np.int64)
        array = BucketArray(BucketArrayParameters(buckets=20, per_instance=5, bits=48, count_bits=24, salt=seed))
        array.record_batch(MeasurementBatch.of(ids[who], values, np.arange(len(who))))
        answers = estimate_means_jointly([array], ids, unit="ns")
        truth = np.bincount(who, values, 50) / np.maximum(counts, 1)
        known = [(a, t) for a, t in zip(answers, truth, strict=True) if isinstance(a, Estimate) and t > 0]
        assert len(known) >= 35
        inside += [answer.contains(t) for answer, t in known]
        errors += [abs(answer.value / t - 1) for answer, t in known]
        baseline += [abs(values.mean() / t - 1) for _, t in known]
    assert np.mean(inside) >= 0.9
    assert np.median(errors) < np.median(baseline)


def test_means_are_close_and_intervals_cover() -> None:
    """Thirty instances in 32 buckets, sixteen salts, five worlds: 150 intervals; false alarm below 10⁻³."""
    inside, errors, baseline = [], [], []
    for seed in range(5):
        epochs, ids, sums, counts = recorded(700 + seed, 30, 16)
        answers = estimate_means_jointly([epoch.sketch for epoch in epochs], ids, unit="bytes")
        truth = sums / counts
        assert all(isinstance(answer, Estimate) and answer.unit == "bytes" for answer in answers)
        inside += [answer.contains(t) for answer, t in zip(answers, truth, strict=True)]
        errors += [abs(answer.value / t - 1) for answer, t in zip(answers, truth, strict=True)]
        baseline += np.abs(sums.sum() / counts.sum() / truth - 1).tolist()
    assert np.median(errors) < 0.06 < 0.3 * np.median(baseline)
    assert 0.87 <= np.mean(inside) <= 0.995


def test_a_range_over_many_epochs_is_answered_from_one_array_per_salt() -> None:
    epochs, ids, sums, counts = recorded(720, 12, 64)
    query = RangeQuery(from_ns=0, to_ns=10**18, stat="sum")
    answers = answer_instances(epochs, ids.tolist(), query, unit="bytes")
    assert {answer.epochs for answer in answers} == {64}
    values = np.array([answer.answer.value for answer in answers])
    assert np.median(np.abs(values / sums - 1)) < 0.02
    total = answer_total(epochs, query, unit="bytes")
    assert total.answer.value == sums.sum()
    assert total.answer.samples == counts.sum()


@pytest.mark.parametrize("method", ["literal", "joint"])
def test_epochs_without_keys_are_answered_literally(method: str) -> None:
    epochs, ids, sums, _ = recorded(730, 6, 8)
    nameless = [replace(epoch, keys=None) for epoch in epochs]
    query = RangeQuery(from_ns=0, to_ns=10**18, method=method)
    (answer,) = answer_instances(nameless, [int(ids[0])], query, unit="bytes")
    assert answer.answer.method == "iotm literal"
    assert answer.answer.low <= sums[0] <= answer.answer.high


def test_an_instance_that_was_not_there_is_unknown() -> None:
    epochs, _, _, _ = recorded(740, 4, 3)
    (answer,) = answer_instances(epochs, [5], RangeQuery(from_ns=0, to_ns=10**18), unit="bytes")
    assert answer.answer.reason is Reason.UNKNOWN_INSTANCE


def test_epochs_of_packets_are_not_taken_for_sums() -> None:
    packets = Lda(LdaParameters(rows=4))
    packets.record_batch(PacketBatch.of([1], [2], [10**18]))
    epoch = Epoch("n", "lan", 0, packets, ())
    for ask in (answer_total, lambda epochs, query, unit: answer_instances(epochs, [1], query, unit=unit)):
        with pytest.raises(MismatchError, match="a stream of lda is not asked for sums"):
            ask([epoch], RangeQuery(from_ns=0, to_ns=2 * 10**18), unit="packets")
