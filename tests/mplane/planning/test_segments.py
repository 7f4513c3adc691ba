"""Counted segments are those that listing and splitting every path gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plain_paths import crossings, hops, shortest, split, topologies
from sojourn.core.errors import TopologyError
from sojourn.mplane.planning import paths as paths_module
from sojourn.mplane.planning.paths import SegmentCounter, shortest_paths
from sojourn.mplane.planning.topology import Topology, TopologyBuilder, read_topology


def build(*links: tuple[str, str, str]) -> Topology:
    builder = TopologyBuilder("here")
    for line, (source, target, weight) in enumerate(links, start=1):
        builder.add_link(source, target, weight, line=line)
    return builder.finish()


@given(topologies(), st.data())
def test_counts_equal_listing_and_splitting_every_path(topology: Topology, data: st.DataObject) -> None:
    counter = SegmentCounter(shortest_paths(topology))
    listed = shortest(topology)
    marks = counter.nothing_upgraded()
    for router in data.draw(st.permutations(range(len(topology.names)))):
        segments, crossing, relief = counter.score(marks)
        assert (segments.paths, segments.hops) == (len(listed), hops(listed))
        lengths = [len(path) - 1 for path in listed]
        assert (segments.shortest, segments.longest) == (min(lengths), max(lengths))
        assert segments.mean == pytest.approx(np.mean(lengths))
        for other in np.flatnonzero(~marks):
            assert crossing[other] == crossings(listed)[int(other)]
            assert relief[other] == hops(listed) - hops(split(listed, int(other)))
        listed = split(listed, router)
        marks[router] = True
    assert counter.count(marks).longest == 1


def test_the_sprint_map_has_the_known_size(shared_data: Path) -> None:
    topology = read_topology(shared_data / "topologies/rocketfuel/1239.weights.intra")
    counter = SegmentCounter(shortest_paths(topology))
    before = counter.count(counter.nothing_upgraded())
    assert (len(topology.names), topology.links, before.paths, before.hops) == (315, 1944, 207_138, 965_384)


def test_decimals_add_up_exactly() -> None:
    """In binary floating point 0.1 + 0.2 is not 0.3."""
    counter = SegmentCounter(shortest_paths(build(("a", "b", "0.1"), ("b", "c", "0.2"), ("a", "c", "0.3"))))
    assert counter.count(counter.nothing_upgraded()).paths == 4


def test_pairs_without_a_path_are_counted_and_named() -> None:
    paths = shortest_paths(build(("a", "b", "1"), ("b", "a", "1"), ("c", "d", "1")))
    assert paths.unreachable_pairs == 12 - 3
    assert paths.example_of_unreachable() == ("a", "c")


def diamonds(count: int) -> Topology:
    """A chain of diamonds: two ways through each, so 2 to the power of `count` ways from end to end."""
    links = []
    for number in range(count):
        for way in "xy":
            links += [(f"n{number}", f"{way}{number}", "1"), (f"{way}{number}", f"n{number + 1}", "1")]
    return build(*links)


def test_counts_are_exact_far_beyond_doubles_and_refused_beyond_61_bits() -> None:
    counter = SegmentCounter(shortest_paths(diamonds(50)))
    # From n_i to n_j lead 2^(j − i) paths, from x_i or y_i half as many, and as many fewer between those.
    chain = sum((51 - length) * 2**length for length in range(1, 51))
    into = 2 * sum((50 - skipped) * 2**skipped for skipped in range(50))
    between = 4 * sum((50 - apart) * 2 ** (apart - 1) for apart in range(1, 50))
    assert counter.count(counter.nothing_upgraded()).paths == chain + 2 * into + between
    with pytest.raises(TopologyError, match=r"2\^61"):
        SegmentCounter(shortest_paths(diamonds(70)))


def test_networks_too_large_to_plan_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths_module, "MAX_ROUTERS", 3)
    with pytest.raises(TopologyError, match="too many for all their shortest paths"):
        shortest_paths(diamonds(1))
