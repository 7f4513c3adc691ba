"""What an agent costs: its share of one core, with a real query unit beside it.

Of a metric by measurements per second, and of a point of a segment by packets per second: an agent records an interface
under the plan that a segment begins with, beside a tcpdump of the same interface; a sender in a namespace of its own
has the other core. Sent is what the agent's connections to the query unit carried, with all headers.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.live import processor_seconds, sender, tcpdump
from sojourn.lab.fleet import Fleet, agent, query_unit
from sojourn.lab.namespaces import Host, Network, two_hosts
from sojourn.segments.fleet.point import Point
from sojourn.segments.fleet.replanning import first_plan
from sojourn.segments.fleet.segment import FIRST_MEMORY

__all__ = ["NOTE", "table"]

RATES = (0, 1_000, 10_000, 100_000)
SETTLE_SECONDS, SECONDS = 5.0, 30.0
PACKETS_AND_FRAMES = ((1_000, 64), (10_000, 64), (100_000, 64), (100_000, 1_514))
POINT_SECONDS, EPOCH_NS = 60.0, 10_000_000_000
DROPPED = re.compile(r"([\d,]+) dropped by the kernel")
NOTE = (
    f"One core, one run of {SECONDS:.0f} s (measurements) or {POINT_SECONDS:.0f} s (packets) each, after the first "
    f"seconds; packets of 1,024 flows, epochs of {EPOCH_NS // 10**9} s, {FIRST_MEMORY // 1000} KB for each."
)
ROOT = Path(__file__).resolve().parents[1]


def _install_metric(folder: Path) -> None:
    """Offer `bench.steady_metric` to the agents as an installed plug-in would be."""
    information = folder / "steady-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: steady\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[sojourn.sources]\nsteady = bench.steady_metric:Steady\n")
    os.environ["PYTHONPATH"] = f"{folder}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def table() -> list[str]:
    """One agent after the other; the first seconds (imports, announcements) are not counted."""
    return [*_measurements(), "", *_points()]


def _measurements() -> list[str]:
    lines = [
        "| measurements/s | share of one core | resident memory | answered by the query unit |",
        "|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory(prefix="sojourn-bench-") as name:
        folder = Path(name)
        _install_metric(folder / "plugin")
        with query_unit(folder) as fleet:
            for rate in RATES:
                node = f"node-{rate}"
                stream = {"metric": "steady", "per_second": rate, "epoch": "10s"}
                with agent(fleet, node, {"steady": stream}) as running:
                    pid = running.pid
                    time.sleep(SETTLE_SECONDS)
                    before, start = processor_seconds(pid), time.monotonic()
                    time.sleep(SECONDS)
                    used = (processor_seconds(pid) - before) / (time.monotonic() - start)
                    memory = _resident_bytes(pid) / 2**20
                (total,) = fleet.ask(metric="steady", node=node)
                lines.append(f"| {rate:,} | {used:.3%} | {memory:.0f} MiB | {int(float(str(total['value'] or 0))):,} |")
    return lines


@dataclass(frozen=True)
class Cost:
    """What recording a point took: shares of a core, and bytes sent for each packet."""

    agent: float
    tcpdump: float
    sent_bytes: float
    packets: float
    rate: float
    dropped: int
    resident_bytes: int

    def row(self, frame: int) -> str:
        shares = f"{self.agent:.2%} | {self.tcpdump:.2%}"
        sent = f"{self.sent_bytes:,.0f} | {8 * self.sent_bytes / self.packets:.2f}"
        memory = f"{self.resident_bytes / 2**20:.0f} MiB"
        return f"| {self.rate:,.0f} of {frame:,} bytes | {shares} | {sent} | {memory} | {self.dropped:,} |"


def _points() -> list[str]:
    lines = [
        "| packets/s | share of one core | tcpdump -w /dev/null | bytes sent | bits per packet | resident memory "
        "| packets dropped |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for rate, frame in PACKETS_AND_FRAMES:
        with (
            two_hosts() as network,
            tempfile.TemporaryDirectory(prefix="sojourn-bench-") as name,
            query_unit(Path(name), host=network.receiver) as fleet,
        ):
            lines.append(_cost(network, fleet, rate, frame).row(frame))
    return lines


def _cost(network: Network, fleet: Fleet, rate: int, frame: int) -> Cost:
    """Record the receiver's interface while packets come at a rate."""
    host, point = network.receiver, Point(node="receiver", interface="eth0", direction="in")
    streams = {"point": point.table(first_plan(FIRST_MEMORY), EPOCH_NS)}
    _count_bytes_to(host, fleet.url.rpartition(":")[2])
    with agent(fleet, "receiver", streams) as running, host.start(*tcpdump("eth0")) as peer:
        begun_bytes, seconds = _bytes_sent(host), SETTLE_SECONDS + POINT_SECONDS
        command = network.sender.within("taskset", "-c", "0", *sender(network, rate, seconds + 2, size=frame))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sending:
            time.sleep(SETTLE_SECONDS)
            pids = running.pid, peer.process.pid
            before, start = [processor_seconds(pid) for pid in pids], time.monotonic()
            time.sleep(POINT_SECONDS)
            used = [processor_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
            shares = [one / (time.monotonic() - start) for one in used]
            memory = _resident_bytes(running.pid)
            reached = float(sending.communicate()[0])
    dropped = DROPPED.findall((fleet.directory / "receiver" / "log").read_text())
    lost = sum(int(text.replace(",", "")) for text in dropped)
    return Cost(*shares, _bytes_sent(host) - begun_bytes, reached * (seconds + 2), reached, lost, memory)


def _count_bytes_to(host: Host, port: str) -> None:
    """Have the kernel count what is sent to a TCP port of the host itself."""
    chain = "add chain ip bench sent { type filter hook output priority 0; }"
    host.run("nft", f"add table ip bench; {chain}; add rule ip bench sent tcp dport {port} counter")


def _bytes_sent(host: Host) -> int:
    words = host.run("nft", "list", "chain", "ip", "bench", "sent").split()
    return int(words[words.index("bytes") + 1])
