"""Flows, round-trip times and packets of a live interface, between two hosts that are network namespaces."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from live_hosts import segments_sent, send_datagrams, transfer_seconds, wait_for_silence
from machine import live_marks
from sojourn.capture.live.reader import BLOCK_BYTES
from sojourn.core.errors import LiveCaptureError, SourceError
from sojourn.lab.namespaces import Host, Network, two_hosts
from sojourn.sources.registry import AnySource, new_source
from sojourn.sources.source import SourceBatch
from sojourn.sources.traffic import FILLED
from waiting import eventually

pytestmark = live_marks("LIVE SOURCES ARE NOT TESTED: they need root for packet sockets and network namespaces")

PORT = 7777
PAYLOAD, HEADERS = 100, 28


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with two_hosts() as hosts:
        yield hosts


def opened(host: Host, metric: str, **options: Any) -> AnySource:
    source = new_source(metric, interface="eth0", **options)
    with host.entered():
        source.open()
    return source


def send(host: Host, address: str, count: int, src_port: int) -> str:
    """Send datagrams; the text of their flow's key."""
    send_datagrams(host, address, count, PORT, size=PAYLOAD, src_port=src_port)
    return f"{host.address}:{src_port} > {address}:{PORT} udp"


def polled(source: AnySource, count: int) -> list[SourceBatch[Any]]:
    """Polls until so many rows have come, and one more."""
    found: list[SourceBatch[Any]] = []

    def has_come() -> bool:
        found.append(source.poll(time.time_ns()))
        return sum(map(len, found)) >= count

    eventually(has_come)
    return [*found, source.poll(time.time_ns())]


@pytest.mark.parametrize(("metric", "each"), [("flow_packets", 1), ("flow_bytes", PAYLOAD + HEADERS)])
def test_flows_are_counted_while_they_pass(network: Network, totals: Any, metric: str, each: int) -> None:
    source = opened(network.receiver, metric, filter="udp", direction="in")
    with_traffic = []
    try:
        for count in (100, 0, 50):
            one = send(network.sender, network.receiver.address, count, 40001)
            other = send(network.sender, network.receiver.address, 2 * count, 40002)
            found = polled(source, 3 * count)
            with_traffic.append(sum(map(len, found)))
            for part in found:
                totals.add(part)
    finally:
        source.close()
    assert with_traffic == [300, 0, 150]
    assert totals.all == {one: 150 * each, other: 300 * each}
    assert source.ignored == {}
    assert source.warnings == []


def test_a_poll_of_a_quiet_interface_does_not_wait(network: Network) -> None:
    source = opened(network.receiver, "packets", filter="udp port 9")
    lasted = []
    for _ in range(20):
        start = time.perf_counter()
        assert len(source.poll(time.time_ns())) == 0
        lasted.append(time.perf_counter() - start)
    source.close()
    assert min(lasted) < 0.05


def test_packets_come_with_the_keys_of_their_flows(network: Network) -> None:
    source = opened(network.receiver, "packets", filter="udp", direction="in")
    key = send(network.sender, network.receiver.address, 30, 40003)
    found = polled(source, 30)
    source.close()
    packets = [packet for part in found for packet in part.batch.packet_id.tolist()]
    assert len(packets) == len(set(packets)) == 30
    assert [str(key) for part in found for key in part.keys] == [key]


def test_round_trips_of_pings_are_measured(network: Network, totals: Any) -> None:
    source = opened(network.sender, "rtt", filter="icmp")
    said = network.sender.run("ping", "-c", "20", "-i", "0.01", network.receiver.address)
    found = polled(source, 20)
    source.close()
    for part in found:
        totals.add(part)
    assert list(totals.all) == [f"{network.receiver.address} > {network.sender.address} icmp"]
    ours = np.concatenate([part.batch.value for part in found])
    theirs = [float(time_ms) for time_ms in re.findall(r"time=([\d.]+) ms", said)]
    assert len(ours) == len(theirs) == 20
    # ping also counts how long the kernel takes to send; where the machine was held up, either may be longer.
    assert (ours > 0).all()
    assert np.median(ours) / 1e6 <= np.median(theirs)


def test_an_interface_that_does_not_exist_is_told() -> None:
    with pytest.raises(LiveCaptureError, match="nowhere0"), new_source("packets", interface="nowhere0"):
        pass


def offload(host: Host, state: str) -> None:
    host.run("ethtool", "-K", "eth0", *(word for name in ("tx", "tso", "gso", "gro") for word in (name, state)))


@pytest.fixture
def offloading() -> Iterator[Network]:
    with two_hosts() as hosts:
        offload(hosts.sender, "on")
        yield hosts


def test_packets_put_together_by_offloading_are_those_of_the_wire(offloading: Network) -> None:
    sources = {
        name: opened(offloading.sender, name, filter="tcp", direction="out") for name in ("packets", "flow_bytes")
    }
    transfer_seconds(offloading.sender, offloading.receiver, 1_000_000)
    wait_for_silence(offloading.sender)
    found = {}
    for name, source in sources.items():
        found[name] = [part.batch for part in polled(source, segments_sent(offloading.sender))]
        source.close()
        assert source.warnings == []
    sizes = np.concatenate([batch.size_bytes for batch in found["packets"]])
    assert sizes.max() == 1500
    assert sizes.sum() == sum(batch.value.sum() for batch in found["flow_bytes"])
    assert len(sizes) == segments_sent(offloading.sender)


def test_packets_fail_with_the_remedy_where_those_of_the_wire_are_not_known(offloading: Network) -> None:
    """Of TCP in a tunnel the kernel tells the segments, not where they lie."""
    hosts = offloading.sender, offloading.receiver
    for host, other in (hosts, hosts[::-1]):
        ends = ("dev", "eth0", "remote", other.address)
        host.run("ip", "link", "add", "tunnel", "type", "vxlan", "id", "7", "dstport", "4789", *ends)
        host.run("ip", "address", "add", f"10.98.0.{host.address[-1]}/24", "dev", "tunnel")
        host.run("ip", "link", "set", "tunnel", "up")
    inside = replace(offloading.receiver, address=f"10.98.0.{offloading.receiver.address[-1]}")
    source, bytes_ = (opened(offloading.sender, name, direction="out") for name in ("packets", "flow_bytes"))
    try:
        transfer_seconds(offloading.sender, inside, 1_000_000)
        remedy = (
            r"eth0: \d+ packets? put together .* could not be split .*; ethtool -K eth0 gro off lro off gso off tso off"
        )
        with pytest.raises(SourceError, match=remedy):
            polled(source, 1_000_000)
        assert sum(map(len, polled(bytes_, 10))) > 10
        assert [warning for warning in bytes_.warnings if re.match(remedy, warning)] == bytes_.warnings != []
    finally:
        source.close()
        bytes_.close()
    offload(offloading.sender, "off")
    source = opened(offloading.sender, "packets", direction="out")
    transfer_seconds(offloading.sender, inside, 1_000_000)
    assert sum(map(len, polled(source, 690))) > 690
    source.close()


def test_packets_that_the_kernel_dropped_are_counted_until_each_poll(network: Network) -> None:
    wanted: dict[str, Any] = {"filter": f"udp port {PORT}", "direction": "in", "ring_bytes": 2 * BLOCK_BYTES}
    source: Any = opened(network.receiver, "packets", **wanted)
    assert source.missed == 0
    missed = []
    for count in (2000, 10, 2000):
        with source._lock:  # nobody reads meanwhile
            send_datagrams(network.sender, network.receiver.address, count, PORT, size=1400)
        before, taken = source.missed, 0

        def all_came(before: int = before, count: int = count) -> bool:
            nonlocal taken
            taken += len(source.poll(time.time_ns()))
            return bool(taken + source.missed - before >= count)

        eventually(all_came)
        missed.append(source.missed)
        assert taken + source.missed - before == count
    source.close()
    assert 0 < missed[0] == missed[1] < missed[2] == source.missed


def test_a_ring_that_fills_between_polls_is_emptied(network: Network) -> None:
    """Several times what the ring holds, without a poll in between."""
    wanted: dict[str, Any] = {"filter": f"udp port {PORT}", "direction": "in", "ring_bytes": 16 * BLOCK_BYTES}
    source: Any = opened(network.receiver, "packets", **wanted)
    for _ in range(12):
        send_datagrams(network.sender, network.receiver.address, 1600, PORT, size=1400)
        eventually(lambda: not source._reader.capture.is_filled(FILLED), "nobody empties the ring")
    assert sum(map(len, polled(source, 12 * 1600))) == 12 * 1600
    assert source.missed == 0
    source.close()


def test_what_came_before_an_interface_went_down_is_given_first() -> None:
    with two_hosts() as hosts:
        source = opened(hosts.receiver, "packets", filter=f"udp port {PORT}", direction="in")
        send(hosts.sender, hosts.receiver.address, 100, 40003)
        hosts.receiver.run("ip", "link", "set", "eth0", "down")
        found: list[int] = []

        def has_failed() -> bool:
            try:
                found.append(len(source.poll(time.time_ns())))
            except LiveCaptureError:
                return True
            return False

        eventually(has_failed)
        assert sum(found) == 100
        with pytest.raises(LiveCaptureError, match="eth0: the interface is down"):
            source.poll(time.time_ns())
        source.close()
