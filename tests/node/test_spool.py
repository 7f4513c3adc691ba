"""The spool: on disk until acknowledged, bounded by merging, never counted twice."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sojourn.core.errors import ParameterError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import decode, encode
from sojourn.node import spool as spool_module
from sojourn.node.spool import Spool
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

PARAMETERS = BucketArrayParameters(buckets=600, per_instance=2, bits=16)
SALTS = 4


def epoch(sequence: int, stream: str = "disk", value: int = 10) -> Epoch:
    sketch = BucketArray(replace(PARAMETERS, salt=sequence % SALTS))
    sketch.record(7, value, 1000 * sequence)
    return Epoch("n", stream, sequence, sketch, ())


def total(spool: Spool) -> int:
    return sum(int(entry.epoch.sketch.column("sum").sum()) for entry in spool.oldest(10**6, most_bytes=10**9))


def test_what_was_put_is_there_after_a_restart_and_goes_out_oldest_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=1 << 20)
    for sequence in (2, 0, 1):
        spool.put(epoch(sequence))
    again = Spool(tmp_path, limit_bytes=1 << 20)
    assert [e.epoch.sequence for e in again.oldest(2, most_bytes=10**6)] == [0, 1]
    assert again.last_sequence("disk") == 2
    again.remove(again.oldest(2, most_bytes=10**6))
    assert [e.epoch.sequence for e in Spool(tmp_path, limit_bytes=1 << 20).oldest(9, most_bytes=10**6)] == [2]


def test_beyond_the_bound_epochs_are_merged_and_nothing_is_lost(tmp_path: Path) -> None:
    size = len(encode(epoch(0)))
    spool = Spool(tmp_path, limit_bytes=12 * size)
    for sequence in range(100):
        spool.put(epoch(sequence, stream="disk" if sequence % 3 else "cpu"))
    assert spool.size_bytes <= 12 * size + size
    assert spool.merged >= 85
    assert total(spool) == 1000
    assert total(Spool(tmp_path, limit_bytes=12 * size)) == 1000
    salts = {entry.epoch.parameters.salt for entry in spool.oldest(99, most_bytes=10**9)}
    assert salts == set(range(SALTS))


def test_merging_widens_counters_that_would_overflow(tmp_path: Path) -> None:
    size = len(encode(epoch(0)))
    spool = Spool(tmp_path, limit_bytes=10 * size)
    for sequence in range(60):
        spool.put(epoch(sequence, value=60_000))
    assert total(spool) == 60 * 60_000


def test_an_epoch_that_may_have_arrived_is_never_merged(tmp_path: Path) -> None:
    size = len(encode(epoch(0)))
    spool = Spool(tmp_path, limit_bytes=6 * size)
    for sequence in range(3):
        spool.put(epoch(sequence))
    in_doubt = spool.mark_sent(spool.oldest(2, most_bytes=10**6))
    bytes_sent = [entry.path.read_bytes() for entry in in_doubt]
    for sequence in range(3, 40):
        spool.put(epoch(sequence))
    again = Spool(tmp_path, limit_bytes=6 * size)
    first = again.oldest(2, most_bytes=10**6)
    assert [encode(entry.epoch) for entry in first] == bytes_sent
    assert all(entry.in_doubt for entry in first)
    assert total(again) == 400


@pytest.mark.parametrize("stop_after", ["write", "unlink"])
def test_a_crash_in_the_middle_of_a_merge_neither_loses_nor_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: str
) -> None:
    class Crash(BaseException):
        pass

    size = len(encode(epoch(0)))
    spool = Spool(tmp_path, limit_bytes=5 * size)
    for sequence in range(5):
        spool.put(epoch(sequence))
    replaced = os.replace

    def crash(source, target) -> None:
        if str(source).endswith(".merge"):
            raise Crash
        replaced(source, target)

    if stop_after == "unlink":
        monkeypatch.setattr(spool_module.os, "replace", crash)
    else:
        monkeypatch.setattr(Spool, "_finish_merge", lambda *_: (_ for _ in ()).throw(Crash()))
    with pytest.raises(Crash):
        spool.put(epoch(5))
    monkeypatch.undo()
    again = Spool(tmp_path, limit_bytes=1 << 20)
    assert total(again) == 60


def test_a_damaged_file_is_put_aside_and_reported(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=1 << 20)
    spool.put(epoch(0))
    spool.put(epoch(1))
    path = spool.oldest(1, most_bytes=10**6)[0].path
    path.write_bytes(path.read_bytes()[:-3])
    again = Spool(tmp_path, limit_bytes=1 << 20)
    assert len(again) == 1
    assert "ends early" in again.damaged[0]
    assert path.with_suffix(".damaged").exists()


def _full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_said_and_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, limit_bytes=1 << 20)

    monkeypatch.setattr(spool_module.os, "fsync", _full)
    spool.put(epoch(0))
    assert "No space left" in str(spool.trouble)
    assert list(tmp_path.iterdir()) == []


def test_what_a_full_disk_refuses_waits_in_memory_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(encode(epoch(0)))
    spool = Spool(tmp_path, limit_bytes=8 * size)
    with monkeypatch.context() as disk:
        disk.setattr(spool_module.os, "fsync", _full)
        for sequence in range(100):
            spool.put(epoch(sequence))
        assert spool.unwritten == len(spool) < 100, "memory is bounded, too: by merging"
        assert spool.size_bytes <= spool.limit_bytes
        (sent,) = spool.mark_sent(spool.oldest(1, most_bytes=1))
        assert sent.in_doubt
    assert total(spool) == 1000
    spool.write_down()
    assert spool.unwritten == 0
    assert spool.trouble is None
    again = Spool(tmp_path, limit_bytes=1 << 20)
    assert total(again) == 1000
    assert [entry.path.name for entry in again.oldest(1, most_bytes=1)] == [sent.path.name]
    again.remove([sent])
    assert total(Spool(tmp_path, limit_bytes=1 << 20)) == total(again)


def test_epochs_of_some_streams_and_times_are_found_the_newest_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=1 << 20)
    for sequence in range(6):
        spool.put(epoch(sequence))
    times = {entry.epoch.sequence: entry.epoch.first_ns for entry in spool.oldest(10, most_bytes=10**6)}
    stream = spool.oldest(1, most_bytes=1)[0].epoch.stream
    found = spool.newest({stream}, times[2], times[4])
    assert [one.sequence for one in found] == [4, 3, 2]
    assert spool.newest({"another"}, times[0], times[5]) == []


def test_a_bound_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="too few"):
        Spool(tmp_path, limit_bytes=100)


def test_files_hold_the_wire_format(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=1 << 20)
    spool.put(epoch(4))
    assert decode(next(tmp_path.iterdir()).read_bytes()).sequence == 4
