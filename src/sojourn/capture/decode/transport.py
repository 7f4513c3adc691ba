"""Transport columns (TCP with its options, UDP, ICMP echo) and forwarding columns, one row per decoded packet.

Passive round-trip times are read from the first; the second (DSCP, TTL or hop limit) are what routers look at and
change, and no part of a packet's identity.
Cost: about 15 ns per TCP segment, options walked within the captured header only; 2 ns per packet for forwarding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.frames import Located
from sojourn.capture.decode.network import OFFSET_BITS
from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.kernels import address_of, big_16, big_32, byte_at, inlined, kernel

# Bits of ``flags``: TCP's own, and two that say which options the segment had.
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
HAS_TIMESTAMPS, HAS_SACK = 0x100, 0x200


@dataclass(frozen=True, eq=False)
class TransportBatch:
    """Columns of TCP segments, UDP datagrams and ICMP messages.

    ``reverse_id`` is the flow id of the opposite direction. For ICMP echo, ``seq`` is the sequence
    number, ``ack`` the identifier and ``flags`` the message type. ``sack_high`` is the highest right
    edge of the SACK blocks. ``payload_offset`` points into ``data``; ``payload_captured`` of the
    ``payload_bytes`` sent are present there. A row whose transport header is missing (a later fragment, too
    short a capture, another protocol) has ``protocol`` 0 and zeros but for its ids and time.
    """

    data: UInt8Array
    time_ns: Int64Array
    flow_id: UInt64Array
    reverse_id: UInt64Array
    protocol: NDArray[np.uint8]
    src_port: NDArray[np.uint16]
    dest_port: NDArray[np.uint16]
    flags: NDArray[np.uint16]
    seq: NDArray[np.uint32]
    ack: NDArray[np.uint32]
    tsval: NDArray[np.uint32]
    tsecr: NDArray[np.uint32]
    sack_high: NDArray[np.uint32]
    payload_offset: Int64Array
    payload_bytes: Int64Array
    payload_captured: Int64Array

    def __len__(self) -> int:
        return len(self.time_ns)


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
def _read_row(data: int, row: np.void, field: np.void) -> None:
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
        return
    field["protocol"] = protocol
    field["src_port"] = row["ports"] >> 16
    field["dest_port"] = row["ports"] & 0xFFFF
    payload = at + header
    field["payload_offset"] = min(payload, row["end"])
    field["payload_bytes"] = max(row["ip"] + row["ip_bytes"] - payload, 0)
    field["payload_captured"] = max(row["end"] - payload, 0)


@kernel
def _fill(
    buffer: UInt8Array,
    rows: Located,
    fields: NDArray[np.void],
    ports: tuple[NDArray[np.uint16], ...],
    numbers: tuple[NDArray[np.uint32], ...],
    payload: tuple[Int64Array, ...],
    protocol: UInt8Array,
) -> None:
    """Read row by row into `fields[1]`, which is as `fields[0]` (zeros) before, and from there into the columns."""
    data = address_of(buffer)
    for i in range(rows.shape[0]):
        fields[1] = fields[0]
        field = fields[1]
        _read_row(data, rows[i], field)
        protocol[i] = field["protocol"]
        ports[0][i], ports[1][i], ports[2][i] = field["src_port"], field["dest_port"], field["flags"]
        numbers[0][i], numbers[1][i], numbers[2][i] = field["seq"], field["ack"], field["tsval"]
        numbers[3][i], numbers[4][i] = field["tsecr"], field["sack_high"]
        payload[0][i], payload[1][i] = field["payload_offset"], field["payload_bytes"]
        payload[2][i] = field["payload_captured"]


def transport_batch(data: UInt8Array, rows: Located, flow_id: UInt64Array, reverse_id: UInt64Array) -> TransportBatch:
    """The transport columns of located packets, row by row."""
    columns = {name: np.empty(len(rows), FIELDS[name]) for name in FIELDS.names or ()}
    ports = tuple(columns[name] for name in ("src_port", "dest_port", "flags"))
    numbers = tuple(columns[name] for name in ("seq", "ack", "tsval", "tsecr", "sack_high"))
    payload = tuple(columns[f"payload_{name}"] for name in ("offset", "bytes", "captured"))
    _fill(data, rows, np.zeros(2, FIELDS), ports, numbers, payload, columns["protocol"])
    return TransportBatch(
        data=data,
        time_ns=rows["time_ns"].copy(),
        flow_id=flow_id,
        reverse_id=reverse_id,
        **columns,
    )


@dataclass(frozen=True, eq=False)
class ForwardingBatch:
    """One row per packet of the batch that it was decoded with."""

    dscp: UInt8Array
    hops_left: UInt8Array


@kernel
def _read(buffer: UInt8Array, rows: Located, dscp: UInt8Array, hops_left: UInt8Array) -> None:
    data = address_of(buffer)
    for i in range(len(rows)):
        row = rows[i]
        at = row["ip"]
        if row["version"] == 4:
            dscp[i] = byte_at(data, at + 1) >> 2
            hops_left[i] = byte_at(data, at + 8)
        else:
            dscp[i] = big_16(data, at) >> 6 & 0x3F
            hops_left[i] = byte_at(data, at + 7)


def forwarding_batch(data: UInt8Array, rows: Located) -> ForwardingBatch:
    """The columns of located packets."""
    batch = ForwardingBatch(np.empty(len(rows), np.uint8), np.empty(len(rows), np.uint8))
    _read(data, rows, batch.dscp, batch.hops_left)
    return batch
