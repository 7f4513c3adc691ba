"""Schemas: a database of every earlier version is upgraded, whoever comes first, and one of a later version refused."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData, create_engine, make_url, select, text
from test_epochs import epoch

from sojourn.core.errors import StoreError
from sojourn.server.control import assignments, inventory, owners, states
from sojourn.server.sinks import tables as sink_tables
from sojourn.store import audit, database, measurements, notifications, objectives, segments, tokens, topologies
from sojourn.store.database import EPOCHS, NODES, SEQUENCES, engine_at
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.migrations.upgrading import HEAD, revision_of, scripts
from sojourn.store.runs import RunStore
from sojourn.store.upkeep.partitions import PARTITIONED, partitions_of

EARLIER = Path(__file__).parent / "earlier"
ROOMS = (
    *(audit, database, tokens, measurements, objectives, notifications, segments, topologies),
    *(assignments, inventory, owners, states, sink_tables),
)
MINUTE, DAY = 60 * 10**9, 86_400 * 10**9
BEGIN = 1_790_000_000 * 10**9  # of what the database of 0.1.0 holds


def all_tables() -> MetaData:
    together = MetaData()
    for room in ROOMS:
        for table in (
            getattr(room, "_METADATA", None).sorted_tables
            if hasattr(room, "_METADATA")
            else room.METADATA.sorted_tables
        ):
            table.to_metadata(together)
    return together


def make_earlier(place: str) -> None:
    """The database that Sojourn 0.1.0 made, with some rows, written down as it was."""
    if "://" not in place:
        Path(place).mkdir()
        connection = sqlite3.connect(Path(place) / "sojourn.sqlite")
        connection.executescript((EARLIER / "0001.sqlite.sql").read_text())
        connection.close()
        return
    engine = create_engine(place)
    with engine.begin() as connection:
        connection.connection.cursor().execute((EARLIER / "0001.postgresql.sql").read_text())
    engine.dispose()


@pytest.fixture
def earlier(place: str) -> str:
    make_earlier(place)
    return place


@pytest.fixture
def upgraded(earlier: str) -> Iterator[EpochStore]:
    store = open_store(earlier)
    yield store
    store.close()


def test_revisions_are_numbered_and_the_last_is_the_one_that_is_worked_with() -> None:
    numbers = [script.revision for script in scripts().walk_revisions()][::-1]
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    assert scripts().get_heads() == [HEAD] == numbers[-1:]


def differences(store: EpochStore) -> list[str]:
    """What Alembic would change to make a database what the statements take it for."""
    with store.transaction() as connection:
        parts = {one.name for table in PARTITIONED for one in partitions_of(connection, table)}

        def is_ours(_thing: object, name: str, _kind: str, _reflected: bool, _other: object) -> bool:
            # Of the identity of epochs PostgreSQL has but an index; what it calls a partition's own is none of ours.
            return name not in parts and name not in ("alembic_version", "epoch_identity", "sqlite_sequence")

        context = MigrationContext.configure(connection, opts={"include_object": is_ours})
        return [str(one) for one in compare_metadata(context, all_tables())]


def test_revisions_make_the_tables_that_statements_are_written_for(place: str) -> None:
    store = open_store(place)
    assert differences(store) == []
    store.close()


def test_a_database_of_the_first_version_becomes_the_same(upgraded: EpochStore) -> None:
    assert differences(upgraded) == []


def test_what_was_stored_before_an_upgrade_is_there_after_it(upgraded: EpochStore) -> None:
    found = upgraded.epochs("n", "disk", 0, 2**62)
    assert [one.sequence for one in found] == [0, 1, 2, 3, 4, 5, 9]
    assert upgraded.totals() == {
        "epochs": 10, "epoch_bytes": 845, "epochs_set_aside": 1, "nodes": 1, "instances": 2,
    }  # fmt: skip
    runs = RunStore(upgraded)
    (pair,) = runs.pairs_between("n", "m")
    assert (pair.sent_until, [row.data for _, row in runs.between([pair.number], 0, 2**62, most=9)]) == (3, [b"d"])
    assert [one.cut.begins for one in runs.placed("n", "point:x:g1", after=-1, limit=9)] == [2**64 - 1]
    assert [token.name for token in tokens.TokenStore(upgraded).all()] == ["first"]


def test_what_was_stored_before_an_upgrade_is_recognised_after_it(upgraded: EpochStore) -> None:
    copies = [epoch(i, first_ns=BEGIN + i * MINUTE) for i in (5, 6, 9)]
    assert upgraded.add(copies) == ["duplicate", "stored", "duplicate"]
    assert upgraded.add([epoch(3, first_ns=7)]) == ["conflict"]
    with upgraded.transaction() as connection:
        here = (SEQUENCES.c.node == "n") & (SEQUENCES.c.stream == "disk")
        columns = SEQUENCES.c.first_sequence, SEQUENCES.c.last_sequence
        spans = connection.execute(select(*columns).where(here).order_by(columns[0])).all()
    assert [tuple(span) for span in spans] == [(0, 6), (9, 10)]


def test_what_was_dated_far_ahead_before_an_upgrade_is_found_when_it_came(upgraded: EpochStore) -> None:
    (found,) = upgraded.epochs("n", "ahead", BEGIN - DAY, BEGIN)
    assert (found.last_ns, found.sketch.recorded) == (BEGIN, 2)
    (frame,) = upgraded.frames("n", "ahead", limit=9)
    assert frame["shifted_ns"] == 10 * DAY + 500
    with upgraded.transaction() as connection:
        assert connection.execute(select(NODES.c.newest_ns)).scalar() == BEGIN + 9 * MINUTE + 500


def test_rows_from_before_an_upgrade_are_a_partition_of_their_own(postgresql) -> None:
    place = postgresql.new_schema()
    make_earlier(place)
    store = open_store(place)
    with store.transaction() as connection:
        first, *_ = partitions_of(connection, EPOCHS)
        assert (first.name, first.begin_ns, first.is_day) == ("epochs_before", None, False)
        assert first.end_ns == (BEGIN + 2 * DAY) // DAY * DAY + DAY
    store.add([epoch(100, first_ns=BEGIN + 90 * DAY)], now_ns=BEGIN + 90 * DAY)
    assert store.remove_some_before(BEGIN + 60 * DAY, limit=3) == 10, "the partition goes as a whole"
    assert [one.sequence for one in store.epochs("n", "disk", 0, 2**62)] == [100]
    store.close()


def test_two_that_open_an_earlier_database_at_once_both_find_it_upgraded(earlier: str) -> None:
    stores: list[EpochStore] = []
    failures: list[BaseException] = []

    def open_one() -> None:
        try:
            stores.append(open_store(earlier))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [store.totals()["epochs"] for store in stores] == [10, 10, 10]
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    ("change", "schema"),
    [
        ("UPDATE alembic_version SET version_num = '0099'", "0099"),
        ("DROP TABLE alembic_version; UPDATE schema_version SET version = 99", "0099"),
    ],
    ids=["by its revision", "by the number that 0.1.0 looked at"],
)
def test_a_database_of_a_later_version_is_refused_and_left_alone(place: str, change: str, schema: str) -> None:
    open_store(place).close()
    engine = engine_at(make_url(place) if "://" in place else place)
    with engine.execution_options(writes=True).begin() as connection:
        for statement in change.split("; "):
            connection.execute(text(statement))
    with pytest.raises(
        StoreError, match=f"schema {schema}, this Sojourn works with schemas up to {HEAD}; upgrade this"
    ):
        open_store(place)
    with engine.connect() as connection:
        assert revision_of(connection) in ("0099", None)
    engine.dispose()


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(earlier: str) -> None:
    engine = engine_at(make_url(earlier) if "://" in earlier else earlier)
    with engine.execution_options(writes=True).begin() as connection:
        connection.execute(text("CREATE TABLE store_facts (other INTEGER)"))
    with pytest.raises(StoreError, match="store_facts"):
        open_store(earlier)
    with engine.execution_options(writes=True).begin() as connection:
        assert revision_of(connection) is None
        connection.execute(text("DROP TABLE store_facts"))
    engine.dispose()
    store = open_store(earlier)
    assert store.totals()["epochs"] == 10
    store.close()


def test_a_database_with_a_part_of_the_first_tables_and_columns_is_completed(tmp_path: Path) -> None:
    """As `sojourn token create` left one, or a Sojourn from before some tables and columns were added."""
    make_earlier(str(tmp_path / "data"))
    connection = sqlite3.connect(tmp_path / "data" / "sojourn.sqlite")
    for statement in (
        "DROP TABLE unlisted_epochs",
        "DROP TABLE collections",
        "ALTER TABLE streams DROP COLUMN values_are",
    ):
        connection.execute(statement)
    connection.close()
    store = open_store(tmp_path / "data")
    assert differences(store) == []
    assert [stream.values for stream in store.streams()] == [None]
    store.close()
