"""How near `best` comes to the optimum, which an integer program over all paths' interiors gives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack

from sojourn.mplane.planning.paths import SegmentCounter, ShortestPaths, shortest_paths
from sojourn.mplane.planning.topology import read_topology
from sojourn.mplane.planning.upgrades import Strategy, plan_upgrade

SIZES = (5, 10, 20, 40)


def hops_by_interior(shortest: ShortestPaths) -> Counter[frozenset[int]]:
    """Hops of all shortest paths, listed one by one, by the set of routers inside them."""
    topology = shortest.topology
    found: Counter[frozenset[int]] = Counter()
    for source in range(shortest.routers):
        near = shortest.distance[source]
        inside: dict[int, list[tuple[int, ...]]] = {source: [()]}
        for router in shortest.order[source, : shortest.reached[source]].tolist():
            own = () if router == source else (router,)
            for link in range(topology.first[router], topology.first[router + 1]):
                after = int(topology.target[link])
                if near[router] + topology.weight[link] == near[after]:
                    inside.setdefault(after, []).extend(interior + own for interior in inside[router])
        del inside[source]
        for interiors in inside.values():
            for interior in interiors:
                found[frozenset(interior)] += len(interior) + 1
    return found


def least_hops(found: Counter[frozenset[int]], routers: int, count: int) -> int:
    """Minimise the hops of interiors without an m-router: each needs a chosen router or counts whole."""
    interiors = [interior for interior in found if interior]
    rows = np.repeat(np.arange(len(interiors)), [len(interior) for interior in interiors])
    members = np.array([router for interior in interiors for router in interior])
    cover = csr_array((np.ones(len(rows)), (rows, members)), shape=(len(interiors), routers))
    is_router = np.concatenate([np.ones(routers), np.zeros(len(interiors))])
    solved = milp(
        np.concatenate([np.zeros(routers), [found[interior] for interior in interiors]]),
        integrality=is_router,
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(hstack([cover, eye_array(len(interiors))]).tocsr(), 1, np.inf),
            LinearConstraint(is_router[None, :], 0, count),
        ],
    )
    assert solved.status == 0
    return round(solved.fun) + found[frozenset()]


@pytest.mark.parametrize("number", [1221, 1755, 3257, 3967, 6461])
def test_best_is_within_two_percent_of_the_optimum(shared_data: Path, number: int) -> None:
    shortest = shortest_paths(read_topology(shared_data / "topologies/rocketfuel" / f"{number}.weights.intra"))
    found = hops_by_interior(shortest)
    counter = SegmentCounter(shortest)
    assert sum(found.values()) == counter.count(counter.nothing_upgraded()).hops
    steps = list(plan_upgrade(counter, max(SIZES), strategy=Strategy.BEST))
    for count in SIZES:
        optimum = least_hops(found, shortest.routers, count)
        assert optimum <= steps[count].segments.hops <= 1.02 * optimum
