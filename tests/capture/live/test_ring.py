"""The ring's index against a plain model, on whole blocks and on damaged ones."""

from __future__ import annotations

import mmap
import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_pcap import frame_bytes

from sojourn.capture.decode.frames import Frames, Offload
from sojourn.capture.live.ring import DAMAGED, INCOMING, OUTGOING, Ring, RingShape, keep

SHAPE = RingShape(block_size=4096, blocks=3, retire_ms=10)
HEADER, MAC = 68, 86
Packet = tuple[bytes, int, int, int]  # bytes, time, direction type, VLAN control word or -1

packets = st.lists(
    st.tuples(
        st.binary(min_size=14, max_size=80),
        st.integers(0, 2**32 * 10**9 - 1),
        st.sampled_from([0, 1, 2, 3, 4]),
        st.one_of(st.just(-1), st.integers(0, 0xFFFF)),
    ),
    max_size=12,
)


def block(content: list[Packet]) -> bytes:
    """A block as the kernel would leave it."""
    raw = struct.pack("=2I4IQ4I", 1, 48, 1, len(content), 48, 0, 0, 0, 0, 0, 0)
    for data, time, kind, tag in content:
        size = -(-(MAC + len(data)) // 16) * 16
        flags = (1 << 4 | 1 << 6) if tag >= 0 else 0
        seconds, rest = divmod(time, 10**9)
        head = struct.pack("=6I2H", size, seconds, rest, len(data), len(data) + 7, flags, MAC, MAC + 14)
        head += struct.pack("=2IH10x", 0, max(tag, 0), 0x88A8)
        head += struct.pack("=HHiHBB8x", 17, 0, 1, 1, kind, 6)
        raw += (head.ljust(MAC, b"\xee") + data).ljust(size, b"\xee")
    return raw.ljust(SHAPE.block_size, b"\0")


def ring_of(*contents: bytes) -> Ring:
    mapping = mmap.mmap(-1, SHAPE.size)
    for place, content in enumerate(contents):
        mapping[place * SHAPE.block_size : (place + 1) * SHAPE.block_size] = content
    return Ring(mapping, SHAPE)


def indexed(ring: Ring, directions: int = INCOMING | OUTGOING) -> tuple[Frames, list[bool], list[int]]:
    ignored = np.zeros(4, np.int64)
    frames, tagged = ring.index(
        ring.take(SHAPE.blocks), link=1, directions=directions, start_ns=0, stop_ns=2**62, ignored=ignored
    )
    return frames, tagged.tolist(), ignored.tolist()


@given(packets, packets)
def test_frames_are_found_with_time_length_direction_and_tag(first: list[Packet], second: list[Packet]) -> None:
    for directions in (INCOMING, OUTGOING, INCOMING | OUTGOING):
        frames, tagged, ignored = indexed(ring_of(block(first), block(second)), directions)
        wanted = [p for p in first + second if directions & (OUTGOING if p[2] == 4 else INCOMING)]
        expected = [
            data if tag < 0 else data[:12] + struct.pack(">2H", 0x88A8, tag) + data[12:] for data, _, _, tag in wanted
        ]
        assert frame_bytes(frames) == frame_bytes(keep(frames)) == expected
        assert frames.time_ns.tolist() == [time for _, time, _, _ in wanted]
        assert frames.length.tolist() == [len(data) + 7 for data in expected]
        assert tagged == [tag >= 0 for _, _, _, tag in wanted]
        assert ignored == [len(first + second) - len(wanted), 0, 0, 0]


@settings(max_examples=300)
@given(packets, st.lists(st.tuples(st.integers(12, 600), st.integers(0, 255)), max_size=8))
def test_a_damaged_block_yields_only_frames_inside_it(content: list[Packet], damage: list[tuple[int, int]]) -> None:
    raw = bytearray(block(content))
    for place, value in damage:
        raw[place] = value
    intact = block([(b"x" * 20, 1, 0, -1)])
    ring = ring_of(bytes(raw), intact)
    frames, _, ignored = indexed(ring)
    assert (frames.offset >= 48).all()
    block_of = frames.offset // SHAPE.block_size
    assert (frames.offset + frames.captured <= (block_of + 1) * SHAPE.block_size).all()
    assert sum(ignored) + len(frames) <= SHAPE.block_size // HEADER + 2
    assert ring.bytes[SHAPE.block_size : 2 * SHAPE.block_size].tobytes() == intact


def test_a_block_that_claims_more_packets_than_it_holds_is_counted() -> None:
    raw = bytearray(block([(b"y" * 20, 5, 0, -1)]))
    raw[12:16] = (2**32 - 1).to_bytes(4, "little")
    raw[48:52] = (4000).to_bytes(4, "little")
    frames, _, ignored = indexed(ring_of(bytes(raw)))
    assert frame_bytes(frames) == [b"y" * 20]
    assert ignored[DAMAGED] == 1


def test_blocks_are_taken_in_order_and_go_back_when_released() -> None:
    one = block([(b"z" * 20, 5, 0, -1)])
    ring = ring_of(one, one, bytes(SHAPE.block_size))
    assert ring.take(1).tolist() == [0]
    assert ring.take(5).tolist() == [1]
    assert not ring.is_ready()
    ring.release()
    assert ring.bytes[8] == ring.bytes[SHAPE.block_size + 8] == 0
    ring.bytes[2 * SHAPE.block_size + 8] = 1
    assert ring.take(5).tolist() == [2]


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 4, 5, 0x81, 0x84]), st.integers(1, 65_535), st.booleans(), st.booleans()),
        max_size=10,
    )
)
def test_what_the_kernel_tells_of_offloading_is_read_before_a_tag_is_put_back(
    told: list[tuple[int, int, bool, bool]],
) -> None:
    content = [(bytes(20), 5, 4 if outgoing else 0, 7 if tagged else -1) for _, _, outgoing, tagged in told]
    raw = bytearray(block(content))
    at = 48
    for kind, segment, _, _ in told:
        struct.pack_into("=BBHHHH", raw, at + MAC - 10, 1, kind, 66, segment, 34, 16)
        at += -(-(MAC + 20) // 16) * 16
    mapping = mmap.mmap(-1, SHAPE.size)
    mapping[: len(raw)] = bytes(raw)
    frames, _, ignored = indexed(Ring(mapping, SHAPE, offload=True))
    of = {0: Offload(0), 1: Offload.TCP, 4: Offload.TCP, 5: Offload.UDP}
    expected = [
        (segment if kind else 0) | (of[kind & 0x7F] | (Offload.OUTGOING if outgoing else 0)) << 16
        for kind, segment, outgoing, _ in told
    ]
    assert frames.offload is not None
    assert frames.offload.tolist() == expected
    assert sum(ignored) == 0
    copied = keep(frames).offload
    assert copied is not None
    assert copied.tolist() == expected
