"""The interfaces of a router that are measured between: whom they face, and the addresses that messages need."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Interface
from typing import Any

from sojourn.core.errors import LiveCaptureError, UsageError

__all__ = ["FacingInterface", "RouterInterface", "look_up", "parse_facing"]

_FACING = re.compile(r"([^=\s]+)=([^@]+)(?:@(.+))?")
_COMMAND_SECONDS = 10
_POINT_TO_POINT = 30  # prefix length from which on there is one other address


@dataclass(frozen=True)
class FacingInterface:
    """What a user says of an interface: the neighbour that it faces and, if need be, that one's address."""

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
    """Ask the system for what is not said; all must be different."""
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
    """The neighbour's address: a gateway of the routes, the other end of the cable, or one that was heard of."""
    own = [
        IPv4Interface(f"{address['local']}/{address['prefixlen']}")
        for link in _ip("-4", "address", "show", "dev", interface)
        for address in link.get("addr_info", [])
    ]
    gateways = [route.get("gateway") for route in _ip("-4", "route", "show", "table", "all", "dev", interface)]
    heard = [entry.get("dst") for entry in _ip("-4", "neigh", "show", "dev", interface) if entry.get("lladdr")]
    pairs = [
        str(address)
        for one in own
        if one.network.prefixlen >= _POINT_TO_POINT
        for address in (list(one.network.hosts()) or list(one.network))
        if address != one.ip
    ]
    for text in (*gateways, *pairs, *heard):
        if text and any(IPv4Address(text) in one.network for one in own):
            return IPv4Address(text)
    raise LiveCaptureError(
        "its neighbour's address is not known",
        where=interface,
        action=f"write --interface {interface}=NEIGHBOUR@ADDRESS",
    )


def _ip(*words: str) -> list[dict[str, Any]]:
    """What ``ip -json`` says; nothing where it refuses."""
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
