"""Objectives over HTTP, through a whole query unit: from a table to a violation, a webhook and its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from query_unit import LIMITS, Unit, running_unit
from receiving import Receiver

from objective_worlds import RttNode, flow, gamma
from sojourn.client.query_unit import Client
from sojourn.core.errors import ServerError
from waiting import eventually

MQTT = {"nodes": ["alpha"], "metric": "rtt", "port": 1883, "require": ["mean < 100ms"], "every": "1min"}
FLOWS = [flow(number) for number in range(3)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    yield from Receiver(refusals=1).running()


def test_a_violation_is_raised_told_once_and_cleared(unit: Unit, receiver: Receiver) -> None:
    node = RttNode(unit.store)
    with Client(unit.url, unit.tokens["admin"]) as client:
        made = client.create_objective("mqtt", **{**MQTT, "webhook": receiver.url})
        assert (made["state"], made["open_violations"]) == ("undecided", 0)
        assert made["judged_at"][0]["stream"] == "rtt", "the node's own stream suits, and is used"
        assert made["webhook"].endswith("/…")
        assert "secret" not in json.dumps(made)
        node.send(FLOWS, [gamma(10e6), gamma(10e6), gamma(600e6)])
        eventually(lambda: client.violations(only_open=True), "no violation was raised")
        (raised,) = client.violations()
        assert raised["instance"] == str(FLOWS[2])
        assert raised["evidence"]["low"] > 100e6
        assert client.objective("mqtt")["state"] == "violated"
        assert client.check_objective("mqtt")["verdicts"][0]["instance"] == str(FLOWS[2])
        eventually(lambda: receiver.taken, "nobody was told")
        node.send(FLOWS, gamma(10e6))
        eventually(lambda: not client.violations(only_open=True), "the violation was not cleared")
        eventually(lambda: len(receiver.taken) == 2, "nobody was told of the end")
        assert client.objectives()[0]["state"] == "met"
        assert client.check_objective("mqtt")["state"] == "met"
        assert client.violations(since_ns=raised["raised_ns"])[0]["cleared_by"] == "met"
        assert client.violations(objective="other") == []
    assert receiver.refused == 1, "the first was refused, and sent again"
    assert [body["event"] for body in receiver.taken] == ["raised", "cleared"]
    assert {body["violation"]["id"] for body in receiver.taken} == {raised["id"]}
    assert len({body["id"] for body in receiver.taken}) == 2


def test_nodes_by_tag_are_assigned_streams_that_go_with_the_objective_or_the_tag(unit: Unit) -> None:
    table = {**MQTT, "nodes": None, "tag": "junction", "interface": "eth0"}
    with Client(unit.url, unit.tokens["admin"]) as client:
        client.change_tags("alpha", add=["junction"])
        made = client.create_objective("mqtt", **table)
        (place,) = made["judged_at"]
        assert (place["stream"], place["own"], place["buckets"]) == ("objective:mqtt", True, 64)
        with unit.client() as http:
            assigned = http.get("/api/v1/nodes/alpha/assignments").json()["streams"]["objective:mqtt"]
        assert assigned["filter"] == "port 1883"
        assert assigned["instances"] == ["*:1883 > *"]
        assert assigned["epoch"] == "1min"
        client.change_tags("beta", add=["junction"])
        client.change_tags("alpha", remove=["junction"])
        eventually(
            lambda: [place["place"] for place in client.objective("mqtt")["judged_at"]] == ["beta/objective:mqtt"],
            "the tag was not followed",
        )
        with unit.client() as http:
            assert http.get("/api/v1/nodes/alpha/assignments").json()["streams"] == {}
            assert http.get("/api/v1/nodes/beta/assignments").json()["streams"].keys() == {"objective:mqtt"}
        client.remove_objective("mqtt")
        with unit.client() as http:
            assert http.get("/api/v1/nodes/beta/assignments").json()["streams"] == {}


def test_an_array_is_sized_for_the_instances_seen_and_again_when_they_outgrow_it(unit: Unit) -> None:
    few, many = [flow(number) for number in range(6)], [flow(number) for number in range(40)]
    with Client(unit.url, unit.tokens["admin"]) as client:
        unit.store.meet("alpha")
        client.create_objective("mqtt", **{**MQTT, "interface": "eth0"})
        node = RttNode(unit.store, stream="objective:mqtt")
        node.send(few, gamma(10e6))
        eventually(lambda: client.objective("mqtt")["judged_at"][0]["planned"] == 8, "it was not planned")
        small = client.objective("mqtt")["judged_at"][0]["buckets"]
        node.send(many, gamma(10e6))
        eventually(lambda: client.objective("mqtt")["judged_at"][0]["planned"] == 40, "it was not planned again")
        place = client.objective("mqtt")["judged_at"][0]
        assert small < place["buckets"]
        assert place["epoch_bytes"] > 0
        with unit.client() as http:
            assigned = http.get("/api/v1/nodes/alpha/assignments").json()["streams"]["objective:mqtt"]
        assert assigned["buckets"] == place["buckets"]


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"require": ["mean < 5"]}, 400, "rtt is measured in ns, not as in 'mean < 5'; give a time such as 100ms"),
        ({"require": ["rate < 5/s"]}, 400, "rtt is sampled, and has no rate"),
        ({"require": ["mean < soon"]}, 400, "is no condition"),
        ({"require": []}, 422, "require"),
        ({"colour": "red"}, 422, "colour"),
        ({"webhook": "gopher://x"}, 400, "webhook is no address"),
        ({"name": "a/b"}, 400, "cannot name an objective"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(shared_unit: Unit, change: dict[str, Any], status: int, text: str) -> None:
    with shared_unit.client() as http:
        answer = http.post("/api/v1/objectives", json={"name": "x", **MQTT, **change})
    assert (answer.status_code, text in answer.json()["detail"]) == (status, True), answer.text


def test_only_admins_change_objectives_and_only_those_that_there_are(shared_unit: Unit) -> None:
    body = {"name": "wan", "segment": "wan", "require": ["p99 < 40ms", "loss < 0.1%"]}
    with shared_unit.client("viewer") as viewer, shared_unit.client("alpha") as node, shared_unit.client() as admin:
        assert viewer.post("/api/v1/objectives", json=body).status_code == 403
        assert node.get("/api/v1/objectives").status_code == 403
        assert admin.post("/api/v1/objectives", json=body).status_code == 201
        assert admin.post("/api/v1/objectives", json=body).status_code == 409
        assert viewer.get("/api/v1/objectives/wan").json()["reason"] == "nothing was measured yet"
        assert viewer.post("/api/v1/objectives/wan/check").json()["state"] == "undecided"
        assert viewer.delete("/api/v1/objectives/wan").status_code == 403
        assert admin.delete("/api/v1/objectives/wan").status_code == 204
        assert viewer.get("/api/v1/objectives/wan").status_code == 404
        assert admin.delete("/api/v1/objectives/wan").status_code == 404
        assert viewer.get("/api/v1/violations", params={"open": True}).json() == []


def test_a_unit_that_is_started_again_tells_what_it_had_not(tmp_path: Path, receiver: Receiver) -> None:
    """The receiver is away while the violation is raised; the next start delivers it."""
    port = receiver.server.server_address[1]
    receiver.server.shutdown()
    receiver.server.server_close()
    running = running_unit(tmp_path, LIMITS)
    unit = next(running)
    with Client(unit.url, unit.tokens["admin"]) as client:
        node = RttNode(unit.store)
        client.create_objective("mqtt", **{**MQTT, "webhook": receiver.url})
        node.send(FLOWS, [gamma(10e6), gamma(10e6), gamma(600e6)])
        eventually(lambda: client.violations(only_open=True), "no violation was raised")
    next(running, None)
    later = Receiver()
    later.server.shutdown()
    later.server.server_close()
    later.server = ThreadingHTTPServer(("127.0.0.1", port), later.server.RequestHandlerClass)
    threading.Thread(target=later.server.serve_forever, daemon=True).start()
    running = running_unit(tmp_path, LIMITS)
    unit = next(running)
    eventually(lambda: later.taken, "nobody was told after the restart")
    with Client(unit.url, unit.tokens["admin"]) as client:
        assert len(client.violations(only_open=True)) == 1
    next(running, None)
    later.server.shutdown()
    later.server.server_close()
    assert [body["event"] for body in later.taken] == ["raised"]


def test_an_objective_of_a_name_that_is_none_says_so(shared_unit: Unit) -> None:
    with (
        Client(shared_unit.url, shared_unit.tokens["viewer"]) as client,
        pytest.raises(ServerError, match="no objective x"),
    ):
        client.check_objective("x")
