"""A routed network inside this machine: namespaces for routers and hosts, veth pairs for links, real OSPF.

::

    with routed_lab(topology, hosts={"h1": "r1", "h2": "r6"}) as lab:
        lab.wait_converged()
        lab.router("r1").run("ip", "route")
        lab.link_down("r1", "r2")

`routed_lab` builds it and removes it whatever happens; `sojourn.lab.routed.state` keeps labs that outlive their maker
and removes what others left behind. `sojourn.lab.routed.plan` decides who has which address and interface.

Guarantee: nothing is made outside of the lab's namespaces and its run directory; IPv4 only; segmentation offload is
off, so that all taps see the same packets. *Converged* means that the kernel of every router has the routes, with the
costs and as many next hops, that the links which are up give, and that its OSPF database has these links.
Needs root, FRRouting, and the commands ``ip``, ``tc`` and ``ethtool``.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sojourn.core.errors import SojournError, UsageError
from sojourn.core.results import Advance
from sojourn.lab.namespaces import (
    Bottleneck,
    Host,
    check_can_build,
    own_prefix,
    remove_leftovers,
    run_command,
    token_bucket,
)
from sojourn.lab.routed.plan import End, LabPlan, Link, plan_lab
from sojourn.lab.routed.routers import DAEMONS, Router, check_frr
from sojourn.lab.routed.state import LabState, remove_lab, remove_stale_labs
from sojourn.mplane.planning.live_topology import SCHEME, read_live_topology
from sojourn.mplane.planning.paths import shortest_paths
from sojourn.mplane.planning.topology import Topology, TopologyBuilder


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
        names = {node.address: node.name for node in plan.routers}
        database = read_live_topology(f"{SCHEME}{router.folder}", names=names, needs_links=False)
        if _links(database, near) != _links(topology, near):
            return f"{router.name} has an OSPF database of other links"
    return None


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


# Told of every step of building: what is done now, and the share done.
CONVERGE_SECONDS = 90.0
_SEQUENCE = itertools.count()
_SETTINGS = {
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/fib_multipath_hash_policy": "1",
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}


class RoutedLab:
    """A lab that is up, by its state; nodes are taken by their names in the topology."""

    def __init__(self, state: LabState) -> None:
        self.state = state
        self.plan: LabPlan = state.plan
        self._nodes: dict[str, Host] = {}
        for node in self.plan.nodes:
            namespace = state.namespace(node)
            if node.is_router:
                self._nodes[node.name] = Router(node.name, namespace, node.address, folder=state.folder / node.label)
            else:
                self._nodes[node.name] = Host(node.name, namespace, node.address)

    @property
    def routers(self) -> list[Router]:
        return [node for node in self._nodes.values() if isinstance(node, Router)]

    @property
    def hosts(self) -> list[Host]:
        return [node for node in self._nodes.values() if not isinstance(node, Router)]

    def node(self, name: str) -> Host:
        """The router or host of a name."""
        return self._nodes[self.plan.node(name).name]

    def router(self, name: str) -> Router:
        """The router of a name; its `address` is its loopback's and its router id."""
        node = self.node(name)
        if not isinstance(node, Router):
            raise UsageError(f"{name} is a host", where="lab", action="name a router")
        return node

    def host(self, name: str) -> Host:
        """The host of a name."""
        node = self.node(name)
        if isinstance(node, Router):
            raise UsageError(f"{name} is a router", where="lab", action="name a host")
        return node

    def interface(self, node: str, neighbour: str) -> str:
        """The interface by which a node reaches its neighbour."""
        return self.plan.end(node, neighbour).interface

    def link_down(self, one: str, other: str) -> None:
        """Take both ends of a link down; both see it at once."""
        self._set_link(self.plan.link(one, other), "down")

    def link_up(self, one: str, other: str) -> None:
        """Bring a link back."""
        self._set_link(self.plan.link(one, other), "up")

    def _set_link(self, link: Link, state: str) -> None:
        for end in link.ends:
            _ip(self.node(end.node), [f"link set {end.interface} {state}"])
        if link.is_host and state == "up":
            _route_to_router(self.node(link.ends[1].node), link)

    def links_up(self) -> set[frozenset[str]]:
        """The links that are up, by the names of their ends."""
        up: set[tuple[str, str]] = set()
        for name, node in self._nodes.items():
            interfaces = json.loads(run_command("ip", "-n", node.namespace, "-json", "link", "show"))
            up.update((name, interface["ifname"]) for interface in interfaces if "UP" in interface["flags"])
        return {
            frozenset(link.names) for link in self.plan.links if all((e.node, e.interface) in up for e in link.ends)
        }

    def set_bottleneck(self, node: str, neighbour: str, bottleneck: Bottleneck | None) -> None:
        """Packets from a node to its neighbour pass a token bucket; None takes it away."""
        _shape(self.node(node), self.plan.end(node, neighbour), bottleneck)

    def converged(self) -> str | None:
        """What is missing for routing to have converged; None when nothing is."""
        try:
            return what_lacks(self.plan, self.links_up(), self.routers)
        except SojournError as error:  # a router that has ended, or is not there yet
            return str(error)

    def wait_converged(self, timeout: float = CONVERGE_SECONDS) -> float:
        """Wait until routing has converged; the seconds that it took."""
        start = time.monotonic()
        while (lacking := self.converged()) is not None:
            if time.monotonic() - start > timeout:
                raise SojournError(f"not converged after {timeout:g} s: {lacking}", where="lab")
            time.sleep(0.1)
        return time.monotonic() - start


@contextmanager
def routed_lab(
    topology: Topology,
    *,
    hosts: Mapping[str, str] | None = None,
    latencies: bool = True,
    advance: Advance | None = None,
) -> Iterator[RoutedLab]:
    """A lab for the time of the context; `hosts` names the router that each is attached to.

    Latencies of links need a kernel with netem.
    """
    check_can_build()
    check_frr()
    remove_leftovers()
    remove_stale_labs()
    label = f"{own_prefix()}-r{next(_SEQUENCE)}"
    state = LabState(label, plan_lab(topology, hosts, latencies=latencies))
    lab: RoutedLab | None = None
    state.create()
    try:
        lab = build_lab(state, advance or (lambda _text, _share: None))
        yield lab
    finally:
        for node in [*lab.routers, *lab.hosts] if lab is not None else []:
            for process in node.processes:
                process.stop()
        remove_lab(state)


def build_lab(state: LabState, advance: Advance) -> RoutedLab:
    """Make everything of a lab that is `create`d and start its daemons; the caller removes it, also if this fails."""
    lab = RoutedLab(state)
    nodes = [*lab.routers, *lab.hosts]
    for i, node in enumerate(nodes):
        advance(f"namespace of {node.name}", 0.3 * i / len(nodes))
        run_command("ip", "netns", "add", node.namespace)
        with node.entered():
            for setting, value in _SETTINGS.items():
                # A host does not forward; and there are kernels without IPv6.
                if isinstance(node, Router) or "ip_forward" not in setting:
                    with suppress(FileNotFoundError):
                        Path("/proc/sys/net", setting).write_text(value)
        if isinstance(node, Router):
            node.configure(lab.plan)
    advance(f"{len(lab.plan.links)} links", 0.3)
    ends = [[(end.interface, lab.node(end.node).namespace) for end in link.ends] for link in lab.plan.links]
    cables = [f"link add {a} netns {here} type veth peer name {b} netns {there}\n" for (a, here), (b, there) in ends]
    run_command("ip", "-batch", "-", given="".join(cables))
    for i, node in enumerate(nodes):
        advance(f"interfaces of {node.name}", 0.3 + 0.3 * i / len(nodes))
        _connect(lab.plan, node)
    steps = [(router, daemon) for daemon in DAEMONS for router in lab.routers]
    for i, (router, daemon) in enumerate(steps):
        advance(f"{daemon} of {router.name}", 0.6 + 0.4 * i / len(steps))
        router.start_daemon(daemon)
    state.mark_built()
    return lab


def _connect(plan: LabPlan, node: Host) -> None:
    """Addresses, offload and queues of all interfaces of a node; then they go up."""
    lines = ["link set lo up"]
    lines += [f"address add {node.address}/32 dev lo"] if isinstance(node, Router) else []
    ends = plan.ends_of(node.name)
    for end, _link in ends:
        node.run("ethtool", "-K", end.interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off")
        lines += [f"address add {end.address}/30 dev {end.interface}", f"link set {end.interface} up"]
        if end.latency_ns > 0 or end.rate > 0:
            _shape(node, end, None)
    _ip(node, lines)
    if not isinstance(node, Router):
        _route_to_router(node, ends[0][1])


def _route_to_router(host: Host, link: Link) -> None:
    """A host's default route, which goes when its link does."""
    _ip(host, [f"route replace default via {link.ends[0].address}"])


def _ip(node: Host, lines: list[str]) -> None:
    run_command("ip", "-n", node.namespace, "-batch", "-", given="\n".join(lines) + "\n")


def _shape(node: Host, end: End, bottleneck: Bottleneck | None) -> None:
    """The queue of an interface: the link's latency, then the given token bucket or that of the link's own rate."""
    if bottleneck is None and end.rate > 0:
        bottleneck = Bottleneck(end.rate)
    with suppress(SojournError):  # there was none
        _tc(node, "del", end, "root")
    parent = ["root"]
    if end.latency_ns > 0:
        try:
            _tc(node, "add", end, "root", "handle", "1:", "netem", "delay", f"{end.latency_ns / 1e6:.6f}ms")
        except SojournError as error:
            action = "load the module sch_netem, or build without latencies"
            raise SojournError(f"no latency on {end.interface}: {error.what}", where=node.name, action=action) from None
        parent = ["parent", "1:1"]
    if bottleneck is not None:
        _tc(node, "add", end, *parent, *token_bucket(bottleneck))


def _tc(node: Host, action: str, end: End, *arguments: str) -> None:
    run_command("tc", "-n", node.namespace, "qdisc", action, "dev", end.interface, *arguments)
