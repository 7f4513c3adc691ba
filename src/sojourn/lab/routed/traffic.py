"""Traffic through a routed lab, by iperf3: UDP at a rate, or TCP as fast as it goes.

The receiver listens on a port that is free there, for this one run; several runs may go on at the same time. What was
sent, lost and its jitter are as iperf3 reports them, to check other measurements by.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sojourn.core.errors import ParameterError, SojournError, UsageError
from sojourn.core.results import Advance, silent
from sojourn.lab.namespaces import Host, HostProcess

MAX_SECONDS = 86_400
MAX_RATE = 10**11
MAX_DSCP = 63
LISTEN_SECONDS = 20.0
CONNECT_MS = 10_000
# Besides the time it was asked for: connecting, and telling the result through full queues.
EXTRA_SECONDS = 60.0
_PORTS = (20_000, 60_000)
_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What to send: bits per second (0: TCP without limit), for how long, in packets of how many bytes of data."""

    rate: int
    seconds: int
    dscp: int = 0
    data_bytes: int = 1000
    tcp: bool = False
    streams: int = 1  # connections side by side, each of this rate

    def __post_init__(self) -> None:
        if not (0 < self.seconds <= MAX_SECONDS and 0 <= self.dscp <= MAX_DSCP and 16 <= self.data_bytes <= 1472):
            raise ParameterError(
                f"{self.seconds} seconds, DSCP {self.dscp}, {self.data_bytes} bytes",
                where="traffic",
                action=f"use up to {MAX_SECONDS} seconds, a DSCP of 0 to {MAX_DSCP}, 16 to 1472 bytes",
            )
        if not (8000 <= self.rate <= MAX_RATE or (self.tcp and self.rate == 0)):
            raise ParameterError(f"a rate of {self.rate} bit/s", where="traffic", action="use 8 kbit/s to 100 Gbit/s")


@dataclass(frozen=True)
class TrafficReport:
    """What iperf3 reports: packets sent and lost and the jitter (UDP), and the rate at the receiver."""

    packets: int | None
    lost: int | None
    jitter_ns: int | None
    rate: float
    seconds: float


def send_traffic(source: Host, target: Host, traffic: Traffic, *, advance: Advance | None = None) -> TrafficReport:
    """Send to a node's address; back when it is over. `advance` gets the share of the time that has passed."""
    with flowing(source, target, traffic) as client:
        printed = _wait(client.process, traffic.seconds, advance or silent)
    return _report(printed, traffic, f"traffic from {source.name} to {target.name}")


@contextmanager
def flowing(source: Host, target: Host, traffic: Traffic, *, prefix: Sequence[str] = ()) -> Iterator[HostProcess]:
    """Send to a node's address until the time or the context is over; the sending process, which reports in the end.

    `prefix` is a command that runs the commands, such as ``setpriv``.
    """
    if shutil.which("iperf3") is None:
        raise UsageError("there is no iperf3", where="traffic", action="install the package iperf3")
    server, port = _listen(target, prefix)
    options = ["-p", str(port), "-c", target.address, "-t", str(traffic.seconds), "-S", str(traffic.dscp << 2)]
    if not traffic.tcp:
        options += ["-u", "-l", str(traffic.data_bytes)]
    options += ["-b", str(traffic.rate), "-P", str(traffic.streams), "--connect-timeout", str(CONNECT_MS)]
    options += ["-i", "0"]  # no word of each second, which it would keep until the end
    with server, source.start(*prefix, "iperf3", "-J", *options, stdout=subprocess.PIPE) as client:
        yield client


def _wait(process: subprocess.Popen[str], seconds: int, advance: Advance) -> str:
    """What the client printed, at its end."""
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds + EXTRA_SECONDS:
        advance("sending", min(passed / seconds, 1.0))
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=0.2)[0]
    raise SojournError(f"iperf3 did not end {EXTRA_SECONDS:g} s after its time", where="traffic")


def _listen(target: Host, prefix: Sequence[str]) -> tuple[HostProcess, int]:
    """A server for one run, once it listens."""
    for _ in range(_ATTEMPTS):
        port = random.randrange(*_PORTS)
        server = target.start(*prefix, "iperf3", "-s", "-1", "-B", target.address, "-p", str(port))
        deadline = time.monotonic() + LISTEN_SECONDS
        while server.process.poll() is None and time.monotonic() < deadline:
            if f":{port} " in target.run("ss", "-Hltn"):
                return server, port
            time.sleep(0.05)
        server.stop()
    raise SojournError("iperf3 does not listen", where=target.name)


def _report(printed: str, traffic: Traffic, where: str) -> TrafficReport:
    try:
        answer: dict[str, Any] = json.loads(printed)
        if "error" in answer:
            raise SojournError(f"iperf3 reports: {str(answer['error'])[:200]}", where=where)
        received = answer["end"]["sum_received"]
        rate, seconds = float(received["bits_per_second"]), float(received["seconds"])
        if traffic.tcp:
            return TrafficReport(None, None, None, rate, seconds)
        packets, lost = int(received["packets"]), int(received["lost_packets"])
        return TrafficReport(packets, lost, round(float(received["jitter_ms"]) * 1e6), rate, seconds)
    except (ValueError, KeyError, TypeError):
        raise SojournError(f"iperf3 reported nothing: {printed.strip()[:200]!r}", where=where) from None
