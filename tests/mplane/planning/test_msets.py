"""M-sets: the paper's example, every segment once, and link failures without computing all anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plain_paths import shortest, split, topologies
from sojourn.core.errors import UsageError
from sojourn.mplane.planning.paths import MSets, after_change, m_sets, m_sets_after_change, shortest_paths
from sojourn.mplane.planning.topology import Topology, TopologyBuilder


def toy() -> Topology:
    """Six routers like the paper's Fig. 7: from F to D lead two paths of equal cost, over C and over E."""
    builder = TopologyBuilder("toy")
    for source, target, weight in ("AB1", "AF1", "BF1", "FC2", "FE2", "CD1", "DE1"):
        builder.add_link(source, target, weight, line=1)
    builder.add_missing_directions()
    return builder.finish()


def marks(topology: Topology, *names: str) -> np.ndarray:
    return np.isin(topology.names, names)


def in_words(sets: MSets, name: str) -> dict[str, str]:
    """By monitored router, paths of all equal-cost ones."""
    names = sets.shortest.topology.names
    m_set = sets.of(names.index(name))
    rows = zip(m_set.target, m_set.paths, m_set.equal_cost, strict=True)
    return {names[target]: f"{paths}/{every}" for target, paths, every in rows}


def test_an_equal_cost_path_that_avoids_an_m_router_stays_with_the_node() -> None:
    sets = m_sets(shortest_paths(toy()), marks(toy(), "C", "F"))
    assert in_words(sets, "A") == {"B": "1/1", "F": "1/1"}
    assert in_words(sets, "C") == {"F": "1/1", "D": "1/1", "E": "1/1"}
    # D over C is C's to monitor, D over E (the paper's D₂) is F's.
    assert in_words(sets, "F") == {"A": "1/1", "B": "1/1", "C": "1/1", "E": "1/1", "D": "1/2"}


@given(topologies(), st.data())
def test_m_sets_together_hold_every_segment_once(topology: Topology, data: st.DataObject) -> None:
    upgraded = np.array(data.draw(st.lists(st.booleans(), min_size=len(topology.names), max_size=len(topology.names))))
    segments = shortest(topology)
    for router in np.flatnonzero(upgraded):
        segments = split(segments, int(router))
    sets = m_sets(shortest_paths(topology), upgraded)
    for node in range(len(topology.names)):
        m_set = sets.of(node)
        counted = dict(zip(m_set.target.tolist(), m_set.paths.tolist(), strict=True))
        ends = [path[-1] for path in segments if path[0] == node]
        assert counted == {end: ends.count(end) for end in ends}


@given(topologies(most=7), st.data())
def test_failed_and_restored_links_give_what_computing_anew_gives(topology: Topology, data: st.DataObject) -> None:
    upgraded = np.arange(len(topology.names)) % 3 == 0
    links = list(zip(topology.source.tolist(), topology.target.tolist(), strict=True))
    first, second = (topology.without(data.draw(st.lists(st.sampled_from(links), unique=True))) for _ in range(2))
    sets = m_sets(shortest_paths(topology), upgraded)
    for state in (first, second, topology):
        sets = m_sets_after_change(sets, state)
        anew = m_sets(shortest_paths(state), upgraded)
        assert np.array_equal(sets.shortest.distance, anew.shortest.distance)
        assert np.array_equal(sets.shortest.order, anew.shortest.order)
        assert all(mine.same_as(other) for mine, other in zip(sets.sets, anew.sets, strict=True))


def test_nodes_whose_paths_did_not_use_a_failed_link_are_left_alone() -> None:
    topology = toy()
    failed = topology.without([(topology.router("A"), topology.router("B"))])
    _, changed = after_change(shortest_paths(topology), failed)
    assert [topology.names[node] for node in changed] == ["A"]


def test_a_link_that_is_not_there_cannot_fail() -> None:
    with pytest.raises(UsageError, match="no link from A to D"):
        toy().without([(toy().router("A"), toy().router("D"))])
