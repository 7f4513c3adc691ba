"""A topology from OSPF's link-state database, as FRRouting prints it in JSON.

Every router announces its links with their costs (router-LSAs), and a network that several routers share is announced
by one of them (network-LSAs). From these:

- a point-to-point link leads from one router to another at the cost that its router announces, and is a link only if
  the other announces one back;
- a shared network joins each two routers that announce it and that it lists, each at its own cost to the network;
- of parallel links the lightest stays; stub networks are no links; LSAs on their way out (of the greatest age) count no
  more.

Routers are named by their router ids, or by a name given for that id, and are in the order of their ids. The database
is what neighbours sent: ids must be dotted quads, costs 0 to 65535, and the bounds of `TopologyBuilder` hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from sojourn.core.errors import TopologyError
from sojourn.mplane.planning.topology import Topology, TopologyBuilder

__all__ = ["topology_of_database"]

MAX_AGE_SECONDS = 3600
MAX_COST = 65_535
_POINT_TO_POINT = "another Router (point-to-point)"
_TRANSIT = "a Transit Network"
_STUB = "Stub Network"
_VIRTUAL = "a Virtual Link"
# The key is misspelt in releases 7 and 8.
_ATTACHED = ("attachedRouters", "attchedRouters")
_OTHER_VERSION = "read it from FRRouting 8.4, or a release that prints the same"


@dataclass
class _Announced:
    """What all routers announce: (router, neighbour, cost), (router, network, cost), and the routers of networks."""

    routers: set[IPv4Address] = field(default_factory=set)
    links: list[tuple[IPv4Address, IPv4Address, int]] = field(default_factory=list)
    to_networks: list[tuple[IPv4Address, IPv4Address, int]] = field(default_factory=list)
    networks: dict[IPv4Address, set[IPv4Address]] = field(default_factory=dict)
    virtual: int = 0


def topology_of_database(
    routers: Any, networks: Any, *, where: str, names: Mapping[str, str] | None = None
) -> Topology:
    """The topology that ``show ip ospf database router json`` and ``… network json`` tell; names by router id."""
    announced = _Announced()
    areas: set[str] = set()
    for area, lsa in _lsas(routers, "routerLinkStates", where):
        areas.add(area)
        _read_router(lsa, announced, where)
    for _area, lsa in _lsas(networks, "networkLinkStates", where):
        network = _address(lsa, "linkStateId", where)
        announced.networks.setdefault(network, set()).update(_attached(lsa, where))
    if not announced.routers:
        raise TopologyError("the OSPF database is empty", where=where, action="wait for OSPF to start, or configure it")
    return _build(announced, len(areas), where, names or {})


def _lsas(database: Any, kind: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Area and content of every LSA that is not on its way out."""
    areas = _part(_part(database, kind, dict, where), "areas", dict, where)
    for area, lsas in areas.items():
        if not isinstance(lsas, list):
            raise _not_understood(f"area {str(area)[:40]!r}", where)
        for lsa in lsas:
            if _number(lsa, "lsaAge", MAX_AGE_SECONDS, where) < MAX_AGE_SECONDS:
                yield str(area), lsa


def _read_router(lsa: dict[str, Any], announced: _Announced, where: str) -> None:
    router = _address(lsa, "advertisingRouter", where)
    announced.routers.add(router)
    # A router without links has no list of them.
    for link in _part(lsa, "routerLinks", dict, where).values() if lsa.get("numOfLinks") else ():
        kind = _part(link, "linkType", str, where)
        if kind == _STUB:
            continue
        cost = _number(link, "tos0Metric", MAX_COST, where)
        if kind == _POINT_TO_POINT:
            announced.links.append((router, _address(link, "neighborRouterId", where), cost))
        elif kind == _TRANSIT:
            announced.to_networks.append((router, _address(link, "designatedRouterAddress", where), cost))
        elif kind == _VIRTUAL:
            announced.virtual += 1
        else:
            raise _not_understood(f"the kind of link {kind[:40]!r}", where)


def _attached(lsa: dict[str, Any], where: str) -> set[IPv4Address]:
    key = next((key for key in _ATTACHED if key in lsa), _ATTACHED[0])
    return {_address(entry, "attachedRouterId", where) for entry in _part(lsa, key, dict, where).values()}


def _build(announced: _Announced, areas: int, where: str, names: Mapping[str, str]) -> Topology:
    builder = TopologyBuilder(where)
    known = {router: names.get(str(router), str(router)) for router in sorted(announced.routers)}
    if len(set(known.values())) < len(known):
        raise builder.error("two routers have the same name", action="give every router id a name of its own")
    for name in known.values():
        builder.add_router(name, 0)
    mutual = _announced_by_both(announced)
    parallel = 0
    for source, target, cost in [*mutual, *_over_networks(announced)]:
        if cost == 0:
            raise builder.error(f"the link from {known[source]} to {known[target]} costs 0", action="let it cost 1")
        is_new = builder.add_link(known[source], known[target], str(cost), line=0, is_parallel=True)
        parallel += not is_new
    _remark(builder, announced, areas, len(announced.links) - len(mutual), parallel)
    return builder.finish(needs_links=False)


def _announced_by_both(announced: _Announced) -> list[tuple[IPv4Address, IPv4Address, int]]:
    """Point-to-point links whose other ends announce one back; a router is no neighbour of itself."""
    ends = {(source, target) for source, target, _ in announced.links}
    return [
        (source, target, cost)
        for source, target, cost in announced.links
        if source != target and target in announced.routers and (target, source) in ends
    ]


def _over_networks(announced: _Announced) -> Iterator[tuple[IPv4Address, IPv4Address, int]]:
    """Links between routers that share a network, which both sides announce."""
    members: dict[IPv4Address, dict[IPv4Address, int]] = {}
    for router, network, cost in announced.to_networks:
        if router in announced.networks.get(network, ()):
            members.setdefault(network, {})[router] = cost
    for costs in members.values():
        for source, cost in costs.items():
            for target in costs:
                if source != target:
                    yield source, target, cost


def _remark(builder: TopologyBuilder, announced: _Announced, areas: int, one_sided: int, parallel: int) -> None:
    if one_sided:
        builder.remarks.append(f"{one_sided} links that only one side announces left out")
    if parallel:
        builder.remarks.append(f"{parallel} parallel links left out, the lightest kept")
    if announced.virtual:
        builder.remarks.append(f"{announced.virtual} virtual links left out")
    if areas > 1:
        builder.remarks.append(f"{areas} areas; routers of areas that this router is not in are not seen")


def _part(data: Any, key: str, kind: type, where: str) -> Any:
    """What an object has at a key, of the type that it must have."""
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        raise _not_understood(f"{key!r}", where)
    return value


def _number(data: Any, key: str, most: int, where: str) -> int:
    value = _part(data, key, int, where)
    if isinstance(value, bool) or not 0 <= value <= most:
        raise TopologyError(f"{key} is 0 to {most}, this is {str(value)[:40]}", where=where)
    return int(value)


def _address(data: Any, key: str, where: str) -> IPv4Address:
    text = _part(data, key, str, where)
    try:
        return IPv4Address(text)
    except AddressValueError:
        raise TopologyError(f"{key} is no router id: {text[:40]!r}", where=where) from None


def _not_understood(what: str, where: str) -> TopologyError:
    return TopologyError(f"the OSPF database is printed in another way: {what}", where=where, action=_OTHER_VERSION)
