"""Flows, round-trip times and packets of a live interface, between two hosts that are network namespaces."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sojourn.capture.live_reader import HANDED_OVER_NS
from sojourn.core.errors import LiveCaptureError
from sojourn.lab.namespaces import Host, Network, two_hosts
from sojourn.sources.registry import AnySource, new_source

pytestmark = [
    pytest.mark.xdist_group("live"),
    pytest.mark.skipif(
        os.geteuid() != 0 and not os.environ.get("CI"),
        reason="LIVE SOURCES ARE NOT TESTED: they need root for packet sockets and network namespaces",
    ),
]

PORT = 7777
PAYLOAD, HEADERS = 100, 28
HANDED_OVER = HANDED_OVER_NS / 1e9


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
    with host.entered():
        endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with endpoint:
        endpoint.bind(("", src_port))
        for _ in range(count):
            endpoint.sendto(bytes(PAYLOAD), (address, PORT))
    return f"{host.address}:{src_port} > {address}:{PORT} udp"


@pytest.mark.parametrize(("metric", "each"), [("flow_packets", 1), ("flow_bytes", PAYLOAD + HEADERS)])
def test_flows_are_counted_while_they_pass(network: Network, totals: Any, metric: str, each: int) -> None:
    source = opened(network.receiver, metric, filter="udp", direction="in")
    with_traffic = []
    try:
        for count in (100, 0, 50):
            one = send(network.sender, network.receiver.address, count, 40001)
            other = send(network.sender, network.receiver.address, 2 * count, 40002)
            time.sleep(HANDED_OVER)
            found = source.poll(time.time_ns())
            with_traffic.append(len(found))
            totals.add(found)
    finally:
        source.close()
    assert with_traffic == [300, 0, 150]
    assert totals.all == {one: 150 * each, other: 300 * each}
    assert source.ignored == {}
    assert source.warnings == []


def test_a_poll_of_a_quiet_interface_does_not_wait(network: Network) -> None:
    source = opened(network.receiver, "packets", filter="udp port 9")
    start = time.perf_counter()
    for _ in range(20):
        assert len(source.poll(time.time_ns())) == 0
    source.close()
    assert time.perf_counter() - start < 1.0


def test_packets_come_with_the_keys_of_their_flows(network: Network) -> None:
    source = opened(network.receiver, "packets", filter="udp", direction="in")
    key = send(network.sender, network.receiver.address, 30, 40003)
    time.sleep(HANDED_OVER)
    found = source.poll(time.time_ns())
    source.close()
    assert len(found.batch) == 30
    assert len(set(found.batch.packet_id.tolist())) == 30
    assert [str(key) for key in found.keys] == [key]


def test_round_trips_of_pings_are_measured(network: Network, totals: Any) -> None:
    source = opened(network.sender, "rtt", filter="icmp")
    said = network.sender.run("ping", "-c", "20", "-i", "0.01", network.receiver.address)
    time.sleep(HANDED_OVER)
    found = source.poll(time.time_ns())
    source.close()
    totals.add(found)
    mean_ms = float(said.rpartition("= ")[2].split("/")[1])
    assert list(totals.all) == [f"{network.receiver.address} > {network.sender.address} icmp"]
    assert len(found) == 20
    # ping also waits for the kernel to wake it, before and after.
    assert 0 < found.batch.value.mean() / 1e6 <= mean_ms


def test_an_interface_that_does_not_exist_is_told() -> None:
    with pytest.raises(LiveCaptureError, match="nowhere0"), new_source("packets", interface="nowhere0"):
        pass
