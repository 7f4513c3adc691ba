"""COLATE as a query between any two points: each point's sum of a flow's time stamps on its own, then their difference.

Theorem 2 needs nothing of the other point: t̃_f,X from X's vector alone, and the mean latency is (t̃_f,R − t̃_f,S)/p_f
(Eq. 3). So points may differ in n, m and b, and one vector serves all peers of a point (§5.3, §1.6). The price is that
nothing cancels: strangers at either point add whole time stamps. `colate` needs equal parameters and is what to use
where the same packets went past both points.

Guarantee: 95 % intervals, by draws of strangers at each point; as wide as the epoch is long. Cost: O(n + flows · m).

Shahzad and Liu, "Noise Can Help", §4.1 and §5.3.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.errors import MismatchError
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.published.colate.noise import CounterNoise
from sojourn.estimation.published.moment import SharedCounters
from sojourn.sketches.counter_vector import CounterVector

__all__ = ["estimate_means_between", "estimate_time_sums"]

METHOD = "colate theorem 2, point by point"


def estimate_time_sums(vector: CounterVector, flow_id: UInt64Array) -> list[Answer]:
    """t̃_f,X: the sum of each flow's time stamps at one point, in ns from the vector's origin."""
    parameters = vector.parameters
    if parameters.wrap or parameters.vectors > 1:
        raise MismatchError(
            "a point's own sums need one vector of plain sums",
            where=parameters.kind,
            action="record with wrap off, origin_ns set and one share",
        )
    values = vector.column("sum").astype(np.float64)
    shared, noise = SharedCounters(values), CounterNoise(values)
    rows = bucket_matrix(flow_id, parameters.function_salts, np.uint64(parameters.counters))
    answers: list[Answer] = []
    for row in rows:
        own = np.unique(row)
        if len(values) - len(own) < 2:
            answers.append(Unanswered(Reason.NO_USABLE_CELLS))
            continue
        value = shared.sum_of(own)[0]
        low, high = noise.bounds_of_sum(shared.own_totals(own)[0], len(own))
        unit = parameters.resolution_ns
        answers.append(Estimate(value * unit, min(low, value) * unit, max(high, value) * unit, vector.recorded, METHOD))
    return answers


def estimate_means_between(
    sender: CounterVector, receiver: CounterVector, flow_id: UInt64Array, packets: Int64Array
) -> list[Answer]:
    """Mean latency of each flow in ns between two points that share their origin; `packets` are the flows' sizes."""
    if sender.parameters.origin_ns != receiver.parameters.origin_ns:
        raise MismatchError(
            f"origins {sender.parameters.origin_ns} and {receiver.parameters.origin_ns} ns",
            where=sender.parameters.kind,
            action="count time stamps from one origin at both points",
        )
    answers: list[Answer] = []
    ends = zip(*(estimate_time_sums(vector, flow_id) for vector in (sender, receiver)), strict=True)
    for (sent, received), size in zip(ends, packets.tolist(), strict=True):
        if size < 1 or not isinstance(sent, Estimate) or not isinstance(received, Estimate):
            answers.append(Unanswered(Reason.NO_USABLE_CELLS if size >= 1 else Reason.UNKNOWN_INSTANCE))
            continue
        value = received.value - sent.value
        low = value - math.hypot(received.value - received.low, sent.high - sent.value)
        high = value + math.hypot(received.high - received.value, sent.value - sent.low)
        answers.append(Estimate(value / size, low / size, high / size, size, METHOD))
    return answers
