"""IoTm as published: the likelihood is the paper's, its root is Eq. 7's, and its error is what it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import digamma

from iotm_worlds import disk_world, message_world
from sojourn.core.estimates import Estimate, Reason
from sojourn.estimation.iotm_literal import (
    estimate_means_literally,
    estimate_sums_literally,
    log_likelihood,
    most_likely_sum,
)
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.rtt_buckets import PublishedRttRecorder


def plain_probability(held: int, own_sum: int, total: int, n: int, m: int) -> float:
    """Eq. 2, term by term."""
    terms = []
    for own in range(held + 1):
        mine = math.comb(own_sum, own) * (1 / m) ** own * (1 - 1 / m) ** (own_sum - own) if own <= own_sum else 0
        rest, others = held - own, total - own_sum
        theirs = math.comb(others, rest) * (1 / n) ** rest * (1 - 1 / n) ** (others - rest) if rest <= others else 0
        terms.append(mine * theirs)
    return sum(terms)


@pytest.mark.parametrize(("own_sum", "total", "n", "m"), [(0, 30, 6, 2), (7, 30, 6, 3), (30, 30, 4, 2), (12, 60, 9, 1)])
def test_the_likelihood_is_equation_4(own_sum: int, total: int, n: int, m: int) -> None:
    buckets = np.array([3, 5, 12][:m], float)
    product = math.prod(plain_probability(int(b), own_sum, total, n, m) for b in buckets)
    found = log_likelihood(own_sum, buckets, total, n=n, m=m)
    assert found == pytest.approx(math.log(product) if product else -math.inf)


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
    assert estimate_sums_literally(empty, np.arange(1, dtype=np.uint64), unit="x")[0].reason is Reason.NOTHING_RECORDED


def test_its_error_is_of_the_order_of_the_value_and_its_interval_says_so() -> None:
    """20 buckets, ten processes: whole processes collide. 250 answers; at least 90 % covered (false alarm < 10⁻²)."""
    errors, inside = [], []
    for seed in range(25):
        world = disk_world(seed, spreading="random")
        answers = estimate_sums_literally(world.epochs[0], world.ids, unit="operations")
        errors += [abs(a.value - t) / t for a, t in zip(answers, world.total, strict=True)]
        inside += [a.contains(t) for a, t in zip(answers, world.total, strict=True)]
    assert 0.5 < np.median(errors) < 2
    assert np.mean(inside) >= 0.90


def test_with_thousands_of_buckets_it_works() -> None:
    world = disk_world(2, spreading="random", buckets=4000)
    answers = estimate_sums_literally(world.epochs[0], world.ids, unit="operations")
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
