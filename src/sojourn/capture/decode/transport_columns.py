"""Filling transport columns from located packets: TCP with its options, UDP, ICMP echo.

A row whose transport header is not there (a later fragment, a capture that is too short) has protocol 0 and
zeros: it takes part in no round-trip time.
Cost: about 15 ns per TCP segment; options are walked within the captured header only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.network import OFFSET_BITS
from sojourn.capture.decode.rows import Located
from sojourn.capture.decode.transport import HAS_SACK, HAS_TIMESTAMPS, TransportBatch
from sojourn.core.arrays import UInt8Array, UInt64Array
from sojourn.core.kernels import inlined, kernel
from sojourn.core.memory_kernels import address_of, big_16, big_32, byte_at

__all__ = ["FIELDS", "transport_batch"]

_ICMP, _TCP, _UDP, _ICMPV6 = 1, 6, 17, 58
_END, _NOTHING, _SACK, _TIMESTAMPS = 0, 1, 5, 8

FIELDS = np.dtype(
    [
        ("protocol", np.uint8),
        ("src_port", np.uint16),
        ("dest_port", np.uint16),
        ("flags", np.uint16),
        ("seq", np.uint32),
        ("ack", np.uint32),
        ("tsval", np.uint32),
        ("tsecr", np.uint32),
        ("sack_high", np.uint32),
        ("payload_offset", np.int64),
        ("payload_bytes", np.int64),
        ("payload_captured", np.int64),
    ],
    align=True,
)


@inlined
def _is_later(edge: int, than: int) -> bool:
    """Comparison of sequence numbers, which wrap around."""
    return 0 < ((edge - than) & 0xFFFFFFFF) < 0x80000000


@inlined
def _highest_edge(data: int, first: int, last: int) -> int:
    """The highest right edge of the SACK blocks between `first` and `last`."""
    highest = big_32(data, first + 4)
    at = first + 8
    while at + 8 <= last:
        edge = big_32(data, at + 4)
        if _is_later(edge, highest):
            highest = edge
        at += 8
    return highest


@kernel
def _read_options(data: int, at: int, end: int, field: np.void) -> None:
    while at < end:
        kind = byte_at(data, at)
        if kind == _END:
            return
        if kind == _NOTHING:
            at += 1
            continue
        if at + 2 > end:
            return
        size = byte_at(data, at + 1)
        if size < 2 or at + size > end:
            return
        if kind == _TIMESTAMPS and size == 10:
            field["tsval"] = big_32(data, at + 2)
            field["tsecr"] = big_32(data, at + 6)
            field["flags"] |= HAS_TIMESTAMPS
        elif kind == _SACK and size >= 10:
            field["sack_high"] = _highest_edge(data, at + 2, at + size)
            field["flags"] |= HAS_SACK
        at += size


@inlined
def _read_tcp(data: int, at: int, end: int, field: np.void) -> int:
    """Fill the row; the header's length, or 0 where there is no whole fixed header."""
    if at + 20 > end:
        return 0
    header = (byte_at(data, at + 12) >> 4) << 2
    if header < 20:
        return 0
    field["flags"] = byte_at(data, at + 13)
    field["seq"] = big_32(data, at + 4)
    field["ack"] = big_32(data, at + 8)
    _read_options(data, at + 20, min(end, at + header), field)
    return header


@inlined
def _read_echo(data: int, at: int, end: int, field: np.void) -> int:
    if at + 8 > end:
        return 0
    kind = byte_at(data, at)
    field["flags"] = kind
    if kind in (0, 8, 128, 129):
        field["ack"] = big_16(data, at + 4)
        field["seq"] = big_16(data, at + 6)
    return 8


@kernel
def _fill(buffer: UInt8Array, rows: Located, fields: NDArray[np.void]) -> None:
    data = address_of(buffer)
    for i in range(rows.shape[0]):
        row = rows[i]
        field = fields[i]
        protocol = row["own_protocol"]
        at = row["transport"]
        header = 0
        if row["fragment"] & OFFSET_BITS == 0:
            if protocol == _TCP:
                header = _read_tcp(data, at, row["end"], field)
            elif protocol == _UDP:
                header = 8 if at + 8 <= row["end"] else 0
            elif protocol in (_ICMP, _ICMPV6):
                header = _read_echo(data, at, row["end"], field)
        if header == 0:
            continue
        field["protocol"] = protocol
        field["src_port"] = row["ports"] >> 16
        field["dest_port"] = row["ports"] & 0xFFFF
        payload = at + header
        field["payload_offset"] = min(payload, row["end"])
        field["payload_bytes"] = max(row["ip"] + row["ip_bytes"] - payload, 0)
        field["payload_captured"] = max(row["end"] - payload, 0)


def transport_batch(data: UInt8Array, rows: Located, flow_id: UInt64Array, reverse_id: UInt64Array) -> TransportBatch:
    """The transport columns of located packets, row by row."""
    fields = np.zeros(len(rows), FIELDS)
    _fill(data, rows, fields)
    columns = {name: np.ascontiguousarray(fields[name]) for name in FIELDS.names or ()}
    return TransportBatch(
        data=data,
        time_ns=rows["time_ns"].copy(),
        flow_id=flow_id,
        reverse_id=reverse_id,
        **columns,
    )
