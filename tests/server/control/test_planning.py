"""Groups are planned again as their traffic grows, and former generations end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.errors import StoreError
from sojourn.core.estimates import FlowDelays, Reason, Unanswered
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Cut, Epoch, KernelClock
from sojourn.estimation.differences import Losses
from sojourn.estimation.lda import LdaAnswer
from sojourn.matching.clock.correction import TimedPairs
from sojourn.segments.answer import Interval, SegmentTotals
from sojourn.segments.fleet.answers import RunAnswer, SampledDelays
from sojourn.segments.fleet.point import parse_point
from sojourn.segments.fleet.replanning import Seen
from sojourn.segments.fleet.segment import FIRST_MEMORY, FleetSegment
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.control.planning import RecordedGroup, SegmentPlanner, StoredTraffic
from sojourn.server.control.segments import SegmentControl
from sojourn.server.control.states import StreamStateStore
from sojourn.server.door.limits import Limits
from sojourn.server.models import StreamState
from sojourn.server.runs.answering import row_of
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.runs import Pair, RunStore

SECOND = 10**9
PARAMETERS = BucketArrayParameters(buckets=64, per_instance=2, bits=48, count_bits=32)


class World:
    """A control unit with a planner, whose time can be moved on."""

    def __init__(self, store: EpochStore) -> None:
        self.store = store
        self.control = SegmentControl(store, AssignmentStore(store), Limits())
        self.woken: list[set[str]] = []
        self.traffic = StoredTraffic(store)
        self.planner = SegmentPlanner(self.control, self.traffic, self.woken.append)

    def create(self, **how: Any) -> None:
        points = {
            "sender": parse_point("a:e", default="out"),
            "receiver": parse_point("b:e", default="in"),
        }
        self.control.create(FleetSegment(name="ab", epoch_ns=SECOND, **points, **how))

    def store_epochs(self, stream: str, node: str, *, flows: int, packets: int, epochs: int = 10) -> None:
        """Epochs of a second each, one after the other, in which each flow has a part of the packets."""
        keys = tuple(ProcessKey("flow", number) for number in range(flows))
        ids = np.array([key_id(key) for key in keys], np.uint64)
        for number in range(epochs):
            times = number * SECOND + np.linspace(0, SECOND - 1, packets).astype(np.int64)
            rows = np.resize(ids, packets)
            sketch = BucketArray(PARAMETERS)
            sketch.record_batch(MeasurementBatch(rows, np.ones(packets, np.int64), times, times.view(np.uint64)))
            self.store.add([Epoch(node, stream, number, sketch, keys)])
        while self.store.list_keys():
            pass

    def store_cut(self, node: str, stream: str, *markers: int) -> None:
        """Epochs that end at markers, each after the one before."""
        for number, marker in enumerate(markers):
            sketch = BucketArray(PARAMETERS)
            sketch.record(1, 1, number * SECOND)
            cut = Cut(begins=markers[number - 1] if number else None, ends=marker, continues=number > 0)
            self.store.add([Epoch(node, stream, number, sketch, cut=cut)])

    def recorded(self) -> RecordedGroup:
        (recorded,) = self.control.groups()
        return recorded


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = open_store(tmp_path)
    made = World(store)
    yield made
    made.planner._process.close()
    store.close()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that stands still, and how many seconds it is moved on."""
    by, began = [0], time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: began + by[0] * SECOND)
    return by


def test_stored_epochs_tell_packets_and_flows(world: World) -> None:
    world.create(memory_bytes=32_000)
    assert world.traffic.seen(world.recorded()) is None, "nothing was seen yet"
    world.store_epochs("point:e:out:g1", "a", flows=300, packets=6_000)
    world.store_epochs("point:e:in:g1", "b", flows=250, packets=5_000)
    plan = world.recorded().generation.plan
    seen = world.traffic.seen(world.recorded())
    assert seen is not None
    assert seen.flows == 300
    assert seen.packets == pytest.approx(6_000, rel=0.01)
    assert (seen.loss, seen.common_share) == (plan.loss, plan.markers)


@pytest.mark.parametrize("by_s", [3600, 60, -60, -3600, 86_400])
def test_a_clock_that_is_set_is_no_time_without_packets(world: World, by_s: int) -> None:
    world.create(memory_bytes=32_000)
    for number in range(10):
        set_by = by_s * SECOND * (number >= 5)
        times = 10**18 + set_by + number * SECOND + np.linspace(0, SECOND - 1, 100).astype(np.int64)
        sketch = BucketArray(PARAMETERS)
        ids = times.view(np.uint64)
        sketch.record_batch(MeasurementBatch(np.ones(100, np.uint64), np.ones(100, np.int64), times, ids))
        clock = KernelClock(False, 0, 0, 10**17 + set_by, boot=3)
        world.store.add([Epoch("a", "point:e:out:g1", number, sketch, (), Cut(clock=clock))])
    seen = world.traffic.seen(world.recorded())
    assert seen is not None
    assert seen.packets == pytest.approx(100, rel=0.01)


def test_a_time_without_packets_is_counted(world: World) -> None:
    world.create(memory_bytes=32_000)
    for number in range(10):
        sketch = BucketArray(PARAMETERS)
        sketch.record(1, 1, number * SECOND + 90 * SECOND * (number >= 5))
        world.store.add([Epoch("a", "point:e:out:g1", number, sketch, ())])
    seen = world.traffic.seen(world.recorded())
    assert seen is None or seen.packets == 0


def test_a_group_is_planned_again_after_ten_epochs_and_not_before(world: World, later: list[int]) -> None:
    world.create(memory_bytes=32_000)
    world.store_epochs("point:e:out:g1", "a", flows=3000, packets=30_000)
    later[0] = 9
    world.planner.plan_due()
    assert world.recorded().generation.number == 1
    later[0] = 11
    world.planner.plan_due()
    following = world.recorded().generation
    assert following.number == 2
    assert following.plan.flows >= 3000
    assert following.memory_bytes == 32_000
    assert world.woken == [{"a", "b"}]
    world.store_epochs("point:e:out:g2", "a", flows=3000, packets=30_000)
    later[0] = 60
    world.planner.plan_due()
    assert world.recorded().generation.number == 2, "the plan suits the traffic now"


def test_an_error_is_turned_into_memory_once_the_traffic_is_known(world: World, later: list[int]) -> None:
    world.create(error=0.3, confidence=0.8)
    assert world.recorded().generation.memory_bytes == FIRST_MEMORY
    world.store_epochs("point:e:out:g1", "a", flows=20, packets=4_000)
    later[0] = 11
    world.planner.plan_due()
    sized = world.recorded()
    assert sized.generation.number == 2
    assert sized.generation.memory_bytes == sized.group.memory_bytes < FIRST_MEMORY
    (segment,) = world.control.segments.all()
    assert segment.planned_bytes == sized.generation.memory_bytes


def test_an_observer_may_know_of_loss(world: World, later: list[int]) -> None:
    class Lossy(StoredTraffic):
        def seen(self, recorded: RecordedGroup) -> Seen | None:
            assert recorded.generation.number == 1
            return Seen(flows=500, packets=50_000, loss=0.2, common_share=0.5)

    world.create(memory_bytes=64_000)
    planner = SegmentPlanner(world.control, Lossy(world.store), world.woken.append)
    later[0] = 11
    planner.plan_due()
    plan = world.recorded().generation.plan
    assert plan.loss >= 0.2
    assert plan.markers == 0.5


def test_a_group_that_cannot_be_planned_leaves_the_others_alone(world: World, later: list[int]) -> None:
    class Partly(StoredTraffic):
        def seen(self, recorded: RecordedGroup) -> Seen | None:
            if recorded.group.points[0].node == "a":
                raise StoreError("its epochs are damaged")
            return Seen(flows=500, packets=50_000, loss=0.2)

    world.create(memory_bytes=64_000)
    points = {"sender": parse_point("c:e", default="out"), "receiver": parse_point("d:e", default="in")}
    world.control.create(FleetSegment(name="cd", epoch_ns=SECOND, memory_bytes=64_000, **points))
    planner = SegmentPlanner(world.control, Partly(world.store), world.woken.append)
    later[0] = 11
    planner.plan_due()
    assert {one.group.points[0].node: one.generation.number for one in world.control.groups()} == {"a": 1, "c": 3}


def test_a_former_generation_ends_when_both_ends_have_a_run_of_the_new_one(world: World, later: list[int]) -> None:
    world.create(memory_bytes=32_000)
    world.store_epochs("point:e:out:g1", "a", flows=3000, packets=30_000)
    later[0] = 11
    world.planner.plan_due()
    assert len(world.control.segments.recorded()) == 4
    world.store_cut("a", "point:e:out:g2", 11, 22, 33)
    world.planner.work()
    assert len(world.control.segments.recorded()) == 4, "the other end has none yet"
    world.store_cut("b", "point:e:in:g2", 22)
    world.planner.work()
    assert len(world.control.segments.recorded()) == 4, "one common marker bounds no run"
    world.store_cut("b", "point:e:in:g2", 22, 33)
    world.planner.work()
    assert [one.generation.number for one in world.control.segments.recorded()] == [2, 2]
    assert world.woken[-1] == {"a", "b"}


def test_nothing_is_planned_anew_until_the_new_generation_records_at_both_ends(world: World, later: list[int]) -> None:
    world.create(memory_bytes=32_000)
    world.store_epochs("point:e:out:g1", "a", flows=3000, packets=30_000)
    later[0] = 11
    world.planner.plan_due()
    world.store_epochs("point:e:out:g2", "a", flows=30_000, packets=60_000)
    states, running = StreamStateStore(world.store), StreamState(state="running", since_ns=time.time_ns())
    states.replace("a", {"point:e:out:g1": running, "point:e:out:g2": running})
    failed = StreamState(state="failed", since_ns=time.time_ns(), reason="it is too large")
    states.replace("b", {"point:e:in:g1": running, "point:e:in:g2": failed})
    later[0] = 1000
    world.planner.work()
    assert [one.generation.number for one in world.control.segments.recorded()] == [1, 1, 2, 2]
    states.replace("b", {"point:e:in:g2": StreamState(state="running", since_ns=time.time_ns())})
    later[0] = 1006
    world.planner.work()
    assert [one.generation.number for one in world.control.segments.recorded()] == [2, 2]
    world.planner.plan_due()
    assert world.recorded().generation.number == 3


def test_answered_runs_tell_loss_and_what_points_share(world: World) -> None:
    world.create(memory_bytes=32_000)
    world.store_epochs("point:e:out:g1", "a", flows=3, packets=300)
    (pair,) = RunStore(world.store).pairs(
        [Pair(from_node="a", from_stream="point:e:out:g1", to_node="b", to_stream="point:e:in:g1")]
    )
    # One flow loses a tenth, one nothing, one is seen at the sender alone, and of one nothing is known.
    nothing, row = np.full(4, np.nan), np.zeros(4)
    flows = FlowDelays(
        np.arange(4, dtype=np.uint64),
        *(nothing,) * 4,
        row.astype(np.int64),
        np.array([100.0, 100.0, 200.0, np.nan]),
        np.array([10.0, 0.0, 200.0, np.nan]),
        [Reason.NO_USABLE_CELLS] * 4,
        "auto",
    )
    unknown = Unanswered(Reason.NOTHING_RECORDED)
    totals = SegmentTotals(400, 190, LdaAnswer(*(unknown,) * 4), Losses(210, 210, 210, 0))
    no_rows = np.empty(0, np.int64)
    sampled = SampledDelays(no_rows, no_rows, np.empty(0), np.zeros(4, bool), False)
    answer = RunAnswer(Interval(0, SECOND, totals, flows), sampled, TimedPairs(no_rows, no_rows))
    run = row_of(answer, size_bytes=64_000, follows=False)
    RunStore(world.store).add(pair.number, [run, run], until=(1, 1), now_ns=SECOND)
    plan, few = world.recorded().generation.plan, world.traffic.seen(world.recorded())
    assert few is not None
    assert (few.loss, few.common_share) == (plan.loss, plan.markers), "so few packets tell nothing"
    RunStore(world.store).add(pair.number, [run], until=(2, 2), now_ns=SECOND)
    seen = world.traffic.seen(world.recorded())
    assert seen is not None
    assert seen.loss == pytest.approx(10 / 200)
    assert seen.common_share == pytest.approx(190 / 400)
