"""Segments of a fleet: what they may be, and which points share a plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import UsageError
from sojourn.segments.fleet.point import parse_point
from sojourn.segments.fleet.segment import FIRST_MEMORY, FleetSegment, groups_of

SECOND = 10**9


def segment(name: str, sender: str, receiver: str, *, filter: str = "", **how: Any) -> FleetSegment:  # noqa: A002
    points = {
        "sender": parse_point(sender, default="out", filter=filter),
        "receiver": parse_point(receiver, default="in", filter=filter),
    }
    return FleetSegment(name=name, **points, **({"memory_bytes": 64_000} | how))


def test_the_reverse_goes_back_between_the_same_interfaces() -> None:
    both = segment("ab", "a:eth0", "b:eth1", both_directions=True)
    assert {name: [str(point) for point in pair] for name, pair in both.pairs.items()} == {
        "ab": ["a:eth0:out", "b:eth1:in"],
        "ab:reverse": ["b:eth1:out", "a:eth0:in"],
    }
    assert len(both.points) == 4
    assert list(segment("ab", "a:eth0", "b:eth1").pairs) == ["ab"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a>b", "a>[r]>b", "x:reverse", "measurements", "a\nb"])
def test_names_of_other_kinds_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="segment: "):
        segment(name, "a:eth0", "b:eth0")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"receiver": "a:eth0:out"}, "its two points are one"),
        ({"epoch_ns": SECOND // 10}, "from 1 s to 1 h"),
        ({"epoch_ns": 7200 * SECOND}, "from 1 s to 1 h"),
        ({"error": 0.05, "confidence": 0.95}, "a memory, or an error"),
        ({"memory_bytes": None}, "a memory, or an error"),
        ({"memory_bytes": None, "error": 0.05}, "a memory, or an error"),
        ({"memory_bytes": None, "error": 0.0, "confidence": 0.9}, "error is 0.0"),
        ({"memory_bytes": None, "error": 0.1, "confidence": 1.0}, "confidence is 1.0"),
    ],
)
def test_what_cannot_be_recorded_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        segment(**({"name": "x", "sender": "a:eth0", "receiver": "b:eth0"} | changes))


def test_a_chain_of_segments_is_one_group_of_three_recordings() -> None:
    chain = [
        segment("ab", "a:eth0", "b:eth0", memory_bytes=10_000, epoch_ns=20 * SECOND),
        segment("bc", "b:eth0:in", "c:eth0", memory_bytes=90_000, epoch_ns=30 * SECOND),
        segment("ac", "a:eth0", "c:eth0", memory_bytes=20_000, epoch_ns=5 * SECOND),
    ]
    (group,) = groups_of(chain)
    assert [str(point) for point in group.points] == ["a:eth0:out", "b:eth0:in", "c:eth0:in"]
    assert group.memory_bytes == 90_000
    assert group.epoch_ns == 5 * SECOND
    assert [one.name for one in group.segments] == ["ab", "bc", "ac"]


def test_another_filter_or_direction_is_another_group() -> None:
    apart = [
        segment("ab", "a:eth0", "b:eth0"),
        segment("web", "a:eth0", "b:eth0", filter="tcp port 80"),
        segment("back", "b:eth0", "a:eth0"),
    ]
    groups = sorted([one.name for one in group.segments] for group in groups_of(apart))
    assert groups == [["ab"], ["back"], ["web"]]


def test_what_is_sized_by_an_error_begins_with_the_first_memory() -> None:
    sized = segment("ab", "a:eth0", "b:eth0", memory_bytes=None, error=0.05, confidence=0.95)
    assert sized.size_bytes == FIRST_MEMORY


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda ends: ends[0] != ends[1]), max_size=30))
def test_groups_are_the_connected_parts(ends: list[tuple[int, int]]) -> None:
    segments = [segment(f"s{i}", f"n{a}:e:in", f"n{b}:e:in") for i, (a, b) in enumerate(ends)]
    groups = groups_of(segments)
    reachable = {node: {node} for pair in ends for node in pair}
    for _ in reachable:
        for a, b in ends:
            reachable[a] = reachable[b] = reachable[a] | reachable[b]
            for node in reachable[a]:
                reachable[node] = reachable[a]
    expected = {frozenset(f"n{node}" for node in part) for part in reachable.values()}
    assert {frozenset(point.node for point in group.points) for group in groups} == expected
    assert sorted(one.name for group in groups for one in group.segments) == sorted(one.name for one in segments)
