"""Objectives about segments, paths and collections: judged by the answers that users get, against what is true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from query_unit import Unit, running_unit
from sink_packets import FIELD, as_json, closed, rows_of
from tests.segments.fleet.fleet_world import SECOND, record, truth_between
from tests.segments.fleet.test_answers import in_order

from collection_worlds import simulated
from sojourn.client.query_unit import Client
from sojourn.core.errors import InputError
from sojourn.lab.two_point import LOST, make_two_point_world
from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.segments.plan import plan_point
from sojourn.server.control.objectives.evaluating import way_along
from waiting import eventually

MEMORY = 32_000
PLAN = plan_point(MEMORY, flows=100, loss=0.01)
DAY_NS = 86_400 * SECOND


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("data"))


@pytest.fixture
def admin(unit: Unit) -> Iterator[Client]:
    with Client(unit.url, unit.tokens["admin"]) as client:
        yield client


def judged_at(client: Client, name: str) -> list[dict[str, Any]]:
    places: list[dict[str, Any]] = client.objective(name)["judged_at"]
    return places


def test_a_segment_is_judged_by_its_runs(unit: Unit, admin: Client) -> None:
    """Between two interfaces of one node, whose clock is one: the mean and the loss are those of the packets."""
    world = in_order(make_two_point_world(seed=21, flows=10, packets=6_000, duration_ns=30 * SECOND, load=0.9))
    admin.create_segment("queue", "alpha:eth0", "alpha:eth1", memory_bytes=MEMORY, epoch_ns=5 * SECOND)
    delay = truth_between(world, 0, 2**62)[1]
    mean_ns = float(delay[delay != LOST].mean())
    table = {"segment": "que*", "every": "5s"}
    kept = [f"mean < {20 * mean_ns:.0f}ns", "loss < 60%", "p50 < 1d"]
    admin.create_objective("kept", **{**table, "require": kept})
    admin.create_objective("broken", **{**table, "require": [f"mean < {mean_ns / 20:.0f}ns", "p50 < 1ns"]})
    for batch, stream in ((world.sender, "point:eth0:out:g1"), (world.receiver, "point:eth1:in:g1")):
        unit.store.add([replace(one, node="alpha", stream=stream) for one in record(batch, PLAN, world)])
    eventually(lambda: len(admin.violations(objective="broken", only_open=True)) == 2, "no violation was raised")
    eventually(lambda: judged_at(admin, "kept"), "it was not judged")
    eventually(lambda: admin.objective("kept")["state"] == "met", lambda: str(judged_at(admin, "kept")))
    (violation, _) = sorted(admin.violations(objective="broken"), key=lambda one: one["condition"])
    assert violation["instance"] == "queue"
    span = violation["latest"]["from_ns"], violation["latest"]["until_ns"]
    inside = truth_between(world, *span)[1]
    evidence = violation["latest"]
    assert evidence["low"] * 0.98 <= inside[inside != LOST].mean() <= evidence["high"] * 1.02
    assert evidence["samples"] > 100
    admin.remove_segment("queue")
    cleared = "it stays open for ever"
    eventually(lambda: not admin.violations(objective="broken", only_open=True), cleared)
    assert {one["cleared_by"] for one in admin.violations(objective="broken")} == {"no longer judged"}
    assert judged_at(admin, "broken") == []


def probed(segment: Segment, start_ns: int, mean_ns: float, *, lost: int = 0) -> SegmentMeasurement:
    return SegmentMeasurement(
        segment=segment,
        dscp=0,
        interval=start_ns // SECOND,
        start_ns=start_ns,
        end_ns=start_ns + SECOND,
        packets=1000,
        lost=lost,
        mean_ns=mean_ns,
        low_ns=0.99 * mean_ns,
        high_ns=1.01 * mean_ns,
        std_ns=0.1 * mean_ns,
        method="probes",
    )


def test_a_path_names_the_segment_that_is_slower_than_a_week_ago(admin: Client) -> None:
    first, second = Segment.between("berlin", "metz"), Segment.between("metz", "paris")
    now, week = 1_700_000_000 * SECOND, 7 * DAY_NS
    rows = [probed(one, now - week + k * SECOND, 10e6) for one in (first, second) for k in range(5)]
    rows += [probed(first, now + k * SECOND, 10.5e6) for k in range(5)]
    rows += [probed(second, now + k * SECOND, 14e6, lost=20) for k in range(5)]
    admin.add_measurements(rows)
    require = ["mean < +2ms against 7d", "loss < 1%"]
    admin.create_objective("route", path="berlin > paris", every="5s", require=require)
    eventually(lambda: len(admin.violations(objective="route")) == 2, lambda: str(admin.objective("route")))
    found = {one["condition"]: one for one in admin.violations(objective="route")}
    assert {one["instance"] for one in found.values()} == {"metz>paris"}
    slower = found["mean < +2ms against 7d"]["evidence"]
    assert slower["value"] == pytest.approx(4e6)
    assert 3e6 < slower["low"] < slower["high"] < 5e6
    (place,) = judged_at(admin, "route")
    assert (place["violated"], place["met"]) == (2, 2)
    admin.create_objective("lone", segment="berlin>metz", every="5s", require=["mean < 5ms"])
    eventually(lambda: admin.violations(objective="lone"), lambda: str(admin.objective("lone")))


def test_a_prober_whose_clock_is_ahead_keeps_no_segment_from_being_judged(admin: Client) -> None:
    one, other = Segment.between("oslo", "bergen"), Segment.between("rome", "turin")
    begin = 1_700_000_000 * SECOND
    admin.add_measurements([probed(other, begin + 40_000 * DAY_NS, 10e6)])
    admin.create_objective("ahead", segment="oslo>bergen", every="5s", require=["mean < 5ms"])
    for number, mean_ns in enumerate((10e6, 1e6)):
        rows = [probed(one, begin + (5 * number + k) * SECOND, mean_ns) for k in range(5)]
        admin.add_measurements(rows)
        eventually(lambda: len(admin.violations(objective="ahead", only_open=True)) == 1 - number)  # noqa: B023
    (violation,) = admin.violations(objective="ahead")
    assert violation["cleared_by"] == "met"


def test_a_way_is_found_by_its_ends_if_there_is_one() -> None:
    links = [Segment.between("a", "b"), Segment.between("b", "x", "c"), Segment.between("c", "b")]
    inside = Segment.inside("a", "b", "x")
    assert way_along([*links, inside], ["a", "c"]) == [links[0], links[1], inside]
    with pytest.raises(InputError, match="no way is measured along it"):
        way_along(links, ["c", "a"])
    two = [*links, Segment.between("a", "d"), Segment.between("d", "c")]
    with pytest.raises(InputError, match="several ways are measured along it; name more hops"):
        way_along(two, ["a", "c"])
    assert way_along(two, ["a", "d", "c"]) == two[3:]


def test_each_node_of_a_collection_is_judged_by_what_packets_waited_there(unit: Unit, admin: Client) -> None:
    """Against the simulation: a limit far above all waits is met at every node, one far below is violated."""
    trace = simulated(20, 7, packets=6)[0]
    with unit.client("alpha") as client:
        packets = [as_json(row) for row in rows_of(trace)]
        assert client.post(f"{FIELD}/packets", json=packets).status_code == 200
        closed(client)
    every = "30s"
    admin.create_objective("calm", collection="field", every=every, require=["mean < 1h"])
    admin.create_objective("none", collection="alpha/field", every=every, require=["mean < 1ns"])
    eventually(lambda: judged_at(admin, "calm"), lambda: str(admin.objective("calm")))
    (calm,) = judged_at(admin, "calm")
    assert calm["instances"] >= 5
    assert calm["met"] == calm["instances"]
    eventually(lambda: admin.violations(objective="none"), lambda: str(admin.objective("none")))
    raised = admin.violations(objective="none")
    assert all(one["evidence"]["low"] > 1 for one in raised)
    assert all(one["evidence"]["method"] == "tomography" for one in raised)
