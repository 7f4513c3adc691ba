"""Shortest paths, Algorithm 1 and m-sets by listing every path: the model that counting is held against."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import strategies as st

from sojourn.mplane.planning.topology import Topology, TopologyBuilder

Path = tuple[int, ...]


@st.composite
def topologies(draw: st.DrawFn, *, most: int = 6) -> Topology:
    """Small directed graphs, not always connected, with many paths of equal cost; some weights need decimals."""
    routers = draw(st.integers(2, most))
    pairs = [(u, v) for u in range(routers) for v in range(routers) if u != v]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    weights = st.sampled_from(draw(st.sampled_from([("1",), ("1", "2"), ("0.1", "0.2", "0.3"), ("2.5", "5", "7")])))
    builder = TopologyBuilder("drawn")
    for number in range(routers):
        builder.add_router(f"r{number}", 1)
    for u, v in chosen:
        builder.add_link(f"r{u}", f"r{v}", draw(weights), line=1)
    if draw(st.booleans()):
        builder.add_missing_directions()
    return builder.finish()


def shortest(topology: Topology) -> set[Path]:
    """All equal-cost shortest paths between all ordered pairs, as the routers they visit."""
    weight = {
        (int(u), int(v)): Fraction(int(w), topology.weight_unit)
        for u, v, w in zip(topology.source, topology.target, topology.weight, strict=True)
    }
    cheapest: dict[tuple[int, int], tuple[Fraction, set[Path]]] = {}

    def walk(path: Path, cost: Fraction) -> None:
        if len(path) > 1:
            ends = path[0], path[-1]
            best, known = cheapest.get(ends, (cost, set()))
            if cost <= best:
                cheapest[ends] = (cost, (known if cost == best else set()) | {path})
        for (u, v), step in weight.items():
            if u == path[-1] and v not in path:
                walk((*path, v), cost + step)

    for router in range(len(topology.names)):
        walk((router,), Fraction(0))
    return {path for _, paths in cheapest.values() for path in paths}


def crossings(paths: set[Path]) -> Counter[int]:
    """Lines 5 to 9 of Algorithm 1: by router the paths that it is inside of."""
    return Counter(router for path in paths for router in path[1:-1])


def split(paths: set[Path], router: int) -> set[Path]:
    """Lines 12 to 19 of Algorithm 1: every path through a router becomes two."""
    pieces: set[Path] = set()
    for path in paths:
        if router in path[1:-1]:
            place = path.index(router)
            pieces |= {path[: place + 1], path[place:]}
        else:
            pieces.add(path)
    return pieces


def hops(paths: set[Path]) -> int:
    return sum(len(path) - 1 for path in paths)
