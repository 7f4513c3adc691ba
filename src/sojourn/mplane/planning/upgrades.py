"""Which routers to upgrade, step by step.

What upgrading saves is a weighted cover: a path counts as saved once any router inside it is an m-router. Hence
upgrades help less the more there are, and adding the router that saves most is never far from the best (`greedy` adds
the one that most *paths* cross, as published; a hop count is what is to be reduced). `best` looks for the best set of
each size, not for an order: it begins with the better of Algorithm 1's set and its own previous set with the router
that saves most, then exchanges routers one for one while that saves hops. So it is never worse than `greedy` at any
size. From one size to the next it may drop a router. A step costs one count of all segments, for `best` about as many
as routers upgraded.

Some routers cannot be upgraded, others must be (`Limits`): those that must come first, and are never exchanged for
others. With traffic weights (`traffic`), a pair's paths count by the traffic between its routers, not each as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ParameterError, UsageError
from sojourn.core.units import plural
from sojourn.mplane.planning.paths import SegmentCounter, Segments, ShortestPaths
from sojourn.mplane.planning.topology import Topology
from sojourn.mplane.planning.traffic import TrafficCounter

# Rounds of exchanges for one size: a bound on time, not reached on any map tried.
_MAX_ROUNDS = 20
# Traffic is added up in floating point: what saves less than this share of it saves nothing.
_ROUNDING = 1e-9


class Strategy(StrEnum):
    """How routers are chosen."""

    GREEDY = "greedy"
    RANDOM = "random"
    BEST = "best"


@dataclass(frozen=True)
class UpgradeStep:
    """The m-routers after a step, which were added and dropped in it, and the segments there are now.

    ``traffic_hops`` is the traffic times the hops of paths without an m-router inside, where traffic is known.
    """

    upgraded: tuple[int, ...]
    segments: Segments
    added: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    traffic_hops: float | None = None

    @property
    def hops(self) -> float:
        """What upgrades are to reduce."""
        return self.segments.hops if self.traffic_hops is None else self.traffic_hops

    def to_dict(self, names: Sequence[str]) -> dict[str, object]:
        """The step as plain values, routers by name."""
        segments = self.segments
        return {
            "router": names[self.added[0]] if self.added else None,
            "added": [names[router] for router in self.added],
            "dropped": [names[router] for router in self.dropped],
            "probe_hop_count": segments.hops,
            "segments": segments.paths,
            "granularity": {"mean": segments.mean, "min": segments.shortest, "max": segments.longest},
            **({} if self.traffic_hops is None else {"traffic_hops": self.traffic_hops}),
        }


@dataclass(frozen=True)
class Limits:
    """Routers that cannot be upgraded, and such that must be, by number."""

    cannot: frozenset[int] = frozenset()
    must: frozenset[int] = frozenset()

    @classmethod
    def named(cls, topology: Topology, *, cannot: Collection[str] = (), must: Collection[str] = ()) -> Limits:
        """The same by name.

        >>> from sojourn.mplane.planning.topology import triangle
        >>> Limits.named(triangle(), cannot=["b"]).cannot
        frozenset({1})
        """
        if both := sorted(set(cannot) & set(must)):
            what = f"{', '.join(both)} cannot be upgraded and must be"
            raise UsageError(what, action="name a router for one of both")
        return cls(frozenset(map(topology.router, cannot)), frozenset(map(topology.router, must)))

    def check(self, count: int, routers: int) -> None:
        """Refuse numbers of routers that these limits do not allow."""
        least, most = len(self.must), routers - len(self.cannot)
        if least <= count <= most:
            return
        why = f", as {least} must be" if count < least else ""
        why = f", as {len(self.cannot)} cannot be" if self.cannot and count > most else why
        raise ParameterError(
            f"{plural(count, 'router')} to upgrade of {routers}{why}", action=f"upgrade {least} to {most}"
        )

    def open_to(self, marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The routers that may be upgraded next: those that must be, while there are any."""
        is_open = ~marks
        waiting = [router for router in self.must if is_open[router]]
        if waiting:
            is_open[:] = False
            is_open[waiting] = True
        is_open[list(self.cannot)] = False
        return is_open


NO_LIMITS = Limits()


@dataclass(frozen=True)
class _Score:
    """The hops that are left; by router what crosses it, and by how many hops upgrading it would shorten them.

    ``segments`` are there if hops are theirs, and not the traffic's.
    """

    hops: float
    crossing: NDArray[np.generic]
    relief: NDArray[np.generic]
    segments: Segments | None = None


_Marks: TypeAlias = NDArray[np.bool_]
_Scored: TypeAlias = tuple[_Marks, _Score]


@dataclass(frozen=True)
class _Planner:
    """What is to be reduced, and which routers may be chosen."""

    counter: SegmentCounter
    traffic: TrafficCounter | None
    limits: Limits

    def score(self, marks: _Marks) -> _Score:
        if self.traffic is not None:
            return _Score(*self.traffic.score(marks))
        segments, crossing, relief = self.counter.score(marks)
        return _Score(segments.hops, crossing, relief, segments)

    def step(self, marks: _Marks, score: _Score, *, before: tuple[int, ...]) -> UpgradeStep:
        """A set as a step from the one before; m-routers stay in the order in which they came."""
        added = tuple(int(router) for router in np.flatnonzero(marks) if router not in before)
        dropped = tuple(router for router in before if not marks[router])
        order = (*(router for router in before if marks[router]), *added)
        traffic_hops = None if self.traffic is None else score.hops
        return UpgradeStep(order, score.segments or self.counter.count(marks), added, dropped, traffic_hops)

    def largest(self, values: NDArray[np.generic], marks: _Marks) -> int:
        """Of the routers that may be upgraded next the one with the largest value, of equals the first in the file."""
        return int(np.argmax(np.where(self.limits.open_to(marks), values, -1)))


def plan_upgrade(
    counter: SegmentCounter,
    count: int,
    *,
    strategy: Strategy = Strategy.GREEDY,
    seed: int = 0,
    limits: Limits = NO_LIMITS,
    traffic: TrafficCounter | None = None,
) -> Iterator[UpgradeStep]:
    """Steps of one more m-router each, from none to `count`, within `limits`, for `traffic` if it is known.

    >>> from sojourn.mplane.planning.paths import shortest_paths
    >>> from sojourn.mplane.planning.topology import triangle
    >>> counter = SegmentCounter(shortest_paths(triangle()))
    >>> [step.upgraded for step in plan_upgrade(counter, 2, limits=Limits(cannot=frozenset({0})))]
    [(), (1,), (1, 2)]
    """
    limits.check(count, counter.paths.routers)
    planner = _Planner(counter, traffic, limits)
    choose: dict[Strategy, Callable[[], Iterator[_Scored]]] = {
        Strategy.GREEDY: lambda: _most_crossed(planner, count),
        Strategy.RANDOM: lambda: _at_random(planner, count, seed),
        Strategy.BEST: lambda: _best_sets(planner, count),
    }
    return _steps(planner, choose[strategy]())


def plan_as_dict(
    paths: ShortestPaths, strategy: str, steps: Sequence[UpgradeStep], limits: Limits = NO_LIMITS
) -> dict[str, object]:
    """A plan with the network that it is of, as plain values, routers by name: what commands and the interface give.

    >>> from sojourn.mplane.planning.paths import shortest_paths
    >>> from sojourn.mplane.planning.topology import triangle
    >>> paths = shortest_paths(triangle())
    >>> plan_as_dict(paths, "greedy", list(plan_upgrade(SegmentCounter(paths), 1)))["upgraded"]
    ['a']
    """
    names = paths.topology.names
    return {
        "nodes": paths.routers,
        "links": paths.topology.links,
        "paths": steps[0].segments.paths,
        "unreachable_pairs": paths.unreachable_pairs,
        "strategy": strategy,
        "cannot": [names[router] for router in sorted(limits.cannot)],
        "must": [names[router] for router in sorted(limits.must)],
        "upgraded": [names[router] for router in steps[-1].upgraded],
        "steps": [step.to_dict(names) for step in steps],
    }


def _steps(planner: _Planner, sets: Iterator[_Scored]) -> Iterator[UpgradeStep]:
    order: tuple[int, ...] = ()
    for marks, score in sets:
        step = planner.step(marks, score, before=order)
        order = step.upgraded
        yield step


def _most_crossed(planner: _Planner, count: int) -> Iterator[_Scored]:
    """Algorithm 1: the router inside most segments (that most traffic crosses) first."""
    marks = planner.counter.nothing_upgraded()
    for upgraded in range(count + 1):
        score = planner.score(marks)
        yield marks.copy(), score
        if upgraded < count:
            marks[planner.largest(score.crossing, marks)] = True


def _at_random(planner: _Planner, count: int, seed: int) -> Iterator[_Scored]:
    limits = planner.limits
    order = np.random.default_rng(seed).permutation(planner.counter.paths.routers).tolist()
    allowed = [router for router in order if router not in limits.cannot]
    allowed.sort(key=lambda router: router not in limits.must)
    for upgraded in range(count + 1):
        marks = planner.counter.nothing_upgraded()
        marks[allowed[:upgraded]] = True
        yield marks, planner.score(marks)


def _best_sets(planner: _Planner, count: int) -> Iterator[_Scored]:
    marks = planner.counter.nothing_upgraded()
    everything = ~marks
    everything[list(planner.limits.cannot)] = False
    least, worth = planner.score(everything).hops, _ROUNDING * planner.score(marks).hops
    for published, score in _most_crossed(planner, count):
        if published.any():
            hops = _add_most_saving(planner, marks)
            if score.hops < hops:
                marks, hops = published, score.hops
            if hops > least + worth:
                _exchange(planner, marks, hops, worth)
        yield marks.copy(), planner.score(marks)


def _add_most_saving(planner: _Planner, marks: _Marks) -> float:
    """Mark the router that saves most hops; the hops left."""
    score = planner.score(marks)
    chosen = planner.largest(score.relief, marks)
    marks[chosen] = True
    return score.hops - float(score.relief[chosen])


def _exchange(planner: _Planner, marks: _Marks, hops: float, worth: float) -> None:
    """Exchange m-routers for others, one by one, while hops are saved that are `worth` it."""
    for _ in range(_MAX_ROUNDS):
        before = hops
        for router in np.flatnonzero(marks):
            marks[router] = False
            score = planner.score(marks)
            other = planner.largest(score.relief, marks)
            left = score.hops - float(score.relief[other])
            # Of equals the old one stays, so that sets change only for a gain.
            is_gain = left < hops - (worth if planner.traffic is not None else 0)
            marks[other if is_gain else router] = True
            hops = left if is_gain else hops
        if hops == before:
            return
