"""Shortest paths from every router to every other, all equal-cost ones among them, and the segments along them.

Dijkstra's algorithm from each router gives distances and the order in which routers were reached. A link lies on a
shortest path from ``s`` exactly when it joins their distances (``d(u) + w = d(v)``), so distances alone contain all
equal-cost paths; walking routers in order counts them.

Costs 12 bytes per ordered pair of routers and one Dijkstra run per router; `MAX_ROUTERS` and `MAX_WORK` limit that to
300 MB and about a minute. When links change, only the routers whose paths used or would use one are computed again.

A path a → x → M → y → b with the m-router M is the virtual link a>x>M, the inside x>[M]>y and the virtual link M>y>b.
Where several paths cost the same, traffic is assumed to split evenly at every router over the next hops on them, as
routers do per flow; a segment then counts by the share of traffic that crosses it.

The segments that m-routers cut shortest paths into, and which of them each node monitors.

Segments. Algorithm 1 keeps a *set* of paths: pieces that coincide after a split count once. As every router is also the
source and destination of paths of its own, that set is known without splitting: it is all shortest paths without an
m-router in their interior. They are counted by walking each router's shortest-path graph once forwards (paths that
arrive) and once backwards (paths that go on). A walk ends at m-routers: O(routers × links) without any, far less with
some. Counts are exact: 64-bit integers that are refused, not wrapped, above 2^61.

M-sets. A node follows its shortest paths up to the first m-router on each; what lies behind is that m-router's to
monitor. The m-servers that it meets on the way it monitors itself, and looks past them: a packet in transit does not
pass through a server. So a node's m-set contains every router that a shortest path without an m-router inside leads to.
Where only some of the equal-cost paths to a router are without one, these stay with the node (D₂ in the paper's Fig. 8)
and `paths` is less than `equal_cost`. All nodes' m-sets together contain each segment once, and this is tested.
Costs one walk over a router's links per node; when links fail, only for nodes whose own shortest paths did.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import TopologyError, UsageError
from sojourn.core.kernels import kernel
from sojourn.mplane.measurements import Segment
from sojourn.mplane.planning.topology import Adjacency, Topology

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
        raise UsageError("the topologies have other routers or units of weight", action="compute all paths again")
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
    """Fill the rows of `sources`; routers at one distance are in the order of their numbers."""
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


MAX_PATHS = 256


@dataclass(frozen=True)
class PathSegments:
    """All paths from one router to another: hops and share of the traffic of each, and the shares of its segments."""

    source: str
    target: str
    paths: tuple[tuple[tuple[str, ...], float], ...]
    shares: dict[Segment, float]
    upgraded: frozenset[str]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """In the order in which they are met, path by path."""
        return tuple(self.shares)

    def __str__(self) -> str:
        return " | ".join(">".join(hops) for hops, _ in self.paths)


def pieces(hops: tuple[str, ...], upgraded: Collection[str]) -> tuple[Segment, ...]:
    """What m-routers cut a path into.

    >>> [str(piece) for piece in pieces(("a", "x", "m", "b"), {"m"})]
    ['a>x>m', 'x>[m]>b', 'm>b']
    """
    found: list[Segment] = []
    begin = 0
    for place in range(1, len(hops)):
        is_last = place == len(hops) - 1
        if hops[place] in upgraded or is_last:
            found.append(Segment.between(*hops[begin : place + 1]))
            begin = place
            if not is_last:
                found.append(Segment.inside(*hops[place - 1 : place + 2]))
    return tuple(found)


def path_segments(shortest: ShortestPaths, source: str, target: str, upgraded: Collection[str]) -> PathSegments:
    """The paths between two routers, by name, and their segments.

    >>> from sojourn.mplane.planning.paths import shortest_paths
    >>> from sojourn.mplane.planning.topology import triangle
    >>> str(path_segments(shortest_paths(triangle()), "a", "b", set()))
    'a>b'
    """
    topology = shortest.topology
    start, end = topology.router(source), topology.router(target)
    for name in upgraded:
        topology.router(name)
    if start == end:
        raise UsageError(f"a path from {source} to itself", action="name two routers")
    if shortest.distance[start, end] < 0:
        raise UsageError(f"no path leads from {source} to {target}", action="check the topology's links")
    paths = _paths(shortest, start, end)
    shares: dict[Segment, float] = {}
    for hops, share in paths:
        for piece in pieces(hops, upgraded):
            shares[piece] = shares.get(piece, 0.0) + share
    return PathSegments(source, target, paths, shares, frozenset(upgraded))


def _paths(shortest: ShortestPaths, start: int, end: int) -> tuple[tuple[tuple[str, ...], float], ...]:
    """Hops and share of every shortest path."""
    topology = shortest.topology
    unfinished: list[tuple[tuple[int, ...], float]] = [((start,), 1.0)]
    finished: list[tuple[tuple[str, ...], float]] = []
    while unfinished:
        hops, share = unfinished.pop()
        here = hops[-1]
        if here == end:
            finished.append((tuple(topology.names[hop] for hop in hops), share))
            continue
        links = slice(topology.first[here], topology.first[here + 1])
        onward = [
            int(after)
            for after, weight in zip(topology.target[links], topology.weight[links], strict=True)
            if shortest.distance[after, end] >= 0
            and weight + shortest.distance[after, end] == shortest.distance[here, end]
        ]
        unfinished += [((*hops, after), share / len(onward)) for after in reversed(onward)]
        if len(unfinished) + len(finished) > MAX_PATHS:
            raise TopologyError(
                f"more than {MAX_PATHS} equal-cost paths lead there", action="give links different weights"
            )
    return tuple(finished)


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
    action = "plan on a part of the network, or give links different weights"
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


@dataclass(frozen=True)
class MSet:
    """The routers that one node monitors, nearest first; over how many paths, of how many equal-cost ones there
    are."""

    target: NDArray[np.int32]
    paths: NDArray[np.int64]
    equal_cost: NDArray[np.int64]

    def same_as(self, other: MSet) -> bool:
        """Whether both have the same routers and paths."""
        columns = ((self.target, other.target), (self.paths, other.paths), (self.equal_cost, other.equal_cost))
        return all(np.array_equal(mine, theirs) for mine, theirs in columns)


@dataclass(frozen=True)
class MSets:
    """The m-set of every node by its number; nodes marked in `upgraded` are m-routers, the others have m-servers."""

    shortest: ShortestPaths
    upgraded: NDArray[np.bool_]
    sets: tuple[MSet, ...]

    def of(self, router: int) -> MSet:
        return self.sets[router]


def m_sets(shortest: ShortestPaths, upgraded: NDArray[np.bool_]) -> MSets:
    """The m-sets of all nodes, given the m-routers."""
    return MSets(shortest, upgraded.copy(), tuple(_m_set(shortest, upgraded, s) for s in range(shortest.routers)))


def m_sets_after_change(sets: MSets, topology: Topology) -> MSets:
    """The m-sets once links have failed or come back; nodes whose shortest paths are the same keep theirs."""
    shortest, changed = after_change(sets.shortest, topology)
    renewed = {int(s): _m_set(shortest, sets.upgraded, int(s)) for s in changed}
    return MSets(shortest, sets.upgraded, tuple(renewed.get(s, old) for s, old in enumerate(sets.sets)))


def _m_set(shortest: ShortestPaths, upgraded: NDArray[np.bool_], source: int) -> MSet:
    others = shortest.order[source, 1 : shortest.reached[source]]
    staying = paths_from(shortest, source, upgraded)
    equal_cost = paths_from(shortest, source, np.zeros_like(upgraded))
    target = others[staying[others] > 0]
    return MSet(target, staying[target], equal_cost[target])
