"""A live interface reads like a capture file: batches, counts that add up, limits, warnings."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from sojourn.capture.decoder import DecodeOptions
from sojourn.capture.filters import PacketFilter
from sojourn.capture.live_reader import BLOCK_BYTES, DROPPED, HANDED_OVER_NS, LiveReader, rehearsal
from sojourn.capture.rtt import RttMeter
from sojourn.core.batches import PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.lab.namespaces import Host, Network, two_hosts

pytestmark = [
    pytest.mark.xdist_group("live"),
    pytest.mark.skipif(
        os.geteuid() != 0 and not os.environ.get("CI"),
        reason="LIVE READING IS NOT TESTED: it needs root for packet sockets and network namespaces",
    ),
]

PORT = 7777


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with two_hosts() as hosts:
        yield hosts


def reader_on(host: Host, expression: str = "", **options: object) -> LiveReader:
    with host.entered():
        return LiveReader("eth0", packet_filter=PacketFilter(expression), **options)  # type: ignore[arg-type]


def send(host: Host, address: str, count: int, pause: float = 0.0) -> None:
    with host.entered():
        endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with endpoint:
        for number in range(count):
            endpoint.sendto(number.to_bytes(4, "big").ljust(100, b"."), (address, PORT))
            if pause:
                time.sleep(pause)


def test_batches_flows_and_counts_add_up(network: Network) -> None:
    with reader_on(network.receiver, f"udp port {PORT} or icmp", seconds=1.5, direction="in") as live:
        live.start()
        send(network.sender, network.receiver.address, 200)
        batches = list(live)
    assert sum(map(len, batches)) == live.ip_packets == 200
    assert live.packets == live.ip_packets + sum(live.ignored.values())
    assert live.ignored == {DROPPED: 0}  # answers (port unreachable) leave by the other direction and were not copied
    assert live.flows.packets.tolist() == [200]
    assert str(live.flows.key(0)).endswith(f"{network.receiver.address}:{PORT} udp")
    assert live.warnings == []
    assert live.share_read == 1.0


def test_what_was_left_out_is_counted_by_reason(network: Network) -> None:
    with reader_on(network.sender, seconds=1.0, direction="out") as live:
        live.start()
        network.sender.run("ip", "neighbour", "flush", "all")
        network.sender.run("ping", "-c", "5", "-i", "0.01", network.receiver.address)
        seen = sum(map(len, live))
    assert seen == live.ip_packets >= 5
    assert live.ignored["not in the captured direction"] >= 5
    assert live.ignored["arp"] >= 1
    assert live.packets == live.ip_packets + sum(live.ignored.values())


def test_batches_of_one_packet_keep_their_times(network: Network) -> None:
    """Each packet comes alone; a batch must not share memory with the one after it."""
    with reader_on(network.receiver, "udp", packets=6, direction="in") as live:
        live.start()
        sending = threading.Thread(
            target=send, args=(network.sender, network.receiver.address, 6), kwargs={"pause": 0.15}
        )
        sending.start()
        batches = [batch for batch in live if len(batch)]
        sending.join()
    assert len(batches) >= 5
    times = PacketBatch.concatenate(batches).time_ns
    assert np.diff(times).min() > 100_000_000


def test_it_ends_after_so_many_packets_or_with_a_stop(network: Network) -> None:
    with reader_on(network.receiver, "udp", packets=30, direction="in") as live:
        live.start()
        send(network.sender, network.receiver.address, 100)
        assert sum(map(len, live)) == live.ip_packets == 30
    with reader_on(network.receiver, "udp", direction="in") as live:
        live.start()
        send(network.sender, network.receiver.address, 50)
        live.stop()
        send(network.sender, network.receiver.address, 5)
        assert sum(map(len, live)) == 50


def test_it_says_up_to_when_all_packets_were_given(network: Network) -> None:
    """What lies before that time has been given, however quiet the interface is."""
    with reader_on(network.receiver, "udp", seconds=1.5, direction="in") as live:
        latest = 0
        sending = threading.Timer(0.5, send, (network.sender, network.receiver.address, 20))
        sending.start()
        for batch in live:
            if len(batch):
                assert live.complete_until_ns <= int(batch.time_ns.min())
                latest = int(batch.time_ns.max())
        sending.join()
    assert live.complete_until_ns > latest + 300_000_000
    assert live.complete_until_ns <= time.time_ns() - HANDED_OVER_NS


def test_drops_are_told_in_a_warning(network: Network) -> None:
    with reader_on(network.receiver, "udp", seconds=1.0, direction="in", ring_bytes=2 * BLOCK_BYTES) as live:
        live.start()
        send(network.sender, network.receiver.address, 5000)
        seen = sum(map(len, live))
        assert live.ignored[DROPPED] == 5000 - seen > 0
        assert live.packets == 5000
    (warning,) = live.warnings
    assert warning.startswith(f"eth0: the kernel dropped {5000 - seen:,} of 5,000 packets")


def test_packets_put_together_by_offloading_are_told_in_a_warning(network: Network) -> None:
    features = ("tx", "sg", "tso", "gso")
    network.sender.run("ethtool", "-K", "eth0", *(word for name in features for word in (name, "on")))
    try:
        with network.receiver.start("iperf3", "-s", "-1"), reader_on(network.sender, "tcp", seconds=1.5) as live:
            time.sleep(0.3)
            live.start()
            network.sender.run("iperf3", "-c", network.receiver.address, "-n", "1M")
            list(live)
    finally:
        network.sender.run("ethtool", "-K", "eth0", *(word for name in features for word in (name, "off")))
    (warning,) = live.warnings
    assert "bytes were put together by offloading" in warning
    assert "ethtool -K eth0 gro off" in warning


def test_limits_must_be_positive() -> None:
    for limits in ({"seconds": 0}, {"packets": 0}, {"seconds": -1}):
        with pytest.raises(ParameterError, match="give more than 0"):
            LiveReader("lo", **limits)  # type: ignore[arg-type]


def test_the_rehearsed_packet_reaches_every_kernel() -> None:
    batch, transport = rehearsal(DecodeOptions())
    assert len(batch) == 1
    assert (int(transport.dest_port[0]), int(transport.tsval[0]), int(transport.payload_bytes[0])) == (1883, 1, 2)
    meter = RttMeter()
    assert list(meter.feed(transport)) == []
    assert meter.packets == 1
