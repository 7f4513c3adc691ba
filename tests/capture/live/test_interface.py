"""Live capture on real interfaces: every packet, once, as tcpdump sees it; what is lost is said."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from plain_pcap import frame_bytes, read_pcap

from live_hosts import Tcpdump, send_datagrams, wait_for_listener, wait_for_tcpdump
from machine import live_marks
from sojourn.capture.decode.frames import Frames
from sojourn.capture.filters import PacketFilter
from sojourn.capture.live.interface import LiveCapture, start_together
from sojourn.capture.live.ring import keep
from sojourn.core.errors import LiveCaptureError, ParameterError
from sojourn.lab.namespaces import Bottleneck, Host, Network, two_hosts
from waiting import PATIENCE_SECONDS, eventually

pytestmark = live_marks("LIVE CAPTURE IS NOT TESTED: it needs root for packet sockets and network namespaces")

PORT = 7777


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with two_hosts() as hosts:
        yield hosts


def capture_on(host: Host, interface: str = "eth0", expression: str = "", **options: object) -> LiveCapture:
    with host.entered():
        return LiveCapture(interface, filter=PacketFilter(expression), **options)  # type: ignore[arg-type]


def stop_together(captures: list[LiveCapture]) -> int:
    """Stop all at one moment, whose time is returned."""
    moment = time.time_ns()
    for capture in captures:
        capture.stop(moment)
    return moment


def numbers_of(packets: list[bytes]) -> list[int]:
    """Which datagrams of `send_datagrams` these Ethernet frames are."""
    return [int.from_bytes(packet[42:46], "big") for packet in packets]


def send_frame(host: Host, frame: bytes) -> None:
    with host.entered():
        endpoint = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with endpoint:
        endpoint.bind(("eth0", 0))
        endpoint.send(frame)


def collect(capture: LiveCapture, **limits: float) -> tuple[list[bytes], list[int]]:
    """Bytes and times of all frames until the capture ends."""
    chunks = [keep(frames) for frames in capture.chunks(**limits)]  # type: ignore[arg-type]
    return [b for c in chunks for b in frame_bytes(c)], [t for c in chunks for t in c.time_ns.tolist()]


def make_traffic(network: Network) -> None:
    """A ping, UDP below the bottleneck's rate and TCP that fills it: 3000 and more than 2000 packets."""
    for how in (("-u", "-b", "10M", "-l", "400", "-n", "1200K"), ("-n", "3M")):
        with network.receiver.start("iperf3", "-s", "-1"):
            wait_for_listener(network.receiver, 5201)
            network.sender.run("iperf3", "-c", network.receiver.address, *how, timeout=PATIENCE_SECONDS)
    network.sender.run("ping", "-c", "5", "-i", "0.02", network.receiver.address6)


def assert_same_packets(ours: list[tuple[bytes, int]], theirs: Frames, missed: int, start: int, stop: int) -> None:
    """The same packets, but for those that tcpdump says it missed; at the edges either may have one more.

    Their times differ by less than 1 ms, but for a few between whose two stamps the machine was held up.
    """
    edge = 1_000_000
    all_theirs = list(zip(frame_bytes(theirs), theirs.time_ns.tolist(), strict=True))
    inner = sorted(pair for pair in ours if start + edge < pair[1] < stop - edge)
    reference = sorted(pair for pair in all_theirs if start + edge < pair[1] < stop - edge)
    assert len(reference) > 3000
    counts = Counter(packet for packet, _ in inner)
    counts.subtract(Counter(packet for packet, _ in reference))
    differing = {packet.hex(): extra for packet, extra in counts.items() if extra}
    assert all(extra > 0 for extra in differing.values()), differing
    assert sum(differing.values()) <= missed, differing
    if not differing:
        difference = np.array([t for _, t in inner]) - np.array([t for _, t in reference])
        assert np.quantile(np.abs(difference), 0.95) < 1_000_000


def test_both_ends_of_a_bottleneck_are_captured_packet_by_packet_like_tcpdump(tmp_path: Path) -> None:
    with two_hosts(bottleneck=Bottleneck(20_000_000), router=True) as network:
        hosts = (network.sender, network.receiver)
        references = [Tcpdump(host, "eth0", tmp_path / f"{host.name}.pcap") for host in hosts]
        captures = [capture_on(host) for host in hosts]
        start = start_together(captures)
        results: dict[str, tuple[list[bytes], list[int]]] = {}
        readers = [
            threading.Thread(target=lambda h=host, c=capture: results.update({h.name: collect(c)}))
            for host, capture in zip(hosts, captures, strict=True)
        ]
        for reader in readers:
            reader.start()
        make_traffic(network)
        time.sleep(0.1)
        stop = stop_together(captures)
        wait_for_tcpdump(network.sender, network.receiver.address, references)
        for reader in readers:
            reader.join()
        for host, capture, reference in zip(hosts, captures, references, strict=True):
            missed, theirs = reference.finish(), read_pcap(reference.path.read_bytes())
            packets, times = results[host.name]
            statistics = capture.statistics()
            assert statistics.dropped == 0
            assert statistics.delivered == len(packets)
            assert min(times) >= start
            assert max(times) <= stop
            assert_same_packets(list(zip(packets, times, strict=True)), theirs, missed, start, stop)
            capture.close()


def test_a_full_ring_is_reported_as_drops_and_capture_goes_on(network: Network) -> None:
    capture = capture_on(network.receiver, "eth0", f"udp port {PORT}", block_size=4096, blocks=4)
    with capture:
        send_datagrams(network.sender, network.receiver.address, 2000, size=1000)

        def is_empty() -> bool:
            capture.read(0.1)
            statistics = capture.statistics()
            return statistics.delivered + statistics.dropped == statistics.seen

        eventually(is_empty)
        statistics = capture.statistics()
        first = statistics.delivered
        assert 0 < first < 30
        assert statistics.seen == 2000
        assert statistics.dropped == 2000 - first
        assert statistics.freezes >= 1
        send_datagrams(network.sender, network.receiver.address, 3)
        capture.stop()
        packets, _ = collect(capture)
        assert len(packets) == 3
        assert capture.statistics().delivered == first + 3


@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_everything_from_before_a_stop_is_delivered(network: Network, how: str) -> None:
    capture = capture_on(network.receiver, expression=f"udp port {PORT}", retire_ms=200)
    before = signal.signal(signal.SIGINT, lambda *_: capture.stop())
    try:
        with capture:
            send_datagrams(network.sender, network.receiver.address, 1000)
            signal.raise_signal(signal.SIGINT) if how == "interrupt" else capture.stop()
            send_datagrams(network.sender, network.receiver.address, 50)
            packets, _ = collect(capture)
    finally:
        signal.signal(signal.SIGINT, before)
    assert numbers_of(packets) == list(range(1000))
    assert capture.statistics().ignored["after the stop"] == 50


def test_captures_that_start_together_see_the_same_packets(network: Network) -> None:
    captures = [
        capture_on(network.sender, expression="udp", direction="out"),
        capture_on(network.receiver, expression="udp", direction="in"),
    ]
    with network.sender.entered():
        endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    done, count = threading.Event(), 0

    def send() -> None:
        nonlocal count
        while not done.wait(1e-4):
            endpoint.sendto(count.to_bytes(4, "big").ljust(100, b"."), (network.receiver.address, PORT))
            count += 1

    sending = threading.Thread(target=send)
    sending.start()
    eventually(lambda: count > 100)
    moment = start_together(captures)
    before = count
    eventually(lambda: count > before + 500)
    end = stop_together(captures)
    sent, received = (collect(capture) for capture in captures)
    done.set()
    sending.join()
    endpoint.close()
    for capture in captures:
        capture.close()
    sent_numbers, received_numbers = (numbers_of(packets) for packets, _ in (sent, received))
    for numbers in (sent_numbers, received_numbers):
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert len(numbers) > 300
    assert 0 <= sent_numbers[0] - received_numbers[0] <= 50  # what was between the two at the start: one, or none
    assert 0 <= sent_numbers[-1] - received_numbers[-1] <= 50
    times = sent[1] + received[1]
    assert moment <= min(times)
    assert max(times) <= end


def test_the_kernel_applies_the_filter_and_the_snap_length(network: Network) -> None:
    expression = f"udp dst port {PORT} and src host {network.sender.address}"
    with capture_on(network.receiver, expression=expression, snap_length=60) as capture:
        for port in (PORT, PORT + 1):
            send_datagrams(network.sender, network.receiver.address, 20, port=port)
        capture.stop()
        chunks = [keep(frames) for frames in capture.chunks()]
        assert sum(map(len, chunks)) == capture.statistics().seen == 20
        assert {c for frames in chunks for c in frames.captured.tolist()} == {60}
        assert {n for frames in chunks for n in frames.length.tolist()} == {142}


def ethernet(payload: bytes, *tags: int) -> bytes:
    stack = b"".join(b"\x81\x00" + tag.to_bytes(2, "big") for tag in tags)
    return b"\xff" * 6 + b"\x02\x00\x00\x00\x00\x01" + stack + b"\x08\x00" + payload


UDP_PACKET = bytes.fromhex("4500002800004000401100000a6101020a610103") + bytes.fromhex("1e611e6100140000") + bytes(12)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("", [(), (42,), (0x2007,), (42, 7)]),
        ("udp", [()]),
        ("vlan", [(42,), (0x2007,), (42, 7)]),
        ("vlan 7", [(0x2007,)]),
        ("vlan 42 and udp", [(42,)]),
        ("vlan 42 and vlan 7 and udp", [(42, 7)]),
        ("udp and not vlan", [()]),
    ],
)
def test_vlan_tags_are_put_back_before_the_filter_judges(
    network: Network, expression: str, expected: list[tuple[int, ...]]
) -> None:
    ours = f"ether src 02:00:00:00:00:01 and {expression}" if expression else "ether src 02:00:00:00:00:01"
    with capture_on(network.receiver, expression=ours, direction="in", snap_length=48) as capture:
        for tags in [(), (42,), (0x2007,), (42, 7)]:
            send_frame(network.sender, ethernet(UDP_PACKET, *tags))
        capture.stop()
        packets, _ = collect(capture)
    assert packets == [ethernet(UDP_PACKET, *tags)[:48] for tags in expected]


@pytest.mark.parametrize(("direction", "expected"), [("in", 4), ("out", 4), ("both", 8)])
def test_a_direction_can_be_chosen(network: Network, direction: str, expected: int) -> None:
    with capture_on(network.sender, expression="icmp", direction=direction) as capture:
        network.sender.run("ping", "-c", "4", "-i", "0.01", network.receiver.address)
        capture.stop()
        packets, _ = collect(capture)
    assert len(packets) == expected
    kinds = {packet[34] for packet in packets}
    assert kinds == {"in": {0}, "out": {8}, "both": {0, 8}}[direction]


def test_the_loopback_shows_each_packet_once(network: Network) -> None:
    with capture_on(network.sender, "lo", "udp") as capture:
        send_datagrams(network.sender, "127.0.0.1", 10)
        capture.stop()
        packets, _ = collect(capture)
    assert numbers_of(packets) == list(range(10))


def test_a_tun_interface_gives_packets_from_the_ip_header_on(network: Network) -> None:
    with network.sender.entered(), open("/dev/net/tun", "r+b", buffering=0) as tunnel:
        fcntl.ioctl(tunnel, 0x400454CA, struct.pack("16sH22x", b"tunnel0", 0x1001))
        network.sender.run("ip", "address", "add", "10.98.0.1/24", "dev", "tunnel0")
        network.sender.run("ip", "link", "set", "tunnel0", "up")
        with capture_on(network.sender, "tunnel0", f"udp dst port {PORT}") as capture:
            assert capture.link == 101
            send_datagrams(network.sender, "10.98.0.2", 5)
            capture.stop()
            packets, _ = collect(capture)
    assert len(packets) == 5
    assert {packet[0] for packet in packets} == {0x45}


def test_a_capture_ends_after_so_many_packets_or_seconds(network: Network) -> None:
    with capture_on(network.receiver, expression="udp") as capture:
        send_datagrams(network.sender, network.receiver.address, 100)
        packets, _ = collect(capture, packets=30)
        assert len(packets) == capture.statistics().delivered == 30
    begun = time.monotonic()
    with capture_on(network.receiver, expression="udp") as capture:
        ticks = list(capture.chunks(seconds=2, poll_seconds=0.1))
    assert 2 <= time.monotonic() - begun < PATIENCE_SECONDS
    assert len(ticks) >= 4
    assert all(len(frames) == 0 for frames in ticks)


def test_frames_that_outlive_the_capture_can_still_be_read(network: Network) -> None:
    with capture_on(network.receiver, expression="udp") as capture:
        send_datagrams(network.sender, network.receiver.address, 10)
        frames = capture.read(1.0)
        copy = keep(frames)
    assert frame_bytes(frames) == frame_bytes(copy)
    assert not frames.data.flags.writeable


def promiscuity(host: Host) -> str:
    text = host.run("ip", "-details", "link", "show", "eth0")
    return text.split("promiscuity ")[1].split()[0]


def test_forwarded_packets_are_told_by_where_they_entered() -> None:
    """On the router's right: what came from the left, not what it sends itself nor what comes from the right."""
    with two_hosts(router=True) as network:
        router = network.router
        assert router is not None
        with router.entered():
            forwarded = LiveCapture("right", direction="out", entered_by="left", snap_length=60)
        with forwarded, capture_on(router, "right", f"udp dst port {PORT}", direction="out") as everything:
            send_datagrams(network.sender, network.receiver.address, 30)
            send_datagrams(router, network.receiver.address, 7)
            send_datagrams(network.receiver, network.sender.address, 5)
            for capture in (forwarded, everything):
                capture.stop()
            chunks = [keep(frames) for frames in forwarded.chunks()]
            assert len(collect(everything)[0]) == 37
    packets = [packet for frames in chunks for packet in frame_bytes(frames)]
    assert numbers_of([packet for packet in packets if packet[23] == socket.IPPROTO_UDP]) == list(range(30))
    assert {n for frames in chunks for n in frames.captured.tolist()} == {60}


def test_an_ingress_that_is_not_there_or_beside_a_filter_is_refused(network: Network) -> None:
    with pytest.raises(LiveCaptureError, match="nosuch0: no such interface"), network.sender.entered():
        LiveCapture("eth0", entered_by="nosuch0")
    with pytest.raises(ParameterError, match="an ingress and a filter"):
        LiveCapture("eth0", entered_by="lo", filter=PacketFilter("udp"))


def test_promiscuous_mode_ends_with_the_capture_even_while_frames_live(network: Network) -> None:
    with capture_on(network.receiver, promiscuous=True) as capture:
        frames = capture.read(0.01)
        assert promiscuity(network.receiver) == "1"
    assert promiscuity(network.receiver) == "0"
    assert len(frames.data) == 128 << 18


def test_an_interface_that_goes_first_gives_its_packets_then_one_error() -> None:
    with two_hosts() as network:
        for command, said in ((("set", "eth0", "down"), "is down"), (("delete", "eth0"), "disappeared")):
            with capture_on(network.receiver, expression="udp") as capture:
                send_datagrams(network.sender, network.receiver.address, 20)
                network.receiver.run("ip", "link", *command)
                with pytest.raises(LiveCaptureError, match=said):
                    collect(capture, seconds=PATIENCE_SECONDS)
                assert capture.statistics().delivered == 20
            if said == "is down":
                with pytest.raises(LiveCaptureError, match="eth0: the interface is down; ip link set eth0 up"):
                    capture_on(network.receiver).start()
                network.receiver.run("ip", "link", "set", "eth0", "up")


def test_what_cannot_be_captured_is_refused_in_one_line(network: Network) -> None:
    with pytest.raises(LiveCaptureError, match="nowhere0: no such interface; choose one of"):
        LiveCapture("nowhere0")
    with pytest.raises(LiveCaptureError, match="no such interface"):
        LiveCapture("a-name-that-is-too-long")
    os.seteuid(65534)
    try:
        with pytest.raises(LiveCaptureError, match="lo: no permission to capture; run as root"):
            LiveCapture("lo")
    finally:
        os.seteuid(0)
    capture = capture_on(network.sender)
    with pytest.raises(LiveCaptureError, match="not capturing"):
        capture.read(0)
    capture.close()
    with pytest.raises(LiveCaptureError, match="was closed"):
        capture.start()
    for options in (
        {"snap_length": 0},
        {"blocks": 1},
        {"block_size": 5000},
        {"direction": "up"},
        {"retire_ms": 0},
    ):
        with pytest.raises(ParameterError):
            LiveCapture("lo", **options)  # type: ignore[arg-type]
