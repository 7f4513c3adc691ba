"""Objectives and conditions: one text form that comes back as it went; errors say what, where and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import UsageError
from sojourn.objectives.condition import Condition, parse_condition
from sojourn.objectives.objective import Objective, describe, objective_of, read_objectives, table_of

SECOND = 10**9
EXAMPLES: dict[str, dict[str, Any]] = {
    "mqtt": {
        "tag": "intersection",
        "metric": "rtt",
        "interface": "eth0",
        "port": 1883,
        "require": ["mean < 100ms"],
        "error": "5%",
        "every": "1min",
    },
    "wan": {"segment": "wan", "require": ["p99 < 40ms", "loss < 0.1%"], "webhook": "https://alerts.example.net/x"},
    "backup": {"nodes": ["*"], "metric": "disk_io", "instances": ["backup*"], "require": ["rate < 500/s"]},
    "roof": {"collection": "roof", "require": ["mean < 200ms"]},
    "berlin-paris": {"path": "berlin > paris", "require": ["mean < +2ms against 7d"], "false_alarms": 0.01},
}


@pytest.mark.parametrize(
    ("text", "limit", "unit"),
    [
        ("mean < 100ms", 100e6, "ns"),
        ("p99<40 ms", 40e6, "ns"),
        ("loss < 0.1%", 0.001, "share"),
        ("rate < 500/s", 500.0, "number"),
        ("rate < 1.5k/s", 1500.0, "number"),
        ("rate < 10MB/s", 10e6, "bytes"),
        ("rate < 50%", 0.5, "share"),
        ("mean < 300MiB", 300 * 2**20, "bytes"),
        ("mean < +2ms against 7d", 2e6, "ns"),
    ],
)
def test_a_condition_is_read_in_its_units_and_written_so_that_it_is_read_again(
    text: str, limit: float, unit: str
) -> None:
    condition = parse_condition(text)
    assert (condition.limit, condition.unit) == (limit, unit)
    assert parse_condition(str(condition)) == condition


@given(
    st.sampled_from(["mean", "p50", "p999"]),
    st.integers(0, 10**15),
    st.booleans(),
    st.none() | st.integers(1, 10**6).map(lambda seconds: seconds * SECOND),
)
def test_every_limit_of_a_delay_survives_its_text(stat: Any, limit: int, above: bool, against_ns: int | None) -> None:
    condition = Condition(stat=stat, limit=float(limit), unit="ns", above=above, against_ns=against_ns)
    assert parse_condition(str(condition)) == condition


@given(st.floats(0, 1))
def test_every_share_survives_its_text(share: float) -> None:
    condition = Condition(stat="loss", limit=share, unit="share")
    assert parse_condition(str(condition)) == condition


@given(st.floats(0, 2.0**63), st.sampled_from(["mean", "rate"]))
def test_every_number_survives_its_text(limit: float, stat: Any) -> None:
    condition = Condition(stat=stat, limit=limit, unit="number")
    assert parse_condition(str(condition)) == condition


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "'fast' is no condition; write 'mean < 100ms'"),
        ("median < 3ms", "'median' is no statistic; use one of mean, rate"),
        ("mean < 3 parsecs", "'parsecs' is no unit; use ns, us, ms"),
        ("loss < 3ms", "loss is a share; write 'loss < 0.1%'"),
        ("mean < 5%", "the mean of values is no share"),
        ("rate < 500", "a rate, and nothing else, is of a second; write 'rate < 500/s'"),
        ("mean < 5ms/s", "a rate, and nothing else, is of a second"),
        ("mean < +2ms", "a change needs the time that it is counted from"),
        ("rate < +2/s against 1d", "changes are those of means"),
        ("mean < 1e250", "is more than can be measured; give at most 9.2e18 of the unit"),
        ("mean < +1e19 against 1d", "is more than can be measured"),
        ("loss < 1e999999999%", "'1e999999999' is not a percentage"),
        ("loss < 1.2.3%", "'1.2.3' is not a percentage; write it like 0.1%"),
    ],
)
def test_what_is_no_condition_is_said_in_a_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_condition(text)
    assert message in str(raised.value)
    assert text[:20] in str(raised.value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_objective_comes_back_from_its_table_and_from_json(name: str) -> None:
    objective = objective_of(name, EXAMPLES[name])
    assert objective_of(name, table_of(objective)) == objective
    assert objective_of(name, json.loads(json.dumps(table_of(objective)))) == objective


def test_objectives_are_read_from_a_file_in_its_order(tmp_path: Path) -> None:
    lines = [
        f"[objectives.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in EXAMPLES.items()
    ]
    (tmp_path / "o.toml").write_text("\n".join(lines))
    found = read_objectives(tmp_path / "o.toml")
    assert [one.name for one in found] == list(EXAMPLES)
    assert [one.subject for one in found] == ["metric", "segment", "metric", "collection", "path"]
    assert describe(found[0]) == "rtt of *:1883 > * at nodes tagged intersection"
    assert describe(found[1]) == "segment wan"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"require": []}, "it requires nothing, or too much"),
        ({"require": ["mean < 1ms", "mean < 1 ms"]}, "it requires the same twice"),
        ({"require": ["p99 < 1ms"]}, "a metric has no p99 (in 'p99 < 1ms'); use mean or rate"),
        ({"require": ["mean < +1ms against 1d"]}, "changes are those of segments and paths"),
        ({"require": ["quick"]}, "objective mqtt, require: 'quick' is no condition"),
        ({"tag": None}, "its nodes have a tag, or are named"),
        ({"nodes": ["*"]}, "its nodes have a tag, or are named"),
        ({"segment": "wan"}, "it is about metric and segment; give one of metric, segment, path, collection"),
        ({"metric": None}, "it does not say what it is about"),
        ({"every": "10ms"}, "it is checked every 10ms; give every = 1s to 1d"),
        ({"every": 60}, "every: expected a time"),
        ({"false_alarms": "90%"}, "false_alarms is 0.9; give 0.0001% to 20%"),
        ({"error": "much"}, "'much' is not a share"),
        ({"port": "1883"}, "port: expected a number"),
        ({"instances": ["a"]}, "port is a number from 1 to 65535, instead of instances"),
        ({"webhook": "ftp://x/y"}, "webhook is no address"),
        ({"webhook": "https:///y"}, "webhook is no address"),
        ({"colour": "red"}, "'colour' is unknown; use collection, direction"),
    ],
)
def test_what_is_no_objective_is_said_with_its_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        objective_of("mqtt", {**EXAMPLES["mqtt"], **change})
    assert message in str(raised.value)
    assert "objective mqtt" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[objectives", "not TOML"), ("a = 1", "'a' is unknown"), ("", "it holds no objective")],
)
def test_a_file_without_objectives_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "o.toml").write_text(text)
    with pytest.raises(UsageError, match=message) as raised:
        read_objectives(tmp_path / "o.toml")
    assert str(tmp_path / "o.toml") in str(raised.value)


def test_flows_to_a_port_are_named_by_their_answers_where_round_trips_are() -> None:
    table = {"nodes": ["*"], "port": 80, "require": ["mean < 1ms"], "metric": "rtt"}
    assert objective_of("x", table).patterns == ("*:80 > *",)
    table |= {"metric": "flow_bytes", "require": ["rate < 1MB/s"]}
    assert objective_of("x", table).patterns == ("* > *:80 *",)


def test_what_is_for_a_metric_is_refused_beside_a_segment() -> None:
    with pytest.raises(UsageError, match="port is for a metric"):
        objective_of("x", {**EXAMPLES["wan"], "port": 80})
    with pytest.raises(UsageError, match="cannot name an objective"):
        Objective(name="a/b", segment="s", require=(parse_condition("mean < 1ms"),))
