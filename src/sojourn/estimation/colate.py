"""COLATE: mean latency of a flow from two counter vectors, by Theorem 2.

Theorem 2 is the moment estimator on each point's counters; it is linear, so the difference of the two
estimates is the estimate on the difference of the counters, D. The mean divides by the flow's packets p_f,
which the paper takes from NetFlow, and a capture's flow table or any flow records know:

- without a count array, Theorem 2 as it stands;
- with a count array N, centred: g + Theorem 2 on (D − gN) over p_f, g the mean of all usable counters. Strangers
  then disturb by how their delays differ, not by how many they are.

What D holds depends on how packets chose their counters. Coordinated (``packet``): D is a sum of delays. As
published (``random``): the two points put a packet into different counters, D is a difference of time stamps
of different packets, and the answer's interval is as wide as the epoch is long. It is true, and useless.

Under loss: with a count array only counters whose two counts agree take part (a flow keeps the share of its
packets that its usable counters hold); without one, the loss variant uses the most frequent vector whose
packet counters agree, and with a single vector that lost packets there is no answer.

Shahzad and Liu, "Noise Can Help", §4.1 (Theorem 2) and §1.4 (loss).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.differences import delay_sums
from sojourn.estimation.moment import SharedCounters
from sojourn.estimation.noise import CounterNoise
from sojourn.estimation.quantiles import NORMAL_95, student_95
from sojourn.sketches.counter_vector import CounterVector

__all__ = ["estimate_flow_means"]


@dataclass(frozen=True, eq=False)
class _Vector:
    """The vector that answers: its usable counters, where each lies among them, its share of packets."""

    usable: BoolArray
    position: Int64Array
    share: float
    sums: SharedCounters
    noise: CounterNoise
    counts: SharedCounters | None
    grand_mean: float


def estimate_flow_means(
    sender: CounterVector, receiver: CounterVector, flow_id: UInt64Array, packets: Int64Array
) -> list[Answer]:
    """Mean latency of each flow in ns; `packets` are the flows' sizes. O(n + flows · m)."""
    sender.parameters.require_equal(receiver.parameters)
    parameters = sender.parameters
    vector = _usable_vector(sender, receiver)
    if vector is None:
        return [Unanswered(Reason.NO_USABLE_CELLS)] * len(flow_id)
    matrix = bucket_matrix(flow_id, parameters.function_salts, np.uint64(parameters.counters))
    method = "colate theorem 2"
    if parameters.choice == "random":
        method += ", independent j"
    elif sender.has("count"):
        method += ", centred"
    return [
        _answer(vector, row, int(size), parameters.resolution_ns, method)
        for row, size in zip(matrix, packets, strict=True)
    ]


def _usable_vector(sender: CounterVector, receiver: CounterVector) -> _Vector | None:
    """Vector by vector, the most frequent first, until one can answer."""
    parameters = sender.parameters
    sums = delay_sums(sender, receiver)
    counted = sender.has("count") and parameters.choice == "packet"
    if counted:
        all_usable = sender.column("count") == receiver.column("count")
    else:
        agree = sender.column("packets") == receiver.column("packets")
        all_usable = np.repeat(agree, parameters.counters)
    for v in np.argsort([-share for share in parameters.shares], kind="stable").tolist():
        cells = slice(v * parameters.counters, (v + 1) * parameters.counters)
        usable = all_usable[cells]
        if usable.sum() > 2:
            counts = sender.column("count")[cells][usable] if counted else None
            return _vector(usable, parameters.shares[v], sums[cells][usable], counts)
    return None


def _vector(usable: BoolArray, share: float, sums: Int64Array, counts: Int64Array | None) -> _Vector:
    position = np.cumsum(usable) - 1
    if counts is None:
        values = sums.astype(np.float64)
        return _Vector(usable, position, share, SharedCounters(values), CounterNoise(values), None, 0.0)
    grand = float(sums.sum()) / max(1.0, float(counts.sum()))
    centred = sums - grand * counts
    noise = CounterNoise(centred)
    return _Vector(usable, position, share, SharedCounters(centred), noise, SharedCounters(counts), grand)


def _answer(vector: _Vector, row: Int64Array, size: int, unit: int, method: str) -> Answer:
    """Theorem 2 over the flow's usable counters, divided by the packets they hold."""
    kept = vector.usable[row]
    if size < 1 or not kept.any():
        return Unanswered(Reason.NO_USABLE_CELLS if size >= 1 else Reason.UNKNOWN_INSTANCE)
    own = vector.position[np.unique(row[kept])]
    held = size * vector.share * float(kept.mean())
    if vector.counts is not None and not kept.all():
        # Counters that lost nothing tend to hold less than their share.
        held = min(max(vector.counts.sum_of(own)[0], 1.0), held)
    excess = vector.sums.sum_of(own)[0] / held
    bounds = vector.noise.bounds_of_sum(vector.sums.own_totals(own)[0], len(own))
    partial = _partial_error(vector, own, excess, held, size)
    value = (vector.grand_mean + excess) * unit
    low = value - math.hypot(max(0.0, excess - bounds[0] / held), partial) * unit
    high = value + math.hypot(max(0.0, bounds[1] / held - excess), partial) * unit
    return Estimate(value, low, high, round(held), method)


def _partial_error(vector: _Vector, own: Int64Array, excess: float, held: float, size: int) -> float:
    """Half the interval due to hearing only some of the flow's packets: their number and their delays are a draw."""
    unseen = max(0.0, 1 - held / size)
    if not unseen:
        return 0.0
    number = NORMAL_95 * abs(excess) * math.sqrt(unseen / held)
    if vector.counts is None or len(own) < 2:
        return number if vector.counts is None else math.inf
    count = vector.counts.centred[own, 0] + vector.counts.means[0]
    deviation = vector.sums.centred[own, 0] + vector.sums.means[0] - excess * count
    heard = count > 0
    if heard.sum() < 2:
        return math.inf
    variance = float(np.sum(deviation[heard] ** 2 / count[heard])) / (int(heard.sum()) - 1)
    delays = student_95(int(heard.sum()) - 1) * math.sqrt(variance / held * unseen)
    return math.hypot(number, delays)
