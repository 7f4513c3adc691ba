"""Shortest paths from every router to every other, all equal-cost ones among them, without listing any.

Dijkstra's algorithm from each router gives distances and the order in which routers were reached. A link lies on a
shortest path from ``s`` exactly when it joins their distances (``d(u) + w = d(v)``), so distances alone hold all
equal-cost paths; walking routers in order counts them (`sojourn.mplane.planning.segments`).

Costs 12 bytes per ordered pair of routers and one Dijkstra run per router; `MAX_ROUTERS` and `MAX_WORK` keep that to
300 MB and about a minute. When links change, only the routers whose paths used or would use one are computed again.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import TopologyError, UsageError
from sojourn.core.kernels import kernel
from sojourn.mplane.planning.topology import Adjacency, Topology

__all__ = ["MAX_ROUTERS", "MAX_WORK", "ShortestPaths", "after_change", "shortest_paths"]

MAX_ROUTERS = 5_000
MAX_WORK = 200_000_000


@dataclass(frozen=True)
class ShortestPaths:
    """Row ``s``: distances from ``s`` (−1: no path), and the ``reached[s]`` routers from ``s`` on, nearest first."""

    topology: Topology
    distance: NDArray[np.int64]
    order: NDArray[np.int32]
    reached: NDArray[np.int64]

    @property
    def routers(self) -> int:
        return len(self.reached)

    @property
    def unreachable_pairs(self) -> int:
        """Ordered pairs without a path."""
        return int(self.routers * self.routers - self.reached.sum())

    def example_of_unreachable(self) -> tuple[str, str] | None:
        """The first pair without a path, by name."""
        lacking = np.flatnonzero(self.reached < self.routers)
        if not len(lacking):
            return None
        source = int(lacking[0])
        return self.topology.names[source], self.topology.names[int(np.argmin(self.distance[source]))]


def shortest_paths(topology: Topology) -> ShortestPaths:
    """All shortest paths of a topology.

    >>> from sojourn.mplane.planning.topology import triangle
    >>> shortest_paths(triangle()).distance.tolist()
    [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    """
    routers = len(topology.names)
    if routers > MAX_ROUTERS or routers * topology.links > MAX_WORK:
        what = f"{routers} routers and {topology.links} links are too many for all their shortest paths"
        limit = f"plan on parts of at most {MAX_ROUTERS} routers, and routers × links at most {MAX_WORK}"
        raise TopologyError(what, action=limit)
    paths = ShortestPaths(
        topology,
        np.empty((routers, routers), dtype=np.int64),
        np.empty((routers, routers), dtype=np.int32),
        np.zeros(routers, dtype=np.int64),
    )
    _run_from(paths, np.arange(routers, dtype=np.int64))
    return paths


def after_change(paths: ShortestPaths, topology: Topology) -> tuple[ShortestPaths, NDArray[np.int64]]:
    """The paths of `topology`, where links failed, came back or changed weight; and the routers computed again.

    The others keep their paths: a link on none of a router's shortest paths can go, and one that leads nowhere as
    cheaply as before can come, without changing them.
    """
    old = paths.topology
    if topology.names != old.names or topology.weight_unit != old.weight_unit:
        raise UsageError("the topologies have other routers or units of weight", action="compute all paths anew")
    gone, come = _differing_links(old, topology), _differing_links(topology, old)
    to_source = paths.distance[:, old.source[gone]]
    used = (to_source >= 0) & (to_source + old.weight[gone] == paths.distance[:, old.target[gone]])
    to_source, to_target = paths.distance[:, topology.source[come]], paths.distance[:, topology.target[come]]
    useful = (to_source >= 0) & ((to_target < 0) | (to_source + topology.weight[come] <= to_target))
    changed = np.flatnonzero(used.any(axis=1) | useful.any(axis=1))
    fresh = ShortestPaths(topology, paths.distance.copy(), paths.order.copy(), paths.reached.copy())
    _run_from(fresh, changed)
    return fresh, changed


def _differing_links(these: Topology, those: Topology) -> NDArray[np.int64]:
    """Numbers of the links of `these` that `those` lacks, or has with another weight."""
    routers = len(these.names)
    key = these.source * np.int64(routers) + these.target
    other = those.source * np.int64(routers) + those.target
    place = np.minimum(np.searchsorted(other, key), max(len(other) - 1, 0))
    if not len(other):
        return np.arange(len(key))
    return np.flatnonzero((other[place] != key) | (those.weight[place] != these.weight))


def _run_from(paths: ShortestPaths, sources: NDArray[np.int64]) -> None:
    _dijkstra(paths.topology.adjacency, sources, paths.distance, paths.order, paths.reached)


@kernel
def _dijkstra(
    links: Adjacency,
    sources: NDArray[np.int64],
    distance: NDArray[np.int64],
    order: NDArray[np.int32],
    reached: NDArray[np.int64],
) -> None:
    """Fill the rows of `sources`; routers at one distance stand in the order of their numbers."""
    for source in sources:
        near = distance[source]
        near[:] = -1
        settled = order[source]
        settled[:] = -1
        count = 0
        done = np.zeros(len(near), dtype=np.bool_)
        heap = [(np.int64(0), np.int64(source))]
        near[source] = 0
        while len(heap) > 0:
            so_far, router = heapq.heappop(heap)
            if done[router]:
                continue
            done[router] = True
            settled[count] = router
            count += 1
            for link in range(links.first[router], links.first[router + 1]):
                after = np.int64(links.target[link])
                length = so_far + links.weight[link]
                if near[after] < 0 or length < near[after]:
                    near[after] = length
                    heapq.heappush(heap, (length, after))
        reached[source] = count
