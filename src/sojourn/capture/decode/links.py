"""From a captured frame to its network header: link types, VLAN stacks, MPLS, PPPoE, PPP, LLC/SNAP.

A step is ``(what comes next, where)``. What comes next is an ether type, one of the formats that have
none (below), or −1 − a `SkipReason`. Every step checks that the bytes it reads are captured.

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
"""

from __future__ import annotations

import numpy as np

from sojourn.capture.decode.reasons import SkipReason
from sojourn.core.kernels import inlined, kernel
from sojourn.core.memory_kernels import big_16, big_32, byte_at, little_32, signed

__all__ = ["ETHERNET", "IPV4", "IPV6", "IP_BY_VERSION", "PPP", "is_vlan", "next_header", "open_link"]

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
