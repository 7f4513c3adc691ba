"""What is old goes, as a partition or by rows; a clock that jumps ahead makes nothing old."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import func, select
from test_epochs import epoch

from postgresql_server import PostgresqlServer
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.epochs.wire import EncodedEpoch
from sojourn.store.database import CUTS, EPOCHS, RUNS
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.runs import Pair, RunRow, RunStore
from sojourn.store.upkeep.clock import STEP_NS, TrustedClock, confirm
from sojourn.store.upkeep.partitions import DAY_NS, partitions_of, prepare_partitions

HOUR = 3600 * 10**9
DAY = DAY_NS
NOW = 20_000 * DAY + 5 * HOUR


@pytest.fixture
def store(place: str) -> Iterator[EpochStore]:
    opened = open_store(place)
    yield opened
    opened.close()


@pytest.fixture
def partitioned(postgresql: PostgresqlServer) -> Iterator[EpochStore]:
    opened = open_store(postgresql.new_schema())
    yield opened
    opened.close()


def days_of(store: EpochStore, table=EPOCHS) -> list[str]:
    with store.transaction() as connection:
        return [one.name.rsplit("_", 1)[1] for one in partitions_of(connection, table)]


def prepared(store: EpochStore, now_ns: int) -> None:
    with store.transaction(writes=True) as connection:
        prepare_partitions(connection, now_ns)


def in_partition(store: EpochStore, name: str) -> int:
    with store.transaction() as connection:
        return connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one()


def test_partitions_are_made_ahead_and_what_came_before_them_is_moved_there(partitioned: EpochStore) -> None:
    before = days_of(partitioned)
    assert len(before) == 4
    assert before[-1] == "default"
    partitioned.add([epoch(0, first_ns=NOW), epoch(1, first_ns=NOW)], now_ns=NOW)
    assert in_partition(partitioned, "epochs_default") == 2
    prepared(partitioned, NOW)
    prepared(partitioned, NOW)
    for table in (EPOCHS, CUTS, RUNS):
        assert days_of(partitioned, table)[:3] == ["20241004", "20241005", "20241006"]
    assert (in_partition(partitioned, "epochs_20241004"), in_partition(partitioned, "epochs_default")) == (2, 0)
    partitioned.add([epoch(2, first_ns=NOW)], now_ns=NOW + DAY)
    assert in_partition(partitioned, "epochs_20241005") == 1
    assert [one.sequence for one in partitioned.epochs("n", "disk", 0, 2**62)] == [0, 1, 2]


def test_a_day_goes_as_a_whole_once_all_of_it_is_old(partitioned: EpochStore) -> None:
    prepared(partitioned, NOW)
    cut = EncodedEpoch.of(Epoch("n", "point", 0, epoch(0, first_ns=NOW).sketch, (), Cut(begins=1, ends=2)))
    partitioned.add_encoded([cut], now_ns=NOW)
    partitioned.add([epoch(i, first_ns=NOW + i * DAY) for i in range(3)], now_ns=NOW)
    partitioned.set_aside(2, "damaged")
    partitioned.add([epoch(9, first_ns=NOW + DAY)], now_ns=NOW + DAY)
    until = (NOW // DAY + 1) * DAY
    assert partitioned.remove_some_before(until + HOUR - 1, limit=1) == 0, "its last hour may be about the next day"
    assert partitioned.remove_some_before(until + HOUR, limit=1) == 4
    assert partitioned.remove_some_before(until + HOUR, limit=1) == 0
    assert days_of(partitioned)[0] == days_of(partitioned, CUTS)[0] == "20241005"
    assert partitioned.totals() | {"nodes": 0, "instances": 0, "epoch_bytes": 0} == {
        "epochs": 1, "epochs_set_aside": 0, "nodes": 0, "instances": 0, "epoch_bytes": 0,
    }  # fmt: skip
    with partitioned.transaction() as connection:
        assert connection.execute(select(func.count()).select_from(CUTS)).scalar() == 0


def run_row(end_ns: int) -> RunRow:
    plain = dict.fromkeys(("sent", "received", "flows", "size_bytes", "lost", "least_raw_ns"), 1)
    return RunRow(
        start_ns=end_ns - 10,
        end_ns=end_ns,
        follows=False,
        **plain,
        raw_mean_ns=1.0,
        raw_p99_ns=1.0,
        clock=b"",
        data=b"",
    )


def test_runs_that_a_sender_dates_ahead_go_with_those_that_were_answered_then(store: EpochStore) -> None:
    runs = RunStore(store)
    (pair,) = runs.pairs([Pair(from_node="a", from_stream="x", to_node="b", to_stream="y")])
    runs.add(pair.number, [run_row(NOW), run_row(NOW + 300 * DAY)], until=(1, 1), now_ns=NOW)
    runs.add(pair.number, [run_row(NOW + 10 * DAY)], until=(2, 2), now_ns=NOW + 10 * DAY)
    removed = 0
    while gone := runs.remove_some_before(NOW + 5 * DAY, limit=9):
        removed += gone
    assert removed == 2
    assert [row.end_ns for _, row in runs.between([pair.number], 0, 2**62, most=9)] == [NOW + 10 * DAY]


class Clocks:
    """A wall clock that can be set, and one that nobody sets."""

    def __init__(self, wall_ns: int) -> None:
        self.wall_ns, self.ticks_ns = wall_ns, 10**9

    def wait(self, ns: int) -> None:
        self.wall_ns += ns
        self.ticks_ns += ns

    def of(self, store: EpochStore) -> TrustedClock:
        return TrustedClock(store, wall=lambda: self.wall_ns, monotonic=lambda: self.ticks_ns)


def test_a_clock_that_goes_on_as_it_should_is_trusted(store: EpochStore) -> None:
    clocks = Clocks(NOW)
    clock = clocks.of(store)
    for hours in (0, 1, 100):
        clocks.wait(hours * HOUR)
        assert clock.now_ns() == clocks.wall_ns
    clocks.wall_ns += STEP_NS
    assert clock.now_ns() == clocks.wall_ns, "small steps are set right by whatever keeps the clock"
    clocks.wall_ns -= 50 * DAY
    assert clock.now_ns() == clocks.wall_ns, "what is set back makes nothing old"


def test_a_clock_that_jumped_ahead_is_trusted_again_when_it_is_set_right(store: EpochStore) -> None:
    clocks = Clocks(NOW)
    clock = clocks.of(store)
    assert clock.now_ns() == NOW
    clocks.wall_ns += 365 * DAY
    for _ in range(3):
        clocks.wait(HOUR)
        assert clock.now_ns() is None
        assert clock.ahead_ns == 365 * DAY
    clocks.wall_ns -= 365 * DAY
    assert clock.now_ns() == NOW + 3 * HOUR
    assert clock.ahead_ns is None


def test_a_clock_that_jumped_while_the_unit_was_away_waits_for_the_nodes(store: EpochStore) -> None:
    """What they date confirms it, if half of those that are heard of agree; one with a wrong clock does not."""
    clocks = Clocks(NOW)
    assert clocks.of(store).now_ns() == NOW
    clocks.wall_ns += 365 * DAY
    clock = clocks.of(store)
    assert clock.now_ns() is None, "after a restart"
    wall = clocks.wall_ns
    store.add([epoch(0, node="right", first_ns=NOW), epoch(0, node="also", first_ns=NOW)], now_ns=wall)
    store.add([epoch(0, node="wrong", first_ns=wall)], now_ns=wall)
    assert clock.now_ns() is None
    store.add([epoch(1, node="right", first_ns=wall), epoch(0, node="new", first_ns=wall)], now_ns=wall)
    assert clock.now_ns() == wall, "three of four say that a year has passed"
    assert clocks.of(store).now_ns() == wall


def test_what_nodes_said_before_a_jump_does_not_confirm_it(store: EpochStore) -> None:
    clocks = Clocks(NOW)
    clock = clocks.of(store)
    store.add([epoch(0, first_ns=NOW)], now_ns=NOW)
    assert clock.now_ns() == NOW
    clocks.wall_ns += 2 * HOUR
    assert clock.now_ns() is None
    assert confirm(store, now_ns=clocks.wall_ns) == clocks.wall_ns
    assert clock.now_ns() == clocks.wall_ns, "an operator said so"
    clocks.wall_ns += 2 * HOUR
    assert clock.now_ns() is None, "for this time, not for all to come"


def test_a_store_that_knows_no_time_goes_by_its_last_arrival(store: EpochStore) -> None:
    store.add([epoch(0, first_ns=NOW)], now_ns=NOW)
    assert Clocks(NOW + 365 * DAY).of(store).now_ns() is None
    assert Clocks(NOW + HOUR).of(store).now_ns() == NOW + HOUR
