"""Exact matching of a real capture before and after a bottleneck, against a dictionary matcher."""

from __future__ import annotations

import gzip
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
import pytest

from sojourn.capture.files.reader import open_capture
from sojourn.capture.flows.table import Conversations
from sojourn.core.arrays import PacketBatch
from sojourn.core.keys import DestinationKey, FlowKey, HostPairKey, TrafficKey, VlanFlowKey, key_id, parse_key
from sojourn.matching.exact import ExactMatch, match_exact

MS = 1_000_000


def opposite_key(key: TrafficKey) -> TrafficKey | None:
    """The key of the packets that answer, or None if the key does not tell."""
    if isinstance(key, FlowKey):
        return key.reversed()
    if isinstance(key, HostPairKey):
        return HostPairKey(key.dest_ip, key.src_ip)
    if isinstance(key, VlanFlowKey):
        return replace(key, flow=key.flow.reversed())
    return None


def conversations_of(keys: list[TrafficKey]) -> Conversations:
    pairs = [(key_id(key), key_id(other)) for key in keys if (other := opposite_key(key)) is not None]
    ids = np.array(pairs, np.uint64).reshape(-1, 2)
    return Conversations(ids[:, 0], ids[:, 1])


def frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """Time and bytes of every frame of a little-endian nanosecond pcap file."""
    data = gzip.decompress(path.read_bytes())
    assert data[:4] == bytes.fromhex("4d3cb2a1")
    offset = 24
    while offset < len(data):
        seconds, nanoseconds, captured, _ = struct.unpack_from("<IIII", data, offset)
        offset += 16
        yield seconds * 10**9 + nanoseconds, data[offset : offset + captured]
        offset += captured


def flow_and_identity(frame: bytes) -> tuple[FlowKey, bytes]:
    """The five-tuple, and the IPv4 packet without what changes in flight."""
    packet = bytearray(frame[14:])
    packet = packet[: struct.unpack_from(">H", packet, 2)[0]]
    header = (packet[0] & 15) * 4
    source, dest = struct.unpack_from(">HH", packet, header)
    addresses = IPv4Address(bytes(packet[12:16])), IPv4Address(bytes(packet[16:20]))
    key = FlowKey(addresses[0], source, addresses[1], dest, packet[9])
    checksum = header + (16 if packet[9] == 6 else 6)
    packet[1] = packet[8] = 0
    packet[10:12] = packet[checksum : checksum + 2] = b"\0\0"
    return key, bytes(packet)


@dataclass
class FlowTruth:
    sent: int = 0
    delays: list[int] = field(default_factory=list)


@pytest.fixture(scope="module")
def truth(shared_data: Path) -> dict[FlowKey, FlowTruth]:
    """What a dictionary of packets says: k-th copy with k-th copy."""
    waiting: dict[bytes, list[int]] = defaultdict(list)
    flows: dict[FlowKey, FlowTruth] = defaultdict(FlowTruth)
    for time, frame in sorted(frames(shared_data / "two-point" / "ingress.pcap.gz")):
        key, identity = flow_and_identity(frame)
        waiting[identity].append(time)
        flows[key].sent += 1
    for time, frame in sorted(frames(shared_data / "two-point" / "egress.pcap.gz")):
        key, identity = flow_and_identity(frame)
        if waiting[identity]:
            flows[key].delays.append(time - waiting[identity].pop(0))
    return flows


@pytest.fixture(scope="module")
def points(shared_data: Path) -> tuple[PacketBatch, PacketBatch, list[TrafficKey]]:
    batches, keys = [], []
    for name in ("ingress.pcap.gz", "egress.pcap.gz"):
        with open_capture(shared_data / "two-point" / name) as capture:
            batches.append(PacketBatch.concatenate(list(capture)))
            keys += capture.flows.keys()
    return batches[0], batches[1], keys


def check_against(match: ExactMatch, truth: dict[FlowKey, FlowTruth], *, sign: int) -> None:
    wanted = {key_id(key): flow for key, flow in truth.items() if sign * sum(flow.delays) > 0}
    assert set(match.flows.flow_id.tolist()) == set(wanted)
    for row, flow_id in enumerate(match.flows.flow_id.tolist()):
        flow = wanted[flow_id]
        delays = sign * np.array(flow.delays)
        assert match.flows.received[row] == len(delays)
        assert match.flows.packets[row] == flow.sent
        assert match.flows.lost[row] == flow.sent - len(delays)
        assert match.flows.mean_ns[row] == pytest.approx(delays.mean(), rel=1e-12)
        assert match.flows.std_ns[row] == pytest.approx(delays.std(), rel=1e-9)
        assert (match.flows.min_ns[row], match.flows.max_ns[row]) == (delays.min(), delays.max())


@pytest.mark.parametrize("with_keys", [True, False])
def test_every_flow_agrees_with_a_dictionary_matcher_to_the_packet(
    points: tuple[PacketBatch, PacketBatch, list[TrafficKey]],
    truth: dict[FlowKey, FlowTruth],
    with_keys: bool,
) -> None:
    ingress, egress, keys = points
    conversations = conversations_of(keys) if with_keys else None
    match = match_exact(ingress, egress, conversations=conversations)
    check_against(match, truth, sign=1)
    assert (match.aggregate.sent, match.aggregate.lost) == (44_829, 8_521)
    assert match.aggregate.negative == 0
    assert not match.clock.corrected  # both captures were stamped by one clock
    assert match.clock.uncertainty_ns is not None
    assert abs(match.clock.offset_ns) <= match.clock.uncertainty_ns < 5_000


def test_the_way_back_lost_nothing(
    points: tuple[PacketBatch, PacketBatch, list[TrafficKey]], truth: dict[FlowKey, FlowTruth]
) -> None:
    ingress, egress, keys = points
    match = match_exact(egress, ingress, conversations=conversations_of(keys))
    check_against(match, truth, sign=-1)
    assert match.aggregate.lost == 0
    assert match.ignored()["edge of the interval at sender"] == 47  # sent after the other capture had ended


@pytest.mark.parametrize("offset", [3_600_000 * MS, -40 * MS])
@pytest.mark.parametrize("ppm", [-200, 80])
def test_a_clock_that_is_wrong_is_found_and_taken_out(
    points: tuple[PacketBatch, PacketBatch, list[TrafficKey]],
    truth: dict[FlowKey, FlowTruth],
    offset: int,
    ppm: int,
) -> None:
    ingress, egress, keys = points
    start = int(egress.time_ns.min())
    drift = ((egress.time_ns - start) * ppm) // 1_000_000
    wrong = PacketBatch.of(egress.flow_id, egress.packet_id, egress.time_ns + offset + drift)
    match = match_exact(ingress, wrong, conversations=conversations_of(keys))
    assert match.clock.corrected
    assert match.clock.skew_ppm == pytest.approx(ppm, abs=1)
    assert match.clock.uncertainty_ns is not None
    assert match.clock.uncertainty_ns < 10_000
    assert (match.aggregate.sent, match.aggregate.lost) == (44_829, 8_521)
    delays = np.concatenate([flow.delays for flow in truth.values() if sum(flow.delays) > 0])
    assert abs(match.aggregate.mean_ns - delays.mean()) <= match.clock.uncertainty_ns


def test_opposite_keys_have_opposite_ids() -> None:
    five_tuple = parse_key("10.0.0.1:80 > 10.0.0.2:443 tcp")
    assert isinstance(five_tuple, FlowKey)
    keys: list[TrafficKey] = [
        five_tuple,
        HostPairKey(five_tuple.src_ip, five_tuple.dest_ip),
        VlanFlowKey((7, 9), five_tuple),
        HostPairKey(IPv4Address("10.0.0.9"), IPv4Address("10.0.0.1")),
    ]
    conversations = conversations_of(keys)
    assert conversations.flow_id.tolist() == [key_id(key) for key in keys]
    opposites = [opposite_key(key) for key in keys]
    assert conversations.reverse_id.tolist() == [key_id(key) for key in opposites if key is not None]
    assert [opposite_key(key) for key in opposites if key is not None] == keys
    destination = parse_key("> 10.0.0.0/8")
    assert isinstance(destination, DestinationKey)
    assert opposite_key(destination) is None
