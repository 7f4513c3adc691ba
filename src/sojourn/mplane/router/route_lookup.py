"""Where the router sends a packet: the kernel's own answer, asked once per flow and class, and kept.

The question is that of ``ip route get DEST from SRC iif IFACE``: the kernel looks as it does for a packet that
arrives, through rules, tables and multipath. So there is no second forwarding table that could differ. Answers are
kept until the kernel tells of a change of routes, rules or next hops; then all are asked again.

What a flow is follows the kernel's multipath hash: host pairs, or five-tuples where it looks at ports. Not followed are
rules that look at firewall marks, and IPv6 multipath.
Cost: about 20 µs per new flow, 0.1 µs per packet; at most `MOST_FLOWS` flows are kept.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np

from sojourn.capture.decode.ids import FlowKeying, Keying
from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.errors import LiveCaptureError
from sojourn.core.keys import FlowKey, HostPairKey, TrafficKey

__all__ = ["NOWHERE", "RouteLookup", "keying_of_routes"]

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

        `keys_at` tells the keys of some of the packets by their rows.
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
        """Whether the kernel has told of changes that lead a known flow another way; then that is known."""
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
                if error.errno != errno.ENOBUFS:  # more was told than there was room for
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
            raise LiveCaptureError("the kernel tells no routes", where="netlink") from None


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
