"""Timing: best of several runs, of functions after a warm-up or of whole commands, on as many cores as said."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SOJOURN", "CommandRun", "best_run", "best_seconds", "family_seconds", "use_one_core"]

SOJOURN = [sys.executable, "-m", "sojourn.cli.main"]
ALLOWED_CORES = sorted(os.sched_getaffinity(0))  # before any is given up
# A command's peak memory starts from that of the process that it was forked from, so that has to be a small one.
_RUNNER = """
import os, sys, time
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
start = time.perf_counter()
child = os.fork()
if not child:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.execvp(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - start, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


def use_one_core() -> None:
    """Pin this process to a single core."""
    os.sched_setaffinity(0, _cores(1))


def _cores(count: int) -> set[int]:
    """The last so many of the cores that may be used: the first has more interrupts."""
    return set(ALLOWED_CORES[-count:])


def family_seconds(pid: int) -> float:
    """User and system time of a process, those that it has started, and theirs; of those that ended, if waited for."""
    used: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may end at any time
            fields = stat.read_text().rpartition(")")[2].split()
            number = int(stat.parent.name)
            used[number] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(number)
    family = [pid]
    for number in family:
        family += children.get(number, [])
    return sum(used.get(number, 0) for number in family) / os.sysconf("SC_CLK_TCK")


def best_seconds(run: Callable[[], object], repetitions: int = 5) -> float:
    """The shortest of several runs: what the machine can do when nothing else disturbs it."""
    run()
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


@dataclass(frozen=True)
class CommandRun:
    """Wall-clock seconds of a whole command, from its start to its end, and its peak resident memory."""

    seconds: float
    peak_kib: int


def best_run(command: Sequence[str], repetitions: int = 3, *, cores: int = 1) -> CommandRun:
    """The shortest of several runs of a command whose output goes nowhere; its peak is that of the last one, as the
    first may have to compile kernels."""
    runner = [sys.executable, "-I", "-S", "-c", _RUNNER, ",".join(map(str, _cores(cores)))]
    best, peak = float("inf"), 0
    for _ in range(repetitions):
        said = subprocess.run([*runner, *command], check=True, capture_output=True, text=True).stdout.split()
        if said[2] != "0":
            raise SystemExit(f"{' '.join(command)} failed with code {said[2]}")
        best, peak = min(best, float(said[0])), int(said[1])
    return CommandRun(best, peak)
