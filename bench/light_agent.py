"""What an agent of metrics costs: memory by the kernel's account of the process, and its share of one core.

A real agent beside a real query unit, one after the other: the metrics of all processes of this machine, where reading
/proc is most of it; then a metric whose measurements come at a rate and cost nothing to read. Goals: 40 MiB resident,
and 1 % of a core at 1,000 measurements a second.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.live import processor_seconds
from sojourn.lab.fleet import SOJOURN, Fleet, agent, query_unit

__all__ = ["NOTE", "table"]

RATES = (0, 1_000, 10_000, 100_000)
SETTLE_SECONDS, SECONDS = 5.0, 30.0
ROOT = Path(__file__).resolve().parents[1]
AGENT, ALONE = (*SOJOURN, "agent"), (sys.executable, "-m", "sojourn.node.agent.command")
NOTE = (
    f"One core, one run of {SECONDS:.0f} s each, after the first {SETTLE_SECONDS:.0f} s; polled every second, epochs "
    "of 10 s. Proportional: what it shares with other processes in equal parts (PSS). Packages: those with machine "
    "code that numpy and Numba bring, mapped into the process."
)


def _install_metric(folder: Path) -> None:
    """Offer `bench.steady_metric` to the agents as an installed plug-in would be."""
    information = folder / "steady-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: steady\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[sojourn.sources]\nsteady = bench.steady_metric:Steady\n")
    os.environ["PYTHONPATH"] = f"{folder}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"


@dataclass(frozen=True)
class Case:
    """An agent's streams, and how the table calls them."""

    what: str
    streams: dict[str, dict[str, object]]
    program: tuple[str, ...] = AGENT


def _steady(rate: int) -> dict[str, dict[str, object]]:
    return {"steady": {"metric": "steady", "per_second": rate, "epoch": "10s"}}


def _cases() -> list[Case]:
    processes = {name: {"metric": name, "epoch": "10s"} for name in ("cpu", "memory", "disk_io")}
    return [
        Case(f"cpu of {len(_processes())} processes", {"cpu": processes["cpu"]}),
        Case("cpu, memory and disk_io of them", processes),
        *(Case(f"{rate:,} measurements/s", _steady(rate)) for rate in RATES),
        Case("1,000 measurements/s, `sojourn-node`", _steady(1_000), ALONE),
    ]


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdecimal()]


def table() -> list[str]:
    """One agent after the other; the first seconds (imports, announcements) are not counted."""
    lines = [
        "| streams | share of one core | resident | proportional | packages | answered by the query unit |",
        "|---|---:|---:|---:|---|---:|",
    ]
    with tempfile.TemporaryDirectory(prefix="sojourn-bench-") as name:
        folder = Path(name)
        _install_metric(folder / "plugin")
        with query_unit(folder) as fleet:
            lines += [_row(fleet, f"node-{number}", case) for number, case in enumerate(_cases())]
    return lines


def _row(fleet: Fleet, node: str, case: Case) -> str:
    with agent(fleet, node, case.streams, program=case.program) as running:
        time.sleep(SETTLE_SECONDS)
        before, start = processor_seconds(running.pid), time.monotonic()
        time.sleep(SECONDS)
        used = (processor_seconds(running.pid) - before) / (time.monotonic() - start)
        resident, proportional = _memory(running.pid)
        maps = Path(f"/proc/{running.pid}/maps").read_text()
    packages = ", ".join(name for name in ("numpy", "llvmlite", "scipy") if name in maps) or "none"
    memory = f"{resident / 1024:.1f} MiB | {proportional / 1024:.1f} MiB"
    return f"| {case.what} | {used:.2%} | {memory} | {packages} | {_answered(fleet, node, case)} |"


def _memory(pid: int) -> tuple[int, int]:
    """Resident and proportional, in KiB, of all that the process has mapped."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {words[0]: int(words[1]) for words in map(str.split, lines)}
    return kib["Rss:"], kib["Pss:"]


def _answered(fleet: Fleet, node: str, case: Case) -> str:
    """Of measurements that are one each, how many arrived."""
    if "steady" not in case.streams:
        return ""
    (total,) = fleet.ask(metric="steady", node=node)
    return f"{int(float(str(total['value'] or 0))):,}"
