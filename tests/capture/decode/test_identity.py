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
from sojourn.capture.decode.ids import identity_bytes_for
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
