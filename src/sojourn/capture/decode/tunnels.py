"""What a tunnel packet carries: IP in IP, 6in4, GRE (with Ethernet and ERSPAN), VXLAN, GTP-U.

Each opener returns ``(what comes next, where)`` as in `links`; −1 says "this is no tunnel".
"""

from __future__ import annotations

from sojourn.capture.decode.links import ETHERNET, IP_BY_VERSION, IPV4, IPV6
from sojourn.core.kernels import kernel
from sojourn.core.memory_kernels import big_16, byte_at, signed

__all__ = ["open_tunnel"]

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
