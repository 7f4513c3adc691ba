"""IoTm as published: the likelihood is the paper's, its root is Eq. 7's, and its error is what it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import digamma, gammaln, logsumexp, xlog1py
from scipy.stats import norm

from iotm_worlds import disk_world, message_world
from sojourn.core.arrays import MeasurementBatch
from sojourn.core.estimates import Estimate, Reason
from sojourn.estimation.published.iotm import (
    EXACT_UP_TO,
    estimate_means_literally,
    estimate_sums_literally,
    log_likelihood,
    most_likely_sums,
)
from sojourn.papers.iotm.rtt_buckets import PublishedRttRecorder
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters


def plain_probability(held: int, own_sum: int, total: int, n: int, m: int) -> float:
    """Eq. 2, term by term."""
    terms = []
    for own in range(held + 1):
        mine = math.comb(own_sum, own) * (1 / m) ** own * (1 - 1 / m) ** (own_sum - own) if own <= own_sum else 0
        rest, others = held - own, total - own_sum
        theirs = math.comb(others, rest) * (1 / n) ** rest * (1 - 1 / n) ** (others - rest) if rest <= others else 0
        terms.append(mine * theirs)
    return sum(terms)


def most_likely_sum(buckets, total: float, *, n: int, m: int) -> float:
    assert len(buckets) == m
    return float(most_likely_sums(np.asarray(buckets)[None], total, n=n)[0])


@pytest.mark.parametrize(
    ("own_sum", "total", "n", "m"), [(0, 30, 6, 2), (7, 30, 6, 3), (30, 30, 4, 2), (12, 60, 9, 1), (3, 3, 1, 1)]
)
def test_the_likelihood_is_equation_4(own_sum: int, total: int, n: int, m: int) -> None:
    buckets = np.array([3, 5, 12][:m], float)
    product = math.prod(plain_probability(int(b), own_sum, total, n, m) for b in buckets)
    found = log_likelihood(float(own_sum), buckets, float(total), float(n), float(m))
    assert found == pytest.approx(math.log(product) if product else -math.inf)


def plain_likelihood(own_sum: float, buckets, total: float, n: int, m: int) -> float:
    """Eq. 4 by SciPy's gammas, all splits of a bucket at once; both binomials as normals for large buckets."""
    if max(buckets) > EXACT_UP_TO:
        spread = own_sum / m * (1 - 1 / m) + (total - own_sum) / n * (1 - 1 / n)
        return float(norm.logpdf(buckets, own_sum / m + (total - own_sum) / n, max(spread, 1e-9) ** 0.5).sum())
    result, others = 0.0, total - own_sum
    for held in buckets:
        own = np.arange(max(0, math.ceil(held - others)), min(held, int(own_sum)) + 1.0)
        rest = held - own
        ways = gammaln(own_sum + 1) - gammaln(own + 1) - gammaln(own_sum - own + 1)
        ways += gammaln(others + 1) - gammaln(rest + 1) - gammaln(others - rest + 1)
        ways += xlog1py(own_sum - own, -1 / m) - own * math.log(m) + xlog1py(others - rest, -1 / n) - rest * math.log(n)
        result += float(logsumexp(ways)) if len(own) else -math.inf
    return result


def shared_buckets(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    """What instances of very different sizes leave in n buckets, each in m of them."""
    buckets = np.zeros(n, np.int64)
    for size in rng.pareto(1.0, size=int(rng.integers(1, 30))) * 10 ** rng.uniform(0, 9) + 1:
        np.add.at(buckets, rng.integers(0, n, m), rng.multinomial(int(min(size, 1e12)), [1 / m] * m))
    return buckets


@pytest.mark.parametrize("seed", range(60))
def test_the_compiled_likelihood_is_the_plain_one_and_no_sum_is_more_likely(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 7))
    n = m + int(rng.integers(1, 60))
    buckets = shared_buckets(rng, n, m)
    own, total = buckets[rng.integers(0, n, m)].astype(float), float(buckets.sum())
    looks = np.concatenate([np.linspace(0, total, 60), rng.uniform(0, total, 60), np.arange(min(total, 30))])
    plain = np.array([plain_likelihood(look, own, total, n, m) for look in looks])
    found = np.array([log_likelihood(look, own, total, float(n), float(m)) for look in looks])
    np.testing.assert_allclose(found, plain, rtol=1e-9, atol=1e-9)
    best = most_likely_sum(own, total, n=n, m=m)
    if own.any():
        assert plain_likelihood(best, own, total, n, m) >= plain.max() - 1e-9 * abs(plain.max())
    else:
        assert best == 0


def equation_7(own_sum: float, buckets, total: int, n: int, m: int) -> float:
    """The paper's X, Y and Z in logarithms, for each bucket; its sum is 0 at the estimate."""
    result = 0.0
    for held in buckets:
        own = np.arange(0, min(held, int(own_sum)) + 1, dtype=float)
        rest = held - own
        x = own * (math.log(1 / m) - math.log(1 - 1 / m)) + rest * math.log(1 / n)
        x += (total - rest) * math.log(1 - 1 / n)
        gamma = np.vectorize(math.lgamma)
        y = gamma(own_sum + 1) - gamma(own + 1) - gamma(own_sum - own + 1)
        y += gamma(total - own_sum + 1) - gamma(rest + 1) - gamma(total - own_sum - rest + 1)
        y += own_sum * (math.log(1 - 1 / m) - math.log(1 - 1 / n))
        z = math.log(1 - 1 / m) - math.log(1 - 1 / n) - digamma(1 + total - own_sum) + digamma(1 + own_sum)
        z = z + digamma(1 + own - held + total - own_sum) - digamma(1 - own + own_sum)
        weight = np.exp(x + y - (x + y).max())
        result += float((weight * z).sum() / weight.sum())
    return result


def test_the_estimate_is_the_root_of_equation_7() -> None:
    buckets, total, n, m = [60, 75, 52, 66, 70], 800, 20, 5
    found = most_likely_sum(np.array(buckets), total, n=n, m=m)
    assert 100 < found < 300
    slopes = [equation_7(found + step, buckets, total, n, m) for step in (-5.0, 0.0, 5.0)]
    assert slopes[0] > abs(slopes[1]) * 10
    assert slopes[2] < -abs(slopes[1]) * 10


def test_both_forms_of_the_likelihood_agree_where_they_meet() -> None:
    """The same buckets ×1 (exact) and ×20 (normal): twenty times the sum."""
    buckets = np.array([500, 610, 450, 580, 520])
    exact = most_likely_sum(buckets, 5000, n=20, m=5)
    normal = most_likely_sum(20 * buckets, 100_000, n=20, m=5)
    assert normal == pytest.approx(20 * exact, rel=0.02)


def test_without_measurements_there_is_no_sum() -> None:
    assert most_likely_sum(np.zeros(5), 0, n=20, m=5) == 0
    empty = BucketArray(BucketArrayParameters(buckets=20, per_instance=5))
    assert (
        estimate_sums_literally([empty], np.arange(1, dtype=np.uint64), unit="x")[0].reason is Reason.NOTHING_RECORDED
    )


def test_its_error_is_of_the_order_of_the_value_and_its_interval_says_so() -> None:
    """20 buckets, ten processes: whole processes collide. 250 answers; at least 90 % covered (false alarm < 10⁻²)."""
    errors, inside = [], []
    for seed in range(25):
        world = disk_world(seed, spreading="random")
        answers = estimate_sums_literally(world.epochs[:1], world.ids, unit="operations")
        errors += [abs(a.value - t) / t for a, t in zip(answers, world.total, strict=True)]
        inside += [a.contains(t) for a, t in zip(answers, world.total, strict=True)]
    assert 0.5 < np.median(errors) < 2
    assert np.mean(inside) >= 0.90


@pytest.mark.parametrize("nodes", [1, 4])
def test_intervals_hold_over_many_epochs_and_nodes_that_do_not_collide_alike(nodes: int) -> None:
    """Sixteen arrays of 30 instances, most of them small: 300 answers, seeded, so the share is the same every time."""
    ids, inside = np.arange(1, 31, dtype=np.uint64), []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rates = np.minimum(20 * rng.pareto(1.2, len(ids)) + 5, 1500)
        truth, arrays = np.zeros(len(ids)), []
        for node in range(nodes):
            for epoch in range(16 // nodes):
                who = rng.permutation(np.repeat(np.arange(len(ids)), rng.poisson(rates)))
                value = rng.integers(1, 20, len(who))
                np.add.at(truth, who, value)
                salt = 1000 * seed + 100 * node + epoch
                parameters = BucketArrayParameters(buckets=64, per_instance=4, bits=40, spreading="random", salt=salt)
                arrays.append(BucketArray(parameters, seed=salt))
                arrays[-1].record_batch(MeasurementBatch.of(ids[who], value, np.zeros(len(who), np.int64)))
        answers = estimate_sums_literally(arrays, ids, unit="operations")
        inside += [answer.contains(total) for answer, total in zip(answers, truth, strict=True)]
    assert 0.90 <= np.mean(inside) <= 0.99


def test_with_thousands_of_buckets_it_works() -> None:
    world = disk_world(2, spreading="random", buckets=4000)
    answers = estimate_sums_literally(world.epochs[:1], world.ids, unit="operations")
    assert np.median([abs(a.value - t) / t for a, t in zip(answers, world.total, strict=True)]) < 0.05


def test_round_trips_as_published_are_mostly_noise() -> None:
    """Fifty flows in 20 buckets, one-minute epochs: packets in flight at the edges and shared buckets."""
    world = message_world(0, minutes=2)
    recorder = PublishedRttRecorder(BucketArrayParameters(buckets=20, per_instance=5, bits=32), epoch_ns=60 * 10**9)
    recorder.record(world.sent, world.acknowledged)
    answers = estimate_means_literally(
        [recorder.epochs[slot] for slot in sorted(recorder.epochs)], world.ids, unit="ms"
    )
    close = [
        isinstance(a, Estimate) and abs(a.value * 1e6 - t) <= 0.07 * t
        for a, t in zip(answers, world.mean_ns, strict=True)
    ]
    assert np.mean(close) < 0.2
