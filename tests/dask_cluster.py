"""A real Dask cluster on the loopback interface: a scheduler and workers as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sojourn.core.errors import WorkerError
from sojourn.core.executors.executor import ClusterExecutor

__all__ = ["Cluster", "dask_cluster"]

PATIENCE_S = 120


class Cluster:
    """The scheduler's address and its worker processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "scheduler.json"
        self._scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.workers: list[subprocess.Popen[bytes]] = []
        limit = time.monotonic() + PATIENCE_S
        while not (self._file.exists() and self._file.read_text().rstrip().endswith("}")):
            assert time.monotonic() < limit, "the scheduler does not start"
            assert self._scheduler.poll() is None, (folder / "scheduler.log").read_text()
            time.sleep(0.05)
        self.address = str(json.loads(self._file.read_text())["address"])

    def add_worker(self, threads: int = 1) -> None:
        self.workers.append(
            self._start("worker", "--host", "127.0.0.1", "--nthreads", str(threads), "--no-nanny", "--no-dashboard")
        )

    def wait_for_threads(self, threads: int) -> None:
        """Workers may take long to start where others use the machine."""
        limit = time.monotonic() + PATIENCE_S
        while True:
            try:
                with ClusterExecutor(self.address) as executor:
                    if executor.workers == threads:
                        return
            except WorkerError:
                pass
            assert time.monotonic() < limit, (self._folder / "worker.log").read_text()

    def _start(self, kind: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(self._file), *words]
        paths = (
            f"{Path(__file__).resolve().parent}:{os.environ.get('PYTHONPATH', '')}"  # workers import tests' functions
        )
        environment = {**os.environ, "PYTHONPATH": paths, "DASK_DISTRIBUTED__WORKER__USE_FILE_LOCKING": "False"}
        with (self._folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder, env=environment)

    def end(self) -> None:
        for process in [*self.workers, self._scheduler]:
            process.kill()
        for process in [*self.workers, self._scheduler]:
            process.wait()


@contextmanager
def dask_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """A scheduler with so many workers of one thread each."""
    cluster = Cluster(folder)
    try:
        for _ in range(workers):
            cluster.add_worker()
        if workers:
            cluster.wait_for_threads(workers)
        yield cluster
    finally:
        cluster.end()
