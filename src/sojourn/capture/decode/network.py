"""IP headers: where the transport header lies, what the packet's length and fragment are.

The parsers fill a located row and return 0, or −1 − a `SkipReason` when there is no usable header. A header
whose addresses are captured is usable: what is cut behind them only costs the ports.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.frames import Note, SkipReason
from sojourn.core.arrays import Int64Array
from sojourn.core.hash_kernels import mix
from sojourn.core.kernels import big_16, big_32, byte_at, inlined, kernel, signed, word_at

OFFSET_BITS = 0x1FFF
_IPV4_BYTES, _IPV6_BYTES = 20, 40
_CUT = -1 - int(SkipReason.IP_HEADER_CUT)
_MALFORMED = -1 - int(SkipReason.IP_HEADER_MALFORMED)
_INHERITED, _ORPHANED = int(Note.FRAGMENT_INHERITED), int(Note.FRAGMENT_ORPHANED)

_HOP_BY_HOP, _ROUTING, _FRAGMENT, _AUTHENTICATION, _DESTINATION = 0, 43, 44, 51, 60
_MOBILITY, _HIP, _SHIM6 = 135, 139, 140
_MAX_EXTENSIONS = 32
_TCP, _UDP, _DCCP, _SCTP, _UDP_LITE = 6, 17, 33, 132, 136

_PORT_TABLE = np.zeros(256, np.bool_)
_PORT_TABLE[[_TCP, _UDP, _DCCP, _SCTP, _UDP_LITE]] = True

_FRAGMENT_SLOTS = 1 << 13
_FRAGMENT_LIFETIME_NS = 30_000_000_000  # RFC 791 and 8200: reassembly gives up after 15 to 60 seconds


class FragmentTable:
    """Ports of first fragments, for the later ones: one slot per hash, the newest wins, 30 seconds.

    Memory: 192 KiB. A first fragment that another one has overwritten leaves its later ones orphaned.
    """

    def __init__(self) -> None:
        self.keys = np.zeros(_FRAGMENT_SLOTS, np.uint64)
        self.values = np.zeros(_FRAGMENT_SLOTS, np.uint64)
        self.times = np.zeros(_FRAGMENT_SLOTS, np.int64)


@inlined
def has_ports(protocol: int) -> bool:
    return bool(_PORT_TABLE[protocol])


@inlined
def parse_ipv4(data: int, at: int, end: int, wire_end: int, row: np.void) -> int:
    """`end` bounds the captured bytes, `wire_end` those that were sent."""
    if at + _IPV4_BYTES > end:
        return _CUT
    first = byte_at(data, at)
    header = (first & 0xF) << 2
    total = big_16(data, at + 2)
    if first >> 4 != 4 or header < _IPV4_BYTES:
        return _MALFORMED
    if total == 0:
        total = wire_end - at
    if total < header:
        return _MALFORMED
    field = big_16(data, at + 6)
    row["ip"] = at
    row["transport"] = at + header
    row["end"] = min(end, at + total)
    row["ip_bytes"] = total
    row["identification"] = big_16(data, at + 4)
    row["fragment"] = (field & OFFSET_BITS) | ((field & 0x2000) << 2)
    row["version"] = 4
    row["own_protocol"] = byte_at(data, at + 9)
    return 0


@kernel
def parse_ipv6(data: int, at: int, end: int, wire_end: int, row: np.void) -> int:
    """As `parse_ipv4`; extension headers are walked up to the first one that is not captured."""
    if at + _IPV6_BYTES > end:
        return _CUT
    if byte_at(data, at) >> 4 != 6:
        return _MALFORMED
    protocol = byte_at(data, at + 6)
    total = big_16(data, at + 4) + _IPV6_BYTES
    if total == _IPV6_BYTES and wire_end - at > 0xFFFF:
        total = wire_end - at
    row["ip"] = at
    row["end"] = min(end, at + total)
    row["ip_bytes"] = total
    row["identification"] = 0
    row["fragment"] = 0
    row["version"] = 6
    _walk_extensions(data, at + _IPV6_BYTES, protocol, row)
    return 0


@inlined
def _walk_extensions(data: int, at: int, protocol: int, row: np.void) -> None:
    end = row["end"]
    for _ in range(_MAX_EXTENSIONS):
        if protocol == _FRAGMENT:
            if at + 8 > end:
                break
            field = big_16(data, at + 2)
            protocol = byte_at(data, at)
            row["fragment"] = (field >> 3) | ((field & 1) << 15)
            row["identification"] = big_32(data, at + 4)
            at += 8
            if field >> 3:
                break
        elif protocol in (_HOP_BY_HOP, _ROUTING, _DESTINATION, _MOBILITY, _HIP, _SHIM6):
            if at + 8 > end:
                break
            protocol, at = byte_at(data, at), at + ((byte_at(data, at + 1) + 1) << 3)
        elif protocol == _AUTHENTICATION:
            if at + 8 > end:
                break
            protocol, at = byte_at(data, at), at + ((byte_at(data, at + 1) + 2) << 2)
        else:
            break
    row["transport"] = at
    row["own_protocol"] = protocol


@inlined
def read_ports(data: int, row: np.void) -> bool:
    """The row's own protocol and ports; whether the ports were cut off."""
    protocol = row["own_protocol"]
    row["protocol"] = protocol
    row["ports"] = 0
    if not has_ports(protocol) or row["fragment"] & OFFSET_BITS:
        return False
    if row["transport"] + 4 > row["end"]:
        return True
    row["ports"] = big_32(data, row["transport"])
    return False


@kernel
def share_ports(
    data: int,
    row: np.void,
    keys: NDArray[np.uint64],
    values: NDArray[np.uint64],
    times: Int64Array,
    notes: Int64Array,
) -> None:
    """Leave a first fragment's ports in the table; a later fragment takes them from it."""
    key = _datagram_key(data, row)
    slot = signed(key & np.uint64(keys.shape[0] - 1))
    if row["fragment"] & OFFSET_BITS == 0:
        keys[slot] = key
        values[slot] = (np.uint64(row["protocol"]) << np.uint64(32)) | np.uint64(row["ports"])
        times[slot] = row["time_ns"]
        return
    age = np.uint64(row["time_ns"] - times[slot] + _FRAGMENT_LIFETIME_NS)
    if keys[slot] == key and age <= np.uint64(2 * _FRAGMENT_LIFETIME_NS):
        row["ports"] = np.uint32(values[slot] & np.uint64(0xFFFFFFFF))
        row["protocol"] = np.uint8(values[slot] >> np.uint64(32))
        notes[_INHERITED] += 1
    else:
        notes[_ORPHANED] += 1


@inlined
def _datagram_key(data: int, row: np.void) -> np.uint64:
    """A hash of addresses, identification and IPv4's protocol: what fragments of one datagram share.

    IPv6 identifies a datagram without its protocol (RFC 8200, 4.5).
    """
    is_4 = row["version"] == 4
    first = row["ip"] + (12 if is_4 else 8)
    words = 1 if is_4 else 4
    protocol = np.uint64(row["own_protocol"]) if is_4 else np.uint64(0)
    key = mix((np.uint64(row["identification"]) << np.uint64(16)) | (protocol << np.uint64(8)) | np.uint64(is_4))
    for i in range(words):
        key = mix(key ^ word_at(data, first + 8 * i))
    return key | np.uint64(1)
