"""Packet identity: the documented bytes, the same at both ends, different between packets."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from packet_builders import Packet, ethernet, frames_of, ipv4, ipv6, tcp, udp

from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.capture.decode.ids import Identity, identity_bytes_for
from sojourn.core.errors import ParameterError

CHECKSUMS = {1: (2, 4), 6: (16, 18), 17: (6, 8), 33: (6, 8), 58: (2, 4), 132: (8, 12), 136: (6, 8)}


def ids_of(*frames: bytes | Packet, **options: int) -> list[int]:
    decoder = Decoder(DecodeOptions(**options))  # type: ignore[arg-type]
    return decoder.decode(frames_of(frames)).packet_id.tolist()


def model(packet: bytes, identity_bytes: int = 68) -> int:
    """The id as the documentation tells it, for packets without IPv6 extension headers."""
    if packet[0] >> 4 == 4:
        total = int.from_bytes(packet[2:4], "big")
        field = int.from_bytes(packet[6:8], "big")
        fragment = (field & 0x1FFF) | (0x8000 if field & 0x2000 else 0)
        number, protocol = int.from_bytes(packet[4:6], "big"), packet[9]
        addresses, header = packet[12:20], 4 * (packet[0] & 15)
    else:
        total = int.from_bytes(packet[4:6], "big") + 40
        fragment, number, protocol = 0, 0, packet[6]
        addresses, header = packet[8:40], 40
    prefix = bytearray(packet[:total][:identity_bytes][header:])
    if not fragment & 0x1FFF and protocol in CHECKSUMS:
        first, last = CHECKSUMS[protocol]
        for at in range(first, min(last, len(prefix))):
            prefix[at] = 0
    head = struct.pack("!BBHIQ", packet[0] >> 4, protocol, fragment, total, number)
    return xxhash.xxh64_intdigest(head + addresses + bytes(prefix))


@given(
    body=st.binary(max_size=120),
    protocol=st.sampled_from([1, 6, 17, 33, 47, 58, 89, 132, 136]),
    fragment=st.sampled_from([0, 0x4000, 0x2000, 0x2005, 9]),
    options=st.sampled_from([b"", b"\1\1\1\1", bytes(40)]),
    identity_bytes=st.integers(20, 200),
)
def test_the_id_is_the_documented_hash_for_ipv4(
    body: bytes, protocol: int, fragment: int, options: bytes, identity_bytes: int
) -> None:
    packet = ipv4(body, protocol, fragment=fragment, options=options)
    assert ids_of(ethernet(packet), identity_bytes=identity_bytes) == [model(packet, identity_bytes)]


@given(body=st.binary(max_size=120), protocol=st.sampled_from([6, 17, 58, 89, 132]), size=st.integers(40, 200))
def test_the_id_is_the_documented_hash_for_ipv6(body: bytes, protocol: int, size: int) -> None:
    packet = ipv6(body, protocol)
    assert ids_of(ethernet(packet, 0x86DD), identity_bytes=size) == [model(packet, size)]


@given(cut=st.integers(34, 100), body=st.binary(min_size=60, max_size=60))
def test_a_short_capture_hashes_what_it_has(cut: int, body: bytes) -> None:
    packet = ipv4(tcp(body), 6)
    frame = ethernet(packet)
    assert ids_of(Packet(frame[:cut], length=len(frame))) == [model(packet[: cut - 14])]


BASE = ipv4(tcp(b"payload"), 6)


@pytest.mark.parametrize(
    "same",
    [
        ethernet(ipv4(tcp(b"payload"), 6, ttl=3)),
        ethernet(ipv4(tcp(b"payload"), 6, tos=0xFF)),
        ethernet(ipv4(tcp(b"payload", checksum=0), 6)),
        ethernet(ipv4(tcp(b"payload"), 6, fragment=0x4000)),
        ethernet(BASE, tags=[(0x8100, 9)]),
        ethernet(BASE, tags=[(0x88A8, 9), (0x8100, 8)]),
        ethernet(BASE) + bytes(11),
        Packet(ethernet(BASE + b"\xaa" * 6)),
    ],
)
def test_what_changes_in_flight_does_not_change_the_id(same: bytes | Packet) -> None:
    assert ids_of(same) == ids_of(ethernet(BASE))


@pytest.mark.parametrize(
    "other",
    [
        ipv4(tcp(b"payloaD"), 6),
        ipv4(tcp(b"payload", seq=9), 6),
        ipv4(tcp(b"payload", flags=0x18), 6),
        ipv4(tcp(b"payload"), 6, identification=8),
        ipv4(tcp(b"payload"), 6, source="10.0.0.3"),
        ipv4(tcp(b"payload"), 6, fragment=1),
        ipv4(tcp(b"payload"), 17),
        ipv4(tcp(b"payload") + b"\0", 6),
    ],
)
def test_a_different_packet_has_a_different_id(other: bytes) -> None:
    assert ids_of(ethernet(other)) != ids_of(ethernet(BASE))


def test_hop_limit_and_flow_label_do_not_change_the_id() -> None:
    packet = ipv6(udp())
    other = bytearray(ipv6(udp(), hops=1))
    other[1:4] = b"\x3b\xcd\xef"
    assert ids_of(ethernet(bytes(other), 0x86DD)) == ids_of(ethernet(packet, 0x86DD))


def test_captures_of_different_snap_length_agree_with_the_smaller_ones_prefix() -> None:
    rng = np.random.default_rng(5)
    frames = [ethernet(ipv4(tcp(rng.bytes(400), seq=n), 6)) for n in range(50)]
    prefix = identity_bytes_for(96, 64)
    whole = ids_of(*frames, identity_bytes=prefix)
    assert ids_of(*(Packet(f[:64], length=len(f)) for f in frames), identity_bytes=prefix) == whole
    assert ids_of(*(Packet(f[:96], length=len(f)) for f in frames), identity_bytes=prefix) == whole
    assert ids_of(*(Packet(f[:64], length=len(f)) for f in frames)) != ids_of(*frames)


def test_the_default_suits_a_96_byte_snap_in_two_vlans() -> None:
    packet = ipv4(tcp(bytes(400)), 6)
    tagged = ethernet(packet, tags=[(0x88A8, 1), (0x8100, 2)])
    assert ids_of(Packet(tagged[:96], length=len(tagged))) == ids_of(ethernet(packet))


def test_a_snap_length_that_shows_no_transport_is_refused() -> None:
    with pytest.raises(ParameterError, match="too short"):
        identity_bytes_for(30)
    with pytest.raises(ParameterError, match="identity_bytes"):
        DecodeOptions(identity_bytes=3)


def payload_model(packet: bytes, identity_bytes: int, *, with_number: bool) -> int:
    """The payload's id as the documentation tells it, for IPv4."""
    total, field = int.from_bytes(packet[2:4], "big"), int.from_bytes(packet[6:8], "big")
    fragment = (field & 0x1FFF) | (0x8000 if field & 0x2000 else 0)
    protocol, header = packet[9], 4 * (packet[0] & 15)
    number = int.from_bytes(packet[4:6], "big") if with_number else 0
    body, said, start = packet[header:total], bytes(16), header
    if not fragment & 0x1FFF:
        if protocol == 6 and len(body) >= 14:
            said = (body[4:12] + bytes([body[13] & 0x3F])).ljust(16, b"\0")
            start += max(body[12] >> 4 << 2, 20)
        elif protocol in (1, 17, 58, 136):
            start += 8
            if protocol in (1, 58) and len(body) >= 8:
                echo = body[6:8] if body[0] in (0, 8, 128, 129) else b""
                said = (body[:2] + echo).ljust(16, b"\0")
    head = struct.pack("!BBHIQ", protocol, 0, fragment, max(total - start, 0), number)
    return xxhash.xxh64_intdigest(head + said + packet[:total][:identity_bytes][start:])


@given(
    body=st.binary(max_size=120),
    protocol=st.sampled_from([1, 6, 17, 47, 58, 136]),
    fragment=st.sampled_from([0, 0x4000, 0x2000, 0x2005, 9]),
    options=st.sampled_from([b"", b"\1\1\1\1"]),
    identity_bytes=st.integers(20, 200),
    identity=st.sampled_from([Identity.PAYLOAD, Identity.PAYLOAD_ALONE]),
)
def test_the_payloads_id_is_the_documented_hash(
    body: bytes, protocol: int, fragment: int, options: bytes, identity_bytes: int, identity: Identity
) -> None:
    packet = ipv4(body, protocol, fragment=fragment, options=options)
    expected = payload_model(packet, identity_bytes, with_number=identity is Identity.PAYLOAD)
    assert ids_of(ethernet(packet), identity=identity, identity_bytes=identity_bytes) == [expected]


OUTSIDE = {"source": "192.0.2.1", "destination": "10.0.0.2"}


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (udp(b"numbered 17", 1000, 53), udp(b"numbered 17", 61_000, 53)),
        (tcp(b"data", 1000, 80, seq=7), tcp(b"data", 61_000, 80, seq=7, checksum=1)),
        (tcp(b"", 1000, 80, options=b"\2\4\5\xb4", flags=2), tcp(b"", 61_000, 80, options=b"\2\4\5\x00", flags=2)),
        (b"\x08\0\1\1\0\5\0\7ping", b"\x08\0\2\2\x77\5\0\7ping"),
    ],
    ids=["udp", "tcp", "a lower segment size", "echo"],
)
def test_translation_of_addresses_and_ports_leaves_the_payloads_id(inside: bytes, outside: bytes) -> None:
    protocol = 1 if inside[0] == 8 else 17 if b"numbered" in inside else 6
    before, after = ethernet(ipv4(inside, protocol)), ethernet(ipv4(outside, protocol, ttl=9, **OUTSIDE))
    for identity in (Identity.PAYLOAD, Identity.PAYLOAD_ALONE):
        assert len(set(ids_of(before, after, identity=identity))) == 1
    assert len(set(ids_of(before, after))) == 2


def test_a_new_identification_leaves_the_id_of_the_payload_alone() -> None:
    before, after = (ethernet(ipv4(udp(b"x" * 20), identification=n)) for n in (7, 8))
    assert len(set(ids_of(before, after, identity=Identity.PAYLOAD_ALONE))) == 1
    assert len(set(ids_of(before, after, identity=Identity.PAYLOAD))) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (udp(b"number 1"), udp(b"number 2")),
        (udp(b"short"), udp(b"short!")),
        (tcp(b"same", seq=1), tcp(b"same", seq=5)),
        (tcp(b"", ack=1), tcp(b"", ack=5)),
        (tcp(b"", flags=0x10), tcp(b"", flags=0x11)),
    ],
)
def test_payloads_that_differ_have_different_ids(one: bytes, other: bytes) -> None:
    protocol = 17 if len(one) < 20 else 6
    found = ids_of(*(ethernet(ipv4(body, protocol)) for body in (one, other)), identity=Identity.PAYLOAD_ALONE)
    assert len(set(found)) == 2
