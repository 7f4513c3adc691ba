"""Decoding: link types, tags, tunnels, fragments; what cannot be decoded is counted by reason."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packet_builders import Packet, ethernet, frames_of, ipv4, ipv6, tcp, udp

from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.core.errors import MismatchError

FLOW = "10.0.0.1:1000 > 10.0.0.2:2000 udp"
FLOW_6 = "[2001:db8::1]:1000 > [2001:db8::2]:2000 udp"
PACKET, PACKET_6 = ipv4(udp()), ipv6(udp())
MPLS = struct.pack("!II", 16 << 12 | 64, 17 << 12 | 0x100 | 64)
PPPOE = b"\x11\0\0\1" + struct.pack("!H", 2 + len(PACKET))


def decoded(*frames: bytes | Packet, link: int = 1, inner: bool = False) -> Decoder:
    decoder = Decoder(DecodeOptions(inner=inner))
    decoder.decode(frames_of(frames, link))
    return decoder


def flows_of(decoder: Decoder) -> dict[str, int]:
    table = decoder.flows
    return dict(zip(map(str, table.keys()), table.packets.tolist(), strict=True))


@pytest.mark.parametrize(
    ("link", "frame", "flow"),
    [
        (1, ethernet(PACKET), FLOW),
        (1, ethernet(PACKET_6, 0x86DD), FLOW_6),
        (1, ethernet(PACKET, tags=[(0x8100, 5)]), FLOW),
        (1, ethernet(PACKET, tags=[(0x88A8, 5), (0x9100, 6), (0x8100, 7)]), FLOW),
        (1, ethernet(MPLS + PACKET, 0x8847), FLOW),
        (1, ethernet(MPLS + PACKET_6, 0x8848), FLOW_6),
        (1, ethernet(MPLS + bytes(4) + ethernet(PACKET), 0x8847), FLOW),
        (1, ethernet(PPPOE + b"\0\x21" + PACKET, 0x8864), FLOW),
        (1, ethernet(PPPOE + b"\x57" + PACKET_6, 0x8864), FLOW_6),
        (1, ethernet(PPPOE + b"\x02\x81" + MPLS + PACKET, 0x8864), FLOW),
        (1, ethernet(b"\xaa\xaa\x03\0\0\0\x08\0" + PACKET, 60), FLOW),
        (113, bytes(14) + b"\x08\0" + PACKET, FLOW),
        (276, b"\x86\xdd" + bytes(18) + PACKET_6, FLOW_6),
        (0, struct.pack("<I", 2) + PACKET, FLOW),
        (0, struct.pack(">I", 2) + PACKET, FLOW),
        (0, struct.pack("<I", 30) + PACKET_6, FLOW_6),
        (108, struct.pack(">I", 24) + PACKET_6, FLOW_6),
        (101, PACKET, FLOW),
        (12, PACKET_6, FLOW_6),
        (14, PACKET, FLOW),
        (228, PACKET, FLOW),
        (229, PACKET_6, FLOW_6),
        (9, b"\xff\x03\0\x21" + PACKET, FLOW),
        (9, b"\x21" + PACKET, FLOW),
        (50, b"\xff\x03\0\x57" + PACKET_6, FLOW_6),
        (50, b"\x0f\0\x08\0" + PACKET, FLOW),
        (51, PPPOE + b"\0\x21" + PACKET, FLOW),
        (104, b"\x0f\0\x08\0" + PACKET, FLOW),
    ],
)
def test_every_link_type_leads_to_the_packet(link: int, frame: bytes, flow: str) -> None:
    decoder = decoded(frame, link=link)
    assert flows_of(decoder) == {flow: 1}
    assert decoder.ignored == {}
    for size in range(len(frame)):
        cut = decoded(Packet(frame[:size], length=len(frame)), link=link)
        assert cut.ip_packets + sum(cut.ignored.values()) == 1


@pytest.mark.parametrize(
    ("link", "frame", "reason"),
    [
        (147, PACKET, "unsupported link type"),
        (100_000, PACKET, "unsupported link type"),
        (-1, PACKET, "unsupported link type"),
        (195, PACKET, "802.15.4 frame (unsupported)"),
        (230, PACKET, "802.15.4 frame (unsupported)"),
        (1, b"short", "link header cut short"),
        (1, ethernet(bytes(28), 0x0806), "arp"),
        (1, ethernet(bytes(40), 40), "llc frame without ip"),
        (1, ethernet(b"\x11\xa7\0\0\0\0", 0x8863), "ppp or pppoe control"),
        (1, ethernet(PPPOE + b"\xc0\x21" + bytes(20), 0x8864), "ppp or pppoe control"),
        (1, ethernet(MPLS + b"\x99" * 40, 0x8847), "mpls payload without ip"),
        (1, ethernet(bytes(40), 0x88CC), "other network protocol"),
        (1, ethernet(PACKET, tags=[(0x8100, 1)] * 30), "too many nested headers"),
        (1, ethernet(PACKET[:19]), "ip header cut short"),
        (1, ethernet(PACKET_6[:39], 0x86DD), "ip header cut short"),
        (1, ethernet(b"\x44" + PACKET[1:]), "ip header malformed"),
        (1, ethernet(b"\x65" + PACKET[1:]), "ip header malformed"),
        (1, ethernet(ipv4(udp(), total=19)), "ip header malformed"),
        (1, ethernet(b"\x45" + PACKET_6[1:], 0x86DD), "ip header malformed"),
    ],
)
def test_what_cannot_be_decoded_is_counted_by_reason(link: int, frame: bytes, reason: str) -> None:
    decoder = decoded(frame, link=link)
    assert decoder.ignored == {reason: 1}
    assert (decoder.packets, decoder.ip_packets) == (1, 0)


GRE_KEY = struct.pack("!HHI", 0x2000, 0x0800, 7)
VXLAN = b"\x08\0\0\0\0\0\x2a\0"
GTP = struct.pack("!BBHI", 0x30, 0xFF, 0, 1)
GTP_EXTENDED = struct.pack("!BBHIHBB", 0x36, 0xFF, 0, 1, 9, 0, 0x85) + b"\1\0\0\0"


@pytest.mark.parametrize(
    ("outer", "flow"),
    [
        (ipv4(PACKET, 4), FLOW),
        (ipv4(PACKET_6, 41), FLOW_6),
        (ipv4(MPLS + PACKET, 137), FLOW),
        (ipv4(b"\0\0\x08\0" + PACKET, 47), FLOW),
        (ipv4(GRE_KEY + PACKET, 47), FLOW),
        (ipv4(b"\xb0\0\x86\xdd" + bytes(12) + PACKET_6, 47), FLOW_6),
        (ipv4(b"\0\0\x65\x58" + ethernet(PACKET), 47), FLOW),
        (ipv4(b"\x10\0\x88\xbe" + bytes(12) + ethernet(PACKET), 47), FLOW),
        (ipv4(b"\0\0\x88\xbe" + ethernet(PACKET), 47), FLOW),
        (ipv4(b"\x10\0\x22\xeb" + bytes(16) + ethernet(PACKET), 47), FLOW),
        (ipv4(b"\x30\x81\x88\x0b" + bytes(12) + b"\xff\x03\0\x21" + PACKET, 47), FLOW),
        (ipv4(udp(VXLAN + ethernet(PACKET, tags=[(0x8100, 3)]), destination=4789)), FLOW),
        (ipv4(udp(GTP + PACKET, destination=2152)), FLOW),
        (ipv4(udp(GTP_EXTENDED + PACKET_6, destination=2152)), FLOW_6),
        (ipv4(ipv4(b"\0\0\x08\0" + PACKET, 47), 4), FLOW),
    ],
)
def test_tunnels_are_opened_only_when_asked(outer: bytes, flow: str) -> None:
    frame = ethernet(outer)
    assert flows_of(decoded(frame, inner=True)) == {flow: 1}
    assert flow not in flows_of(decoded(frame))
    inside = decoded(frame, inner=True).decode(frames_of([frame]))
    alone = ethernet(PACKET) if flow == FLOW else ethernet(PACKET_6, 0x86DD)
    plain = Decoder().decode(frames_of([alone]))
    assert inside.packet_id.tolist() == plain.packet_id.tolist()
    assert inside.size_bytes.tolist() == plain.size_bytes.tolist()
    for size in range(14, len(frame)):
        cut = decoded(Packet(frame[:size], length=len(frame)), inner=True)
        assert cut.ip_packets + sum(cut.ignored.values()) == 1


def test_a_tunnel_with_something_else_inside_stays_a_flow_of_its_own() -> None:
    decoder = decoded(ethernet(ipv4(b"\0\0\x88\xcc" + bytes(30), 47)), inner=True)
    assert flows_of(decoder) == {"10.0.0.1 > 10.0.0.2 gre": 1}
    assert list(decoder.notes.values()) == [1]


def test_nesting_is_bounded() -> None:
    packet = PACKET
    for _ in range(30):
        packet = ipv4(packet, 4)
    decoder = decoded(ethernet(packet), inner=True)
    assert flows_of(decoder) == {"10.0.0.1 > 10.0.0.2 4": 1}


def fragments_6(offset: int, more: int, body: bytes) -> bytes:
    return ethernet(ipv6(struct.pack("!BBHI", 17, 0, offset << 3 | more, 99) + body, 44), 0x86DD)


def test_later_fragments_inherit_the_flow_of_their_first() -> None:
    parts = [
        ethernet(ipv4(udp(bytes(24)), fragment=0x2000)),
        ethernet(ipv4(bytes(16), fragment=0x2004)),
        ethernet(ipv4(bytes(8), fragment=6)),
        fragments_6(0, 1, udp(bytes(24))),
        fragments_6(4, 0, bytes(10)),
    ]
    decoder = decoded(*parts)
    assert flows_of(decoder) == {FLOW: 3, FLOW_6: 2}
    assert decoder.notes == {"later fragments counted with the flow of their first": 3}


def test_a_later_fragment_alone_has_no_ports() -> None:
    first = ethernet(ipv4(udp(bytes(24)), fragment=0x2000))
    later = ethernet(ipv4(bytes(8), fragment=6))
    other = ethernet(ipv4(bytes(8), fragment=6, identification=8))
    moment = 10**18
    decoder = decoded(
        Packet(later, moment),
        Packet(first, moment),
        Packet(other, moment),
        Packet(later, moment + 31 * 10**9),
    )
    assert flows_of(decoder) == {"10.0.0.1 > 10.0.0.2 udp": 3, FLOW: 1}
    assert decoder.notes == {"later fragments whose first was not seen (ports 0)": 3}


def test_fragments_are_remembered_from_chunk_to_chunk() -> None:
    decoder = decoded(ethernet(ipv4(udp(bytes(24)), fragment=0x2000)))
    decoder.decode(frames_of([ethernet(ipv4(bytes(8), fragment=4))]))
    assert flows_of(decoder) == {FLOW: 2}


def test_extension_headers_are_walked() -> None:
    options = b"\x2b\0" + bytes(6)
    routing = b"\x33\0" + bytes(6)
    authentication = b"\x3c\x01" + bytes(10)
    destination = b"\x11\1" + bytes(14)
    packet = ipv6(options + routing + authentication + destination + udp(), 0)
    assert flows_of(decoded(ethernet(packet, 0x86DD))) == {FLOW_6: 1}


def test_a_packet_without_captured_ports_is_counted_with_ports_0() -> None:
    decoder = decoded(Packet(ethernet(PACKET)[:36], length=90))
    assert flows_of(decoder) == {"10.0.0.1 > 10.0.0.2 udp": 1}
    assert decoder.notes == {"packets whose ports were not captured (ports 0)": 1}


def test_a_length_of_0_means_the_rest_of_the_frame() -> None:
    batch = Decoder().decode(frames_of([Packet(ethernet(ipv4(tcp(bytes(50)), 6, total=0)), length=70_000)]))
    assert batch.size_bytes.tolist() == [70_000 - 14]


def test_frames_outside_of_their_buffer_are_never_read() -> None:
    frames = frames_of([ethernet(PACKET)] * 5)
    beyond = np.array([-1, 2**62, len(frames.data) + 1, 0, 3], np.int64)
    sizes = np.array([10, 10, 0, -1, 2**62], np.int64)
    decoder = Decoder()
    assert len(decoder.decode(replace(frames, offset=beyond, captured=sizes))) == 0
    assert decoder.ignored == {"frame outside of its buffer": 5}
    with pytest.raises(MismatchError):
        decoder.decode(replace(frames, link=frames.link[:2]))
    with pytest.raises(MismatchError, match="contiguous"):
        decoder.decode(replace(frames, data=frames.data[::2]))


@settings(max_examples=400)
@given(
    body=st.binary(max_size=120),
    link=st.sampled_from([0, 1, 9, 50, 51, 101, 104, 108, 113, 228, 229, 276]),
    start=st.sampled_from([b"", ethernet(b""), ethernet(b"", 0x86DD), ethernet(MPLS, 0x8847), PACKET, PACKET_6]),
    tunnel=st.sampled_from([b"", PACKET[:20], ipv4(b"", 47), ipv4(GTP, 17), ipv6(b"", 44), ipv6(b"", 0)]),
)
def test_random_frames_are_packets_or_ignored(body: bytes, link: int, start: bytes, tunnel: bytes) -> None:
    decoder = Decoder(DecodeOptions(inner=True))
    batch, transport = decoder.decode_transport(frames_of([start + tunnel + body], link))
    assert len(batch) == len(transport) == decoder.ip_packets
    assert decoder.packets == decoder.ip_packets + sum(decoder.ignored.values())
    assert bool((transport.payload_captured >= 0).all() and (transport.payload_bytes >= 0).all())


def test_a_batch_of_one_packet_survives_the_next() -> None:
    decoder = Decoder()
    first = decoder.decode(replace(frames_of([ethernet(PACKET)]), time_ns=np.array([111])))
    decoder.decode(replace(frames_of([ethernet(PACKET_6, 0x86DD)]), time_ns=np.array([222])))
    assert first.time_ns.tolist() == [111]
    assert first.size_bytes.tolist() == [len(PACKET)]
