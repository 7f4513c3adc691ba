"""The store of epochs: what was acknowledged is there, once, and can be found."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import cbor2
import pytest
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from sojourn.core.errors import StoreError, UsageError
from sojourn.core.hashing import hash_bytes
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch, encode, encoded
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store import database
from sojourn.store import epochs as store_module
from sojourn.store.database import METADATA, NODES, SIGHTINGS, insert_missing
from sojourn.store.epochs import EpochStore, Status, StreamRecord, open_store, read_store

PARAMETERS = BucketArrayParameters(buckets=8, per_instance=2, bits=16)


def epoch(sequence: int = 0, *, node: str = "n", stream: str = "disk", first_ns: int = 1000, value: int = 3) -> Epoch:
    sketch = BucketArray(PARAMETERS)
    sketch.record(key_id(ProcessKey("dd", 7)), value, first_ns)
    sketch.record(key_id(ProcessKey("sh", 9)), 1, first_ns + 500)
    return Epoch(node, stream, sequence, sketch, (ProcessKey("dd", 7), ProcessKey("sh", 9)))


@pytest.fixture
def store(place: str):
    opened = open_store(place)
    yield opened
    opened.close()


def test_a_copy_is_recognised_and_another_epoch_with_its_name_refused(store: EpochStore) -> None:
    assert store.add([epoch(), epoch(1)]) == [Status.STORED, Status.STORED]
    assert store.add([epoch(1), epoch(0, value=4), epoch(2)]) == [Status.DUPLICATE, Status.CONFLICT, Status.STORED]
    assert store.epoch_bytes("n", "disk", 0) == encode(epoch())
    assert store.totals()["epochs"] == 3


def test_epochs_are_found_by_the_time_of_their_measurements(store: EpochStore) -> None:
    store.add([epoch(i, first_ns=10_000 * i) for i in range(5)])
    store.add([epoch(0, stream="other"), epoch(0, node="m")])

    def found(low: int, high: int) -> list[int]:
        return [e.sequence for e in store.epochs("n", "disk", low, high)]

    assert found(0, 50_000) == [0, 1, 2, 3, 4]
    assert found(10_500, 20_000) == [1, 2]
    assert found(10_501, 19_999) == []


def test_keys_are_known_by_name_the_latest_first(store: EpochStore) -> None:
    store.add([epoch()])
    sketch = BucketArray(PARAMETERS)
    sketch.record(5, 1, 99_000)
    late = ProcessKey("late", 1)
    store.add([Epoch("n", "disk", 1, sketch, (late,)), epoch(2, first_ns=200)])
    assert store.keys(node="n")[0] == (key_id(late), "late[1]")
    assert {text for _, text in store.keys(stream="disk")} == {"dd[7]", "sh[9]", "late[1]"}
    assert store.keys(node="unknown") == []
    assert len(store.keys(limit=2)) == 2


def test_streams_and_tags_are_replaced_not_added(store: EpochStore) -> None:
    store.announce(StreamRecord("n", "disk", "disk_io", "operations", "process"))
    store.announce(StreamRecord("n", "disk", "disk_io", "bytes", "process"))
    assert store.streams(metric="disk_io") == [StreamRecord("n", "disk", "disk_io", "bytes", "process")]
    store.set_tags("n", ["lab", "east", "lab"])
    store.set_tags("m", ["east"])
    assert [node.name for node in store.nodes(tag="east")] == ["m", "n"]
    store.set_tags("n", [])
    assert [node.tags for node in store.nodes()] == [("east",), ()]


def test_a_range_that_is_too_large_is_refused(store: EpochStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_QUERY_EPOCHS", 2)
    store.add([epoch(i) for i in range(3)])
    with pytest.raises(UsageError, match="shorter range"):
        store.epochs("n", "disk", 0, 10**9)


def test_many_threads_write_without_losing_or_failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 600)  # 160 writes that wait for a disk may be slow
    store = open_store(tmp_path / "busy")
    failures: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            for i in range(20):
                store.add([epoch(i, node=f"node-{worker}")])
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert store.totals() == {
        "epochs": 160,
        "epoch_bytes": sum(len(encode(epoch(i, node="node-0"))) for i in range(20)) * 8,
        "epochs_set_aside": 0,
        "nodes": 8,
        "instances": 2,
    }
    store.close()


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_epochs import epoch
from sojourn.store.epochs import open_store
store = open_store({directory!r})
for i in range(50):
    assert store.add([epoch(i)])[0] == "stored"
    print(i, flush=True)
    if i == 29:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    code = KILLED.format(tests=str(Path(__file__).parent), directory=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == -9, run.stderr
    assert run.stdout.split() == [str(i) for i in range(30)]
    again = open_store(tmp_path)
    assert [e.sequence for e in again.epochs("n", "disk", 0, 10**9)] == list(range(30))
    again.close()


def test_old_epochs_are_forgotten_a_few_at_a_time(store: EpochStore) -> None:
    for i in range(5):
        store.add([epoch(i, first_ns=10_000 * i)], now_ns=10_000 * i + 500)
    assert [store.remove_some_before(30_000, limit=2) for _ in range(3)] == [2, 1, 0]
    assert [e.sequence for e in store.epochs("n", "disk", 0, 10**9)] == [3, 4]


def test_what_came_late_or_from_a_wrong_clock_is_not_forgotten_at_once(store: EpochStore) -> None:
    store.add([epoch(0, first_ns=100)], now_ns=10**6)
    store.add([epoch(1, first_ns=10**6)], now_ns=100)
    store.add([Epoch("n", "disk", 2, BucketArray(PARAMETERS))], now_ns=100)
    store.add([epoch(3, first_ns=100)], now_ns=100)
    assert [store.remove_some_before(10**5, limit=9) for _ in range(2)] == [2, 0]
    assert [e.sequence for e in store.epochs("n", "disk", 0, 10**9)] == [0, 1]
    assert [store.remove_some_before(10**7, limit=9) for _ in range(2)] == [2, 0]


def test_a_row_that_is_there_already_stays(store: EpochStore) -> None:
    with store.transaction(writes=True) as connection:
        for seen in (1, 2):
            insert_missing(connection, NODES, [{"name": "n", "first_seen_ns": seen, "last_seen_ns": seen}])
        insert_missing(connection, NODES, [])
    assert [(node.name, node.first_seen_ns) for node in store.nodes()] == [("n", 1)]


@pytest.mark.parametrize("dialect", [sqlite.dialect(), postgresql.dialect()], ids=lambda d: d.name)
def test_tables_and_additions_can_be_said_to_both_databases(dialect) -> None:
    said: list[str] = []

    class Listener:
        def execute(self, statement, _rows) -> None:
            said.append(str(statement.compile(dialect=dialect)))

    Listener.dialect = dialect
    for table in METADATA.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=dialect))
        insert_missing(Listener(), table, [{}])
    assert len(said) == len(METADATA.sorted_tables)
    assert all("ON CONFLICT DO NOTHING" in text for text in said)


def test_a_store_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    (tmp_path / "sojourn.sqlite").write_bytes(b"this is no database, whatever its name" * 100)
    with pytest.raises(StoreError, match="not a database"):
        open_store(tmp_path)


def test_a_directory_with_a_question_mark_is_taken_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "d?x=1"
    open_store(place).close()
    assert [path.name for path in tmp_path.iterdir()] == ["d?x=1"]
    assert (place / "sojourn.sqlite").stat().st_size > 0


def test_only_its_owner_reads_a_database_whatever_the_directory_allows(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        for _ in range(2):  # made, and found with other modes
            store = open_store(tmp_path)
            store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
            assert set(modes) == {"sojourn.sqlite", "sojourn.sqlite-wal", "sojourn.sqlite-shm"}
            assert set(modes.values()) == {0o600}
            store.close()
            for path in tmp_path.iterdir():
                path.chmod(0o644)
    finally:
        os.umask(before)


def keyed(sequence: int, count: int) -> Epoch:
    return Epoch("n", "disk", sequence, epoch(sequence).sketch, tuple(ProcessKey("dd", i) for i in range(count)))


def test_many_keys_are_entered_after_their_epoch_in_short_transactions(store: EpochStore) -> None:
    """What is left to enter survives the process; meanwhile others may write."""
    many = 2 * store_module.SLICE_KEYS + 7
    assert store.add_encoded([encoded(encode(keyed(0, many))), encoded(encode(keyed(1, 3)))]) == ["stored", "stored"]
    assert store.totals()["instances"] == 3

    def stop_at_once() -> None:
        store.add_encoded([encoded(encode(epoch(9, node="other")))])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.list_keys(pause=stop_at_once)
    entered = store.totals()["instances"]
    assert store_module.SLICE_KEYS <= entered < many
    assert store.list_keys()
    assert store.totals()["instances"] == many + 1  # and sh[9], the other node's
    assert not store.list_keys()


def test_keys_of_an_epoch_that_was_forgotten_meanwhile_are_not_waited_for(store: EpochStore) -> None:
    store.add_encoded([encoded(encode(keyed(0, store_module.SLICE_KEYS + 1)))], now_ns=5000)
    assert store.remove_some_before(10**9, limit=10) == 1
    assert store.list_keys()
    assert not store.list_keys()


def test_what_is_opened_for_reading_cannot_be_written(store: EpochStore) -> None:
    store.add([epoch()])
    reading = read_store(store.engine.url)
    assert [e.sequence for e in reading.each_epoch("n", "disk", 0, 10**9, EncodedEpoch.decode)] == [0]
    for _ in range(2):  # of the same connection
        with pytest.raises(StoreError, match=r"read-?only"):
            reading.add([epoch(1)])
    reading.close()


def changed(sequence: int, position: int, value: object) -> bytes:
    """An epoch's bytes with one field of its body changed, the check word made good again."""
    _, body, _ = cbor2.loads(encode(epoch(sequence)))
    items = cbor2.loads(body)
    items[position] = value
    body = cbor2.dumps(items)
    return cbor2.dumps([1, body, hash_bytes(body) & 0xFFFFFFFF])


def undecodable(sequence: int) -> bytes:
    """An epoch whose header is right, and whose counters exceed what was recorded."""
    sketch = BucketArray(BucketArrayParameters(buckets=3, per_instance=1, bits=5))
    sketch.record(1, 2, 1000)
    good = Epoch("n", "disk", sequence, sketch, ())
    _, body, _ = cbor2.loads(encode(good))
    items = cbor2.loads(body)
    items[7] = b"\xff\xff"
    body = cbor2.dumps(items)
    return cbor2.dumps([1, body, hash_bytes(body) & 0xFFFFFFFF])


def test_the_same_epoch_twice_in_a_batch_is_stored_once(store: EpochStore) -> None:
    batch = [epoch(0), epoch(1), epoch(0), epoch(1, value=5), epoch(2)]
    assert store.add(batch) == ["stored", "stored", "duplicate", "conflict", "stored"]
    assert store.add([epoch(0, value=5), epoch(0)]) == ["conflict", "duplicate"]
    assert store.totals()["epochs"] == 3


def test_what_cannot_be_decoded_is_set_aside_for_good_and_the_rest_answered(store: EpochStore) -> None:
    store.add_encoded([encoded(encode(epoch(0))), encoded(undecodable(1)), encoded(encode(epoch(2)))])
    reading = read_store(store.engine.url)
    assert [e.sequence for e in reading.each_epoch("n", "disk", 0, 10**9, EncodedEpoch.decode)] == [0, 2]
    reading.close()
    (line,) = store.set_aside_in([("n", "disk")], 0, 10**9)
    assert line.startswith("epoch 1 of n/disk cannot be decoded and is left out: ")
    assert [frame["set_aside"] is None for frame in store.frames("n", "disk", limit=9)] == [True, False, True]
    assert store.epoch_bytes("n", "disk", 1) == undecodable(1)
    assert store.totals()["epochs_set_aside"] == 1
    again = open_store(store.engine.url)
    assert [e.sequence for e in again.epochs("n", "disk", 0, 10**9)] == [0, 2]
    assert again.add_encoded([encoded(undecodable(1))]) == ["duplicate"]
    while again.remove_some_before(2**62, limit=10):
        pass
    assert again.totals()["epochs_set_aside"] == 0
    again.close()


@pytest.mark.parametrize("keys", [[b"\xff"], [3]], ids=["no key", "no bytes"])
def test_an_epoch_that_lists_what_is_no_key_is_set_aside_and_the_others_keys_entered(store: EpochStore, keys) -> None:
    batch = [encoded(encode(epoch(0))), encoded(changed(1, 8, keys)), encoded(encode(epoch(2)))]
    assert store.add_encoded(batch) == ["stored"] * 3
    while store.list_keys():
        pass
    assert {text for _, text in store.keys(stream="disk")} == {"dd[7]", "sh[9]"}
    assert [e.sequence for e in store.epochs("n", "disk", 0, 10**9)] == [0, 2]
    assert len(store.set_aside_in([("n", "disk")], 0, 10**9)) == 1


def test_sightings_hold_the_first_and_the_last_time_in_whatever_order_epochs_come(store: EpochStore) -> None:
    store.add([epoch(1, first_ns=5000), epoch(0, first_ns=900), epoch(2, first_ns=3000)])
    store.add([epoch(3, first_ns=2000)])
    with store.transaction() as connection:
        rows = connection.execute(select(SIGHTINGS.c.first_ns, SIGHTINGS.c.last_ns)).all()
    assert [tuple(row) for row in rows] == [(900, 5500)] * 2


def test_keys_are_known_again_after_more_than_are_remembered(store: EpochStore, monkeypatch) -> None:
    monkeypatch.setattr(store_module, "KNOWN_KEYS", 3)
    for number in range(5):
        store.add([keyed(number, number + 1)])
    assert store.totals()["instances"] == 5
