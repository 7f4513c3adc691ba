"""Batch work on a real Dask scheduler with worker processes, and what is said when there is none."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import executor_tasks as tasks
from dask_cluster import Cluster, dask_cluster
from sojourn.core.errors import InputError, UsageError, WorkerError
from sojourn.core.executors import executor as cluster_module
from sojourn.core.executors.executor import ClusterExecutor, open_executor


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two worker processes of one thread each."""
    with dask_cluster(tmp_path_factory.mktemp("dask"), 2) as running:
        yield running


def test_results_come_in_order_from_both_workers(cluster: Cluster) -> None:
    with open_executor(cluster=cluster.address) as executor:
        assert list(executor.map(tasks.slow_first, range(12))) == list(range(12))
        assert len(set(executor.map(tasks.process_of, range(40)))) == 2
        assert executor.used == 2


def test_the_function_travels_to_workers_not_with_every_piece(cluster: Cluster, tmp_path: Path) -> None:
    table = tasks.Table(tmp_path, np.arange(1 << 18))
    with ClusterExecutor(cluster.address) as executor:
        assert list(executor.map(table, range(40))) == list(range(40))
    # Once for each of two workers; Dask may copy it to one a second time when it is busy.
    assert 1 <= len(list(tmp_path.iterdir())) <= 10


def test_a_piece_that_fails_raises_its_own_error(cluster: Cluster) -> None:
    with ClusterExecutor(cluster.address) as executor:
        with pytest.raises(InputError, match="piece 3: three is no number; use another"):
            list(executor.map(tasks.fails_at_three, range(40)))
        assert list(executor.map(tasks.square, range(4))) == [0, 1, 4, 9]


def test_the_pieces_of_a_lost_worker_are_done_by_another(tmp_path: Path) -> None:
    with dask_cluster(tmp_path, 2) as running:
        with ClusterExecutor(running.address) as executor:
            assert list(executor.map(tasks.DiesOnce(tmp_path), range(20))) == list(range(20))
        assert (tmp_path / "died").exists()
        assert sorted(worker.poll() is None for worker in running.workers) == [False, True]


def test_a_scheduler_without_workers_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "WORKER_SECONDS", 1)
    with dask_cluster(tmp_path, 0) as running, pytest.raises(WorkerError, match="has no workers"):
        ClusterExecutor(running.address).__enter__()


@pytest.mark.parametrize("address", ["nonsense", "foo://127.0.0.1:1", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="no address of a scheduler"):
        ClusterExecutor(address).__enter__()


def test_another_server_at_the_address_is_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(WorkerError, match="no Dask scheduler answers"):
            ClusterExecutor(address).__enter__()


def test_without_dask_the_extra_to_install_is_named() -> None:
    code = "import sys; sys.modules['distributed'] = None; "
    code += "from sojourn.core.executors.executor import ClusterExecutor as C\n"
    told = subprocess.run(
        [sys.executable, "-c", code + "C('tcp://127.0.0.1:1').__enter__()"], capture_output=True, text=True, check=False
    ).stderr
    assert "a cluster needs the distributed package; install sojourn[cluster]" in told


def test_a_cluster_that_ends_in_the_middle_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dask_cluster(tmp_path, 1) as running:
        monkeypatch.setattr(cluster_module, "WORKER_SECONDS", 5)
        with ClusterExecutor(running.address) as executor:
            results = executor.map(tasks.process_of, range(1000))
            next(results)
            running.end()
            with pytest.raises(WorkerError, match="has lost its scheduler or all its workers"):
                list(results)
