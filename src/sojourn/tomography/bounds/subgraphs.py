"""Sub-graphs of the unknown arrival times: which of them a linear program looks at (Domo, Section IV.C).

Vertices are unknowns; an edge joins two that a statement ties together: the times of a delay, those of a proved order,
neighbours on one path, and the first time of a sum of delays with each of its others (all pairs of them would be
quadratic). `partition` parts all unknowns into cores of about equal size, starting from slices of time; `surround`
grows a core to a sub-graph of a given size, breadth first, so that the core lies far from its edge. Both then move the
edges by balanced label propagation (Ugander and Backstrom): vertices go where more of their neighbours are, best first,
as long as there is room; each move cuts fewer edges than before, so it ends.
Cost: O(edges) for each of a few passes; `surround` looks only at what it reaches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.kernels import kernel
from sojourn.tomography.bounds.system import System

__all__ = ["Graph", "constraint_graph", "cut_edges", "partition", "surround"]

PASSES = 20
ROOM = 1.05  # a part may become larger than its share by this
FRINGE = 1.2  # how far beyond a sub-graph's size its edge may move


@dataclass(frozen=True)
class Graph:
    """The neighbours of vertex u are `neighbour[start[u]:start[u + 1]]`; each edge stands at both its ends."""

    start: Int64Array
    neighbour: Int64Array

    def __len__(self) -> int:
        return len(self.start) - 1


def constraint_graph(system: System) -> Graph:
    """The unknowns that statements tie together."""
    counts = np.diff(system.start)
    first = np.repeat(system.column[system.later[system.start[:-1]]], counts)
    later, earlier = system.column[system.later], system.column[system.earlier]
    single = np.repeat(counts == 1, counts)
    # Unknowns of one packet that follow each other belong together even where no row ties them.
    follows = np.flatnonzero(np.diff(system.place) == 1)
    one = np.concatenate([np.where(single, earlier, first), first, follows])
    other = np.concatenate([later, np.where(single, -1, earlier), follows + 1])
    exists = (one >= 0) & (other >= 0) & (one != other)
    pairs = np.unique(np.sort(np.stack([one[exists], other[exists]]), axis=0), axis=1)
    ends, neighbours = np.concatenate([pairs[0], pairs[1]]), np.concatenate([pairs[1], pairs[0]])
    arranged = np.lexsort((neighbours, ends))
    return Graph(np.searchsorted(ends[arranged], np.arange(len(system) + 1)).astype(np.int64), neighbours[arranged])


def partition(graph: Graph, times: Int64Array, size: int) -> Int64Array:
    """The part of every vertex, each about as large as `size` or a little smaller, of few cut edges.

    `times` says in which order vertices are sliced at first.
    """
    parts = -(-len(graph) // size)
    label = np.empty(len(graph), np.int64)
    label[np.argsort(times, kind="stable")] = np.arange(len(graph)) * parts // max(len(graph), 1)
    limit = np.full(parts, int(np.ceil(ROOM * len(graph) / max(parts, 1))))
    everywhere = np.arange(len(graph))
    _balance(graph.start, graph.neighbour, everywhere, label, limit, np.bincount(label, minlength=parts), PASSES)
    return label


def surround(graph: Graph, core: Int64Array, size: int) -> Int64Array:
    """The sub-graph around `core` of at most `size` vertices (more only if the core has more), in ascending order."""
    size = max(size, len(core))
    reached = _reach(graph.start, graph.neighbour, core, int(FRINGE * size))
    if len(reached) <= size:
        return np.sort(reached)
    inside, beyond = 0, 1
    label = np.full(len(graph), beyond)
    label[reached[:size]] = inside
    limit, held = np.array([size, len(graph)]), np.array([size, len(graph) - size])
    _balance(graph.start, graph.neighbour, reached[len(core) :], label, limit, held, PASSES)
    return np.sort(reached[label[reached] == inside])


def cut_edges(graph: Graph, label: Int64Array) -> int:
    """How many edges join vertices of different labels."""
    one = np.repeat(np.arange(len(graph)), np.diff(graph.start))
    return int((label[one] != label[graph.neighbour]).sum()) // 2


@kernel
def _reach(start: Int64Array, neighbour: Int64Array, core: Int64Array, most: int) -> Int64Array:
    """The core and what lies around it, nearest first, up to `most` vertices."""
    is_reached = np.zeros(len(start) - 1, np.bool_)
    queue = np.empty(max(min(most, len(start) - 1), len(core)), np.int64)
    queue[: len(core)] = core
    is_reached[core] = True
    count, done = len(core), 0
    while done < count and count < len(queue):
        vertex = queue[done]
        done += 1
        for k in range(start[vertex], start[vertex + 1]):
            if not is_reached[neighbour[k]] and count < len(queue):
                is_reached[neighbour[k]] = True
                queue[count] = neighbour[k]
                count += 1
    return queue[:count]


@kernel
def _balance(
    start: Int64Array,
    neighbour: Int64Array,
    movable: Int64Array,
    label: Int64Array,
    limit: Int64Array,
    held: Int64Array,
    passes: int,
) -> int:
    """Move vertices to where more of their neighbours are, largest gain first; the number of moves.

    No label holds more than its limit, or is left by its last vertex. Gains are looked at again before each move, as
    earlier moves change them.
    """
    moves = 0
    counts = np.zeros(len(limit), np.int64)
    gain, target = np.empty(len(movable), np.int64), np.empty(len(movable), np.int64)
    for _ in range(passes):
        for i in range(len(movable)):
            gain[i], target[i] = _best_move(movable[i], start, neighbour, label, counts)
        moved = 0
        for i in np.argsort(-gain):
            if gain[i] <= 0:
                break
            vertex = movable[i]
            now, where = _best_move(vertex, start, neighbour, label, counts)
            if now > 0 and held[where] < limit[where] and held[label[vertex]] > 1:
                held[where] += 1
                held[label[vertex]] -= 1
                label[vertex] = where
                moved += 1
        moves += moved
        if not moved:
            break
    return moves


@kernel
def _best_move(
    vertex: int, start: Int64Array, neighbour: Int64Array, label: Int64Array, counts: Int64Array
) -> tuple[int, int]:
    """How many fewer edges are cut if a vertex takes its neighbours' commonest other label, and that label."""
    own, best = label[vertex], label[vertex]
    for k in range(start[vertex], start[vertex + 1]):
        counts[label[neighbour[k]]] += 1
    for k in range(start[vertex], start[vertex + 1]):
        other = label[neighbour[k]]
        if other != own and (best == own or counts[other] > counts[best]):
            best = other
    gain = counts[best] - counts[own] if best != own else 0
    for k in range(start[vertex], start[vertex + 1]):
        counts[label[neighbour[k]]] = 0
    return gain, best
