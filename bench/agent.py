"""What an agent of packets costs: its share of one core, with a real query unit beside it.

Of a point of a segment by packets per second (metrics: `light_agent`): an agent records an interface under the plan
that a segment begins with, and under the one that the control unit makes once it knows the traffic, for the default
error and confidence; beside a tcpdump of the same interface. A sender in a namespace of its own has the other core.
Sent is what the agent's connections to the query unit carried, with all headers.
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
from sojourn.segments.fleet.replanning import Seen, first_plan, planned_for, sized_memory
from sojourn.segments.fleet.segment import AUTO, DEFAULT_CONFIDENCE, DEFAULT_ERROR, FIRST_MEMORY, LEDGER, Wanted
from sojourn.segments.plan import SegmentPlan
from sojourn.server.control.planning import LEAST_EPOCHS

__all__ = ["NOTE", "table"]

SETTLE_SECONDS = 5.0
POINT_SECONDS, EPOCH_NS = 40.0, 10_000_000_000
LEDGER_EPOCH_NS = 5_000_000_000  # of a hundred thousand packets a second a ledger has room for three
DROPPED = re.compile(r"([\d,]+) dropped by the kernel")
NOTE = (
    f"One core, one run of {POINT_SECONDS:.0f} s each, after the first seconds; epochs of {EPOCH_NS // 10**9} s, those "
    f"of 1 % loss of {LEDGER_EPOCH_NS // 10**9} s. "
    f"A segment begins with {FIRST_MEMORY // 1000} KB; planned for {DEFAULT_ERROR:.0%} error at "
    f"{DEFAULT_CONFIDENCE:.0%}, after {LEAST_EPOCHS} epochs without a loss."
)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Load:
    """Packets that come each second, of how many bytes and flows; and whether the plan is made for them."""

    rate: int
    flows: int = 1_024
    frame: int = 64
    is_planned: bool = True
    sketch: Wanted = AUTO
    loss: float = 0.0
    epoch_ns: int = EPOCH_NS

    def plan(self) -> SegmentPlan:
        """What a point records under."""
        if not self.is_planned:
            return first_plan(FIRST_MEMORY)
        packets = self.rate * self.epoch_ns // 10**9
        flows = min(self.flows, packets)
        seen = Seen(flows=flows, packets=packets, loss=self.loss, counted=LEAST_EPOCHS * packets)
        if self.sketch == LEDGER:
            return planned_for(seen, FIRST_MEMORY, LEDGER)
        return planned_for(seen, sized_memory(seen, error=DEFAULT_ERROR, confidence=DEFAULT_CONFIDENCE))

    def __str__(self) -> str:
        return f"{self.frame:,} bytes, {self.flows:,} flows" + (f", {self.loss:.0%} lost" if self.loss else "")


LOADS = (
    *(Load(rate, is_planned=False) for rate in (1_000, 100_000)),
    Load(100_000, frame=1_514, is_planned=False),
    *(Load(rate, flows) for flows in (1_024, 20) for rate in (100, 1_000, 10_000, 100_000)),
    # A hundred packets of each flow in an epoch.
    *(Load(100_000, 5_000, sketch=sketch, loss=0.01, epoch_ns=LEDGER_EPOCH_NS) for sketch in (AUTO, LEDGER)),
)


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

    def row(self, load: Load, plan: SegmentPlan) -> str:
        planned = f"{'planned' if load.is_planned else 'first'}, {plan.memory_bits / 8000:,.0f} KB"
        if load.sketch == LEDGER:
            planned = f"ledger of {plan.ledger:,} packets"
        shares = f"{self.agent:.2%} | {self.tcpdump:.2%}"
        sent = f"{self.sent_bytes / (self.packets / self.rate):,.0f} | {8 * self.sent_bytes / self.packets:.2f}"
        memory = f"{self.resident_bytes / 2**20:.0f} MiB"
        return f"| {self.rate:,.0f} of {load} | {planned} | {shares} | {sent} | {memory} | {self.dropped:,} |"


def table() -> list[str]:
    """One load after the other; the first seconds (imports, announcements) are not counted."""
    lines = [
        "| packets/s | plan | share of one core | tcpdump -w /dev/null | bytes sent/s | bits per packet "
        "| resident memory | packets dropped |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for load in LOADS:
        plan = load.plan()
        with (
            two_hosts() as network,
            tempfile.TemporaryDirectory(prefix="sojourn-bench-") as name,
            query_unit(Path(name), host=network.receiver) as fleet,
        ):
            lines.append(_cost(network, fleet, load, plan).row(load, plan))
    return lines


def _cost(network: Network, fleet: Fleet, load: Load, plan: SegmentPlan) -> Cost:
    """Record the receiver's interface while packets come at a rate."""
    host, point = network.receiver, Point(node="receiver", interface="eth0", direction="in")
    streams = {"point": point.table(plan, load.epoch_ns)}
    _count_bytes_to(host, fleet.url.rpartition(":")[2])
    with agent(fleet, "receiver", streams) as running, host.start(*tcpdump("eth0")) as peer:
        begun_bytes, seconds = _bytes_sent(host), SETTLE_SECONDS + POINT_SECONDS
        sending = sender(network, load.rate, seconds + 2, size=load.frame, flows=load.flows)
        command = network.sender.within("taskset", "-c", "0", *sending)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            time.sleep(SETTLE_SECONDS)
            pids = running.pid, peer.process.pid
            before, start = [processor_seconds(pid) for pid in pids], time.monotonic()
            time.sleep(POINT_SECONDS)
            used = [processor_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
            own, peers = (one / (time.monotonic() - start) for one in used)
            memory = _resident_bytes(running.pid)
            reached = float(process.communicate()[0])
    dropped = DROPPED.findall((fleet.directory / "receiver" / "log").read_text())
    lost = sum(int(text.replace(",", "")) for text in dropped)
    return Cost(own, peers, _bytes_sent(host) - begun_bytes, reached * (seconds + 2), reached, lost, memory)


def _count_bytes_to(host: Host, port: str) -> None:
    """Have the kernel count what is sent to a TCP port of the host itself."""
    chain = "add chain ip bench sent { type filter hook output priority 0; }"
    host.run("nft", f"add table ip bench; {chain}; add rule ip bench sent tcp dport {port} counter")


def _bytes_sent(host: Host) -> int:
    words = host.run("nft", "list", "chain", "ip", "bench", "sent").split()
    return int(words[words.index("bytes") + 1])
