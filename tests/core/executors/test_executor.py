"""Batch work in local processes: order, errors, lost workers, and that nobody is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import executor_tasks as tasks
from sojourn.core.errors import InputError, ParameterError, UsageError, WorkerError
from sojourn.core.executors.executor import LocalExecutor, open_executor
from sojourn.core.processors import usable_processors

PATIENCE_S = 120
Children = Callable[[], list[psutil.Process]]


def running_children() -> dict[int, psutil.Process]:
    """Processes of this one; a fork server and a resource tracker stay to start more with later."""
    found = {}
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            words = " ".join(child.cmdline())
            if child.status() != psutil.STATUS_ZOMBIE and not re.search("forkserver|resource_tracker", words):
                found[child.pid] = child
    return found


@pytest.fixture
def children() -> Children:
    """Worker processes: those that fixtures of other tests still hold, as a server's, are none."""
    before = running_children()
    return lambda: [child for pid, child in running_children().items() if pid not in before]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_the_pieces(workers: int, children: Children) -> None:
    assert list(LocalExecutor(workers).map(tasks.slow_first, range(12))) == list(range(12))
    assert children() == []


def test_no_pieces_are_no_work() -> None:
    assert list(LocalExecutor(4).map(tasks.square, [])) == []


def test_the_work_is_spread_over_processes_and_counted() -> None:
    executor = LocalExecutor(3)
    assert executor.used == 1
    found = set(executor.map(tasks.process_of, range(12)))
    assert len(found) == executor.used == 3
    assert os.getpid() not in found


def test_one_worker_and_little_work_stay_in_this_process() -> None:
    little = LocalExecutor(3)
    assert set(little.map(tasks.process_of, range(3), seconds=0.01)) == {os.getpid()}
    assert set(LocalExecutor(1).map(tasks.process_of, range(3))) == {os.getpid()}
    assert set(LocalExecutor(3).map(tasks.process_of, range(1))) == {os.getpid()}
    assert little.used == 1


def test_as_many_workers_as_processors_by_default() -> None:
    with open_executor() as executor:
        assert executor.workers == usable_processors() == len(os.sched_getaffinity(0))
    with pytest.raises(ParameterError):
        LocalExecutor(0)
    with pytest.raises(UsageError):
        open_executor(2, "tcp://127.0.0.1:1")


@pytest.mark.parametrize("workers", [1, 3])
def test_a_piece_that_fails_raises_its_own_error(workers: int, children: Children) -> None:
    with pytest.raises(InputError) as caught:
        list(LocalExecutor(workers).map(tasks.fails_at_three, range(40)))
    assert str(caught.value) == "piece 3: three is no number; use another"
    assert (caught.value.where, caught.value.action) == ("piece 3", "use another")
    assert children() == []


def test_an_error_that_cannot_travel_is_still_told() -> None:
    with pytest.raises(WorkerError, match="HomeboundError: stays here"):
        list(LocalExecutor(2).map(tasks.fails_strangely, range(2)))


def test_a_result_that_cannot_travel_is_an_error_not_a_lost_worker() -> None:
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        list(LocalExecutor(2).map(tasks.gives_a_lock, range(2)))


def test_the_piece_of_a_lost_worker_is_done_by_another(tmp_path: Path) -> None:
    assert list(LocalExecutor(2).map(tasks.DiesOnce(tmp_path), range(8))) == list(range(8))
    assert (tmp_path / "died").exists()


def test_a_piece_that_kills_every_worker_is_given_up(children: Children) -> None:
    with pytest.raises(WorkerError, match="exit code -9"):
        list(LocalExecutor(2).map(tasks.always_dies, range(4)))
    assert children() == []


def test_a_caller_that_stops_early_leaves_no_process(children: Children) -> None:
    with closing(LocalExecutor(2).map(tasks.slow_first, range(1, 1000))) as results:
        assert next(results) == 1
        assert len(children()) == 2
    assert children() == []


def test_workers_inherit_the_function_or_get_it_once(tmp_path: Path) -> None:
    table = tasks.Table(tmp_path, np.arange(1 << 18))
    assert list(LocalExecutor(2).map(table, range(16))) == list(range(16))
    assert list(tmp_path.iterdir()) == []  # forked: nothing was pickled
    found: list[int] = []
    # Another thread than the main one may not fork: its workers start anew, each with one copy.
    thread = threading.Thread(target=lambda: found.extend(LocalExecutor(2).map(table, range(16))))
    thread.start()
    thread.join()
    assert found == list(range(16))
    assert len(list(tmp_path.iterdir())) == 2


SLEEPER = """
import sys
from executor_tasks import sleeps
from sojourn.core.executors.executor import LocalExecutor
print("ready", flush=True)
list(LocalExecutor(2).map(sleeps, range(4)))
"""


def sleeping_workers() -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A program in its own process group whose two workers sleep."""
    tests = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"}
    program = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    limit = time.monotonic() + PATIENCE_S
    while len(workers := psutil.Process(program.pid).children()) < 2:
        assert time.monotonic() < limit
        assert program.poll() is None
        time.sleep(0.02)
    return program, workers


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent_whatever_ends_it(how: signal.Signals) -> None:
    program, workers = sleeping_workers()
    if how is signal.SIGINT:
        os.killpg(program.pid, how)  # Ctrl-C reaches the workers as well
    else:
        program.send_signal(how)
    _output, told = program.communicate(timeout=PATIENCE_S)
    _gone, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
    assert alive == []
    assert "executor_tasks.py" not in told  # no worker has printed a traceback
