"""The router's measured interfaces, and where it forwards a packet: the kernel's own answer, cached per flow and class.

The query is that of ``ip route get DEST from SRC iif IFACE``: the kernel looks it up as for a packet that arrives,
through rules, tables and multipath. So there is no second forwarding table that could differ. Answers are cached until
the kernel notifies a change of routes, rules or next hops; then all are stale and looked up again.

What a flow is follows the kernel's multipath hash: host pairs, or five-tuples where it looks at ports. Not supported
are rules that look at firewall marks, and IPv6 multipath.
Cost: about 20 µs per new flow, 0.1 µs per packet; at most `MOST_FLOWS` flows are cached.
"""

from __future__ import annotations

import errno
import json
import re
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any, Self

import numpy as np

from sojourn.capture.decode.ids import FlowKeying, Keying
from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.errors import LiveCaptureError, UsageError
from sojourn.core.keys import FlowKey, HostPairKey, TrafficKey

_FACING = re.compile(r"([^=\s]+)=([^@]+)(?:@(.+))?")
_COMMAND_SECONDS = 10
_POINT_TO_POINT = 30  # prefix length from which on there is one other address


@dataclass(frozen=True)
class FacingInterface:
    """An interface as a user gives it: the neighbour that it faces and, if need be, that one's address."""

    name: str
    neighbour: str
    address: IPv4Address | None = None


@dataclass(frozen=True)
class RouterInterface:
    """An interface with its number, its hardware address and its neighbour's address."""

    name: str
    neighbour: str
    index: int
    hardware: bytes
    peer: IPv4Address


def parse_facing(text: str) -> FacingInterface:
    """From ``IFACE=NEIGHBOUR`` or ``IFACE=NEIGHBOUR@ADDRESS``.

    >>> parse_facing("eth1=r3@10.0.0.6").address
    IPv4Address('10.0.0.6')
    """
    match = _FACING.fullmatch(text)
    if match is None or set(match[2]) & set(":>/"):
        raise UsageError(
            f"{text!r} is no interface and neighbour",
            where="--interface",
            action="write IFACE=NEIGHBOUR or IFACE=NEIGHBOUR@ADDRESS, names without : > and /",
        )
    try:
        return FacingInterface(match[1], match[2].strip(), IPv4Address(match[3]) if match[3] else None)
    except AddressValueError:
        raise UsageError(
            f"{match[3]!r} is no IPv4 address", where="--interface", action="write IFACE=NEIGHBOUR@ADDRESS"
        ) from None


def look_up(facing: list[FacingInterface]) -> list[RouterInterface]:
    """Look up what is not given; all must be different."""
    for what, values in (("interface", [f.name for f in facing]), ("neighbour", [f.neighbour for f in facing])):
        if len(set(values)) < len(values):
            raise UsageError(f"an {what} is given twice", where="--interface", action="give each one once")
    if len(facing) < 2:
        raise UsageError("segments need two interfaces", where="--interface", action="give two or more")
    return [_look_up(one) for one in facing]


def _look_up(facing: FacingInterface) -> RouterInterface:
    links = _ip("link", "show", "dev", facing.name)
    if not links:
        raise LiveCaptureError("no such interface", where=facing.name, action="ip link shows those there are")
    if links[0].get("link_type") != "ether":
        raise LiveCaptureError("no Ethernet interface", where=facing.name, action="measure between Ethernet interfaces")
    hardware = bytes.fromhex(links[0]["address"].replace(":", ""))
    peer = facing.address or _find_peer(facing.name)
    return RouterInterface(facing.name, facing.neighbour, int(links[0]["ifindex"]), hardware, peer)


def _find_peer(interface: str) -> IPv4Address:
    """The neighbour's address: a gateway of the routes, the other end of the cable, or a known neighbour."""
    own = [
        IPv4Interface(f"{address['local']}/{address['prefixlen']}")
        for link in _ip("-4", "address", "show", "dev", interface)
        for address in link.get("addr_info", [])
    ]
    gateways = [route.get("gateway") for route in _ip("-4", "route", "show", "table", "all", "dev", interface)]
    neighbours = [entry.get("dst") for entry in _ip("-4", "neigh", "show", "dev", interface) if entry.get("lladdr")]
    pairs = [
        str(address)
        for one in own
        if one.network.prefixlen >= _POINT_TO_POINT
        for address in (list(one.network.hosts()) or list(one.network))
        if address != one.ip
    ]
    for text in (*gateways, *pairs, *neighbours):
        if text and any(IPv4Address(text) in one.network for one in own):
            return IPv4Address(text)
    raise LiveCaptureError(
        "its neighbour's address is not known",
        where=interface,
        action=f"write --interface {interface}=NEIGHBOUR@ADDRESS",
    )


def _ip(*words: str) -> list[dict[str, Any]]:
    """The output of ``ip -json``; nothing where it fails."""
    try:
        result = subprocess.run(
            ["ip", "-json", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise LiveCaptureError("the command ip cannot be run", where="router", action="install iproute2") from None
    found: list[dict[str, Any]] = json.loads(result.stdout) if result.returncode == 0 and result.stdout.strip() else []
    return [entry for entry in found if entry]


NOWHERE = -1
MOST_FLOWS = 1 << 16

_NETLINK_ROUTE, _NEW_ROUTE, _GET_ROUTE, _REQUEST = 0, 24, 26, 1
_DESTINATION, _SOURCE, _INGRESS, _EGRESS, _PROTOCOL, _SOURCE_PORT, _DEST_PORT = 1, 2, 3, 4, 27, 28, 29
_UNICAST = 1
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_GROUPS = (7, 8, 11, 19, 32)  # RTNLGRP_: IPv4 routes and rules, IPv6 routes and rules, next hops
_PORTS_OF = (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
_POLICIES = ("ipv4/fib_multipath_hash_policy", "ipv6/fib_multipath_hash_policy")
_WAIT_SECONDS = 5.0

KeysAt = Callable[[Int64Array], list[TrafficKey]]


def keying_of_routes() -> FlowKeying:
    """What packets the kernel surely sends the same way."""
    for policy in _POLICIES:
        path = Path("/proc/sys/net", policy)
        if path.exists() and path.read_text().strip() != "0":
            return FlowKeying(Keying.FIVE_TUPLE)
    return FlowKeying(Keying.HOST_PAIR)


class RouteLookup:
    """The egress of packets that entered by one interface; a context manager."""

    def __init__(self, ingress: int) -> None:
        self._ingress = ingress
        self._known: dict[tuple[int, int], tuple[TrafficKey, int]] = {}
        self._asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        self._asking.settimeout(_WAIT_SECONDS)
        self._listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        self._listening.bind((0, 0))
        for group in _GROUPS:
            self._listening.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        self._listening.setblocking(False)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._asking.close()
        self._listening.close()

    def egress(self, flow_id: UInt64Array, dscp: int, keys_at: KeysAt) -> Int64Array:
        """The interface's number for each packet of a class, or `NOWHERE`: to the router itself, or no route.

        `keys_at` gives the keys of some of the packets by their rows.
        """
        ids, first, inverse = np.unique(flow_id, return_index=True, return_inverse=True)
        places = [(int(i), dscp) for i in ids.tolist()]
        new = [row for row, place in enumerate(places) if place not in self._known]
        if len(self._known) + len(new) > MOST_FLOWS:
            self._known.clear()
            new = list(range(len(places)))
        for row, key in zip(new, keys_at(first[new].astype(np.int64)) if new else [], strict=True):
            self._known[places[row]] = (key, self._ask(key, dscp))
        answers = np.array([self._known[place][1] for place in places], np.int64)
        return answers[inverse]

    def has_changed(self) -> bool:
        """Whether the kernel notified changes that reroute a known flow; the cache then has the new routes."""
        if not self._was_told():
            return False
        before = self._known
        self._known = {place: (key, self._ask(key, place[1])) for place, (key, _) in before.items()}
        return any(before[place][1] != egress for place, (_, egress) in self._known.items())

    def _was_told(self) -> bool:
        told = False
        while True:
            try:
                self._listening.recv(1 << 16)
            except BlockingIOError:
                return told
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # more notifications than there was room for
                    raise
            told = True

    def _ask(self, key: TrafficKey, dscp: int) -> int:
        if not isinstance(key, FlowKey | HostPairKey):
            return NOWHERE
        self._number += 1
        self._asking.send(_question(key, dscp, self._ingress, self._number))
        try:
            while True:
                answer = self._asking.recv(1 << 16)
                kind, number = struct.unpack_from("=IHHI", answer)[1], struct.unpack_from("=I", answer, 8)[0]
                if number == self._number:
                    return _egress_of(answer) if kind == _NEW_ROUTE else NOWHERE
        except TimeoutError:
            raise LiveCaptureError("the kernel sends no routes", where="netlink") from None


def _question(key: FlowKey | HostPairKey, dscp: int, ingress: int, number: int) -> bytes:
    source, destination = key.src_ip.packed, key.dest_ip.packed
    attributes = [(_DESTINATION, destination), (_SOURCE, source), (_INGRESS, struct.pack("=I", ingress))]
    if isinstance(key, FlowKey) and key.protocol in _PORTS_OF:
        attributes += [
            (_PROTOCOL, bytes([key.protocol])),
            (_SOURCE_PORT, key.src_port.to_bytes(2, "big")),
            (_DEST_PORT, key.dest_port.to_bytes(2, "big")),
        ]
    family = socket.AF_INET if len(source) == 4 else socket.AF_INET6
    bits = 8 * len(source)
    body = struct.pack("=BBBBBBBBI", family, bits, bits, dscp << 2, 0, 0, 0, 0, 0)
    for kind, value in attributes:
        body += struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
    return struct.pack("=IHHII", 16 + len(body), _GET_ROUTE, _REQUEST, number, 0) + body


def _egress_of(answer: bytes) -> int:
    """The outgoing interface of a unicast route; packets to the router itself have none."""
    if answer[16 + 7] != _UNICAST:
        return NOWHERE
    at, end = 16 + 12, struct.unpack_from("=I", answer)[0]
    while at + 4 <= end:
        size, kind = struct.unpack_from("=HH", answer, at)
        if kind == _EGRESS:
            return int(struct.unpack_from("=I", answer, at + 4)[0])
        at += (max(size, 4) + 3) & ~3
    return NOWHERE
