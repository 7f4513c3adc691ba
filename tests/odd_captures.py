"""Pairs of captures that ask a wrong question, written byte by byte: a small two-point world and what can go wrong."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
FLOWS = 8
PACKETS = 1_600


@dataclass(frozen=True)
class Packet:
    """A UDP packet of a flow; ``forward`` packets travel from 10.1.0.1 to 10.2.0.1."""

    time_ns: int
    flow: int
    serial: int
    forward: bool = True
    payload: int = 64
    source: str = ""

    def frame(self) -> bytes:
        ends = ("10.1.0.1", 4000 + self.flow), ("10.2.0.1", 5000)
        (src, src_port), (dest, dest_port) = ends if self.forward else ends[::-1]
        body = struct.pack(">IQ", self.serial, self.flow) + bytes(
            random.Random(self.serial).randbytes(self.payload - 12)
        )
        udp = struct.pack(">HHHH", src_port, dest_port, 8 + len(body), 0) + body
        # A sender that does not number its packets: the payload alone tells them apart.
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0)
        addresses = b"".join(bytes(map(int, host.split("."))) for host in (self.source or src, dest))
        return bytes(12) + b"\x08\x00" + head + addresses + udp


def two_points(*, both_ways: bool = True, loss: float = 0.05, seed: int = 1) -> tuple[list[Packet], list[Packet]]:
    """Sender and receiver of a segment with delays of about 5 ms; four in ten packets travel back, if any do."""
    draw = random.Random(seed)
    sender, receiver = [], []
    for serial in range(PACKETS):
        forward = not both_ways or draw.random() < 0.6
        first = Packet(START_NS + serial * 2_000_000 + draw.randrange(10_000), serial % FLOWS, serial, forward)
        later = replace(first, time_ns=first.time_ns + 5_000_000 + draw.randrange(1_000_000))
        here, there = (sender, receiver) if forward else (receiver, sender)
        here.append(first)
        if draw.random() >= loss:
            there.append(later)
    return sender, receiver


def shifted(packets: Iterable[Packet], by: Callable[[Packet], int]) -> list[Packet]:
    """The packets as a wrong clock stamps them."""
    return [replace(packet, time_ns=packet.time_ns + by(packet)) for packet in packets]


def write(
    path: Path,
    packets: Iterable[Packet],
    *,
    snap: Callable[[Packet], int] = lambda _: 1 << 16,
    order: Callable[[Packet], int] = lambda packet: packet.time_ns,
    stamp: Callable[[Packet], int] = lambda packet: packet.time_ns,
) -> str:
    """A nanosecond pcap whose header tells nothing of the snap length."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1))
        for packet in sorted(packets, key=order):
            frame = packet.frame()
            seconds, rest = divmod(stamp(packet), SECOND_NS)
            captured = frame[: snap(packet)]
            file.write(struct.pack("<IIII", seconds, rest, len(captured), len(frame)) + captured)
    return str(path)
