"""Packet ids and flow ids: which packet it is, wherever it is seen, and which packets make one flow.

A packet's id is the XXH64 (seed 0) of these bytes, numbers big-endian:

    version[1] · protocol[1] · fragment[2] · total length[4] · identification[8] · source · destination ·
    transport header and payload, its checksum as zeros, as far as the prefix reaches

- ``protocol``, ``fragment`` (offset in units of 8 bytes, bit 15: more follow) and ``identification`` (0 where
  there is none) are the packet's own; IPv6's come from its fragment header.
- ``total length`` is that of the IP packet, IPv6's fixed header included.
- The prefix is the first `identity_bytes` bytes of the IP packet, cut where the capture or the packet
  ends; IPv4 options and IPv6 extension headers count towards it but are not hashed (routers rewrite them).
- The checksum (TCP, UDP, UDP-Lite, DCCP, ICMP, ICMPv6; SCTP's CRC) is only there in unfragmented packets and
  first fragments; offloading makes it differ between the sender's own capture and the wire.

What changes in flight takes no part: TTL or hop limit, DSCP and ECN, the flow label, the IP checksum, VLAN
tags, MPLS labels, every link header, and the padding behind the IP packet.

Two captures agree if, for each packet, both have the same prefix. The default of 68 bytes (the smallest MTU
that IP allows) leaves 28 bytes of a 96-byte snap for link headers. With shorter or different snap lengths
pass `identity_bytes_for` of both: it leaves room for an Ethernet header and for the tags given.

Identical packets (an RST with identification 0, sent twice) share an id; matching pairs them in order.

**Through translators of addresses and ports** a packet's id (`Identity.PAYLOAD`) is the hash of what they leave alone:

    protocol[1] · 0[1] · fragment[2] · payload length[4] · identification[8] · what the transport says[16] · payload

- What the transport says are TCP's sequence and acknowledgement numbers and flags (not its options: a translator may
  lower the segment size), or the type, code and, for echo, the number of ICMP; else zeros.
- ``identification`` is that of IPv4, which most translators keep; with `Identity.PAYLOAD_ALONE` it is 0.
- The payload is cut as the prefix above, from behind the transport header.

Less tells packets apart, so ids are to be compared within one flow.

`FlowKeying` is what makes a flow, as a user writes it: five-tuple, host pair, destination, destination prefix, VLAN and
five-tuple. A flow's id is the XXH64 of its canonical key bytes (exactly those of `sojourn.core.keys`).
Cost: about 20 ns per packet id; a flow id 5 ns for an IPv4 five-tuple, 10 to 20 ns for the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sojourn.capture.decode.frames import MAX_TAGS, Located
from sojourn.capture.decode.network import OFFSET_BITS
from sojourn.core import keys
from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import hash_at, hash_flow_4
from sojourn.core.kernels import address_of, byte_at, inlined, kernel, little_32, put_byte, put_word, signed, word_at

DEFAULT_IDENTITY_BYTES = 68
MIN_IDENTITY_BYTES = 20
MAX_IDENTITY_BYTES = 1 << 16
_FIXED_BYTES = 16 + 32
_ETHERNET_BYTES = 14

# Protocol → (where its checksum stands, how many bytes it has).
_CHECKSUMS = {1: (2, 2), 6: (16, 2), 17: (6, 2), 33: (6, 2), 58: (2, 2), 132: (8, 4), 136: (6, 2)}
# The same for words of 8 bytes: which word it stands in (−1: there is none) and which bits of it remain.
_CHECKSUM_WORDS = np.full(256, -1, np.int64)
_CHECKSUM_MASKS = np.full(256, (1 << 64) - 1, np.uint64)
for _protocol, (_offset, _size) in _CHECKSUMS.items():
    _CHECKSUM_WORDS[_protocol] = _offset // 8
    _CHECKSUM_MASKS[_protocol] = (1 << 64) - 1 - (((1 << 8 * _size) - 1) << 8 * (_offset % 8))
_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
_EVEN_PAIRS = np.uint64(0x0000FFFF0000FFFF)


def scratch_bytes(identity_bytes: int) -> int:
    """How many bytes `packet_ids` may write for one packet."""
    return _FIXED_BYTES + identity_bytes + 8


def identity_bytes_for(*snap_lengths: int, link_bytes: int = _ETHERNET_BYTES) -> int:
    """The prefix that captures with these snap lengths (0: no limit) all hold behind `link_bytes`.

    >>> identity_bytes_for(96, 64), identity_bytes_for(0, 262144)
    (50, 68)
    """
    limits = [snap - link_bytes for snap in snap_lengths if snap > 0]
    shortest = min([DEFAULT_IDENTITY_BYTES, *limits])
    if shortest < MIN_IDENTITY_BYTES:
        raise ParameterError(
            f"a snap length of {shortest + link_bytes} bytes is too short to tell packets apart",
            action="capture with a snap length of 64 bytes or more",
        )
    return shortest


def held_by_most(cut: Int64Array, packets: int) -> int:
    """How many bytes all of `packets` hold but for a hundredth, of which some were `cut` (a count per length).

    A few packets cut shorter than the rest (a kernel out of memory, a fragment of a tunnel) do not count: a prefix
    that fits them would tell the others apart less well.

    >>> held_by_most(np.array([0] * 46 + [900, 0, 0]), 1000), held_by_most(np.array([0, 0, 3, 0, 0]), 1000)
    (46, 5)
    """
    beyond = np.flatnonzero(np.cumsum(cut) > packets // 100)
    return int(beyond[0]) if len(beyond) else len(cut)


@inlined
def _bytes_swapped(value: int) -> np.uint64:
    """A number as the little-endian word whose bytes are big-endian."""
    word = np.uint64(value)
    word = ((word & _EVEN_BYTES) << np.uint64(8)) | ((word >> np.uint64(8)) & _EVEN_BYTES)
    word = ((word & _EVEN_PAIRS) << np.uint64(16)) | ((word >> np.uint64(16)) & _EVEN_PAIRS)
    return (word << np.uint64(32)) | (word >> np.uint64(32))


@inlined
def _write_prefix(data: int, start: int, end: int, protocol: int, is_first: bool, out: int) -> int:
    """The transport bytes `start` to `end`, in whole words; the checksum's place is zeroed on the way.

    The last word is read backwards from `end`, so that no byte behind the capture is touched; an IP
    header stands before it.
    """
    size = end - start
    masked = _CHECKSUM_WORDS[protocol] if is_first else signed(-1)
    whole = size >> 3
    for i in range(whole):
        word = word_at(data, start + 8 * i)
        if i == masked:
            word &= _CHECKSUM_MASKS[protocol]
        put_word(out, 8 * i, word)
    rest = size & 7
    if rest:
        word = word_at(data, end - 8) >> np.uint64(8 * (8 - rest))
        if whole == masked:
            word &= _CHECKSUM_MASKS[protocol]
        put_word(out, 8 * whole, word)
    return size


@inlined
def _write_identity(data: int, row: np.void, identity_bytes: int, out: int) -> int:
    is_4 = row["version"] == 4
    protocol = signed(row["own_protocol"])
    fragment = signed(row["fragment"])
    head = (signed(row["version"]) << 56) | (protocol << 48) | (fragment << 32) | row["ip_bytes"]
    put_word(out, 0, _bytes_swapped(head))
    put_word(out, 8, _bytes_swapped(signed(row["identification"])))
    addresses = row["ip"] + (12 if is_4 else 8)
    words = 1 if is_4 else 4
    for i in range(words):
        put_word(out, 16 + 8 * i, word_at(data, addresses + 8 * i))
    size = signed(16 + 8 * words)
    end = min(row["end"], row["ip"] + identity_bytes)
    if end > row["transport"]:
        is_first = fragment & OFFSET_BITS == 0
        size += _write_prefix(data, row["transport"], end, protocol, is_first, out + size)
    return size


class Identity(IntEnum):
    """What a packet is told apart by."""

    PACKET = 0
    PAYLOAD = 1
    PAYLOAD_ALONE = 2


_PACKET, _PAYLOAD = int(Identity.PACKET), int(Identity.PAYLOAD)
_ICMP, _TCP, _ICMPV6 = 1, 6, 58
_TCP_FLAGS = 0x3F
# Protocols whose payload begins 8 bytes behind the header's start: ICMP, UDP, ICMPv6, UDP-Lite.
_EIGHT_BYTES = np.zeros(256, np.int64)
_EIGHT_BYTES[[1, 17, 58, 136]] = 8


@inlined
def _write_transport(data: int, at: int, end: int, protocol: int, out: int) -> int:
    """What a translator leaves alone of a transport header, as 16 bytes; the header's length."""
    put_word(out, 0, np.uint64(0))
    put_word(out, 8, np.uint64(0))
    if protocol == _TCP and at + 14 <= end:
        put_word(out, 0, word_at(data, at + 4))
        put_byte(out, 8, byte_at(data, at + 13) & _TCP_FLAGS)
        return max((byte_at(data, at + 12) >> 4) << 2, 20)
    if protocol in (_ICMP, _ICMPV6) and at + 8 <= end:
        kind = byte_at(data, at)
        put_byte(out, 0, kind)
        put_byte(out, 1, byte_at(data, at + 1))
        if kind in (0, 8, 128, 129):
            put_byte(out, 2, byte_at(data, at + 6))
            put_byte(out, 3, byte_at(data, at + 7))
    return signed(_EIGHT_BYTES[protocol])


@inlined
def _write_payload_identity(data: int, row: np.void, identity_bytes: int, with_identification: bool, out: int) -> int:
    protocol = signed(row["own_protocol"])
    fragment = signed(row["fragment"])
    start = row["transport"]
    put_word(out, 16, np.uint64(0))
    put_word(out, 24, np.uint64(0))
    if fragment & OFFSET_BITS == 0:
        start += _write_transport(data, start, row["end"], protocol, out + 16)
    length = max(row["ip"] + row["ip_bytes"] - start, 0)
    put_word(out, 0, _bytes_swapped((protocol << 56) | (fragment << 32) | length))
    put_word(out, 8, _bytes_swapped(signed(row["identification"]) if with_identification else signed(0)))
    size = signed(32)
    end = min(row["end"], row["ip"] + identity_bytes)
    if end > start:
        size += _write_prefix(data, start, end, protocol, False, out + size)
    return size


@inlined
def _packet_id(data: int, row: np.void, identity: int, identity_bytes: int, out: int) -> np.uint64:
    if identity == _PACKET:
        size = _write_identity(data, row, identity_bytes, out)
    else:
        size = _write_payload_identity(data, row, identity_bytes, identity == _PAYLOAD, out)
    return hash_at(out, size, np.uint64(0))


KEY_BYTES = 48  # the longest canonical key: 1 + 37 bytes of an IPv6 flow and 4 tags of 2


class Keying(IntEnum):
    """How packets are put together into flows."""

    FIVE_TUPLE = 0
    HOST_PAIR = 1
    DESTINATION = 2
    VLAN_FIVE_TUPLE = 3


_NAMES = {
    "five-tuple": Keying.FIVE_TUPLE,
    "host-pair": Keying.HOST_PAIR,
    "dest": Keying.DESTINATION,
    "vlan+five-tuple": Keying.VLAN_FIVE_TUPLE,
}
_PREFIX = re.compile(r"prefix/(\d{1,3})(?:,(\d{1,3}))?")


@dataclass(frozen=True)
class FlowKeying:
    """A keying and, for destinations, how many leading bits of the address count."""

    mode: Keying = Keying.FIVE_TUPLE
    prefix_4: int = 32
    prefix_6: int = 128

    def __post_init__(self) -> None:
        if not 0 <= self.prefix_4 <= 32 or not 0 <= self.prefix_6 <= 128:
            raise ParameterError(
                f"prefix lengths {self.prefix_4} and {self.prefix_6}",
                action="use 0–32 (IPv4) and 0–128 (IPv6)",
            )

    @classmethod
    def parse(cls, text: str) -> FlowKeying:
        """From text; ``prefix/LEN`` serves both IP versions, ``prefix/LEN,LEN6`` tells them apart.

        >>> FlowKeying.parse("prefix/24,48")
        FlowKeying(mode=<Keying.DESTINATION: 2>, prefix_4=24, prefix_6=48)
        """
        if text in _NAMES:
            return cls(_NAMES[text])
        if match := _PREFIX.fullmatch(text):
            first = int(match.group(1))
            second = int(match.group(2)) if match.group(2) else first
            return cls(Keying.DESTINATION, first if match.group(2) else min(first, 32), second)
        raise ParameterError(f"{text!r} is no flow key", action=f"use {', '.join(_NAMES)} or prefix/LEN")


_FIVE_TUPLE, _HOST_PAIR = int(Keying.FIVE_TUPLE), int(Keying.HOST_PAIR)
_DESTINATION, _VLAN_FIVE_TUPLE = int(Keying.DESTINATION), int(Keying.VLAN_FIVE_TUPLE)
# First canonical byte by keying and IP version.
_KINDS = np.array(
    [
        [keys.KIND_FLOW_4, keys.KIND_FLOW_6],
        [keys.KIND_PAIR_4, keys.KIND_PAIR_6],
        [keys.KIND_DESTINATION_4, keys.KIND_DESTINATION_6],
        [keys.KIND_VLAN_FLOW_4, keys.KIND_VLAN_FLOW_6],
    ],
    np.uint8,
)


@inlined
def _copy(data: int, start: int, size: int, out: int, at: int) -> int:
    for i in range(size):
        put_byte(out, at + i, byte_at(data, start + i))
    return at + size


@inlined
def _write_destination(data: int, start: int, size: int, prefix: int, out: int) -> int:
    """Prefix length and address; the bits behind the prefix are zeroed."""
    put_byte(out, 1, prefix)
    for i in range(size):
        kept = min(max(prefix - 8 * i, 0), 8)
        put_byte(out, 2 + i, byte_at(data, start + i) & (0xFF00 >> kept))
    return 2 + size


@kernel
def _write_key(data: int, row: np.void, mode: int, prefix_4: int, prefix_6: int, is_reverse: bool, out: int) -> int:
    """The canonical bytes of a packet's key into `out` (48 bytes); returns how many."""
    is_4 = row["version"] == 4
    size = 4 if is_4 else 16
    source = row["ip"] + (12 if is_4 else 8)
    destination = source + size
    if is_reverse:
        source, destination = destination, source
    put_byte(out, 0, signed(_KINDS[mode, 0 if is_4 else 1]))
    if mode == _DESTINATION:
        return _write_destination(data, destination, size, prefix_4 if is_4 else prefix_6, out)
    at = _copy(data, source, size, out, 1)
    at = _copy(data, destination, size, out, at)
    if mode == _HOST_PAIR:
        return at
    ports = signed(row["ports"])
    if is_reverse:
        ports = (ports >> 16) | ((ports & 0xFFFF) << 16)
    for i in range(4):
        put_byte(out, at + i, ports >> (24 - 8 * i))
    put_byte(out, at + 4, signed(row["protocol"]))
    at += 5
    if mode == _VLAN_FIVE_TUPLE:
        for i in range(MAX_TAGS):
            tag = signed((row["vlans"] >> np.uint64(16 * i)) & np.uint64(0xFFFF))
            if tag == 0:
                break
            put_byte(out, at, (tag >> 8) & 0x0F)
            put_byte(out, at + 1, tag)
            at += 2
    return at


@inlined
def _swap_32(value: np.uint64) -> np.uint64:
    value = ((value & np.uint64(0x00FF00FF)) << np.uint64(8)) | ((value >> np.uint64(8)) & np.uint64(0x00FF00FF))
    return ((value & np.uint64(0xFFFF)) << np.uint64(16)) | (value >> np.uint64(16))


@inlined
def _five_tuple_id_4(data: int, row: np.void, is_reverse: bool) -> np.uint64:
    source = np.uint64(little_32(data, row["ip"] + 12))
    destination = np.uint64(little_32(data, row["ip"] + 16))
    ports = _swap_32(np.uint64(row["ports"]))
    if is_reverse:
        source, destination = destination, source
        ports = ((ports & np.uint64(0xFFFF)) << np.uint64(16)) | (ports >> np.uint64(16))
    return hash_flow_4(source, destination, ports, np.uint64(row["protocol"]))


@inlined
def _flow_id(data: int, row: np.void, keying: tuple[int, int, int], is_reverse: bool, out: int) -> np.uint64:
    mode, prefix_4, prefix_6 = keying
    if mode == _FIVE_TUPLE and row["version"] == 4:
        return _five_tuple_id_4(data, row, is_reverse)
    return hash_at(out, _write_key(data, row, mode, prefix_4, prefix_6, is_reverse, out), np.uint64(0))


@kernel
def identify(
    buffer: UInt8Array,
    rows: Located,
    identity: tuple[int, int],
    keying: tuple[int, int, int],
    scratch: UInt8Array,
    cut: Int64Array,
    flow_id: UInt64Array,
    packet_id: UInt64Array,
    time_ns: Int64Array,
    size_bytes: Int64Array,
) -> None:
    """The four columns of every row in one look at it; `scratch` has at least `scratch_bytes` bytes.

    `identity` is one of `Identity` (−1: packets get none) and its prefix, `keying` a `Keying` and the destination's
    prefixes. `cut` counts, by the bytes that are there, the packets of which the capture holds less than the prefix.
    """
    data = address_of(buffer)
    out = address_of(scratch)
    for i in range(rows.shape[0]):
        row = rows[i]
        time_ns[i] = row["time_ns"]
        size_bytes[i] = row["ip_bytes"]
        flow_id[i] = _flow_id(data, row, keying, False, out)
        if identity[0] < 0:
            packet_id[i] = 0
            continue
        packet_id[i] = _packet_id(data, row, identity[0], identity[1], out)
        held = row["end"] - row["ip"]
        if held < min(identity[1], row["ip_bytes"]):
            cut[held] += 1


@kernel
def reverse_ids(
    buffer: UInt8Array, rows: Located, keying: tuple[int, int, int], scratch: UInt8Array, ids: UInt64Array
) -> None:
    """The flow id of every row's opposite direction."""
    data = address_of(buffer)
    out = address_of(scratch)
    for i in range(rows.shape[0]):
        ids[i] = _flow_id(data, rows[i], keying, True, out)


@kernel
def key_bytes(
    buffer: UInt8Array,
    rows: Located,
    chosen: Int64Array,
    mode: int,
    prefix_4: int,
    prefix_6: int,
    keys: UInt8Array,
    sizes: UInt8Array,
) -> None:
    """The canonical bytes (rows of 48) and their number, of the packets `chosen`."""
    data = address_of(buffer)
    out = address_of(keys)
    for i in range(chosen.shape[0]):
        row = rows[chosen[i]]
        sizes[i] = _write_key(data, row, mode, prefix_4, prefix_6, False, out + i * KEY_BYTES)
