"""Frames and capture files, byte by byte, for worlds that no real capture shows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

import numpy as np

from sojourn.capture.decode.frames import Frames


@dataclass(frozen=True)
class Packet:
    """A captured packet: what a file says about it."""

    data: bytes
    time_ns: int = 1_700_000_000_000_000_000
    length: int | None = None

    @property
    def wire(self) -> int:
        return len(self.data) if self.length is None else self.length


def udp(payload: bytes = b"hello world", source: int = 1000, destination: int = 2000) -> bytes:
    return struct.pack("!HHHH", source, destination, 8 + len(payload), 0xBEEF) + payload


def tcp(
    payload: bytes = b"", source: int = 1000, destination: int = 2000, options: bytes = b"", **fields: int
) -> bytes:
    options += b"\0" * (-len(options) % 4)
    offset = (20 + len(options)) // 4 << 4
    header = struct.pack(
        "!HHIIBBHHH",
        source,
        destination,
        fields.get("seq", 1),
        fields.get("ack", 2),
        offset,
        fields.get("flags", 0x10),
        512,
        fields.get("checksum", 0xABCD),
        0,
    )
    return header + options + payload


def ipv4(
    body: bytes,
    protocol: int = 17,
    source: str = "10.0.0.1",
    destination: str = "10.0.0.2",
    *,
    identification: int = 7,
    fragment: int = 0,
    ttl: int = 64,
    tos: int = 0,
    options: bytes = b"",
    total: int | None = None,
) -> bytes:
    size = 20 + len(options) + len(body) if total is None else total
    first = 0x40 | (20 + len(options)) // 4
    head = struct.pack("!BBHHHBBH", first, tos, size, identification, fragment, ttl, protocol, 0x1234)
    return head + ip_address(source).packed + ip_address(destination).packed + options + body


def ipv6(
    body: bytes,
    protocol: int = 17,
    source: str = "2001:db8::1",
    destination: str = "2001:db8::2",
    hops: int = 64,
) -> bytes:
    head = struct.pack("!IHBB", 6 << 28, len(body), protocol, hops)
    return head + ip_address(source).packed + ip_address(destination).packed + body


def ethernet(body: bytes, kind: int = 0x0800, tags: Sequence[tuple[int, int]] = ()) -> bytes:
    """`tags` are (ether type of the tag, VLAN), outermost first."""
    kinds = [*(tag[0] for tag in tags), kind]
    frame = bytes(12) + struct.pack("!H", kinds[0])
    for (_, vlan), following in zip(tags, kinds[1:], strict=True):
        frame += struct.pack("!HH", 0x6000 | vlan, following)
    return frame + body


def frames_of(packets: Sequence[bytes | Packet], link: int = 1) -> Frames:
    """Frames over one buffer, as a reader would give them."""
    whole = [packet if isinstance(packet, Packet) else Packet(packet) for packet in packets]
    sizes = np.array([len(packet.data) for packet in whole], np.int64)
    return Frames(
        data=np.frombuffer(b"".join(packet.data for packet in whole), np.uint8),
        offset=np.cumsum(sizes) - sizes,
        captured=sizes,
        length=np.array([packet.wire for packet in whole], np.int64),
        time_ns=np.array([packet.time_ns for packet in whole], np.int64),
        link=np.full(len(whole), link, np.int64),
    )


@dataclass(frozen=True)
class PcapLayout:
    """A variant of the pcap format."""

    big: bool = False
    nanoseconds: bool = False
    modified: bool = False
    version: tuple[int, int] = (2, 4)
    snap_length: int = 262144
    link: int = 1

    def write(self, packets: Sequence[Packet]) -> bytes:
        order = ">" if self.big else "<"
        magic = 0xA1B2CD34 if self.modified else 0xA1B23C4D if self.nanoseconds else 0xA1B2C3D4
        parts = [struct.pack(order + "IHHiIII", magic, *self.version, 0, 0, self.snap_length, self.link)]
        for packet in packets:
            seconds, fraction = divmod(packet.time_ns, 10**9)
            ticks = fraction if self.nanoseconds else fraction // 1000
            parts.append(struct.pack(order + "IIII", seconds, ticks, len(packet.data), packet.wire))
            parts.append((bytes(8) if self.modified else b"") + packet.data)
        return b"".join(parts)


@dataclass
class PcapngSection:
    """A section of a pcapng file, block by block."""

    big: bool = False
    blocks: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.block(0x0A0D0D0A, self.pack("IHHq", 0x1A2B3C4D, 1, 0, -1))

    def pack(self, form: str, *values: int) -> bytes:
        return struct.pack((">" if self.big else "<") + form, *values)

    def block(self, kind: int, body: bytes) -> PcapngSection:
        body += bytes(-len(body) % 4)
        length = 12 + len(body)
        self.blocks.append(self.pack("II", kind, length) + body + self.pack("I", length))
        return self

    def option(self, code: int, value: bytes) -> bytes:
        return self.pack("HH", code, len(value)) + value + bytes(-len(value) % 4)

    def interface(self, link: int = 1, snap: int = 0, resolution: int | None = None, offset: int = 0) -> PcapngSection:
        options = self.option(2, b"eth0")
        if resolution is not None:
            options += self.option(9, bytes([resolution]))
        if offset:
            options += self.option(14, self.pack("q", offset))
        return self.block(1, self.pack("HHI", link, 0, snap) + options + self.option(0, b""))

    def enhanced(self, data: bytes, ticks: int, interface: int = 0, wire: int | None = None) -> PcapngSection:
        head = self.pack("IIIII", interface, ticks >> 32, ticks & 0xFFFFFFFF, len(data), wire or len(data))
        return self.block(6, head + data + bytes(-len(data) % 4) + self.option(1, b"a comment"))

    def obsolete(self, data: bytes, ticks: int, interface: int = 0) -> PcapngSection:
        head = self.pack("HHIIII", interface, 3, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
        return self.block(2, head + data)

    def simple(self, data: bytes) -> PcapngSection:
        return self.block(3, self.pack("I", len(data)) + data)

    def to_bytes(self) -> bytes:
        return b"".join(self.blocks)
