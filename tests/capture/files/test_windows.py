"""Where windows and chunks end says nothing about a capture: every division reads the same."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packet_builders import Packet, PcapLayout, PcapngSection, ethernet, ipv4, ipv6, tcp, udp

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.files import pcap
from sojourn.capture.files.reader import CaptureReader
from sojourn.capture.files.source import FrameRows, Source, Window

PACKETS = [
    Packet(ethernet(packet, kind), 1_700_000_000_000_000_000 + number * 1_000_000)
    for number, (packet, kind) in enumerate(
        [
            (ipv4(udp(b"x" * 30)), 0x0800),
            (ipv6(tcp(b"y" * 7), 6), 0x86DD),
            (ipv4(udp(bytes(24)), fragment=0x2000), 0x0800),
            (ipv4(bytes(16), fragment=4), 0x0800),
            (ipv4(ipv4(udp(), source="10.9.0.1"), 4), 0x0800),
            (bytes(28), 0x0806),
        ]
    )
]


class SteppedSource(Source):
    """Given bytes, in windows of `step` bytes where no more are asked for."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__("stepped")
        self._data = np.frombuffer(data, np.uint8)
        self._step = step

    def window(self, offset: int, minimum: int = 1) -> Window:
        end = offset + max(self._step, minimum)
        return Window(self._data[offset:end], offset, last=end >= len(self._data))

    share_read = 0.0

    def close(self) -> None:
        pass


def read(data: bytes, step: int, chunk: int) -> object:
    """All that the capture tells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pcap, "FrameRows", functools.partial(FrameRows, chunk))
        capture = CaptureReader(SteppedSource(data, step), DecodeOptions(inner=True))
        rows: list[tuple[int, ...]] = []
        for batch, transport in capture.with_transport():
            columns = [*batch.columns().values(), transport.payload_bytes, transport.payload_captured, transport.tsval]
            rows += zip(*(column.tolist() for column in columns), strict=True)
    keys = [str(key) for key in capture.flows.keys()]  # noqa: SIM118 - a table is no mapping
    return rows, keys, capture.packets, capture.ignored, capture.notes, capture.warnings


def pcapng_file(*, big: bool) -> bytes:
    section = PcapngSection(big=big).interface(resolution=9).block(0xBAD, b"something else")
    for packet in PACKETS:
        section.enhanced(packet.data, packet.time_ns).interface(101)
    return section.simple(PACKETS[0].data).obsolete(PACKETS[1].data, 5).to_bytes()


FILES = [
    PcapLayout(nanoseconds=True).write(PACKETS),
    PcapLayout(big=True).write(PACKETS),
    PcapLayout(modified=True).write(PACKETS),
    pcapng_file(big=False),
    pcapng_file(big=True),
    pcapng_file(big=False) + pcapng_file(big=True),
]


@pytest.mark.parametrize("number", range(len(FILES)))
@pytest.mark.parametrize("step", [1, 24, 67])
def test_a_capture_reads_the_same_in_steps_of_any_size(number: int, step: int) -> None:
    whole = read(FILES[number], 1 << 20, 1 << 10)
    assert len(whole[0]) >= 5  # type: ignore[index]
    assert read(FILES[number], step, 2) == whole


@settings(max_examples=150)
@given(
    number=st.integers(0, len(FILES) - 1),
    step=st.integers(1, 300),
    chunk=st.integers(1, 8),
    damage=st.lists(st.tuples(st.integers(4, 2000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 400),
)
def test_a_damaged_capture_reads_the_same_in_steps_of_any_size(
    number: int, step: int, chunk: int, damage: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(FILES[number])
    for at, value in damage:
        data[at % (len(data) - 4) + 4] = value
    damaged = bytes(data[: len(data) - cut])
    assert read(damaged, step, chunk) == read(damaged, 1 << 20, 1 << 10)
