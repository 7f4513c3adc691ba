"""What an agent costs: its share of one core by measurements per second, with a real query unit beside it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from sojourn.lab.fleet import agent, query_unit

__all__ = ["NOTE", "table"]

RATES = (0, 1_000, 10_000, 100_000)
SETTLE_SECONDS, SECONDS = 5.0, 30.0
NOTE = f"One core, one run of {SECONDS:.0f} s each, after the first seconds."
ROOT = Path(__file__).resolve().parents[1]


def _install_metric(folder: Path) -> None:
    """Offer `bench.steady_metric` to the agents as an installed plug-in would be."""
    information = folder / "steady-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: steady\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[sojourn.sources]\nsteady = bench.steady_metric:Steady\n")
    os.environ["PYTHONPATH"] = f"{folder}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"


def _processor_seconds(pid: int) -> float:
    """User and system time of a process and all its threads, by the kernel's clock of it (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def table() -> list[str]:
    """One agent after the other; the first seconds (imports, announcements) are not counted."""
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
                    before, start = _processor_seconds(pid), time.monotonic()
                    time.sleep(SECONDS)
                    used = (_processor_seconds(pid) - before) / (time.monotonic() - start)
                    memory = _resident_bytes(pid) / 2**20
                (total,) = fleet.ask(metric="steady", node=node)
                lines.append(f"| {rate:,} | {used:.3%} | {memory:.0f} MiB | {int(float(str(total['value'] or 0))):,} |")
    return lines
