"""What recorded observations can tell at best: the linear estimator that knows every hyper-parameter.

A packet's delay is xᵢ = μ_f + eᵢ. The oracle knows each flow's prior mean and variance (of the law that means were
drawn from, given the flow's size), the variance of its packets, how many of its packets are in which cell, and which
cells lost none. Of these it has the sums y = Pᵀx; of sampled packets, single delays. With A = Cov(y) = Pᵀ(V + T)P,
where V has the packets' variances and T their flows' prior variances, the best linear estimate of what a flow's N_f
packets average to is m_f + (v_f/N_f + τ²_f)·Σ_{i∈f}(P A⁻¹(y − Pᵀm))ᵢ. A is never formed: conjugate gradients, of which
a step takes two products with P.

No linear estimator does better; one that knows more than two moments (that means are of two kinds, say) may.
Delays without a variance have no such oracle, nor have copies, which are in the receiver's cells alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

from bench.auto.trial import SKETCHES, Drawn, answered, recorded
from bench.auto.worlds import DELAYS, DRIFTS, MEANS, World
from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.core.units import format_bytes
from sojourn.estimation.sample import match_samples
from sojourn.lab.traffic import Traffic
from sojourn.segments.answer import parts_of
from sojourn.segments.plan import SegmentPlan
from sojourn.sketches.counter_vector import CounterVectorParameters, packet_counters
from sojourn.sketches.lds import LdsParameters, packet_cells
from sojourn.sketches.sample import Sample

WORLDS = ("equal flows, 1 % lost", "alike, 0.3 % lost", "x10, 1 % lost", "slow mice, 1 % lost")
HEAVY = ("pareto 1.5", "pareto 1.1")
PRIOR_DRAWS, VARIATION_DRAWS, SEED = 400, 200_000, 1
STEPS, RESIDUAL = 3_000, 1e-7
# The variance of the difference of two time stamps, each rounded down to a whole unit.
ROUNDING_VARIANCE = 1 / 6


@dataclass(frozen=True, eq=False)
class Observations:
    """Delivered packets × what was recorded of them (0 or 1), and the variance that rounding adds to each."""

    of_packet: sparse.csr_array
    noise: FloatArray


def observations(plan: SegmentPlan, traffic: Traffic) -> Observations:
    """The clean cells and counters of all parts, and the packets that both ends sampled."""
    rows = np.cumsum(traffic.delivered) - 1
    parts = list(_parts(plan, traffic))
    matrices, noise = [], []
    for place, unit in parts:
        column = place[traffic.delivered]
        spoiled = np.unique(place[~traffic.delivered])
        packet = np.flatnonzero((column >= 0) & ~np.isin(column, spoiled))
        _, cell, count = np.unique(column[packet], return_inverse=True, return_counts=True)
        shape = (int(rows[-1]) + 1, len(count))
        matrices.append(sparse.csr_array((np.ones(len(packet)), (packet, cell)), shape=shape))
        noise.append(ROUNDING_VARIANCE * unit**2 * count)
    return Observations(sparse.csr_array(sparse.hstack(matrices)), np.concatenate(noise))


def _parts(plan: SegmentPlan, traffic: Traffic) -> Iterator[tuple[Int64Array, int]]:
    """The cell of every packet sent, −1 where it is in none, once for each row of each part; and the unit of time."""
    for name, parameters in plan.parts.items():
        if isinstance(parameters, LdsParameters):
            for row in packet_cells(parameters, traffic.sender).T:
                yield row, 1
        elif isinstance(parameters, CounterVectorParameters):
            yield packet_counters(parameters, traffic.sender), parameters.resolution_ns
        elif parameters.kind == "sample":
            sender, receiver = (parts_of(end)[name] for end in recorded(plan, traffic))
            yield _sampled(sender, receiver, traffic), 1


def _sampled(sender: Sample, receiver: Sample, traffic: Traffic) -> Int64Array:
    """Its own number for every packet of a known delay, by the time at which it was sent."""
    matched = match_samples(sender, receiver)
    mask = (1 << sender.parameters.time_bits) - 1
    known = np.isin(traffic.sender.time_ns & mask, matched.sent_time) & traffic.delivered
    return np.where(known, np.arange(len(known)), -1)


def prior(world: World, size: Int64Array) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of each flow's mean, before anything is known but its size."""
    random = np.random.default_rng(SEED)
    drift = float(DRIFTS[world.drift](np.linspace(0, 1, 1_001)).mean())
    drawn = np.array([MEANS[world.means](random, size) for _ in range(PRIOR_DRAWS)]) * world.mean_ns * drift
    if world.means in ("slow elephants", "slow mice"):
        return drawn.mean(axis=0), drawn.var(axis=0)
    return np.full(len(size), drawn.mean()), np.full(len(size), drawn.var())


def variation(world: World) -> float:
    """The variance of a packet's delay over the square of its flow's mean."""
    if world.delays in HEAVY or world.copied:
        raise ParameterError(f"there is no oracle for {world.name}", action="use delays with a variance, and no copies")
    drawn = DELAYS[world.delays](np.random.default_rng(SEED), np.full(VARIATION_DRAWS, world.mean_ns))
    return float(drawn.var() / drawn.mean() ** 2)


def best_linear(world: World, drawn: Drawn, plan: SegmentPlan) -> FloatArray:
    """Each flow's mean as the oracle answers it."""
    traffic = drawn.traffic
    truth, flow = traffic.truth, traffic.flow[traffic.delivered]
    mean, between = prior(world, truth.sent)
    within = variation(world) * np.nan_to_num(truth.mean_ns) ** 2
    seen = observations(plan, traffic)
    matrix, back = seen.of_packet, seen.of_packet.T.tocsr()

    def summed(weights: FloatArray) -> FloatArray:
        """Σ (P z)ᵢ of each flow."""
        sums: FloatArray = np.bincount(flow, matrix @ weights, len(mean)).astype(np.float64)
        return sums

    def covariance(weights: FloatArray) -> FloatArray:
        spread = matrix @ weights
        shared = between * np.bincount(flow, spread, len(mean))
        found: FloatArray = back @ (within[flow] * spread + shared[flow]) + noise * weights
        return found

    of_flow = sparse.csr_array((np.ones(len(flow)), (flow, np.arange(len(flow)))), shape=(len(mean), len(flow)))
    counts = (of_flow @ matrix).tocsr()
    # Cells that repeat one another make A singular: a billionth of their variance keeps the solution unique.
    diagonal = counts.power(2).T @ between + counts.T @ within
    noise = seen.noise + 1e-9 * diagonal
    scale = 1 / np.sqrt(diagonal + noise)
    shape = (len(scale), len(scale))
    operator = LinearOperator(shape, matvec=lambda weights: scale * covariance(scale * weights), dtype=np.float64)
    excess = back @ (traffic.delay_ns[traffic.delivered] - mean[flow])
    solved, _ = cg(operator, scale * excess, rtol=RESIDUAL, maxiter=STEPS)
    share = within / np.maximum(truth.received, 1) + between
    answer: FloatArray = mean + share * summed(scale * solved)
    return answer


def table(worlds: Sequence[World], memories: Sequence[int], seeds: Sequence[int]) -> Iterator[str]:
    """Lines as they are known: median errors in per cent, of each sketch and of the oracle with what it recorded."""
    yield "| world | memory | " + " | ".join(f"{name}, oracle" for name in SKETCHES) + " |"
    yield "|---|--:|" + "--:|" * len(SKETCHES)
    for world in worlds:
        draws = [Drawn.of(world, seed) for seed in seeds]
        for memory in memories:
            cells = []
            for sketch in SKETCHES.values():
                errors = []
                for drawn, seed in zip(draws, seeds, strict=True):
                    plan = drawn.plan(sketch, memory, seed)
                    means = answered(plan, drawn.traffic)[0].mean_ns, best_linear(world, drawn, plan)
                    errors.append([100 * drawn.error(mean) for mean in means])
                ours, best = np.mean(errors, axis=0)
                cells.append(f"{ours:.2f}, {best:.2f}")
            yield f"| {world.name} | {format_bytes(memory)} | {' | '.join(cells)} |"
