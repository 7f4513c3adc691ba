"""Upgrades of some routers only, for traffic between some: against every set there is, on small networks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain_paths import Path as Route
from plain_paths import shortest, topologies
from sojourn.core.errors import ParameterError, SojournError, TopologyError, UsageError
from sojourn.mplane.planning.paths import SegmentCounter, shortest_paths
from sojourn.mplane.planning.topology import Topology, TopologyBuilder, triangle
from sojourn.mplane.planning.traffic import TrafficCounter, read_traffic
from sojourn.mplane.planning.upgrades import Limits, Strategy, UpgradeStep, plan_upgrade

Weights = Mapping[tuple[int, int], float]


@st.composite
def demands(draw: st.DrawFn, *, most: int = 6) -> tuple[Topology, dict[tuple[int, int], float]]:
    """A small network, and traffic between some of its routers."""
    topology = draw(topologies(most=most))
    routers = range(len(topology.names))
    pairs = st.sampled_from([(a, b) for a in routers for b in routers if a != b])
    return topology, draw(st.dictionaries(pairs, st.sampled_from([0.0, 0.5, 1.0, 7.0, 1e6]), min_size=1))


def shares(routes: set[Route]) -> dict[Route, float]:
    """The share of its pair's traffic that takes each path, if every router splits evenly."""
    onward: dict[tuple[int, int], set[int]] = {}
    for route in routes:
        onward.setdefault((route[0], route[-1]), set()).add(route[1])
    return {route: float(np.prod([1 / len(onward[router, route[-1]]) for router in route[:-1]])) for route in routes}


def uncut(routes: Mapping[Route, float], weights: Weights, upgraded: set[int]) -> float:
    """Traffic × hops of the paths without an m-router inside, listed one by one."""
    return sum(
        weights.get((route[0], route[-1]), 0.0) * share * (len(route) - 1)
        for route, share in routes.items()
        if not upgraded & set(route[1:-1])
    )


@given(demands(), st.data())
def test_traffic_is_counted_as_by_listing_paths(
    given_demand: tuple[Topology, dict[tuple[int, int], float]], data: st.DataObject
) -> None:
    topology, weights = given_demand
    routers = range(len(topology.names))
    upgraded = data.draw(st.sets(st.sampled_from(routers)))
    marks = np.zeros(len(routers), np.bool_)
    marks[list(upgraded)] = True
    routes = shares(shortest(topology))
    total, crossing, relief = TrafficCounter(shortest_paths(topology), weights).score(marks)
    near = pytest.approx(uncut(routes, weights, upgraded), rel=1e-9, abs=1e-9)
    assert total == near
    for router in set(routers) - upgraded:
        through = [
            weights.get((route[0], route[-1]), 0.0) * share
            for route, share in routes.items()
            if router in route[1:-1] and not upgraded & set(route[1:-1])
        ]
        assert crossing[router] == pytest.approx(sum(through), rel=1e-9, abs=1e-9)
        assert total - relief[router] == pytest.approx(
            uncut(routes, weights, upgraded | {router}), rel=1e-9, abs=1e-9 * max(total, 1)
        )


@pytest.mark.parametrize("strategy", Strategy)
@settings(max_examples=30)
@given(demand=demands(), data=st.data())
def test_limits_hold_at_every_step(
    strategy: Strategy, demand: tuple[Topology, dict[tuple[int, int], float]], data: st.DataObject
) -> None:
    topology, weights = demand
    routers = len(topology.names)
    cannot = data.draw(st.frozensets(st.integers(0, routers - 1), max_size=2))
    free = sorted(set(range(routers)) - cannot)
    must = data.draw(st.frozensets(st.sampled_from(free), max_size=2)) if free else frozenset()
    paths = shortest_paths(topology)
    traffic = TrafficCounter(paths, weights) if data.draw(st.booleans()) else None
    steps = list(
        plan_upgrade(SegmentCounter(paths), len(free), strategy=strategy, limits=Limits(cannot, must), traffic=traffic)
    )
    assert [len(step.upgraded) for step in steps] == list(range(len(free) + 1))
    for step in steps:
        chosen = set(step.upgraded)
        assert not chosen & cannot
        assert must <= chosen or chosen <= must
    left = [step.hops for step in steps]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(left[len(must) :]))


def random_network(seed: int) -> tuple[Topology, dict[tuple[int, int], float]]:
    """A ring of nine with chords, and traffic between a third of its pairs."""
    random = np.random.default_rng(seed)
    builder = TopologyBuilder("random")
    for router in range(9):
        builder.add_link(f"r{router}", f"r{(router + 1) % 9}", str(random.integers(1, 4)), line=1)
    for _ in range(4):
        start, end = random.choice(9, 2, replace=False)
        builder.add_link(f"r{start}", f"r{end}", str(random.integers(1, 6)), line=1, is_parallel=True)
    builder.add_missing_directions()
    pairs = [(a, b) for a in range(9) for b in range(9) if a != b and random.random() < 1 / 3]
    return builder.finish(), {pair: float(random.pareto(1.5)) for pair in pairs}


def optimum(routes: Mapping[Route, float], weights: Weights, limits: Limits, count: int) -> float:
    """The least of all sets of so many routers that the limits allow."""
    free = [router for router in range(9) if router not in limits.cannot | limits.must]
    sets = (set(others) | limits.must for others in combinations(free, count - len(limits.must)))
    return min(uncut(routes, weights, chosen) for chosen in sets)


@pytest.mark.parametrize("has_traffic", [True, False], ids=["traffic", "hops"])
def test_best_is_nearly_always_the_optimum_within_the_limits(has_traffic: bool) -> None:
    limits = Limits(frozenset({2, 7}), frozenset({4}))
    found = []
    for seed in range(25):
        topology, weights = random_network(seed)
        paths = shortest_paths(topology)
        routes = shares(shortest(topology))
        if not has_traffic:  # every path counts as one
            routes, weights = dict.fromkeys(routes, 1.0), {(r[0], r[-1]): 1.0 for r in routes}
        traffic = TrafficCounter(paths, weights) if has_traffic else None
        plan = {
            strategy: list(plan_upgrade(SegmentCounter(paths), 4, strategy=strategy, limits=limits, traffic=traffic))
            for strategy in (Strategy.BEST, Strategy.GREEDY)
        }
        for best, greedy in list(zip(plan[Strategy.BEST], plan[Strategy.GREEDY], strict=True))[1:]:
            least = optimum(routes, weights, limits, len(best.upgraded))
            assert least * (1 - 1e-9) <= best.hops <= greedy.hops * (1 + 1e-9)
            assert best.hops == pytest.approx(uncut(routes, weights, set(best.upgraded)))
            found.append(best.hops <= least * (1 + 1e-9))
    assert np.mean(found) >= 0.9


def test_traffic_decides_which_router_comes_first(tmp_path: Path) -> None:
    """Two stars that are joined: the hub of the one with traffic comes first, then the other is worth nothing."""
    builder = TopologyBuilder("stars")
    for hub in "ab":
        for leaf in range(3):
            builder.add_link(hub, f"{hub}{leaf}", "1", line=1)
    builder.add_link("a", "b", "1", line=1)
    builder.add_missing_directions()
    topology = builder.finish()
    (tmp_path / "t.csv").write_text("weight, From ,to\n5,b0,b1\n\n2.5,b1,b2\n2.5,b1,b2\n")
    weights = read_traffic(tmp_path / "t.csv", topology)
    named = {(topology.names[a], topology.names[b]): weight for (a, b), weight in weights.items()}
    assert named == {("b0", "b1"): 5, ("b1", "b2"): 5}
    paths = shortest_paths(topology)
    steps: list[UpgradeStep] = list(plan_upgrade(SegmentCounter(paths), 1, traffic=TrafficCounter(paths, weights)))
    assert [step.traffic_hops for step in steps] == [20, 0]
    assert topology.names[steps[1].upgraded[0]] == "b"


def test_traffic_without_a_path_is_told() -> None:
    builder = TopologyBuilder("one way")
    builder.add_link("a", "b", "1", line=1)
    paths = shortest_paths(builder.finish())
    counter = TrafficCounter(paths, {(0, 1): 2.0, (1, 0): 3.0})
    assert counter.pathless == [(1, 0)]
    assert counter.score(np.zeros(2, np.bool_))[0] == 2.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: the first line does not name the columns; begin with the line from,to,weight"),
        ("from,to\na,b\n", ":1: the first line does not name the columns"),
        ("from,to,weight\na,b\n", ":2: 2 fields where the header has 3"),
        ("from,to,weight\na,x,1\n", ":2: there is no router 'x'; names are such as a"),
        ("from,to,weight\na,a,1\n", ":2: traffic from a to itself; name two routers"),
        ("from,to,weight\na,b,much\n", ":2: 'much' is no weight; give a number of 0 or more"),
        ("from,to,weight\na,b,-1\n", ":2: '-1' is no weight"),
        ("from,to,weight\na,b,nan\n", ":2: 'nan' is no weight"),
        ("from,to,weight\na,b,inf\n", ":2: 'inf' is no weight"),
        ("from,to,weight\na,b,0\n", ": there is no traffic; give a weight above 0 to some pair"),
        ('from,to,weight\n"a,b,0\n', ": not CSV"),
    ],
)
def test_traffic_that_cannot_be_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TopologyError) as raised:
        read_traffic(tmp_path / "t.csv", triangle())
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("cannot", "must", "count", "error", "said"),
    [
        (["x"], [], 1, UsageError, "there is no router 'x'"),
        ([], ["x"], 1, UsageError, "there is no router 'x'"),
        (["a", "b"], ["b"], 1, UsageError, "b cannot be upgraded and must be; name a router for one of both"),
        (["a"], [], 3, ParameterError, "3 routers to upgrade of 3, as 1 cannot be; upgrade 0 to 2"),
        ([], ["a", "b"], 1, ParameterError, "1 router to upgrade of 3, as 2 must be; upgrade 2 to 3"),
    ],
)
def test_limits_that_contradict_are_refused(
    cannot: list[str], must: list[str], count: int, error: type[SojournError], said: str
) -> None:
    counter = SegmentCounter(shortest_paths(triangle()))
    with pytest.raises(error) as raised:
        plan_upgrade(counter, count, limits=Limits.named(triangle(), cannot=cannot, must=must))
    assert said in str(raised.value)
