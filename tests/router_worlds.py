"""Traffic through a real router, and its plain truth from tcpdump's files on both sides."""

from __future__ import annotations

import socket
import struct
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from plain_pcap import frame_bytes, read_pcap

from sojourn.lab.namespaces import Host, Network

PORT = 7777
PERIOD_SECONDS = 0.037
CONTROL = b"sojourn "
START, END = 1, 2
# Two captures of an interface need not agree on the order of packets that came so close together.
CLOSE_NS = 100_000


def send_bursts(network: Network, seconds: float, classes: dict[int, tuple[int, int]], *, seed: int) -> None:
    """Bursts of numbered datagrams from sender to receiver: per class (DSCP) up to so many of so many bytes, shuffled.

    Numbers differ between seeds.
    """
    random = np.random.default_rng(seed)
    with network.receiver.entered():
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sink.bind(("", PORT))  # nobody reads, but no host answers that nobody is there
    endpoints = {}
    with network.sender.entered():
        for dscp in classes:
            endpoints[dscp] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            endpoints[dscp].setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    count, end = seed << 32, time.monotonic() + seconds
    while time.monotonic() < end:
        burst = [dscp for dscp, (packets, _) in classes.items() for _ in range(random.integers(1, packets + 1))]
        for dscp in random.permutation(burst).tolist():
            payload = count.to_bytes(8, "big").ljust(classes[dscp][1], b".")
            endpoints[dscp].sendto(payload, (network.receiver.address, PORT))
            count += 1
        time.sleep(PERIOD_SECONDS)
    for endpoint in (sink, *endpoints.values()):
        endpoint.close()


def neighbours(network: Network) -> list[str]:
    """The options that tell the router's neighbours."""
    ends = (("left", network.sender), ("right", network.receiver))
    return [word for name, host in ends for word in ("--interface", f"{name}={host.name}@{host.address}")]


@dataclass
class TrueInterval:
    """What tcpdump saw of one class between Start and End at the ingress; `doubtful` packets lie close to a message."""

    sent: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    doubtful: int = 0


def true_intervals(left: Path, right: Path) -> dict[tuple[int, int], TrueInterval]:
    """The truth by interval and class."""
    leaving = {number: t for t, _, number, _ in _packets(right) if number is not None}
    truth: dict[tuple[int, int], TrueInterval] = defaultdict(TrueInterval)
    current: dict[int, int] = {}
    packets = _packets(left)
    for t, dscp, number, control in packets:
        if control is not None:
            kind, interval = control
            truth[interval, dscp].messages.append(t)
            current[dscp] = interval if kind == START else -1
        elif number is not None and current.get(dscp, -1) >= 0:
            found = truth[current[dscp], dscp]
            found.sent.append(number)
            if number in leaving:
                found.delays.append(leaving[number] - t)
    for (_, dscp), found in truth.items():
        times = [t for t, d, number, _ in packets if d == dscp and number is not None]
        found.doubtful = sum(abs(t - message) < CLOSE_NS for t in times for message in found.messages)
    return dict(truth)


def _packets(path: Path) -> list[tuple[int, int, int | None, tuple[int, int] | None]]:
    """Of packets towards the right: time, class, a datagram's number, and a message's kind and interval."""
    frames, found = read_pcap(path.read_bytes()), []
    for t, frame in zip(frames.time_ns.tolist(), frame_bytes(frames), strict=True):
        if frame[12:14] != b"\x08\x00" or frame[30:33] != bytes((10, 97, 2)):
            continue
        dscp, protocol = frame[15] >> 2, frame[23]
        if protocol == socket.IPPROTO_UDP and frame[36:38] == PORT.to_bytes(2, "big"):
            found.append((t, dscp, int.from_bytes(frame[42:50], "big"), None))
        elif protocol == socket.IPPROTO_ICMP and frame[42:50] == CONTROL:
            kind, _, interval = struct.unpack_from("!BBQ", frame, 58)
            found.append((t, dscp, None, (kind, interval)))
    return found


def drop_messages(router: Host, kind: int | None) -> None:
    """Have the queue of `right` drop messages of a kind (or none), and let everything else pass at 20 Mbit/s."""
    on = ("dev", "right")
    if kind is None:
        router.run("tc", "qdisc", "replace", *on, "root", "handle", "1:", "htb", "default", "1")
        for number, rate in ((1, "20mbit"), (2, "1mbit")):
            router.run("tc", "class", "add", *on, "parent", "1:", "classid", f"1:{number}", "htb", "rate", rate)
        router.run("tc", "qdisc", "add", *on, "parent", "1:2", "pfifo", "limit", "0")
        return
    router.run("tc", "filter", "delete", *on, "parent", "1:")
    matches = ("match", "ip", "protocol", "1", "0xff", "match", "u8", str(kind), "0xff", "at", "44")
    router.run(
        *("tc", "filter", "add", *on, "parent", "1:", "protocol", "ip", "prio", "1"),
        *("u32", *matches, "flowid", "1:2"),
    )
