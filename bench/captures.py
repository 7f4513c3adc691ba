"""Captures: `sojourn measure`, `flows`, `rtt` and `record` beside tcpdump, pping, NFStream, tshark, dpkt and scapy.

All are whole commands on the same files, the real pair made `LONG` times as long, their output thrown away. The steady
rate is that of the packets which a capture of `LONG` copies has more than one of `SHORT` copies, in the time that it
takes more; what is left of the longer one's time is start-up. Peers are taken where they are: pping on the PATH,
NFStream in this Python or in the one that the variable `SOJOURN_BENCH_NFSTREAM` names.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.capture_files import LongPair, long_pairs
from bench.timing import SOJOURN, CommandRun, best_run, best_seconds

__all__ = ["documented"]

LONG = int(os.environ.get("SOJOURN_BENCH_COPIES", "200"))
SHORT = max(LONG // 10, 1)
TSHARK_COPIES, SCAPY_COPIES = 4, 1
NFSTREAM_PYTHON = os.environ.get("SOJOURN_BENCH_NFSTREAM", sys.executable)
NOTE = (
    f"One core, best of three (peers: one run). Steady: {LONG} copies of the pair less {SHORT}; `measure` counts "
    "the packets of both captures."
)

EXACT, AUTO = "sojourn measure (exact)", "sojourn measure --sketch auto"
FLOWS, RTT, RECORD = "sojourn flows", "sojourn rtt", "sojourn record"
TCPDUMP, PPING, NFSTREAM = "tcpdump -nn -r", "pping -q -r", "NFStream, one meter"
PEER_OF = {EXACT: TCPDUMP, RTT: PPING, FLOWS: NFSTREAM}

NFSTREAM_LOOP = """
import sys
from nfstream import NFStreamer
streamer = NFStreamer(source=sys.argv[1], n_dissections=0, statistical_analysis=False, n_meters=1)
assert sum(flow.bidirectional_packets for flow in streamer)
"""
DPKT_LOOP = """
import sys, dpkt
flows = {}
for _, data in dpkt.pcap.Reader(open(sys.argv[1], "rb")):
    ip = dpkt.ethernet.Ethernet(data).data
    key = ip.src, ip.dst, getattr(ip.data, "sport", 0), getattr(ip.data, "dport", 0), ip.p
    flows[key] = flows.get(key, 0) + 1
"""
SCAPY_LOOP = """
import sys
from scapy.all import IP, PcapReader
flows = {}
for packet in PcapReader(sys.argv[1]):
    ip = packet[IP]
    key = ip.src, ip.dst, getattr(ip.payload, "sport", 0), getattr(ip.payload, "dport", 0), ip.proto
    flows[key] = flows.get(key, 0) + 1
"""


@dataclass(frozen=True)
class Figures:
    """What a command took for captures of two lengths, or for one alone."""

    packets: int
    whole: CommandRun
    fewer_packets: int = 0
    shorter: CommandRun | None = None

    @property
    def rate(self) -> float:
        """Packets per second of the whole command, start-up included."""
        return self.packets / self.whole.seconds

    @property
    def steady(self) -> float:
        """Packets per second without start-up, which two lengths tell apart; not a number on too busy a machine."""
        if self.shorter is None:
            return math.nan
        more = self.whole.seconds - self.shorter.seconds
        return (self.packets - self.fewer_packets) / more if more > 0 else math.nan

    def row(self, name: str, peer: float) -> str:
        start_up = self.whole.seconds - self.packets / self.steady
        cells = [
            name,
            f"{self.rate / peer:.3g}",
            f"{self.steady / 1e6:.3g}" if self.shorter else "",
            f"{self.packets:,}",
            f"{self.whole.seconds:.2f}",
            f"{start_up:.2f}" if self.shorter else "",
            f"{self.whole.peak_kib / 1024:.0f} MiB",
        ]
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Captures:
    """All that was measured: our commands on one and on two cores, and the peers that are there."""

    pair: LongPair
    ours: dict[str, Figures]
    two_cores: dict[str, CommandRun]
    peers: dict[str, Figures]
    missing: list[str]
    reading: str

    def lines(self) -> list[str]:
        """Each command, then ratios to peers, then what a second core brings."""
        sent, received = self.pair.packets
        tcpdump = self.peers[TCPDUMP].rate
        return [
            f"The real pair {LONG} times as long: {sent:,} and {received:,} packets.",
            "",
            "| | × tcpdump, whole command | million packets/s, steady | packets | seconds | start-up, s | peak |",
            "|---|---:|---:|---:|---:|---:|---:|",
            *[figures.row(name, tcpdump) for name, figures in {**self.ours, **self.peers}.items()],
            *self.missing,
            "",
            "| | whole commands, × | steady, × |",
            "|---|---:|---:|",
            *[
                f"| {own} ÷ {peer} | {self._whole_ratio(own):.3g} | {self._steady_ratio(own):.3g} |"
                for own, peer in PEER_OF.items()
                if peer in self.peers
            ],
            "",
            "| two cores ÷ one | wall clock, × | one core, s | two cores, s |",
            "|---|---:|---:|---:|",
            *[
                f"| {name} | {self._gain(name):.2f} | {self.ours[name].whole.seconds:.2f} | {run.seconds:.2f} |"
                for name, run in self.two_cores.items()
            ],
            "",
            self.reading,
            "",
            f"Load of the machine during the last minutes: {os.getloadavg()[1]:.1f}; over 1, others used it as well.",
        ]

    def goals(self) -> list[str]:
        """What was wanted beside what was reached."""
        rates = ((EXACT, 5), (AUTO, 4), (FLOWS, 10), (RTT, 8))
        wanted = [(f"{name}, million packets/s, steady", self.ours[name].steady / 1e6, goal) for name, goal in rates]
        wanted.append((f"{EXACT} ÷ {TCPDUMP}, whole commands", self._whole_ratio(EXACT), 12))
        for name, goal in ((RTT, 10), (FLOWS, 15)):
            if PEER_OF[name] in self.peers:
                wanted.append((f"{name} ÷ {PEER_OF[name]}, steady", self._steady_ratio(name), goal))
        wanted.append((f"{EXACT}, two cores ÷ one", self._gain(EXACT), 1.6))
        lines = ["| goal | at least | reached | |", "|---|---:|---:|---|"]
        for name, reached, goal in wanted:
            lines.append(f"| {name} | {goal} | {reached:.3g} | {'met' if reached >= goal else 'missed'} |")
        return lines

    def _whole_ratio(self, name: str) -> float:
        return self.ours[name].rate / self.peers[PEER_OF[name]].rate

    def _steady_ratio(self, name: str) -> float:
        return self.ours[name].steady / self.peers[PEER_OF[name]].steady

    def _gain(self, name: str) -> float:
        return self.ours[name].whole.seconds / self.two_cores[name].seconds


def documented() -> tuple[list[str], list[str]]:
    """Ratios and rates, and goals beside them for the documentation."""
    with long_pairs(SCAPY_COPIES, TSHARK_COPIES, SHORT, LONG) as (least, few, short, long):
        commands = _own_commands(long)
        ours = {name: _figures(command, short, long) for name, command in commands.items()}
        two = {name: best_run(command, cores=2) for name, command in commands.items()}
        commands, missing = _peer_commands(long)
        peers = {name: _figures(command, short, long, 1) for name, command in commands.items()}
        peers |= _slow_peers(least, few)
        measured = Captures(long, ours, two, peers, missing, _reading(long))
    return measured.lines(), measured.goals()


def _own_commands(pair: LongPair) -> dict[str, list[str]]:
    sender = str(pair.sender)
    return {
        EXACT: [*SOJOURN, "measure", *pair.both],
        AUTO: [*SOJOURN, "measure", *pair.both, "--sketch", "auto"],
        FLOWS: [*SOJOURN, "flows", sender],
        RTT: [*SOJOURN, "rtt", sender],
        RECORD: [*SOJOURN, "record", sender, "-w", f"{sender}.epochs"],
    }


def _peer_commands(pair: LongPair) -> tuple[dict[str, list[str]], list[str]]:
    """Peers that are there, and a line for each that is not."""
    path = str(pair.sender)
    commands, missing = {TCPDUMP: ["tcpdump", "-nn", "-r", path]}, []
    if shutil.which("pping"):
        commands[PPING] = ["pping", "-q", "-r", path]
    else:
        missing += ["", "pping: not on PATH"]
    found = subprocess.run([NFSTREAM_PYTHON, "-c", "import nfstream"], check=False, capture_output=True)
    if found.returncode == 0:
        commands[NFSTREAM] = [NFSTREAM_PYTHON, "-c", NFSTREAM_LOOP, path]
    else:
        missing += ["", "NFStream: not importable (SOJOURN_BENCH_NFSTREAM names a Python that has it)"]
    return commands, missing


def _slow_peers(least: LongPair, few: LongPair) -> dict[str, Figures]:
    """Those that take too long for long captures; of start-up they have little in comparison."""
    fields = [word for name in ("ip.src", "ip.dst", "tcp.srcport", "udp.srcport") for word in ("-e", name)]
    commands = {
        "tshark -T fields": (few, ["tshark", "-r", str(few.sender), "-T", "fields", *fields]),
        "dpkt loop": (few, [sys.executable, "-c", DPKT_LOOP, str(few.sender)]),
        "scapy loop": (least, [sys.executable, "-c", SCAPY_LOOP, str(least.sender)]),
    }
    return {name: Figures(pair.packets[0], best_run(command, 1)) for name, (pair, command) in commands.items()}


def _figures(command: list[str], short: LongPair, long: LongPair, repetitions: int = 3) -> Figures:
    """A command's figures; `command` is on the files of the longer pair."""
    shorter_files = dict(zip(long.both, short.both, strict=True))
    points = 1 + (str(long.receiver) in command)
    shorter = best_run([shorter_files.get(word, word) for word in command], repetitions)
    whole = best_run(command, repetitions)
    return Figures(sum(long.packets[:points]), whole, sum(short.packets[:points]), shorter)


def _reading(pair: LongPair) -> str:
    """Reading alone, in a process that is already running."""
    from sojourn.capture.decode.decoder import DecodeOptions
    from sojourn.capture.files.reader import open_capture

    def read(path: Path, *, flow_table: bool) -> None:
        with open_capture(path, DecodeOptions(flow_table=flow_table)) as reader:
            for _ in reader:
                pass

    seconds = [best_seconds(lambda t=t: read(pair.sender, flow_table=t), 3) for t in (False, True)]
    without, with_table = (pair.packets[0] / taken / 1e6 for taken in seconds)
    return (
        f"In a running process: reading, flow ids and packet ids {without:.1f} million packets/s, "
        f"with the flow table {with_table:.1f}."
    )
