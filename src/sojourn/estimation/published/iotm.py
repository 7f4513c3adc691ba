"""IoTm: sum and mean of an instance's measurements from a bucket array, by moments.

The sum is the moment estimator on the buckets; the mean is its ratio to the moment estimator on the counts,
with Fieller's interval. Shahzad and Ganji, "IoTm", §II-C and III.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.published.moment import SharedCounters, moment_ratio
from sojourn.sketches.bucket_array import BucketArray

__all__ = ["estimate_means", "estimate_sums"]

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
    for own in _own_buckets(sketch, instance_id):
        value, half = sums.sum_of(own)
        samples = round(max(counts.sum_of(own)[0], 0)) if counts else sketch.recorded
        answers.append(Estimate.around(value, half, samples=samples, method=METHOD, unit=unit))
    return answers


def estimate_means(sketch: BucketArray, instance_id: UInt64Array, *, unit: str) -> list[Answer]:
    """The mean of each instance's measurements; needs a count array."""
    shared = SharedCounters(sketch.column("sum"), sketch.column("count"))
    return [moment_ratio(shared, own, unit=unit, method=METHOD) for own in _own_buckets(sketch, instance_id)]


def _own_buckets(sketch: BucketArray, instance_id: UInt64Array) -> list[Int64Array]:
    """Each instance's distinct buckets."""
    parameters = sketch.parameters
    matrix = bucket_matrix(instance_id, parameters.function_salts, np.uint64(parameters.buckets))
    return [np.unique(row) for row in matrix]
