"""Sink traces of trees of FIFO queues whose nodes differ: a world without radios, to show what owes itself to one."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from collection_worlds import MS
from sojourn.tomography.trace import CollectionTrace, make_trace

PARENTS, BEST_PARENT = 3, 0.8
LEAST_MS = 0.5

LAWS: dict[str, Callable[[np.random.Generator], float]] = {
    "gamma": lambda random: random.gamma(3, 1 / 3),
    "exponential": lambda random: random.exponential(),
    "lognormal": lambda random: float(np.exp(random.normal(0, 0.8) - 0.32)),
    "steady": lambda random: random.uniform(0.9, 1.1),
    "repeated": lambda random: (0.5 if random.random() < 0.85 else 3.8) * random.uniform(0.8, 1.2),
}


@dataclass(frozen=True, kw_only=True)
class QueueTree:
    """Nodes in a square send to one of the nearest that are closer to the sink; services have mean 1 under each law."""

    law: str = "gamma"
    nodes: int = 60
    packets: int = 10
    period_s: float = 10.0
    differing: float = 0.6  # standard deviation of the logarithm of nodes' mean services
    loss: float = 0.0
    mean_ms: float = 8.0


@cache
def queue_tree(tree: QueueTree, seed: int) -> tuple[CollectionTrace, np.ndarray]:
    """A trace and the true arrival time of each of its places."""
    random = np.random.default_rng(seed)
    parents = _parents(random, tree.nodes)
    mean = tree.mean_ms * np.exp(random.normal(0, tree.differing, tree.nodes) - tree.differing**2 / 2)
    phase = random.uniform(0, 1, tree.nodes)
    events = [
        ((phase[node] + number + random.uniform(0, 0.1)) * tree.period_s * 1e3, (node, number), node)
        for node in range(1, tree.nodes)
        for number in range(tree.packets)
    ]
    heapq.heapify(events)
    free, collected = np.zeros(tree.nodes), np.zeros(tree.nodes)
    hops: dict[tuple[int, int], list[tuple[int, float]]] = {}
    sums: dict[tuple[int, int], float] = {}
    while events:
        now, packet, node = heapq.heappop(events)
        hops.setdefault(packet, []).append((node, now))
        if node == 0:
            continue
        free[node] = max(now, free[node]) + mean[node] * LAWS[tree.law](random) + LEAST_MS
        collected[node] += free[node] - now
        if len(hops[packet]) == 1:
            sums[packet], collected[node] = collected[node], 0.0
        ways = parents[node]
        way = ways[0] if random.random() < BEST_PARENT else random.choice(ways)
        heapq.heappush(events, (free[node], packet, int(way)))
    return _seen(hops, sums, random, tree.loss)


def _parents(random: np.random.Generator, nodes: int) -> list[np.ndarray]:
    place = random.uniform(0, 1, (nodes, 2))
    from_sink = np.hypot(*(place - place[0]).T)
    parents = [np.empty(0, np.int64)]
    for node in range(1, nodes):
        closer = np.flatnonzero(from_sink < from_sink[node])
        parents.append(closer[np.argsort(np.hypot(*(place[closer] - place[node]).T))[:PARENTS]])
    return parents


def _seen(
    hops: dict[tuple[int, int], list[tuple[int, float]]],
    sums: dict[tuple[int, int], float],
    random: np.random.Generator,
    loss: float,
) -> tuple[CollectionTrace, np.ndarray]:
    kept = [packet for packet in hops if random.random() >= loss]
    times = {packet: np.rint(np.array([time for _node, time in hops[packet]]) * MS).astype(np.int64) for packet in kept}
    trace = make_trace(
        (*packet, [node for node, _time in hops[packet]], int(times[packet][0]), int(times[packet][-1]),
         round(sums[packet]) * MS)
        for packet in kept
    )  # fmt: skip
    keys = zip(trace.origin.tolist(), trace.shown_sequence.tolist(), strict=True)
    return trace, np.concatenate([times[key] for key in keys])
