"""COLATE: standard deviation of a flow's latencies, as published (Theorems 3 and 4) and centred by counts.

**As published.** Theorem 3 takes the strangers' part out of each of the flow's m counters at each point, which leaves
w_S[j] and w_R[j]; with d_j = w_R[j] − w_S[j], a permutation of the counters pairs them, and the squared differences of
the m/2 pairs add up to an estimate E of the sum of squared latencies (Theorem 4, Eq. 9 and 10), averaged over γ random
permutations (virtual repetitions). Then σ² = E/p − μ² (Eq. 5), μ from Theorem 2.

- *Theorem 3*: with τ the sum of all strangers' time stamps, a counter's share of them, ξ, is taken as binomial (τ
  trials, each with probability 1/n). Setting the derivative of the likelihood to zero gives

      ψ(τ − ξ + 1) − ψ(ξ + 1) = ln(n − 1)        (Eq. 7, ξ = S − w)
 whose left side falls in ξ from +∞ to −∞: one root, close to τ/n. It does not know S, is the same for all m counters
of a flow and cancels in d_j: the theorem is solved as published, and changes nothing. Wrapped counters, which have no
sums of time stamps to take it out of, give the same answer without.
- *Theorem 4*: every two counters are a pair in a share 1/(m − 1) of all permutations, so the average over all of them
  is m/(m − 1) · Σ(d_j − d̄)², which γ repetitions approach as 1/√γ; ``repetitions=None`` computes that. Repetitions
  take away the permutations' chance, not that of how packets fell on counters: E is known to ± √(2/(m − 1)) with any
  γ.
- E has the strangers' squares as well as the flow's, and σ² is the small difference of E/p and μ². With j chosen
  independently at the two points E is a sum of squares of time stamps: at least the sum of squared latencies, which is
  all that its interval says.
 **Centred.** Theorem 4 compares the flow's counters, d_j, although one with more packets has the larger sum. With
counts N_j the comparison is between mean latencies, d_j/N_j, each weighted by its packets:

    Q = Σ_j N_j · (d_j/N_j − d̄)²,   d̄ = Σd/ΣN,

of which a flow alone in its counters has σ²·(m − 1) on average. The mean's square, which the published form subtracts
from a number just above it, has gone; the error is that of a variance from m values (±16 % of σ with m = 20). Counts
also tell how many of a counter's packets are strangers': of a flow of p packets a counter has a Poisson number around
p/m, of strangers as many as other counters do, and both add up to N_j. Counters that are probably more than half
strangers' are left out. No key list is needed; with one, `joint.colate` knows who the strangers are.
 **Intervals** (`SquareDraws`). A flow's own deviation s is seen in Q(s) = A·s² + 2B·s + C: A from its own packets
(how they happened to fall), C from what strangers put into the same counters, B from both. Draws of (A, B, C), with
strangers taken from random counters of the same vector, heavy tail and all, give the distribution of Q at any s. It
rises with s, so the s at which an observed Q is the 97.5 %, 50 % and 2.5 % quantile are the lower bound, the
median-unbiased value and the upper bound. Where strangers alone explain Q, the lower bound is 0. Published values
widen their interval where they lie outside.

Guarantee: 95 % intervals. Deviations are those of all the flow's packets. Cost: O(n + flows · m) with the closed form
and 1 ms a flow for its interval as published; O(n log n) and about 5 ms a flow with m = 20 centred.

Shahzad and Liu, "Noise Can Help", §4.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import MismatchError, ParameterError
from sojourn.core.estimates import NORMAL_95, Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import kernel
from sojourn.estimation.published.colate import DRAWS, UsableVector, all_repetitions, estimate_flow_means, usable_vector
from sojourn.estimation.published.moment import SharedCounters
from sojourn.sketches.counter_vector import CounterVector

PUBLISHED, CENTRED = "colate theorem 4", "colate count-centred"
FEWEST_COUNTERS = 2
MOST_STRANGERS = 0.5
MLE_HALVINGS = 110  # of an interval of up to 10¹⁹ ns: to the last bit of a float
TAILS = (0.975, 0.5, 0.025)
HALVINGS, DOUBLINGS = 50, 200


def estimate_flow_deviations(
    sender: CounterVector,
    receiver: CounterVector,
    flow_id: UInt64Array,
    packets: Int64Array,
    *,
    repetitions: int | None = None,
    seed: int = 0,
) -> list[Answer]:
    """Standard deviation of each flow's latencies in ns; `packets` are the flows' sizes.

    ``repetitions`` is the paper's γ; None is all permutations, by the closed form.
    """
    parameters = sender.parameters
    means = estimate_flow_means(sender, receiver, flow_id, packets)
    vector = usable_vector(sender, receiver)
    if vector is None:
        return list(means)
    rows = bucket_matrix(flow_id, parameters.function_salts, np.uint64(parameters.counters))
    denoised = _Denoised(sender, receiver, vector, rows)
    draws: dict[int, SquareDraws] = {}
    answers: list[Answer] = []
    for flow, (row, mean) in enumerate(zip(rows, means, strict=True)):
        kept = row[vector.usable[row]]
        if not isinstance(mean, Estimate) or len(kept) < FEWEST_COUNTERS:
            answers.append(Unanswered(Reason.NO_USABLE_CELLS) if isinstance(mean, Estimate) else mean)
            continue
        difference = denoised.difference(flow, kept)
        squares = all_repetitions(difference)
        if len(kept) not in draws:
            draws[len(kept)] = _own_and_strangers(vector, len(kept))
        bounds = draws[len(kept)].interval(squares)
        if repetitions is not None:
            squares = virtual_repetitions(difference, repetitions, seed=seed + flow)
        expected = vector.expected(int(packets[flow]), row)
        answers.append(_answer(squares, bounds, expected, mean, parameters.resolution_ns, parameters.choice))
    return answers


class _Denoised:
    """Theorems 2 and 3 at both points, for the flows whose counters are `rows`."""

    def __init__(self, sender: CounterVector, receiver: CounterVector, vector: UsableVector, rows: Int64Array) -> None:
        self._vector = vector
        # Wrapped sums are known as differences only, in which the strangers' constant cancels.
        plain = not sender.parameters.wrap and vector.whole and sender.parameters.counters > 2
        self._ends: list[tuple[FloatArray, FloatArray]] = []
        for end in (sender, receiver) if plain else ():
            sums = end.column("sum")[vector.cells].astype(np.float64)
            shared, total = SharedCounters(sums), float(sums.sum())
            others = np.array([max(0.0, total - shared.sum_of(np.unique(row))[0]) for row in rows])
            self._ends.append((sums, stranger_part(others, len(sums))))

    def difference(self, flow: int, kept: Int64Array) -> FloatArray:
        """w_R[j] − w_S[j] of the flow's counters `kept`, a counter as often as hash functions name it."""
        if not self._ends:
            return self._vector.delay_sum[self._vector.position[kept]].astype(np.float64)
        sent, received = (sums[kept] - strangers[flow] for sums, strangers in self._ends)
        denoised: FloatArray = received - sent
        return denoised


def _own_and_strangers(vector: UsableVector, owned: int) -> SquareDraws:
    """Draws of m/(m − 1) · Σ(d_j − d̄)² for a flow with a sum of squared latencies of 1, and for strangers."""
    random = np.random.default_rng((0, owned))
    own = random.normal(0, 1 / math.sqrt(owned), (DRAWS, owned))
    strangers = vector.delay_sum[random.integers(0, len(vector.delay_sum), (DRAWS, owned))].astype(np.float64)
    return SquareDraws.weighted(own, strangers, np.full((DRAWS, owned), owned / (owned - 1)))


def _answer(
    squares: float, bounds: tuple[float, float, float], expected: float, mean: Estimate, unit: int, choice: str
) -> Answer:
    """Eq. 5, and the interval of a difference of two estimates (each bound moved by both parts' doubts)."""
    value = math.sqrt(max(0.0, squares / expected * unit**2 - mean.value**2))
    low, middle, high = (bound**2 / expected * unit**2 for bound in bounds)
    if choice == "random":
        return Estimate(value, 0.0, max(value, math.sqrt(high)), mean.samples, f"{PUBLISHED}, independent j")
    mean_low = 0.0 if mean.low <= 0 <= mean.high else min(mean.low**2, mean.high**2)
    mean_high = max(mean.low**2, mean.high**2)
    centre = middle - mean.value**2
    below = centre - math.hypot(middle - low, mean_high - mean.value**2)
    above = min(centre + math.hypot(high - middle, mean.value**2 - mean_low), high)
    lowest, highest = math.sqrt(max(0.0, below)), math.sqrt(max(0.0, above))
    return Estimate(value, min(value, lowest), max(value, highest), mean.samples, PUBLISHED)


def virtual_repetitions(difference: FloatArray, repetitions: int, *, seed: int = 0) -> float:
    """E of Theorem 4 over `repetitions` random permutations; O(repetitions · m).

    An odd m, which the paper excludes, leaves one counter out each time and scales by what is missing.
    """
    if repetitions < 1:
        raise ParameterError(f"{repetitions} virtual repetitions", where="colate", action="use 1 or more")
    random = np.random.default_rng(seed)
    return _repeat(difference, random.integers(0, 2**63, (repetitions, len(difference))))


@kernel
def _repeat(difference: FloatArray, order: Int64Array) -> float:
    """Eq. 9 and 10 for the permutation that sorts each row of `order`."""
    m = len(difference)
    total = 0.0
    for row in range(len(order)):
        permutation = np.argsort(order[row])
        for pair in range(m // 2):
            total += (difference[permutation[2 * pair + 1]] - difference[permutation[2 * pair]]) ** 2
    return total / len(order) * (m / 2) / (m // 2)


def stranger_part(stranger_total: FloatArray, counters: int) -> FloatArray:
    """ξ, the strangers' part of one counter, for each sum τ of all strangers' time stamps.

    >>> stranger_part(np.array([1e6]), 1000).round(1)
    array([999.5])
    """
    if counters < 2 or not (stranger_total >= 0).all():
        raise ParameterError(
            f"Theorem 3 with {counters} counters and a total of {stranger_total.min(initial=0):g}",
            where="colate",
            action="use two counters or more, and time stamps that are not negative",
        )
    low, high = np.zeros(len(stranger_total)), stranger_total + 2.0
    for _ in range(MLE_HALVINGS):
        middle = (low + high) / 2
        too_low = digamma(stranger_total + 2 - middle) - digamma(middle) > math.log(counters - 1)
        low, high = np.where(too_low, middle, low), np.where(too_low, high, middle)
    roots: FloatArray = high - 1
    return roots


def estimate_centred_deviations(
    sender: CounterVector, receiver: CounterVector, flow_id: UInt64Array, packets: Int64Array
) -> list[Answer]:
    """Standard deviation of each flow's latencies in ns; `packets` are the flows' sizes."""
    parameters = sender.parameters
    if parameters.choice != "packet" or not sender.has("count"):
        raise MismatchError(
            "count-centred deviations need counts of the same packets at both points",
            where=parameters.kind,
            action="record with choice packet and count_bits",
        )
    means = estimate_flow_means(sender, receiver, flow_id, packets)
    vector = usable_vector(sender, receiver)
    if vector is None or vector.count is None:
        return list(means)
    rows = bucket_matrix(flow_id, parameters.function_salts, np.uint64(parameters.counters))
    counters = _Counters(vector.delay_sum, vector.count)
    unit = parameters.resolution_ns
    answers: list[Answer] = []
    for row, mean, size in zip(rows, means, packets.tolist(), strict=True):
        own, functions = np.unique(row[vector.usable[row]], return_counts=True)
        at = vector.position[own]
        heard = vector.count[at] > 0
        if not isinstance(mean, Estimate) or heard.sum() < FEWEST_COUNTERS:
            answers.append(Unanswered(Reason.NO_USABLE_CELLS) if isinstance(mean, Estimate) else mean)
            continue
        expected = size * vector.share / len(row) * functions[heard]
        doubt = (mean.high - mean.low) / (2 * NORMAL_95)
        low, value, high = counters.deviation(at[heard], expected, mean.value / unit, doubt / unit)
        answers.append(Estimate(value * unit, low * unit, high * unit, mean.samples, CENTRED))
    return answers


class _Counters:
    """All usable counters, by how many packets they hold."""

    def __init__(self, delay_sum: Int64Array, count: Int64Array) -> None:
        self._sum: FloatArray = delay_sum.astype(np.float64)
        self._count = count
        self._order: Int64Array = np.argsort(count, kind="stable")
        self._held, self._start, self._many = np.unique(count[self._order], return_index=True, return_counts=True)
        self._log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, int(count.max()) + 1)))])

    def deviation(self, own: Int64Array, expected: FloatArray, mean: float, doubt: float) -> tuple[float, float, float]:
        """Bounds and value of a flow's deviation, from the counters it owns, the packets expected in each and its mean,
        which is known to ± `doubt`."""
        shares = [self._strangers(int(n), packets) for n, packets in zip(self._count[own], expected, strict=True)]
        foreign = np.array([float(share @ self._held) for share in shares]) / self._count[own]
        kept = np.argsort(foreign, kind="stable")[: max(FEWEST_COUNTERS, int((foreign <= MOST_STRANGERS).sum()))]
        own = own[np.sort(kept)]
        total = self._count[own].astype(np.float64)
        random = np.random.default_rng((1, len(own)))
        drawn, strangers = np.empty((DRAWS, len(own))), np.empty((DRAWS, len(own)))
        around = mean + (random.normal(0, doubt, DRAWS) if math.isfinite(doubt) else 0.0)
        for column, place in enumerate(np.sort(kept).tolist()):
            kind = np.searchsorted(np.cumsum(shares[place]), random.uniform(0, 1 - 1e-12, DRAWS), side="right")
            kind = np.minimum(kind, len(self._held) - 1)
            other = self._order[self._start[kind] + (random.uniform(size=DRAWS) * self._many[kind]).astype(np.int64)]
            drawn[:, column] = np.maximum(total[column] - self._held[kind], 0.0)
            strangers[:, column] = self._sum[other] - around * self._held[kind]
        noise = np.sqrt(drawn) * random.normal(size=drawn.shape)
        draws = SquareDraws.weighted(noise / total, strangers / total, np.broadcast_to(total, drawn.shape))
        centre = float(self._sum[own].sum() / total.sum())
        return draws.interval(float(np.sum((self._sum[own] - centre * total) ** 2 / total)))

    def _strangers(self, total: int, expected: float) -> FloatArray:
        """How probable each number of strangers' packets is in a counter of `total`, `expected` of them the flow's."""
        own = total - self._held
        possible = own >= 0
        weight = np.full(len(own), -np.inf)
        log_own = own[possible] * math.log(expected) - self._log_factorial[own[possible]]
        weight[possible] = np.log(self._many[possible]) + log_own
        if not possible.any():
            weight[0] = 0.0
        share: FloatArray = np.exp(weight - weight.max())
        share /= share.sum()
        return share


@kernel
def _share_below(own: FloatArray, cross: FloatArray, strangers: FloatArray, s: float, observed: float) -> float:
    below = 0
    for i in range(len(own)):
        below += (own[i] * s + 2 * cross[i]) * s + strangers[i] <= observed
    return below / len(own)


@kernel
def _solve(own: FloatArray, cross: FloatArray, strangers: FloatArray, observed: float, level: float) -> float:
    """The s at which a share `level` of the draws lies below what was observed; 0 where even s = 0 leaves fewer."""
    if _share_below(own, cross, strangers, 0.0, observed) < level:
        return 0.0
    low, high = 0.0, math.sqrt(max(observed, 1e-300) / max(own.max(), 1e-300))
    for _ in range(DOUBLINGS):
        if _share_below(own, cross, strangers, high, observed) < level:
            break
        low, high = high, 2 * high
    else:
        return math.inf
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _share_below(own, cross, strangers, middle, observed) < level:
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True, eq=False)
class SquareDraws:
    """Draws of A, B and C."""

    own: FloatArray
    cross: FloatArray
    strangers: FloatArray

    @classmethod
    def weighted(cls, own: FloatArray, strangers: FloatArray, weight: FloatArray) -> SquareDraws:
        """Of Q = Σ w·(x − x̄)², x̄ the weighted mean and x the two parts' sum: rows are draws, columns counters."""
        total = np.maximum(weight.sum(axis=1), 1e-300)
        a, b = (values - ((weight * values).sum(axis=1) / total)[:, None] for values in (own, strangers))
        return cls((weight * a * a).sum(axis=1), (weight * a * b).sum(axis=1), (weight * b * b).sum(axis=1))

    def interval(self, observed: float) -> tuple[float, float, float]:
        """The lower bound, the value and the upper bound of s where Q is `observed`."""
        low, middle, high = (_solve(self.own, self.cross, self.strangers, observed, level) for level in TAILS)
        return low, max(low, middle), max(low, middle, high)
