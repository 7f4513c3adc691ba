"""Weight policies: which flows count for more in an LDS, by rules over their keys (LDS §4.1).
 A policy is TOML, a list of rules of which the first that matches gives a flow its weight; flows that none matches
weigh 1::

    [[rule]]
    source = "10.0.0.0/8"        # or destination; a prefix or an address
    port = 5060                  # either end's; or source_port, destination_port; "5000-5999" is a range
    protocol = "udp"             # a name or a number
    weight = 4

A rule's conditions all have to hold; one without conditions matches every flow. A condition on what a key leaves open
(the port of a host pair) does not hold.
 Guarantee: a weight is a function of the flow's key alone, so both points give it the same, whatever else they see.
Cost: O(rules) per new flow, in a kernel over the keys' bytes; then a table from flow ids to weights (`FlowWeights`,
open addressing): 5 ns per packet. Bounds: `MAX_TEXT` bytes, `MAX_RULES` rules, `MAX_FLOWS` flows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.ids import KEY_BYTES
from sojourn.capture.flows.table import empty_slots, fill_slots, find_slot
from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.errors import InputError, ParameterError
from sojourn.core.files import FilePath, open_input
from sojourn.core.kernels import inlined, kernel, signed
from sojourn.core.keys import PROTOCOLS, TrafficKey, protocol_name

MAX_TEXT = 1 << 16
MAX_RULES = 256
MAX_WEIGHT = 1 << 20
MAX_FLOWS = 1 << 20
_FIRST_CAPACITY = 1 << 10
ANY_PORT = (0, 65535)
ANY_PROTOCOL = -1
_PREFIXES = ("source", "destination")
_PORTS = ("port", "source_port", "destination_port")
_FIELDS = (*_PREFIXES, *_PORTS, "protocol", "weight")
# Columns of a rule's numbers: IP version of the prefixes (0: either), their lengths, three port ranges, the protocol.
VERSION, SOURCE_LENGTH, DESTINATION_LENGTH, PORTS, PROTOCOL, WEIGHT = 0, 1, 2, 3, 9, 10
# Where a key's addresses end and its ports begin, by its kind: address bytes, whether it has a source, ports.
_ADDRESS_BYTES = np.array([0, 4, 16, 0, 0, 4, 16, 4, 16, 4, 16], np.int64)
_HAS_SOURCE = np.array([0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1], np.int64)
_HAS_PORTS = np.array([0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1], np.int64)

Network = IPv4Network | IPv6Network
PortRange = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class WeightRule:
    """One rule; None and the full ranges are conditions that are not made."""

    weight: int
    source: Network | None = None
    destination: Network | None = None
    port: PortRange | None = None
    source_port: PortRange | None = None
    destination_port: PortRange | None = None
    protocol: int | None = None

    def to_text(self) -> str:
        """The rule's TOML, its fields in a fixed order."""
        lines = ["[[rule]]"]
        lines += [f'{name} = "{net}"' for name in _PREFIXES if (net := getattr(self, name)) is not None]
        for name in _PORTS:
            if (ports := getattr(self, name)) is not None:
                lines.append(f"{name} = {ports[0]}" if ports[0] == ports[1] else f'{name} = "{ports[0]}-{ports[1]}"')
        if self.protocol is not None:
            lines.append(f'protocol = "{protocol_name(self.protocol)}"')
        return "\n".join([*lines, f"weight = {self.weight}\n"])


@dataclass(frozen=True)
class WeightPolicy:
    """Rules in the order in which they are tried."""

    rules: tuple[WeightRule, ...]

    @classmethod
    def read(cls, path: FilePath) -> WeightPolicy:
        """The policy in a file."""
        with open_input(path) as file:
            text = file.read(4 * MAX_TEXT + 1).decode("utf-8", "replace")
        return cls.from_text(text, where=str(path))

    @classmethod
    def from_text(cls, text: str, *, where: str = "weights") -> WeightPolicy:
        """A policy from its TOML; an `InputError` names the line or the rule that is wrong."""
        if len(text) > MAX_TEXT:
            raise InputError(f"a policy of {len(text)} characters", where=where, action=f"use at most {MAX_TEXT}")
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            problem = "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
            raise InputError(f"not TOML: {problem}", where=where, action="write [[rule]] tables") from None
        rules = document.get("rule", [])
        if set(document) - {"rule"} or not isinstance(rules, list):
            odd = next(iter(set(document) - {"rule"}), "rule")
            raise InputError(f"{odd[:40]!r} is no list of rules", where=where, action="write [[rule]] tables")
        if len(rules) > MAX_RULES:
            raise InputError(f"{len(rules)} rules", where=where, action=f"use at most {MAX_RULES}")
        return cls(tuple(_rule(rule, f"{where}, rule {number}") for number, rule in enumerate(rules, 1)))

    def to_text(self) -> str:
        """The canonical TOML: equal policies have equal texts."""
        return "".join(rule.to_text() for rule in self.rules)

    @property
    def largest(self) -> int:
        return max((rule.weight for rule in self.rules), default=1)

    def weigh(self, keys: Sequence[TrafficKey]) -> Int64Array:
        """The weight of each key."""
        rows = b"".join(key.to_bytes().ljust(KEY_BYTES, b"\0") for key in keys)
        weights = np.ones(len(keys), np.int64)
        _weigh(np.frombuffer(rows, np.uint8).reshape(len(keys), KEY_BYTES), *self._columns, weights)
        return weights

    def weights_of(self, ids: Sequence[int], keys: Sequence[TrafficKey]) -> FlowWeights:
        """The weights of some flows, by their ids."""
        return FlowWeights(dict(zip(ids, self.weigh(keys).tolist(), strict=True)))

    @cached_property
    def _columns(self) -> tuple[UInt8Array, Int64Array]:
        """The rules' networks and numbers, as the kernel reads them."""
        networks = np.zeros((len(self.rules), 2, 16), np.uint8)
        numbers = np.zeros((len(self.rules), 11), np.int64)
        for row, rule in enumerate(self.rules):
            for side, net in enumerate((rule.source, rule.destination)):
                if net is not None:
                    packed = net.network_address.packed
                    networks[row, side, : len(packed)] = np.frombuffer(packed, np.uint8)
                    numbers[row, VERSION] = net.version
                numbers[row, SOURCE_LENGTH + side] = -1 if net is None else net.prefixlen
            for i, name in enumerate(_PORTS):
                numbers[row, PORTS + 2 * i : PORTS + 2 * i + 2] = getattr(rule, name) or (-1, -1)
            numbers[row, PROTOCOL] = ANY_PROTOCOL if rule.protocol is None else rule.protocol
            numbers[row, WEIGHT] = rule.weight
        return networks, numbers


def _rule(fields: object, where: str) -> WeightRule:
    if not isinstance(fields, dict):
        raise InputError("this is no table", where=where, action="write [[rule]] tables")
    if unknown := [name for name in fields if name not in _FIELDS]:
        raise InputError(f"there is no field {unknown[0][:40]!r}", where=where, action=f"use {', '.join(_FIELDS)}")
    weight = fields.get("weight")
    if type(weight) is not int or not 1 <= weight <= MAX_WEIGHT:
        raise InputError(f"weight is {_shown(weight)}", where=where, action=f"give a whole number in 1 … {MAX_WEIGHT}")
    networks = {name: _network(fields[name], name, where) for name in _PREFIXES if name in fields}
    if len({net.version for net in networks.values()}) > 1:
        raise InputError("source and destination are of different IP versions", where=where, action="use one")
    ports = {name: _ports(fields[name], name, where) for name in _PORTS if name in fields}
    return WeightRule(weight=weight, **networks, **ports, protocol=_protocol(fields, where))  # type: ignore[arg-type]


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 64:
        return "too large"  # Python refuses to write out numbers of thousands of digits.
    return "missing" if value is None else str(value)[:40]


def _network(value: object, name: str, where: str) -> Network:
    try:
        return ip_network(value if isinstance(value, str) else "")
    except ValueError:
        raise InputError(
            f"{name} {_shown(value)!r} is no prefix",
            where=where,
            action='write "10.0.0.0/8" (no bits after the prefix)',
        ) from None


def _ports(value: object, name: str, where: str) -> PortRange:
    parts = [value] * 2 if type(value) is int else str(value).split("-") if isinstance(value, str) else []
    try:
        low, high = (int(part) for part in parts)
    except ValueError:
        low, high = 1, 0
    if not 0 <= low <= high <= ANY_PORT[1]:
        raise InputError(f"{name} is {_shown(value)}", where=where, action='write 53 or "5000-5999", up to 65535')
    return low, high


def _protocol(fields: Mapping[str, object], where: str) -> int | None:
    value = fields.get("protocol")
    if value is None:
        return None
    number = PROTOCOLS.get(value.lower()) if isinstance(value, str) else value
    if number is None and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 3:
        number = int(value)
    if type(number) is not int or not 0 <= number <= 255:
        raise InputError(
            f"protocol is {_shown(value)}", where=where, action=f"use {', '.join(PROTOCOLS)} or a number up to 255"
        )
    return number


@inlined
def _in_network(key: UInt8Array, start: int, network: UInt8Array, length: int) -> bool:
    """Whether the address that starts there has the network's first `length` bits."""
    for byte in range((length + 7) // 8):
        spare = max(0, 8 * (byte + 1) - length)
        if (key[start + byte] >> spare) != (network[byte] >> spare):
            return False
    return True


@inlined
def _in_range(value: int, low: int, high: int) -> bool:
    return low <= value <= high


@inlined
def _addresses_match(key: UInt8Array, kind: int, networks: UInt8Array, rule: Int64Array) -> bool:
    source, destination = rule[SOURCE_LENGTH], rule[DESTINATION_LENGTH]
    size = _ADDRESS_BYTES[kind]
    if rule[VERSION] and size != (4 if rule[VERSION] == 4 else 16):
        return False
    if not _HAS_SOURCE[kind]:
        # A destination key: its prefix length, then its network.
        within = destination < 0 or (key[1] >= destination and _in_network(key, 2, networks[1], destination))
        return source < 0 and within
    if source >= 0 and not _in_network(key, 1, networks[0], source):
        return False
    return destination < 0 or _in_network(key, 1 + size, networks[1], destination)


@inlined
def _ports_match(key: UInt8Array, kind: int, rule: Int64Array) -> bool:
    asks = rule[PORTS] >= 0 or rule[PORTS + 2] >= 0 or rule[PORTS + 4] >= 0 or rule[PROTOCOL] >= 0
    if not _HAS_PORTS[kind]:
        return not asks
    at = 1 + 2 * _ADDRESS_BYTES[kind]
    source = np.int64(key[at]) * 256 + key[at + 1]
    destination = np.int64(key[at + 2]) * 256 + key[at + 3]
    if rule[PROTOCOL] >= 0 and key[at + 4] != rule[PROTOCOL]:
        return False
    if rule[PORTS + 2] >= 0 and not _in_range(source, rule[PORTS + 2], rule[PORTS + 3]):
        return False
    if rule[PORTS + 4] >= 0 and not _in_range(destination, rule[PORTS + 4], rule[PORTS + 5]):
        return False
    low, high = rule[PORTS], rule[PORTS + 1]
    return low < 0 or _in_range(source, low, high) or _in_range(destination, low, high)


@kernel
def _weigh(keys: UInt8Array, networks: UInt8Array, rules: Int64Array, weights: Int64Array) -> None:
    for i in range(keys.shape[0]):
        kind = signed(keys[i, 0])
        for r in range(rules.shape[0]):
            if _addresses_match(keys[i], kind, networks[r], rules[r]) and _ports_match(keys[i], kind, rules[r]):
                weights[i] = rules[r, WEIGHT]
                break


class FlowWeights:
    """Weights by flow id; flows that are not named weigh 1.

    `cover` remembers at most `MAX_FLOWS` flows (or those of one batch, if more): then the table starts anew.
    """

    def __init__(self, weights: Mapping[int, int]) -> None:
        self._begin()
        self.largest = 1
        ids = np.array(list(weights), np.uint64)
        self.learn(ids, np.array([weights[i] for i in weights], np.int64))

    def _begin(self) -> None:
        self._count = 0
        self._ids = np.zeros(_FIRST_CAPACITY, np.uint64)
        self._weights = np.ones(_FIRST_CAPACITY, np.int64)
        self._slots = empty_slots(_FIRST_CAPACITY)

    def of(self, flow_id: UInt64Array) -> Int64Array:
        """The weight of each packet's flow."""
        weights = np.ones(len(flow_id), np.int64)
        _look_up(self._slots, self._ids, self._weights, flow_id, weights)
        return weights

    def unknown(self, flow_id: UInt64Array) -> Int64Array:
        """The positions of packets whose flow is not in the table, the first of each flow."""
        rows = np.flatnonzero(_absent(self._slots, self._ids, flow_id))
        _, first = np.unique(flow_id[rows], return_index=True)
        return rows[first]

    def cover(self, flow_id: UInt64Array, weigh: Callable[[Int64Array], Int64Array]) -> None:
        """Learn the flows of packets that are not in the table; `weigh` gives the weights of packets by position."""
        rows = self.unknown(flow_id)
        if self._count + len(rows) > MAX_FLOWS:
            self._begin()
            rows = self.unknown(flow_id)
        if len(rows):
            self.learn(flow_id[rows], weigh(rows))

    def learn(self, flow_id: UInt64Array, weights: Int64Array) -> None:
        """Note the weights of flows that are not in the table yet."""
        if len(weights) and not 1 <= int(weights.min()) <= int(weights.max()) <= MAX_WEIGHT:
            wrong = weights[(weights < 1) | (weights > MAX_WEIGHT)][0]
            raise ParameterError(f"flow weight {wrong} is outside 1 … {MAX_WEIGHT}", where="flow weights")
        self._make_room(self._count + len(flow_id))
        end = self._count + len(flow_id)
        self._ids[self._count : end], self._weights[self._count : end] = flow_id, weights
        _enter(self._slots, self._ids, self._count, end)
        self._count = end
        self.largest = max(self.largest, int(weights.max(initial=1)))

    def _make_room(self, flows: int) -> None:
        if flows <= len(self._ids):
            return
        more = 2 * max(flows, len(self._ids)) - len(self._ids)
        self._ids = np.concatenate([self._ids, np.zeros(more, np.uint64)])
        self._weights = np.concatenate([self._weights, np.ones(more, np.int64)])
        self._slots = empty_slots(len(self._ids))
        fill_slots(self._slots, self._ids, self._count)


@kernel
def _look_up(
    slots: NDArray[np.int32], ids: UInt64Array, known: Int64Array, flow_id: UInt64Array, weights: Int64Array
) -> None:
    for i in range(len(flow_id)):
        row = slots[find_slot(slots, ids, flow_id[i])]
        if row >= 0:
            weights[i] = known[row]


@kernel
def _absent(slots: NDArray[np.int32], ids: UInt64Array, flow_id: UInt64Array) -> NDArray[np.bool_]:
    absent = np.empty(len(flow_id), np.bool_)
    for i in range(len(flow_id)):
        absent[i] = slots[find_slot(slots, ids, flow_id[i])] < 0
    return absent


@kernel
def _enter(slots: NDArray[np.int32], ids: UInt64Array, start: int, end: int) -> None:
    for row in range(start, end):
        slots[find_slot(slots, ids, ids[row])] = row
