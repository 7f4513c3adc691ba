"""Transport columns: what tshark reads in real captures, and what malformed options cannot break."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packet_builders import Packet, ethernet, frames_of, ipv4, ipv6, tcp, udp
from tshark import run_tshark

from sojourn.capture.decode.decoder import Decoder
from sojourn.capture.decode.transport import HAS_SACK, HAS_TIMESTAMPS, TransportBatch
from sojourn.capture.files.reader import open_capture

TCP_FIELDS = {
    "tcp.srcport": "src_port",
    "tcp.dstport": "dest_port",
    "tcp.seq_raw": "seq",
    "tcp.ack_raw": "ack",
    "tcp.options.timestamp.tsval": "tsval",
    "tcp.options.timestamp.tsecr": "tsecr",
    "tcp.len": "payload_bytes",
}


def one(packet: bytes, *, captured: int | None = None) -> TransportBatch:
    frame = ethernet(packet, 0x86DD if packet[0] >> 4 == 6 else 0x0800)
    shown = Packet(frame[:captured], length=len(frame))
    return Decoder().decode_transport(frames_of([shown]))[1]


@pytest.mark.parametrize(
    "name",
    ["captures/zeek-tcp-timestamps-snap96.pcap", "captures/pcpp-tls2.pcap", "two-point/ingress.pcap.gz"],
)
def test_tcp_columns_equal_tsharks(shared_data: Path, name: str) -> None:
    path = shared_data / name
    names = [*TCP_FIELDS, "tcp.flags", "tcp.options.sack_re"]
    frames = [frame for frame in run_tshark(path, names) if frame["tcp.srcport"]]
    rows: dict[str, list[int]] = {column: [] for column in (*TCP_FIELDS.values(), "flags", "sack_high")}
    with open_capture(path) as capture:
        for _, batch in capture.with_transport():
            chosen = batch.protocol == 6
            for column in rows:
                rows[column] += getattr(batch, column)[chosen].tolist()
    for field, column in TCP_FIELDS.items():
        assert rows[column] == [int(frame[field] or 0) for frame in frames], column
    assert [flags & 0xFF for flags in rows["flags"]] == [int(f["tcp.flags"], 16) & 0xFF for f in frames]
    stamped = [bool(frame["tcp.options.timestamp.tsval"]) for frame in frames]
    assert [bool(flags & HAS_TIMESTAMPS) for flags in rows["flags"]] == stamped
    assert [bool(flags & HAS_SACK) for flags in rows["flags"]] == [bool(f["tcp.options.sack_re"]) for f in frames]


def test_the_highest_sack_edge_is_taken_across_the_wrap() -> None:
    blocks = [(0xFFFFFF00, 0xFFFFFFF0), (5, 9), (0xFFFFF000, 0xFFFFF100)]
    sack = bytes([1, 1, 5, 2 + 8 * 3]) + b"".join(struct.pack("!II", *block) for block in blocks)
    batch = one(ipv4(tcp(options=sack), 6))
    assert batch.sack_high.tolist() == [9]
    assert batch.flags.tolist() == [0x10 | HAS_SACK]


def test_payload_is_told_apart_from_what_was_captured() -> None:
    batch = one(ipv4(tcp(b"x" * 500, options=bytes([1] * 12)), 6), captured=96)
    assert batch.payload_bytes.tolist() == [500]
    assert batch.payload_captured.tolist() == [96 - 14 - 20 - 32]
    start = int(batch.payload_offset[0])
    assert batch.data[start : start + 30].tobytes() == b"x" * 30


def test_padding_is_no_payload() -> None:
    frame = ethernet(ipv4(tcp(), 6)) + bytes(6)
    batch = Decoder().decode_transport(frames_of([frame]))[1]
    assert (batch.payload_bytes.tolist(), batch.payload_captured.tolist()) == ([0], [0])


@pytest.mark.parametrize(
    ("packet", "kind"),
    [
        (ipv4(struct.pack("!BBHHH", 8, 0, 1, 77, 9) + bytes(20), 1), 8),
        (ipv4(struct.pack("!BBHHH", 0, 0, 1, 77, 9) + bytes(20), 1), 0),
        (ipv6(struct.pack("!BBHHH", 128, 0, 1, 77, 9) + bytes(20), 58), 128),
    ],
)
def test_an_echo_gives_type_identifier_and_sequence(packet: bytes, kind: int) -> None:
    batch = one(packet)
    values = [int(column[0]) for column in (batch.flags, batch.ack, batch.seq, batch.payload_bytes)]
    assert values == [kind, 77, 9, 20]


@pytest.mark.parametrize(
    ("packet", "captured"),
    [
        (ipv4(bytes(30), 6, fragment=3), None),
        (ipv4(tcp(), 6), 50),
        (ipv4(udp(), 17), 40),
        (ipv4(bytes(40), 47), None),
        (ipv4(b"\0" * 40, 6), None),
    ],
)
def test_a_row_without_a_transport_header_has_protocol_0(packet: bytes, captured: int | None) -> None:
    batch = one(packet, captured=captured)
    assert len(batch) == 1
    assert batch.protocol.tolist() == [0]
    assert batch.flags.tolist() == [0]


@given(options=st.binary(max_size=40), captured=st.integers(34, 94))
def test_any_options_are_read_within_the_header(options: bytes, captured: int) -> None:
    batch = one(ipv4(tcp(b"", options=options), 6), captured=captured)
    assert len(batch) == 1


def read_timestamps(options: bytes) -> tuple[int, int] | None:
    """The last timestamp option before a malformed one, in plain Python."""
    found, at = None, 0
    while at < len(options) and options[at] != 0:
        if options[at] == 1:
            at += 1
            continue
        size = options[at + 1] if at + 1 < len(options) else 0
        if size < 2 or at + size > len(options):
            break
        if options[at] == 8 and size == 10:
            found = struct.unpack("!II", options[at + 2 : at + 10])
        at += size
    return found


@given(
    parts=st.lists(
        st.sampled_from([b"\1", b"\2\4\5\xb4", b"\3\3\7", b"\x08\x0a" + bytes(range(1, 9)), b"\x04\2", b"\x08\4ab"]),
        max_size=6,
    ),
    tail=st.binary(max_size=3),
)
def test_timestamps_equal_the_plain_reading(parts: list[bytes], tail: bytes) -> None:
    options = (b"".join(parts) + tail)[:40]
    options += bytes(-len(options) % 4)
    batch = one(ipv4(tcp(b"", options=options), 6))
    wanted = read_timestamps(options)
    assert bool(batch.flags[0] & HAS_TIMESTAMPS) == (wanted is not None)
    assert (int(batch.tsval[0]), int(batch.tsecr[0])) == (wanted or (0, 0))
