"""The control unit's segments: what nodes are assigned as segments come, change and go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from sojourn.core.errors import UsageError
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.node.agent.configuration import checked_stream
from sojourn.segments.fleet.point import parse_point
from sojourn.segments.fleet.replanning import Seen, replanned
from sojourn.segments.fleet.segment import FleetSegment
from sojourn.segments.plan import SegmentPlan
from sojourn.server.control.assignments import ASSIGNMENTS, AssignmentStore
from sojourn.server.control.segments import NoSegmentError, SegmentControl, SegmentExistsError
from sojourn.server.door.limits import Limits
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.runs import RunRow, RunStore
from sojourn.store.segments import Recording, pair_of

SECOND = 10**9
NOTHING = dict.fromkeys(("lost", "raw_mean_ns", "least_raw_ns", "raw_p99_ns"))
COUNTS = dict.fromkeys(("start_ns", "end_ns", "sent", "received", "flows", "size_bytes"), 0)
RUN: dict[str, Any] = {**NOTHING, **COUNTS, "follows": False, "clock": b"", "data": b""}


class World:
    """A control unit on a store."""

    def __init__(self, store: EpochStore, limits: Limits) -> None:
        self.store = store
        self.assignments = AssignmentStore(store)
        self.control = SegmentControl(store, self.assignments, limits)

    def create(self, name: str, sender: str, receiver: str, *, filter: str = "", **how: Any) -> set[str]:  # noqa: A002
        points = {
            "sender": parse_point(sender, default="out", filter=filter),
            "receiver": parse_point(receiver, default="in", filter=filter),
        }
        return self.control.create(FleetSegment(name=name, **points, **({"memory_bytes": 32_000} | how)))

    def assigned(self, node: str) -> dict[str, dict[str, object]]:
        return self.assignments.of(node)[1]

    def streams(self) -> dict[str, list[str]]:
        return {node: sorted(self.assigned(node)) for node in "abcd" if self.assigned(node)}

    def plan(self, node: str, stream: str) -> SegmentPlan:
        return SegmentPlan.from_text(str(self.assigned(node)[stream]["plan"]))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = open_store(tmp_path)
    yield World(store, Limits(node_points=3, segments=5))
    store.close()


def test_a_segment_is_recorded_at_both_ends_under_one_plan(world: World) -> None:
    assert world.create("ab", "a:eth0", "b:eth1", filter="udp") == {"a", "b"}
    (ours,), (theirs,) = world.assigned("a").values(), world.assigned("b").values()
    assert ours["plan"] == theirs["plan"]
    assert (ours["interface"], ours["direction"], ours["filter"]) == ("eth0", "out", "udp")
    assert (theirs["interface"], theirs["direction"], theirs["epoch"]) == ("eth1", "in", "10s")
    for node in "ab":
        for stream, table in world.assigned(node).items():
            assert checked_stream(stream, table, where="test").plan is not None


def test_three_segments_of_three_points_are_three_recordings(world: World) -> None:
    world.create("ab", "a:e:out", "b:e:in")
    assert world.create("bc", "b:e:in", "c:e:in") == {"c"}, "nothing changes for the others"
    assert world.create("ac", "a:e:out", "c:e:in") == set()
    assert world.streams() == {"a": ["point:e:out:g1"], "b": ["point:e:in:g1"], "c": ["point:e:in:g1"]}


def test_a_segment_that_needs_more_gives_its_whole_group_a_new_generation(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    changed = world.create("bc", "b:e:in", "c:e", memory_bytes=64_000, epoch_ns=5 * SECOND)
    assert changed == {"a", "b", "c"}
    assert world.streams() == {
        "a": ["point:e:out:g1", "point:e:out:g2"],
        "b": ["point:e:in:g1", "point:e:in:g2"],
        "c": ["point:e:in:g2"],
    }
    assert world.assigned("a")["point:e:out:g2"]["epoch"] == "5s"
    assert world.plan("a", "point:e:out:g2").memory_bits > 1.5 * world.plan("a", "point:e:out:g1").memory_bits


def test_two_groups_that_a_segment_joins_become_one(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    world.create("cd", "c:e", "d:e")
    assert world.streams()["c"] == ["point:e:out:g2"]
    assert world.create("bc", "b:e:in", "c:e:out") == {"c", "d"}, "those of the first keep their generation"
    assert world.streams()["d"] == ["point:e:in:g1", "point:e:in:g2"]


def test_a_change_on_the_way_there_leaves_the_way_back_alone(world: World) -> None:
    world.create("back", "b:e:out", "a:e:in", memory_bytes=64_000)
    world.create("ab", "a:e", "b:e", both_directions=True)
    before = world.streams()
    assert before["a"] == ["point:e:in:g1", "point:e:out:g2"], "the way back shares the larger plan"
    assert world.create("ac", "a:e:out", "c:e:in") == {"c"}
    assert world.control.remove("ac") == {"c"}
    assert world.streams() == before


def test_another_filter_is_another_recording_of_the_same_point(world: World) -> None:
    world.create("all", "a:e", "b:e")
    world.create("web", "a:e", "b:e", filter="tcp port 80")
    assert [len(streams) for streams in world.streams().values()] == [2, 2]


def test_removing_a_segment_withdraws_what_no_other_needs(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    world.create("bc", "b:e:in", "c:e")
    assert world.control.remove("ab") == {"a"}
    assert world.streams() == {"b": ["point:e:in:g1"], "c": ["point:e:in:g1"]}
    assert world.control.remove("bc") == {"b", "c"}
    assert world.streams() == {}
    with pytest.raises(NoSegmentError, match="there is no segment bc"):
        world.control.remove("bc")


def test_numbers_of_generations_are_never_given_again(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    world.control.remove("ab")
    world.create("ab", "a:e", "b:e")
    assert world.streams()["a"] == ["point:e:out:g2"]


@dataclass
class Told:
    """What is told of recordings: which nodes' new ones can be compared, and since when each node records them.

    All record their former ones but those that are `failed`.
    """

    joined: set[tuple[str, str]] = field(default_factory=set)
    since_ns: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def are_joined(self, first: Recording, second: Recording) -> bool:
        self.asked += [first.stream, second.stream]
        return (first.point.node, second.point.node) in self.joined

    def began_ns(self, recording: Recording) -> int | None:
        node = recording.point.node
        return self.since_ns.get(node) if recording.is_current else None if node in self.failed else 0


def test_a_new_generation_takes_over_without_a_gap(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    world.create("bc", "b:e:in", "c:e")
    world.create("more", "b:e:in", "c:e", memory_bytes=64_000)
    told = Told()
    assert world.control.finish_taking_over(told) == set()
    assert told.asked
    assert all(stream.endswith(":g2") for stream in told.asked), "the new ones are compared"
    told.joined.add(("a", "b"))
    assert world.control.finish_taking_over(told) == {"a"}, "b has to be joined with c as well"
    told.joined.add(("b", "c"))
    assert world.control.finish_taking_over(told) == {"b", "c"}
    assert world.streams() == {"a": ["point:e:out:g2"], "b": ["point:e:in:g2"], "c": ["point:e:in:g2"]}
    assert world.control.finish_taking_over(told) == set()


def test_a_point_that_joins_a_group_and_cannot_be_recorded_keeps_no_former_generation(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    world.create("typo", "c:no-such", "b:e", memory_bytes=64_000)
    assert world.control.finish_taking_over(Told()) == set()
    told = Told(joined={("a", "b")}, since_ns={"b": 0})
    assert world.control.finish_taking_over(told) == {"a", "b"}
    assert world.streams() == {"a": ["point:e:out:g2"], "b": ["point:e:in:g2"], "c": ["point:no-such:out:g2"]}
    assert not any(recorded.is_taking_over for recorded in world.control.groups()), "it can be planned again"


def test_a_point_that_could_not_be_recorded_before_keeps_no_former_generation(world: World) -> None:
    world.create("typo", "c:no-such", "b:e")
    world.create("ab", "a:e", "b:e", memory_bytes=64_000)
    told = Told(failed={"c"}, since_ns={"a": 0})
    assert world.control.finish_taking_over(told) == set(), "b does not record the new one yet"
    told.since_ns["b"] = 0
    assert world.control.finish_taking_over(told) == {"b"}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time, which passes when it is told to."""
    now = [time.time_ns()]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    return now


def test_a_former_generation_ends_where_no_packet_joins_five_epochs_after_the_new_one_began(
    world: World, now: list[int]
) -> None:
    world.create("ab", "a:e", "b:e")
    world.create("ab2", "a:e", "b:e", epoch_ns=5 * SECOND)
    told = Told(since_ns={"a": now[0]})
    now[0] += 1000 * SECOND
    assert world.control.finish_taking_over(told) == set(), "b does not record the new one"
    told.since_ns["b"] = now[0]
    now[0] += 24 * SECOND
    assert world.control.finish_taking_over(told) == set()
    now[0] += SECOND
    assert world.control.finish_taking_over(told) == {"a", "b"}


def test_a_generation_that_never_began_is_not_recorded_beside_the_next(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    world.create("ab2", "a:e", "b:e", memory_bytes=64_000)
    world.create("ab3", "a:e", "b:e", memory_bytes=96_000)
    told = Told()
    assert world.control.finish_taking_over(told) == {"a", "b"}
    assert world.streams()["a"] == ["point:e:out:g1", "point:e:out:g3"]
    told.joined.add(("a", "b"))
    assert world.control.finish_taking_over(told) == {"a", "b"}
    assert world.streams()["a"] == ["point:e:out:g3"]


def test_a_group_goes_on_under_another_plan(world: World) -> None:
    world.create("ab", "a:e", "b:e", memory_bytes=None, error=0.05, confidence=0.95)
    (recorded,) = world.control.groups()
    plan = replanned(recorded.generation.plan, Seen(flows=9000, packets=10**6, loss=0.02), memory_bytes=500_000)
    assert plan is not None
    assert world.control.replan(recorded, plan, {"ab": 500_000}) == {"a", "b"}
    assert world.plan("a", "point:e:out:g2") == plan
    (following,) = world.control.groups()
    assert following.group.memory_bytes == following.generation.memory_bytes == 500_000
    assert world.control.replan(recorded, plan, {}) == set(), "it has changed meanwhile"
    assert world.create("ac", "a:e", "c:e") == {"c"}, "the plan stays while nobody needs more"
    assert world.plan("c", "point:e:in:g2") == plan


def test_what_is_known_of_the_traffic_outlives_a_change_of_memory(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    (recorded,) = world.control.groups()
    plan = replanned(recorded.generation.plan, Seen(flows=9000, packets=10**6, loss=0.02))
    assert plan is not None
    world.control.replan(recorded, plan, {})
    world.create("bc", "b:e:in", "c:e", memory_bytes=256_000)
    assert world.plan("c", "point:e:in:g3").flows == plan.flows


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"memory_bytes": 100}, "bytes are too few; give at least"),
        ({"memory_bytes": 60_000_000}, "the limit is"),
        ({"sender": "a:e4", "receiver": "b:x"}, "a has 3 points already"),
    ],
)
def test_what_cannot_be_assigned_changes_nothing(world: World, how: dict[str, Any], words: str) -> None:
    for number in (1, 2, 3):
        world.create(f"s{number}", f"a:e{number}", "b:e")
    before = world.streams()
    with pytest.raises(UsageError, match=words):
        world.create(**({"name": "x", "sender": "a:e1", "receiver": "c:e"} | how))
    assert world.streams() == before
    assert [one.name for one in world.control.segments.all()] == ["s1", "s2", "s3"]


def test_names_are_given_once_and_segments_are_bounded(world: World) -> None:
    world.create("s0", "a:e", "b:e")
    with pytest.raises(SegmentExistsError, match="there is a segment s0 already"):
        world.create("s0", "a:e", "c:e")
    for number in range(1, 5):
        world.create(f"s{number}", "a:e", "b:e")
    with pytest.raises(UsageError, match="5 segments already"):
        world.create("s5", "a:e", "b:e")


def test_two_points_are_passed_in_one_order(world: World) -> None:
    world.create("ab", "a:e", "b:e", both_directions=True)
    before = world.streams()
    with pytest.raises(SegmentExistsError, match="after it in segment ab; remove ab first, if that one is wrong"):
        world.create("wrong", "b:e:in", "a:e:out")
    with pytest.raises(SegmentExistsError, match="in segment ab"):
        world.create("wrong", "a:e:in", "b:e:out")
    assert world.streams() == before
    world.create("other", "b:e:in", "a:f:out")
    world.create("through", "b:f:in", "a:e:out")


def test_a_segment_is_kept_as_it_was_asked_for(world: World) -> None:
    world.create("ab", "a:e", "b:x:out", filter="udp", memory_bytes=None, error=0.1, confidence=0.9)
    kept = world.control.segments.named("ab")
    assert kept is not None
    assert kept.created_ns > 0
    assert replace(kept, created_ns=0) == FleetSegment(
        name="ab",
        sender=parse_point("a:e:out", default="out", filter="udp"),
        receiver=parse_point("b:x:out", default="in", filter="udp"),
        error=0.1,
        confidence=0.9,
    )


def test_what_has_ended_is_forgotten_after_a_while(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    world.create("cd", "c:e", "d:e")
    world.control.remove("ab")
    segments = world.control.segments
    points = [parse_point("a:e", default="out"), parse_point("c:e", default="out")]
    assert [one.generation.number for one in segments.recordings_of(points)] == [2, 1]
    assert segments.remove_some_before(0, limit=10) == 0
    later = time.time_ns() + SECOND
    assert segments.remove_some_before(later, limit=1) == 1
    assert segments.remove_some_before(later, limit=10) == 1
    assert segments.remove_some_before(later, limit=10) == 0
    assert [one.generation.number for one in segments.recordings_of(points)] == [2]
    world.create("ab", "a:e", "b:e")
    assert world.streams()["a"] == ["point:e:out:g3"]


def test_pairs_of_streams_are_forgotten_when_nothing_is_left_of_them(world: World) -> None:
    """Neither those of a segment that is there, nor those that an epoch or an answer is stored of."""
    world.create("ab", "a:e", "b:e")
    world.create("cd", "c:e", "d:e")
    segments, runs = world.control.segments, RunStore(world.store)
    ends = [
        (parse_point(f"{one}:e", default="out"), parse_point(f"{two}:e", default="in")) for one, two in ("ab", "cd")
    ]
    gone, there = (pair_of(*points, number) for number, points in enumerate(ends, 1))
    (known, _) = runs.pairs([gone, there])
    sketch = BucketArray(BucketArrayParameters(buckets=8, per_instance=2))
    sketch.record(1, 1, SECOND)
    world.store.add([Epoch("a", gone.from_stream, 0, sketch, cut=Cut(begins=None, ends=1, continues=False))])
    runs.add(known.number, [RunRow(**RUN)], until=(0, 0), now_ns=0)
    world.control.remove("ab")
    later = time.time_ns() + SECOND
    assert segments.remove_some_before(later, limit=10) == 2, "the two recordings"
    assert segments.remove_some_before(later, limit=10) == 0
    assert world.store.remove_some_before(later, limit=10) == 1
    assert segments.remove_some_before(later, limit=10) == 0, "a run is left"
    assert runs.remove_some_before(later, limit=10) == 1
    assert segments.remove_some_before(later, limit=10) == 1
    assert [len(runs.pairs_between(one, two)) for one, two in ("ab", "cd")] == [0, 1]


def test_assignments_that_were_withdrawn_do_not_pile_up(world: World) -> None:
    versions = []
    for _ in range(3):
        world.create("ab", "a:e", "b:e")
        world.control.remove("ab")
        versions.append(world.assignments.of("a")[0])
    assert versions == sorted(set(versions)), "a version is never given twice"
    with world.store.transaction() as connection:
        assert connection.execute(select(func.count()).select_from(ASSIGNMENTS)).scalar_one() == 2
