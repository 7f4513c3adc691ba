"""Targets over capture files: reading and decoding, compressed files, round-trip times.

An input is two bytes of choices and a capture file. Each is read twice, in small guarded windows and chunks and in one
piece; both readings must agree in every packet, count and warning.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fuzz.guards import GuardedBytes, GuardedSource
from fuzz.mutations import mutate_capture
from fuzz.seeds import capture_seeds, compressed_seeds
from fuzz.target import MAX_INPUT, Target, require_one_line
from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.ids import FlowKeying, Identity
from sojourn.capture.decode.transport import TransportBatch
from sojourn.capture.files import pcap
from sojourn.capture.files.reader import CaptureReader, open_capture
from sojourn.capture.files.source import FrameRows, Source
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import CaptureError
from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.rtt.state import Kind, RttLimits
from sojourn.rtt.summary import RttSummaries

__all__ = ["CAPTURE", "COMPRESSED", "RTT"]

_STEPS = (1, 29, 64, 200, 1500, 8192, 40_000, MAX_INPUT)
_CHUNKS = (1, 2, 7, 512)
_KEYINGS = [FlowKeying.parse(text) for text in ("five-tuple", "host-pair", "prefix/9", "vlan+five-tuple")]
_IDENTITY_BYTES = (20, 68, 300, 1500)
_IDENTITIES = (Identity.PACKET, Identity.PACKET, Identity.PAYLOAD, Identity.PAYLOAD_ALONE)
_ROOM = GuardedBytes()
# A compressed input may stand for millions of packets; what lies beyond says nothing new.
_MAX_PACKETS = 100_000


@dataclass(frozen=True)
class _Choices:
    step: int
    chunk: int
    at_front: bool
    options: DecodeOptions

    @classmethod
    def of(cls, first: int, second: int) -> _Choices:
        options = DecodeOptions(
            keying=_KEYINGS[second & 3],
            inner=bool(second & 0x10),
            identity=_IDENTITIES[second >> 6],
            identity_bytes=_IDENTITY_BYTES[second >> 2 & 3],
            max_flows=5 if second & 0x20 else 1 << 20,
        )
        return cls(_STEPS[first & 7], _CHUNKS[first >> 3 & 3], bool(first & 0x20), options)

    @property
    def in_one_piece(self) -> _Choices:
        return _Choices(MAX_INPUT, MAX_INPUT // 16, False, self.options)

    def open(self, data: bytes) -> CaptureReader | None:
        """The reader, its chunks as small as chosen; None for what is no capture."""
        capacity = min(self.chunk, len(data) // 12 + 1)
        pcap.FrameRows = lambda: FrameRows(capacity)  # type: ignore[assignment,misc]
        source: Source = GuardedSource(data, _ROOM, step=self.step, at_front=self.at_front)
        try:
            return CaptureReader(source, self.options)
        except CaptureError as error:
            require_one_line(error)
            return None


def _columns(batch: PacketBatch | TransportBatch) -> list[list[int]]:
    """All values of a batch but those that depend on where its bytes lie."""
    left_out = ("data", "payload_offset")
    return [column.tolist() for name, column in vars(batch).items() if name not in left_out]


def _check_payloads(transport: TransportBatch) -> None:
    offset, captured = transport.payload_offset, transport.payload_captured
    assert np.all((captured >= 0) & (offset >= 0) & (offset + captured <= len(transport.data)))
    assert np.all(captured <= len(transport.data))


def _read(data: bytes, choices: _Choices) -> object:
    """Everything that a capture tells, or None if it is none."""
    capture = choices.open(data)
    if capture is None:
        return None
    rows: list[tuple[int, ...]] = []
    for batch, transport in capture.with_transport():
        _check_payloads(transport)
        assert len(batch) == len(transport)
        rows += zip(*_columns(batch), *_columns(transport), strict=True)
    assert len(rows) == capture.ip_packets == capture.packets - sum(capture.ignored.values())
    flows = capture.flows
    assert int(flows.packets.sum()) + flows.overflow_packets == len(rows)
    keys = list(map(str, flows.keys()))
    return rows, keys, flows.packets.tolist(), capture.ignored, capture.notes, capture.warnings, capture.snap_length


def _run_capture(data: bytes) -> None:
    if len(data) < 2:
        return
    choices = _Choices.of(data[0], data[1])
    small = _read(data[2:], choices)
    whole = _read(data[2:], choices.in_one_piece)
    assert small == whole, "small windows or chunks change what is read"


def _samples(data: bytes, choices: _Choices, options: RttOptions) -> object:
    capture = choices.open(data)
    if capture is None:
        return None
    meter, summaries = RttMeter(options), RttSummaries(flows=8, pages=16)
    times: set[int] = set()
    rows: list[tuple[int, ...]] = []
    for _, transport in capture.with_transport():
        times.update(transport.time_ns.tolist())
        for samples in meter.feed(transport):
            summaries.add(samples)
            rows += samples.rows()
    for time, _, rtt, lowest, kind, _ in rows:
        assert 0 <= lowest <= rtt <= options.limits.max_rtt_ns
        assert time in times
        assert time - rtt in times, "a sample begins when no packet was seen"
        assert not options.kinds or Kind(kind) in options.kinds
    found = summaries.flows()
    assert sum(flow.samples for flow in found) <= len(rows)
    for flow in found:
        assert flow.min_rtt <= flow.p50_rtt <= flow.p95_rtt <= flow.p99_rtt <= flow.max_rtt
    return rows, meter.ignored, found


_KINDS = (frozenset(), frozenset({Kind.QUIC_WHOLE, Kind.DNS}), frozenset({Kind.SEQ}), frozenset({Kind.MQTT, Kind.ICMP}))
_LIMITS = (RttLimits(connections=64, pending=64), RttLimits(connections=64, pending=64, max_rtt_ns=(1 << 62) - 1))


def _run_rtt(data: bytes) -> None:
    if len(data) < 2:
        return
    choices = _Choices.of(data[0], data[1] & 0x3F)
    options = RttOptions(kinds=_KINDS[data[1] >> 6], limits=_LIMITS[data[0] >> 6 & 1])
    assert _samples(data[2:], choices, options) == _samples(data[2:], choices.in_one_piece, options)


_FILE = os.memfd_create("input")


def _run_compressed(data: bytes) -> None:
    os.ftruncate(_FILE, 0)
    os.pwrite(_FILE, data, 0)
    pcap.FrameRows = FrameRows
    try:
        capture = open_capture(f"/proc/self/fd/{_FILE}", DecodeOptions(inner=True))
    except CaptureError as error:
        require_one_line(error)
        return
    with capture:
        for batch, transport in capture.with_transport():
            _check_payloads(transport)
            assert len(batch) == len(transport)
            if capture.packets > _MAX_PACKETS:
                return
    assert capture.ip_packets == capture.packets - sum(capture.ignored.values())


def _seeds() -> Iterator[bytes]:
    """Every capture once by five-tuples, tunnels closed, and once with other choices."""
    for number, capture in enumerate(capture_seeds()):
        yield bytes([number & 7, 0]) + capture
        yield bytes([(number * 37) & 0xFF, (number * 59 | 0x10) & 0xFF]) + capture


CAPTURE = Target("capture", _run_capture, _seeds, mutate_capture)
RTT = Target("rtt", _run_rtt, _seeds, mutate_capture)
COMPRESSED = Target("compressed", _run_compressed, compressed_seeds, max_input=4096)
