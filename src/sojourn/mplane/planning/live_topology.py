"""The topology as a router sees it now: read from its own OSPF database with ``vtysh``.

================  ===========================================================================
source            router
================  ===========================================================================
``frr:``          FRRouting of this machine
``frr:NAME``      one that runs with the pathspace NAME (``-N NAME``), often a namespace's name
``frr:/FOLDER``   one whose sockets (``ospfd.vty``) are in a directory
================  ===========================================================================

Every router announces its links with their costs (router-LSAs), and a network that several routers share is announced
by one of them (network-LSAs). From these:

- a point-to-point link leads from one router to another at the cost that its router announces, and is a link only if
  the other announces one back;
- a shared network joins each two routers that announce it and that it lists, each at its own cost to the network;
- of parallel links the lightest counts; stub networks are not links; LSAs that reached the maximum age are ignored.

Routers are named by their router ids, or by a name given for that id, in the order of their ids. The database is what
neighbours sent: ids must be dotted quads, costs 0 to 65535, and the limits of `TopologyBuilder` apply.

Costs one run of ``vtysh``, about 50 ms. Its answer is limited by `MAX_BYTES` and `VTYSH_SECONDS`.

M-sets that follow a network: its topology is polled.

A router that disappears keeps its number, and a new one gets the next, so that the numbers of the m-sets before and
after a change mean the same routers. Until routing has converged packets may take the old paths or the new ones:
whoever monitors keeps what a change replaced for a hold time (`probes.Prober.probe`).

Costs one reading per poll; a change costs what `m_sets_after_change` costs.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sojourn.core.errors import ParameterError, SojournError, TopologyError, UsageError
from sojourn.core.units import parse_duration
from sojourn.mplane.planning.paths import MSets, m_sets, m_sets_after_change, shortest_paths
from sojourn.mplane.planning.topology import Topology, TopologyBuilder

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
    """The topology that ``show ip ospf database router json`` and ``… network json`` describe; names by router id."""
    announced = _Announced()
    areas: set[str] = set()
    for area, lsa in _lsas(routers, "routerLinkStates", where):
        areas.add(area)
        _read_router(lsa, announced, where)
    for _area, lsa in _lsas(networks, "networkLinkStates", where):
        network = _address(lsa, "linkStateId", where)
        key = next((key for key in _ATTACHED if key in lsa), _ATTACHED[0])
        attached = {_address(entry, "attachedRouterId", where) for entry in _part(lsa, key, dict, where).values()}
        announced.networks.setdefault(network, set()).update(attached)
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


def _build(announced: _Announced, areas: int, where: str, names: Mapping[str, str]) -> Topology:
    builder = TopologyBuilder(where)
    known = {router: names.get(str(router), str(router)) for router in sorted(announced.routers)}
    if len(set(known.values())) < len(known):
        raise builder.error("two routers have the same name", action="give every router id a name of its own")
    for name in known.values():
        builder.add_router(name, 0)
    # Point-to-point links whose other ends announce one back; a router is no neighbour of itself.
    ends = {(source, target) for source, target, _ in announced.links}
    mutual = [
        (source, target, cost)
        for source, target, cost in announced.links
        if source != target and target in announced.routers and (target, source) in ends
    ]
    parallel = 0
    for source, target, cost in [*mutual, *_over_networks(announced)]:
        if cost == 0:
            raise builder.error(f"the link from {known[source]} to {known[target]} costs 0", action="let it cost 1")
        is_new = builder.add_link(known[source], known[target], str(cost), line=0, is_parallel=True)
        parallel += not is_new
    remarks = (
        (len(announced.links) - len(mutual), "links that only one side announces left out"),
        (parallel, "parallel links left out, the lightest kept"),
        (announced.virtual, "virtual links left out"),
        (areas if areas > 1 else 0, "areas; routers of areas that this router is not in are not seen"),
    )
    builder.remarks += [f"{count} {what}" for count, what in remarks if count]
    return builder.finish(needs_links=False)


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


SCHEME = "frr:"
MAX_BYTES = 64_000_000
VTYSH_SECONDS = 20.0
MAX_NAMES_LETTERS = 16_000_000
_COMMANDS = ("show ip ospf database router json", "show ip ospf database network json")
_PATHSPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def is_live(source: str) -> bool:
    """Whether a source is a router, and not a file.

    >>> is_live("frr:"), is_live("net.csv")
    (True, False)
    """
    return source.startswith(SCHEME)


def read_live_topology(source: str, *, names: Mapping[str, str] | None = None, needs_links: bool = True) -> Topology:
    """The topology in a router's OSPF database; routers are named by their ids, or by `names` of these.

    A database without a single link is an error, unless it `needs_links` no more: a network may fail altogether.
    """
    where = source.removesuffix(":")
    command = ["vtysh", *_place(source), "-d", "ospfd"]
    for asked in _COMMANDS:
        command += ["-c", asked]
    databases = _decode(_answer(command, where), where)
    topology = topology_of_database(databases[0], databases[1], where=where, names=names)
    if needs_links and not topology.links:
        action = "wait until it has neighbours, and check 'show ip ospf neighbor'"
        raise TopologyError("its OSPF database has no links", where=where, action=action)
    return topology


def read_router_names(path: Path) -> dict[str, str]:
    """Names by router id, from a CSV with the columns ``router_id`` and ``name``."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            text = file.read(MAX_NAMES_LETTERS + 1)
            if len(text) > MAX_NAMES_LETTERS:
                raise TopologyError(
                    f"more than {MAX_NAMES_LETTERS} letters", where=str(path), action="give a shorter file"
                )
            rows = list(csv.DictReader(text.splitlines(), strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise TopologyError(f"not CSV: {error}", where=str(path)) from None
    names: dict[str, str] = {}
    for line, row in enumerate(rows, 2):
        router, name = (row.get("router_id") or "").strip(), (row.get("name") or "").strip()
        if not router or not name:
            action = "begin with the line router_id,name and give both on every line"
            raise TopologyError("a router id or a name is missing", where=f"{path}:{line}", action=action)
        names[router] = name
    return names


def _place(source: str) -> list[str]:
    """The options that lead vtysh to the router."""
    place = source.removeprefix(SCHEME)
    if not place:
        return []
    if place.startswith("/"):
        if not Path(place).is_dir():
            raise UsageError("there is no such directory", where=source, action="name the one with ospfd.vty")
        return ["--vty_socket", place]
    if not _PATHSPACE.fullmatch(place):
        action = "use frr:, frr:NAME or frr:/FOLDER"
        raise UsageError("that is neither a pathspace nor a directory", where=source, action=action)
    return ["-N", place]


def _answer(command: Sequence[str], where: str) -> str:
    """What vtysh printed; TopologyError with what it wrote to stderr."""
    if shutil.which(command[0]) is None:
        action = "install the package frr, or give a topology file"
        raise TopologyError("there is no vtysh on this machine", where=where, action=action)
    with tempfile.TemporaryFile() as stderr:
        # Without a pager, which it would start where stdout is a terminal.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "VTYSH_PAGER": "cat"},
        )
        try:
            printed = _read_all(process, where)
            code = process.wait(VTYSH_SECONDS)
        except subprocess.TimeoutExpired:
            raise _too_slow(where) from None
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        stderr.seek(0)
        said = stderr.read(4000).decode(errors="replace").strip().splitlines()
    if code != 0:
        raise _refused(" ".join(said), where)
    return printed.decode(errors="replace")


def _read_all(process: subprocess.Popen[bytes], where: str) -> bytes:
    """All of stdout, unless it is too much or too slow."""
    assert process.stdout is not None
    deadline = time.monotonic() + VTYSH_SECONDS
    parts: list[bytes] = []
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise _too_slow(where)
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES:
                raise TopologyError(f"its OSPF database is more than {MAX_BYTES} bytes", where=where)


def _too_slow(where: str) -> TopologyError:
    return TopologyError(f"the router did not answer within {VTYSH_SECONDS:g} s", where=where)


def _refused(said: str, where: str) -> TopologyError:
    """Why vtysh failed, in other words than its own where these are known."""
    if "ospfd is not running" in said or "failed to connect to any daemons" in said:
        hint = "start FRRouting with ospfd"
        if os.geteuid() != 0:
            hint += ", or run as root or in the group frrvty"
        return TopologyError("no ospfd can be reached", where=where, action=hint)
    return TopologyError(f"vtysh failed: {said[-200:] or 'no message'}", where=where)


def _decode(text: str, where: str) -> list[Any]:
    """The JSON objects, one behind another."""
    if "OSPF is not enabled" in text[:200]:
        action = "configure a 'router ospf' on it"
        raise TopologyError("OSPF is not enabled on this router", where=where, action=action)
    decoder, objects, place = json.JSONDecoder(), [], 0
    try:
        for _ in _COMMANDS:
            while text[place : place + 1].isspace():
                place += 1
            found, place = decoder.raw_decode(text, place)
            objects.append(found)
    except (ValueError, RecursionError):
        what = f"the router gave no JSON: {text[place : place + 60].strip()!r}"
        raise TopologyError(what, where=where, action="it needs FRRouting 8.4 or later") from None
    return objects


_Seen = TypeVar("_Seen")
_WAKE_SECONDS = 0.1
_LEAST_EVERY_NS, MOST_NS = 100_000_000, 86_400 * 10**9


@dataclass
class Patience:
    """How often to look (ns), for how long (None: for ever), and whether someone has had enough."""

    every_ns: int
    for_ns: int | None = None
    is_over: bool = False

    @classmethod
    def parse(cls, every: str, duration: str | None) -> Patience:
        """From texts such as ``1s``."""
        patience = cls(parse_duration(every), None if duration is None else parse_duration(duration))
        if not _LEAST_EVERY_NS <= patience.every_ns <= MOST_NS:
            raise ParameterError("out of range", where="--every", action="use 100ms to 24h")
        if patience.for_ns is not None and patience.for_ns <= 0:
            raise ParameterError("no time to watch for", where="--for", action="give more than 0")
        return patience

    def stop(self) -> None:
        """End soon; may be called from a signal handler."""
        self.is_over = True


def repeatedly(
    look: Callable[[], _Seen], patience: Patience, on_error: Callable[[SojournError], None] | None = None
) -> Iterator[_Seen]:
    """What is seen at every look; at least one is taken.

    What the first look raises passes through. Where a later one fails nothing is given, and `on_error` gets the first
    of such looks in a row.
    """
    end = math.inf if patience.for_ns is None else time.monotonic_ns() + patience.for_ns
    is_silent, has_seen = False, False
    while True:
        try:
            seen = look()
        except SojournError as error:
            if not has_seen:
                raise
            if not is_silent and on_error is not None and not patience.is_over:
                on_error(error)
            is_silent = True
        else:
            is_silent, has_seen = False, True
            yield seen
        due = min(time.monotonic_ns() + patience.every_ns, end)
        while not patience.is_over and (left := (due - time.monotonic_ns()) / 1e9) > 0:
            time.sleep(min(left, _WAKE_SECONDS))
        if patience.is_over or due == end:
            return


# A link's ends and its weight.
NamedLink = tuple[str, str, int]


@dataclass(frozen=True)
class Change:
    """The m-sets in force from a time on, those before (None at first), and the links that went and came."""

    at_ns: int
    before: MSets | None
    after: MSets
    gone: tuple[NamedLink, ...]
    come: tuple[NamedLink, ...]


class TopologyWatch:
    """Polls a topology; `upgraded` names the m-routers, which must be there at the first poll.

    `sets` are the m-sets in force, once there are any.
    """

    def __init__(self, read: Callable[[], Topology], upgraded: Sequence[str] = ()) -> None:
        self._read, self._upgraded = read, tuple(upgraded)
        self.sets: MSets | None = None

    def poll(self, now_ns: int) -> Change | None:
        """Read the topology; the change if there is one, which the first reading always is.

        What the reading raises passes through, and leaves all as it was.
        """
        topology, before = self._read(), self.sets
        if before is None:
            self.sets = self._fresh(topology)
            return Change(now_ns, None, self.sets, (), tuple(_links(topology)))
        names = before.shortest.topology.names
        new = tuple(name for name in topology.names if name not in set(names))
        if new:
            before = self._fresh(renumbered(before.shortest.topology, (*names, *new)))
        topology = renumbered(topology, (*names, *new))
        old, fresh = set(_links(before.shortest.topology)), set(_links(topology))
        if old == fresh and not new:
            return None
        if topology.weight_unit != before.shortest.topology.weight_unit:
            self.sets = m_sets(shortest_paths(topology), before.upgraded)
        else:
            self.sets = m_sets_after_change(before, topology)
        return Change(now_ns, before, self.sets, tuple(sorted(old - fresh)), tuple(sorted(fresh - old)))

    def _fresh(self, topology: Topology) -> MSets:
        marks = np.zeros(len(topology.names), dtype=np.bool_)
        marks[[topology.router(name) for name in self._upgraded]] = True
        return m_sets(shortest_paths(topology), marks)

    def changes(
        self, patience: Patience, *, on_error: Callable[[SojournError], None] | None = None
    ) -> Iterator[Change]:
        """Changes as they are seen, reading again and again.

        Where a later reading fails the m-sets stay in force; `on_error` gets the first error of such readings in a row.
        """
        looks = repeatedly(lambda: self.poll(time.time_ns()), patience, on_error)
        return (change for change in looks if change is not None)


def renumbered(topology: Topology, names: tuple[str, ...]) -> Topology:
    """The same links among `names`, which include all of the topology's routers and give the order."""
    if names == topology.names:
        return topology
    place = {name: number for number, name in enumerate(names)}
    missing = [name for name in topology.names if name not in place]
    if missing:
        raise UsageError(f"the router {missing[0]} has no number", where="topology")
    number = np.array([place[name] for name in topology.names], dtype=np.int32)
    source, target = number[topology.source], number[topology.target]
    order = np.lexsort((target, source))
    degree = np.bincount(source, minlength=len(names))
    return Topology(
        names,
        np.concatenate(([0], np.cumsum(degree))),
        target[order],
        topology.weight[order],
        topology.latency_ns[order],
        topology.weight_unit,
        topology.remarks,
        {(int(number[u]), int(number[v])): rate for (u, v), rate in topology.rates.items()},
    )


def _links(topology: Topology) -> list[NamedLink]:
    names = topology.names
    ends = zip(topology.source.tolist(), topology.target.tolist(), topology.weight.tolist(), strict=True)
    return [(names[u], names[v], weight) for u, v, weight in ends]
