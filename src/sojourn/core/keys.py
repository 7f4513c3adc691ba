"""Keys: what a measured instance is called, as text, as canonical bytes and as a 64-bit id.

===========  ==========================================  ==============================================
kind         text                                        canonical bytes (big-endian)
===========  ==========================================  ==============================================
flow         ``10.0.0.1:80 > 10.0.0.2:443 tcp``          1 · src[4] · dest[4] · ports[2+2] · protocol[1]
flow         ``[::1]:80 > [::2]:443 udp``                2 · src[16] · dest[16] · ports[2+2] · protocol[1]
process      ``mosquitto[812]``                          3 · pid[4] · name (UTF-8)
node         ``gateway-7``                               4 · name (UTF-8)
host pair    ``10.0.0.1 > 10.0.0.2``                     5 (IPv6: 6) · src · dest
destination  ``> 10.0.0.0/24``, ``> 10.0.0.2``           7 (IPv6: 8) · prefix length[1] · network
VLAN flow    ``vlan 100.7: 10.0.0.1:80 > … tcp``         9 (IPv6: 10) · src · … · protocol[1] · tags[2 each]
===========  ==========================================  ==============================================

Keys of traffic (`TrafficKey`) answer `flow_fields`: the addresses, ports and protocol that they fix.

The id is the XXH64 of the canonical bytes. Text → key → bytes → key → text are exact round trips;
two different keys never share canonical bytes.

Names of nodes, streams, tags and collections follow one rule (`is_name`). A name becomes a segment of a URL's path and
part of a line of text, so it is printable, short, has no slash and is not ``.`` or ``..``, which clients and proxies
resolve away.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias, cast

from sojourn.core.errors import KeyTextError, ParameterError
from sojourn.core.hashing import hash_bytes

KIND_FLOW_4, KIND_FLOW_6, KIND_PROCESS, KIND_NODE = 1, 2, 3, 4
KIND_PAIR_4, KIND_PAIR_6, KIND_DESTINATION_4, KIND_DESTINATION_6 = 5, 6, 7, 8
KIND_VLAN_FLOW_4, KIND_VLAN_FLOW_6 = 9, 10
FLOW_4_BYTES, FLOW_6_BYTES = 14, 38
KEPT_KEYS = 1 << 14  # whose ids and objects are made once: flows come again in every epoch; some 10 MB
FEW_KEYS = 100  # that are hashed sooner than a kernel is loaded
MAX_NAME_BYTES = 200
MAX_VLAN_TAGS = 4
# No key's text is longer; refusing the rest unread bounds the time that patterns may take on it.
MAX_TEXT = 512
_SHOWN = 200
FLOW_FIELDS = ("src_ip", "src_port", "dest_ip", "dest_port", "protocol")
PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "gre": 47, "esp": 50, "icmpv6": 58, "sctp": 132}
_PROTOCOL_NAMES = {number: name for name, number in PROTOCOLS.items()}
_ENDPOINT = r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)|([0-9a-fA-F:]+[0-9a-fA-F.]*))(?::(\d{1,5}))?"
_FLOW_TEXT = re.compile(rf"\s*{_ENDPOINT}\s*>\s*{_ENDPOINT}\s+([a-z0-9]+)\s*", re.IGNORECASE)
_PAIR_TEXT = re.compile(r"\s*([0-9a-fA-F:.]+)\s*>\s*([0-9a-fA-F:.]+)\s*")
_DESTINATION_TEXT = re.compile(r"\s*>\s*([0-9a-fA-F:.]+(?:/\d{1,3})?)\s*")
_VLAN_TEXT = re.compile(r"\s*vlan\s+(-|\d{1,4}(?:\.\d{1,4})*)\s*:\s*(\S.*)", re.IGNORECASE)
_PROCESS_TEXT = re.compile(r"(.+)\[(\d{1,20})\]", re.DOTALL)


def protocol_name(number: int) -> str:
    """``tcp`` for 6; a number without a name stays a number."""
    return _PROTOCOL_NAMES.get(number, str(number))


def _check_range(value: int, bits: int, name: str) -> None:
    if not 0 <= value < 1 << bits:
        raise ParameterError(f"{name} {value} does not fit {bits} bits")


def _check_name(name: str, what: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MAX_NAME_BYTES or not name.isprintable() or name != name.strip():
        raise ParameterError(
            f"{name[:40]!r} cannot be a {what} name",
            action=f"use 1 to {MAX_NAME_BYTES} bytes of printable text without outer spaces",
        )


@dataclass(frozen=True, slots=True, order=True)
class FlowKey:
    """A five-tuple; protocols without ports have both ports 0."""

    src_ip: IPv4Address | IPv6Address
    src_port: int
    dest_ip: IPv4Address | IPv6Address
    dest_port: int
    protocol: int

    def __post_init__(self) -> None:
        if self.src_ip.version != self.dest_ip.version:
            raise ParameterError(f"{self.src_ip} and {self.dest_ip} are of different IP versions")
        _check_range(self.src_port, 16, "source port")
        _check_range(self.dest_port, 16, "destination port")
        _check_range(self.protocol, 8, "protocol")

    def to_bytes(self) -> bytes:
        kind = KIND_FLOW_4 if self.src_ip.version == 4 else KIND_FLOW_6
        ports = self.src_port.to_bytes(2, "big") + self.dest_port.to_bytes(2, "big")
        addresses = self.src_ip.packed + self.dest_ip.packed
        return bytes([kind]) + addresses + ports + bytes([self.protocol])

    def reversed(self) -> FlowKey:
        """The same conversation, seen in the other direction."""
        return FlowKey(self.dest_ip, self.dest_port, self.src_ip, self.src_port, protocol=self.protocol)

    def __str__(self) -> str:
        has_ports = self.src_port or self.dest_port
        ends = []
        for ip, port in ((self.src_ip, self.src_port), (self.dest_ip, self.dest_port)):
            host = f"[{ip}]" if ip.version == 6 and has_ports else str(ip)
            ends.append(f"{host}:{port}" if has_ports else host)
        return f"{ends[0]} > {ends[1]} {protocol_name(self.protocol)}"


@dataclass(frozen=True, slots=True, order=True)
class HostPairKey:
    """All that one host sends to another."""

    src_ip: IPv4Address | IPv6Address
    dest_ip: IPv4Address | IPv6Address

    def __post_init__(self) -> None:
        if self.src_ip.version != self.dest_ip.version:
            raise ParameterError(f"{self.src_ip} and {self.dest_ip} are of different IP versions")

    def to_bytes(self) -> bytes:
        kind = KIND_PAIR_4 if self.src_ip.version == 4 else KIND_PAIR_6
        return bytes([kind]) + self.src_ip.packed + self.dest_ip.packed

    def __str__(self) -> str:
        return f"{self.src_ip} > {self.dest_ip}"


@dataclass(frozen=True, slots=True, order=True)
class DestinationKey:
    """All that is sent to one host (a full-length prefix) or network."""

    network: IPv4Network | IPv6Network

    def to_bytes(self) -> bytes:
        kind = KIND_DESTINATION_4 if self.network.version == 4 else KIND_DESTINATION_6
        return bytes([kind, self.network.prefixlen]) + self.network.network_address.packed

    @property
    def dest_ip(self) -> str:
        is_host = self.network.prefixlen == self.network.max_prefixlen
        return str(self.network.network_address) if is_host else str(self.network)

    def __str__(self) -> str:
        return f"> {self.dest_ip}"


@dataclass(frozen=True, slots=True, order=True)
class VlanFlowKey:
    """A five-tuple inside a stack of VLAN tags, outermost first; no tags is a stack too."""

    vlans: tuple[int, ...]
    flow: FlowKey

    def __post_init__(self) -> None:
        if len(self.vlans) > MAX_VLAN_TAGS:
            raise ParameterError(f"{len(self.vlans)} VLAN tags", action=f"give at most {MAX_VLAN_TAGS}")
        for vlan in self.vlans:
            _check_range(vlan, 12, "VLAN")

    @property
    def vlan(self) -> str:
        return ".".join(map(str, self.vlans)) or "-"

    def to_bytes(self) -> bytes:
        kind = KIND_VLAN_FLOW_4 if self.flow.src_ip.version == 4 else KIND_VLAN_FLOW_6
        return bytes([kind]) + self.flow.to_bytes()[1:] + b"".join(v.to_bytes(2, "big") for v in self.vlans)

    def __str__(self) -> str:
        return f"vlan {self.vlan}: {self.flow}"


@dataclass(frozen=True, slots=True, order=True)
class ProcessKey:
    """A process of a node."""

    name: str
    pid: int

    def __post_init__(self) -> None:
        _check_name(self.name, "process")
        _check_range(self.pid, 32, "pid")

    def to_bytes(self) -> bytes:
        return bytes([KIND_PROCESS]) + self.pid.to_bytes(4, "big") + self.name.encode()

    def __str__(self) -> str:
        return f"{self.name}[{self.pid}]"


@dataclass(frozen=True, slots=True, order=True)
class NodeKey:
    """A node; its name may not look like a flow or a process."""

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name, "node")
        if _PROCESS_TEXT.fullmatch(self.name) or ">" in self.name:
            raise ParameterError(f"{self.name!r} would read as a process or a flow", action="rename the node")

    def to_bytes(self) -> bytes:
        return bytes([KIND_NODE]) + self.name.encode()

    def __str__(self) -> str:
        return self.name


TrafficKey: TypeAlias = FlowKey | HostPairKey | DestinationKey | VlanFlowKey
Key: TypeAlias = TrafficKey | ProcessKey | NodeKey


@lru_cache(maxsize=KEPT_KEYS)
def key_id(key: Key) -> int:
    """The 64-bit id of a key: XXH64 of its canonical bytes."""
    return hash_bytes(key.to_bytes())


def flow_fields(key: TrafficKey) -> dict[str, str | int | None]:
    """The columns that name a flow in an answer; what the key leaves open is None (a port: 0).

    >>> flow_fields(DestinationKey(ip_network("10.0.0.0/24")))["dest_ip"]
    '10.0.0.0/24'
    """
    flow = key.flow if isinstance(key, VlanFlowKey) else key
    tags: dict[str, str | int | None] = {"vlan": key.vlan} if isinstance(key, VlanFlowKey) else {}
    return tags | {
        "src_ip": None if isinstance(flow, DestinationKey) else str(flow.src_ip),
        "src_port": flow.src_port if isinstance(flow, FlowKey) else 0,
        "dest_ip": str(flow.dest_ip),
        "dest_port": flow.dest_port if isinstance(flow, FlowKey) else 0,
        "protocol": protocol_name(flow.protocol) if isinstance(flow, FlowKey) else None,
    }


def named_fields(data: bytes) -> dict[str, str | int | None]:
    """`flow_fields` of a key's canonical bytes; five-tuples of IPv4, which are the most, without an object each.

    >>> named_fields(FlowKey(ip_address("10.0.0.1"), 80, ip_address("10.0.0.2"), 443, 6).to_bytes())["src_ip"]
    '10.0.0.1'
    """
    if len(data) != FLOW_4_BYTES or data[0] != KIND_FLOW_4:
        return flow_fields(cast(TrafficKey, key_from_bytes(data)))
    return {
        "src_ip": socket.inet_ntoa(data[1:5]),
        "src_port": data[9] << 8 | data[10],
        "dest_ip": socket.inet_ntoa(data[5:9]),
        "dest_port": data[11] << 8 | data[12],
        "protocol": protocol_name(data[13]),
    }


def key_columns(keys: Sequence[TrafficKey]) -> dict[str, list[object]]:
    """The same of many flows, as columns."""
    return field_columns([flow_fields(key) for key in keys])


def field_columns(named: Sequence[dict[str, str | int | None]]) -> dict[str, list[object]]:
    """Rows of `flow_fields` as columns."""
    return {name: [fields[name] for fields in named] for name in (named[0] if named else FLOW_FIELDS)}


def parse_key(text: str) -> Key:
    """A key from its text.

    >>> str(parse_key("10.0.0.1:80 > 10.0.0.2:443 tcp"))
    '10.0.0.1:80 > 10.0.0.2:443 tcp'
    >>> parse_key("mosquitto[812]")
    ProcessKey(name='mosquitto', pid=812)
    """
    try:
        if len(text) > MAX_TEXT:
            raise ParameterError(f"a key has no text of {len(text)} characters")
        if traffic := _traffic_from_text(text):
            return traffic
        # A process may have any printable name, '>' in it too.
        if process := _PROCESS_TEXT.fullmatch(text.strip()):
            return ProcessKey(process.group(1), int(process.group(2)))
        if ">" in text:
            raise ParameterError(f"{text!r} is not a flow")
        return NodeKey(text.strip())
    except (ParameterError, ValueError) as error:
        raise KeyTextError(
            str(error)[:_SHOWN],
            action="write 'SRC:PORT > DEST:PORT tcp', 'name[pid]' or a node's name",
        ) from None


def _traffic_from_text(text: str) -> TrafficKey | None:
    if flow := _FLOW_TEXT.fullmatch(text):
        return _flow_from_match(flow)
    if (tagged := _VLAN_TEXT.fullmatch(text)) and (flow := _FLOW_TEXT.fullmatch(tagged.group(2))):
        tags = () if tagged.group(1) == "-" else tuple(map(int, tagged.group(1).split(".")))
        return VlanFlowKey(tags, _flow_from_match(flow))
    if pair := _PAIR_TEXT.fullmatch(text):
        return HostPairKey(ip_address(pair.group(1)), ip_address(pair.group(2)))
    if destination := _DESTINATION_TEXT.fullmatch(text):
        return DestinationKey(ip_network(destination.group(1)))
    return None


def _flow_from_match(match: re.Match[str]) -> FlowKey:
    groups = match.groups()
    source = ip_address(next(g for g in groups[0:3] if g))
    destination = ip_address(next(g for g in groups[4:7] if g))
    name = groups[8].lower()
    protocol = PROTOCOLS[name] if name in PROTOCOLS else int(name)
    return FlowKey(source, int(groups[3] or 0), destination, int(groups[7] or 0), protocol)


@lru_cache(maxsize=KEPT_KEYS)
def key_from_bytes(data: bytes) -> Key:
    """A key from its canonical bytes."""
    kind, body = data[:1], data[1:]
    try:
        if kind and (traffic := _traffic_from_bytes(kind[0], body)):
            return traffic
        if kind == bytes([KIND_PROCESS]) and len(body) > 4:
            return ProcessKey(body[4:].decode(), int.from_bytes(body[:4], "big"))
        if kind == bytes([KIND_NODE]):
            return NodeKey(body.decode())
    except (ParameterError, ValueError) as error:
        raise KeyTextError(f"key bytes {data[:40].hex()}: {error}") from None
    raise KeyTextError(f"{data[:40].hex()} is no key of a known kind", action="record with this version's keys")


def named_ids(items: Sequence[bytes]) -> tuple[list[int], list[str]]:
    """Ids and texts of many keys from their canonical bytes; flows, which are the most, without an object each.

    >>> named_ids([FlowKey(ip_address("::1"), 80, ip_address("::2"), 443, 6).to_bytes()])[1]
    ['[::1]:80 > [::2]:443 tcp']
    """
    texts = [_flow_text(data) or str(key_from_bytes(data)) for data in items]
    if len(items) < FEW_KEYS:
        return [hash_bytes(data) for data in items], texts
    import numpy as np

    from sojourn.core.hash_kernels import hash_pieces

    ends = np.cumsum(np.fromiter(map(len, items), np.int64, len(items)))
    return hash_pieces(np.frombuffer(b"".join(items), np.uint8), ends, np.uint64(0)).tolist(), texts


def _flow_text(data: bytes) -> str:
    """The text of a five-tuple with ports; nothing for other keys."""
    if len(data) == FLOW_4_BYTES and data[0] == KIND_FLOW_4:
        ports, name = data[9:13], _PROTOCOL_NAMES.get(data[13]) or str(data[13])
        if ports == b"\0\0\0\0":
            return ""
        source, destination = socket.inet_ntoa(data[1:5]), socket.inet_ntoa(data[5:9])
        return f"{source}:{ports[0] << 8 | ports[1]} > {destination}:{ports[2] << 8 | ports[3]} {name}"
    if len(data) == FLOW_6_BYTES and data[0] == KIND_FLOW_6:
        ports, name = data[33:37], _PROTOCOL_NAMES.get(data[37]) or str(data[37])
        source, destination = (socket.inet_ntop(socket.AF_INET6, part) for part in (data[1:17], data[17:33]))
        # Systems write IPv4 addresses inside IPv6 ones in their own way, `ipaddress` in another.
        if ports == b"\0\0\0\0" or "." in source or "." in destination:
            return ""
        return f"[{source}]:{ports[0] << 8 | ports[1]} > [{destination}]:{ports[2] << 8 | ports[3]} {name}"
    return ""


def _traffic_from_bytes(kind: int, body: bytes) -> TrafficKey | None:
    size = 16 if kind in (KIND_FLOW_6, KIND_PAIR_6, KIND_DESTINATION_6, KIND_VLAN_FLOW_6) else 4
    flow_size = 2 * size + 5
    if kind in (KIND_FLOW_4, KIND_FLOW_6) and len(body) == flow_size:
        return _flow_from_bytes(body, size)
    if kind in (KIND_PAIR_4, KIND_PAIR_6) and len(body) == 2 * size:
        return HostPairKey(ip_address(body[:size]), ip_address(body[size:]))
    if kind in (KIND_DESTINATION_4, KIND_DESTINATION_6) and len(body) == 1 + size:
        return DestinationKey(ip_network((body[1:], body[0])))
    if kind in (KIND_VLAN_FLOW_4, KIND_VLAN_FLOW_6) and len(body) >= flow_size and (len(body) - flow_size) % 2 == 0:
        tags = body[flow_size:]
        vlans = tuple(int.from_bytes(tags[i : i + 2], "big") for i in range(0, len(tags), 2))
        return VlanFlowKey(vlans, _flow_from_bytes(body[:flow_size], size))
    return None


def _flow_from_bytes(body: bytes, size: int) -> FlowKey:
    address = IPv4Address if size == 4 else IPv6Address
    ports = body[2 * size :]
    return FlowKey(
        address(body[:size]),
        int.from_bytes(ports[0:2], "big"),
        address(body[size : 2 * size]),
        int.from_bytes(ports[2:4], "big"),
        protocol=ports[4],
    )


NAME_RULE = f"1 to {MAX_NAME_BYTES} bytes of printable text without a slash, other than . and .."


def is_name(text: str) -> bool:
    """Whether a text can name a node, stream, tag or collection.

    >>> [is_name(text) for text in ("gateway-7", "a/b", "..", "", "a\\nb")]
    [True, False, False, False, False]
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    return 1 <= size <= MAX_NAME_BYTES and text.isprintable() and "/" not in text and text not in (".", "..")
