"""The segments that m-routers cut shortest paths into, which of them each node monitors, and which routers to upgrade.

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

Upgrades. What upgrading saves is a weighted cover: a path counts as saved once any router inside it is an m-router.
Hence upgrades help less the more there are, and adding the router that saves most is never far from the best (`greedy`
adds the one that most *paths* cross, as published; a hop count is what is to be reduced). `best` looks for the best set
of each size, not for an order: it begins with the better of Algorithm 1's set and its own previous set with the router
that saves most, then exchanges routers one for one while that saves hops. So it is never worse than `greedy` at any
size. From one size to the next it may drop a router. A step costs one count of all segments, for `best` about as many
as routers upgraded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ParameterError, TopologyError
from sojourn.core.kernels import kernel
from sojourn.mplane.planning.paths import ShortestPaths, after_change
from sojourn.mplane.planning.topology import Adjacency, Topology

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


# Rounds of exchanges for one size: a bound on time, not reached on any map tried.
_MAX_ROUNDS = 20


class Strategy(StrEnum):
    """How routers are chosen."""

    GREEDY = "greedy"
    RANDOM = "random"
    BEST = "best"


# Marked m-routers, and the segments between them.
_Counted: TypeAlias = tuple[NDArray[np.bool_], Segments]


@dataclass(frozen=True)
class UpgradeStep:
    """The m-routers after a step, which were added and dropped in it, and the segments there are now."""

    upgraded: tuple[int, ...]
    segments: Segments
    added: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


def plan_upgrade(
    counter: SegmentCounter, count: int, *, strategy: Strategy = Strategy.GREEDY, seed: int = 0
) -> Iterator[UpgradeStep]:
    """Steps of one more m-router each, from none to `count`.

    >>> from sojourn.mplane.planning.paths import shortest_paths
    >>> from sojourn.mplane.planning.topology import triangle
    >>> counter = SegmentCounter(shortest_paths(triangle()))
    >>> [step.upgraded for step in plan_upgrade(counter, 2)]
    [(), (0,), (0, 1)]
    """
    routers = counter.paths.routers
    if not 0 <= count <= routers:
        raise ParameterError(f"{count} routers to upgrade of {routers}", action=f"upgrade 0 to {routers}")
    choose: dict[Strategy, Callable[[], Iterator[_Counted]]] = {
        Strategy.GREEDY: lambda: _most_crossed(counter, count),
        Strategy.RANDOM: lambda: _at_random(counter, count, seed),
        Strategy.BEST: lambda: _best_sets(counter, count),
    }
    return _steps(choose[strategy]())


def _steps(sets: Iterator[_Counted]) -> Iterator[UpgradeStep]:
    """Each set as a step from the one before; m-routers stay in the order in which they came."""
    order: tuple[int, ...] = ()
    for marks, segments in sets:
        added = tuple(int(router) for router in np.flatnonzero(marks) if router not in order)
        dropped = tuple(router for router in order if not marks[router])
        order = (*(router for router in order if marks[router]), *added)
        yield UpgradeStep(order, segments, added, dropped)


def _most_crossed(counter: SegmentCounter, count: int) -> Iterator[_Counted]:
    """Algorithm 1: the router inside most segments first, of equals the first in the file."""
    marks = counter.nothing_upgraded()
    for upgraded in range(count + 1):
        segments, crossing, _ = counter.score(marks)
        yield marks.copy(), segments
        if upgraded < count:
            marks[np.argmax(np.where(marks, -1, crossing))] = True


def _at_random(counter: SegmentCounter, count: int, seed: int) -> Iterator[_Counted]:
    order = np.random.default_rng(seed).permutation(counter.paths.routers)
    for upgraded in range(count + 1):
        marks = counter.nothing_upgraded()
        marks[order[:upgraded]] = True
        yield marks, counter.count(marks)


def _best_sets(counter: SegmentCounter, count: int) -> Iterator[_Counted]:
    marks = counter.nothing_upgraded()
    least = counter.count(~marks).hops
    for published, segments in _most_crossed(counter, count):
        if published.any():
            hops = _add_most_saving(counter, marks)
            if segments.hops < hops:
                marks, hops = published, segments.hops
            if hops > least:
                _exchange(counter, marks, hops)
        yield marks.copy(), counter.count(marks)


def _add_most_saving(counter: SegmentCounter, marks: NDArray[np.bool_]) -> int:
    """Mark the router that saves most hops; the hops left."""
    segments, _, relief = counter.score(marks)
    chosen = int(np.argmax(np.where(marks, -1, relief)))
    marks[chosen] = True
    return segments.hops - int(relief[chosen])


def _exchange(counter: SegmentCounter, marks: NDArray[np.bool_], hops: int) -> None:
    """Exchange m-routers for others, one by one, while hops are saved."""
    for _ in range(_MAX_ROUNDS):
        before = hops
        for router in np.flatnonzero(marks):
            marks[router] = False
            segments, _, relief = counter.score(marks)
            other = int(np.argmax(np.where(marks, -1, relief)))
            # Of equals the old one stays, so that sets change only for a gain.
            marks[other if segments.hops - relief[other] < hops else router] = True
            hops = min(hops, segments.hops - int(relief[other]))
        if hops == before:
            return
