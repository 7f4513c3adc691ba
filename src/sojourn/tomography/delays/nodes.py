"""What the nodes of a trace are like: relative delays from packets' total times, and what packets waited at each.

Relative delays. A packet's time is the sum of its nodes' usual delays and of noise, which is a linear model with one
unknown for each node. Nodes are random effects around one mean: the deviation τ between nodes and the noise σ of a hop
are learnt together with the nodes' delays, and what the totals cannot distinguish is shrunk to the mean. Long packets
are weighed by their hops, and a total far off counts no more than one at `ROBUST` of its noise. Only clear differences
are used (τ at least half of σ): in a radio network nodes are mostly similar, and a factor for each then adds noise.
Cost: a sparse system with a row for each node, a few times; linear in the trace.

Queueing. A packet is in the queue from its arrival until the packet ahead of it has left; the rest is sending.
Cost: a sort of the visits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.tomography.trace import CollectionTrace

ROUNDS = 8  # of re-weighting; constants were chosen on seeds 1 to 20 (docs/maths/tomography.md)
ROBUST = 1.5
CLEAR = 0.5
LEAST_FACTOR = 0.1
MAD_TO_DEVIATION = 1.4826
NS_PER_MS = 1e6


def node_factors(trace: CollectionTrace) -> FloatArray:
    """The usual delay of every place's node as a multiple of the usual one of all; 1 where nodes are similar."""
    visit = trace.is_visit
    nodes, number = np.unique(trace.node, return_inverse=True)
    hops = np.diff(trace.start) - 1.0
    total = (trace.sink_ns - trace.t0_ns) / NS_PER_MS
    passes = sparse.csr_matrix(
        (np.ones(int(visit.sum())), (trace.owner[visit], number[visit])), shape=(len(trace), len(nodes))
    )
    mean, differences, is_clear = _random_effects(passes, hops, total)
    if not is_clear:
        return np.ones(len(trace.node))
    factor: FloatArray = np.maximum(1 + differences / mean, LEAST_FACTOR)[number]
    return factor


def _random_effects(passes: sparse.csr_matrix, hops: FloatArray, total: FloatArray) -> tuple[float, FloatArray, bool]:
    """The mean delay of a hop, each node's difference from it, and whether nodes clearly differ."""
    from scipy.sparse.linalg import splu

    mean = float(np.median(total / hops))
    differences = np.zeros(passes.shape[1])
    noise = between = 0.0
    for number in range(ROUNDS):
        off = np.abs(total - hops * mean - passes @ differences) / np.sqrt(hops)
        spread = max(MAD_TO_DEVIATION * float(np.median(off)), 1e-6)
        trust = np.minimum(1.0, ROBUST * spread / np.maximum(off, 1e-9))
        noise = max(float((trust * off**2).sum() / trust.sum()), 1e-9)
        between = between if number else noise / 10
        weight = trust / hops / noise
        known = passes.T @ sparse.diags(weight) @ passes
        system = (known + sparse.identity(len(differences)) / between).tocsc()
        differences = splu(system).solve(passes.T @ (weight * (total - hops * mean)))
        # What the totals leave open of a node counts as scatter too; without it scatter would shrink to nothing.
        between = max(float((differences**2 + 1 / (known.diagonal() + 1 / between)).mean()), noise / 1_000)
        left = total - hops * mean - passes @ differences
        mean += float((weight * left).sum() / (weight * hops).sum())
    return max(mean, 1e-6), differences, between >= CLEAR**2 * noise


MOST = 0.95


@dataclass(frozen=True, eq=False)
class NodeDelays:
    """One entry for each node, the longest mean delay first."""

    node: Int64Array
    mean_ns: Int64Array
    p95_ns: Int64Array
    queue_share: FloatArray
    packets: Int64Array


def node_delays(node: Int64Array, came_ns: Int64Array, left_ns: Int64Array) -> NodeDelays:
    """The nodes of visits, each with the time that a packet came and left."""
    nodes, place = np.unique(node, return_inverse=True)
    delay = left_ns - came_ns
    queued = waits(place, came_ns, left_ns)
    order = np.lexsort((delay, place))
    counts = np.bincount(place, minlength=len(nodes))
    starts = np.cumsum(counts) - counts
    total = np.bincount(place, delay, len(nodes))
    p95 = delay[order][starts + np.ceil(MOST * counts).astype(np.int64) - 1]
    slowest = np.argsort(-total / counts, kind="stable")
    return NodeDelays(
        nodes[slowest],
        np.rint(total / counts).astype(np.int64)[slowest],
        p95[slowest],
        (np.bincount(place, queued, len(nodes)) / np.maximum(total, 1))[slowest],
        counts[slowest],
    )


def waits(place: Int64Array, came: Int64Array, left: Int64Array) -> Int64Array:
    """How long each visit waited for the packet ahead of it at its node."""
    order = np.lexsort((came, left, place))
    ahead, behind = order[:-1], order[1:]
    waits = np.minimum(np.maximum(left[ahead] - came[behind], 0), left[behind] - came[behind])
    queued = np.zeros(len(place), np.int64)
    queued[behind] = np.where(place[ahead] == place[behind], waits, 0)
    return queued
