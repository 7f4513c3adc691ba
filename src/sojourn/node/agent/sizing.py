"""How large an agent makes a stream's bucket array by itself: for the instances that an epoch turned out to hold.

A stream whose table says nothing of its array begins with the default, as nothing is known of its instances. When an
epoch has closed, the array of the next one has as many buckets as the planner would give so many instances with so many
measurements each, such that 95 % of answers about one epoch are within the stream's error (5 %). The planner itself
(`sketches.sizing.iotm`) takes seconds and libraries that a gateway has not: `BUCKETS_FOR` has what it answers, a test
compares the two. It is looked at again with every epoch; an array that is large enough, and not far too large, stays,
also when the agent is started again: the spool notes its size with how far the stream has been kept.

Cost: nothing to speak of; what it costs in bytes the agent says.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

from sojourn.core.units import format_bytes, plural
from sojourn.sketches.bucket_parameters import BucketArrayParameters

DEFAULT_ERROR = 0.05
# Of the planner for 24 instances in one epoch: measurements of each, then buckets for each, and buckets of each.
BUCKETS_FOR: dict[float, tuple[tuple[int, float, int], ...]] = {
    0.02: ((20, 10.0, 2), (50, 10.0, 2), (100, 6.0, 2), (200, 3.0, 2), (500, 1.5, 3), (2000, 1.25, 5)),
    0.05: ((20, 10.0, 2), (50, 4.0, 2), (100, 2.0, 3), (200, 1.5, 3), (500, 1.25, 5), (2000, 1.25, 5)),
    0.10: ((20, 6.0, 2), (50, 2.0, 3), (100, 1.5, 3), (200, 1.25, 5), (500, 1.25, 5), (2000, 1.25, 5)),
}
# How values vary has to be learned from an instance's buckets where means are asked for.
OF_MEANS = 3
MARGIN, FAR_TOO_LARGE = 1.25, 8
MOST_BUCKETS = 1 << 16


def wanted_buckets(instances: int, measurements: int, error: float) -> tuple[int, int]:
    """How many buckets an epoch of so many instances and measurements takes, and how many of them an instance has."""
    rows = BUCKETS_FOR[error]
    each = measurements / max(instances, 1)
    _, buckets, per_instance = rows[max(bisect_right([row[0] for row in rows], each) - 1, 0)]
    return math.ceil(buckets * instances), per_instance


@dataclass(frozen=True, kw_only=True)
class Held:
    """What an epoch held, whether means are asked of it, and the error that answers are to have."""

    instances: int
    measurements: int
    error: float
    means: bool = False


def resized(now: BucketArrayParameters, first: BucketArrayParameters, held: Held) -> BucketArrayParameters | None:
    """The array for such epochs; None if the present one suits. It is never smaller than the first one."""
    wanted, per_instance = wanted_buckets(held.instances, held.measurements, held.error)
    per_instance = max(per_instance, OF_MEANS) if held.means else per_instance
    if wanted <= now.buckets and now.buckets <= max(FAR_TOO_LARGE * wanted, first.buckets):
        return None
    # One that grows at least doubles, so that instances that come one by one do not change it with every epoch.
    least = 2 * now.buckets if wanted > now.buckets else 0
    buckets = min(max(math.ceil(MARGIN * wanted), least), MOST_BUCKETS)
    if buckets <= first.buckets:
        return None if now == first else first
    found = replace(now, buckets=buckets, per_instance=per_instance)
    return None if found == now else found


def cost_text(before: BucketArrayParameters, after: BucketArrayParameters, held: Held) -> str:
    """What another array means, in one line.

    >>> first = BucketArrayParameters(buckets=64, per_instance=4, bits=40, count_bits=24)
    >>> held = Held(instances=300, measurements=18_000, error=0.05)
    >>> cost_text(first, resized(first, first, held), held)[:70]
    '300 instances with 18,000 measurements in an epoch, error 5%: 1,500 bu'
    """
    why = f"{plural(held.instances, 'instance')} with {held.measurements:,} measurements in an epoch"
    why += f", error {held.error:.0%}"
    sizes = f"{format_bytes(epoch_bytes(after))} an epoch instead of {format_bytes(epoch_bytes(before))}"
    return f"{why}: {after.buckets:,} buckets from now on, not {before.buckets:,}; {sizes}"


def epoch_bytes(parameters: BucketArrayParameters) -> int:
    """What the counters of an epoch take on their way and in the store."""
    return math.ceil(parameters.buckets * (parameters.bits + parameters.count_bits) / 8)
