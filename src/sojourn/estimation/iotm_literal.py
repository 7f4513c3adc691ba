"""IoTm as published: what an instance added is what makes its own buckets most likely.

Eq. 2 takes a bucket of the instance as the sum of two binomials, Binom(s_I, 1/m) of its own and Binom(s − s_I, 1/n) of
all others; Eq. 4 is the product over its m buckets, and Eq. 7 the derivative's root, which is found here by maximising
Eq. 4: in logarithms, over all splits of a bucket, where buckets hold little; with both binomials as normals where they
hold more than `EXACT_UP_TO`. Counts (Eq. 3) are the same with t for s. A mean is the ratio of both (§III).

Eq. 2 has others' units land one by one; really whole instances share buckets, so the likelihood claims far more than it
knows. The interval therefore is the moment estimator's (`moment`), whose spread comes from the buckets themselves: it
holds the truth in 90–98 % of runs, and is as wide as the method deserves. docs/maths/iotm.md has figures.

Cost: O(m · bucket) per look at the likelihood up to `EXACT_UP_TO`, O(m) above; about a hundred looks per instance.

Shahzad and Ganji, "IoTm", §II-C and III.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.moment import SharedCounters, ratio_of
from sojourn.sketches.bucket_array import BucketArray

__all__ = ["estimate_means_literally", "estimate_sums_literally", "log_likelihood", "most_likely_sum"]

METHOD = "iotm literal"
EXACT_UP_TO = 1024
GRID = 48


def log_likelihood(own_sum: float, buckets: FloatArray, total: float, *, n: int, m: int) -> float:
    """The logarithm of Eq. 4 for an instance that added `own_sum` of `total`."""
    if buckets.max(initial=0.0) > EXACT_UP_TO:
        return _log_normal(own_sum, buckets, total, n, m)
    return float(sum(_log_split(own_sum, int(held), total, n, m) for held in buckets))


def _log_split(own_sum: float, held: int, total: float, n: int, m: int) -> float:
    """The logarithm of Eq. 2: over all ways to split a bucket between the instance and the others."""
    from scipy.special import gammaln, logsumexp, xlog1py

    others = total - own_sum
    own = np.arange(max(0, int(np.ceil(held - others))), min(held, int(own_sum)) + 1, dtype=np.float64)
    if not len(own):
        return -np.inf
    rest = held - own
    ways = gammaln(own_sum + 1) - gammaln(own + 1) - gammaln(own_sum - own + 1)
    ways += gammaln(others + 1) - gammaln(rest + 1) - gammaln(others - rest + 1)
    chances = xlog1py(own_sum - own, -1 / m) - own * np.log(m) + xlog1py(others - rest, -1 / n) - rest * np.log(n)
    return float(logsumexp(ways + chances))


def _log_normal(own_sum: float, buckets: FloatArray, total: float, n: int, m: int) -> float:
    mean = own_sum / m + (total - own_sum) / n
    variance = max(own_sum / m * (1 - 1 / m) + (total - own_sum) / n * (1 - 1 / n), 1e-9)
    return float(-0.5 * ((buckets - mean) ** 2 / variance + np.log(2 * np.pi * variance)).sum())


def most_likely_sum(buckets: Int64Array | FloatArray, total: float, *, n: int, m: int) -> float:
    """The root of Eq. 7: the own sum in 0 … total for which the instance's buckets are most likely."""
    from scipy.optimize import minimize_scalar

    held = np.maximum(buckets.astype(np.float64), 0.0)
    if total <= 0 or not held.any():
        return 0.0

    def misfit(own_sum: float) -> float:
        return -log_likelihood(own_sum, held, total, n=n, m=m)

    # Own sums that could fill the buckets lie around their total; the likelihood is looked at there first.
    guess = min(max(float((n * held.sum() - m * total) / (n - m)) if n > m else total, 0.0), total)
    looks = np.unique(np.concatenate([np.linspace(0, total, GRID), [guess]]))
    values = [misfit(float(look)) for look in looks]
    best = int(np.argmin(values))
    low, high = looks[max(best - 1, 0)], looks[min(best + 1, len(looks) - 1)]
    found = minimize_scalar(misfit, bounds=(low, high), method="bounded", options={"xatol": 1e-3})
    return float(found.x) if found.fun < values[best] else float(looks[best])


def estimate_sums_literally(sketch: BucketArray, instance_id: UInt64Array, *, unit: str) -> list[Answer]:
    """The sum of each instance's measurements, each for itself."""
    if not sketch.recorded:
        return [Unanswered(Reason.NOTHING_RECORDED)] * len(instance_id)
    column = sketch.column("sum")
    shared, total = SharedCounters(column), float(column.sum())
    answers: list[Answer] = []
    for own in _buckets(sketch, instance_id):
        value = most_likely_sum(column[own], total, n=len(column), m=len(own))
        moment, half = shared.sum_of(np.unique(own))
        low, high = max(moment - half, 0.0), max(moment + half, 0.0)
        answers.append(Estimate(value, min(low, value), max(high, value), sketch.recorded, METHOD, unit))
    return answers


def estimate_means_literally(
    epochs: Sequence[tuple[BucketArray, BucketArray]], instance_id: UInt64Array, *, unit: str
) -> list[Answer]:
    """Each instance's mean over epochs of (sums B, counts C): ΣB̂ / ΣĈ, by the literal estimates of both.

    C is an array of its own, as published, or B itself where it counts.
    """
    pairs = [(b.column("sum"), c.column("count" if c.has("count") else "sum")) for b, c in epochs]
    if not any(counts.any() for _, counts in pairs):
        return [Unanswered(Reason.NOTHING_RECORDED)] * len(instance_id)
    shared = [SharedCounters(*pair) for pair in pairs]
    own = [_buckets(b, instance_id) for b, _ in epochs]
    answers: list[Answer] = []
    for f in range(len(instance_id)):
        own_rows = [rows[f] for rows in own]
        values = np.sum([_literal_pair(pair, rows) for pair, rows in zip(pairs, own_rows, strict=True)], axis=0)
        moments = [s.sums_of(np.unique(rows)) for s, rows in zip(shared, own_rows, strict=True)]
        spread = np.sum([moment[1] for moment in moments], axis=0)
        answers.append(ratio_of(values, spread, sum(moment[2] for moment in moments), unit=unit, method=METHOD))
    return answers


def _literal_pair(pair: tuple[Int64Array, Int64Array], own: Int64Array) -> list[float]:
    return [most_likely_sum(c[own], float(np.maximum(c, 0).sum()), n=len(c), m=len(own)) for c in pair]


def _buckets(sketch: BucketArray, instance_id: UInt64Array) -> list[Int64Array]:
    """Each instance's m buckets, one named twice counted twice, as published."""
    p = sketch.parameters
    return list(bucket_matrix(instance_id, p.function_salts, np.uint64(p.buckets)))
