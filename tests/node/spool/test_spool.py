"""The spool: on disk until acknowledged, bounded by merging, never counted twice, and blocked by no single epoch."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sojourn.core.errors import ParameterError, StoreError, UsageError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.node.agent.local import spooled_epochs
from sojourn.node.spool import spool as spool_module
from sojourn.node.spool.file import FILE_NAME, StreamState
from sojourn.node.spool.spool import Spool
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from spool_worlds import EVERYTHING, SALTS, SIZE, epoch, full_disk, numbers, opened, total, without_pauses


def change(directory: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection, connection:
        connection.execute(statement, values)


def test_what_was_put_is_there_after_a_restart_and_goes_out_oldest_first(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for sequence in (2, 0, 1):
            spool.put(epoch(sequence))
    with opened(tmp_path) as again:
        assert [e.sequence for e in again.oldest(2, most_bytes=10**6)] == [0, 1]
        assert again.next_number("disk") == 3
        assert (len(again), again.size_bytes) == (3, sum(len(encode(epoch(i))) for i in range(3)))
        again.remove(again.oldest(2, most_bytes=10**6))
        assert (len(again), again.size_bytes) == (1, len(encode(epoch(2))))
    with opened(tmp_path) as third:
        assert numbers(third) == [2]


def test_beyond_the_bound_epochs_are_merged_and_nothing_is_lost(tmp_path: Path) -> None:
    with opened(tmp_path, 12 * SIZE) as spool:
        for sequence in range(100):
            spool.put(epoch(sequence, stream="disk" if sequence % 3 else "cpu"))
            assert spool.size_bytes <= 12 * SIZE
        assert spool.merged >= 85
        assert 1 <= len(spool.notices()) <= 7, "each time twice as many were merged"
        assert total(spool) == 1000
        salts = {entry.epoch.parameters.salt for entry in spool.oldest(99, most_bytes=10**9)}
        assert salts == set(range(SALTS))
    with opened(tmp_path, 12 * SIZE) as again:
        assert total(again) == 1000


def test_merging_widens_counters_that_would_overflow(tmp_path: Path) -> None:
    with opened(tmp_path, 10 * SIZE) as spool:
        for sequence in range(60):
            spool.put(epoch(sequence, value=60_000))
        assert total(spool) == 60 * 60_000


def test_epochs_are_merged_with_as_large_ones_so_that_each_is_merged_a_few_times_only(tmp_path: Path) -> None:
    """Merged again with every new one, the oldest would be merged hundreds of times."""
    count = 300
    with opened(tmp_path, 48 * SIZE) as spool:
        for sequence in range(count):
            spool.put(epoch(sequence))
        weights = sorted(entry.weight for entry in spool.oldest(**EVERYTHING))
        assert sum(weights) == count
        assert sum(weight & (weight - 1) == 0 for weight in weights) >= len(weights) - SALTS, weights
        newest = spool.oldest(**EVERYTHING)[-10:]
        assert all(entry.weight == 1 for entry in newest), "what is new keeps its times"


def test_an_epoch_larger_than_the_bound_does_not_have_all_others_merged(tmp_path: Path) -> None:
    large = BucketArray(BucketArrayParameters(buckets=20_000, per_instance=2, bits=16))
    large.record(7, 10, 5)
    with opened(tmp_path, 8 * SIZE) as spool:
        spool.put(Epoch("n", "disk", 0, large, ()))
        for sequence in range(1, 6):
            spool.put(epoch(sequence))
        assert spool.merged == 0
        for sequence in range(6, 40):
            spool.put(epoch(sequence))
        assert spool.merged > 0
        assert total(spool) == 400


def test_an_epoch_that_may_have_arrived_is_never_merged(tmp_path: Path) -> None:
    with opened(tmp_path, 6 * SIZE) as spool:
        for sequence in range(3):
            spool.put(epoch(sequence))
        sent = [entry.data for entry in spool.mark_sent(spool.oldest(2, most_bytes=10**6))]
        for sequence in range(3, 40):
            spool.put(epoch(sequence))
    with opened(tmp_path, 6 * SIZE) as again:
        first = again.oldest(2, most_bytes=10**6)
        assert [entry.data for entry in first] == sent
        assert all(entry.in_doubt for entry in first)
        assert total(again) == 400


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from spool_worlds import SIZE, epoch
from sojourn.node.spool import spool as module
from sojourn.node.spool.spool import Spool

spool = Spool(Path({directory!r}), limit_bytes=10 * SIZE)
for sequence in range(10):
    spool.put(epoch(sequence))
merged = []

def until(labels, excess, *, replace, **how):
    def die(older, both):
        replace(older, both)
        merged.append(older)
        if len(merged) == {after}:
            os.kill(os.getpid(), 9)
    return merge_until(labels, excess, replace=die, **how)

merge_until, module.merge_until = module.merge_until, until
spool.put(epoch(10))
print("merged", len(merged))
"""


@pytest.mark.parametrize("after", [1, 2, 99])
def test_a_kill_in_the_middle_of_a_merge_neither_loses_nor_doubles(tmp_path: Path, after: int) -> None:
    code = KILLED.format(tests=str(Path(__file__).parents[2]), directory=str(tmp_path), after=after)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == (-9 if after < 99 else 0), run.stderr
    with opened(tmp_path) as again:
        assert total(again) == 110


def test_a_damaged_entry_is_set_aside_once_and_the_others_go_on(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for sequence in range(4):
            spool.put(epoch(sequence))
    change(tmp_path, "UPDATE entries SET data = substr(data, 1, 50) WHERE sequence = 0")
    change(tmp_path, "UPDATE entries SET data = 'text' WHERE sequence = 2")
    with opened(tmp_path) as again:
        assert numbers(again) == [1, 3]
        said = again.notices()
        assert len(said) == 2
        assert "epoch 0 of disk (1 measurement" in said[0]
        assert "ends early" in said[0]
        again.remove(again.oldest(**EVERYTHING))
        assert numbers(again) == []
        assert again.notices() == []
        assert len(again) == 0


def test_an_entry_whose_name_is_damaged_does_not_stop_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for sequence in range(4):
            spool.put(epoch(sequence))
    change(tmp_path, "UPDATE entries SET stream = CAST(x'ff64' AS TEXT) WHERE sequence = 1")
    with opened(tmp_path) as again:
        assert numbers(again) == [0, 2, 3]
        again.remove(again.oldest(**EVERYTHING))
        assert numbers(again) == []


def test_an_entry_that_vanished_does_not_stop_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for sequence in range(3):
            spool.put(epoch(sequence))
        chosen = spool.oldest(**EVERYTHING)
        change(tmp_path, "DELETE FROM entries WHERE sequence = 0")
        spool.remove(spool.mark_sent(chosen[:1]))
        assert numbers(spool) == [1, 2]


def test_what_was_set_aside_is_offered_once_more_after_a_restart_behind_all_others_and_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for sequence in range(3):
            spool.put(epoch(sequence))
        spool.set_aside(spool.oldest(1, most_bytes=1)[0], "refuses (413)")
        assert numbers(spool) == [1, 2]
        assert spool.newest({"disk"}, 0, 10**6) != []
    with opened(tmp_path) as again:
        assert numbers(again) == [1, 2]
        again.remove(again.oldest(**EVERYTHING))
        (chance,) = again.mark_sent(again.oldest(**EVERYTHING))
        assert chance.sequence == 0
        again.set_aside(chance, "refuses (413)")
        assert numbers(again) == []
    assert [e.sequence for e in spooled_epochs(tmp_path)] == [0], "it can still be asked on the node"


def test_what_was_set_aside_is_bounded_and_what_has_to_go_is_named(tmp_path: Path) -> None:
    with opened(tmp_path, 5 * SIZE) as spool:
        for sequence in range(12):
            spool.put(epoch(sequence))
            spool.set_aside(spool.oldest(1, most_bytes=1)[0], "refuses (413)")
        gone = [line for line in spool.notices() if "is lost" in line]
        assert [line.split()[2] for line in gone] == [str(sequence) for sequence in range(7)]
    assert [e.sequence for e in spooled_epochs(tmp_path)] == [7, 8, 9, 10, 11]


def test_an_epoch_beyond_the_format_is_set_aside_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MAX_EPOCH_BYTES", SIZE - 1)
    with opened(tmp_path) as spool:
        spool.put(epoch(1))
        assert numbers(spool) == []
        assert "set aside" in spool.notices()[0]


def test_what_a_full_disk_refuses_waits_in_memory_and_is_written_later(tmp_path: Path) -> None:
    with opened(tmp_path, 8 * SIZE) as spool:
        with full_disk():
            for sequence in range(100):
                spool.put(epoch(sequence))
            assert spool.trouble is not None
            assert len(spool.unwritten) == len(spool) < 100, "memory is bounded, too: by merging"
            assert spool.size_bytes <= spool.limit_bytes
            (sent,) = spool.mark_sent(spool.oldest(1, most_bytes=1))
            assert sent.in_doubt
        assert total(spool) == 1000
        without_pauses(spool)
        spool.write_down()
        assert spool.unwritten == []
        assert spool.trouble is None
    with opened(tmp_path) as again:
        assert total(again) == 1000
        assert [entry.key for entry in again.oldest(1, most_bytes=1)] == [sent.key]
        again.remove([sent])
        assert total(again) < 1000


def test_what_memory_cannot_hold_either_is_named_before_it_is_dropped(tmp_path: Path) -> None:
    """Epochs of different streams cannot be merged."""
    with opened(tmp_path, 8 * SIZE) as spool, full_disk():
        for sequence in range(20):
            spool.put(epoch(sequence, stream=f"disk{sequence}", times=3))
        assert len(spool.unwritten) == 7
        dropped = [line for line in spool.notices() if "is lost" in line]
        assert len(dropped) == 13
        first = "1970-01-01T00:00:00.000000Z"
        assert f"epoch 0 of disk0 (3 measurements from {first} to {first}) is lost" in dropped[0]


def test_while_the_disk_refuses_nothing_is_sent_that_could_be_merged_by_the_next_run(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.put(epoch(0))
        with full_disk():
            spool.put(epoch(1))
            sent = spool.mark_sent(spool.oldest(**EVERYTHING))
            assert [entry.sequence for entry in sent] == [1], "0 is on disk as never sent, and cannot be marked"
            spool.remove(sent)
            assert [entry.sequence for entry in spool.unwritten] == []
        without_pauses(spool)
        spool.write_down()
        assert numbers(spool) == [0]


def test_what_could_not_be_removed_is_not_sent_again(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for sequence in range(3):
            spool.put(epoch(sequence))
        first = spool.mark_sent(spool.oldest(1, most_bytes=1))
        with full_disk():
            spool.remove(first)
            assert len(spool) == 2
            assert numbers(spool) == []
        without_pauses(spool)
        spool.write_down()
        assert numbers(spool) == [1, 2]


def test_a_spool_that_cannot_be_written_from_the_start_records_into_memory(tmp_path: Path) -> None:
    with full_disk(), opened(tmp_path) as spool:
        assert spool.trouble is not None
        assert "unknown until" in spool.notices()[0]
        spool.put(epoch(0))
        assert numbers(spool) == [0]
        spool.end()
        assert [str(entry) for entry in spool.unwritten] == [
            "epoch 0 of disk (1 measurement from 1970-01-01T00:00:00.000000Z to 1970-01-01T00:00:00.000000Z)"
        ]


def test_a_second_agent_is_refused_with_the_first_ones_number_and_readers_are_not(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.put(epoch(0))
        with pytest.raises(StoreError, match=rf"process {os.getpid()}\) uses this spool"):
            Spool(tmp_path, limit_bytes=1 << 20)
        assert [e.sequence for e in spooled_epochs(tmp_path)] == [0]
        assert numbers(spool) == [0]
    with opened(tmp_path) as after:
        assert numbers(after) == [0]


def test_the_file_and_its_companions_are_private_whatever_the_umask(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    before = os.umask(0)
    try:
        with opened(tmp_path) as spool:
            spool.put(epoch(0))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys((FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"), 0o600)


@pytest.mark.parametrize("damage", ["all", "head", "middle"])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path, 10 << 20) as spool:
        for sequence in range(200):
            spool.put(epoch(sequence))
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    where = {"all": slice(0, None), "head": slice(0, 100), "middle": slice(len(data) // 2, len(data) // 2 + 8192)}
    data[where[damage]] = b"\xa5" * len(data[where[damage]])
    path.write_bytes(data)
    with opened(tmp_path) as again:
        (said, *_) = again.notices()
        assert f"kept as {FILE_NAME}.damaged-1" in said
        assert (tmp_path / f"{FILE_NAME}.damaged-1").read_bytes() == bytes(data)
        kept = numbers(again)
        assert f"{len(kept)} epochs of it were taken over" in said
        assert len(kept) > 150 if damage == "middle" else kept == []
        again.put(epoch(200))
        assert numbers(again) == [*kept, 200]
        assert all(entry.in_doubt for entry in again.oldest(len(kept), most_bytes=10**9))


def test_a_file_that_is_damaged_while_it_is_used_does_not_end_the_agent(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.put(epoch(0))
        for path in tmp_path.iterdir():
            path.write_bytes(b"\xa5" * path.stat().st_size)
        spool._file.disconnect()
        spool.keep([StreamState("disk", [epoch(1)], [epoch(2)], 5)])
        assert numbers(spool) == [1]
        assert "damaged-1" in spool.notices()[0]


def test_a_later_versions_spool_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.put(epoch(0))
    change(tmp_path, "PRAGMA user_version=99")
    with pytest.raises(UsageError, match="schema 99"):
        Spool(tmp_path, limit_bytes=1 << 20)


def test_epochs_of_some_streams_and_times_are_found_the_newest_first(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for sequence in range(6):
            spool.put(epoch(sequence))
        assert spool.newest({"disk"}, 2000, 4000) == [encode(epoch(sequence)) for sequence in (4, 3, 2)]
        assert spool.newest({"another"}, 0, 5000) == []


def test_a_bound_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="too few"):
        Spool(tmp_path, limit_bytes=100)


def test_entries_hold_the_wire_format(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.put(epoch(4))
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("SELECT data FROM entries").fetchall() == [(encode(epoch(4)),)]
