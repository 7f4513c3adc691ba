"""The decoder's first pass: from frames to located IP packets, everything else counted by reason.

A step through the headers is ``(what comes next, where)``. What comes next is an ether type, one of the formats that
have none (below), or −1 − a `SkipReason`; from a tunnel, −1 means "not a tunnel". Every step checks that the bytes it
reads are captured. Link headers include VLAN stacks, MPLS, PPPoE, PPP and LLC/SNAP; tunnels are IP in IP, 6in4, GRE
(with Ethernet and ERSPAN), VXLAN and GTP-U.

=========================  ====================================================
link types                 format
=========================  ====================================================
1                          Ethernet
113, 276                   Linux cooked, versions 1 and 2
0, 108                     BSD loopback: the address family, in either order
12, 14, 101, 228, 229      IP without a link header
9, 50, 51, 104, 166        PPP, PPP in HDLC framing, PPPoE, Cisco HDLC, pppd
195, 215, 230, 283         IEEE 802.15.4: counted, not decoded
=========================  ====================================================

Cost: about 15 ns per plain packet; O(headers), at most 24 link headers and 8 nested IP packets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.frames import MAX_TAGS, SEGMENT_BITS, Located, Note, SkipReason
from sojourn.capture.decode.network import OFFSET_BITS, parse_ipv4, parse_ipv6, read_ports, share_ports
from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.kernels import address_of, big_16, big_32, byte_at, inlined, kernel, little_32, signed

IPV4, IPV6 = 0x0800, 0x86DD
# Formats without an ether type of their own.
ETHERNET, IP_BY_VERSION, PPP = 0x10001, 0x10002, 0x10003
_ARP, _REVERSE_ARP = 0x0806, 0x8035
_VLAN, _PROVIDER_VLAN, _OLD_QINQ = 0x8100, 0x88A8, 0x9100
_MPLS_UNICAST, _MPLS_MULTICAST = 0x8847, 0x8848
_PPPOE_DISCOVERY, _PPPOE_SESSION = 0x8863, 0x8864
_BRIDGED_ETHERNET, _PPP_ETHER_TYPE = 0x6558, 0x880B
_LARGEST_LENGTH = 1500  # a smaller "ether type" is the length of an 802.3 frame
_CUT = -1 - int(SkipReason.LINK_HEADER_CUT)
_IS_ARP = -1 - int(SkipReason.ARP)
_IS_LLC = -1 - int(SkipReason.LLC)
_IS_PPP_CONTROL = -1 - int(SkipReason.PPP_CONTROL)
_IS_MPLS = -1 - int(SkipReason.MPLS_PAYLOAD)
_IS_OTHER = -1 - int(SkipReason.OTHER_PROTOCOL)
_UNSUPPORTED = -1 - int(SkipReason.UNSUPPORTED_LINK)
_IS_802_15_4 = -1 - int(SkipReason.IEEE_802_15_4)

# Link type → (format, bytes before it, where its ether type stands: −1 for formats without).
_BY_ETHER_TYPE, _BY_FAMILY, _FIXED, _NAMED = 0, 1, 2, 3
_LINKS = {
    0: (_BY_FAMILY, 4, 0),
    1: (_FIXED, 0, ETHERNET),
    9: (_FIXED, 0, PPP),
    12: (_FIXED, 0, IP_BY_VERSION),
    14: (_FIXED, 0, IP_BY_VERSION),
    50: (_FIXED, 0, PPP),
    51: (_FIXED, 0, _PPPOE_SESSION),
    101: (_FIXED, 0, IP_BY_VERSION),
    104: (_BY_ETHER_TYPE, 4, 2),
    108: (_BY_FAMILY, 4, 0),
    113: (_BY_ETHER_TYPE, 16, 14),
    166: (_FIXED, 0, PPP),
    195: (_NAMED, 0, _IS_802_15_4),
    215: (_NAMED, 0, _IS_802_15_4),
    228: (_FIXED, 0, IPV4),
    229: (_FIXED, 0, IPV6),
    230: (_NAMED, 0, _IS_802_15_4),
    276: (_BY_ETHER_TYPE, 20, 0),
    283: (_NAMED, 0, _IS_802_15_4),
}
_LINK_LIMIT = 512
_LINK_TABLE = np.full((_LINK_LIMIT, 3), -1, np.int64)
for _link, _entry in _LINKS.items():
    _LINK_TABLE[_link] = _entry


@inlined
def open_link(data: int, start: int, end: int, link: int) -> tuple[int, int]:
    """What a frame of link type `link` begins with, and where."""
    if link < 0 or link >= _LINK_LIMIT or _LINK_TABLE[link, 0] < 0:
        return _UNSUPPORTED, start
    form, header, value = _LINK_TABLE[link, 0], _LINK_TABLE[link, 1], _LINK_TABLE[link, 2]
    if start + header > end:
        return _CUT, start
    if form == _BY_ETHER_TYPE:
        return big_16(data, start + value), start + header
    if form == _BY_FAMILY:
        return _by_family(data, start), start + header
    return value, start


@inlined
def _by_family(data: int, at: int) -> int:
    """IP's version from a BSD address family, written in the order of whoever captured."""
    family = little_32(data, at)
    if family > 0xFFFF:
        family = big_32(data, at)
    if family == 2:
        return signed(IPV4)
    if family in (10, 24, 28, 30):
        return signed(IPV6)
    return signed(_IS_OTHER)


@inlined
def is_vlan(kind: int) -> bool:
    return kind in (_VLAN, _PROVIDER_VLAN, _OLD_QINQ)


@inlined
def _skip_ethernet(data: int, at: int, end: int) -> tuple[int, int]:
    if at + 14 > end:
        return signed(_CUT), at
    return big_16(data, at + 12), at + 14


@kernel
def _skip_llc(data: int, at: int, end: int) -> tuple[int, int]:
    """An 802.3 frame: IP follows only inside SNAP."""
    if at + 8 > end:
        return _IS_LLC, at
    if big_32(data, at) == 0xAAAA0300 and big_16(data, at + 4) == 0:
        kind = big_16(data, at + 6)
        return (kind, at + 8) if kind > _LARGEST_LENGTH else (_IS_LLC, at)
    return _IS_LLC, at


@kernel
def _skip_mpls(data: int, at: int, end: int) -> tuple[int, int]:
    """A whole label stack; what follows shows itself by its first four bits (RFC 4928)."""
    while True:
        if at + 4 > end:
            return _CUT, at
        is_bottom = byte_at(data, at + 2) & 1
        at += 4
        if is_bottom:
            break
    if at >= end:
        return _CUT, at
    version = byte_at(data, at) >> 4
    if version in (4, 6):
        return IP_BY_VERSION, at
    # A pseudo-wire's control word, then an Ethernet frame (RFC 4448).
    if version == 0 and at + 4 <= end:
        return ETHERNET, at + 4
    return _IS_MPLS, at


@kernel
def _skip_pppoe(data: int, at: int, end: int) -> tuple[int, int]:
    if at + 6 > end:
        return _CUT, at
    if byte_at(data, at) != 0x11 or byte_at(data, at + 1) != 0:
        return _IS_PPP_CONTROL, at
    return PPP, at + 6


@kernel
def _skip_ppp(data: int, at: int, end: int) -> tuple[int, int]:
    """PPP, with or without HDLC's address and control bytes, protocol in one byte or two."""
    if at + 4 <= end and byte_at(data, at) in (0x0F, 0x8F) and byte_at(data, at + 1) == 0:
        return big_16(data, at + 2), at + 4  # Cisco HDLC: an ether type
    # pppd writes the direction (0 or 1) where HDLC has its address.
    if at + 2 <= end and byte_at(data, at) in (0xFF, 0x00, 0x01) and byte_at(data, at + 1) == 0x03:
        at += 2
    if at >= end:
        return _CUT, at
    protocol = byte_at(data, at)
    at += 1
    if protocol & 1 == 0:
        if at >= end:
            return _CUT, at
        protocol = (protocol << 8) | byte_at(data, at)
        at += 1
    if protocol == 0x21:
        return IPV4, at
    if protocol == 0x57:
        return IPV6, at
    if protocol in (0x0281, 0x0283):
        return _MPLS_UNICAST, at
    return _IS_PPP_CONTROL, at


@kernel
def _skip_rare(data: int, kind: int, at: int, end: int) -> tuple[int, int]:
    """The step over a header that most frames do not have."""
    if kind in (_MPLS_UNICAST, _MPLS_MULTICAST):
        return _skip_mpls(data, at, end)
    if kind == _PPPOE_SESSION:
        return _skip_pppoe(data, at, end)
    if kind in (PPP, _PPP_ETHER_TYPE):
        return _skip_ppp(data, at, end)
    if kind == _BRIDGED_ETHERNET:
        return ETHERNET, at
    if kind in (_ARP, _REVERSE_ARP):
        return _IS_ARP, at
    if kind == _PPPOE_DISCOVERY:
        return _IS_PPP_CONTROL, at
    if 0 <= kind <= _LARGEST_LENGTH:
        return _skip_llc(data, at, end)
    return _IS_OTHER, at


@inlined
def next_header(data: int, kind: int, at: int, end: int) -> tuple[int, int]:
    """The step over the header `kind` at `at`; IP's own are not stepped over."""
    if kind == ETHERNET:
        return _skip_ethernet(data, at, end)
    if is_vlan(kind):
        if at + 4 > end:
            return signed(_CUT), at
        return big_16(data, at + 2), at + 4
    if kind == IP_BY_VERSION:
        if at >= end:
            return signed(_CUT), at
        version = byte_at(data, at) >> 4
        if version == 4:
            return signed(IPV4), at
        return signed(IPV6 if version == 6 else _IS_OTHER), at
    return _skip_rare(data, kind, at, end)


_IP_IN_IP, _UDP, _IPV6_IN_IP, _GRE, _MPLS_IN_IP = 4, 17, 41, 47, 137
_VXLAN_PORT, _LINUX_VXLAN_PORT, _GTP_PORT = 4789, 8472, 2152
_UDP_BYTES, _VXLAN_BYTES, _GTP_BYTES = 8, 8, 8
_MPLS = 0x8847
_ERSPAN_2, _ERSPAN_3 = 0x88BE, 0x22EB
_CHECKSUM, _ROUTING, _KEY, _SEQUENCE, _ACKNOWLEDGMENT = 0x8000, 0x4000, 0x2000, 0x1000, 0x0080
_GTP_PDU = 0xFF
_MAX_EXTENSIONS = 16


@kernel
def _open_gre(data: int, at: int, end: int) -> tuple[int, int]:
    if at + 4 > end:
        return -1, at
    flags = big_16(data, at)
    kind = big_16(data, at + 2)
    if flags & _ROUTING or flags & 7 > 1:
        return -1, at
    inside = at + 4
    for flag in (_CHECKSUM, _KEY, _SEQUENCE):
        if flags & flag:
            inside += 4
    if flags & 7 == 1 and flags & _ACKNOWLEDGMENT:
        inside += 4
    if kind == _ERSPAN_2:
        return ETHERNET, inside + (8 if flags & _SEQUENCE else 0)
    if kind == _ERSPAN_3:
        if inside + 12 > end:
            return -1, at
        return ETHERNET, inside + (20 if byte_at(data, inside + 11) & 1 else 12)
    return kind, inside


@kernel
def _open_gtp(data: int, at: int, end: int) -> tuple[int, int]:
    """GTP-U version 1 carrying a user's packet, past its optional fields and extension headers."""
    if at + _GTP_BYTES + 4 > end:
        return -1, at
    flags = byte_at(data, at)
    if flags >> 4 != 3 or byte_at(data, at + 1) != _GTP_PDU:
        return -1, at
    inside = at + _GTP_BYTES
    if flags & 7 == 0:
        return IP_BY_VERSION, inside
    extension = byte_at(data, inside + 3) if flags & 4 else 0
    inside += 4
    for _ in range(_MAX_EXTENSIONS):
        if extension == 0:
            return IP_BY_VERSION, inside
        if inside >= end:
            return -1, at
        size = byte_at(data, inside) << 2
        if size == 0 or inside + size > end:
            return -1, at
        extension = byte_at(data, inside + size - 1)
        inside += size
    return -1, at


@kernel
def open_tunnel(data: int, at: int, end: int, protocol: int, ports: int) -> tuple[int, int]:
    """The payload of the packet whose transport header is at `at`, if it is a tunnel's."""
    if protocol == _IP_IN_IP:
        return IPV4, at
    if protocol == _IPV6_IN_IP:
        return IPV6, at
    if protocol == _MPLS_IN_IP:
        return _MPLS, at
    if protocol == _GRE:
        return _open_gre(data, at, end)
    if protocol == _UDP:
        source, destination = signed(ports) >> 16, signed(ports) & 0xFFFF
        inside = at + _UDP_BYTES
        if destination in (_VXLAN_PORT, _LINUX_VXLAN_PORT):
            is_valid = inside + _VXLAN_BYTES <= end and byte_at(data, inside) & 0x08
            return (ETHERNET, inside + _VXLAN_BYTES) if is_valid else (-1, at)
        if destination == _GTP_PORT or source == _GTP_PORT:
            return _open_gtp(data, inside, end)
    return -1, at


_MAX_HEADERS = 24
_MAX_NESTED = 8
_TOO_MANY = -1 - int(SkipReason.TOO_MANY_HEADERS)
_OUTSIDE = int(SkipReason.OUTSIDE_BUFFER)
_NOT_OPENED = int(Note.TUNNEL_NOT_OPENED)
_TRANSPORT_CUT = int(Note.TRANSPORT_CUT)
_USED_TAG = 0x1000
_TCP, _SYN = 6, 0x02
LONGEST, OPENINGS = 0, 1  # of the marks


@inlined
def _find_ip(data: int, kind: int, at: int, end: int, row: np.void) -> tuple[int, int]:
    """Step from header to header until IP (or a reason to stop), noting VLAN tags on the way."""
    tags = np.uint64(0)
    shift = 0
    headers = 0
    while kind >= 0 and kind != IPV4 and kind != IPV6:
        if headers == _MAX_HEADERS:
            return signed(_TOO_MANY), at
        if is_vlan(kind) and shift < 16 * MAX_TAGS and at + 2 <= end:
            tag = (big_16(data, at) & 0xFFF) | _USED_TAG
            tags |= np.uint64(tag) << np.uint64(shift)
            shift += 16
        kind, at = next_header(data, kind, at, end)
        headers += 1
    row["vlans"] = tags
    return kind, at


@inlined
def _parse_ip(data: int, kind: int, at: int, end: int, wire_end: int, row: np.void) -> int:
    if kind == IPV4:
        return parse_ipv4(data, at, end, wire_end, row)
    if kind == IPV6:
        return parse_ipv6(data, at, end, wire_end, row)
    return kind


@kernel
def _open_nested(
    data: int,
    rows: Located,
    at_row: int,
    spare: Located,
    keys: NDArray[np.uint64],
    values: NDArray[np.uint64],
    times: Int64Array,
    notes: Int64Array,
) -> None:
    """Replace a tunnel's row by the innermost packet that can be decoded."""
    for _ in range(_MAX_NESTED):
        outer = rows[at_row]
        if outer["fragment"] & OFFSET_BITS:
            return
        kind, at = open_tunnel(
            data, outer["transport"], outer["end"], signed(outer["own_protocol"]), signed(outer["ports"])
        )
        if kind < 0:
            return
        inner = spare[0]
        inner["time_ns"] = outer["time_ns"]
        kind, at = _find_ip(data, kind, at, outer["end"], inner)
        wire_end = outer["ip"] + outer["ip_bytes"]
        if _parse_ip(data, kind, at, outer["end"], wire_end, inner) < 0:
            notes[_NOT_OPENED] += 1
            return
        notes[_TRANSPORT_CUT] += read_ports(data, inner)
        if inner["fragment"]:
            share_ports(data, inner, keys, values, times, notes)
        rows[at_row] = spare[0]


@inlined
def _opens_connection(data: int, row: np.void) -> bool:
    """Whether it is a TCP segment with SYN; without a branch, as small packets come and go without a pattern."""
    at = row["transport"]
    flags = byte_at(data, min(at + 13, row["end"] - 1))
    is_tcp = (row["own_protocol"] == _TCP) & (row["fragment"] == 0) & (at + 20 <= row["end"])
    return bool(is_tcp & (flags & _SYN != 0))


@kernel
def locate(
    buffer: UInt8Array,
    offset: Int64Array,
    captured: Int64Array,
    length: Int64Array,
    time_ns: Int64Array,
    link: Int64Array,
    offload: Int64Array,
    inner: bool,
    keys: NDArray[np.uint64],
    values: NDArray[np.uint64],
    times: Int64Array,
    skipped: Int64Array,
    notes: Int64Array,
    rows: Located,
    spare: Located,
    marks: Int64Array,
) -> int:
    """Fill `rows` with the IP packets among the frames and return how many there are.

    `marks` get the length of the longest, the number of packets that open a connection, and these packets' rows.
    """
    data = address_of(buffer)
    longest = openings = signed(0)
    count = 0
    limit = buffer.shape[0]
    for i in range(offset.shape[0]):
        start = offset[i]
        if start < 0 or start > limit or captured[i] < 0 or captured[i] > limit - start:
            skipped[_OUTSIDE] += 1
            continue
        end = start + captured[i]
        row = rows[count]
        kind, at = open_link(data, start, end, link[i])
        kind, at = _find_ip(data, kind, at, end, row)
        problem = _parse_ip(data, kind, at, end, start + max(length[i], captured[i]), row)
        if problem < 0:
            skipped[-1 - problem] += 1
            continue
        row["time_ns"] = time_ns[i]
        notes[_TRANSPORT_CUT] += read_ports(data, row)
        if row["fragment"]:
            share_ports(data, row, keys, values, times, notes)
        if inner:
            _open_nested(data, rows, count, spare, keys, values, times, notes)
        told = offload[i] if i < offload.shape[0] else 0
        row["segment"], row["offload"] = told & SEGMENT_BITS, told >> 16
        longest = max(longest, row["ip_bytes"])
        if _opens_connection(data, row):
            marks[OPENINGS + 1 + openings] = count
            openings += 1
        count += 1
    marks[LONGEST], marks[OPENINGS] = longest, openings
    return count
