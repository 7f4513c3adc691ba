"""Super-packets are split into the packets that were on the wire: the same identities as where these were captured."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packet_builders import Packet, ethernet, frames_of, ipv4, ipv6, tcp, udp

from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.capture.decode.frames import Offload
from sojourn.capture.decode.ids import Identity, held_by_most
from sojourn.capture.decode.segmentation import WireSizes
from sojourn.core.arrays import PacketBatch

FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80
TIMESTAMPS = b"\1\1\x08\x0a" + bytes(range(8))
SACK = TIMESTAMPS + b"\1\1\x05\x0a" + bytes(range(8))


@dataclass(frozen=True)
class Connection:
    """One direction of a TCP connection over a wire that carries packets of `wire` bytes."""

    wire: int = 1500
    version: int = 4
    options: bytes = TIMESTAMPS
    first_id: int = 65_530
    is_numbered: bool = True
    seed: int = 0
    stream: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stream", np.random.default_rng(self.seed).bytes(400_000))

    @property
    def segment(self) -> int:
        return self.wire - (20 if self.version == 4 else 40) - 20 - len(self.options)

    def packet(self, body: bytes, number: int) -> bytes:
        identification = (self.first_id + number) & 0xFFFF if self.is_numbered else 0
        if self.version == 4:
            return ethernet(ipv4(body, 6, identification=identification, fragment=0x4000))
        return ethernet(ipv6(body, 6), 0x86DD)

    def opening(self) -> bytes:
        size = self.wire - (40 if self.version == 4 else 60)
        return self.packet(tcp(flags=0x02, options=struct.pack("!BBH", 2, 4, size)), -1)

    def put(self, start: int, size: int, number: int, flags: int = ACK) -> bytes:
        """The packet of these bytes of the stream, the `number`-th on the wire (or of the first one in it)."""
        body = tcp(
            self.stream[start : start + size], options=self.options, flags=flags, seq=(2**32 - 9000 + start) % 2**32
        )
        return self.packet(body, number)

    def on_the_wire(self, sizes: Sequence[int], flags: int = ACK) -> list[bytes]:
        """What the wire carries of super-packets of these payloads."""
        packets, start = [], 0
        for size in sizes:
            for offset in range(0, size, self.segment):
                now = min(self.segment, size - offset)
                own = flags & ~(0 if offset == 0 else CWR) & ~(0 if offset + now == size else FIN | PSH)
                packets.append(self.put(start + offset, now, len(packets), own))
            start += size
        return packets

    def together(self, sizes: Sequence[int], flags: int = ACK) -> list[bytes]:
        """The super-packets themselves."""
        packets, start, number = [], 0, 0
        for size in sizes:
            packets.append(self.put(start, size, number, flags))
            start += size
            number += -(-size // self.segment)
        return packets


def decoded(
    packets: Sequence[bytes | Packet], wire: WireSizes | None = None, **options: Any
) -> tuple[PacketBatch, Decoder]:
    decoder = Decoder(DecodeOptions(wire=wire or WireSizes(), **options))
    return decoder.decode(frames_of(packets)), decoder


def same(one: PacketBatch, other: PacketBatch) -> bool:
    return all(
        np.array_equal(one.columns()[name], other.columns()[name]) for name in ("packet_id", "flow_id", "size_bytes")
    )


@given(
    wire=st.sampled_from([1500, 1492, 1400, 1280, 9000, 576]),
    version=st.sampled_from([4, 6]),
    options=st.sampled_from([b"", TIMESTAMPS, SACK]),
    first_id=st.sampled_from([1, 65_530, 30_000]),
    flags=st.sampled_from([ACK, ACK | PSH, ACK | FIN | PSH, ACK | CWR | PSH]),
    sizes=st.lists(st.integers(1, 45_000), min_size=1, max_size=6),
    identity=st.sampled_from(list(Identity)),
    identity_bytes=st.sampled_from([40, 68, 120]),
)
def test_split_packets_have_the_identities_of_the_wires(
    wire: int,
    version: int,
    options: bytes,
    first_id: int,
    flags: int,
    sizes: list[int],
    identity: Identity,
    identity_bytes: int,
) -> None:
    one = Connection(wire, version, options, first_id)
    # A capture is looked at from its first packet of more than 1500 bytes on.
    sizes = [max(1500, size) for size in sizes]
    asked: dict[str, Any] = {"identity": identity, "identity_bytes": identity_bytes}
    whole, decoder = decoded([one.opening(), *one.together(sizes, flags)], **asked)
    apart, _ = decoded([one.opening(), *one.on_the_wire(sizes, flags)], **asked)
    assert same(whole, apart)
    assert decoder.wire is not None
    assert decoder.wire.left_packets == 0
    assert decoder.wire_packets == len(whole) == decoder.flows.packets.sum()


def test_both_points_may_put_together_different_packets() -> None:
    one = Connection()
    sent = one.together([one.segment * 40, one.segment * 20])
    received = one.together([one.segment * k for k in (1, 17, 30, 1, 11)])
    first, second = (decoded([one.opening(), *packets])[0] for packets in (sent, received))
    assert same(first, second)


def test_a_flow_that_numbers_nothing_keeps_identification_zero_and_one_that_wraps_does_not() -> None:
    silent = Connection(is_numbered=False)
    sizes = [silent.segment * 10] * 3
    assert same(
        decoded([silent.opening(), *silent.together(sizes)])[0],
        decoded([silent.opening(), *silent.on_the_wire(sizes)])[0],
    )
    wrapping = Connection(first_id=65_536 - 10)  # the second super-packet begins at 0
    assert same(
        decoded([wrapping.opening(), *wrapping.together(sizes)])[0],
        decoded([wrapping.opening(), *wrapping.on_the_wire(sizes)])[0],
    )


def test_packets_of_a_cut_capture_are_told_apart_by_their_headers() -> None:
    one = Connection()
    sizes = [one.segment * 30, one.segment * 9 + 100]
    cut = [Packet(packet[:96], length=len(packet)) for packet in [one.opening(), *one.together(sizes)]]
    whole, decoder = decoded(cut)
    held = held_by_most(decoder.cut, decoder.wire_packets)
    assert held == 52
    apart, _ = decoded([one.opening(), *one.on_the_wire(sizes)], identity_bytes=held)
    assert same(decoded(cut, identity_bytes=held)[0], apart)
    assert len(set(apart.packet_id.tolist())) == len(whole)


@pytest.mark.parametrize("wire", [1500, 9000])
def test_lengths_tell_the_segment_size_where_no_syn_does(wire: int) -> None:
    one = Connection(wire)
    sizes = [one.segment * k for k in (5, 4, 2, 3, 5)] + [one.segment * 3 + 77]
    learnt = WireSizes()
    decoder = Decoder(DecodeOptions(wire=learnt))
    decoder.observe(frames_of(one.together(sizes)))
    assert decoder.wire is not None
    assert decoder.wire.has_long
    whole, _ = decoded(one.together(sizes), decoder.wire)
    assert same(whole, decoded(one.on_the_wire(sizes), decoder.wire)[0])


def test_the_other_points_packets_tell_it_where_the_path_carries_less_than_the_syn_says() -> None:
    one, said = Connection(1400), Connection(1500)
    sizes = [9000, 20_000, 3333]
    here, there = ([said.opening(), *packets] for packets in (one.together(sizes), one.on_the_wire(sizes)))
    looks = []
    for packets in (here, there):
        decoder = Decoder(DecodeOptions(wire=WireSizes()))
        decoder.observe(frames_of(packets))
        assert decoder.wire is not None
        looks.append(decoder.wire)
    assert same(decoded(here, looks[0].joined(looks[1]))[0], decoded(there, looks[1].joined(looks[0]))[0])


def test_packets_that_nothing_tells_the_size_of_are_left_and_counted() -> None:
    one = Connection()
    packets = one.together([30_001, 20_003, 11_111, 40_001])
    batch, decoder = decoded(packets)
    assert decoder.wire is not None
    assert len(batch) == 4
    assert (decoder.wire.split_packets, decoder.wire.left_packets) == (0, 4)


def test_jumbo_frames_and_loopback_are_left_alone() -> None:
    jumbo = Connection(9000)
    packets = [jumbo.opening(), *jumbo.on_the_wire([jumbo.segment * 9 + 5])]
    loopback = Connection(65_535)
    for whole in (packets, packets[1:], [loopback.opening(), *loopback.on_the_wire([65_483, 33_000])]):
        batch, decoder = decoded(whole)
        assert same(batch, Decoder().decode(frames_of(whole)))
        assert decoder.wire is not None
        assert (decoder.wire.split_packets, decoder.wire.left_packets) == (0, 0)


def datagrams(sizes: Sequence[int], segment: int) -> tuple[list[bytes], list[bytes]]:
    """Datagrams of a QUIC sender: as it hands them on, and as the wire carries them."""
    rng = np.random.default_rng(3)
    together, apart = [], []
    for size in sizes:
        body = rng.bytes(size)
        together.append(ethernet(ipv4(udp(body), identification=len(apart))))
        for start in range(0, size, segment):
            apart.append(ethernet(ipv4(udp(body[start : start + segment]), identification=len(apart))))
    return together, apart


def test_datagrams_are_split_by_the_flows_longest_single_ones() -> None:
    together, apart = datagrams([1252] * 4 + [1252 * 5, 1252 * 20, 1252 * 7 + 300, 1252 * 3], 1252)
    decoder = Decoder(DecodeOptions(wire=WireSizes()))
    decoder.observe(frames_of(together))
    assert same(decoded(together, decoder.wire)[0], decoded(apart, decoder.wire)[0])


def test_datagrams_whose_payload_is_not_captured_are_left() -> None:
    together, _ = datagrams([1252] * 4 + [1252 * 20] * 4, 1252)
    cut = [Packet(packet[:96], length=len(packet)) for packet in together]
    batch, decoder = decoded(cut)
    assert decoder.wire is not None
    assert (len(batch), decoder.wire.left_packets) == (8, 4)


def test_keys_are_those_of_split_packets() -> None:
    one = Connection()
    frames = frames_of([one.opening(), *one.together([one.segment * 30])])
    decoder = Decoder(DecodeOptions(wire=WireSizes()))
    batch = decoder.decode(frames)
    rows = np.array([0, 30])
    assert len(batch) == 31
    assert len({str(key) for key in decoder.keys_at(frames, rows)}) == 1


@given(data=st.data())
def test_damaged_super_packets_never_break_it(data: st.DataObject) -> None:
    one = Connection(version=data.draw(st.sampled_from([4, 6])))
    packets = []
    for packet in [one.opening(), *one.together([one.segment * 20] * 3)]:
        damaged = bytearray(packet[: data.draw(st.integers(14, 200))])
        for _ in range(data.draw(st.integers(0, 3))):
            damaged[data.draw(st.integers(12, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        packets.append(Packet(bytes(damaged), length=data.draw(st.integers(len(damaged), 70_000))))
    batch, decoder = decoded(packets)
    assert decoder.wire is not None
    wire = decoder.wire
    assert len(batch) == decoder.ip_packets - wire.split_packets + wire.made_packets


def told(
    packets: Sequence[bytes | Packet], segments: Sequence[int], kind: int = Offload.TCP, **options: Any
) -> tuple[PacketBatch, WireSizes]:
    """Packets as a live capture has them: the kernel tells the size of the segments that each is made of."""
    decoder = Decoder(DecodeOptions(wire=WireSizes(), **options))
    offload = np.array([segment | (kind << 16 if segment else 0) for segment in segments], np.int64)
    batch = decoder.decode(replace(frames_of(packets), offload=offload))
    assert decoder.wire is not None
    return batch, decoder.wire


@given(
    wire=st.sampled_from([1500, 1280, 9000, 576]),
    version=st.sampled_from([4, 6]),
    options=st.sampled_from([b"", TIMESTAMPS, SACK]),
    flags=st.sampled_from([ACK, ACK | FIN | PSH, ACK | CWR | PSH]),
    sizes=st.lists(st.integers(1, 45_000), min_size=1, max_size=6),
    identity_bytes=st.sampled_from([40, 68, 120]),
)
def test_what_the_kernel_tells_needs_no_connections_beginning(
    wire: int, version: int, options: bytes, flags: int, sizes: list[int], identity_bytes: int
) -> None:
    one = Connection(wire, version, options, first_id=65_530)
    segments = [one.segment if size > one.segment else 0 for size in sizes]
    whole, counts = told(one.together(sizes, flags), segments, identity_bytes=identity_bytes)
    apart = Decoder(DecodeOptions(identity_bytes=identity_bytes)).decode(frames_of(one.on_the_wire(sizes, flags)))
    assert same(whole, apart)
    assert counts.left_packets == 0
    assert counts.split_packets == sum(segment > 0 for segment in segments)


def test_a_packet_that_the_kernel_calls_whole_is_left_alone() -> None:
    one = Connection()
    packets = one.together([9000, one.segment])
    batch, counts = told(packets, [0, one.segment])
    assert same(batch, Decoder().decode(frames_of(packets)))
    assert (counts.split_packets, counts.left_packets) == (0, 0)


def test_jumbograms_are_split_without_their_option() -> None:
    """Linux writes lengths beyond 65,535 into an option of its own, which is not sent."""
    one = Connection(version=6)
    size = one.segment * 60 + 7
    headers = one.put(0, 0, 0)
    length = struct.pack("!BBBBI", 6, 0, 0xC2, 4, len(headers) - 14 - 40 + 8 + size)
    whole = headers[:18] + b"\0\0\0" + headers[21:54] + length + headers[54:] + one.stream[:size]
    batch, counts = told([whole], [one.segment])
    assert same(batch, Decoder().decode(frames_of(one.on_the_wire([size]))))
    assert (counts.made_packets, counts.left_packets) == (61, 0)


def test_super_packets_that_cannot_be_split_are_counted() -> None:
    one = Connection()
    (packet,) = one.together([one.segment * 9])
    tunnel = ethernet(ipv4(udp(b"\x08" + bytes(7) + packet, destination=4789)))
    cut = Packet(packet[:1000], length=len(packet))
    fragment = ethernet(ipv4(tcp(bytes(6000)), 6, fragment=0x2000))
    for unsplittable in (tunnel, cut, fragment):
        batch, counts = told([unsplittable], [one.segment])
        assert (len(batch), counts.split_packets, counts.left_packets) == (1, 0, 1)
    longer_than_any_link = one.together([10_000, 9_000])
    assert told(longer_than_any_link, [0, 0])[1].left_packets == 1
    opened, counts = told([tunnel], [one.segment], inner=True)
    assert same(opened, Decoder().decode(frames_of(one.on_the_wire([one.segment * 9]))))
    assert counts.left_packets == 0


def test_datagrams_are_split_as_told_and_numbered_as_the_kernel_does() -> None:
    sizes = [1252 * 5, 100, 1252 * 7 + 300]
    together, apart = datagrams(sizes, 1252)
    wire = Decoder().decode(frames_of(apart))
    segments = [1252 if size > 1252 else 0 for size in sizes]
    for kind in (Offload.UDP, Offload.UDP | Offload.OUTGOING):
        assert same(told(together[1:], segments[1:], kind)[0], wire.select(slice(5, None)))
    # The first is numbered from 0 on: the host that sends it knows, another from what follows.
    assert same(told(together, segments, Offload.UDP | Offload.OUTGOING)[0], wire)
    first, later = (told(packets, [1252] * len(packets), Offload.UDP)[0] for packets in (together[:1], together))
    silent = [ethernet(ipv4(packet[34:], identification=0)) for packet in apart[:5]]
    assert same(first, Decoder().decode(frames_of(silent)))
    assert same(later.select(slice(5, None)), wire.select(slice(5, None)))


def test_what_is_told_of_tiny_segments_takes_bounded_memory() -> None:
    one = Connection()
    batch, counts = told(one.together([5000]), [1])
    assert len(batch) == counts.made_packets == 5000
