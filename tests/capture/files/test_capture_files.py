"""pcap and pcapng files: every variant is read back, damage costs only what follows it."""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packet_builders import Packet, PcapLayout, PcapngSection, ethernet, ipv4, udp

from sojourn.capture.files.pcap import SectionInterfaces, ticks_to_ns
from sojourn.capture.files.reader import CaptureReader, open_capture, open_frames
from sojourn.capture.files.source import StreamedSource, Window, open_source
from sojourn.core.errors import CaptureError
from sojourn.core.kernels import kernel
from sojourn.core.units import plural

SECOND = 10**9


def read(path: Path, *, strict: bool = False) -> tuple[list[Packet], list[int], list[str]]:
    """Packets, link types and warnings of a file."""
    packets, links = [], []
    with open_source(path) as source:
        reader = open_frames(source, strict=strict)
        for frames in reader:
            for row in range(len(frames)):
                start, size = int(frames.offset[row]), int(frames.captured[row])
                data = frames.data[start : start + size].tobytes()
                packets.append(Packet(data, int(frames.time_ns[row]), int(frames.length[row])))
                links.append(int(frames.link[row]))
    return packets, links, reader.warnings


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures") / "file"


def made(packets: list[tuple[bytes, int, int]], tick: int) -> list[Packet]:
    return [Packet(data, ticks * tick, len(data) + more) for data, ticks, more in packets]


raw_packets = st.lists(
    st.tuples(st.binary(max_size=80), st.integers(0, 2**32 * 10**6 - 1), st.integers(0, 2000)), max_size=12
)


@given(
    packets=raw_packets,
    big=st.booleans(),
    variant=st.sampled_from(["µs", "ns", "modified"]),
    link=st.integers(0, 300),
)
def test_pcap_round_trips(
    file: Path, packets: list[tuple[bytes, int, int]], big: bool, variant: str, link: int
) -> None:
    layout = PcapLayout(big=big, nanoseconds=variant == "ns", modified=variant == "modified", link=link)
    wanted = made(packets, 1000)
    file.write_bytes(layout.write(wanted))
    assert read(file, strict=True) == (wanted, [link] * len(wanted), [])


def test_lengths_of_old_files_may_be_swapped(file: Path) -> None:
    data = b"x" * 60
    body = PcapLayout(version=(2, 2)).write([Packet(data)])
    swapped = bytearray(body)
    swapped[32:36], swapped[36:40] = struct.pack("<I", 1500), struct.pack("<I", 60)
    file.write_bytes(bytes(swapped))
    assert read(file)[0] == [Packet(data, length=1500)]


@st.composite
def sections(draw: st.DrawFn) -> tuple[bytes, list[Packet], list[int], int]:
    """A section's bytes, its packets (times by exact fractions), their links, and how many have no time."""
    section = PcapngSection(big=draw(st.booleans()))
    packets: list[Packet] = []
    links: list[int] = []
    timeless = 0
    clocks: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(0, 10))):
        kind = draw(st.sampled_from(["interface", "enhanced", "simple", "obsolete", "unknown"]))
        data = draw(st.binary(max_size=40))
        if kind == "interface" or (not clocks and kind != "unknown"):
            clock = (draw(st.integers(0, 300)), draw(st.integers(0, 255)), draw(st.integers(-1000, 1000)))
            section.interface(clock[0], resolution=clock[1], offset=clock[2])
            clocks.append(clock)
        elif kind == "unknown":
            section.block(draw(st.sampled_from([4, 5, 0xBAD, 0x40000BAD, 0x7FFFFFFF])), data)
        elif kind == "simple":
            section.simple(data)
            packets.append(Packet(data, -1))
            links.append(clocks[0][0])
            timeless += 1
        else:
            number = draw(st.integers(0, len(clocks) - 1))
            link, resolution, offset = clocks[number]
            ticks = draw(st.integers(0, ticks_before(2100, resolution)))
            getattr(section, kind)(data, ticks, number)
            packets.append(Packet(data, exact_ns(ticks, resolution, offset)))
            links.append(link)
    return section.to_bytes(), packets, links, timeless


def unit_of(resolution: int) -> Fraction:
    return Fraction(1, (2 if resolution & 0x80 else 10) ** (resolution & 0x7F))


def exact_ns(ticks: int, resolution: int, offset: int) -> int:
    return int(ticks * unit_of(resolution) * SECOND // 1) + offset * SECOND


def ticks_before(year: int, resolution: int) -> int:
    return min(2**64 - 1, int((year - 1970) * 365 * 86400 / unit_of(resolution)))


@given(parts=st.lists(sections(), min_size=1, max_size=3))
def test_pcapng_round_trips(file: Path, parts: list[tuple[bytes, list[Packet], list[int], int]]) -> None:
    file.write_bytes(b"".join(part[0] for part in parts))
    last = 0
    wanted = []
    for packet in (packet for part in parts for packet in part[1]):
        last = packet.time_ns if packet.time_ns != -1 else last
        wanted.append(Packet(packet.data, last, len(packet.data)))
    packets, links, warnings = read(file, strict=True)
    assert packets == wanted
    assert links == [link for part in parts for link in part[2]]
    timeless = sum(part[3] for part in parts)
    wanted_text = f" {plural(timeless, 'packet has', 'packets have')} no time"
    assert any(wanted_text in warning for warning in warnings) == (timeless > 0)


@kernel
def convert(high: int, low: int, mode: int, scale: int, offset: int) -> tuple[int, bool]:
    return ticks_to_ns(high, low, mode, scale, offset)


@given(ticks=st.integers(0, 2**64 - 1), resolution=st.integers(0, 255), offset=st.integers(-(2**62), 2**62))
@example(ticks=2**64 - 1, resolution=0x80 | 63, offset=0)
@example(ticks=2**64 - 1, resolution=28, offset=0)
@example(ticks=2**64 - 1, resolution=0, offset=2**62)
@example(ticks=2**62 - 1, resolution=9, offset=0)
@example(ticks=2**62, resolution=9, offset=0)
@example(ticks=0, resolution=9, offset=-(2**62))
def test_ticks_become_exact_nanoseconds_or_the_bound(ticks: int, resolution: int, offset: int) -> None:
    interfaces = SectionInterfaces()
    section = PcapngSection()
    section.interface(resolution=resolution, offset=offset)
    assert interfaces.add(section.blocks[1][8:-4], big=False) == ""
    mode, scale, offset_ns = (int(value) for value in interfaces.table[0, 2:])
    value, was_cut = convert(ticks >> 32, ticks & 0xFFFFFFFF, mode, scale, offset_ns)
    bound = 2**62 - 1
    exact = exact_ns(ticks, resolution, offset)
    assert value == max(-bound, min(exact, bound))
    assert was_cut == (abs(exact) > bound)


def some_packets(count: int) -> list[Packet]:
    frames = [ethernet(ipv4(udp(bytes([n]) * n))) for n in range(count)]
    return [Packet(frame, SECOND * (n + 1), len(frame)) for n, frame in enumerate(frames)]


def pcapng_of(packets: list[Packet], *, big: bool) -> PcapngSection:
    section = PcapngSection(big=big).interface(resolution=9).block(0xBAD, b"something else")
    for packet in packets:
        section.enhanced(packet.data, packet.time_ns)
    return section


@pytest.mark.parametrize("big", [False, True])
def test_a_pcap_cut_at_any_byte_yields_all_whole_packets_before(file: Path, big: bool) -> None:
    packets = some_packets(4)
    whole = PcapLayout(big=big, nanoseconds=True).write(packets)
    ends = [len(PcapLayout().write(packets[:n])) for n in range(1, 5)]
    for cut in range(4, len(whole) + 1):
        file.write_bytes(whole[:cut])
        found, _, warnings = read(file)
        assert found == packets[: sum(end <= cut for end in ends)]
        assert bool(warnings) == (cut not in (24, *ends)), cut


@pytest.mark.parametrize("big", [False, True])
def test_a_pcapng_cut_at_any_byte_yields_all_whole_packets_before(file: Path, big: bool) -> None:
    packets = some_packets(3)
    section = pcapng_of(packets, big=big)
    whole = section.to_bytes()
    ends = np.cumsum([len(block) for block in section.blocks]).tolist()
    for cut in range(4, len(whole) + 1):
        file.write_bytes(whole[:cut])
        found, _, warnings = read(file)
        assert found == packets[: sum(end <= cut for end in ends[3:])]
        assert bool(warnings) == (cut not in ends), cut


def test_strict_names_the_file_and_the_byte(file: Path) -> None:
    packets = some_packets(2)
    file.write_bytes(PcapLayout().write(packets)[:-1])
    start_of_second = len(PcapLayout().write(packets[:1]))
    with pytest.raises(CaptureError, match=rf"file, byte {start_of_second}: .*ends inside a packet"):
        read(file, strict=True)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (PcapngSection().interface().block(6, b"short").to_bytes(), "shorter than its own fields"),
        (PcapngSection().enhanced(b"x", 1).to_bytes(), "interface that was not described"),
        (PcapngSection().to_bytes() + struct.pack("<III", 9, 13, 0), "multiple of 4"),
        (PcapngSection().to_bytes() + struct.pack("<III", 9, 12, 16), "two lengths differ"),
        (b"\x0a\x0d\x0d\x0a" + bytes(24), "byte-order mark"),
        (PcapngSection().to_bytes() + struct.pack("<III", 6, 2**31, 0), "longer than 16 MiB"),
        (
            PcapLayout().write([Packet(b"abc")]) + struct.pack("<IIII", 0, 0, 2**30, 2**30),
            "snap length allows",
        ),
    ],
)
def test_damage_is_named(file: Path, body: bytes, what: str) -> None:
    file.write_bytes(body)
    assert any(what in warning for warning in read(file)[2])
    with pytest.raises(CaptureError, match=what):
        read(file, strict=True)


def test_a_huge_unknown_block_is_passed_over(tmp_path: Path) -> None:
    length = 20_000_000
    head = PcapngSection().interface(resolution=9)
    tail = PcapngSection()
    tail.blocks.clear()
    tail.enhanced(b"after", 5)
    path = tmp_path / "huge.pcapng"
    path.write_bytes(
        head.to_bytes()
        + struct.pack("<II", 0xBAD, length)
        + bytes(length - 12)
        + struct.pack("<I", length)
        + tail.to_bytes()
    )
    assert read(path, strict=True)[0] == [Packet(b"after", 5, 5)]


class Bytes:
    """A stream of given bytes in uneven pieces."""

    damage = ""
    consumed = 0

    def __init__(self, data: bytes, size: int) -> None:
        self._pieces = [data[at : at + size] for at in range(0, len(data), size)]

    def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@settings(max_examples=300)
@given(
    start=st.sampled_from(["a1b2c3d4", "d4c3b2a1", "4d3cb2a1", "a1b2cd34", "0a0d0d0a"]),
    body=st.binary(max_size=400),
    piece=st.integers(1, 50),
)
def test_random_bytes_end_without_a_crash(start: str, body: bytes, piece: int) -> None:
    header = bytes.fromhex(start)
    if start == "0a0d0d0a":
        header = PcapngSection().interface().to_bytes()
    elif body[:1] > b"\x80":
        header = PcapLayout(big=start.startswith("a1")).write([])
    source = StreamedSource("random", Bytes(header + body, piece), io.BytesIO())
    with CaptureReader(source) as capture:
        seen = sum(len(batch) for batch in capture)
    assert seen == capture.ip_packets == capture.packets - sum(capture.ignored.values())


@settings(max_examples=200)
@given(data=st.data())
def test_flipped_bytes_end_without_a_crash(file: Path, data: st.DataObject) -> None:
    whole = bytearray(pcapng_of(some_packets(3), big=False).to_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(bytes(whole))
    with open_capture(file) as capture:
        list(capture.with_transport())
    assert capture.packets >= capture.ip_packets


@pytest.mark.parametrize("content", [b"", b"abc", b"not a capture"])
def test_what_is_no_capture_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(CaptureError, match=r"file, byte 0: "):
        open_capture(file)


def test_memory_holds_one_window_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "large.pcap"
    packet = struct.pack("<IIII", 1, 0, 1000, 1000) + bytes(1000)
    path.write_bytes(PcapLayout().write([]) + packet * 40_000)
    largest = 0
    with open_source(path) as source:
        whole = source.window

        def watched(offset: int, minimum: int = 1) -> Window:
            nonlocal largest
            window = whole(offset, minimum)
            largest = max(largest, len(window.data))
            return window

        source.window = watched  # type: ignore[method-assign]
        reader = open_frames(source)
        times = np.concatenate([frames.time_ns for frames in reader])
    assert len(times) == 40_000
    assert largest <= 1 << 22
