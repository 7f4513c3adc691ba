"""Packets of generated traffic as bytes, and capture files of them.

Guarantee: packets of one call differ in what does not change in flight (32 bits of the sequence number), so that two
points can tell them apart; their lengths and headers are consistent, their checksums are 0. Always the same bytes.
Cost: 96 bytes a packet, in memory and in the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sojourn.core.arrays import Int64Array, UInt8Array

# pcap with nanoseconds, little endian, version 2.4, Ethernet.
_HEADER = bytes.fromhex("4d3cb2a1 02000400 00000000 00000000 00000400 01000000")
# Ethernet, IPv4 (66 bytes: 20 + TCP 32 + 14 of data), TCP with a time stamp option.
_FRAME = bytes.fromhex(
    "020000000002 020000000001 0800"
    "4500 0042 0000 4000 4006 0000 0a000001 0a000002"
    "0000 01bb 00000000 00000001 8010 ffff 0000 0000"
    "0101 080a 00000000 00000001"
) + bytes(14)
FIRST_PORT = 20_000
# Where the low 16 bits of the packet's number are: IPv4 identification, sequence number, time stamp; and its high ones.
_LOW, _HIGH, _PORT = (18, 40, 60), 38, 34


def frames(flow: Int64Array) -> UInt8Array:
    """A frame for each packet: the flow is its port, identification and sequence number distinguish packets."""
    made = np.tile(np.frombuffer(_FRAME, np.uint8), (len(flow), 1))
    number = np.arange(len(flow))
    for offset, values in ((_PORT, FIRST_PORT + flow), (_HIGH, number >> 16), *((low, number) for low in _LOW)):
        made[:, offset], made[:, offset + 1] = values >> 8 & 255, values & 255
    return made


def answers(sent: UInt8Array) -> UInt8Array:
    """What the other end sends back: addresses and ports change places, and the time stamp is echoed."""
    made = sent.copy()
    for first, second, size in ((26, 30, 4), (34, 36, 2), (58, 62, 4)):
        made[:, first : first + size] = sent[:, second : second + size]
        made[:, second : second + size] = sent[:, first : first + size]
    return made


def write_pcap(path: Path, parts: list[UInt8Array], times_ns: list[Int64Array], *, in_order: bool = True) -> None:
    """Write frames with their times, by time unless they are to stay as they are."""
    rows, time_ns = np.concatenate(parts), np.concatenate(times_ns)
    if in_order:
        order = np.argsort(time_ns, kind="stable")
        rows, time_ns = rows[order], time_ns[order]
    size = rows.shape[1]
    head = np.empty((len(rows), 4), "<u4")
    head[:, 0], head[:, 1], head[:, 2:] = time_ns // 10**9, time_ns % 10**9, size
    records = np.concatenate([head.view(np.uint8).reshape(len(rows), 16), rows], axis=1)
    path.write_bytes(_HEADER + records.tobytes())
