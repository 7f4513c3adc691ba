"""Traffic between pairs of routers, and how much of it crosses the network without an m-router on its way.

The traffic of a pair splits evenly at every router over the next hops of its shortest paths, as routers do per flow.
What is counted is traffic × hops of the paths that have no m-router inside: there a fault is localised no closer than
to the whole path. With a weight of 1 for every pair and no equal-cost paths this is the probe hop count.

Costs 4 bytes for every router and destination of traffic; a score costs two walks over the links per destination.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.errors import TopologyError, UsageError
from sojourn.core.kernels import kernel
from sojourn.mplane.planning.paths import ShortestPaths
from sojourn.mplane.planning.topology import Adjacency, Topology

COLUMNS = ("from", "to", "weight")
MOST_LETTERS = 64 << 20


def read_traffic(path: Path, topology: Topology) -> dict[tuple[int, int], float]:
    """Weights of ordered pairs of routers, from a CSV with the columns ``from``, ``to`` and ``weight``.

    Lines of one pair are added up; pairs that are not listed have no traffic.
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            text = file.read(MOST_LETTERS + 1)
        except UnicodeDecodeError:
            raise TopologyError("not UTF-8 text", where=str(path), action="give a text file") from None
    if len(text) > MOST_LETTERS:
        raise TopologyError(f"more than {MOST_LETTERS} letters", where=str(path), action="give a shorter file")
    found: dict[tuple[int, int], float] = {}
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip().lower() for name in next(rows, [])]
        if not set(COLUMNS) <= set(header) or len(set(header)) != len(header):
            action = "begin with the line from,to,weight"
            raise TopologyError("the first line does not name the columns", where=f"{path}:1", action=action)
        for row in rows:
            if row:
                pair, weight = _pair(row, header, topology, f"{path}:{rows.line_num}")
                found[pair] = found.get(pair, 0.0) + weight
    except csv.Error as error:
        raise TopologyError(f"not CSV: {error}", where=f"{path}:{rows.line_num}") from None
    if not any(found.values()):
        raise TopologyError("there is no traffic", where=str(path), action="give a weight above 0 to some pair")
    return found


def _pair(row: list[str], header: list[str], topology: Topology, where: str) -> tuple[tuple[int, int], float]:
    """A line's pair of routers and its weight."""
    if len(row) != len(header):
        raise TopologyError(f"{len(row)} fields where the header has {len(header)}", where=where)
    fields = {name: value.strip() for name, value in zip(header, row, strict=True)}
    try:
        source, target = (topology.router(fields[name]) for name in ("from", "to"))
    except UsageError as error:
        raise TopologyError(error.what, where=where, action=error.action) from None
    if source == target:
        raise TopologyError(f"traffic from {fields['from']} to itself", where=where, action="name two routers")
    try:
        weight = float(fields["weight"])
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        what = f"{fields['weight']!r} is no weight"
        raise TopologyError(what, where=where, action="give a number of 0 or more")
    return (source, target), weight


@dataclass(frozen=True, eq=False)
class _Demand:
    """Traffic by destination: ``source[first[k] : first[k + 1]]`` send to ``target[k]``.

    Row ``k`` of ``order`` are the ``reaching[k]`` routers that a path leads from to the destination, nearest first.
    """

    target: Int64Array
    first: Int64Array
    source: Int64Array
    weight: FloatArray
    order: NDArray[np.int32]
    reaching: Int64Array


class TrafficCounter:
    """Counts the traffic that meets no m-router, for one set of m-routers after another.

    >>> from sojourn.mplane.planning.paths import shortest_paths
    >>> from sojourn.mplane.planning.topology import triangle
    >>> counter = TrafficCounter(shortest_paths(triangle()), {(0, 1): 2.5})
    >>> counter.score(np.zeros(3, np.bool_))[0]
    2.5
    """

    def __init__(self, paths: ShortestPaths, weights: Mapping[tuple[int, int], float]) -> None:
        self._paths = paths
        joined = {pair: weight for pair, weight in weights.items() if paths.distance[pair] >= 0 and weight > 0}
        self.pathless = [pair for pair, weight in weights.items() if weight > 0 and pair not in joined]
        pairs = sorted(joined, key=lambda pair: (pair[1], pair[0]))
        targets = np.array([target for _, target in pairs], np.int64)
        target, first = np.unique(targets, return_index=True)
        order = np.full((len(target), paths.routers), -1, np.int32)
        reaching = np.zeros(len(target), np.int64)
        for k, router in enumerate(target.tolist()):
            near = paths.distance[:, router]
            nearest = np.argsort(near, kind="stable")
            nearest = nearest[near[nearest] >= 0]
            reaching[k] = len(nearest)
            order[k, : len(nearest)] = nearest
        sources = np.array([source for source, _ in pairs], np.int64)
        weight = np.array([joined[pair] for pair in pairs], np.float64)
        self._demand = _Demand(target, np.append(first, len(pairs)), sources, weight, order, reaching)

    def score(self, upgraded: NDArray[np.bool_]) -> tuple[float, FloatArray, FloatArray]:
        """Traffic × hops of paths without an m-router inside; by router the traffic of such paths that crosses it, and
        by how much upgrading it would reduce the first."""
        demand, routers = self._demand, self._paths.routers
        crossing, relief = np.zeros(routers), np.zeros(routers)
        total = 0.0
        for k, target in enumerate(demand.target.tolist()):
            own = np.zeros(routers)
            mine = slice(demand.first[k], demand.first[k + 1])
            own[demand.source[mine]] = demand.weight[mine]
            near = np.ascontiguousarray(self._paths.distance[:, target])
            settled = demand.order[k, : demand.reaching[k]]
            total += _uncut(self._paths.topology.adjacency, near, settled, own, upgraded, crossing, relief)
        return total, crossing, relief


@kernel
def _uncut(
    links: Adjacency,
    near: Int64Array,
    settled: NDArray[np.int32],
    own: FloatArray,
    upgraded: NDArray[np.bool_],
    crossing: FloatArray,
    relief: FloatArray,
) -> float:
    """What reaches the first of `settled` without an m-router inside: traffic × hops; added to by router, as `score`.

    Farther routers send before nearer ones, as every link has a length; the way back tells each router which share of
    what crosses it will meet no m-router further on (`free`), and over how many hops (`ahead`).
    """
    target = settled[0]
    mass, hops = np.zeros(len(near)), np.zeros(len(near))
    free, ahead = np.zeros(len(near)), np.zeros(len(near))
    ways = np.zeros(len(near))
    for place in range(len(settled) - 1, 0, -1):
        router = settled[place]
        for link in range(links.first[router], links.first[router + 1]):
            after = links.target[link]
            if near[after] >= 0 and links.weight[link] + near[after] == near[router]:
                ways[router] += 1
        sent, sent_hops = own[router], 0.0
        if not upgraded[router]:
            sent += mass[router]
            sent_hops = hops[router]
        if sent == 0:
            continue
        for link in range(links.first[router], links.first[router + 1]):
            after = links.target[link]
            if near[after] >= 0 and links.weight[link] + near[after] == near[router]:
                mass[after] += sent / ways[router]
                hops[after] += (sent_hops + sent) / ways[router]
    free[target] = 1.0
    for place in range(1, len(settled)):
        router = settled[place]
        for link in range(links.first[router], links.first[router + 1]):
            after = links.target[link]
            is_next = near[after] >= 0 and links.weight[link] + near[after] == near[router]
            if is_next and (after == target or not upgraded[after]):
                free[router] += free[after] / ways[router]
                ahead[router] += (ahead[after] + free[after]) / ways[router]
        if not upgraded[router]:
            crossing[router] += mass[router] * free[router]
            relief[router] += hops[router] * free[router] + mass[router] * ahead[router]
    return float(hops[target])
