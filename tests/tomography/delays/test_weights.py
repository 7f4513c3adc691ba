"""What is alike in a window: centres, services behind others, levels of nodes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collection_worlds import MS, simulated
from queue_worlds import QueueTree, queue_tree
from sojourn.tomography.bounds.constraints import bound, learn_omega
from sojourn.tomography.delays.nodes import node_factors
from sojourn.tomography.delays.program import BELOW, HUBER, NodeCentres, Programs, WindowProgram, medians, served_behind
from sojourn.tomography.trace import CollectionTrace, make_trace


def program_of(trace: CollectionTrace) -> WindowProgram:
    maker = Programs(trace, bound(trace), tolerance_ns=550_000, epsilon_ns=2_100_000, factor=node_factors(trace))
    return maker.make(np.arange(len(trace)))


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-1e3, 1e3)), min_size=1, max_size=60))
def test_medians_by_group_agree_with_numpy(pairs: list[tuple[int, float]]) -> None:
    names, group = np.unique([g for g, _value in pairs], return_inverse=True)
    values = np.array([value for _g, value in pairs])
    expected = [np.median(values[group == g]) for g in range(len(names))]
    assert np.allclose(medians(values, group, len(names)), expected)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=30, unique=True)
)
def test_a_visit_is_served_behind_the_one_that_left_before_it(visits: list[tuple[int, int, int]]) -> None:
    node, arrival, stay = (np.array(column) for column in zip(*visits, strict=True))
    departure = arrival + stay
    before, has_waited = served_behind(node, arrival.astype(float), departure.astype(float))
    for v in range(len(node)):
        ahead = [
            u
            for u in range(len(node))
            if node[u] == node[v] and (departure[u], arrival[u]) < (departure[v], arrival[v])
        ]
        if ahead:
            last = max((departure[u], arrival[u]) for u in ahead)
            assert (departure[before[v]], arrival[before[v]]) == last
            assert has_waited[v] == (last[0] > arrival[v])
        else:
            assert before[v] == v
            assert not has_waited[v]


def test_the_squares_are_those_of_the_distances_to_the_centres() -> None:
    program = program_of(simulated(60, 58)[0])
    centres = NodeCentres(program)
    random = np.random.default_rng(1)
    x = random.normal(0, 1, program.delay.shape[1])
    for number in range(3):
        square, linear = centres.objective()
        whole = square + square.T
        whole.setdiag(square.diagonal())
        rows, known = centres._rows, centres._known - centres._centre[program.node]
        expected = (centres._weight * ((rows @ x + known) ** 2 - known**2)).sum()
        assert np.isclose(x @ whole @ x / 2 + linear @ x, expected, rtol=1e-4)
        centres.learn(x, number)


def test_a_service_far_above_its_centre_is_held_least_and_one_below_hardest() -> None:
    program = program_of(simulated(60, 58)[0])
    centres = NodeCentres(program)
    centres.learn(np.zeros(program.delay.shape[1]), 0)
    off = centres._rows @ np.zeros(program.delay.shape[1]) + centres._known - centres._centre[program.node]
    reach = HUBER * centres.scale
    for node in range(program.nodes):
        here = program.node == node
        near, far = here & (off >= 0) & (off <= reach), here & (off > 2 * reach)
        low = here & (off < 0) & (off >= -reach)
        if near.any() and far.any():
            assert centres._weight[far].max() < 0.51 * centres._weight[near].min()
        if near.any() and low.any():
            assert np.isclose(centres._weight[low].max(), BELOW * centres._weight[near].max())


def test_services_begin_where_the_packet_before_left() -> None:
    # Two packets reach node 1 at 4 and 5 ms and leave it at 10 and 16 ms: the second is served for 6 ms, not for 11.
    rows = [(2, 0, [2, 1, 0], 0, 10 * MS, 4 * MS), (3, 0, [3, 1, 0], 1 * MS, 16 * MS, 4 * MS)]
    program = program_of(make_trace(rows))
    centres = NodeCentres(program)
    x = np.linalg.lstsq(program.delay.toarray(), np.array([4, 6, 4, 11]) - program.delay_known, rcond=None)[0]
    assert np.allclose(program.delay @ x + program.delay_known, [4, 6, 4, 11])
    centres.learn(x, 1)
    assert centres.is_rearranged
    assert np.allclose(centres._rows @ x + centres._known, [4, 6, 4, 6])
    centres.learn(x, 2)
    assert not centres.is_rearranged


def test_levels_follow_the_nodes_where_these_differ() -> None:
    trace, truth = queue_tree(QueueTree(law="steady"), 121)
    level = node_factors(trace)
    visit = np.flatnonzero(trace.is_visit)
    delay = truth[visit + 1] - truth[visit]
    relative = delay / np.median(delay)
    assert np.corrcoef(np.log(level[visit]), np.log(relative))[0, 1] > 0.9
    assert (level[visit] > 0).all()


def test_nodes_of_a_radio_network_are_taken_for_alike() -> None:
    for seed in (121, 122):
        assert (node_factors(simulated(225, seed)[0]) == 1).all()


def test_the_least_delay_is_kept_below_that_of_fast_nodes_far_from_the_sink() -> None:
    for seed in range(121, 127):
        trace, truth = queue_tree(QueueTree(law="steady"), seed)
        visit = np.flatnonzero(trace.is_visit)
        assert learn_omega(trace) <= (truth[visit + 1] - truth[visit]).min()
