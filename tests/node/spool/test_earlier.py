"""A spool of files, as earlier versions kept it: taken over whole, once, and in doubt where it was."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import pytest

from sojourn.core.hashing import hash_bytes
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import merged_epoch
from sojourn.epochs.wire import encode
from sojourn.node.agent.local import spooled_epochs
from sojourn.node.spool import spool as spool_module
from sojourn.node.spool.spool import Spool
from spool_worlds import EVERYTHING, epoch, full_disk, numbers, opened, total


def stem(one: Epoch) -> str:
    return f"{hash_bytes(one.stream.encode()):016x}-{one.sequence:020d}"


def write(directory: Path, one: Epoch, suffix: str = ".epoch") -> Path:
    path = directory / f"{stem(one)}{suffix}"
    path.write_bytes(encode(one))
    return path


def write_open(directory: Path, one: Epoch) -> None:
    (directory / f"{hash_bytes(one.stream.encode()):016x}.open").write_bytes(encode(one))


def files(directory: Path) -> list[str]:
    return sorted(p.suffix for p in directory.iterdir() if not p.name.startswith("spool.sqlite3"))


def test_epochs_are_taken_over_in_their_states_and_their_files_removed(tmp_path: Path) -> None:
    for sequence in (3, 4):
        write(tmp_path, epoch(sequence))
    write(tmp_path, epoch(2), ".sent")
    write_open(tmp_path, epoch(5, times=2))
    before = {(e.stream, e.sequence): encode(e) for e in spooled_epochs(tmp_path)}
    with opened(tmp_path) as spool:
        taken, lost = spool.notices()
        assert "took over 4 epochs" in taken
        assert "stream disk lost what it measured from" in lost
        entries = spool.oldest(**EVERYTHING)
        assert {entry.key: entry.data for entry in entries} == before
        assert [entry.sequence for entry in entries if entry.in_doubt] == [2, 5]
        assert spool.next_number("disk") > 5
        assert files(tmp_path) == []
    with opened(tmp_path) as again:
        assert numbers(again) == [2, 5, 3, 4]


def test_a_merge_that_was_not_finished_counts_once(tmp_path: Path) -> None:
    older, newer = epoch(0), epoch(4)
    for one in (older, newer):
        write(tmp_path, one)
    both = tmp_path / f"{stem(newer)}.{stem(older)}.merge"
    both.write_bytes(encode(merged_epoch(older, newer)))
    with opened(tmp_path) as spool:
        assert numbers(spool) == [4]
        assert total(spool) == 20
        assert files(tmp_path) == []


def test_a_damaged_merge_leaves_the_two_that_it_was_made_of(tmp_path: Path) -> None:
    older, newer = epoch(0), epoch(4)
    for one in (older, newer):
        write(tmp_path, one)
    (tmp_path / f"{stem(newer)}.{stem(older)}.merge").write_bytes(b"torn")
    with opened(tmp_path) as spool:
        assert numbers(spool) == [0, 4]


def test_a_checkpoint_gives_way_to_its_closed_epoch(tmp_path: Path) -> None:
    write(tmp_path, epoch(5, times=3))
    write_open(tmp_path, epoch(5))
    with opened(tmp_path) as spool:
        assert total(spool) == 30


def test_an_unreadable_file_is_put_aside_and_named(tmp_path: Path) -> None:
    path = write(tmp_path, epoch(0))
    path.write_bytes(path.read_bytes()[:-3])
    huge = write(tmp_path, epoch(1))
    with open(huge, "r+b") as file:
        file.truncate(65 << 20)
    (tmp_path / f"{stem(epoch(2))}.epoch").mkdir()
    write(tmp_path, epoch(3))
    with opened(tmp_path) as spool:
        assert numbers(spool) == [3]
        said = " ".join(spool.notices())
        for reason in ("ends early", "exceed", "directory"):
            assert reason in said
    assert files(tmp_path) == [".damaged"] * 3
    with opened(tmp_path) as again:
        assert numbers(again) == [3]


def test_a_kill_between_taking_over_and_removing_the_files_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    for sequence in range(8):
        write(tmp_path, epoch(sequence))
    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(spool_module, "remove_taken_over", die)
        Spool(tmp_path, limit_bytes=1 << 20)
    assert len(files(tmp_path)) == 8
    with opened(tmp_path, 4096) as again:
        assert files(tmp_path) == []
        again.put(epoch(8))
        assert total(again) == 90


def test_a_full_disk_leaves_the_files_where_they_are(tmp_path: Path) -> None:
    for sequence in range(3):
        write(tmp_path, epoch(sequence))
    with full_disk(), closing(Spool(tmp_path, limit_bytes=1 << 20)) as spool:
        assert numbers(spool) == []
    assert len(files(tmp_path)) == 3
    with opened(tmp_path) as again:
        assert numbers(again) == [0, 1, 2]
