"""Super-packets of hosts with offloading on, split by what the kernel tells: the packets of the wire between them."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import numpy as np
import pytest
from packet_builders import ethernet, ipv4, ipv6, tcp

from live_hosts import segments_sent, transfer_seconds, wait_for_captures, wait_for_listener, wait_for_silence
from machine import live_marks
from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.frames import SEGMENT_BITS
from sojourn.capture.decode.segmentation import WireSizes
from sojourn.capture.filters import PacketFilter
from sojourn.capture.live.interface import LiveCapture
from sojourn.capture.live.reader import LiveReader
from sojourn.capture.live.ring import keep
from sojourn.lab.namespaces import Host, Network, two_hosts
from waiting import PATIENCE_SECONDS, eventually

pytestmark = live_marks("LIVE OFFLOADING IS NOT TESTED: it needs root for packet sockets and network namespaces")

RING_BYTES = 128 << 20
PORT, BYTES = 7000, 8_000_000
FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80
SOL_PACKET, PACKET_VNET_HDR = 263, 15
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
NEEDS_CHECKSUM, GSO_TCP_4, GSO_TCP_6, GSO_ECN = 1, 1, 4, 0x80


@pytest.fixture(scope="module", params=[1500, 9000], ids=lambda mtu: f"mtu-{mtu}")
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """Hosts that offload, and a router that forwards what the wire carries."""
    with two_hosts(router=True) as hosts:
        assert hosts.router is not None
        for host, port in ((hosts.sender, "eth0"), (hosts.receiver, "eth0"), (hosts.router, "left right")):
            for name in port.split():
                host.run("ip", "link", "set", name, "mtu", str(request.param))
        for host in (hosts.sender, hosts.receiver):
            host.run("ethtool", "-K", "eth0", "tx", "on", "tso", "on", "gso", "on", "gro", "on")
        yield hosts


@dataclass
class Point:
    """Packets of one point, as (packet id, flow id, bytes) with how often each came."""

    live: LiveReader
    packets: Counter[tuple[int, int, int]]
    longest: int

    @property
    def count(self) -> int:
        return self.packets.total()


@dataclass
class Taken:
    """What was seen of one direction: by the sending host, on the wire, by the receiving host."""

    sender: Point
    wire: Point
    receiver: Point

    def assert_same(self) -> None:
        for point in (self.sender, self.receiver):
            assert point.live.dropped == 0
            assert point.live.warnings == []
            assert point.packets - self.wire.packets == Counter()
            assert self.wire.packets - point.packets == Counter()


def _reader(host: Host, port: str, expression: str, wire: WireSizes | None, direction: str) -> LiveReader:
    with host.entered():
        return LiveReader(
            port,
            DecodeOptions(wire=wire),
            packet_filter=PacketFilter(expression),
            direction=direction,  # type: ignore[arg-type]
            ring_bytes=RING_BYTES,
        )


def _read(live: LiveReader) -> Point:
    packets: Counter[tuple[int, int, int]] = Counter()
    longest = 0
    for batch in live:
        packets.update(zip(batch.packet_id.tolist(), batch.flow_id.tolist(), batch.size_bytes.tolist(), strict=True))
        longest = max(longest, int(batch.size_bytes.max(initial=0)))
    return Point(live, packets, longest)


@contextmanager
def watched(network: Network, expression: str) -> Iterator[Taken]:
    """Capture what the sender sends at three places while the body runs."""
    assert network.router is not None
    mine = f"({expression}) and (src host {network.sender.address} or src host {network.sender.address6})"
    with ExitStack() as stack:
        readers = [
            stack.enter_context(_reader(*place))
            for place in (
                (network.sender, "eth0", mine, WireSizes(), "out"),
                (network.router, "right", mine, None, "out"),
                (network.receiver, "eth0", mine, WireSizes(), "in"),
            )
        ]
        for live in readers:
            live.start()
        taken = Taken(*(Point(live, Counter(), 0) for live in readers))
        yield taken
        for live in readers:
            live.stop()
        taken.sender, taken.wire, taken.receiver = map(_read, readers)


@pytest.mark.parametrize("version", [4, 6])
def test_a_transfer_is_seen_as_the_wire_carried_it(network: Network, version: int) -> None:
    address = network.receiver.address if version == 4 else network.receiver.address6
    before = segments_sent(network.sender)
    with watched(network, "tcp") as taken, network.receiver.start("iperf3", "-s", "-1"):
        wait_for_listener(network.receiver, 5201)
        network.sender.run("iperf3", "-c", address, "-n", str(BYTES), "-P", "2", "-b", "400M")
        wait_for_silence(network.sender)
    taken.assert_same()
    assert taken.wire.count == segments_sent(network.sender) - before
    assert taken.sender.live.split_packets > 10
    assert taken.receiver.live.split_packets > 10
    mtu = int(network.sender.run("cat", "/sys/class/net/eth0/mtu"))
    assert taken.sender.longest == taken.wire.longest == taken.receiver.longest == mtu


def test_without_a_filter_only_headers_are_copied_and_super_packets_whole(network: Network) -> None:
    with network.sender.entered():
        whole = LiveReader("eth0", DecodeOptions(wire=WireSizes()), direction="out", ring_bytes=RING_BYTES)
        capture = LiveCapture("eth0", direction="out", offload=True, header_bytes=200, blocks=512)
    with whole, capture, watched(network, "tcp") as taken, network.receiver.start("iperf3", "-s", "-1"):
        wait_for_listener(network.receiver, 5201)
        whole.start()
        capture.start()
        network.sender.run("iperf3", "-c", network.receiver.address, "-n", str(BYTES // 4), "-b", "400M")
        # Whole packets of the largest size, none of them put together.
        network.sender.run("ping", "-c", "3", "-s", "1400", network.receiver.address)
        wait_for_silence(network.sender)
        whole.stop()
        capture.stop()
        point = _read(whole)
        chunks = [keep(frames) for frames in capture.chunks()]
    assert taken.wire.packets - point.packets == Counter()
    assert whole.warnings == []
    captured, length, offload = (
        np.concatenate([getattr(frames, name) for frames in chunks]) for name in ("captured", "length", "offload")
    )
    is_super = offload & SEGMENT_BITS > 0
    assert is_super.sum() > 10
    assert np.array_equal(captured[is_super], length[is_super])
    assert np.array_equal(captured[~is_super], np.minimum(length[~is_super], 200))
    assert (length[~is_super] > 1400).any()


def test_flows_are_counted_as_the_wire_carried_them(network: Network) -> None:
    command = (sys.executable, "-m", "sojourn.cli.main", "flows", "-i", "eth0", "--format", "json", "-v", "tcp")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with network.sender.start(*command, **pipes) as counting:
        wait_for_captures(network.sender, 1)
        before = segments_sent(network.sender)
        transfer_seconds(network.sender, network.receiver, BYTES // 4, src_port=40_001)
        wait_for_silence(network.sender)
        counting.process.send_signal(signal.SIGINT)
        answer, said = counting.process.communicate(timeout=PATIENCE_SECONDS)
    (flow,) = [flow for flow in json.loads(answer)["flows"] if flow["src_port"] == 40_001]
    assert flow["packets"] == segments_sent(network.sender) - before
    assert flow["bytes"] > BYTES // 4 + 52 * (flow["packets"] - 2)
    assert "put together by offloading (TSO, GRO), counted as those of the wire" in said


_RECEIVE_DATAGRAMS = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as endpoint:
    endpoint.setsockopt(17, 104, 1)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    endpoint.bind((sys.argv[1], int(sys.argv[2])))
    while endpoint.recv(1 << 16) != b"end": pass
"""


def wait_for_datagrams(host: Host, port: int) -> None:
    def is_bound() -> bool:
        rows = host.run("sh", "-c", "cat /proc/net/udp /proc/net/udp6").splitlines()
        return any(line.split()[1].endswith(f":{port:04X}") for line in rows if not line.lstrip().startswith("sl"))

    eventually(is_bound, f"nobody receives datagrams at port {port}")


@pytest.mark.parametrize("is_connected", [True, False])
@pytest.mark.parametrize("version", [4, 6])
def test_datagrams_sent_together_are_seen_as_the_wire_carried_them(
    network: Network, version: int, is_connected: bool
) -> None:
    address = network.receiver.address if version == 4 else network.receiver.address6
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    random = np.random.default_rng(1)
    with network.sender.entered():
        endpoint = socket.socket(family, socket.SOCK_DGRAM)
    with (
        endpoint,
        network.receiver.start(sys.executable, "-c", _RECEIVE_DATAGRAMS, address, str(PORT)) as receiving,
        watched(network, f"udp port {PORT}") as taken,
    ):
        wait_for_datagrams(network.receiver, PORT)
        endpoint.setsockopt(SOL_UDP, UDP_SEGMENT, 1200)
        if is_connected:
            endpoint.connect((address, PORT))
        for size in (1200, 12_000, 12_700, 40_001, 100, 2401, 30_000, 30_000):
            body = random.bytes(size)
            endpoint.send(body) if is_connected else endpoint.sendto(body, (address, PORT))
        endpoint.sendto(b"end", (address, PORT)) if not is_connected else endpoint.send(b"end")
        receiving.process.wait(10)
    assert taken.wire.count == 1 + 10 + 11 + 34 + 1 + 3 + 25 + 25 + 1
    assert taken.sender.live.split_packets == 6
    assert taken.receiver.live.split_packets > 0
    taken.assert_same()


def _internet_sum(raw: bytes) -> int:
    return sum(struct.unpack(f">{len(raw) // 2}H", raw)) % 0xFFFF


def _with_checksum(packet: bytes) -> bytes:
    """An IPv4 packet with its header's checksum, without which no router forwards it."""
    blank = packet[:10] + bytes(2) + packet[12:]
    return blank[:10] + struct.pack(">H", 0xFFFF - _internet_sum(blank[:20])) + blank[12:]


@dataclass(frozen=True)
class SuperPacket:
    """A TCP super-packet as a driver gets it, sent through a packet socket."""

    flags: int
    kind: int
    payload: int = 10_000
    segment: int = 1_300

    def send(self, network: Network, number: int) -> None:
        assert network.router is not None
        version = 6 if self.kind & 0x7F == GSO_TCP_6 else 4
        hosts = network.sender, network.receiver
        source, destination = (host.address6 if version == 6 else host.address for host in hosts)
        body = np.random.default_rng(number).bytes(self.payload)
        # The kernel completes the sum of a pseudo-header.
        addresses = ip_address(source).packed + ip_address(destination).packed
        checksum = _internet_sum(addresses + struct.pack(">II", 20 + self.payload, 6))
        segment = tcp(body, 40_000, PORT, flags=self.flags, seq=1 + 100_000 * number, checksum=checksum)
        if version == 4:
            header = {"identification": 65_530, "fragment": 0x4000}
            packet = ethernet(_with_checksum(ipv4(segment, 6, source, destination, **header)))
        else:
            packet = ethernet(ipv6(segment, 6, source, destination), 0x86DD)
        router = network.router.run("cat", "/sys/class/net/left/address").strip()
        transport = len(packet) - len(segment)
        told = struct.pack("=BBHHHH", NEEDS_CHECKSUM, self.kind, transport + 20, self.segment, transport, 16)
        with network.sender.entered():
            endpoint = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        with endpoint:
            endpoint.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            endpoint.bind(("eth0", 0x0800 if version == 4 else 0x86DD))
            endpoint.send(told + bytes.fromhex(router.replace(":", "")) + packet[6:])


@pytest.mark.parametrize("kind", [GSO_TCP_4, GSO_TCP_6])
@pytest.mark.parametrize("flags", [ACK, ACK | PSH | FIN, ACK | CWR, ACK | CWR | PSH | FIN])
@pytest.mark.parametrize("ecn", [0, GSO_ECN])
def test_flags_are_those_that_the_kernel_gives_the_wires_packets(
    network: Network, kind: int, flags: int, ecn: int
) -> None:
    network.sender.run("ping", "-c", "1", network.receiver.address)
    network.sender.run("ping", "-c", "1", network.receiver.address6)
    with watched(network, f"tcp dst port {PORT}") as taken:
        for number in range(3):
            SuperPacket(flags, kind | ecn).send(network, number)
        network.sender.run("ping", "-c", "1", network.receiver.address)
    assert taken.wire.count == 3 * 8
    assert taken.sender.live.split_packets == 3
    taken.assert_same()
