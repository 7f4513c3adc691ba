"""The control unit's segments: what nodes are assigned as segments come, change and go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from sojourn.core.errors import UsageError
from sojourn.node.agent.configuration import checked_stream
from sojourn.segments.fleet.point import parse_point
from sojourn.segments.fleet.replanning import Seen, replanned
from sojourn.segments.fleet.segment import FleetSegment
from sojourn.segments.plan import SegmentPlan
from sojourn.server.control.assignments import ASSIGNMENTS, AssignmentStore
from sojourn.server.control.segments import NoSegmentError, SegmentControl, SegmentExistsError
from sojourn.server.door.limits import Limits
from sojourn.store.epochs import EpochStore, open_store

SECOND = 10**9


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


def test_a_new_generation_takes_over_without_a_gap(world: World) -> None:
    world.create("ab", "a:e", "b:e")
    world.create("bc", "b:e:in", "c:e", memory_bytes=64_000)
    asked: list[tuple[str, str]] = []
    joined: set[tuple[str, str]] = set()

    def are_joined(first: Any, second: Any) -> bool:
        asked.append((first.stream, second.stream))
        return (first.point.node, second.point.node) in joined

    assert world.control.finish_taking_over(are_joined) == set()
    assert asked
    assert all(stream.endswith(":g2") for pair in asked for stream in pair), "the new ones are compared"
    joined.add(("a", "b"))
    assert world.control.finish_taking_over(are_joined) == {"a"}, "b has to be joined with c as well"
    joined.add(("b", "c"))
    assert world.control.finish_taking_over(are_joined) == {"b"}
    assert world.streams() == {"a": ["point:e:out:g2"], "b": ["point:e:in:g2"], "c": ["point:e:in:g2"]}
    assert world.control.finish_taking_over(are_joined) == set()


def test_a_former_generation_ends_after_five_epochs_whatever_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time_ns()]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    world.create("ab", "a:e", "b:e")
    world.create("ab2", "a:e", "b:e", epoch_ns=5 * SECOND)
    now[0] += 24 * SECOND
    assert world.control.finish_taking_over(lambda *_: False) == set()
    now[0] += SECOND
    assert world.control.finish_taking_over(lambda *_: False) == {"a", "b"}


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


def test_assignments_that_were_withdrawn_do_not_pile_up(world: World) -> None:
    versions = []
    for _ in range(3):
        world.create("ab", "a:e", "b:e")
        world.control.remove("ab")
        versions.append(world.assignments.of("a")[0])
    assert versions == sorted(set(versions)), "a version is never given twice"
    with world.store.transaction() as connection:
        assert connection.execute(select(func.count()).select_from(ASSIGNMENTS)).scalar_one() == 2
