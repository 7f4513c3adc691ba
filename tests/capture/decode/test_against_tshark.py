"""Packets, IP packets, flows and bytes of every real capture, as tshark counts them."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from pathlib import Path

import pytest
from tshark import FIELDS, OuterPacket, outer_packet, run_tshark

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.ids import FlowKeying
from sojourn.capture.files.reader import open_capture, open_frames
from sojourn.capture.files.source import open_source
from sojourn.core.keys import FlowKey

# At collection there are no fixtures yet; `shared_data` is the same folder.
SHARED_DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
CAPTURES = sorted([*SHARED_DATA.glob("captures/*"), *SHARED_DATA.glob("two-point/*")])


def flows_of(packets: list[OuterPacket]) -> dict[FlowKey, tuple[int, int]]:
    """Packets and bytes by five-tuple; later fragments go with the first one seen before them."""
    first_fragments: dict[tuple[str, ...], tuple[int, tuple[int, int]]] = {}
    count: Counter[FlowKey] = Counter()
    size: Counter[FlowKey] = Counter()
    for packet in packets:
        protocol, ports = packet.protocol, packet.ports
        if packet.is_later_fragment:
            protocol, ports = first_fragments.get(packet.datagram, (protocol, ports))
        elif packet.is_fragment:
            first_fragments[packet.datagram] = (protocol, ports)
        ends = ip_address(packet.source), ip_address(packet.destination)
        key = FlowKey(ends[0], ports[0], ends[1], ports[1], protocol)
        count[key] += 1
        size[key] += packet.size
    return {key: (count[key], size[key]) for key in count}


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_counts_and_times_equal_tsharks(path: Path) -> None:
    frames = run_tshark(path, FIELDS)
    outer = [packet for packet in map(outer_packet, frames) if packet]
    with open_capture(path) as capture:
        list(capture)
    table = capture.flows
    counts = zip(table.packets.tolist(), table.bytes.tolist(), strict=True)
    assert capture.packets == len(frames)
    assert capture.ip_packets == len(outer)
    assert sum(capture.ignored.values()) == len(frames) - len(outer)
    assert dict(zip(table.keys(), counts, strict=True)) == flows_of(outer)

    with open_source(path) as source:
        times = [time for chunk in open_frames(source) for time in chunk.time_ns.tolist()]
    theirs = [whole_ns(frame["frame.time_epoch"]) for frame in frames]
    # Simple Packet Blocks have no time: tshark leaves it out, we repeat the time before.
    pairs = [(time, other) for time, other in zip(times, theirs, strict=True) if other is not None]
    assert [time for time, _ in pairs] == [other for _, other in pairs]


def whole_ns(text: str) -> int | None:
    if not text:
        return None
    seconds, _, fraction = text.partition(".")
    return int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))


@pytest.mark.parametrize("name", ["zeek-gre-in-gre.pcap", "zeek-erspan.pcap", "zeek-gtp1-frag.pcap"])
def test_packets_inside_of_tunnels_equal_tsharks_innermost(shared_data: Path, name: str) -> None:
    path = shared_data / "captures" / name
    fields = ["frame.protocols", "ip.src", "ip.dst", "ipv6.src", "ipv6.dst"]
    theirs: Counter[tuple[str, str]] = Counter()
    for frame in run_tshark(path, fields, occurrence="l"):
        layers = frame["frame.protocols"].split(":")
        version = [layer for layer in layers if layer in ("ip", "ipv6")][-1]
        theirs[frame[f"{version}.src"], frame[f"{version}.dst"]] += 1
    options = DecodeOptions(inner=True, keying=FlowKeying.parse("host-pair"))
    with open_capture(path, options) as capture:
        list(capture)
    ours = {str(key): int(count) for key, count in zip(capture.flows.keys(), capture.flows.packets, strict=True)}
    assert ours == {f"{source} > {destination}": count for (source, destination), count in theirs.items()}


def test_there_are_captures_to_compare(shared_data: Path) -> None:
    assert len(list(shared_data.glob("captures/*"))) >= 24
