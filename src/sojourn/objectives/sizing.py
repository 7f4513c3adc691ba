"""How large the bucket array of an objective's stream is: by the planner, for the instances that were seen.

A stream begins with the default array, as nothing is known of its instances. Once an epoch has listed them, the array
is planned for so many and a margin more, such that 95 % of answers about one epoch are within the objective's error;
and again when the instances have left the band that it is made for (`GROWN` above, `SHRUNK` below, as for segments).

Sums are planned by `sketches.sizing.iotm`, in one epoch. Means take the same array with counts beside the sums: what
instances add is told apart by the same equations. But how values vary has to be learned from their buckets: few
instances have more of them than the planner would give. More than `MOST_PLANNED` get as many buckets each as so many
would. Cost: 0.3 s of a processor for ten instances, 2.5 s for fifty or more, so it is for a worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sojourn.core.errors import ParameterError
from sojourn.sketches.bucket_array import BucketArrayParameters

GROWN, SHRUNK, MARGIN = 2.0, 8.0, 1.25
# Planned for at least so many: the next ones come without a new plan.
LEAST_INSTANCES = 8
# Planning takes the third power of their number.
MOST_PLANNED = 60
MOST_BUCKETS = 1 << 16
CONFIDENCE = 0.95
# An array begins with room for some fifty instances; sums in 40 bits are those of 18 minutes in ns.
FIRST = BucketArrayParameters(buckets=64, per_instance=4, bits=40, count_bits=24)
FIRST_INSTANCES = 50
# Room in sums and counts beyond what an epoch was seen to hold, as a power of two. Sums are never narrower than at
# first: what an objective is there to notice is a measurement far beyond those of quiet times, and it has to fit.
SPARE_BITS = 4
LEAST_BITS, MOST_BITS, MOST_COUNT_BITS = 8, 62, 40
# Buckets of an instance where means are asked for: some fifteen in all tell how values vary.
FEW_INSTANCES, OF_FEW, OF_MANY = 8, 6, 3
# Where the planner's error cannot be kept by any array that it tries.
MOST_PER_INSTANCE = 10


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an epoch of a stream held: instances, measurements, and all that they added."""

    instances: int
    measurements: int
    total: float


def is_outgrown(planned: int, seen: Seen) -> bool:
    """Whether instances have left the band that an array is made for."""
    expected = max(seen.instances, LEAST_INSTANCES)
    return expected > GROWN * planned or expected * SHRUNK < planned


def sized(seen: Seen, *, error: float, every_ns: int, means: bool) -> tuple[BucketArrayParameters, int]:
    """The array for an epoch of such instances, whose means may be asked for, and how many it is made for."""
    from sojourn.sketches.sizing.iotm import Workload, plan_bucket_array

    expected = math.ceil(MARGIN * max(seen.instances, LEAST_INSTANCES))
    instances = min(expected, MOST_PLANNED)
    # A plan for few measurements is one for nothing but chance: at least some of each instance.
    measurements = max(round(seen.measurements * instances / expected), 20 * instances)
    workload = Workload(instances=instances, rate=measurements / (every_ns / 1e9), period_ns=every_ns)
    try:
        plan = plan_bucket_array(workload, error=error, confidence=CONFIDENCE, epochs=(1,)).parameters
        buckets, per_instance = plan.buckets, plan.per_instance
    except ParameterError:
        buckets, per_instance = MOST_PER_INSTANCE * instances, FIRST.per_instance
    buckets = min(math.ceil(buckets * expected / instances), MOST_BUCKETS)
    if means:
        per_instance = max(per_instance, OF_FEW if seen.instances < FEW_INSTANCES else OF_MANY)
    bits = SPARE_BITS + math.ceil(math.log2(max(seen.total, 1.0) + 1))
    count_bits = SPARE_BITS + math.ceil(math.log2(seen.measurements + 2))
    parameters = BucketArrayParameters(
        buckets=buckets,
        per_instance=per_instance,
        bits=min(max(bits, FIRST.bits), MOST_BITS),
        count_bits=min(max(count_bits, LEAST_BITS), MOST_COUNT_BITS),
    )
    return parameters, max(seen.instances, LEAST_INSTANCES)
