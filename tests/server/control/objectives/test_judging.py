"""Objectives on a real store: epochs are judged once, violations are raised and cleared by intervals, and survive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from objective_worlds import SECOND, RttNode, flow, gamma
from sojourn.core.arrays import MeasurementBatch
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.objectives.objective import Objective, objective_of
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.control.objectives.assigning import ObjectiveControl
from sojourn.server.control.objectives.due import MOST_BEHIND, DueWork
from sojourn.server.control.objectives.evaluating import Evaluated, Stretch, run_task
from sojourn.server.control.objectives.judging import judged, line_of
from sojourn.server.control.states import StreamStateStore
from sojourn.server.door.limits import Limits
from sojourn.server.models import StreamState
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import EpochStore, StreamRecord, open_store
from sojourn.store.notifications import NotificationStore
from sojourn.store.objectives import GONE, LEFT, REMOVED, Change, ObjectiveStore, Violation
from sojourn.store.segments import SegmentStore

FLOWS = [flow(number) for number in range(4)]
MQTT = {"nodes": ["*"], "metric": "rtt", "port": 1883, "require": ["mean < 100ms"], "every": "1min"}


class World:
    """A control unit whose evaluations are made when they are asked for."""

    def __init__(self, store: EpochStore) -> None:
        self.store = store
        self.assignments = AssignmentStore(store)
        self.control = ObjectiveControl(store, self.assignments, StreamStateStore(store), Limits())
        self.due = DueWork(store, self.control, SegmentStore(store), Limits())
        self.now_ns = 10**18

    @property
    def objectives(self) -> ObjectiveStore:
        return self.control.objectives

    def create(self, name: str = "mqtt", **table: Any) -> Objective:
        objective = objective_of(name, {**MQTT, **table})
        self.control.create(objective)
        return objective

    def look(self, objective: Objective) -> list[Change]:
        """Judge all that is due."""
        changes: list[Change] = []
        tasks = list(self.due.tasks(objective))
        for task in tasks:
            for evaluated in run_task(self.store.engine.url, task):
                self.now_ns += SECOND
                found = self.objectives.apply(
                    objective, judged(objective, evaluated, places=len(tasks)), now_ns=self.now_ns
                )
                assert found is not None
                changes += found
        return changes


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = open_store(tmp_path)
    yield World(store)
    store.close()


def events(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.event, change.violation.instance) for change in changes]


def test_a_slow_flow_is_raised_with_its_evidence_and_cleared_when_it_is_quick_again(world: World) -> None:
    node = RttNode(world.store)
    quick, slow = gamma(20e6), gamma(400e6)
    node.send(FLOWS, quick)
    mqtt = world.create()
    assert events(world.look(mqtt)) == []
    node.send(FLOWS, [quick, quick, slow, quick])
    (raised,) = world.look(mqtt)
    assert (raised.event, raised.violation.instance, raised.violation.node) == ("raised", str(FLOWS[2]), "alpha")
    evidence = raised.violation.evidence
    assert evidence["low"] > 100e6
    assert evidence["low"] <= node.truth[-1][2] <= evidence["high"]
    assert evidence["until_ns"] - evidence["from_ns"] < 60 * SECOND
    assert evidence["level"] > 0.999
    assert evidence["samples"] > 20
    node.send(FLOWS, [quick, quick, slow, quick])
    assert events(world.look(mqtt)) == [], "it is raised once"
    (open_one,) = world.objectives.violations(is_open=True)
    assert open_one.latest["until_ns"] > open_one.evidence["until_ns"]
    node.send(FLOWS, quick)
    (cleared,) = world.look(mqtt)
    assert (cleared.event, cleared.violation.id, cleared.violation.cleared_by) == ("cleared", open_one.id, "met")
    assert cleared.violation.latest["high"] < 100e6
    assert world.objectives.violations(is_open=True) == []


def test_an_epoch_is_judged_once_and_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    world, node = World(store), RttNode(store)
    mqtt = world.create()
    node.send(FLOWS, gamma(400e6))
    assert len(world.look(mqtt)) == 4
    assert list(world.due.tasks(mqtt)) == []
    store.close()
    again = open_store(tmp_path)
    later = World(again)
    assert list(later.due.tasks(mqtt)) == []
    assert len(later.objectives.violations(is_open=True)) == 4
    node.store = again
    node.send(FLOWS, gamma(10e6))
    assert [event for event, _ in events(later.look(mqtt))] == ["cleared"] * 4
    again.close()


def test_of_two_that_judge_one_epoch_the_second_changes_nothing(world: World) -> None:
    node = RttNode(world.store)
    mqtt = world.create()
    node.send(FLOWS, gamma(400e6))
    (task,) = world.due.tasks(mqtt)
    (evaluated,) = run_task(world.store.engine.url, task)
    found = judged(mqtt, evaluated, places=1)
    assert len(world.objectives.apply(mqtt, found, now_ns=1) or ()) == 4
    assert world.objectives.apply(mqtt, found, now_ns=2) is None
    assert len(world.objectives.violations()) == 4


def test_few_round_trips_decide_nothing(world: World) -> None:
    node = RttNode(world.store)
    mqtt = world.create()
    node.send(FLOWS, gamma(110e6, shape=1.0), samples=3)
    assert world.look(mqtt) == []
    (place,) = world.objectives.progress("mqtt").values()
    assert place.state == "undecided"
    assert place.summary["undecided"] == 4


def test_flows_to_other_ports_are_not_judged(world: World) -> None:
    node = RttNode(world.store)
    mqtt = world.create()
    others = [flow(number, port=443) for number in range(3)]
    node.send([*FLOWS, *others], [gamma(20e6)] * 4 + [gamma(900e6)] * 3)
    assert world.look(mqtt) == []
    (place,) = world.objectives.progress("mqtt").values()
    assert place.summary["instances"] == 4


def test_a_flow_that_ends_is_cleared_after_three_stretches_without_it(world: World) -> None:
    node = RttNode(world.store)
    mqtt = world.create()
    node.send(FLOWS, [gamma(20e6)] * 3 + [gamma(900e6)])
    assert len(world.look(mqtt)) == 1
    for number in range(4):
        node.send(FLOWS[:3], gamma(20e6))
        changes = world.look(mqtt)
        assert len(changes) == (number == 3), number
    assert changes[0].violation.cleared_by == GONE


@pytest.mark.parametrize("minutes", [60, -60, 1440, -1440])
def test_a_flow_has_ended_after_three_stretches_though_the_node_was_away(world: World, minutes: int) -> None:
    """Or its clock was set, on or back: what was not judged says nothing of it."""
    node = RttNode(world.store)
    mqtt = world.create()
    for _ in range(2):
        node.send(FLOWS, [gamma(20e6)] * 3 + [gamma(900e6)])
    world.look(mqtt)
    assert len(world.objectives.violations(is_open=True)) == 1
    sequence = node.epochs
    node = RttNode(world.store, begin_ns=node.begin_ns + (sequence + minutes) * 60 * SECOND, sequence=sequence)
    for number in range(4):
        node.send(FLOWS[:3], gamma(20e6))
        changes = world.look(mqtt)
        assert len(changes) == (number == 3), number
    assert changes[0].violation.cleared_by == GONE


def test_removing_an_objective_clears_what_is_open_and_withdraws_its_streams_alone(world: World) -> None:
    node = RttNode(world.store)
    world.assignments.assign("beta", "mine", {"metric": "rtt", "interface": "eth0", "epoch": "60s"})
    world.store.meet("beta")
    world.store.meet("gamma")
    mqtt = world.create(interface="eth0")
    assert set(world.assignments.of("beta")[1]) == {"mine", "objective:mqtt"}
    node.send(FLOWS, gamma(400e6))
    world.look(mqtt)
    nodes, changes = world.control.remove("mqtt")
    assert nodes == {"beta", "gamma"}
    assert {change.violation.cleared_by for change in changes} == {REMOVED}
    assert set(world.assignments.of("beta")[1]) == {"mine"}
    assert world.assignments.of("gamma")[1] == {}
    assert len(world.objectives.violations()) == 4, "violations stay"


def test_a_node_that_leaves_takes_its_violations_along_and_begins_anew(world: World) -> None:
    node = RttNode(world.store)
    world.store.set_tags("alpha", ["east"])
    mqtt = world.create(nodes=None, tag="east")
    node.send(FLOWS, gamma(400e6))
    assert len(world.look(mqtt)) == 4
    world.store.set_tags("alpha", [])
    world.control.settle(mqtt)
    assert {one.cleared_by for one in world.objectives.violations()} == {LEFT}
    assert world.objectives.progress("mqtt") == {}
    node.send(FLOWS, gamma(400e6))
    assert list(world.due.tasks(mqtt)) == []
    for _ in range(3):
        node.send(FLOWS, gamma(20e6))
    world.store.set_tags("alpha", ["east"])
    world.control.settle(mqtt)
    assert world.look(mqtt) == [], "what it was like in between is not looked up"


def test_a_stream_that_was_chosen_stays_though_its_measurements_come_late(world: World) -> None:
    """In each epoch the first one comes three seconds later than in the one before."""
    node = RttNode(world.store)
    for _ in range(4):
        node.send(FLOWS, gamma(20e6))
    mqtt = world.create(interface="eth0")
    assert [row.stream for row in world.objectives.streams("mqtt")] == ["rtt"]
    for _ in range(7):
        node.begin_ns += 3 * SECOND
        node.send(FLOWS, gamma(20e6))
        world.control.settle(mqtt)
    assert [row.stream for row in world.objectives.streams("mqtt")] == ["rtt"]


def test_what_was_found_while_a_node_left_is_dropped(world: World) -> None:
    node = RttNode(world.store)
    world.store.set_tags("alpha", ["east"])
    mqtt = world.create(nodes=None, tag="east")
    node.send(FLOWS, gamma(400e6))
    (task,) = world.due.tasks(mqtt)
    (evaluated,) = run_task(world.store.engine.url, task)
    world.store.set_tags("alpha", [])
    world.control.settle(mqtt)
    assert world.objectives.apply(mqtt, judged(mqtt, evaluated, places=1), now_ns=1) is None
    assert world.objectives.violations() == []
    assert world.objectives.progress("mqtt") == {}


def test_a_stream_that_ends_takes_its_violations_along(world: World) -> None:
    """The node goes on with a stream of the objective's own."""
    node = RttNode(world.store)
    mqtt = world.create(interface="eth0")
    node.send(FLOWS, gamma(400e6))
    assert len(world.look(mqtt)) == 4
    states = {"other": StreamState(state="running", since_ns=1)}
    StreamStateStore(world.store).replace("alpha", states)
    world.control.settle(mqtt)
    assert [row.stream for row in world.objectives.streams("mqtt")] == ["objective:mqtt"]
    assert world.objectives.violations(is_open=True) == []
    RttNode(world.store, stream="objective:mqtt", seed=2).send(FLOWS, gamma(400e6))
    assert len(world.look(mqtt)) == 4


def test_a_node_that_was_away_is_judged_from_its_latest_stretches_on(world: World) -> None:
    node = RttNode(world.store)
    mqtt = world.create()
    node.send(FLOWS, gamma(20e6))
    world.look(mqtt)
    for _ in range(MOST_BEHIND + 20):
        node.send(FLOWS, gamma(20e6), samples=2)
    (task,) = world.due.tasks(mqtt)
    assert len(task.stretches) == MOST_BEHIND
    assert task.stretches[-1].position == MOST_BEHIND + 20
    assert task.stretches[0].before == 0


def test_shorter_epochs_of_another_stream_are_judged_together(world: World) -> None:
    """Six epochs of ten seconds are one stretch of a minute."""
    node = RttNode(world.store, epoch_ns=10 * SECOND)
    for _ in range(6):
        node.send(FLOWS, gamma(20e6))
    mqtt = world.create()
    world.look(mqtt)
    for number in range(12):
        node.send(FLOWS, gamma(20e6))
        (task,) = list(world.due.tasks(mqtt)) or [None]
        assert (task is not None) == (number % 6 == 5), number
        if task is not None:
            (stretch,) = task.stretches
            assert (stretch.epochs, stretch.lasts_ns) == (6, 60 * SECOND)
            world.look(mqtt)


def test_rates_are_judged_each_second(world: World) -> None:
    """Counts of 60 s: 600 operations of each process are 10/s."""
    world.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process", "increments"))
    parameters = BucketArrayParameters(buckets=32, per_instance=3, bits=32, count_bits=24)
    keys = (ProcessKey("backup", 1), ProcessKey("backup2", 2), ProcessKey("idle", 3))

    def send(number: int, *counts: int) -> None:
        sketch, ids = BucketArray(parameters), np.repeat([np.uint64(key_id(key)) for key in keys], counts)
        begin = 1_700_000_040 * SECOND + number * 60 * SECOND
        times = begin + np.linspace(0, 60 * SECOND - 1, len(ids)).astype(np.int64)
        rows = MeasurementBatch(ids.astype(np.uint64), np.ones(len(ids), np.int64), times, times.view(np.uint64))
        sketch.record_batch(rows)
        seen = tuple(key for key, count in zip(keys, counts, strict=True) if count)
        world.store.add([Epoch("alpha", "disk", 2 + number, sketch, seen)])

    send(-2, 300, 1200, 6000)
    backup = objective_of(
        "backup", {"nodes": ["*"], "metric": "disk_io", "instances": ["backup*"], "require": ["rate < 10/s"]}
    )
    world.control.create(backup)
    assert world.look(backup) == [], "of one epoch nobody knows how long it was"
    send(-1, 300, 300, 6000)
    send(0, 300, 300, 6000)
    assert world.look(backup) == []
    send(1, 300, 1200, 6000)
    (raised,) = world.look(backup)
    assert raised.violation.instance == "backup2[2]"
    assert raised.violation.evidence["value"] == pytest.approx(20, rel=0.05)
    together = objective_of(
        "together", {**MQTT, "port": None, "metric": "disk_io", "group": "node", "require": ["rate < 100/s"]}
    )
    world.control.create(together)
    (whole,) = world.look(together)
    assert (whole.violation.evidence["value"], whole.violation.evidence["low"]) == (125.0, 125.0), "a total is exact"
    assert "rate 125/s (125/s … 125/s)" in line_of("raised", together, together.require[0], whole.violation.fields())
    send(2, 300, 0, 6000)
    (cleared,) = world.look(backup)
    assert cleared.violation.cleared_by == GONE, "a process that has ended does nothing any more"


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("back", [1, 2, 60, -60])
def test_a_clock_that_is_set_changes_no_rate(world: World, epochs: int, back: int) -> None:
    """Ten operations a second, in stretches of one or two epochs, of a node whose clock goes back over its own past."""
    world.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process", "increments"))
    table = {**MQTT, "port": None, "metric": "disk_io", "group": "node", "require": ["rate < 11/s", "rate > 9/s"]}
    key, length = ProcessKey("backup", 1), 60 * SECOND // epochs
    rate = objective_of("rate", table)
    world.control.create(rate)
    values: list[float] = []
    for number in range(40):
        slot = number if number < 21 else number - back
        sketch = BucketArray(BucketArrayParameters(buckets=4, per_instance=2, bits=32, count_bits=24))
        # The first time through lies inside the second.
        inset = SECOND // 2 if number < 21 else 0
        times = 1_700_000_040 * SECOND + slot * length + np.linspace(inset, length - inset - 1, 600 // epochs)
        ids = np.full(len(times), key_id(key), np.uint64)
        at = times.astype(np.int64)
        sketch.record_batch(MeasurementBatch(ids, np.ones(len(at), np.int64), at, at.view(np.uint64)))
        world.store.add([Epoch("alpha", "disk", number, sketch, (key,))])
        assert events(world.look(rate)) == [], number
        place = world.objectives.progress("rate").get("alpha/disk")
        values += [one["value"] for one in place.summary["worst"]] if place is not None else []
    assert values
    assert values == pytest.approx([10.0] * len(values), rel=0.01)


def test_what_cannot_be_answered_clears_nothing(world: World) -> None:
    node = RttNode(world.store)
    mqtt = world.create()
    node.send(FLOWS, gamma(400e6))
    world.look(mqtt)
    for number in range(5):
        nothing = Stretch(before=number, position=number + 1, from_ns=0, until_ns=2 * 10**18 + number, lasts_ns=1)
        failed = Evaluated(place="alpha/rtt", stretch=nothing, reason="it took too long")
        assert world.objectives.apply(mqtt, judged(mqtt, failed, places=1), now_ns=number) == []
    assert len(world.objectives.violations(is_open=True)) == 4


def test_a_violation_is_forgotten_after_a_while_once_it_is_cleared(world: World) -> None:
    node = RttNode(world.store)
    mqtt = world.create(webhook="http://127.0.0.1:9/x")
    node.send(FLOWS, gamma(400e6))
    world.look(mqtt)
    assert world.objectives.remove_some_before(2 * 10**18, limit=100) == 0, "they are open"
    node.send(FLOWS, gamma(10e6))
    world.look(mqtt)
    assert NotificationStore(world.store).waiting() == 8
    assert world.objectives.remove_some_before(10**18, limit=100) == 0
    assert world.objectives.remove_some_before(2 * 10**18, limit=3) == 3
    assert world.objectives.remove_some_before(2 * 10**18, limit=100) == 1
    assert NotificationStore(world.store).waiting() == 0
    assert list[Violation]() == world.objectives.violations()
