"""What an agent tells of itself: once a minute, before it sends much, and never so that epochs do not go."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from query_unit import make_epoch

from sojourn.node.agent import reporting
from sojourn.node.agent.reporting import StateReporter
from sojourn.node.agent.stream_states import StreamStates
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.transport import AgentReport, RefusedError, StreamState, UnacceptableError


class Told:
    """The end of a transport that states come out of; it refuses agents' reports like an earlier query unit, if so."""

    def __init__(self, refusal: RefusedError | None = None) -> None:
        self.reports: list[AgentReport | None] = []
        self._refusal = refusal

    def report_states(self, _states: Mapping[str, StreamState], agent: AgentReport | None = None) -> None:
        if agent is not None and self._refusal is not None:
            raise self._refusal
        self.reports.append(agent)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The machine's own count, in seconds, as the test says."""
    time = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(reporting, "time", SimpleNamespace(monotonic=lambda: time.seconds))
    return time


def reporter(directory: Path, told: Told, *, epochs: int = 0) -> tuple[StateReporter, StreamStates]:
    spool, states = Spool(directory / "spool", limit_bytes=1 << 20), StreamStates()
    for number in range(epochs):
        spool.put(make_epoch(number))
    return StateReporter(told, states, spool, lock=threading.RLock(), clock=lambda: 5), states


def test_it_tells_when_something_changes_and_once_a_minute(tmp_path: Path, now: SimpleNamespace) -> None:
    told = Told()
    one, states = reporter(tmp_path, told, epochs=3)
    one.tell()
    one.tell()
    assert [report.spool_epochs for report in told.reports if report] == [3]
    states.want("disk")
    one.tell()
    assert len(told.reports) == 2
    now.seconds += 61
    one.tell()
    one.tell()
    assert len(told.reports) == 3
    one.forget()
    one.tell()
    assert len(told.reports) == 4


@pytest.mark.usefixtures("now")
def test_it_tells_before_much_is_sent(tmp_path: Path) -> None:
    told = Told()
    one, _ = reporter(tmp_path / "few", told, epochs=3)
    one.tell_before()
    assert told.reports == []
    one, _ = reporter(tmp_path / "many", told, epochs=101)
    one.tell_before()
    one.tell_before()
    assert [report.spool_epochs for report in told.reports if report] == [101]


def test_an_earlier_query_unit_is_told_of_the_streams_alone(tmp_path: Path, now: SimpleNamespace) -> None:
    told = Told(UnacceptableError("refuses (422): body.agent: Extra inputs are not permitted", status=422))
    one, states = reporter(tmp_path, told)
    one.tell()
    now.seconds += 61
    one.tell()
    states.want("disk")
    one.tell()
    assert told.reports == [None, None]


@pytest.mark.usefixtures("now")
def test_a_query_unit_that_refuses_it_still_gets_epochs(tmp_path: Path) -> None:
    told = Told(RefusedError("refuses (403): the token is that of another node", status=403))
    one, _ = reporter(tmp_path, told, epochs=101)
    one.tell_before()
    with pytest.raises(RefusedError):
        one.tell()
