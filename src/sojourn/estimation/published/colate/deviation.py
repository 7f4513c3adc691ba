"""COLATE: standard deviation of a flow's latencies as published, by Theorems 3 and 4.

Theorem 3 takes the strangers' part out of each of the flow's m counters at each point (`colate_mle`), which leaves
w_S[j] and w_R[j]; with d_j = w_R[j] − w_S[j], a permutation of the counters pairs them, and the squared differences of
pairs add up to an estimate of the sum of squared latencies (Theorem 4, Eq. 9 and 10), averaged over γ permutations
(virtual repetitions). Then σ² = E/p − μ² (Eq. 5), μ from Theorem 2.

- The average over all permutations has a closed form (`colate_repetitions`); ``repetitions=None`` computes that.
- The strangers' part is one constant for all j and cancels. Wrapped counters, which have no sums of time stamps to
  take it out of, give the same answer without.
- E holds the strangers' squares as well as the flow's, and σ² is the small difference of E/p and μ².

With j chosen independently at the two points E is a sum of squares of time stamps: at least the sum of squared
latencies, which is all that its interval says.

Guarantee: 95 % intervals, by draws of strangers (`square_draws`) and widened to hold the published value. Deviations
are those of all the flow's packets. Cost: O(n + flows · m) with the closed form, and 1 ms a flow for its interval.

Shahzad and Liu, "Noise Can Help", §4.2.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.published.colate.mean import estimate_flow_means
from sojourn.estimation.published.colate.mle import stranger_part
from sojourn.estimation.published.colate.repetitions import all_repetitions, virtual_repetitions
from sojourn.estimation.published.colate.square_draws import DRAWS, SquareDraws
from sojourn.estimation.published.colate.vectors import UsableVector, usable_vector
from sojourn.estimation.published.moment import SharedCounters
from sojourn.sketches.counter_vector import CounterVector

__all__ = ["estimate_flow_deviations"]

METHOD = "colate theorem 4"
FEWEST_COUNTERS = 2


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

    ``repetitions`` is the paper's γ; None stands for all permutations, by the closed form.
    """
    parameters = sender.parameters
    means = estimate_flow_means(sender, receiver, flow_id, packets)
    vector = usable_vector(sender, receiver)
    if vector is None:
        return list(means)
    rows = bucket_matrix(flow_id, parameters.function_salts, np.uint64(parameters.counters))
    denoised = _Denoised(sender, receiver, vector)
    draws: dict[int, SquareDraws] = {}
    answers: list[Answer] = []
    for flow, (row, mean) in enumerate(zip(rows, means, strict=True)):
        kept = row[vector.usable[row]]
        if not isinstance(mean, Estimate) or len(kept) < FEWEST_COUNTERS:
            answers.append(Unanswered(Reason.NO_USABLE_CELLS) if isinstance(mean, Estimate) else mean)
            continue
        difference = denoised.difference(kept)
        squares = all_repetitions(difference)
        if len(kept) not in draws:
            draws[len(kept)] = _own_and_strangers(vector, len(kept))
        bounds = draws[len(kept)].interval(squares)
        if repetitions is not None:
            squares = virtual_repetitions(difference, repetitions, seed=seed + flow)
        held = vector.held(int(packets[flow]), row)
        answers.append(_answer(squares, bounds, held, mean, parameters.resolution_ns, parameters.choice))
    return answers


class _Denoised:
    """Theorems 2 and 3 at both points."""

    def __init__(self, sender: CounterVector, receiver: CounterVector, vector: UsableVector) -> None:
        self._vector = vector
        # Wrapped sums are known as differences only, in which the strangers' constant cancels.
        plain = not sender.parameters.wrap and vector.whole and sender.parameters.counters > 2
        self._sums = [end.column("sum")[vector.cells].astype(np.float64) for end in (sender, receiver) if plain]
        self._totals = [float(sums.sum()) for sums in self._sums]
        self._shared = [SharedCounters(sums) for sums in self._sums]

    def difference(self, kept: Int64Array) -> FloatArray:
        """w_R[j] − w_S[j] of the flow's counters `kept`, a counter as often as hash functions name it."""
        if not self._sums:
            return self._vector.delay_sum[self._vector.position[kept]].astype(np.float64)
        own = np.unique(kept)
        left: list[FloatArray] = []
        for sums, total, shared in zip(self._sums, self._totals, self._shared, strict=True):
            others = np.array([max(0.0, total - shared.sum_of(own)[0])])
            left.append(sums[kept] - stranger_part(others, len(sums))[0])
        denoised: FloatArray = left[1] - left[0]
        return denoised


def _own_and_strangers(vector: UsableVector, owned: int) -> SquareDraws:
    """Draws of m/(m − 1) · Σ(d_j − d̄)² for a flow with a sum of squared latencies of 1, and for strangers."""
    random = np.random.default_rng((0, owned))
    own = random.normal(0, 1 / math.sqrt(owned), (DRAWS, owned))
    strangers = vector.delay_sum[random.integers(0, len(vector.delay_sum), (DRAWS, owned))].astype(np.float64)
    return SquareDraws.weighted(own, strangers, np.full((DRAWS, owned), owned / (owned - 1)))


def _answer(
    squares: float, bounds: tuple[float, float, float], held: float, mean: Estimate, unit: int, choice: str
) -> Answer:
    """Eq. 5, and the interval of a difference of two estimates (each bound moved by both parts' doubts)."""
    value = math.sqrt(max(0.0, squares / held * unit**2 - mean.value**2))
    low, middle, high = (bound**2 / held * unit**2 for bound in bounds)
    if choice == "random":
        return Estimate(value, 0.0, max(value, math.sqrt(high)), mean.samples, f"{METHOD}, independent j")
    mean_low = 0.0 if mean.low <= 0 <= mean.high else min(mean.low**2, mean.high**2)
    mean_high = max(mean.low**2, mean.high**2)
    centre = middle - mean.value**2
    below = centre - math.hypot(middle - low, mean_high - mean.value**2)
    above = min(centre + math.hypot(high - middle, mean.value**2 - mean_low), high)
    lowest, highest = math.sqrt(max(0.0, below)), math.sqrt(max(0.0, above))
    return Estimate(value, min(value, lowest), max(value, highest), mean.samples, METHOD)
