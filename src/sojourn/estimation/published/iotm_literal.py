"""IoTm as published: what an instance added is what makes its own buckets most likely.

Sums are the roots of Eq. 7, found by maximising Eq. 4 (`iotm_likelihood`). Counts (Eq. 3) are the same with t for s. A
mean is the ratio of both (§III).

Eq. 2 has others' units land one by one; really whole instances share buckets, so the likelihood claims far more than it
knows. The interval therefore is the moment estimator's (`moment`), whose spread comes from the buckets themselves: it
holds the truth in 90–98 % of runs, and is as wide as the method deserves. docs/maths/iotm.md has figures.

Shahzad and Ganji, "IoTm", §II-C and III.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.published.iotm_likelihood import most_likely_sums
from sojourn.estimation.published.moment import SharedCounters, ratio_of
from sojourn.estimation.quantiles import student_95
from sojourn.sketches.bucket_array import BucketArray

__all__ = ["estimate_means_literally", "estimate_sums_literally"]

METHOD = "iotm literal"


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
        answers.append(Estimate(value, min(low, value), max(high, value), recorded, METHOD, unit))
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
        answers.append(ratio_of(values[f], spread, sum(moment[2] for moment in moments), unit=unit, method=METHOD))
    return answers


def _literal_pair(pair: tuple[Int64Array, Int64Array], own: Int64Array) -> FloatArray:
    """Each instance's sum and count."""
    return np.stack([most_likely_sums(c[own], float(np.maximum(c, 0).sum()), n=len(c)) for c in pair], axis=1)


def _buckets(sketch: BucketArray, instance_id: UInt64Array) -> Int64Array:
    """Each instance's m buckets, one named twice counted twice, as published."""
    p = sketch.parameters
    return bucket_matrix(instance_id, p.function_salts, np.uint64(p.buckets))
