"""Backups: whole while others write, refused where they would do harm; what a restored one lacks is known and told."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url
from test_epochs import epoch

from postgresql_server import PostgresqlServer
from sojourn.core.errors import SojournError, StoreError
from sojourn.store.epochs import EpochStore, StreamRecord, open_store
from sojourn.store.upkeep.backup import back_up, restore
from sojourn.store.upkeep.check import examine
from sojourn.store.upkeep.losses import losses
from sojourn.store.upkeep.partitions import DAY_NS

NOW = 20_000 * DAY_NS


@pytest.fixture
def store(place: str) -> Iterator[EpochStore]:
    opened = open_store(place)
    yield opened
    opened.close()


def announced(store: EpochStore, last: int | None) -> None:
    told = None if last is None else (0, last)
    store.announce(StreamRecord("n", "disk", "disk_io", "operations", "process", acknowledged=told), now_ns=NOW)


def lost(store: EpochStore) -> dict:
    with store.transaction() as connection:
        return losses(connection)


def test_a_backup_that_is_made_while_others_write_is_whole(tmp_path: Path) -> None:
    """Of every transaction all or nothing: epochs, and that their numbers are stored."""
    store = open_store(tmp_path / "data")
    store.add([epoch(i) for i in range(200)])
    stop = threading.Event()
    written = [200]

    def write() -> None:
        while not stop.is_set():
            store.add([epoch(written[0] + i) for i in range(5)])
            written[0] += 5

    writer = threading.Thread(target=write)
    writer.start()
    try:
        sizes = [back_up(tmp_path / "data", tmp_path / f"backup-{i}") for i in range(3)]
    finally:
        stop.set()
        writer.join()
    store.close()
    for i, size in enumerate(sizes):
        file = tmp_path / f"backup-{i}"
        assert (file.stat().st_size, file.stat().st_mode & 0o777) == (size, 0o600)
        restore(file, tmp_path / f"again-{i}")
        again = open_store(tmp_path / f"again-{i}")
        count = again.totals()["epochs"]
        assert 200 <= count <= written[0]
        assert count % 5 == 0
        assert again.last_sequence("n", "disk") == count - 1
        assert [one.sequence for one in again.epochs("n", "disk", 0, 10**9)] == list(range(count))
        again.close()
    assert sorted(path.name for path in tmp_path.iterdir() if "part" in path.name) == []


def test_what_would_do_harm_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    store.add([epoch(0)])
    store.close()
    back_up(tmp_path / "data", tmp_path / "backup")
    (tmp_path / "text").write_text("no database at all\n" * 100)
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE t (x)").connection.close()
    damaged = bytearray((tmp_path / "backup").read_bytes())
    damaged[4096 * 3 : 4096 * 6] = bytes(4096 * 3)
    (tmp_path / "damaged").write_bytes(damaged)
    cases = [
        (lambda: back_up(tmp_path / "none", tmp_path / "x"), "there is no query unit's data"),
        (lambda: back_up(tmp_path / "data", tmp_path / "backup"), "the file is there already"),
        (lambda: back_up(tmp_path / "data", tmp_path / "no" / "x"), "No such file"),
        (lambda: restore(tmp_path / "backup", tmp_path / "data"), "there is data already; give --replace"),
        (lambda: restore(tmp_path / "none", tmp_path / "new"), "there is no such file"),
        (lambda: restore(tmp_path / "text", tmp_path / "new"), "not a database"),
        (lambda: restore(tmp_path / "other", tmp_path / "new"), "no query unit's"),
        (lambda: restore(tmp_path / "damaged", tmp_path / "new"), "damaged|malformed"),
    ]
    for attempt, words in cases:
        with pytest.raises(SojournError, match=words):
            attempt()
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "x").exists()
    again = open_store(tmp_path / "data")
    assert again.totals()["epochs"] == 1
    again.close()


def test_numbers_that_were_acknowledged_and_are_not_stored_are_known_and_those_that_come_again_are_not_lost(
    store: EpochStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.add([epoch(i) for i in range(5)], now_ns=NOW)
    announced(store, None)
    announced(store, 4)
    assert lost(store) == {}
    announced(store, 9)
    announced(store, 9)
    assert lost(store) == {("n", "disk"): [(5, 9)]}
    assert caplog.text.count("epochs 5 to 9 of n/disk were acknowledged and are not stored") == 1
    # What the node still has comes again, and what it measures from now on.
    store.add([epoch(6), epoch(7), epoch(10)], now_ns=NOW)
    announced(store, 10)
    assert lost(store) == {("n", "disk"): [(5, 5), (8, 9)]}
    assert store.last_sequence("n", "disk") == 10


def test_what_retention_removed_is_not_called_lost(store: EpochStore) -> None:
    store.add([epoch(i) for i in range(5)], now_ns=NOW)
    while store.remove_some_before(NOW + 3 * DAY_NS, limit=9):
        pass
    announced(store, 4)
    assert lost(store) == {}


def test_a_stream_of_which_nothing_is_stored_any_more_is_lost_from_its_first_number(store: EpochStore) -> None:
    announced(store, 3)
    assert lost(store) == {("n", "disk"): [(0, 3)]}
    place = str(store.engine.url.render_as_string(hide_password=False))
    lines = examine(place if "postgresql" in place else str(Path(store.engine.url.database).parent))
    assert re.fullmatch(r"schema \d{4}, the latest", lines[0])
    assert lines[1] == "0 epochs, 0 B"
    assert lines[-1] == "lost: epochs 0 to 3 of n/disk were acknowledged and are not stored"


def test_a_restored_store_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    store.add([epoch(i) for i in range(3)])
    back_up(tmp_path / "data", tmp_path / "backup")
    store.add([epoch(i) for i in range(3, 8)])
    store.close()
    restore(tmp_path / "backup", tmp_path / "data", replace=True)
    restored = open_store(tmp_path / "data")
    announced(restored, 7)
    restored.close()
    lines = examine(str(tmp_path / "data"))
    assert lines[1].startswith("3 epochs")
    assert lines[-2].startswith("restored from a backup at 20")
    assert lines[-1] == "lost: epochs 3 to 7 of n/disk were acknowledged and are not stored"


def test_a_damaged_store_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    store.add([epoch(i) for i in range(50)])
    store.close()
    file = tmp_path / "data" / "sojourn.sqlite"
    content = bytearray(file.read_bytes())
    content[-4096 * 2 :] = bytes(4096 * 2)
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged|malformed"):
        examine(str(tmp_path / "data"))


def test_a_postgresql_comes_back_from_pg_dump_with_all_that_it_had(
    postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    """By the real programs, partitions and all; the store that is restored goes on, and knows what it lacks."""
    source, target = (make_url(postgresql.new_database()) for _ in range(2))
    store = open_store(source)
    store.add([epoch(i, first_ns=NOW) for i in range(4)], now_ns=NOW)
    store.add([epoch(4)])
    there = ["--host", str(source.query["host"]), "--username", "sojourn"]
    dump = [postgresql.programs / "pg_dump", *there, "--format=custom", f"--file={tmp_path / 'dump'}", source.database]
    subprocess.run(dump, check=True)
    store.add([epoch(5), epoch(6)])
    totals = store.totals()
    store.close()
    back = [postgresql.programs / "pg_restore", *there, f"--dbname={target.database}", tmp_path / "dump"]
    subprocess.run(back, check=True)
    restored = open_store(target)
    assert totals["epochs"] == 7
    assert restored.totals()["epochs"] == 5
    announced(restored, 6)
    assert lost(restored) == {("n", "disk"): [(5, 6)]}
    assert restored.add([epoch(4), epoch(7)]) == ["duplicate", "stored"]
    assert [one.sequence for one in restored.epochs("n", "disk", 0, 2**62)] == [0, 1, 2, 3, 4, 7]
    restored.close()
