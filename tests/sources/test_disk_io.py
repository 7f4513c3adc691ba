"""Disk IO of real processes, counted by the block tracepoint and by system calls."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from machine import needs_root
from sojourn.core.errors import ParameterError, SourceError
from sojourn.sources.block_trace import tracefs_folder
from sojourn.sources.disk_io import OVERRUN, DiskIo, SystemCalls, TracedDiskIo
from sojourn.sources.processes import ProcessFiles

with_root = needs_root("BLOCK TRACEPOINTS ARE NOT TESTED: they need root")

BLOCK = 4096
WRITES = 300
# What a process may read beside what it is told to: pages of its own program that were not in memory.
PAGED_IN = 10

PREPARE = (
    "block = mmap.mmap(-1, 4096); file = os.open('data', os.O_RDWR | os.O_CREAT); "
    "os.write(file, bytes({blocks} * 4096)); os.fsync(file); os.close(file); "
    "file = os.open('data', os.O_RDWR | os.O_DIRECT)"
)
WRITE = "[os.pwrite(file, block, 4096 * i) for i in range({blocks})]"


@pytest.fixture
def writer(worker: Any, tmp_path: Path, tracefs: Path) -> Any:  # noqa: ARG001
    """A process with a file on a disk, whose blocks have their places and are written past the cache."""
    try:
        worker.do(PREPARE.format(blocks=WRITES))
    except (SyntaxError, ValueError):  # it ended: no direct writes here
        message = f"BLOCK TRACEPOINTS ARE NOT TESTED: {tmp_path} takes no direct writes ({os.strerror(errno.EINVAL)})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return worker


def instances() -> list[str]:
    return [path.name for path in (tracefs_folder() / "instances").iterdir() if path.name.startswith("sojourn-")]


@with_root
def test_each_direct_write_is_one_operation_of_its_process(writer: Any, totals: Any) -> None:
    with DiskIo() as source:
        assert source.method == "tracepoint"
        assert source.warnings == []
        start = time.time_ns()
        writer.do(WRITE.format(blocks=WRITES))
        end = time.time_ns()
        totals.add(source.poll(end))
        between = totals.of(writer.key())
        totals.add(source.poll(time.time_ns()))
    assert WRITES <= between <= WRITES + PAGED_IN
    assert totals.of(writer.key()) == between
    times = totals.times[writer.key()]
    assert times == sorted(times)
    # The two clocks are read one after the other: some µs apart, or more where the machine is held up between them.
    assert start - 10**9 <= times[0] <= times[-1] <= end + 10**9


@with_root
def test_reads_count_and_flushes_do_not(writer: Any, totals: Any) -> None:
    with TracedDiskIo() as source:
        writer.do(f"[os.preadv(file, [block], 4096 * i) for i in range({WRITES})]")
        writer.do("os.pwrite(file, block, 0); os.fsync(file)")
        totals.add(source.poll(0))
    # The flush may come with writes of the file's times.
    assert WRITES + 1 <= totals.of(writer.key()) <= WRITES + 1 + PAGED_IN
    assert source.ignored["flushes, discards and other operations without data"] >= 1


@with_root
def test_threads_count_for_their_process_even_after_they_ended(writer: Any, totals: Any) -> None:
    with TracedDiskIo() as source:
        statement = WRITE.format(blocks=WRITES)
        writer.do(f"t = threading.Thread(target=exec, args=({statement!r}, globals())); t.start(); t.join()")
        thread = writer.do("result = t.native_id")
        while Path(f"/proc/{thread}").exists():
            time.sleep(0.01)
        totals.add(source.poll(0))
    assert WRITES <= totals.of(writer.key()) <= WRITES + PAGED_IN
    assert not any(key.endswith(f"[{thread}]") for key in totals.all)


@with_root
def test_an_ended_process_has_the_name_it_had(writer: Any, totals: Any, tmp_path: Path) -> None:
    command = ["dd", "if=/dev/zero", f"of={tmp_path / 'data'}", "bs=4096", "count=200", "oflag=direct", "conv=notrunc"]
    # A program that nobody ran for a while is itself read from the disk, which is its own doing, too.
    subprocess.run(command, stderr=subprocess.DEVNULL, check=True, timeout=120)
    with TracedDiskIo() as source:
        done = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        assert done.wait(120) == 0
        totals.add(source.poll(0))
    assert 200 <= totals.of(f"dd[{done.pid}]") <= 200 + PAGED_IN
    assert writer.process.poll() is None


@with_root
def test_operations_that_found_no_room_are_counted_and_told(writer: Any, totals: Any) -> None:
    with TracedDiskIo(ring_kib=64) as source:
        for _ in range(12):
            writer.do(WRITE.format(blocks=WRITES))
        totals.add(source.poll(0))
    written = 12 * WRITES
    lost, (warning,) = source.ignored[OVERRUN], source.warnings
    assert 0 < totals.of(writer.key()) < written
    # All that was lost must have been counted; other processes' operations may be among it.
    assert totals.of(writer.key()) + lost >= written
    assert f"{lost:,} operations overwritten" in warning


@with_root
def test_nothing_stays_behind_even_after_an_error(tracefs: Path) -> None:  # noqa: ARG001
    def own() -> list[str]:  # others may be tracing at the same time
        return [name for name in instances() if f"-{os.getpid()}-" in name]

    before = own()
    with suppress(ZeroDivisionError), TracedDiskIo():
        assert len(own()) == len(before) + 1
        raise ZeroDivisionError
    assert own() == before
    with pytest.raises(ParameterError), TracedDiskIo(ring_kib=1):
        pass
    assert own() == before


@with_root
def test_what_a_killed_process_left_is_removed_by_the_next(tracefs: Path) -> None:  # noqa: ARG001
    code = "from sojourn.sources.disk_io import TracedDiskIo as T; T().open(); print('open', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        assert any(f"-{child.pid}-" in name for name in instances())
        with TracedDiskIo():  # one that runs is left alone
            assert any(f"-{child.pid}-" in name for name in instances())
        child.send_signal(signal.SIGKILL)
    with TracedDiskIo():
        assert not any(f"-{child.pid}-" in name for name in instances())


@with_root
def test_without_root_system_calls_are_counted_and_a_warning_tells(worker: Any, tracefs: Path) -> None:  # noqa: ARG001
    seen: list[Any] = []

    def measure() -> None:
        _become_nobody()
        with DiskIo() as source:
            seen.append((source.method, source.warnings, len(source.poll(0)), source.ignored))
        with pytest.raises(SourceError, match="cannot be traced"), DiskIo(method="tracepoint"):
            pass
        with ProcessFiles.opened() as files:
            seen.append(files.process(worker.pid) is not None)

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    (method, (warning,), _, ignored), readable = seen
    assert method == "system_calls"
    assert warning.startswith("disk_io: counting system calls, not disk operations (")
    assert ignored["processes without permission to read them"] >= 1
    assert readable


def _become_nobody() -> None:
    """Give up root in this thread alone, by the bare system call: the library's would do it for all threads."""
    number = {"x86_64": 117, "aarch64": 147}[os.uname().machine]  # setresuid
    nobody = 65534
    assert ctypes.CDLL(None, use_errno=True).syscall(number, nobody, nobody, nobody) == 0


def test_system_calls_are_counted(worker: Any, totals: Any) -> None:
    worker.do("file = os.open('data', os.O_RDWR | os.O_CREAT)")
    with SystemCalls() as source:
        for _ in range(10):
            worker.do("pass")
        totals.add(source.poll(5))
        before = totals.of(worker.key())
        worker.do("[os.pwrite(file, b'x', i) for i in range(500)] + [os.pread(file, 1, i) for i in range(300)]")
        totals.add(source.poll(6))
    # To get an order and to answer takes some calls, as many each time. A call counts when it returns, which for an
    # answer may be after it has been read here.
    per_order = round(before / 10)
    assert 2 <= per_order <= 4
    assert abs(totals.of(worker.key()) - before - 800 - per_order) <= 1


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ParameterError, match="use tracepoint or system_calls"):
        DiskIo(method="guess")  # type: ignore[arg-type]


def test_tracefs_that_is_not_mounted_is_told_with_the_command(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("proc /proc proc rw 0 0\n")
    with pytest.raises(SourceError, match="mount -t tracefs"):
        tracefs_folder(mounts)
    mounts.write_text("tracefs /a\\040b tracefs rw 0 0\n")
    assert tracefs_folder(mounts) == Path("/a b")
