"""The mean of each instance's values, decoded jointly from bucket arrays that count.

A bucket of values that count is one of round trips of which none is missing, so `iotm_rtt` decodes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate
from sojourn.estimation.buckets.rtt import estimate_round_trips
from sojourn.sketches.bucket_array import BucketArray

__all__ = ["estimate_means_jointly"]


@dataclass(frozen=True, eq=False)
class _CountedValues:
    """An epoch of values, as an epoch of round trips: each was counted when it came, and all came."""

    sent: BucketArray

    @property
    def round_trips(self) -> Int64Array:
        return self.sent.column("sum")

    @property
    def usable(self) -> BoolArray:
        return np.ones(self.sent.parameters.buckets, np.bool_)


def estimate_means_jointly(sketches: Sequence[BucketArray], instance_id: UInt64Array, *, unit: str) -> list[Answer]:
    """The mean of each instance's values over all epochs; the list must be complete, the arrays must count."""
    answers = estimate_round_trips([_CountedValues(sketch) for sketch in sketches], instance_id, unit_ns=1)
    return [replace(answer, unit=unit) if isinstance(answer, Estimate) else answer for answer in answers]
