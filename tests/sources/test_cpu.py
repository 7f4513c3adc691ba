"""CPU time against what the process itself is told by the kernel, and against psutil."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from sojourn.sources.processes import NS_PER_TICK, CpuTime
from waiting import eventually

BURN = "end = time.process_time() + {0}\nwhile time.process_time() < end: pass"
USED = "use = resource.getrusage(resource.RUSAGE_SELF); result = use.ru_utime + use.ru_stime"


def burn(worker: Any, seconds: float) -> None:
    worker.do(f"exec({BURN.format(seconds)!r})")


def test_cpu_time_is_within_a_tick_of_the_kernels_own_account(worker: Any, totals: Any) -> None:
    with CpuTime() as source:
        before = worker.do(USED)
        for _ in range(4):
            burn(worker, 0.07)
            totals.add(source.poll(time.time_ns()))
        used = worker.do(USED) - before
    # At each end a tick is lost or won twice, of the program's time and of the kernel's; some more is used for getting
    # and answering orders.
    assert abs(totals.of(worker.key()) - used * 1e9) <= 5 * NS_PER_TICK
    assert used > 0.27


def test_threads_count_for_their_process(worker: Any, totals: Any) -> None:
    with CpuTime() as source:
        run = f"t = threading.Thread(target=exec, args=({BURN.format(0.1)!r}, globals())); t.start(); t.join()"
        worker.do(run)
        totals.add(source.poll(time.time_ns()))
    assert totals.of(worker.key()) >= 0.1e9 - 2 * NS_PER_TICK


def test_a_process_that_starts_later_counts_whole(worker: Any, totals: Any, tmp_path: Path) -> None:
    with CpuTime() as source:
        later = type(worker)(tmp_path)
        burn(later, 0.05)
        totals.add(source.poll(time.time_ns()))
        reference = psutil.Process(later.pid).cpu_times()
        key = later.key()
        later.end()
        assert not source.poll(time.time_ns()).batch.value.tolist().count(0)
    assert abs(totals.of(key) / 1e9 - reference.user - reference.system) <= 0.1
    assert any("ended" in reason for reason in source.ignored)


def test_idle_processes_give_no_rows(worker: Any) -> None:
    eventually(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_SLEEPING)
    with CpuTime() as source:
        time.sleep(0.1)
        found = source.poll(time.time_ns())
    assert worker.key() not in map(str, found.keys)
    assert (found.batch.value > 0).all()
