"""Nodes over HTTP: one of them, their groups, their events, and what their agents say of themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import LIMITS, Unit, make_epoch, running_unit
from receiving import Receiver

from sojourn.client.query_unit import Client
from sojourn.core.errors import ServerError
from sojourn.node.transports.transport import AgentReport, StreamState
from waiting import eventually


def report(**what: object) -> AgentReport:
    known = {"version": "0.1.0", "system": "Linux", "started_ns": 1, "time_ns": time.time_ns()}
    spool = {"spool_epochs": 3, "spool_bytes": 300, "spool_limit_bytes": 1 << 20}
    return AgentReport(**{**known, **spool, **what})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    yield from Receiver().running()


def test_a_node_is_shown_with_what_its_agent_says(unit: Unit) -> None:
    transport = unit.transport("alpha", instance="a" * 16)
    transport.report_states({"disk": StreamState(1, "no such device")}, report(spool_trouble="no space left"))
    unit.store.set_tags("alpha", ["east", "roof"])
    unit.store.set_tags("beta", ["east"])
    with Client(unit.url, unit.tokens["viewer"]) as client:
        alpha, beta = client.nodes()
        assert (alpha["state"], alpha["report"]["spool_epochs"]) == ("present", 3)
        assert abs(alpha["report"]["ahead_ns"]) < 60 * 10**9
        assert beta["report"] is None
        shown = client.node("alpha")
        assert shown["states"]["disk"]["reason"] == "no such device"
        assert shown["report"]["spool_trouble"] == "no space left"
        assert set(shown["settings"].values()) == {None}
        assert client.groups() == [
            {"tag": "east", "nodes": 2, "silent": 0, "failed": 1, "spool_epochs": 3},
            {"tag": "roof", "nodes": 1, "silent": 0, "failed": 1, "spool_epochs": 3},
        ]
        with pytest.raises(ServerError, match=r"there is no node gamma; sojourn nodes lists"):
            client.node("gamma")
        with pytest.raises(ServerError, match="this needs the role admin"):
            client.set_node("alpha", silent_after_ns=0)
    transport.close()


def test_an_agent_of_an_earlier_version_is_taken_as_it_was(unit: Unit) -> None:
    with unit.client("alpha") as client:
        body = {"streams": {"disk": {"state": "running", "since_ns": 1}}}
        assert client.put("/api/v1/nodes/alpha/states", json=body).status_code == 200
        bad = {**body, "agent": {"version": "x" * 41}}
        refused = client.put("/api/v1/nodes/alpha/states", json=bad)
        assert (refused.status_code, "body.agent.version" in refused.text) == (422, True)


def test_a_silent_node_is_told_of_and_cleared_when_it_is_back(tmp_path: Path, receiver: Receiver) -> None:
    limits = {**vars(LIMITS), "silent_after_ns": 10**9, "webhook": receiver.url}
    running = running_unit(tmp_path / "data", type(LIMITS)(**limits))
    unit = next(running)
    unit.store.add([make_epoch(0)])
    with Client(unit.url, unit.tokens["admin"]) as client:
        eventually(lambda: client.events(only_open=True), "nobody noticed")
        assert client.node("alpha")["state"] == "silent"
        assert client.events(node="beta") == []
        eventually(lambda: receiver.taken, "nobody was told")
        assert receiver.taken[0]["node_event"]["node"] == "alpha"
        assert client.set_node("alpha", silent_after_ns=3_600 * 10**9)["silent_after_ns"] == 3_600 * 10**9
        unit.store.add([make_epoch(1)])
        eventually(lambda: client.nodes()[0]["state"] == "present", "it is not back")
        eventually(lambda: len(receiver.taken) == 2, "nobody was told of the end")
        assert client.events()[0]["cleared_ns"] is not None
        assert client.events(since_ns=time.time_ns() + 10**12) == []
    next(running, None)
