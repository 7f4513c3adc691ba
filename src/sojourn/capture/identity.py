"""Packet identity: 64 bits that are the same wherever a packet is seen, and differ between packets.

The id is the XXH64 (seed 0) of these bytes, numbers big-endian:

    version[1] · protocol[1] · fragment[2] · total length[4] · identification[4] · source · destination ·
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

Two captures agree if, for each packet, both hold the same prefix. The default of 68 bytes (the smallest MTU
that IP allows) leaves 28 bytes of a 96-byte snap for link headers. With shorter or different snap lengths
pass `identity_bytes_for` of both: it leaves room for an Ethernet header and for the tags given.

Identical packets (an RST with identification 0, sent twice) share an id; matching pairs them in order.
Cost: about 20 ns per packet.
"""

from __future__ import annotations

import numpy as np

from sojourn.capture.network import OFFSET_BITS
from sojourn.capture.rows import Located
from sojourn.capture.words import signed
from sojourn.core.arrays import UInt8Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import hash_slice
from sojourn.core.kernels import inlined, kernel

__all__ = ["DEFAULT_IDENTITY_BYTES", "MAX_IDENTITY_BYTES", "identity_bytes_for", "packet_ids"]

DEFAULT_IDENTITY_BYTES = 68
MIN_IDENTITY_BYTES = 20
MAX_IDENTITY_BYTES = 1 << 16
_FIXED_BYTES = 12 + 32
_ETHERNET_BYTES = 14

# Protocol → (where its checksum stands, how many bytes it has).
_CHECKSUMS = {1: (2, 2), 6: (16, 2), 17: (6, 2), 33: (6, 2), 58: (2, 2), 132: (8, 4), 136: (6, 2)}
_CHECKSUM_TABLE = np.zeros((256, 2), np.int64)
for _protocol, _place in _CHECKSUMS.items():
    _CHECKSUM_TABLE[_protocol] = _place


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


@inlined
def _put(out: UInt8Array, at: int, value: int, size: int) -> None:
    for i in range(size):
        out[np.uint64(at + i)] = (value >> (8 * (size - 1 - i))) & 0xFF


@inlined
def _write_identity(data: UInt8Array, row: np.void, identity_bytes: int, out: UInt8Array) -> int:
    is_4 = row["version"] == 4
    protocol = signed(row["own_protocol"])
    fragment = signed(row["fragment"])
    out[0] = row["version"]
    out[1] = protocol
    _put(out, 2, fragment, 2)
    _put(out, 4, row["ip_bytes"], 4)
    _put(out, 8, signed(row["identification"]), 4)
    size = 8 if is_4 else 32
    addresses = row["ip"] + (12 if is_4 else 8)
    for i in range(size):
        out[np.uint64(12 + i)] = data[np.uint64(addresses + i)]
    at = 12 + size
    prefix_end = min(row["end"], row["ip"] + identity_bytes)
    hashed = max(prefix_end - row["transport"], 0)
    for i in range(hashed):
        out[np.uint64(at + i)] = data[np.uint64(row["transport"] + i)]
    if fragment & OFFSET_BITS == 0:
        first = _CHECKSUM_TABLE[protocol, 0]
        for i in range(first, min(first + _CHECKSUM_TABLE[protocol, 1], hashed)):
            out[np.uint64(at + i)] = 0
    return signed(at + hashed)


@kernel
def packet_ids(data: UInt8Array, rows: Located, identity_bytes: int, ids: UInt64Array) -> None:
    """The packet id of every row."""
    scratch = np.zeros(_FIXED_BYTES + identity_bytes, np.uint8)
    for i in range(rows.shape[0]):
        size = _write_identity(data, rows[i], identity_bytes, scratch)
        ids[i] = hash_slice(scratch, 0, size, np.uint64(0))
