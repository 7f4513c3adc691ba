"""Packets, IP packets, flows and bytes of every real capture, as tshark counts them."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from pathlib import Path

import pytest
from tshark import FIELDS, OuterPacket, outer_packet, run_tshark

from conftest import SHARED_DATA
from sojourn.capture.reader import open_capture, open_frames
from sojourn.capture.source import open_source
from sojourn.core.keys import FlowKey

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
def test_counts_equal_tsharks(path: Path) -> None:
    frames = run_tshark(path, FIELDS)
    outer = [packet for packet in map(outer_packet, frames) if packet]
    with open_capture(path) as capture:
        for _ in capture:
            pass
    table = capture.flows
    ours = dict(
        zip(table.keys(), zip(table.packets.tolist(), table.bytes.tolist(), strict=True), strict=True)
    )
    assert capture.packets == len(frames)
    assert capture.ip_packets == len(outer)
    assert sum(capture.ignored.values()) == len(frames) - len(outer)
    assert ours == flows_of(outer)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_times_equal_tsharks(path: Path) -> None:
    frames = run_tshark(path, ["frame.time_epoch"])
    with open_source(path) as source:
        times = [time for chunk in open_frames(source) for time in chunk.time_ns.tolist()]
    theirs = [whole_ns(frame["frame.time_epoch"]) for frame in frames]
    # Simple Packet Blocks have no time: tshark leaves it out, we repeat the time before.
    assert [time for time, other in zip(times, theirs, strict=True) if other is not None] == [
        other for other in theirs if other is not None
    ]


def whole_ns(text: str) -> int | None:
    if not text:
        return None
    seconds, _, fraction = text.partition(".")
    return int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))


def test_there_are_captures_to_compare(shared_data: Path) -> None:
    assert len(list(shared_data.glob("captures/*"))) >= 24
