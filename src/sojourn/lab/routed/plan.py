"""What a routed lab consists of, before any of it is made: nodes, links, interfaces, addresses, costs.

::

    h1 ── r1 ── r2 ── … ── r6 ── h2

    router i     namespace LABEL-r1, loopback 10.96.0.i/32 (its router id)
    link k       a veth pair, 10.96.64.4k/30 and on; interfaces are named for the other end: to-r2
    host j       namespace LABEL-h1, 10.96.128.4j/30 and on; its default route is its router

A node's *label* is its name where that fits an interface's name and a file's, else ``n`` and its number. An OSPF cost
is a link's weight in the topology's smallest unit (1.5 is 15 where weights have one decimal), each way its own; a link
that the topology has one way only is the same both ways. So are latencies and rates, and these are left out on request.

Pure: nothing is run, and a plan goes to JSON and back unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sojourn.core.errors import ParameterError, UsageError
from sojourn.mplane.planning.topology import Topology

MAX_ROUTERS = 64
MAX_LINKS = 1024
MAX_HOSTS = 64
MAX_COST = 65_535
HOST_COST = 1
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,11}")


@dataclass(frozen=True)
class Node:
    """A router (its address is its loopback's) or a host (`router` is where it is attached)."""

    name: str
    label: str
    address: str
    router: str = ""

    @property
    def is_router(self) -> bool:
        return not self.router


@dataclass(frozen=True)
class End:
    """One end of a link: the interface of a node, and the cost, latency and rate for packets that leave by it."""

    node: str
    interface: str
    address: str
    cost: int
    latency_ns: int = -1
    rate: int = -1


@dataclass(frozen=True)
class Link:
    """A cable between two nodes; for a host's, the router is the first end."""

    ends: tuple[End, End]
    is_host: bool = False

    @property
    def names(self) -> tuple[str, str]:
        return self.ends[0].node, self.ends[1].node


@dataclass(frozen=True)
class LabPlan:
    """All nodes and links of a lab."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def routers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.is_router)

    @property
    def hosts(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if not node.is_router)

    def node(self, name: str) -> Node:
        """The router or host of that name."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes[:8]) + ("…" if len(self.nodes) > 8 else "")
        raise UsageError(f"there is no router or host {name!r}", where="lab", action=f"there are {known}")

    def link(self, one: str, other: str) -> Link:
        """The link between two neighbours."""
        for name in (one, other):
            self.node(name)
        for link in self.links:
            if set(link.names) == {one, other} and one != other:
                return link
        near = [end.node for link in self.links if one in link.names for end in link.ends if end.node != one]
        action = f"neighbours of {one} are {', '.join(near)}" if near else f"{one} has no neighbours"
        raise UsageError(f"there is no link between {one} and {other}", where="lab", action=action)

    def end(self, node: str, neighbour: str) -> End:
        """Where packets from a node to a neighbour leave."""
        return next(end for end in self.link(node, neighbour).ends if end.node == node)

    def ends_of(self, node: str) -> list[tuple[End, Link]]:
        """The interfaces of a node, and the links that they belong to."""
        return [(end, link) for link in self.links for end in link.ends if end.node == node]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LabPlan:
        """A plan from `to_json`; KeyError, TypeError or ValueError where it is none."""
        links = []
        for link in data["links"]:
            first, second = (End(**end) for end in link["ends"])
            links.append(Link((first, second), bool(link["is_host"])))
        return cls(tuple(Node(**node) for node in data["nodes"]), tuple(links))


def plan_lab(topology: Topology, hosts: Mapping[str, str] | None = None, *, latencies: bool = True) -> LabPlan:
    """The lab of a topology, with the links' latencies or without; `hosts` gives the router that each is attached to.

    >>> from sojourn.mplane.planning.topology import triangle
    >>> plan = plan_lab(triangle(), {"h1": "a"})
    >>> plan.end("a", "b")
    End(node='a', interface='to-b', address='10.96.64.1', cost=1, latency_ns=-1, rate=-1)
    """
    hosts = dict(hosts or {})
    _check(topology, hosts)
    names = [*topology.names, *hosts]
    labels = _labels(names)
    routers = [Node(name, labels[name], f"10.96.0.{i + 1}") for i, name in enumerate(topology.names)]
    links = _router_links(topology, labels, latencies)
    attached = []
    for i, (host, router) in enumerate(hosts.items()):
        gateway, address = _pair_of_addresses(128, i)
        attached.append(Node(host, labels[host], address, router))
        ends = (
            End(router, f"to-{labels[host]}", gateway, HOST_COST),
            End(host, f"to-{labels[router]}", address, HOST_COST),
        )
        links.append(Link(ends, is_host=True))
    return LabPlan((*routers, *attached), tuple(links))


def _check(topology: Topology, hosts: Mapping[str, str]) -> None:
    counts = ((len(topology.names), MAX_ROUTERS, "routers"), (topology.links, 2 * MAX_LINKS, "links one way"))
    for count, limit, what in (*counts, (len(hosts), MAX_HOSTS, "hosts")):
        if count > limit:
            raise ParameterError(f"{count} {what} are too many", where="lab", action=f"use at most {limit}")
    for host, router in hosts.items():
        if host in topology.index or not host:
            raise ParameterError(f"a host cannot be named {host!r}", where="lab", action="use a name of its own")
        topology.router(router)
    heaviest = int(topology.weight.max(initial=0))
    if heaviest > MAX_COST:
        unit = f" (in units of 1/{topology.weight_unit})" if topology.weight_unit > 1 else ""
        what = f"a link weighs {heaviest}{unit}, an OSPF cost is at most {MAX_COST}"
        raise ParameterError(what, where="lab", action="scale the weights down, or use fewer decimals")


def _labels(names: list[str]) -> dict[str, str]:
    plain = {name for name in names if _PLAIN_NAME.fullmatch(name)}
    labels: dict[str, str] = {}
    for i, name in enumerate(names):
        label = name if name in plain else f"n{i}"
        while label in plain and label != name:
            label += "_"
        labels[name] = label
    return labels


def _router_links(topology: Topology, labels: Mapping[str, str], latencies: bool) -> list[Link]:
    """A link for every pair of routers that one leads between, in the order of the topology."""
    way = {ends: i for i, ends in enumerate(zip(topology.source.tolist(), topology.target.tolist(), strict=True))}
    links: list[Link] = []
    for u, v in way:
        if u > v and (v, u) in way:
            continue
        ends = []
        for (a, b), address in zip(((u, v), (v, u)), _pair_of_addresses(64, len(links)), strict=True):
            there = way.get((a, b), way.get((b, a), -1))
            here, other = topology.names[a], topology.names[b]
            cost, latency = int(topology.weight[there]), int(topology.latency_ns[there]) if latencies else -1
            rate = topology.rates.get((a, b), topology.rates.get((b, a), -1))
            ends.append(End(here, f"to-{labels[other]}", address, cost, latency, rate))
        links.append(Link((ends[0], ends[1])))
    return links


def _pair_of_addresses(third_byte: int, number: int) -> tuple[str, str]:
    """The two addresses of the numbered /30."""
    block, place = divmod(number, 64)
    return f"10.96.{third_byte + block}.{4 * place + 1}", f"10.96.{third_byte + block}.{4 * place + 2}"
