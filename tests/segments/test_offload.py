"""Captures of hosts with offloading on: measured as the packets of the wire between them, counted there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import sojourn
from live_hosts import (
    Tcpdump,
    segments_received,
    segments_sent,
    transfer_seconds,
    wait_for_captures,
    wait_for_silence,
    wait_for_tcpdump,
)
from machine import live_marks
from sojourn.capture.files.reader import open_capture
from sojourn.lab.namespaces import Bottleneck, Network, two_hosts
from sojourn.segments.result import SegmentResult
from waiting import PATIENCE_SECONDS

PORT, BYTES = 40_000, 6_000_000
EDGE_SECONDS = 0.5  # more than the longest delay, for which interfaces are captured before and after they are measured

pytestmark = live_marks("OFFLOADING IS NOT TESTED: it needs root for packet sockets and network namespaces")


def transfer(network: Network, folder: Path) -> tuple[Path, Path, Path, int]:
    """TCP through a bottleneck: captured at the sender, on the wire behind it, at the receiver; and segments sent."""
    assert network.router is not None
    for host in (network.sender, network.receiver):
        host.run("ethtool", "-K", "eth0", "tx", "on", "tso", "on", "gso", "on", "gro", "on")
    places = (network.sender, "eth0"), (network.router, "right"), (network.receiver, "eth0")
    dumps = [Tcpdump(host, port, folder / f"{host.name}.pcap") for host, port in places]
    before = segments_sent(network.sender)
    transfer_seconds(network.sender, network.receiver, BYTES, src_port=PORT)
    wait_for_silence(network.sender)
    wait_for_tcpdump(network.sender, network.receiver.address, dumps)
    assert [dump.finish() for dump in dumps] == [0, 0, 0]
    sender, wire, receiver = (dump.path for dump in dumps)
    return sender, wire, receiver, segments_sent(network.sender) - before


def received_and_lost(result: SegmentResult) -> tuple[int, int]:
    """Of the flow from the sender; no packet of it may have come from nowhere."""
    columns = result.columns()
    at = list(columns["src_port"]).index(PORT)
    assert not result.warnings, result.warnings
    return columns["packets"][at] - columns["lost"][at], columns["lost"][at]


def longest(path: Path) -> int:
    with open_capture(path) as capture:
        return max(int(batch.size_bytes.max(initial=0)) for batch in capture)


def test_hosts_that_offload_are_measured_as_the_wire_between_them(tmp_path: Path) -> None:
    with two_hosts(bottleneck=Bottleneck(50_000_000, burst_bytes=20_000, queue_bytes=40_000), router=True) as network:
        sender, wire, receiver, sent = transfer(network, tmp_path)
    assert (longest(sender), longest(wire)) > (3000, 0)
    assert longest(wire) <= 1500
    with open_capture(wire) as capture:
        list(capture)
        carried = {capture.flows.key(row): int(capture.flows.packets[row]) for row in range(len(capture.flows))}
    (packets,) = [count for key, count in carried.items() if getattr(key, "src_port", 0) == PORT]

    to_wire = sojourn.measure(sender, wire)
    assert any("split into the" in note for note in to_wire.notes)
    assert sent > packets
    assert received_and_lost(to_wire) == (packets, sent - packets)
    assert received_and_lost(sojourn.measure(wire, receiver)) == (packets, 0)
    assert received_and_lost(sojourn.measure(sender, receiver)) == (packets, sent - packets)
    sketched = sojourn.measure(sender, receiver, sketch="auto", where=f"tcp src port {PORT}")
    assert sketched.aggregate["received"] == packets


def test_a_router_that_is_handed_super_packets_is_measured_as_the_wires_around_it() -> None:
    """Its first interface sees what the sender's card would take apart, its second what fits the wire."""
    narrow = Bottleneck(50_000_000, burst_bytes=20_000, queue_bytes=40_000)
    with two_hosts(bottleneck=narrow, router=True) as network:
        sender, router, receiver = network.sender, network.router, network.receiver
        assert router is not None
        sender.run("ethtool", "-K", "eth0", "tx", "on", "tso", "on", "gso", "on")
        router.run("ethtool", "-K", "left", "gro", "on")
        command = (sys.executable, "-m", "sojourn.cli.main", "measure", "-i", "left", "-i", "right")
        options = ("--format", "json", "--max-delay", "200ms", "tcp")
        with router.start(*command, *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as measuring:
            wait_for_captures(router, 2)
            time.sleep(EDGE_SECONDS)
            before = segments_sent(sender), segments_received(receiver)
            transfer_seconds(sender, receiver, BYTES, src_port=PORT)
            wait_for_silence(sender)
            sent, received = segments_sent(sender) - before[0], segments_received(receiver) - before[1]
            time.sleep(EDGE_SECONDS)
            measuring.process.send_signal(signal.SIGINT)
            answer, said = measuring.process.communicate(timeout=PATIENCE_SECONDS)
    (flow,) = [flow for flow in json.loads(answer)["flows"] if flow["src_port"] == PORT]
    assert (flow["packets"], flow["lost"]) == (sent, sent - received), said
    assert sent > received
    assert "split into the" in said
