"""IoTm as published: sum and mean of an instance's measurements from a bucket array, by moments or by likelihood.
 **Moments.** The sum is the moment estimator on the buckets; the mean is its ratio to the moment estimator on the
counts, with Fieller's interval (`moment`).
 **Literal.** Sums are the roots of Eq. 7, found by maximising Eq. 4; counts (Eq. 3) are the same with t for s, a mean
is the ratio of both (§III). A bucket of the instance is the sum of two binomials, Binom(s_I, 1/m) of its own and
Binom(s − s_I, 1/n) of all others. Where buckets hold little, Eq. 2 is summed over all splits of a bucket: the first
in logarithms of gammas, each further one from the one before by the ratio of both. Above `EXACT_UP_TO` both binomials
are taken as normals. Compiled: about a hundred evaluations per instance, each O(m · bucket) up to `EXACT_UP_TO` (a
few ns per split), O(m) above.
 Eq. 2 has others' units land one by one; really whole instances share buckets, so the likelihood claims far more than
it knows. The interval therefore is the moment estimator's, whose spread comes from the buckets themselves: it covers
the truth in 90–98 % of runs, and is as wide as the method deserves. docs/maths/iotm.md has figures.

Shahzad and Ganji, "IoTm", §II-C and III.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered, student_95
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.published.moment import SharedCounters, ratio_of
from sojourn.sketches.bucket_array import BucketArray

METHOD = "iotm moment"


def estimate_sums(sketch: BucketArray, instance_id: UInt64Array, *, unit: str) -> list[Answer]:
    """The sum of each instance's measurements; O(n + instances · m).

    ``samples`` is the instance's own count where counts are kept, all measurements otherwise.
    """
    if not sketch.recorded:
        return [Unanswered(Reason.NOTHING_RECORDED)] * len(instance_id)
    sums = SharedCounters(sketch.column("sum"))
    counts = SharedCounters(sketch.column("count")) if sketch.has("count") else None
    answers: list[Answer] = []
    for own in map(np.unique, _buckets(sketch, instance_id)):
        value, half = sums.sum_of(own)
        samples = round(max(counts.sum_of(own)[0], 0)) if counts else sketch.recorded
        answers.append(Estimate.around(value, half, samples=samples, method=METHOD, unit=unit))
    return answers


LITERAL = "iotm literal"


def estimate_sums_literally(sketches: Sequence[BucketArray], instance_id: UInt64Array, *, unit: str) -> list[Answer]:
    """The sum of each instance's measurements in all epochs together, each instance for itself.

    Moments and their variances add up before an interval is made of them: the parts' own intervals end at 0, and in the
    middle of such a one there is more than there was.
    """
    if not any(sketch.recorded for sketch in sketches):
        return [Unanswered(Reason.NOTHING_RECORDED)] * len(instance_id)
    values, moments = np.zeros(len(instance_id)), np.zeros((len(instance_id), 3))
    for sketch in sketches:
        column, own = sketch.column("sum"), _buckets(sketch, instance_id)
        values += most_likely_sums(column[own], float(column.sum()), n=len(column))
        moments += _moments(SharedCounters(column), own)
    recorded = sum(sketch.recorded for sketch in sketches)
    answers: list[Answer] = []
    for value, (moment, variance, degrees) in zip(values.tolist(), moments.tolist(), strict=True):
        half = student_95(round(degrees)) * math.sqrt(max(variance, 0.0))
        low, high = max(moment - half, 0.0), max(moment + half, 0.0)
        answers.append(Estimate(value, min(low, value), max(high, value), recorded, LITERAL, unit))
    return answers


def _moments(shared: SharedCounters, own: Int64Array) -> FloatArray:
    """Each instance's sum by moments, its variance and the degrees of freedom of that."""
    rows = [shared.sums_of(np.unique(row)) for row in own]
    return np.array([(sums[0], spread[0, 0], degrees) for sums, spread, degrees in rows])


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
    values = np.sum([_literal_pair(pair, rows) for pair, rows in zip(pairs, own, strict=True)], axis=0)
    answers: list[Answer] = []
    for f in range(len(instance_id)):
        own_rows = [rows[f] for rows in own]
        moments = [s.sums_of(np.unique(rows)) for s, rows in zip(shared, own_rows, strict=True)]
        spread = np.sum([moment[1] for moment in moments], axis=0)
        answers.append(ratio_of(values[f], spread, sum(moment[2] for moment in moments), unit=unit, method=LITERAL))
    return answers


def _literal_pair(pair: tuple[Int64Array, Int64Array], own: Int64Array) -> FloatArray:
    """Each instance's sum and count."""
    return np.stack([most_likely_sums(c[own], float(np.maximum(c, 0).sum()), n=len(c)) for c in pair], axis=1)


def _buckets(sketch: BucketArray, instance_id: UInt64Array) -> Int64Array:
    """Each instance's m buckets, one named twice counted twice, as published."""
    p = sketch.parameters
    return bucket_matrix(instance_id, p.function_salts, np.uint64(p.buckets))


EXACT_UP_TO = 1024  # in a bucket; beyond, normals differ from the binomials by less than the estimate's error
GRID = 48  # evenly spaced sums that are tried first
TOLERANCE = 1e-3  # of a unit
WHOLE = 32  # whole numbers that are tried around the best
# The golden section, and where sums of splits are scaled before they leave the range of a float.
_GOLDEN = (math.sqrt(5) - 1) / 2
_LARGE = 1e200


@inlined
def _log_choose(many: float, few: float) -> float:
    return math.lgamma(many + 1) - math.lgamma(few + 1) - math.lgamma(many - few + 1)


@inlined
def _log_kept(count: float, chance: float) -> float:
    """The logarithm of (1 − chance)^count; nothing left over is certain even where it could not be."""
    if count == 0:
        return 0.0
    return count * math.log1p(-chance) if chance < 1 else -math.inf


@kernel
def _log_split(own_sum: float, bucket: float, total: float, n: float, m: float) -> float:
    """The logarithm of Eq. 2: over all ways to split a bucket between the instance and the others."""
    others = total - own_sum
    own = max(0.0, math.ceil(bucket - others))
    last = min(bucket, math.floor(own_sum))
    if own > last:
        return -math.inf
    if m == 1 or n == 1:
        # Every unit of one side lands here: one split at most has a chance.
        own = own_sum if m == 1 else bucket - others
        if own != math.floor(own) or own < 0 or own > bucket or (m == 1 and n == 1 and bucket != total):
            return -math.inf
        last = own
    rest = bucket - own
    log_first = _log_choose(own_sum, own) + _log_kept(own_sum - own, 1 / m) - own * math.log(m)
    log_first += _log_choose(others, rest) + _log_kept(others - rest, 1 / n) - rest * math.log(n)
    odds = (n - 1) / (m - 1) if m > 1 else 0.0
    term = together = 1.0
    while own < last:
        term *= (own_sum - own) / (own + 1) * rest / (others - rest + 1) * odds
        own += 1
        rest -= 1
        together += term
        if together > _LARGE:
            log_first += math.log(_LARGE)
            term /= _LARGE
            together /= _LARGE
    return log_first + math.log(together)


@kernel
def _log_normal(own_sum: float, buckets: FloatArray, total: float, n: float, m: float) -> float:
    mean = own_sum / m + (total - own_sum) / n
    variance = max(own_sum / m * (1 - 1 / m) + (total - own_sum) / n * (1 - 1 / n), 1e-9)
    found = 0.0
    for bucket in buckets:
        found -= 0.5 * ((bucket - mean) ** 2 / variance + math.log(2 * math.pi * variance))
    return found


@kernel
def log_likelihood(own_sum: float, buckets: FloatArray, total: float, n: float, m: float) -> float:
    """The logarithm of Eq. 4 for an instance that added `own_sum` of `total`."""
    if buckets.max() > EXACT_UP_TO:
        return _log_normal(own_sum, buckets, total, n, m)
    found = 0.0
    for bucket in buckets:
        found += _log_split(own_sum, bucket, total, n, m)
    return found


@kernel
def _refined(low: float, high: float, buckets: FloatArray, total: float, n: float, m: float) -> float:
    """Where the likelihood is largest between two sums, by sections in the golden ratio."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left = log_likelihood(left, buckets, total, n, m)
    at_right = log_likelihood(right, buckets, total, n, m)
    while high - low > TOLERANCE + 1e-12 * high:
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = log_likelihood(left, buckets, total, n, m)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = log_likelihood(right, buckets, total, n, m)
    return left if at_left >= at_right else right


@kernel
def _most_likely(buckets: FloatArray, total: float, n: float, m: float) -> float:
    """The root of Eq. 7: own sums are looked at evenly and where moments have them, then around the best."""
    guess = (n * buckets.sum() - m * total) / (n - m) if n > m else total
    looks = np.unique(np.append(np.linspace(0.0, total, GRID), min(max(guess, 0.0), total)))
    best, at_best = 0, -math.inf
    for i in range(len(looks)):
        found = log_likelihood(looks[i], buckets, total, n, m)
        if found > at_best:
            best, at_best = i, found
    low, high = looks[max(best - 1, 0)], looks[min(best + 1, len(looks) - 1)]
    result: float = looks[best]
    # A sum of few units gains a split, and some likelihood, at every whole number: sections may miss the best of these.
    first = math.ceil(low)
    for i in range(WHOLE + 1):
        look = _refined(low, high, buckets, total, n, m) if i == WHOLE else min(first + i, high)
        found = log_likelihood(look, buckets, total, n, m)
        if found > at_best:
            result, at_best = look, found
    return result


@kernel
def _most_likely_each(buckets: FloatArray, total: float, n: float, m: float) -> FloatArray:
    found = np.zeros(len(buckets))
    for i in range(len(buckets)):
        if buckets[i].max() > 0:
            found[i] = _most_likely(buckets[i], total, n, m)
    return found


def most_likely_sums(buckets: Int64Array | FloatArray, total: float, *, n: int) -> FloatArray:
    """The own sum in 0 … total for which each instance's buckets (a row of m) are most likely."""
    rows: FloatArray = np.maximum(np.asarray(buckets, np.float64), 0.0)
    if total <= 0:
        return np.zeros(len(rows))
    return _most_likely_each(np.ascontiguousarray(rows), float(total), float(n), float(rows.shape[1]))
