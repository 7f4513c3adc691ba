"""QUIC and DNS of real hosts, a delay apart: samples are what tshark's own fields say, packet by packet."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rtt_worlds import MS, Packet, flow_id, nanoseconds
from spin_model import SpinModel

from live_hosts import Tcpdump, wait_for_tcpdump
from machine import live_marks
from sojourn.lab.namespaces import Host, HostProcess, Network, two_hosts
from sojourn.rtt.result import open_rtt
from sojourn.rtt.state import Kind, RttSamples
from waiting import PATIENCE_SECONDS

pytestmark = live_marks(
    "QUIC AND DNS OF REAL HOSTS ARE NOT TESTED: they need root, tshark and dnsmasq", "tshark", "dnsmasq"
)
HERE = Path(__file__).parent
RELAY = "10.97.1.1"
DELAY_MS = 10
RESOLVED = "192.0.2.7"


def started(host: Host, *command: str, environment: tuple[str, ...] = ()) -> HostProcess:
    """A process that has said that it is ready."""
    process = host.start("env", *environment, *command, stdout=subprocess.PIPE)
    assert process.process.stdout is not None
    assert process.process.stdout.readline().strip() == "ready"
    return process


@contextmanager
def delayed(port: int) -> Iterator[Network]:
    """Two hosts and a relay between them that delays datagrams to a port of the receiver, and their answers."""
    with two_hosts(router=True) as network:
        assert network.router is not None
        relay = (sys.executable, str(HERE / "delaying_relay.py"), str(port), network.receiver.address, str(DELAY_MS))
        with started(network.router, *relay):
            yield network


def tshark(path: Path, display_filter: str, *fields: str) -> list[list[str]]:
    command = ["tshark", "-n", "-r", str(path), "-d", "udp.port==443,quic", "-Y", display_filter, "-T", "fields"]
    command += ["-E", "separator=|", *(word for field in fields for word in ("-e", field))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split("|") for line in lines]


def samples(path: Path, *kinds: str) -> list[tuple[int, int, int, int]]:
    """Time, flow, round-trip time and kind of what the command's own call finds."""
    found: list[RttSamples] = []
    with open_rtt(path, kinds=kinds) as run:
        found += run.samples()
    return [(t, f, r, k) for some in found for t, f, r, _, k, _ in some.rows()]


@pytest.fixture(scope="module")
def quic_captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A connection of aioquic that spins, and one whose server greases its spin bit, seen beside the client."""
    folder = tmp_path_factory.mktemp("quic")
    captures = {}
    hosts = str(HERE / "quic_hosts.py")
    with delayed(443) as network:
        assert network.router is not None
        for name, environment in (("spinning", ()), ("greased", ("GREASE=1",))):
            with started(network.receiver, sys.executable, hosts, "server", str(folder), environment=environment):
                captures[name] = folder / f"{name}.pcap"
                dump = Tcpdump(network.router, "left", captures[name])
                sizes = ("1000000", *("100",) * 40, "300000")
                network.sender.run(sys.executable, hosts, "client", RELAY, *sizes, timeout=PATIENCE_SECONDS)
                wait_for_tcpdump(network.sender, RELAY, [dump])
                assert dump.finish() == 0
    return captures


def quic_model(path: Path) -> tuple[SpinModel, set[tuple[bool, int]]]:
    """The plain model, fed with what tshark reads; and which values were sent, by whom."""
    model, seen = SpinModel(), set()
    fields = ("frame.time_epoch", "udp.srcport", "quic.spin_bit", "quic.long.packet_type")
    for time, port, spin, long_types in tshark(path, "udp.port == 443", *fields):
        is_server = port == "443"
        if long_types.split(",")[0] == "0" and not is_server:
            model.begin()
        if not spin:
            model.pass_by(nanoseconds(time), is_server=is_server)
            continue
        value = int(spin in ("1", "True"))
        seen.add((is_server, value))
        model.take(nanoseconds(time), value, is_server=is_server)
    return model, seen


def test_quic_samples_are_those_of_tsharks_spin_bits(quic_captures: dict[str, Path]) -> None:
    model, seen = quic_model(quic_captures["spinning"])
    assert len(seen) == 4  # aioquic spins: both values, both ways
    found = samples(quic_captures["spinning"], "quic", "quic-whole")
    assert [(t, r, Kind(k)) for t, _, r, k in found] == model.samples
    whole = [r for _, _, r, k in found if k == Kind.QUIC_WHOLE]
    assert len(whole) > 10
    assert min(whole) >= 2 * DELAY_MS * MS


def test_beside_the_client_the_servers_part_is_the_whole_way(quic_captures: dict[str, Path]) -> None:
    found = samples(quic_captures["spinning"], "quic")
    rows = tshark(quic_captures["spinning"], "udp.dstport == 443", "ip.src", "udp.srcport")
    client = (rows[0][0], int(rows[0][1]))
    to_client = flow_id(Packet(0, (RELAY, 443), client, protocol=17))
    to_server = flow_id(Packet(0, client, (RELAY, 443), protocol=17))
    assert min(r for _, f, r, _ in found if f == to_client) >= 2 * DELAY_MS * MS
    assert min(r for _, f, r, _ in found if f == to_server) < DELAY_MS * MS


def test_a_greased_connection_gives_no_samples(quic_captures: dict[str, Path]) -> None:
    model, seen = quic_model(quic_captures["greased"])
    assert len(seen) == 4  # its bits change all the same
    assert model.samples == samples(quic_captures["greased"], "quic", "quic-whole") == []


def dns_query(number: int, name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return number.to_bytes(2, "big") + b"\1\0\0\1" + bytes(6) + labels + b"\0" + kind.to_bytes(2, "big") + b"\0\1"


def ask(host: Host) -> None:
    """Many questions from a few ports, some at once, one of them twice; then until all have been answered."""
    with host.entered():
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
    for each in sockets:
        each.settimeout(PATIENCE_SECONDS)
    for turn in range(100, 2100, 200):
        for port, each in enumerate(sockets):
            for kind in (1, 28):
                each.sendto(dns_query(turn + kind, f"Host{turn}.port{port}.example.test", kind), (RELAY, 53))
        for each in sockets:
            for _ in range(2):
                each.recv(4096)
    for _ in range(2):
        sockets[0].sendto(dns_query(99, "twice.example.test", 1), (RELAY, 53))
    for _ in range(2):
        sockets[0].recv(4096)
    for each in sockets:
        each.close()


def test_dns_samples_are_tsharks_dns_time(tmp_path: Path) -> None:
    options = ("--keep-in-foreground", "--no-resolv", "--no-hosts", "--user=root", "--pid-file", "--log-facility=-")
    with delayed(53) as network:
        assert network.router is not None
        path = tmp_path / "dns.pcap"
        answers = f"--address=/example.test/{RESOLVED}"
        with network.receiver.start("dnsmasq", *options, answers, stderr=subprocess.PIPE) as resolver:
            assert resolver.process.stderr is not None
            assert "started" in resolver.process.stderr.readline()
            dump = Tcpdump(network.router, "left", path)
            ask(network.sender)
            wait_for_tcpdump(network.sender, RELAY, [dump])
            assert dump.finish() == 0
    fields = ("frame.time_epoch", "ip.src", "ip.dst", "udp.dstport", "dns.id", "dns.time")
    theirs = {
        (nanoseconds(row[0]), flow_id(Packet(0, (row[1], 53), (row[2], int(row[3])), 17)), nanoseconds(row[5]))
        for row in tshark(path, "dns.flags.response == 1 and dns.time", *fields)
        if int(row[4], 16) != 99
    }
    found = samples(path)
    assert len(theirs) == 80
    assert {(t, f, r) for t, f, r, _ in found if r >= 2 * DELAY_MS * MS} == theirs
    assert {Kind(k) for *_, k in found} == {Kind.DNS, Kind.ICMP}  # and the ping that marked the end
