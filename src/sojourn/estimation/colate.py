"""COLATE: mean latency of a flow from two counter vectors, by Theorem 2.

Theorem 2 is the moment estimator on each point's counters; it is linear, so the difference of the two
estimates is the estimate on the difference of the counters, D. The mean divides by the flow's packets p_f:

- p_f given (the paper takes them from NetFlow): Theorem 2 as it stands;
- p_f given, and a count array N: centred, g + Theorem 2 on (D − gN) over p_f, g the mean of all usable
  counters: strangers then disturb by how their delays differ, not by how many they are;
- only a count array: the ratio of Theorem 2 on D and on N.

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
from sojourn.core.errors import UsageError
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.differences import delay_sums
from sojourn.estimation.moment import SharedCounters, moment_ratio
from sojourn.estimation.quantiles import NORMAL_95
from sojourn.sketches.counter_vector import CounterVector

__all__ = ["estimate_flow_means"]


@dataclass(frozen=True, eq=False)
class _Vector:
    """The vector that answers: its usable counters, where each lies among them, its share of packets."""

    usable: BoolArray
    position: Int64Array
    share: float
    shared: SharedCounters
    centred: SharedCounters
    grand_mean: float


def estimate_flow_means(
    sender: CounterVector, receiver: CounterVector, flow_id: UInt64Array, packets: Int64Array | None = None
) -> list[Answer]:
    """Mean latency of each flow in ns; `packets` are the flows' sizes (from counts if not given).

    O(n + flows · m).
    """
    sender.parameters.require_equal(receiver.parameters)
    parameters = sender.parameters
    counted = sender.has("count") and parameters.choice == "packet"
    if packets is None and not counted:
        raise UsageError(
            "the flows' sizes are neither given nor counted",
            where="counter_vector",
            action="pass packets, or record with count_bits and coordinated choice",
        )
    vector = _usable_vector(sender, receiver)
    if vector is None:
        return [Unanswered(Reason.NO_USABLE_CELLS)] * len(flow_id)
    matrix = bucket_matrix(flow_id, parameters.function_salts, np.uint64(parameters.counters))
    method = "colate theorem 2"
    if parameters.choice == "random":
        method += ", independent j"
    elif counted:
        method += ", centred" if packets is not None else ", counted"
    unit = parameters.resolution_ns
    if packets is None:
        return [_answer_by_counts(vector, row, unit, method) for row in matrix]
    return [_answer_by_size(vector, row, int(size), unit, method) for row, size in zip(matrix, packets, strict=True)]


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
        shared = SharedCounters(sums)
        return _Vector(usable, position, share, shared, shared, 0.0)
    grand = float(sums.sum()) / max(1.0, float(counts.sum()))
    centred = SharedCounters(sums - grand * counts)
    return _Vector(usable, position, share, SharedCounters(sums, counts), centred, grand)


def _answer_by_counts(vector: _Vector, row: Int64Array, unit: int, method: str) -> Answer:
    """Theorem 2 on sums over Theorem 2 on counts, both over the flow's usable counters."""
    own = np.unique(row[vector.usable[row]])
    return moment_ratio(vector.shared, vector.position[own], unit="ns", method=method, scale=unit)


def _answer_by_size(vector: _Vector, row: Int64Array, size: int, unit: int, method: str) -> Answer:
    """Theorem 2 over the flow's usable counters, divided by the packets they should hold."""
    kept = vector.usable[row]
    held = size * vector.share * float(kept.mean())
    if size < 1 or held == 0:
        return Unanswered(Reason.NO_USABLE_CELLS if size >= 1 else Reason.UNKNOWN_INSTANCE)
    value, half = vector.centred.sum_of(vector.position[np.unique(row[kept])])
    excess, noise = value / held, half / held
    # How many of the flow's packets these counters hold is itself a draw.
    missing = 1 - held / size
    draw = NORMAL_95 * abs(excess) * math.sqrt(missing / held) if missing > 0 else 0.0
    mean = vector.grand_mean + excess
    half_width = math.hypot(noise, draw) * unit
    return Estimate.around(mean * unit, half_width, samples=round(held), method=method)
