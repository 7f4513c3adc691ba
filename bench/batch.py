"""Batch work on a Dask cluster of this machine: two workers beside one, for exact `measure` and for joint decoding.

Every part is the same pair, under a name of its own: captures of the real pair 20 times as long, and epochs of it 100
times as long with a few thousand flows. Each cluster works on all parts once before it counts, so that kernels are
loaded. Wall clock, as that is what a second worker is for; both processors have to be free.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sojourn
from bench.capture_files import LongPair, long_pairs
from bench.timing import ALLOWED_CORES, use_one_core
from sojourn.core.errors import WorkerError
from sojourn.core.executors.executor import ClusterExecutor
from sojourn.segments.batch.parts import BatchResult, Measuring, Pair, captures_measure, epochs_measure, measured_parts

__all__ = ["documented"]

PARTS = 12
SHORT, MANY_FLOWS = 20, 100
GOAL = 1.6
EXACT, DECODED = "exact `batch measure`", "`batch estimate`, decoded jointly"
PATIENCE_SECONDS = 60
WHERE = "src net 10.0.0.0/8"


@contextmanager
def _cluster(folder: Path, workers: int) -> Iterator[str]:
    """The address of a scheduler with so many workers of a thread each."""
    file = folder / f"scheduler-{workers}.json"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}

    def start(kind: str, *words: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            f"distributed.cli.dask_{kind}",
            "--scheduler-file",
            str(file),
            "--no-dashboard",
        ]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([*command, "--host", "127.0.0.1", *words], env=environment, **quiet)

    running = [start("scheduler", "--port", "0")]
    try:
        while not (file.exists() and file.read_text().rstrip().endswith("}")):
            time.sleep(0.1)
        running += [start("worker", "--nthreads", "1", "--no-nanny") for _ in range(workers)]
        address = str(json.loads(file.read_text())["address"])
        limit = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < limit:
            with suppress(WorkerError), ClusterExecutor(address) as executor:
                if executor.workers == workers:
                    break
            time.sleep(0.2)
        yield address
    finally:
        for process in running:
            process.kill()
            process.wait()


def _seconds(address: str, pairs: list[Pair], measure: Measuring) -> tuple[float, BatchResult]:
    """How long all parts take once every worker has done some, and the answer."""
    with ClusterExecutor(address) as executor:
        list(measured_parts(executor, pairs, measure, is_cluster=True))
        start = time.perf_counter()
        parts = list(measured_parts(executor, pairs, measure, is_cluster=True))
        return time.perf_counter() - start, BatchResult(parts)


def _linked(folder: Path, sender: Path, receiver: Path) -> list[Pair]:
    """The pair as many parts."""
    pairs = []
    for number in range(PARTS):
        paths = [folder / f"{number}-{path.name}" for path in (sender, receiver)]
        for path, target in zip(paths, (sender, receiver), strict=True):
            path.symlink_to(target)
        pairs.append(Pair(sender=str(paths[0]), receiver=str(paths[1])))
    return pairs


def _epochs(folder: Path, pair: LongPair) -> tuple[Path, Path]:
    """Files of epochs of the long pair."""
    paths = folder / "sent.epochs", folder / "received.epochs"
    for capture, path in zip(pair.both, paths, strict=True):
        recording = sojourn.record(capture, memory="512KB", flows=50 * MANY_FLOWS, loss=0.2, where=WHERE)
        recording.write(lambda path=path: path.open("wb"))
    return paths


def documented() -> tuple[list[str], list[str]]:
    """Seconds with one worker and with two, and whether the goal is met."""
    os.sched_setaffinity(0, ALLOWED_CORES)
    lines = ["| 12 parts | one worker | two workers | × one worker |", "|---|---:|---:|---:|"]
    goals = ["| goal | at least | reached | |", "|---|---:|---:|---|"]
    with tempfile.TemporaryDirectory(prefix="sojourn-bench-") as name, long_pairs(SHORT, MANY_FLOWS) as (short, long):
        folder = Path(name)
        work = {
            EXACT: (_linked(folder, short.sender, short.receiver), captures_measure({"sketch": "exact"})),
            DECODED: (_linked(folder, *_epochs(folder, long)), epochs_measure({})),
        }
        found: dict[str, list[tuple[float, BatchResult]]] = {what: [] for what in work}
        for workers in (1, 2):
            with _cluster(folder, workers) as address:
                for what, (pairs, measure) in work.items():
                    found[what].append(_seconds(address, pairs, measure))
    for what, ((one, first), (two, second)) in found.items():
        assert not first.failed, first.failed[0].error
        assert first.to_dict() == second.to_dict()
        ratio = one / two
        lines.append(f"| {what} | {one:.1f} s | {two:.1f} s | {ratio:.2f} |")
        told = "met" if ratio >= GOAL else "missed"
        goals.append(f"| {what}, two workers ÷ one | {GOAL} | {ratio:.2f} | {told} |")
    load = f"Load of the machine during the last minute: {os.getloadavg()[0]:.1f}."
    use_one_core()
    return [*lines, "", load], goals


NOTE = "Wall clock on two processors, after a run that loads kernels; both answers are the same, byte by byte."
