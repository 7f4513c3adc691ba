"""Whether a lab's routing has converged: what routers' kernels and databases have, against the links that are up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sojourn.lab.routed.plan import LabPlan
from sojourn.lab.routed.routers import Router
from sojourn.mplane.planning.live_topology import SCHEME, read_live_topology
from sojourn.mplane.planning.paths import shortest_paths
from sojourn.mplane.planning.topology import Topology, TopologyBuilder

__all__ = ["what_lacks"]


def what_lacks(plan: LabPlan, links_up: set[frozenset[str]], routers: Sequence[Router]) -> str | None:
    """The first route that a router's kernel lacks, has at another cost or over other next hops, or has too much.

    Then the first router whose OSPF database is not of the links that are up, as far as it can reach their ends.
    """
    topology = _topology(plan, links_up)
    expected = _expected_routes(plan, topology)
    for router in routers:
        present = _routes(router.vtysh_json("show ip route ospf json"))
        for node in plan.routers:
            wanted = expected[router.name].get(node.name)
            found = present.get(node.address)
            if node.name != router.name and wanted != found:
                return f"{router.name} has {_in_words(found)} to {node.name}, not {_in_words(wanted)}"
    for router in routers:
        near = {router.name, *expected[router.name]}
        if _links(_database(plan, router), near) != _links(topology, near):
            return f"{router.name} has an OSPF database of other links"
    return None


def _database(plan: LabPlan, router: Router) -> Topology:
    names = {node.address: node.name for node in plan.routers}
    return read_live_topology(f"{SCHEME}{router.folder}", names=names, needs_links=False)


def _links(topology: Topology | None, near: set[str]) -> set[tuple[str, str, int]]:
    """Links among some routers."""
    if topology is None:
        return set()
    names = topology.names
    ends = zip(topology.source.tolist(), topology.target.tolist(), topology.weight.tolist(), strict=True)
    return {(names[u], names[v], weight) for u, v, weight in ends if names[u] in near and names[v] in near}


def _in_words(route: tuple[int, int] | None) -> str:
    return "no route" if route is None else f"a route of cost {route[0]} over {route[1]} next hops"


def _expected_routes(plan: LabPlan, topology: Topology | None) -> dict[str, dict[str, tuple[int, int]]]:
    """By router and destination, the cost and the number of next hops."""
    if topology is None:
        return {node.name: {} for node in plan.routers}
    paths = shortest_paths(topology)
    routes: dict[str, dict[str, tuple[int, int]]] = {}
    for s, name in enumerate(topology.names):
        links = range(topology.first[s], topology.first[s + 1])
        routes[name] = {}
        for t, other in enumerate(topology.names):
            distance = int(paths.distance[s, t])
            rest = {k: int(paths.distance[topology.target[k], t]) for k in links}
            hops = [k for k in links if rest[k] >= 0 and topology.weight[k] + rest[k] == distance]
            if distance > 0:
                routes[name][other] = (distance, len(hops))
    return routes


def _topology(plan: LabPlan, links_up: set[frozenset[str]]) -> Topology | None:
    builder = TopologyBuilder("lab")
    for node in plan.routers:
        builder.add_router(node.name, 0)
    links = [link for link in plan.links if not link.is_host and frozenset(link.names) in links_up]
    for link in links:
        for end, other in (link.ends, link.ends[::-1]):
            builder.add_link(end.node, other.node, str(end.cost), line=0)
    return builder.finish() if links else None


def _routes(answer: Any) -> dict[str, tuple[int, int]]:
    """Cost and number of next hops by destination, for routes that the kernel has."""
    routes = {}
    for prefix, entries in answer.items():
        for entry in entries:
            if entry.get("installed") and prefix.endswith("/32"):
                active = [hop for hop in entry.get("nexthops", []) if hop.get("fib")]
                routes[prefix[:-3]] = (int(entry["metric"]), len(active))
    return routes
