"""COLATE as published: mean latency of a flow from two counter vectors, by Theorem 2.

Theorem 2 is the moment estimator on each point's counters; it is linear, so the difference of the two
estimates is the estimate on the difference of the counters, D. The mean divides by the flow's packets p_f,
which the paper takes from NetFlow, and a capture's flow table or any flow records know:

- without a count array, Theorem 2 as printed;
- with a count array N, centred: g + Theorem 2 on (D − gN) over p_f, g the mean of all usable counters. Strangers
  then disturb by how their delays differ, not by how many they are.

What D is depends on how packets chose their counters. Coordinated (``packet``): D is a sum of delays. As
published (``random``): the two points put a packet into different counters, D is a difference of time stamps
of different packets, and the answer's interval is as wide as the epoch is long. It is true, and useless.
 **Under loss** (§1.4). With a count array only counters whose two counts agree take part (a flow keeps the share of
its packets that its usable counters have). Without one, the loss variant's vectors each take a share of the packets
by their hash, the same packets at every point, and the most frequent vector whose two packet counters agree answers;
a vector of N packets survives a loss rate l with probability (1 − l)ᴺ, so the one that answers has lost nothing and
has few packets: a draw of the flow's packets whose chance is part of the interval. With a single vector that lost
packets there is no answer. Guarantee: without duplicated packets, what is usable lost nothing on the way.

**Intervals.** What others put into m' counters is distributed as what they put into any m' counters, so random subsets
of the counters are draws of the noise: with its heavy tail (most subsets meet no elephant, a few meet one), which a
normal interval around the moment estimate would miss. Draws are made once per m' and shared by all instances.
 **Between any two points** (§5.3, §1.6). Theorem 2 needs nothing of the other point: t̃_f,X from X's vector alone,
and the mean latency is (t̃_f,R − t̃_f,S)/p_f (Eq. 3). So points may differ in n, m and b, and one vector serves all
peers of a point. The price is that nothing cancels: strangers at either point add whole time stamps, and intervals
are as wide as the epoch is long.

Cost: O(vectors · n + flows · m). Shahzad and Liu, "Noise Can Help", §4.1 (Theorem 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import MismatchError
from sojourn.core.estimates import NORMAL_95, Answer, Estimate, Reason, Unanswered, student_95
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.differences import delay_sums
from sojourn.estimation.published.moment import SharedCounters
from sojourn.sketches.counter_vector import CounterVector

# With fewer packets expected in the vector that answers, what it has of a flow is chance.
FEWEST_EXPECTED = 10


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
    expected = vector.expected(size, row)
    if evidence.counts is not None and not kept.all():
        # Counters that lost nothing tend to hold less than their share.
        expected = min(max(evidence.counts.sum_of(own)[0], 1.0), expected)
    if evidence.counts is None and expected < min(size, FEWEST_EXPECTED):
        return Unanswered(Reason.LOST_IN_NOISE)
    excess = evidence.sums.sum_of(own)[0] / expected
    bounds = evidence.noise.bounds_of_sum(evidence.sums.own_totals(own)[0], len(own))
    below, above = _partial_errors(evidence, own, excess, expected, size)
    value = (evidence.grand_mean + excess) * unit
    low = value - math.hypot(max(0.0, excess - bounds[0] / expected), below) * unit
    high = value + math.hypot(max(0.0, bounds[1] / expected - excess), above) * unit
    return Estimate(value, low, high, round(expected), method)


def _partial_errors(
    evidence: _Evidence, own: Int64Array, excess: float, expected: float, size: int
) -> tuple[float, float]:
    """The parts of the interval below and above that are due to hearing only some of the flow's packets."""
    unseen = max(0.0, 1 - expected / size)
    if not unseen:
        return 0.0, 0.0
    if len(own) < 2:
        return math.inf, math.inf
    sums = evidence.sums.centred[own, 0] + evidence.sums.means[0]
    if evidence.counts is None:
        return _draw_errors(sums, excess, expected, unseen)
    count = evidence.counts.centred[own, 0] + evidence.counts.means[0]
    deviation = sums - excess * count
    heard = count > 0
    if heard.sum() < 2:
        return math.inf, math.inf
    variance = float(np.sum(deviation[heard] ** 2 / count[heard])) / (int(heard.sum()) - 1)
    delays = student_95(int(heard.sum()) - 1) * math.sqrt(variance / expected * unseen)
    number = NORMAL_95 * abs(excess) * math.sqrt(unseen / expected)
    return math.hypot(number, delays), math.hypot(number, delays)


def _draw_errors(sums: FloatArray, mean: float, expected: float, unseen: float) -> tuple[float, float]:
    """What the draw of a share of the packets leaves open, their number unknown.

    A sum over drawn packets has variance unseen · Σ delay², which Theorem 4 estimates. It is small when few packets
    happened to be drawn, just when the sum is too small; a packet's typical latency r = Σ delay²/Σ delay is not, so
    the interval is that of all t with (mean − t)² ≤ z² · unseen · r · t / expected.
    """
    squares, total, z = all_repetitions(sums), float(sums.sum()), student_95(len(sums) - 1)
    if total <= 0 or squares / total > total:
        half = z * math.sqrt(squares * unseen) / expected
        return half, half
    typical = z**2 * unseen * squares / total / expected
    root = math.sqrt(max(0.0, mean) * typical + typical**2 / 4)
    return root - typical / 2, root + typical / 2


FEWEST_COUNTERS = 3  # two others at least tell how far counters spread


@dataclass(frozen=True, eq=False)
class UsableVector:
    """The vector that answers: its share of the packets, its usable counters, and their contents.

    ``cells`` is where the vector lies in the sketch, ``position`` where each of its counters lies among the usable
    ones; ``delay_sum`` and ``count`` (None without a count array) are those of the usable counters, in their unit.
    """

    cells: slice
    share: float
    usable: BoolArray
    position: Int64Array
    delay_sum: Int64Array
    count: Int64Array | None

    @property
    def whole(self) -> bool:
        """Whether all counters can be used."""
        return bool(self.usable.all())

    def expected(self, packets: int, row: Int64Array) -> float:
        """How many of a flow's packets its usable counters are expected to have, `row` naming all m."""
        return packets * self.share * float(self.usable[row].mean())


def usable_vector(sender: CounterVector, receiver: CounterVector) -> UsableVector | None:
    """The most frequent vector that can answer; None where all have lost packets."""
    sender.parameters.require_equal(receiver.parameters)
    parameters = sender.parameters
    counted = sender.has("count") and parameters.choice == "packet"
    sums = delay_sums(sender, receiver)
    if counted:
        usable_cells = sender.column("count") == receiver.column("count")
    else:
        usable_cells = np.repeat(sender.column("packets") == receiver.column("packets"), parameters.counters)
    for v in np.argsort([-share for share in parameters.shares], kind="stable").tolist():
        cells = slice(v * parameters.counters, (v + 1) * parameters.counters)
        usable = usable_cells[cells]
        if usable.sum() >= FEWEST_COUNTERS:
            count = sender.column("count")[cells][usable] if counted else None
            position = np.cumsum(usable) - 1
            return UsableVector(cells, parameters.shares[v], usable, position, sums[cells][usable], count)
    return None


DRAWS = 2000  # fifty beyond each end of a 95 % interval
TAILS = (0.025, 0.975)


def all_repetitions(difference: FloatArray) -> float:
    """Theorem 4's sum of squares over all permutations of d_1 … d_m: m/(m − 1) · Σ(d_j − d̄)².

    >>> all_repetitions(np.array([1.0, 3.0]))
    4.0
    """
    m = len(difference)
    return m / (m - 1) * float(np.sum((difference - difference.mean()) ** 2))


class CounterNoise:
    """Sums over random subsets of counters; seeded, so repeatable."""

    def __init__(self, values: FloatArray, seed: int = 0) -> None:
        self._values = values
        self._seed = seed
        self._drawn: dict[int, FloatArray] = {}

    def draws(self, owned: int) -> FloatArray:
        """`DRAWS` sums over `owned` counters each."""
        if owned not in self._drawn:
            random = np.random.default_rng((self._seed, owned))
            chosen = random.integers(0, len(self._values), (DRAWS, owned))
            self._drawn[owned] = self._values[chosen].sum(axis=1)
        return self._drawn[owned]

    def bounds_of_sum(self, own_sum: float, owned: int) -> tuple[float, float]:
        """The 95 % interval of the instance's part of `own_sum`."""
        low, high = np.quantile(self.draws(owned), TAILS)
        return own_sum - float(high), own_sum - float(low)


POINT_BY_POINT = "colate theorem 2, point by point"


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
        answers.append(
            Estimate(value * unit, min(low, value) * unit, max(high, value) * unit, vector.recorded, POINT_BY_POINT)
        )
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
        answers.append(Estimate(value / size, low / size, high / size, size, POINT_BY_POINT))
    return answers
