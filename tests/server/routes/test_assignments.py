"""Assignments are checked where they are made, with the function that the agent uses; states of streams are shown."""

from __future__ import annotations

import json

import pytest
from query_unit import Unit
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.core.errors import UsageError
from sojourn.node.agent.configuration import checked_stream, sketch_bytes

WRONG: dict[str, tuple[dict, str]] = {
    "interface is a number": ({"metric": "packets", "interface": 7, "sketch": "lda", "rows": 8}, "interface is 7"),
    "capture is true": ({"metric": "flow_bytes", "capture": True}, "capture is True; give a text"),
    "flows are a text": ({"metric": "flow_bytes", "capture": "x", "max_flows": "many"}, "give a whole number"),
    "flows are true": ({"metric": "flow_bytes", "capture": "x", "max_flows": True}, "give a whole number"),
    "promiscuous is a text": ({"metric": "rtt", "interface": "lo", "promiscuous": "yes"}, "give true or false"),
    "direction is unknown": ({"metric": "packets", "interface": "lo", "direction": "up"}, "give in or out or both"),
    "an object": ({"metric": "rtt", "interface": "lo", "options": "all"}, "cannot be written here"),
    "unknown option": ({"metric": "cpu", "speed": 3}, "speed"),
    "no interface": ({"metric": "packets", "sketch": "lda", "rows": 8}, "one interface or one capture"),
    "a filter that is none": ({"metric": "packets", "interface": "lo", "filter": "((("}, "filter|expected|end"),
    "method": ({"metric": "disk_io", "method": 3}, "tracepoint or system_calls"),
    "ring": ({"metric": "disk_io", "ring_kib": 1 << 30}, "64 to 1048576"),
    "buckets are a text": ({"metric": "cpu", "buckets": "many"}, "whole number"),
    "buckets are a list": ({"metric": "cpu", "buckets": ["1"]}, "whole number"),
    "2^28 buckets": ({"metric": "cpu", "buckets": 1 << 28}, "of memory, the limit is"),
    "2^29 buckets": ({"metric": "cpu", "buckets": 1 << 29}, "whole number"),
    "large lda": ({"metric": "packets", "interface": "lo", "sketch": "lda", "rows": 1 << 27}, "of memory"),
    "large table of flows": ({"metric": "flow_bytes", "capture": "x", "max_flows": 1 << 27}, "of memory"),
    "salted": ({"metric": "cpu", "salted": "yes"}, "true or false"),
    "epoch": ({"metric": "cpu", "epoch": "9e99d"}, "epoch"),
    "instances": ({"metric": "cpu", "instances": "all"}, "list of patterns"),
    "too many patterns": ({"metric": "cpu", "instances": ["x"] * 101}, "101 patterns"),
    "metric is a number": ({"metric": 3}, "metric is missing"),
    "sketch is a number": ({"metric": "cpu", "sketch": 3}, "no sketch"),
    "large plug-in": ({"metric": "of_a_plug_in", "buckets": 1 << 27}, "of memory"),
}


@pytest.mark.parametrize("table", WRONG)
def test_a_stream_that_could_never_be_recorded_is_refused_at_both_ends(shared_unit: Unit, table: str) -> None:
    configuration, words = WRONG[table]
    with pytest.raises(UsageError, match=words):
        checked_stream("s", configuration, where="assignment")
    with shared_unit.client("admin") as client:
        response = client.put("/api/v1/nodes/alpha/assignments/s", json={"configuration": configuration})
        assert response.status_code == 400
        assert "\n" not in response.json()["detail"]
        assert client.get("/api/v1/nodes/alpha/assignments").json()["streams"] == {}


@pytest.mark.parametrize(
    "configuration",
    [
        {"metric": "cpu"},
        {"metric": "disk_io", "method": "system_calls", "buckets": 20, "per_instance": 5, "bits": 16},
        {"metric": "packets", "interface": "lan0", "sketch": "lds", "rows": 4, "columns": 1000, "salted": False},
        {"metric": "rtt", "interface": "lan0", "filter": "tcp", "promiscuous": True, "max_flows": 1 << 16},
        {"metric": "of_a_plug_in", "path": "/x", "level": 0.5},
    ],
    ids=lambda configuration: configuration["metric"],
)
def test_what_can_be_recorded_can_be_assigned(unit: Unit, configuration: dict) -> None:
    with unit.client("admin") as client:
        response = client.put("/api/v1/nodes/alpha/assignments/s", json={"configuration": configuration})
    assert response.status_code == 200, response.text


def test_memory_follows_from_the_parameters_and_the_epochs_that_are_open_at_once() -> None:
    one = checked_stream("s", {"metric": "cpu", "buckets": 1000, "count_bits": 8, "bits": 1}, where="test")
    assert sketch_bytes(one.parameters) == 4 * 8 * 2 * 1000


def test_a_node_is_assigned_only_so_many_streams(unit: Unit) -> None:
    with unit.client("admin") as client:
        answers = [
            client.put(f"/api/v1/nodes/alpha/assignments/s{i}", json={"configuration": {"metric": "cpu"}})
            for i in range(101)
        ]
        assert [answer.status_code for answer in answers] == [200] * 100 + [400]
        again = client.put("/api/v1/nodes/alpha/assignments/s0", json={"configuration": {"metric": "memory"}})
        assert again.status_code == 200


def test_streams_that_fail_are_shown_with_their_reason(unit: Unit) -> None:
    failed = {"state": "failed", "since_ns": 7, "reason": "no such\x1b[31m interface"}
    states = {"disk": {"state": "running", "since_ns": 5, "reason": None}, "lan": failed}
    with unit.client("alpha") as node, unit.client("viewer") as viewer:
        node.put(
            "/api/v1/nodes/alpha/streams/disk",
            json={"metric": "disk_io", "unit": "operations", "granularity": "process"},
        )
        assert node.put("/api/v1/nodes/alpha/states", json={"streams": states}).status_code == 200
        shown = viewer.get("/api/v1/nodes/alpha/states").json()["streams"]
        assert shown == {**states, "lan": {**failed, "reason": "no such [31m interface"}}
        (listed,) = viewer.get("/api/v1/nodes").json()
        assert listed["failed"] == {"lan": "no such [31m interface"}
        options = ["--server", unit.url, "--token", unit.tokens["viewer"]]
        text = CliRunner().invoke(app, ["nodes", *options, "--format", "json"]).stdout
        assert json.loads(text)["nodes"][0]["failed"] == ["lan: no such [31m interface"]
        assert "lan: no" in CliRunner().invoke(app, ["nodes", *options]).stdout
        node.put("/api/v1/nodes/alpha/states", json={"streams": {}})
        assert viewer.get("/api/v1/nodes").json()[0]["failed"] == {}
