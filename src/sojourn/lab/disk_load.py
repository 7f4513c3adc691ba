"""Real disk IO of several processes at skewed rates, with the exact count of each from the source itself.

Guarantee: what is started is stopped, what is mounted is unmounted, and files are removed, whatever happens. Counting
begins before the first write and ends after the last.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.errors import SojournError, SourceError
from sojourn.core.keys import key_id
from sojourn.sources.block_trace import tracefs_folder
from sojourn.sources.disk_io import DiskIo, Method
from sojourn.sources.source import InstancePatterns, SelectedInstances, SourceBatch


class Tally:
    """Sums and counts of all batches so far."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._sums: Counter[int] = Counter()
        self._counts: Counter[int] = Counter()

    def add(self, found: SourceBatch[MeasurementBatch]) -> None:
        self._names |= {key_id(key): str(key) for key in found.keys}
        ids, positions = np.unique(found.batch.instance_id, return_inverse=True)
        sums = np.zeros(len(ids), np.int64)
        np.add.at(sums, positions, found.batch.value)
        self._sums.update(dict(zip(ids.tolist(), sums.tolist(), strict=True)))
        self._counts.update(dict(zip(ids.tolist(), np.bincount(positions).tolist(), strict=True)))

    def sums(self) -> dict[str, int]:
        return {self._names[instance]: amount for instance, amount in self._sums.items()}

    def counts(self) -> dict[str, int]:
        return {self._names[instance]: count for instance, count in self._counts.items()}


END_SECONDS = 2.0
POLL_SECONDS = 1.0


@contextmanager
def mounted_tracefs() -> Iterator[bool]:
    """Whether tracefs is there; mounted for the time of the context where it is not and can be."""
    with suppress(SourceError):
        tracefs_folder()
        yield os.geteuid() == 0
        return
    with tempfile.TemporaryDirectory(prefix="sojourn-tracefs-") as folder:
        command = ["mount", "-t", "tracefs", "tracefs", folder]
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
        try:
            yield mounted
        finally:
            if mounted:
                subprocess.run(["umount", folder], check=True, capture_output=True)


class Writers:
    """Processes that are ready to write, named ``PREFIX-0`` and so on; ``pattern`` fits their keys."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]], pattern: str, seconds: float) -> None:
        self._processes, self.pattern, self._seconds = processes, pattern, seconds

    def write(self, method: Method) -> dict[str, int]:
        """Let all write; the operations of each by its name, both as the source gives them."""
        tally = Tally()
        with SelectedInstances(DiskIo(method=method), InstancePatterns([self.pattern])) as source:
            for process in self._processes:
                _input_of(process).write("\n")
                _input_of(process).flush()
            end = time.monotonic() + self._seconds + 1
            while time.monotonic() < end:
                time.sleep(POLL_SECONDS)
                tally.add(source.poll(time.time_ns()))
            for process in self._processes:
                _output_of(process).readline()
            time.sleep(2 * POLL_SECONDS)
            tally.add(source.poll(time.time_ns()))
        return tally.sums()


@contextmanager
def writers(rates: Sequence[float], seconds: float, *, prefix: str = "iotm") -> Iterator[Writers]:
    """Start a process for each rate (writes per second); files lie in ``/var/tmp``, which is on a disk."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sojourn-disk-", dir="/var/tmp")))
        processes = []
        for i, rate in enumerate(rates):
            name = f"{prefix}-{i}"
            arguments = [str(folder / name), name, str(rate), str(seconds), str(i)]
            process = subprocess.Popen(
                [sys.executable, "-m", "sojourn.lab.disk_writer", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(_end, process)
            processes.append(process)
        for process in processes:
            if _output_of(process).readline() != "ready\n":
                raise SojournError("a writer did not start", where="disk load")
        yield Writers(processes, f"{prefix}-*", seconds)


def _input_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdin is not None
    return process.stdin


def _output_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _end(process: subprocess.Popen[str]) -> None:
    """The end of its input ends a writer; one that is busy is ended."""
    with suppress(OSError):
        _input_of(process).close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()
    _output_of(process).close()
