"""The segments that m-routers cut the shortest paths into: how many, how long, and what a further upgrade would cut.

Algorithm 1 keeps a *set* of paths: pieces that coincide after a split count once. As every router is also the source
and destination of paths of its own, that set is known without splitting: it is all shortest paths without an m-router
in their interior. They are counted by walking each router's shortest-path graph once forwards (paths that arrive) and
once backwards (paths that go on). A walk ends at m-routers: O(routers × links) without any, far less with some.

Counts are exact: 64-bit integers that are refused, not wrapped, above 2^61.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import TopologyError
from sojourn.core.kernels import kernel
from sojourn.mplane.planning.paths import ShortestPaths
from sojourn.mplane.planning.topology import Adjacency

__all__ = ["SegmentCounter", "Segments", "paths_from"]

_LIMIT = 2**61


@dataclass(frozen=True)
class Segments:
    """What is probed, given some m-routers: segments, hops over all of them, and the longest one's hops."""

    paths: int
    hops: int
    longest: int

    @property
    def shortest(self) -> int:
        """Hops of the shortest segment: the lightest link of all is always one."""
        return min(self.longest, 1)

    @property
    def mean(self) -> float:
        """Mean hops of a segment: the localisation granularity."""
        return self.hops / self.paths if self.paths else 0.0


class SegmentCounter:
    """Counts the segments of a network for one set of m-routers after another.

    >>> from sojourn.mplane.planning.paths import shortest_paths
    >>> from sojourn.mplane.planning.topology import triangle
    >>> counter = SegmentCounter(shortest_paths(triangle()))
    >>> counter.count(counter.nothing_upgraded())
    Segments(paths=6, hops=6, longest=1)
    """

    def __init__(self, paths: ShortestPaths) -> None:
        self.paths = paths
        self.count(self.nothing_upgraded())

    def nothing_upgraded(self) -> NDArray[np.bool_]:
        """A mark per router, none set."""
        return np.zeros(self.paths.routers, dtype=np.bool_)

    def count(self, upgraded: NDArray[np.bool_]) -> Segments:
        """The segments between the m-routers marked in `upgraded`."""
        return self.score(upgraded)[0]

    def score(self, upgraded: NDArray[np.bool_]) -> tuple[Segments, NDArray[np.int64], NDArray[np.int64]]:
        """The segments; and by router how many cross it, and by how many hops upgrading it would shorten the probing.

        No sum here can exceed the number of hops without m-routers, which was checked to fit.
        """
        crossing = np.zeros(self.paths.routers, dtype=np.int64)
        relief = np.zeros(self.paths.routers, dtype=np.int64)
        paths, links = self.paths, self.paths.topology.adjacency
        numbers = _count(links, paths.distance, paths.order, paths.reached, upgraded, crossing, relief)
        if numbers[0] < 0:
            raise _too_many()
        return Segments(*(int(number) for number in numbers)), crossing, relief


def paths_from(shortest: ShortestPaths, source: int, upgraded: NDArray[np.bool_]) -> NDArray[np.int64]:
    """By router the number of segments from `source`, given the m-routers; with none, of equal-cost paths."""
    settled = shortest.order[source, : shortest.reached[source]]
    arriving, hops, _ = _arrivals(shortest.topology.adjacency, shortest.distance[source], settled, upgraded)
    if hops.min() < 0:
        raise _too_many()
    return arriving


def _too_many() -> TopologyError:
    action = "plan on a part of the network, or give weights that tell its links apart"
    return TopologyError("more than 2^61 hops over all equal-cost paths", action=action)


@kernel
def _count(
    links: Adjacency,
    distance: NDArray[np.int64],
    order: NDArray[np.int32],
    reached: NDArray[np.int64],
    upgraded: NDArray[np.bool_],
    crossing: NDArray[np.int64],
    relief: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Segments, their hops and the longest; negative where they are too many."""
    routers = len(reached)
    onward = np.empty(routers, dtype=np.int64)
    onward_hops = np.empty(routers, dtype=np.int64)
    paths, hops, longest = 0, 0, 0
    for source in range(routers):
        near = distance[source]
        settled = order[source, : reached[source]]
        arriving, arriving_hops, deepest = _arrivals(links, near, settled, upgraded)
        for router in settled[1:]:
            paths += arriving[router]
            hops += arriving_hops[router]
            longest = max(longest, deepest[router])
            if arriving_hops[router] < 0 or hops > _LIMIT:
                return -1, -1, -1
        for router in settled[:0:-1]:
            onward[router] = 0
            onward_hops[router] = 0
            if arriving[router] == 0 or upgraded[router]:
                continue
            for link in range(links.first[router], links.first[router + 1]):
                after = links.target[link]
                if near[router] + links.weight[link] == near[after]:
                    onward[router] += onward[after] + 1
                    onward_hops[router] += onward_hops[after] + onward[after] + 1
            crossing[router] += arriving[router] * onward[router]
            relief[router] += arriving_hops[router] * onward[router] + arriving[router] * onward_hops[router]
    return paths, hops, longest


@kernel
def _arrivals(
    links: Adjacency,
    near: NDArray[np.int64],
    settled: NDArray[np.int32],
    upgraded: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """By router: segments from the first of `settled`, hops over all of them (−1: too many), hops of the longest."""
    arriving = np.zeros(len(near), dtype=np.int64)
    hops = np.zeros(len(near), dtype=np.int64)
    deepest = np.zeros(len(near), dtype=np.int64)
    source = settled[0]
    arriving[source] = 1
    for router in settled:
        if arriving[router] == 0 or (upgraded[router] and router != source):
            continue
        for link in range(links.first[router], links.first[router + 1]):
            after = links.target[link]
            if near[router] + links.weight[link] == near[after]:
                arriving[after] += arriving[router]
                hops[after] += hops[router] + arriving[router]
                deepest[after] = max(deepest[after], deepest[router] + 1)
                if hops[after] > _LIMIT:
                    hops[after] = -1
                    return arriving, hops, deepest
    return arriving, hops, deepest
