"""Processes are read from /proc, named as keys can hold, and told from earlier ones of the same number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import SourceError
from sojourn.core.keys import ProcessKey, parse_key
from sojourn.sources.processes import NS_PER_TICK, Process, ProcessDirectory, ProcessFiles, clean_name


@given(st.binary(max_size=80))
def test_every_name_fits_a_key_and_comes_back_from_its_text(comm: bytes) -> None:
    key = ProcessKey(clean_name(comm), 7)
    assert parse_key(str(key)) == key


@pytest.mark.parametrize(
    ("comm", "name"),
    [
        (b"mosquitto", "mosquitto"),
        (b"kworker/u8:2-writeback", "kworker/u8:2"),
        (b"kworker/0:1H+kblockd", "kworker/0:1H"),
        (b"my-kworker/0", "my-kworker/0"),
        (b"caf\xc3\xa9", "café"),
        (b"\xff\n", "\N{REPLACEMENT CHARACTER}?"),
        (b"   ", "?"),
    ],
)
def test_names_are_the_kernels_made_printable(comm: bytes, name: str) -> None:
    assert clean_name(comm) == name


def test_a_name_with_parentheses_and_spaces_is_read_whole(tmp_path: Path) -> None:
    words = ["S", *map(str, range(4, 53))]  # field n of proc(5) has the value n
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "stat").write_text(f"12 (a) S (b) 3) {' '.join(words)}\n")
    (tmp_path / "13").mkdir()
    (tmp_path / "13" / "stat").write_text("13 (cut")
    with ProcessFiles.opened(tmp_path) as files:
        assert files.processes() == [Process(12, b"a) S (b) 3", 22, 14 + 15, 24)]


def test_a_missing_proc_is_told() -> None:
    with pytest.raises(SourceError, match="/nowhere: cannot be read"), ProcessFiles.opened("/nowhere"):
        pass


def test_this_process_is_read_as_psutil_reads_it() -> None:
    with ProcessFiles.opened() as files:
        process = files.process(os.getpid())
        pids = {process.pid for process in files.processes()}
    assert process is not None
    reference = psutil.Process()
    times = reference.cpu_times()
    assert process.comm == Path("/proc/self/comm").read_bytes().strip()
    assert abs(process.cpu_ticks * NS_PER_TICK / 1e9 - times.user - times.system) <= 1
    assert abs(process.start * NS_PER_TICK / 1e9 + psutil.boot_time() - reference.create_time()) <= 1.1
    assert os.getpid() in pids


def test_an_ended_process_is_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with ProcessFiles.opened() as files:
        assert files.process(child.pid) is None


def named(directory: ProcessDirectory, comm: bytes, start: int) -> list[str]:
    directory.id_of(Process(5, comm, start, 0, 0))
    return [str(key) for key in directory.take_new()]


def test_a_key_is_new_once_and_again_for_another_process_or_name() -> None:
    directory = ProcessDirectory()
    assert named(directory, b"sh", 10) == ["sh[5]"]
    assert named(directory, b"sh", 10) == []
    assert named(directory, b"dd", 10) == ["dd[5]"]
    assert named(directory, b"dd", 99) == ["dd[5]"]
    assert named(directory, b"kworker/0:1-a", 100) == ["kworker/0:1[5]"]
    assert named(directory, b"kworker/0:1+b", 100) == []
    directory.keep(())
    assert named(directory, b"kworker/0:1+b", 100) == ["kworker/0:1[5]"]
