"""Inputs to start from: captures of every link type, header, tunnel and block that the readers know, made by code.

The real captures beside the checkout are read when fuzzing starts, cut to their first packets; they are kept nowhere.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator

from packet_builders import Packet, PcapLayout, PcapngSection, ethernet, ipv4, ipv6, tcp, udp

from fuzz import SHARED_DATA

__all__ = ["capture_seeds", "compressed_seeds", "link_frames", "packets"]

_START = 1_700_000_000_000_000_000
_MS = 1_000_000
_REAL_BYTES = 3000


def _tcp_timestamps(value: int, echo: int) -> bytes:
    return b"\1\1" + struct.pack("!BBII", 8, 10, value, echo)


def _gre(flags: int, kind: int, fields: bytes, body: bytes) -> bytes:
    return struct.pack("!HH", flags, kind) + fields + body


def packets() -> list[bytes]:
    """IP packets, one for each header and tunnel that the decoder opens."""
    inside = ipv4(udp(b"inside"), source="192.168.0.1", destination="192.168.0.2")
    inside_6 = ipv6(tcp(b"inside"), 6)
    frame = ethernet(inside)
    gtp = b"\x30\xff" + struct.pack("!HI", len(inside), 7) + inside
    gtp_extended = b"\x34\xff" + struct.pack("!HIHBB", len(inside), 7, 1, 0, 0x85) + b"\1\0\0\0" + inside
    fragments = [ipv4(udp(bytes(24)), fragment=0x2000), ipv4(bytes(16), fragment=4)]
    first = struct.pack("!BBHI", 17, 0, 1, 9) + udp(bytes(16))
    later = struct.pack("!BBHI", 17, 0, 3 << 3, 9) + bytes(8)
    return [
        inside,
        inside_6,
        ipv4(tcp(b"x" * 9, options=_tcp_timestamps(5, 6)), 6, options=b"\1\1\1\0"),
        ipv4(tcp(options=b"\5\22" + struct.pack("!IIII", 1, 2, 5, 9)), 6),
        ipv4(b"\x08\0\0\0\0\1\0\2ping", 1),
        ipv6(b"\x80\0\0\0\0\1\0\2ping", 58),
        ipv4(struct.pack("!HHII", 5, 6, 7, 8) + bytes(16), 132),
        ipv6(b"\x3c\0" + bytes(6) + b"\x33\0" + bytes(6) + b"\x11\2" + bytes(14) + udp(), 0),
        *fragments,
        ipv6(first, 44),
        ipv6(later, 44),
        ipv4(inside, 4),
        ipv4(inside_6, 41),
        ipv4(_gre(0, 0x0800, b"", inside), 47),
        ipv4(_gre(0xB000, 0x86DD, bytes(12), inside_6), 47),
        ipv4(_gre(0x1000, 0x88BE, bytes(12), frame), 47),
        ipv4(_gre(0x1000, 0x22EB, bytes(15) + b"\1" + bytes(8), frame), 47),
        ipv4(_gre(0x2001, 0x880B, bytes(4), b"\xff\x03\x00\x21" + inside), 47),
        ipv4(udp(b"\x08" + bytes(7) + frame, 5, 4789)),
        ipv4(udp(gtp, 2152, 2152)),
        ipv4(udp(gtp_extended, 1, 2152)),
        ipv4(struct.pack("!I", 16 << 12 | 0x1FF) + inside, 137),
        ipv4(b"", total=0),
    ]


def link_frames() -> dict[int, list[bytes]]:
    """Frames by link type; each type in the decoder's table at least once."""
    inside, inside_6 = packets()[:2]
    pppoe = b"\x11\0\0\1" + struct.pack("!H", len(inside) + 2) + b"\x00\x21" + inside
    mpls = struct.pack("!II", 16 << 12, 17 << 12 | 0x1FF)
    llc = ethernet(b"\xaa\xaa\x03\0\0\0\x08\x00" + inside, len(inside) + 8)
    tagged = [ethernet(inside, tags=[(0x88A8, 5), (0x8100, 6), (0x9100, 7), (0x8100, 8), (0x8100, 9)])]
    frames = {
        1: [
            *(ethernet(packet, 0x86DD if packet[0] >> 4 == 6 else 0x0800) for packet in packets()),
            *tagged,
            ethernet(mpls + inside, 0x8847),
            ethernet(mpls + bytes(4) + ethernet(inside_6, 0x86DD), 0x8848),
            ethernet(pppoe, 0x8864),
            ethernet(bytes(28), 0x0806),
            llc,
        ],
        0: [struct.pack("<I", 2) + inside, struct.pack(">I", 30) + inside_6],
        108: [struct.pack(">I", 2) + inside, struct.pack(">I", 24) + inside_6],
        9: [b"\xff\x03\x00\x21" + inside, b"\x21" + inside, b"\x02\x81" + mpls + inside],
        50: [b"\x0f\0\x08\0" + inside, b"\xff\x03\x00\x57" + inside_6],
        51: [pppoe],
        104: [b"\x0f\0\x08\0" + inside],
        113: [bytes(14) + b"\x08\0" + inside],
        166: [b"\1\3\x00\x21" + inside],
        228: [inside],
        229: [inside_6],
        276: [b"\x86\xdd" + bytes(18) + inside_6],
    }
    frames |= {link: [inside, inside_6] for link in (12, 14, 101)}
    return frames | {link: [bytes(40)] for link in (195, 215, 230, 283, 511, 65535)}


def _conversation() -> list[Packet]:
    """A TCP connection with MQTT, timestamps, a retransmission and SACK; then a ping."""
    client, server = ("10.0.0.1", 4000), ("10.0.0.2", 1883)
    publish = b"\x32\x07\0\1t\0\5hi"
    segments = [
        (client, 0x02, 100, 0, b"", _tcp_timestamps(1, 0)),
        (server, 0x12, 500, 101, b"", _tcp_timestamps(9, 1)),
        (client, 0x10, 101, 501, b"", _tcp_timestamps(2, 9)),
        (client, 0x18, 101, 501, publish, _tcp_timestamps(3, 9)),
        (server, 0x18, 501, 101 + len(publish), b"\x40\x02\0\5", _tcp_timestamps(10, 3)),
        (client, 0x18, 110, 505, b"\xc0\0", b""),
        (client, 0x18, 110, 505, b"\xc0\0", b""),
        (server, 0x10, 505, 110, b"", b"\5\12" + struct.pack("!II", 110, 112)),
        (server, 0x18, 505, 112, b"\xd0\0", b""),
        (client, 0x11, 112, 507, b"", b""),
        (server, 0x14, 507, 113, b"", b""),
    ]
    found = []
    for number, (sender, flags, seq, ack, payload, options) in enumerate(segments):
        other = server if sender is client else client
        segment = tcp(payload, sender[1], other[1], options, seq=seq, ack=ack, flags=flags)
        found.append(Packet(ethernet(ipv4(segment, 6, sender[0], other[0])), _START + number * _MS))
    echo = struct.pack("!HHH", 0, 7, 1)
    for kind, ends in ((8, ("10.0.0.1", "10.0.0.2")), (0, ("10.0.0.2", "10.0.0.1"))):
        found.append(Packet(ethernet(ipv4(struct.pack("!BB", kind, 0) + echo, 1, *ends)), _START + 20 * _MS + kind))
    return found


def _services() -> list[Packet]:
    """A DNS query and its answer, and a QUIC connection that shows that it spins."""
    question = b"\3www\7example\3org\0\0\1\0\1"
    query, answer = (struct.pack("!HHHHHH", 7, flags, 1, 0, 0, 0) + question for flags in (0x100, 0x8180))
    initial = b"\xc0\0\0\0\1\2ab\2cd\1t\4data"
    handshake = b"\xe0\0\0\0\1\2ab\2cd\4data"
    sent = [(53, False, query), (53, True, answer + b"\xc0\x0c"), (443, False, initial), (443, True, handshake + b"@")]
    for turn in range(16):
        value = bytes([0x40 | (turn + 1) % 2 << 5])
        sent += [(443, is_server, value) for is_server in (False, False, True, True)]
    found = []
    for number, (port, is_server, payload) in enumerate(sent):
        ports, ends = (4000, port), ("10.0.0.1", "10.0.0.2")
        datagram = udp(payload, *(ports[::-1] if is_server else ports))
        frame = ethernet(ipv4(datagram, 17, *(ends[::-1] if is_server else ends)))
        found.append(Packet(frame, _START + number * _MS))
    return found


def _sections() -> Iterator[bytes]:
    frame = ethernet(packets()[0])
    for big in (False, True):
        section = PcapngSection(big=big).interface(snap=96).interface(101, resolution=9, offset=-5)
        section.enhanced(frame, 1_700_000_000_000_000).obsolete(packets()[0], 2 * 10**18, 1).simple(frame)
        section.block(5, bytes(12)).block(0xBAD, b"unknown").interface(113, resolution=0x80 | 33)
        yield section.enhanced(bytes(14) + b"\x08\0" + packets()[0], 7 << 33, 2, wire=2000).to_bytes()
        conversation = PcapngSection(big=big).interface(resolution=9)
        for packet in _conversation():
            conversation.enhanced(packet.data, packet.time_ns)
        yield conversation.to_bytes()
    farthest = PcapngSection().interface(resolution=0).interface(resolution=9, offset=-(1 << 62))
    request, reply = (packet.data for packet in _conversation()[-2:])
    yield farthest.enhanced(request, 1 << 62, 0).enhanced(reply, 5, 1).enhanced(request, 9, 1).to_bytes()
    yield PcapngSection().interface().to_bytes() + PcapngSection(big=True).interface(0).to_bytes()


def _real_captures() -> Iterator[bytes]:
    for path in sorted((SHARED_DATA / "captures").glob("*")):
        whole = path.read_bytes()
        start = gzip.decompress(whole) if path.suffix == ".gz" else whole
        yield start[:_REAL_BYTES]
        if len(start) > _REAL_BYTES:
            yield start[: 4 * _REAL_BYTES]


def capture_seeds() -> Iterator[bytes]:
    """Capture files of all kinds, a few packets each, and the first bytes of the real ones."""
    for link, frames in link_frames().items():
        for start in range(0, len(frames), 3):
            some = [Packet(data, _START + n * _MS, len(data) + n) for n, data in enumerate(frames[start : start + 3])]
            yield PcapLayout(link=link, big=bool(link & 1), nanoseconds=bool(start & 1)).write(some)
    for layout in (PcapLayout(), PcapLayout(modified=True), PcapLayout(version=(2, 2), big=True)):
        yield layout.write(_conversation())
    yield PcapLayout().write(_services())
    yield from _sections()
    yield from _real_captures()


def compressed_seeds() -> Iterator[bytes]:
    """Small captures, plain, in gzip (one and two members) and in Zstandard."""
    import zstandard

    plain = PcapLayout().write(_conversation())
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    for capture in (plain, *_sections()):
        yield capture
        yield gzip.compress(capture, mtime=0)
        yield compressor.compress(capture)
    half = len(plain) // 2
    yield gzip.compress(plain[:half], mtime=0) + gzip.compress(plain[half:], mtime=0)
    yield b"\x50\x2a\x4d\x18\2\0\0\0hi" + compressor.compress(plain[:half]) + compressor.compress(plain[half:])
    yield gzip.compress(plain + bytes(1 << 20), mtime=0)
