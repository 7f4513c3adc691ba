"""A live interface reads like a capture file: batches, counts that add up, limits, warnings."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from live_hosts import send_datagrams, wait_for_listener
from machine import live_marks
from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.filters import PacketFilter
from sojourn.capture.live.reader import BLOCK_BYTES, DROPPED, HANDED_OVER_NS, LiveReader, rehearsal
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.lab.namespaces import Host, Network, two_hosts
from sojourn.rtt.round_trips import RttMeter
from waiting import PATIENCE_SECONDS

pytestmark = live_marks("LIVE READING IS NOT TESTED: it needs root for packet sockets and network namespaces")

PORT = 7777


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with two_hosts() as hosts:
        yield hosts


def reader_on(host: Host, expression: str = "", **options: object) -> LiveReader:
    with host.entered():
        return LiveReader("eth0", packet_filter=PacketFilter(expression), **options)  # type: ignore[arg-type]


def send(network: Network, count: int) -> None:
    send_datagrams(network.sender, network.receiver.address, count, PORT)


def test_batches_flows_and_counts_add_up(network: Network) -> None:
    with reader_on(network.receiver, f"udp port {PORT} or icmp", direction="in") as live:
        live.start()
        send(network, 200)
        live.stop()
        batches = list(live)
    assert sum(map(len, batches)) == live.ip_packets == 200
    assert live.packets == live.ip_packets + sum(live.ignored.values())
    assert live.ignored == {DROPPED: 0}  # answers (port unreachable) leave by the other direction and were not copied
    assert live.flows.packets.tolist() == [200]
    assert str(live.flows.key(0)).endswith(f"{network.receiver.address}:{PORT} udp")
    assert live.warnings == []


def test_it_ends_after_so_many_seconds(network: Network) -> None:
    with reader_on(network.receiver, seconds=0.5) as live:
        begun = time.monotonic()
        list(live)
    assert time.monotonic() - begun >= 0.5
    assert live.share_read == 1.0


def test_what_was_left_out_is_counted_by_reason(network: Network) -> None:
    with reader_on(network.sender, direction="out") as live:
        live.start()
        network.sender.run("ip", "neighbour", "flush", "all")
        network.sender.run("ping", "-c", "5", "-i", "0.01", network.receiver.address)
        live.stop()
        seen = sum(map(len, live))
    assert seen == live.ip_packets >= 5
    assert live.ignored["not in the captured direction"] >= 5
    assert live.ignored["arp"] >= 1
    assert live.packets == live.ip_packets + sum(live.ignored.values())


def test_batches_of_one_packet_keep_their_times(network: Network) -> None:
    """Each packet comes alone; a batch must not share memory with the one after it."""
    with reader_on(network.receiver, "udp", packets=6, direction="in") as live:
        live.start()
        moments, batches = [], []
        for batch in live:
            if len(batch) == 1:
                batches.append(batch)
            if len(batches) == len(moments):
                moments.append(time.time_ns())
                send(network, 1)
        assert len(batches) == 6
    times = PacketBatch.concatenate(batches).time_ns
    assert (times >= moments[:6]).all()
    assert (times[:-1] < moments[1:6]).all()


def test_it_ends_after_so_many_packets_or_with_a_stop(network: Network) -> None:
    with reader_on(network.receiver, "udp", packets=30, direction="in") as live:
        live.start()
        send(network, 100)
        assert sum(map(len, live)) == live.ip_packets == 30
    with reader_on(network.receiver, "udp", direction="in") as live:
        live.start()
        send(network, 50)
        live.stop()
        send(network, 5)
        assert sum(map(len, live)) == 50


def test_it_says_up_to_when_all_packets_were_given(network: Network) -> None:
    """What lies before that time has been given, however quiet the interface is."""
    with reader_on(network.receiver, "udp", direction="in") as live:
        live.start()
        send(network, 20)
        latest = seen = 0
        deadline = time.monotonic() + PATIENCE_SECONDS
        for batch in live:
            if len(batch):
                assert live.complete_until_ns <= int(batch.time_ns.min())
                latest, seen = int(batch.time_ns.max()), seen + len(batch)
            if seen == 20 and live.complete_until_ns > latest + 300_000_000:
                break
            assert time.monotonic() < deadline
        assert live.complete_until_ns <= time.time_ns() - HANDED_OVER_NS


def test_drops_are_told_in_a_warning(network: Network) -> None:
    with reader_on(network.receiver, "udp", direction="in", ring_bytes=2 * BLOCK_BYTES) as live:
        live.start()
        send(network, 5000)
        live.stop()
        seen = sum(map(len, live))
        assert live.ignored[DROPPED] == 5000 - seen > 0
        assert live.packets == 5000
    (warning,) = live.warnings
    assert warning.startswith(f"eth0: the kernel dropped {5000 - seen:,} of 5,000 packets")


def test_packets_put_together_by_offloading_are_told_in_a_warning(network: Network) -> None:
    features = ("tx", "sg", "tso", "gso")
    network.sender.run("ethtool", "-K", "eth0", *(word for name in features for word in (name, "on")))
    try:
        with network.receiver.start("iperf3", "-s", "-1"), reader_on(network.sender, "tcp") as live:
            wait_for_listener(network.receiver, 5201)
            live.start()
            network.sender.run("iperf3", "-c", network.receiver.address, "-n", "1M")
            live.stop()
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
