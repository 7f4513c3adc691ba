"""Start and End: messages in the stream of a segment and class that delimit its intervals.

A message is handed to the kernel as if it had just arrived at the ingress interface. So it takes the way of the data:
the ingress tap, the firewall and the forwarding table, the egress queue of its class, the egress tap; and like data it
waits, and can be lost. It is an unsolicited ICMP echo reply from the ingress's neighbour to the egress's: a host that
gets one drops it silently (a UDP datagram to no program would make it answer). It has two hops to live.

Both taps know a message by its packet id, which is computed here from its bytes; the sequence number of a message is
the number of its interval.

Needs Linux 5.18 or later: injection is the kernel's "live frames" mode of running an XDP program, whose verdict here
is always to go on. Nothing is attached to any interface, and nothing has to be undone.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address
from typing import Self

import numpy as np

from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.capture.decode.frames import Frames
from sojourn.capture.filters import LINK_ETHERNET
from sojourn.capture.live.interface import ProgramKind, bpf_call, load_program
from sojourn.core.errors import LiveCaptureError

ETHERTYPE_IPV4 = b"\x08\x00"
ICMP, ECHO_REPLY = 1, 0
HOPS = 2
_MAGIC = b"sojourn "
_TEST_RUN, _LIVE_FRAMES = 10, 2
_PASS = [(0xB7, 0, 0, 0, 2), (0x95, 0, 0, 0, 0)]  # return XDP_PASS


class ControlKind(IntEnum):
    """Which end of its interval a message marks."""

    START = 1
    END = 2


@dataclass(frozen=True)
class ControlMessage:
    """One message: its bytes as they arrive at the ingress, and the id by which taps know it."""

    kind: ControlKind
    interval: int
    frame: bytes
    packet_id: int


class MessageWriter:
    """Writes the messages of one segment and class."""

    def __init__(self, *, hardware: bytes, source: IPv4Address, destination: IPv4Address, dscp: int) -> None:
        """`hardware` is the ingress interface's own address: frames to it are the router's to forward."""
        self._link = hardware + hardware + ETHERTYPE_IPV4
        self._addresses = source.packed + destination.packed
        self._dscp = dscp
        self._run = secrets.token_bytes(8)  # messages of another run, still under way, are not ours

    def write(self, kind: ControlKind, interval: int) -> ControlMessage:
        body = _MAGIC + self._run + struct.pack("!BBQ", kind, self._dscp, interval)
        icmp = _with_checksum(struct.pack("!BBHHH", ECHO_REPLY, 0, 0, 0, interval & 0xFFFF) + body, at=2)
        header = struct.pack("!BBHHHBBH", 0x45, self._dscp << 2, 20 + len(icmp), 0, 0, HOPS, ICMP, 0)
        frame = self._link + _with_checksum(header + self._addresses, at=10) + icmp
        return ControlMessage(kind, interval, frame, packet_id_of(frame))


def _with_checksum(data: bytes, *, at: int) -> bytes:
    """The bytes (an even number) with the Internet checksum put in its place."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return data[:at] + struct.pack("!H", ~total & 0xFFFF) + data[at + 2 :]


def packet_id_of(frame: bytes) -> int:
    """The identity of an Ethernet frame's packet."""
    size = np.array([len(frame)], np.int64)
    zero, link = np.zeros(1, np.int64), np.array([LINK_ETHERNET], np.int64)
    batch = Decoder(DecodeOptions(flow_table=False)).decode(
        Frames(np.frombuffer(frame, np.uint8), zero, size, size, zero, link)
    )
    return int(batch.packet_id[0])


class Injector:
    """Gives frames to the kernel as if they had arrived at an interface; a context manager."""

    def __init__(self) -> None:
        self._program = load_program(ProgramKind.XDP, _PASS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._program)

    def inject(self, interface: str, frame: bytes) -> None:
        """Let one frame arrive; about 10 µs."""
        try:
            index = socket.if_nametoindex(interface)
            data = ctypes.create_string_buffer(frame, len(frame))
            context = ctypes.create_string_buffer(struct.pack("=6I", 0, len(frame), 0, index, 0, 0), 24)
            sizes = struct.pack("=IIII", self._program, 0, len(frame), 0)
            pointers = struct.pack("=QQIIII", ctypes.addressof(data), 0, 1, 0, 24, 0)
            rest = struct.pack("=QQIII", ctypes.addressof(context), 0, _LIVE_FRAMES, 0, 1)
            bpf_call(_TEST_RUN, sizes + pointers + rest)
        except OSError as error:
            raise LiveCaptureError(
                f"no message can be sent from here: {error.strerror}",
                where=interface,
                action="is the interface up, and the kernel Linux 5.18 or later?",
            ) from None
