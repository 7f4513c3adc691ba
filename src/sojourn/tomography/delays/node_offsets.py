"""How nodes differ from each other over a whole trace, from the packets' total times alone.

A packet's time is the sum of its nodes' usual delays and of noise, which is a linear model with one unknown for each
node. Nodes are taken to scatter around one mean (a random effect): the scatter τ between nodes and the noise σ of a hop
are learnt together with the nodes' delays, and what the totals cannot tell apart is drawn to the mean. Long packets are
weighed by their hops, and a total far off counts no more than one at `ROBUST` of its noise.

Only clear differences are used (τ at least half of σ): in a radio network nodes are mostly alike, and to learn a level
for each then adds noise. Cost: a sparse system with a row for each node, a few times; linear in the trace.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sojourn.core.arrays import FloatArray
from sojourn.tomography.trace import CollectionTrace

__all__ = ["node_levels"]

ROUNDS = 8
ROBUST = 1.5
CLEAR = 0.5
LEAST_LEVEL = 0.1
MAD_TO_DEVIATION = 1.4826
NS_PER_MS = 1e6


def node_levels(trace: CollectionTrace) -> FloatArray:
    """The usual delay of every place's node as a multiple of the usual one of all; 1 where nodes are alike."""
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
    level: FloatArray = np.maximum(1 + differences / mean, LEAST_LEVEL)[number]
    return level


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
