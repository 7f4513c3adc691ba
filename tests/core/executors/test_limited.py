"""A process with limits: what exceeds them, what ends it, and that it never outlives its parent."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

import limited_tasks as tasks
from sojourn.core.errors import InputError, ParameterError
from sojourn.core.executors.limited import Ended, LimitedProcess, ProcessEndedError, ProcessLimits, _data_bytes
from waiting import PATIENCE_SECONDS, eventually

MEMORY = 512 << 20


@pytest.fixture
def process() -> Iterator[LimitedProcess]:
    found = LimitedProcess(ProcessLimits(seconds=PATIENCE_SECONDS, memory_bytes=MEMORY))
    yield found
    found.close()


def ended(process: LimitedProcess, *call: object, seconds: float | None = None) -> ProcessEndedError:
    with pytest.raises(ProcessEndedError) as caught:
        process.call(*call, seconds=seconds)  # type: ignore[arg-type]
    return caught.value


def test_calls_share_one_process_that_is_not_this_one(process: LimitedProcess) -> None:
    first, second = process.call(os.getpid), process.call(os.getpid)
    assert first == second == process.pid != os.getpid()
    assert process.call(tasks.echo, {"a": [1, 2]}) == {"a": [1, 2]}


def test_large_arguments_and_results_pass(process: LimitedProcess) -> None:
    data = os.urandom(20 << 20)
    assert process.call(tasks.echo, data) == data


def test_an_error_of_the_function_is_raised_here_and_the_process_goes_on(process: LimitedProcess) -> None:
    before = process.call(os.getpid)
    with pytest.raises(InputError) as caught:
        process.call(tasks.fail, "it is wrong")
    assert str(caught.value) == "a task: it is wrong; use another"
    assert "limited_tasks.py" in caught.value.__notes__[0]
    assert process.call(os.getpid) == before


def test_a_call_that_takes_too_long_ends_with_that_reason_and_the_next_one_works(process: LimitedProcess) -> None:
    error = ended(process, time.sleep, 1000, seconds=0.2)
    assert error.reason is Ended.TIME
    assert str(error) == "took more than 0.2 s"
    assert process.call(tasks.echo, 1) == 1


def test_time_is_limited_also_where_nobody_watches_the_clock(process: LimitedProcess) -> None:
    """The kernel's limit on processor time: what remains if the parent is stopped."""
    number = process.call(os.getpid)
    given, _most = resource.prlimit(number, resource.RLIMIT_CPU)
    assert PATIENCE_SECONDS < given < PATIENCE_SECONDS + 60
    reasons: list[Ended] = []
    thread = threading.Thread(target=lambda: reasons.append(ended(process, tasks.spin).reason))
    thread.start()
    while thread.is_alive():  # a call sets a limit that is longer than this test should last
        with suppress(ProcessLookupError):
            resource.prlimit(number, resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))
        thread.join(0.05)
    assert reasons == [Ended.TIME]


def test_a_call_that_needs_too_much_memory_ends_with_that_reason(process: LimitedProcess) -> None:
    error = ended(process, tasks.allocate, MEMORY)
    assert error.reason is Ended.MEMORY
    assert str(error) == "needed more than 512 MiB of memory"
    assert process.call(tasks.allocate, MEMORY // 4) == MEMORY // 4


@pytest.mark.parametrize(("call", "how"), [((os.abort,), "by SIGABRT"), ((os._exit, 3), "with exit code 3")])
def test_a_process_that_dies_says_how(process: LimitedProcess, call: tuple[object, ...], how: str) -> None:
    error = ended(process, *call)
    assert error.reason is Ended.DIED
    assert str(error) == f"its process ended {how}, which had 512 MiB of memory"
    assert process.call(tasks.echo, 1) == 1


def test_a_process_that_keeps_its_memory_is_replaced_before_it_is_short(process: LimitedProcess) -> None:
    before = process.call(tasks.leave_behind, MEMORY // 2)
    assert process.call(os.getpid) != before


def test_a_process_is_not_replaced_for_what_its_imports_take() -> None:
    libraries = ("scipy.special", "numba")
    with closing(
        LimitedProcess(ProcessLimits(seconds=PATIENCE_SECONDS, memory_bytes=MEMORY), preload=libraries)
    ) as one:
        taken = one.call(_data_bytes)
    limits = ProcessLimits(seconds=PATIENCE_SECONDS, memory_bytes=taken + taken // 2)
    with closing(LimitedProcess(limits, preload=libraries)) as process:
        assert process.call(os.getpid) == process.call(os.getpid)
        before = process.call(tasks.leave_behind, taken // 3)
        assert process.call(os.getpid) != before


def test_stop_ends_at_once_what_keeps_the_interpreter_lock(process: LimitedProcess, tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    reasons: list[Ended] = []
    thread = threading.Thread(target=lambda: reasons.append(ended(process, tasks.keep_lock, str(mark)).reason))
    thread.start()
    eventually(mark.exists)
    process.stop()
    thread.join(PATIENCE_SECONDS)
    assert reasons == [Ended.STOPPED]
    assert process.call(tasks.echo, 1) == 1


def test_a_call_after_a_stop_has_a_new_process(process: LimitedProcess) -> None:
    for _ in range(5):
        process.call(os.getpid)
        process.stop()
    assert process.call(tasks.echo, 1) == 1


def test_a_closed_one_refuses_and_leaves_nobody_behind(process: LimitedProcess) -> None:
    number = process.call(os.getpid)
    process.close()
    assert not psutil.pid_exists(number)
    assert ended(process, tasks.echo, 1).reason is Ended.STOPPED


def test_signals_to_all_of_a_service_leave_the_decision_to_the_parent(process: LimitedProcess) -> None:
    number = process.call(os.getpid)
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(number, kind)
    assert process.call(os.getpid) == number


def test_the_process_lasts_when_the_thread_ends_that_made_the_call(process: LimitedProcess) -> None:
    numbers: list[int] = []
    thread = threading.Thread(target=lambda: numbers.append(process.call(os.getpid)))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert process.call(os.getpid) == numbers[0]


def test_the_process_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    command = f"import limited_tasks; limited_tasks.own_a_process({str(path)!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", command], env=environment)
    eventually(lambda: path.exists() and path.read_text())
    inner = int(path.read_text())
    assert psutil.pid_exists(inner)
    parent.kill()
    parent.wait()
    eventually(lambda: not psutil.pid_exists(inner) or psutil.Process(inner).status() == psutil.STATUS_ZOMBIE)


def test_a_process_that_cannot_start_is_not_the_fault_of_the_call() -> None:
    narrow = LimitedProcess(ProcessLimits(seconds=PATIENCE_SECONDS, memory_bytes=1 << 20), preload=["numpy"])
    assert ended(narrow, tasks.echo, 1).reason is Ended.UNSTARTED
    narrow.close()


@pytest.mark.parametrize(("seconds", "memory"), [(0, 1), (-1, 1), (float("nan"), 1), (1, 0)])
def test_limits_that_are_none_are_refused(seconds: float, memory: int) -> None:
    with pytest.raises(ParameterError, match="use more than 0 of both"):
        ProcessLimits(seconds=seconds, memory_bytes=memory)
