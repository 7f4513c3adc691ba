"""Retention: old epochs go while the unit runs, new ones stay, and both can be seen."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest
from query_unit import LIMITS, make_epoch, running_unit
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.core.errors import StoreError, UsageError
from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.server.upkeep import Periodic
from sojourn.store.epochs import open_store
from sojourn.store.measurements import MeasurementStore
from sojourn.store.upkeep.downsampling import MergeStep
from waiting import eventually

HOUR = 3600 * 10**9


class _Faulty(Periodic):
    """Raises what nobody foresaw in its first rounds."""

    def __init__(self) -> None:
        self.rounds = 0
        super().__init__("faulty", 0.001)

    def work(self) -> None:
        self.rounds += 1
        if self.rounds < 3:
            raise OverflowError("too large")


def test_a_fault_in_one_round_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    faulty = _Faulty()
    faulty.start()
    eventually(lambda: faulty.rounds > 3)
    faulty.stop()
    assert caplog.text.count("faulty went wrong, and goes on: OverflowError('too large')") == 2


class _Failing(Periodic):
    """Fails as its database does: for some rounds alike, then otherwise, then no more."""

    def __init__(self) -> None:
        self.rounds = 0
        super().__init__("failing", 0.001)

    def work(self) -> None:
        self.rounds += 1
        if self.rounds < 60:
            what = "is away" if self.rounds < 40 else "is starting up"
            self._complain(logging.getLogger("sojourn.test"), "work was not done", StoreError(what, where="data"))


def test_what_goes_wrong_again_and_again_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sojourn")
    failing = _Failing()
    failing.start()
    eventually(lambda: failing.rounds > 70)
    failing.stop()
    assert [record.message for record in caplog.records] == [
        "warning: work was not done: data: is away",
        "warning: work was not done: data: is starting up",
        "it is over that work was not done",
    ]


def test_old_epochs_go_in_the_background_and_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = time.time_ns()
    store = open_store(tmp_path)
    old = [make_epoch(i, time_ns=now - 3 * HOUR) for i in range(1200)]
    store.add(old, now_ns=now - 2 * HOUR)
    store.add([make_epoch(5000 + i, time_ns=now) for i in range(10)], now_ns=now)
    store.close()
    caplog.set_level(logging.INFO, logger="sojourn")
    running = running_unit(tmp_path, replace(LIMITS, keep_epochs_ns=HOUR))
    unit = next(running)
    with unit.client("viewer") as client:
        eventually(lambda: "sojourn_epochs_removed_total 1200.0" in client.get("/metrics").text)
        assert "sojourn_stored_epochs 10.0" in client.get("/metrics").text
    next(running, None)
    assert "1,200 epochs older than" in caplog.text


def test_probed_intervals_go_with_the_epochs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = time.time_ns()
    store = open_store(tmp_path)
    recent = SegmentMeasurement(
        segment=Segment.between("a", "b"),
        dscp=0,
        interval=1,
        start_ns=now - 10**9,
        end_ns=now,
        packets=20,
        lost=1,
        mean_ns=5e5,
        low_ns=4e5,
        high_ns=6e5,
        std_ns=3.0,
        method="probes",
    )
    probed = [replace(recent, start_ns=now - 3 * HOUR, end_ns=now - 3 * HOUR + 10**9), recent]
    MeasurementStore(store).add(probed)
    store.close()
    caplog.set_level(logging.INFO, logger="sojourn")
    running = running_unit(tmp_path, replace(LIMITS, keep_epochs_ns=HOUR))
    unit = next(running)
    eventually(lambda: "1 probed intervals older than" in caplog.text)
    assert MeasurementStore(unit.store).between(0, 2**63 - 1) == probed[1:]
    next(running, None)


def test_a_clock_that_jumped_ahead_removes_nothing_until_nodes_or_an_operator_confirm_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store was last known to be at work a year ago, by the clock: a year has passed, or the clock has jumped."""
    now, year = time.time_ns(), 365 * 24 * HOUR
    store = open_store(tmp_path)
    store.add([make_epoch(i, time_ns=now - year) for i in range(3)], now_ns=now - year)
    store.close()
    caplog.set_level(logging.INFO, logger="sojourn")
    steps = (MergeStep(HOUR, HOUR),)
    running = running_unit(tmp_path, replace(LIMITS, keep_epochs_ns=24 * HOUR, merge_epochs=steps))
    unit = next(running)
    with unit.client("viewer") as client:
        eventually(lambda: "sojourn_retention_paused 1.0" in client.get("/metrics").text)
        assert "the clock is 365 d ahead of what was last known" in caplog.text
        assert unit.store.totals()["epochs"] == 3
    next(running, None)
    # Its nodes come back, and their clocks agree.
    running = running_unit(tmp_path, replace(LIMITS, keep_epochs_ns=24 * HOUR, merge_epochs=steps))
    unit = next(running)
    unit.store.add([make_epoch(9, time_ns=time.time_ns())])
    next(running, None)
    running = running_unit(tmp_path, replace(LIMITS, keep_epochs_ns=24 * HOUR))
    unit = next(running)
    eventually(lambda: unit.store.totals()["epochs"] == 1)
    next(running, None)
    assert caplog.text.count("warning: the clock is") == 2, "once a run"


def test_old_epochs_are_merged_in_the_background_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin = (time.time_ns() // HOUR - 5) * HOUR
    store = open_store(tmp_path)
    store.add([make_epoch(i, time_ns=begin + i) for i in range(40)], now_ns=begin)
    store.add([make_epoch(99, time_ns=time.time_ns())])
    store.close()
    caplog.set_level(logging.INFO, logger="sojourn")
    running = running_unit(tmp_path, replace(LIMITS, merge_epochs=(MergeStep(2 * HOUR, HOUR),)))
    unit = next(running)
    with unit.client("viewer") as client:
        eventually(lambda: "sojourn_epochs_merged_total 39.0" in client.get("/metrics").text)
        listed = client.get("/api/v1/nodes/alpha/streams/disk/epochs").json()
        assert [(one["sequence"], one["merged"], one["recorded"]) for one in listed] == [(99, 1, 2), (39, 40, 80)]
    next(running, None)
    assert "39 epochs older than 2 h were merged into others of 1 h" in caplog.text


def test_without_a_time_nothing_goes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add([make_epoch(0, time_ns=1)], now_ns=1)
    store.close()
    running = running_unit(tmp_path)
    unit = next(running)
    with unit.client("viewer") as client:
        assert "sojourn_epochs_removed_total 0.0" in client.get("/metrics").text
        assert "sojourn_stored_epochs 1.0" in client.get("/metrics").text
    next(running, None)


@pytest.mark.parametrize("option", ["--keep-epochs", "--keep-collections"])
def test_a_time_that_keeps_nothing_is_refused(tmp_path: Path, option: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "unit"), option, "10ms"])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"{option}: '10ms' is less than a second; write 30d or 12h"
    assert not (tmp_path / "unit").exists()
