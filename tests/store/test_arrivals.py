"""Exactly once: of all epochs with one number one is stored, whoever sends it, how often, and whatever became of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from test_epochs import epoch

from postgresql_server import PostgresqlServer
from sojourn.core.errors import UsageError
from sojourn.epochs.wire import EncodedEpoch
from sojourn.store.arrivals import joined
from sojourn.store.database import EPOCHS, SEQUENCES, SIGHTINGS, widen_spans
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.upkeep.partitions import DAY_NS, partitions_of, prepare_partitions

HOUR = 3600 * 10**9
NOW = 20_000 * DAY_NS + 5 * HOUR


@pytest.fixture
def stores(place: str) -> Iterator[list[EpochStore]]:
    """One database, opened by three query units."""
    opened = [open_store(place) for _ in range(3)]
    yield opened
    for store in opened:
        store.close()


def spans(store: EpochStore, stream: str = "disk") -> list[tuple[int, int]]:
    columns = SEQUENCES.c.first_sequence, SEQUENCES.c.last_sequence
    with store.transaction() as connection:
        rows = connection.execute(select(*columns).where(SEQUENCES.c.stream == stream).order_by(columns[0]))
        return [tuple(row) for row in rows]


def test_numbers_in_any_order_leave_the_ranges_that_they_make(stores: list[EpochStore]) -> None:
    store = stores[0]
    for numbers in ([5], [7, 9], [6], [0, 1], [2**63 - 1], [8, 3], [4], [2]):
        assert store.add([epoch(i) for i in numbers]) == ["stored"] * len(numbers)
    assert spans(store) == [(0, 9), (2**63 - 1, 2**63 - 1)]
    assert store.add([epoch(i) for i in range(11)]) == ["duplicate"] * 10 + ["stored"]
    assert store.stored_among("n", "disk", [10, 11, 2**63 - 1]) == {10, 2**63 - 1}
    assert store.stored_among("n", "other", [10]) == set()
    assert store.last_sequence("n", "disk") == 2**63 - 1


@given(st.lists(st.sets(st.integers(0, 40), min_size=1), max_size=8))
def test_joined_ranges_hold_the_numbers_neither_overlap_nor_touch(batches: list[set[int]]) -> None:
    found: list[tuple[int, int]] = []
    for batch in batches:
        found = joined(found, batch)
    assert {i for first, last in found for i in range(first, last + 1)} == set().union(*batches)
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(found))


def test_writers_at_once_store_every_epoch_once_across_partitions(stores: list[EpochStore]) -> None:
    """Each epoch is sent by three, in batches of their own, some of them days apart by the units' clocks."""
    with stores[0].transaction(writes=True) as connection:
        prepare_partitions(connection, NOW)
    # The first writer fills partitions of three days, the second the default one.
    clocks = [lambda i: NOW + i % 3 * DAY_NS, lambda _: NOW - 40 * DAY_NS, lambda i: NOW + i * HOUR]
    statuses: list[str] = []
    failures: list[BaseException] = []
    epochs = [EncodedEpoch.of(epoch(i % 60, stream=f"s{i // 60}", node=f"n{i % 2}")) for i in range(120)]

    def write(which: int) -> None:
        mine = epochs[:]
        random.Random(which).shuffle(mine)
        try:
            for i in range(0, len(mine), 8):
                statuses.extend(stores[which].add_encoded(mine[i : i + 8], now_ns=clocks[which](i)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (statuses.count("stored"), statuses.count("duplicate")) == (120, 240)
    with stores[0].transaction() as connection:
        names = connection.execute(select(EPOCHS.c.node, EPOCHS.c.stream, EPOCHS.c.sequence)).all()
        is_partitioned = bool(partitions_of(connection, EPOCHS))
    assert len(names) == len(set(names)) == 120
    assert is_partitioned == (stores[0].engine.dialect.name == "postgresql")


def test_what_was_removed_is_not_stored_again(stores: list[EpochStore]) -> None:
    store = stores[0]
    store.add([epoch(i) for i in range(4)], now_ns=NOW)
    while store.remove_some_before(NOW + 2 * DAY_NS, limit=3):
        pass
    assert store.totals()["epochs"] == 0
    assert stores[1].add([epoch(3), epoch(4)], now_ns=NOW) == ["duplicate", "stored"]
    assert store.last_sequence("n", "disk") == 4


def test_an_epoch_that_is_dated_far_ahead_counts_when_it_came(stores: list[EpochStore]) -> None:
    store = stores[0]
    far, near = epoch(1, first_ns=NOW + 300 * DAY_NS), epoch(2, first_ns=NOW + HOUR - 500)
    assert store.add([epoch(0, first_ns=NOW), far, near], now_ns=NOW) == ["stored"] * 3
    assert [one.sequence for one in store.epochs("n", "disk", NOW - 500, NOW)] == [0, 1]
    assert [one.sequence for one in store.epochs("n", "disk", NOW + 2 * HOUR, 2**62)] == []
    assert [frame["shifted_ns"] for frame in store.frames("n", "disk", limit=9)] == [None, 300 * DAY_NS + 500, None]
    (note,) = store.moved_in([("n", "disk"), ("n", "other")], NOW - 500, NOW)
    assert note == "n/disk dated 1 epoch up to 300 d ahead of its arrival, which counts instead"
    assert store.add([far], now_ns=NOW) == ["duplicate"], "its bytes are as they came"
    removed = 0
    while gone := store.remove_some_before(NOW + 30 * DAY_NS, limit=9):
        removed += gone
    assert removed == 3, "nothing stays until the date that it bears"


def test_two_instances_of_one_id_in_one_batch_widen_one_span(place: str) -> None:
    """Whoever finds two keys with one hash must not have a statement change a row twice, which PostgreSQL refuses."""
    here = {"node": "alpha", "stream": "disk", "instance": -5}
    rows = [{**here, "first_ns": 30, "last_ns": 40}, {**here, "first_ns": 10, "last_ns": 35}]
    with closing(open_store(place)) as store:
        for some in (rows, rows[:1], [{**here, "first_ns": 20, "last_ns": 50}]):
            with store.transaction(writes=True) as connection:
                widen_spans(connection, SIGHTINGS, some)
        with store.transaction() as connection:
            spans = connection.execute(select(SIGHTINGS.c.first_ns, SIGHTINGS.c.last_ns)).all()
    assert spans == [(10, 50)]


def test_a_name_that_is_too_long_for_its_column_is_refused_not_cut(postgresql: PostgresqlServer) -> None:
    row = {"node": "n" * 201, "stream": "disk", "instance": 1, "first_ns": 1, "last_ns": 2}
    place = postgresql.new_schema()
    with closing(open_store(place)) as store, pytest.raises(UsageError), store.transaction() as connection:
        widen_spans(connection, SIGHTINGS, [row])
