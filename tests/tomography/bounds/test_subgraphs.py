"""Sub-graphs: every unknown in one part, sizes kept, edges moved to where few are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collection_worlds import simulated
from sojourn.tomography.bounds.constraints import ConstraintOptions, bound
from sojourn.tomography.bounds.linear_bounds import ROOM, Graph, constraint_graph, partition, surround
from sojourn.tomography.bounds.linear_program import linear_system

Edges = list[tuple[int, int]]


def cut_edges(graph: Graph, label: np.ndarray) -> int:
    """How many edges join vertices of different labels."""
    one = np.repeat(np.arange(len(graph)), np.diff(graph.start))
    return int((label[one] != label[graph.neighbour]).sum()) // 2


def graph_of(vertices: int, edges: Edges) -> Graph:
    both = sorted({(a, b) for a, b in edges if a != b} | {(b, a) for a, b in edges if a != b})
    start = np.searchsorted([a for a, _b in both], np.arange(vertices + 1)).astype(np.int64)
    return Graph(start, np.array([b for _a, b in both], np.int64))


def slices(graph: Graph, size: int) -> np.ndarray:
    """Where `partition` starts if the vertices' times are their numbers."""
    return np.arange(len(graph)) * -(-len(graph) // size) // len(graph)


def cliques(count: int, size: int) -> Edges:
    """So many cliques, the numbers of their vertices interleaved, each joined to the next by one edge."""
    inside = [(a * count + c, b * count + c) for c in range(count) for a in range(size) for b in range(a)]
    return inside + [(c, c + 1) for c in range(count - 1)]


def test_parts_follow_the_edges_not_the_first_slices() -> None:
    graph = graph_of(40, cliques(2, 20))
    label = partition(graph, np.arange(40), 20)
    assert cut_edges(graph, slices(graph, 20)) > 100
    assert cut_edges(graph, label) < 30
    assert np.bincount(label).max() <= np.ceil(ROOM * 20)


@given(
    st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=120), st.integers(1, 45)
)
def test_parts_are_balanced_and_never_worse_than_slices(vertices: int, edges: Edges, size: int) -> None:
    graph = graph_of(vertices, [(a % vertices, b % vertices) for a, b in edges])
    label = partition(graph, np.arange(vertices), size)
    parts = -(-vertices // size)
    assert set(label.tolist()) == set(range(parts))
    assert np.bincount(label).max() <= np.ceil(ROOM * vertices / parts)
    assert cut_edges(graph, label) <= cut_edges(graph, slices(graph, size))


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=120),
    st.sets(st.integers(0, 39), min_size=1, max_size=5),
    st.integers(1, 45),
)
def test_a_sub_graph_holds_its_core_and_keeps_its_size(
    vertices: int, edges: Edges, chosen: set[int], size: int
) -> None:
    graph = graph_of(vertices, [(a % vertices, b % vertices) for a, b in edges])
    core = np.array(sorted({c % vertices for c in chosen}))
    inside = surround(graph, core, size)
    assert set(core.tolist()) <= set(inside.tolist())
    assert len(inside) <= max(size, len(core))
    assert inside.tolist() == sorted(set(inside.tolist()))


def test_a_sub_graph_is_everything_that_can_be_reached_if_that_fits() -> None:
    graph = graph_of(30, [(k, k + 1) for k in range(29) if k != 19])
    assert surround(graph, np.array([4]), 25).tolist() == list(range(20))


def test_a_sub_graph_grows_around_its_core() -> None:
    graph = graph_of(101, [(k, k + 1) for k in range(100)])
    assert surround(graph, np.array([50]), 21).tolist() == list(range(40, 61))


@pytest.mark.parametrize("size", [200, 1000])
def test_networks_are_cut_at_fewer_edges_than_slices_of_time_are(size: int) -> None:
    trace, _truth = simulated(225, 91)
    bounds = bound(trace)
    system = linear_system(trace, bounds, ConstraintOptions())
    graph = constraint_graph(system)
    times = bounds.low_ns[system.place] + bounds.high_ns[system.place]
    first = np.empty(len(graph), np.int64)
    first[np.argsort(times, kind="stable")] = slices(graph, size)
    label = partition(graph, times, size)
    assert cut_edges(graph, label) < 0.8 * cut_edges(graph, first)
    assert np.bincount(label).max() <= size * ROOM + 1
