"""Points of a fleet's segments: their texts, their streams' names and what their nodes are assigned."""

from __future__ import annotations

import pytest

from sojourn.core.errors import UsageError
from sojourn.core.keys import is_name
from sojourn.node.agent.configuration import checked_stream
from sojourn.segments.fleet.point import Point, canonical_filter, parse_point, stream_direction
from sojourn.segments.plan import plan_point


@pytest.mark.parametrize(
    ("text", "default", "point"),
    [
        ("a:eth0", "out", Point(node="a", interface="eth0", direction="out")),
        ("a:eth0", "in", Point(node="a", interface="eth0", direction="in")),
        ("a:eth0:in", "out", Point(node="a", interface="eth0", direction="in")),
        ("db-1.example.org:br-lan.7:out", "in", Point(node="db-1.example.org", interface="br-lan.7", direction="out")),
        ("site:a:eth0:out", "in", Point(node="site:a", interface="eth0", direction="out")),
        ("a:in:in", "out", Point(node="a", interface="in", direction="in")),
        ("Gate 7:wlan0", "out", Point(node="Gate 7", interface="wlan0", direction="out")),
    ],
)
def test_a_point_is_read_from_its_text(text: str, default: str, point: Point) -> None:
    assert parse_point(text, default=default) == point  # type: ignore[arg-type]
    assert parse_point(str(point), default="out") == point


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", ":", "a:", ":eth0", "a:in", "a:eth 0", "a:averyveryverylonginterface", "a/b:eth0", "..:eth0"),
        *("a:eth0:sideways", "a:eth0:", "a:in:eth0"),
    ],
)
def test_what_names_no_point_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(UsageError, match=r"--from: .*; "):
        parse_point(text, default="out", where="--from")


def test_a_stream_is_named_by_its_point_and_generation_alone() -> None:
    plain = parse_point("a:eth0", default="out")
    filtered = parse_point("a:eth0", default="out", filter="tcp  port 80 ")
    assert plain.stream(1) == "point:eth0:out:g1"
    assert filtered.stream(12).startswith("point:eth0:out:")
    assert filtered.stream(12).endswith(":g12")
    assert len(filtered.stream(12).split(":")[3]) == 8
    other = parse_point("a:eth0", default="out", filter="tcp port 81")
    names = {point.stream(g) for point in (plain, plain.reverse, filtered, other) for g in (1, 2)}
    assert len(names) == 8
    assert all(is_name(name) and stream_direction(name) for name in names)
    assert parse_point("b:eth0", default="out", filter="tcp port 80").stream(12) == filtered.stream(12)


@pytest.mark.parametrize("name", ["disk", "point:eth0:out", "point:eth0:both:g1", "point:eth0:out:xyz:g1", "router:1"])
def test_other_streams_are_told_apart(name: str) -> None:
    assert stream_direction(name) is None


def test_a_filter_is_checked_and_compared_without_its_spaces() -> None:
    assert canonical_filter("  ") == ""
    assert canonical_filter("udp\n port 53") == "udp port 53"
    with pytest.raises(UsageError, match="prt"):
        parse_point("a:eth0", default="out", filter="tcp prt 80")
    with pytest.raises(UsageError, match="exceed"):
        canonical_filter("tcp or " * 500 + "udp")


@pytest.mark.parametrize(
    ("epoch_ns", "text"), [(10 * 10**9, "10s"), (1_500_000_000, "1500ms"), (10**9 + 1, "1000000001ns")]
)
def test_the_assignment_is_what_an_agent_takes(epoch_ns: int, text: str) -> None:
    point = parse_point("a:eth0", default="out", filter="tcp port 80")
    plan = plan_point(16_000, flows=123, loss=0.01, markers=0.5)
    table = point.table(plan, epoch_ns)
    assert table["epoch"] == text
    stream = checked_stream(point.stream(1), table, where="test")
    assert stream.plan == plan
    assert stream.parameters == plan.stream
    assert stream.epoch_ns == epoch_ns
    assert stream.flows == 123
    assert not stream.salted
    assert stream.options == {"interface": "eth0", "direction": "out", "filter": "tcp port 80"}
    assert "filter" not in parse_point("a:eth0", default="out").table(plan, epoch_ns)
