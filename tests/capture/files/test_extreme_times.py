"""Times at the ends of what a capture can tell: their differences are still differences."""

from __future__ import annotations

import io
import struct

from packet_builders import PcapngSection, ethernet, ipv4

from sojourn.capture.files.reader import CaptureReader
from sojourn.capture.files.source import PlainStream, StreamedSource
from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.rtt.state import RttLimits

FAR = 1 << 62  # seconds, further away than 64 bits of nanoseconds reach
LIMITS = RttLimits(connections=64, pending=64, max_rtt_ns=FAR - 1)


def echo(kind: int, source: str, destination: str) -> bytes:
    return ethernet(ipv4(struct.pack("!BBHHH", kind, 0, 0, 7, 1), 1, source, destination))


REQUEST, REPLY = echo(8, "10.0.0.1", "10.0.0.2"), echo(0, "10.0.0.2", "10.0.0.1")


def read(section: PcapngSection) -> tuple[list[int], list[int], RttMeter, list[str]]:
    """Times and round-trip times of a capture, the meter, and the warnings."""
    file = io.BytesIO(section.to_bytes())
    meter = RttMeter(RttOptions(limits=LIMITS))
    times, found = [], []
    with CaptureReader(StreamedSource("far", PlainStream(file), file)) as capture:
        for _, transport in capture.with_transport():
            times += transport.time_ns.tolist()
            found += [rtt for samples in meter.feed(transport) for rtt in samples.rtt_ns.tolist()]
    return times, found, meter, capture.warnings


def test_an_answer_centuries_before_its_packet_is_no_short_round_trip() -> None:
    section = PcapngSection().interface(resolution=0).interface(resolution=9, offset=-FAR)
    times, found, meter, warnings = read(section.enhanced(REQUEST, FAR, 0).enhanced(REPLY, 5, 1))
    assert times == [2**62 - 1, 1 - 2**62]
    assert found == []
    assert meter.ignored == {"answers with an earlier time than their packet": 1}
    assert any("2 packets have a time before 1824 or after 2116" in warning for warning in warnings)


def test_an_answer_centuries_after_its_packet_is_too_late() -> None:
    section = PcapngSection().interface(resolution=0).interface(resolution=9, offset=-FAR)
    _, found, meter, _ = read(section.enhanced(REQUEST, 5, 1).enhanced(REPLY, FAR, 0))
    assert found == []
    assert meter.ignored == {"answers later than the longest round trip": 1}


def test_times_of_32_bits_of_seconds_are_all_inside_the_bounds() -> None:
    section = PcapngSection().interface(resolution=6)
    times, _, _, warnings = read(section.enhanced(REQUEST, (2**32 - 1) * 10**6 + 999_999))
    assert times == [(2**32 - 1) * 10**9 + 999_999_000]
    assert warnings == []
