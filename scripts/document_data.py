"""The files that the documents' examples are about: real captures, traces and maps, and captures made from a seed.

``python -m scripts.document_data FOLDER`` puts them into a folder: links to the data that `SOJOURN_DATA` names, and
beside them captures that are generated, with the packets that a sender and a receiver would see.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np

from sojourn.lab.two_point import make_two_point_world

START_NS = 1_794_700_000_000_000_000
EF, BEST_EFFORT = 46, 0


@dataclass(frozen=True)
class Datagram:
    """A UDP datagram that passes an observation point."""

    time_ns: int
    source: IPv4Address
    source_port: int
    destination: IPv4Address
    destination_port: int
    payload: bytes
    number: int
    dscp: int = BEST_EFFORT

    def frame(self) -> bytes:
        udp = struct.pack("!HHHH", self.source_port, self.destination_port, 8 + len(self.payload), 0) + self.payload
        head = struct.pack(
            "!BBHHHBBH4s4s",
            0x45,
            self.dscp << 2,
            20 + len(udp),
            self.number & 0xFFFF,
            0x4000,
            63,
            17,
            0,
            self.source.packed,
            self.destination.packed,
        )
        total = sum(struct.unpack("!10H", head))
        total = (total & 0xFFFF) + (total >> 16)
        checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        return bytes(12) + b"\x08\x00" + head[:10] + struct.pack("!H", checksum) + head[12:] + udp


def make_data(folder: Path, shared: Path) -> None:
    """All files that an example may name."""
    for file in _shared_files(shared):
        (folder / file.name).symlink_to(file)
    _two_points(folder)
    _translation(folder)
    _resolvers(folder)


def _shared_files(shared: Path) -> Iterator[Path]:
    yield from (shared / "two-point").glob("*.gz")
    yield from (shared / "captures").iterdir()
    yield from (shared / "collection").glob("*.gz")
    yield from (shared / "topologies").rglob("*.*")


def _two_points(folder: Path) -> None:
    """``leaf.pcap``, ``spine.pcap``: 300 flows through one queue, then over a short path or a long one."""
    world = make_two_point_world(seed=19, flows=300, packets=40_000, duration_ns=5_000_000_000, load=0.75)
    for name, batch in (("leaf.pcap", world.sender), ("spine.pcap", world.receiver)):
        columns = zip(batch.flow_id.tolist(), batch.packet_id.tolist(), batch.time_ns.tolist(), strict=True)
        keys = world.keys
        _write(
            folder / name,
            [
                Datagram(
                    time_ns=time_ns,
                    source=IPv4Address(str(keys[flow].src_ip)),
                    source_port=keys[flow].src_port,
                    destination=IPv4Address(str(keys[flow].dest_ip)),
                    destination_port=keys[flow].dest_port,
                    payload=packet.to_bytes(8, "big") * 4,
                    number=packet,
                    dscp=EF if flow % 5 == 0 else BEST_EFFORT,
                )
                for flow, packet, time_ns in columns
            ],
        )


def _translation(folder: Path) -> None:
    """``inside.pcap``, ``outside.pcap``: ten hosts behind one address, 1.2 ms through the device, one flow 9 ms."""
    random = np.random.default_rng(20)
    inside, outside = [], []
    for number in range(6_000):
        host = number % 10
        payload = random.bytes(40)
        sent = START_NS + number * 400_000
        datagram = Datagram(
            sent, IPv4Address(f"192.168.1.{10 + host}"), 40_000, IPv4Address("198.51.100.9"), 443, payload, number
        )
        inside.append(datagram)
        if number % 250 == 7:
            continue
        delay = (9_000_000 if host == 3 else 1_200_000) + int(random.exponential(150_000))
        outside.append(
            replace(datagram, time_ns=sent + delay, source=IPv4Address("203.0.113.7"), source_port=20_000 + host)
        )
    _write(folder / "inside.pcap", inside)
    _write(folder / "outside.pcap", outside)


def _resolvers(folder: Path) -> None:
    """``dns.pcap``: a client asks two resolvers; one is near, the other slow and silent now and then."""
    random = np.random.default_rng(21)
    client = IPv4Address("10.0.0.5")
    packets = []
    for number in range(800):
        server, mean_ns = (("10.0.0.1", 2e6), ("9.9.9.9", 38e6))[number % 2]
        question = b"\5host%d" % (number % 7) + b"\7example\3com\0" + b"\0\1\0\1"
        asked = START_NS + number * 25_000_000
        query = struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + question
        packets.append(Datagram(asked, client, 50_000, IPv4Address(server), 53, query, number))
        if number % 40 == 39:
            continue
        answer = struct.pack("!HHHHHH", number, 0x8180, 1, 0, 0, 0) + question
        answered = asked + int(random.gamma(4, mean_ns / 4))
        packets.append(Datagram(answered, IPv4Address(server), 53, client, 50_000, answer, number))
    _write(folder / "dns.pcap", packets)


def _write(path: Path, packets: Sequence[Datagram]) -> None:
    """A pcap file with times in nanoseconds, in order of time."""
    parts = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1)]
    for packet in sorted(packets, key=lambda packet: packet.time_ns):
        frame = packet.frame()
        parts.append(struct.pack("<IIII", *divmod(packet.time_ns, 10**9), len(frame), len(frame)) + frame)
    path.write_bytes(b"".join(parts))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or "SOJOURN_DATA" not in os.environ:
        print("usage: SOJOURN_DATA=FOLDER python -m scripts.document_data FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    make_data(folder, Path(os.environ["SOJOURN_DATA"]).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
