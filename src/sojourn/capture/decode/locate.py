"""The decoder's first pass: from frames to located IP packets, everything else counted by reason.

Cost: about 15 ns per plain packet; O(headers), at most 24 link headers and 8 nested IP packets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.links import IPV4, IPV6, is_vlan, next_header, open_link
from sojourn.capture.decode.network import OFFSET_BITS, parse_ipv4, parse_ipv6, read_ports, share_ports
from sojourn.capture.decode.reasons import Note, SkipReason
from sojourn.capture.decode.rows import MAX_TAGS, Located
from sojourn.capture.decode.tunnels import open_tunnel
from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.kernels import inlined, kernel
from sojourn.core.memory_kernels import address_of, big_16, signed

__all__ = ["locate"]

_MAX_HEADERS = 24
_MAX_NESTED = 8
_TOO_MANY = -1 - int(SkipReason.TOO_MANY_HEADERS)
_OUTSIDE = int(SkipReason.OUTSIDE_BUFFER)
_NOT_OPENED = int(Note.TUNNEL_NOT_OPENED)
_TRANSPORT_CUT = int(Note.TRANSPORT_CUT)
_USED_TAG = 0x1000


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


@kernel
def locate(
    buffer: UInt8Array,
    offset: Int64Array,
    captured: Int64Array,
    length: Int64Array,
    time_ns: Int64Array,
    link: Int64Array,
    inner: bool,
    keys: NDArray[np.uint64],
    values: NDArray[np.uint64],
    times: Int64Array,
    skipped: Int64Array,
    notes: Int64Array,
    rows: Located,
    spare: Located,
) -> int:
    """Fill `rows` with the IP packets among the frames and return how many there are."""
    data = address_of(buffer)
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
        count += 1
    return count
