"""Windows on several workers: the same answers to the last bit, wherever they are solved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from collection_worlds import simulated
from dask_cluster import dask_cluster
from sojourn.core.executors.executor import ClusterExecutor, LocalExecutor
from sojourn.tomography.bounds.constraints import bound
from sojourn.tomography.bounds.linear_bounds import bound_linear
from sojourn.tomography.comparison import published, published_bounds
from sojourn.tomography.delays import estimate as estimate_module
from sojourn.tomography.delays.estimate import WindowOptions, estimate, windows

PATIENCE_S = 120
LOSSES = [(0.0, 0.0), (0.1, 0.1)]


@pytest.mark.parametrize(("ack_loss", "loss"), LOSSES)
def test_two_workers_give_the_same_answers_as_one(
    ack_loss: float, loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate_module, "SECONDS_PER_PLACE", 1)
    trace, _truth = simulated(100, 71, ack_loss, loss)
    bounds = bound(trace)
    alone, shared = LocalExecutor(1), LocalExecutor(2)
    expected, found = (estimate(trace, bounds, executor=executor) for executor in (alone, shared))
    assert (alone.used, shared.used) == (1, 2)
    assert np.array_equal(found.arrival_ns, expected.arrival_ns)
    assert found.solves == expected.solves


def test_what_was_published_is_solved_by_workers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_module, "SECONDS_PER_PLACE", 1)
    trace, _truth = simulated(60, 73)
    bounds = published_bounds(trace)
    assert bounds.is_exact
    alone, shared = LocalExecutor(1), LocalExecutor(2)
    expected, found = (published(trace, bounds, executor=executor) for executor in (alone, shared))
    assert (alone.used, shared.used) == (1, 2)
    assert np.array_equal(found.arrival_ns, expected.arrival_ns)
    assert found.solves == expected.solves


@pytest.mark.long
def test_a_cluster_gives_the_same_answers_also_with_threads(tmp_path: Path) -> None:
    with dask_cluster(tmp_path, 1) as cluster:
        cluster.add_worker(threads=2)
        cluster.wait_for_threads(3)
        for ack_loss, loss in LOSSES:
            trace, _truth = simulated(100, 71, ack_loss, loss)
            bounds = bound(trace)
            with ClusterExecutor(cluster.address) as executor:
                found = estimate(trace, bounds, executor=executor)
            expected = estimate(trace, bounds)
            assert np.array_equal(found.arrival_ns, expected.arrival_ns)
            assert found.solves == expected.solves
        with ClusterExecutor(cluster.address) as executor:
            shared = bound_linear(trace, bounds, cut=800, executor=executor)
        alone = bound_linear(trace, bounds, cut=800)
        assert np.array_equal(shared.bounds.low_ns, alone.bounds.low_ns)
        assert np.array_equal(shared.bounds.most_ns, alone.bounds.most_ns)


def test_progress_comes_once_for_each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_module, "SECONDS_PER_PLACE", 1)
    trace, _truth = simulated(60, 72)
    shares: list[float] = []
    estimate(trace, bound(trace), executor=LocalExecutor(2), advance=lambda _step, share: shares.append(share))
    assert len(shares) == len(list(windows(trace.t0_ns, trace.period_ns, WindowOptions())))
    assert shares == sorted(set(shares))
    assert shares[-1] == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_the_command_and_its_workers_without_a_traceback(tmp_path: Path, workers: int) -> None:
    sojourn = [sys.executable, "-m", "sojourn.cli.main"]
    size = ["--nodes", "400", "--packets", "150", "--seed", "73"]
    subprocess.run([*sojourn, "lab", "wireless", *size, "-w", "trace.csv"], cwd=tmp_path, check=True)
    command = [*sojourn, "tomography", "trace.csv", "--workers", str(workers)]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    )
    watched = psutil.Process(program.pid)
    limit = time.monotonic() + PATIENCE_S
    # With one worker: when its own work is well on; with two: when both are there.
    while len(watched.children()) < 2 if workers == 2 else watched.cpu_times().user < 3:
        assert time.monotonic() < limit
        assert program.poll() is None
        time.sleep(0.01)
    beside = watched.children()
    os.killpg(program.pid, signal.SIGINT)
    output, told = program.communicate(timeout=PATIENCE_S)
    assert (program.returncode, output) == (130, "")
    assert told in ("", "sojourn: interrupted\n")
    assert psutil.wait_procs(beside, timeout=PATIENCE_S)[1] == []
