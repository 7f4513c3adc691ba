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
packet counters agree (`colate_vectors`), a draw of the flow's packets whose chance is part of the interval; with a
single vector that lost packets there is no answer.

Shahzad and Liu, "Noise Can Help", §4.1 (Theorem 2) and §1.4 (loss).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.published.colate.noise import CounterNoise
from sojourn.estimation.published.colate.repetitions import all_repetitions
from sojourn.estimation.published.colate.vectors import UsableVector, usable_vector
from sojourn.estimation.published.moment import SharedCounters
from sojourn.estimation.quantiles import NORMAL_95, student_95
from sojourn.sketches.counter_vector import CounterVector

__all__ = ["estimate_flow_means"]

# Fewer packets expected in the vector that answers, and what it holds of a flow is chance.
FEWEST_HELD = 10


@dataclass(frozen=True, eq=False)
class _Evidence:
    """What the vector that answers holds, ready for Theorem 2."""

    vector: UsableVector
    sums: SharedCounters
    noise: CounterNoise
    counts: SharedCounters | None
    grand_mean: float


def estimate_flow_means(
    sender: CounterVector, receiver: CounterVector, flow_id: UInt64Array, packets: Int64Array
) -> list[Answer]:
    """Mean latency of each flow in ns; `packets` are the flows' sizes. O(n + flows · m)."""
    parameters = sender.parameters
    vector = usable_vector(sender, receiver)
    if vector is None:
        return [Unanswered(Reason.NO_USABLE_CELLS)] * len(flow_id)
    matrix = bucket_matrix(flow_id, parameters.function_salts, np.uint64(parameters.counters))
    method = "colate theorem 2"
    if parameters.choice == "random":
        method += ", independent j"
    elif sender.has("count"):
        method += ", centred"
    evidence = _evidence(vector)
    return [
        _answer(evidence, row, int(size), parameters.resolution_ns, method)
        for row, size in zip(matrix, packets, strict=True)
    ]


def _evidence(vector: UsableVector) -> _Evidence:
    """Sums as they are, or around the mean of all counters where they have counts."""
    sums, counts = vector.delay_sum, vector.count
    if counts is None:
        values = sums.astype(np.float64)
        return _Evidence(vector, SharedCounters(values), CounterNoise(values), None, 0.0)
    grand = float(sums.sum()) / max(1.0, float(counts.sum()))
    centred = sums - grand * counts
    return _Evidence(vector, SharedCounters(centred), CounterNoise(centred), SharedCounters(counts), grand)


def _answer(evidence: _Evidence, row: Int64Array, size: int, unit: int, method: str) -> Answer:
    """Theorem 2 over the flow's usable counters, divided by the packets they hold."""
    vector = evidence.vector
    kept = vector.usable[row]
    if size < 1 or not kept.any():
        return Unanswered(Reason.NO_USABLE_CELLS if size >= 1 else Reason.UNKNOWN_INSTANCE)
    own = vector.position[np.unique(row[kept])]
    held = vector.held(size, row)
    if evidence.counts is not None and not kept.all():
        # Counters that lost nothing tend to hold less than their share.
        held = min(max(evidence.counts.sum_of(own)[0], 1.0), held)
    if evidence.counts is None and held < min(size, FEWEST_HELD):
        return Unanswered(Reason.LOST_IN_NOISE)
    excess = evidence.sums.sum_of(own)[0] / held
    bounds = evidence.noise.bounds_of_sum(evidence.sums.own_totals(own)[0], len(own))
    below, above = _partial_errors(evidence, own, excess, held, size)
    value = (evidence.grand_mean + excess) * unit
    low = value - math.hypot(max(0.0, excess - bounds[0] / held), below) * unit
    high = value + math.hypot(max(0.0, bounds[1] / held - excess), above) * unit
    return Estimate(value, low, high, round(held), method)


def _partial_errors(evidence: _Evidence, own: Int64Array, excess: float, held: float, size: int) -> tuple[float, float]:
    """The parts of the interval below and above that are due to hearing only some of the flow's packets."""
    unseen = max(0.0, 1 - held / size)
    if not unseen:
        return 0.0, 0.0
    if len(own) < 2:
        return math.inf, math.inf
    sums = evidence.sums.centred[own, 0] + evidence.sums.means[0]
    if evidence.counts is None:
        return _draw_errors(sums, excess, held, unseen)
    count = evidence.counts.centred[own, 0] + evidence.counts.means[0]
    deviation = sums - excess * count
    heard = count > 0
    if heard.sum() < 2:
        return math.inf, math.inf
    variance = float(np.sum(deviation[heard] ** 2 / count[heard])) / (int(heard.sum()) - 1)
    delays = student_95(int(heard.sum()) - 1) * math.sqrt(variance / held * unseen)
    number = NORMAL_95 * abs(excess) * math.sqrt(unseen / held)
    return math.hypot(number, delays), math.hypot(number, delays)


def _draw_errors(sums: FloatArray, mean: float, held: float, unseen: float) -> tuple[float, float]:
    """What the draw of a share of the packets leaves open, their number unknown.

    A sum over drawn packets has variance unseen · Σ delay², which Theorem 4 estimates. It is small when few packets
    happened to be drawn, just when the sum is too small; a packet's typical latency r = Σ delay²/Σ delay is not, so
    the interval is that of all t with (mean − t)² ≤ z² · unseen · r · t / held.
    """
    squares, total, z = all_repetitions(sums), float(sums.sum()), student_95(len(sums) - 1)
    if total <= 0 or squares / total > total:
        half = z * math.sqrt(squares * unseen) / held
        return half, half
    typical = z**2 * unseen * squares / total / held
    root = math.sqrt(max(0.0, mean) * typical + typical**2 / 4)
    return root - typical / 2, root + typical / 2
