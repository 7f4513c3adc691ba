"""Upgrades: greedy is Algorithm 1 to the letter, best is never worse, both reach the paper's figures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from plain_paths import crossings, hops, shortest, split, topologies
from sojourn.core.errors import ParameterError
from sojourn.mplane.planning.paths import SegmentCounter, shortest_paths
from sojourn.mplane.planning.topology import Topology, read_topology, triangle
from sojourn.mplane.planning.upgrades import Strategy, UpgradeStep, plan_upgrade

MAPS = (1221, 1239, 1755, 3257, 3967, 6461)


@pytest.fixture(scope="module", params=MAPS)
def counter(request: pytest.FixtureRequest, shared_data: Path) -> SegmentCounter:
    topology = read_topology(shared_data / "topologies" / "rocketfuel" / f"{request.param}.weights.intra")
    return SegmentCounter(shortest_paths(topology))


def plan(counter: SegmentCounter, count: int, strategy: Strategy, seed: int = 0) -> list[UpgradeStep]:
    return list(plan_upgrade(counter, count, strategy=strategy, seed=seed))


@given(topologies())
def test_greedy_is_algorithm_1(topology: Topology) -> None:
    count = len(topology.names)
    steps = plan(SegmentCounter(shortest_paths(topology)), count, Strategy.GREEDY)
    paths, upgraded = shortest(topology), []
    for step in steps:
        assert step.upgraded == tuple(upgraded)
        assert step.segments.hops == hops(paths)
        left = [router for router in range(count) if router not in upgraded]
        if left:
            chosen = max(left, key=lambda router: (crossings(paths)[router], -router))
            paths = split(paths, chosen)
            upgraded.append(chosen)


@settings(max_examples=30)
@given(topologies(most=7))
def test_no_exchange_of_one_router_improves_best(topology: Topology) -> None:
    counter = SegmentCounter(shortest_paths(topology))
    routers = len(topology.names)
    greedy = plan(counter, routers, Strategy.GREEDY)
    for step, published in zip(plan(counter, routers, Strategy.BEST), greedy, strict=True):
        assert step.segments.hops <= published.segments.hops
        marks = counter.nothing_upgraded()
        marks[list(step.upgraded)] = True
        for out in step.upgraded:
            for other in np.flatnonzero(~marks):
                swapped = marks.copy()
                swapped[[out, other]] = False, True
                assert counter.count(swapped).hops >= step.segments.hops


def test_best_is_never_worse_than_greedy_and_random_is_far_worse(counter: SegmentCounter) -> None:
    greedy, best, random = (plan(counter, 60, kind) for kind in (Strategy.GREEDY, Strategy.BEST, Strategy.RANDOM))
    gains = [g.segments.hops - b.segments.hops for g, b in zip(greedy, best, strict=True)]
    assert min(gains) == 0
    assert max(gains) > 0
    assert random[20].segments.hops > 3 * greedy[20].segments.hops
    assert [len(step.upgraded) for step in best] == list(range(61))


def test_the_sprint_map_reaches_the_papers_figures(shared_data: Path) -> None:
    topology = read_topology(shared_data / "topologies/rocketfuel/1239.weights.intra")
    steps = plan(SegmentCounter(shortest_paths(topology)), 60, Strategy.GREEDY)
    assert steps[45].segments.hops <= 0.01 * steps[0].segments.hops
    assert steps[50].segments.mean <= 1.5


def test_steps_tell_what_came_and_went(counter: SegmentCounter) -> None:
    for strategy in Strategy:
        steps = plan(counter, 30, strategy)
        for before, after in pairwise(steps):
            assert set(after.upgraded) == set(before.upgraded) - set(after.dropped) | set(after.added)
            assert len(after.added) == len(after.dropped) + 1


def test_random_upgrades_are_the_seeds() -> None:
    counter = SegmentCounter(shortest_paths(triangle()))
    orders = {plan(counter, 3, Strategy.RANDOM, seed)[-1].upgraded for seed in range(20)}
    assert len(orders) > 2
    assert plan(counter, 3, Strategy.RANDOM, 7) == plan(counter, 3, Strategy.RANDOM, 7)


@pytest.mark.parametrize("count", [-1, 4])
def test_more_routers_than_there_are_is_bad_usage(count: int) -> None:
    with pytest.raises(ParameterError, match="upgrade 0 to 3"):
        plan_upgrade(SegmentCounter(shortest_paths(triangle())), count)
