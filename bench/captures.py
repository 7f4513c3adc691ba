"""Reading captures: `sojourn flows`, `rtt` and `measure` beside tcpdump, tshark, dpkt and scapy on the same files.

All run as whole commands on one core, start-up included; peers that are slow read a file of the first packets only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.capture_files import RECORD, write_in_child

PACKETS = int(os.environ.get("SOJOURN_BENCH_PACKETS", "5000000"))
MANY, SLOW, SLOWEST = 1_000_000, 200_000, 20_000
SOJOURN = [sys.executable, "-m", "sojourn.cli.main"]

DPKT = """
import sys, dpkt
flows = {}
for _, data in dpkt.pcap.Reader(open(sys.argv[1], "rb")):
    ip = dpkt.ethernet.Ethernet(data).data
    key = ip.src, ip.dst, ip.data.sport, ip.data.dport, ip.p
    flows[key] = flows.get(key, 0) + 1
"""
SCAPY = """
import sys
from scapy.all import IP, PcapReader
flows = {}
for packet in PcapReader(sys.argv[1]):
    ip = packet[IP]
    key = ip.src, ip.dst, getattr(ip.payload, "sport", 0), getattr(ip.payload, "dport", 0), ip.proto
    flows[key] = flows.get(key, 0) + 1
"""


def shortened(path: Path, packets: int) -> Path:
    """The first packets of a capture."""
    short = path.with_name(f"{path.stem}-first-{packets}.pcap")
    with path.open("rb") as source:
        short.write_bytes(source.read(24 + packets * RECORD))
    return short


def seconds(command: list[str], repetitions: int = 3) -> tuple[float, int]:
    """Best wall time of a command, and its peak memory (KiB) in the last run: the first may have to compile."""
    best, peak = float("inf"), 0
    for _ in range(repetitions):
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)} failed")
        best, peak = min(best, time.perf_counter() - start), usage.ru_maxrss
    return best, peak


def table() -> list[str]:
    """Packets per second of each command, its ratio to tcpdump, and its peak memory."""
    folder = Path(tempfile.mkdtemp(prefix="sojourn-bench-"))
    try:
        return _table(folder)
    finally:
        shutil.rmtree(folder)


def _table(folder: Path) -> list[str]:
    sender, receiver = write_in_child(folder, PACKETS)
    many, slow, slowest = (shortened(sender, min(n, PACKETS)) for n in (MANY, SLOW, SLOWEST))
    both = [str(sender), str(receiver)]
    fields = [word for name in ("ip.src", "ip.dst", "tcp.srcport", "udp.srcport") for word in ("-e", name)]
    commands: dict[str, tuple[list[str], int]] = {
        "sojourn flows": ([*SOJOURN, "flows", str(sender)], PACKETS),
        "sojourn rtt": ([*SOJOURN, "rtt", str(sender)], PACKETS),
        "sojourn record": ([*SOJOURN, "record", str(sender), "-w", str(folder / "x.epochs")], PACKETS),
        "sojourn measure --sketch auto (both files)": ([*SOJOURN, "measure", *both, "--sketch", "auto"], 2 * PACKETS),
        "sojourn measure (exact, both files)": ([*SOJOURN, "measure", *both], 2 * PACKETS),
        "tcpdump -nn -r": (["tcpdump", "-nn", "-r", str(many)], min(MANY, PACKETS)),
        f"tshark -T fields (first {SLOW:,})": (["tshark", "-r", str(slow), "-T", "fields", *fields], SLOW),
        f"dpkt loop (first {SLOW:,})": ([sys.executable, "-c", DPKT, str(slow)], SLOW),
        f"scapy loop (first {SLOWEST:,})": ([sys.executable, "-c", SCAPY, str(slowest)], SLOWEST),
    }
    measured = {
        name: (packets, *seconds(command, 3 if name.startswith("sojourn") else 1))
        for name, (command, packets) in commands.items()
    }
    peer_packets, peer_seconds, _ = measured["tcpdump -nn -r"]
    peer = peer_packets / peer_seconds
    lines = [
        f"{PACKETS:,} packets per file, 64-byte snap, 20 000 flows.",
        "",
        "| | × tcpdump | million packets/s | seconds | peak memory |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, (packets, taken, peak) in measured.items():
        speed = packets / taken
        lines.append(f"| {name} | {speed / peer:.3g} | {speed / 1e6:.3g} | {taken:.2f} | {_shown(name, peak)} |")
    return [*lines, "", *_reading(sender)]


def _shown(name: str, peak_kib: int) -> str:
    """Peak memory of our own commands; a small peer's would be hidden by its parent's."""
    return f"{peak_kib / 1024:.0f} MiB" if name.startswith("sojourn") else ""


def _reading(path: Path) -> list[str]:
    """Reading alone, in a process that is already running."""
    from bench.timing import best_seconds
    from sojourn.capture.decode.decoder import DecodeOptions
    from sojourn.capture.files.reader import open_capture

    def read(*, flow_table: bool) -> None:
        with open_capture(path, DecodeOptions(flow_table=flow_table)) as reader:
            for _ in reader:
                pass

    speeds = [PACKETS / best_seconds(lambda t=t: read(flow_table=t), 3) / 1e6 for t in (False, True)]
    return [
        f"In a running process: reading, flow ids and packet ids {speeds[0]:.1f} million packets/s, "
        f"with the flow table {speeds[1]:.1f}."
    ]
