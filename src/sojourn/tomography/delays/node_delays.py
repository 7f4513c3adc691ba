"""What became of packets at each node: mean delay, the delay of most, and the share of it spent waiting in line.

A packet is in the queue from its arrival until the packet ahead of it has left; the rest is sending.
Cost: a sort of the visits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array

__all__ = ["NodeDelays", "node_delays", "waits"]

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
