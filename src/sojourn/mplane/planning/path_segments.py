"""The segments that a path consists of, given the m-routers on it; over all equal-cost paths.

A path a → x → M → y → b with the m-router M is the virtual link a>x>M, the inside x>[M]>y and the virtual link M>y>b.
Where several paths cost the same, traffic is taken to split evenly at every router over the next hops on them, as
routers do per flow; a segment then counts by the share of traffic that crosses it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sojourn.core.errors import TopologyError, UsageError
from sojourn.mplane.measurements import Segment
from sojourn.mplane.planning.paths import ShortestPaths

__all__ = ["MAX_PATHS", "PathSegments", "path_segments", "pieces"]

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
                f"more than {MAX_PATHS} equal-cost paths lead there", action="give weights that tell links apart"
            )
    return tuple(finished)
