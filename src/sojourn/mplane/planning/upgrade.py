"""Which routers to upgrade: the paper's Algorithm 1, at random, and better.

What upgrading saves is a weighted cover: a path counts as saved once any router inside it is an m-router. Hence
upgrades help less the more there are, and adding the router that saves most is never far from the best (`greedy` adds
the one that most *paths* cross, as published; a hop count is what is to be reduced).

`best` looks for the best set of each size, not for an order: it begins with the better of Algorithm 1's set and its
own previous set with the router that saves most, then exchanges routers one for one while that saves hops. So it is
never worse than `greedy` at any size. From one size to the next it may drop a router.

A step costs one count of all segments (`segments`), for `best` about as many as routers upgraded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ParameterError
from sojourn.mplane.planning.segments import SegmentCounter, Segments

__all__ = ["Strategy", "UpgradeStep", "plan_upgrade"]

# Rounds of exchanges for one size: a bound on time, not reached on any map tried.
_MAX_ROUNDS = 20


class Strategy(StrEnum):
    """How routers are chosen."""

    GREEDY = "greedy"
    RANDOM = "random"
    BEST = "best"


# Marked m-routers, and the segments between them.
_Counted: TypeAlias = tuple[NDArray[np.bool_], Segments]


@dataclass(frozen=True)
class UpgradeStep:
    """The m-routers after a step, which were added and dropped in it, and the segments there are now."""

    upgraded: tuple[int, ...]
    segments: Segments
    added: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


def plan_upgrade(
    counter: SegmentCounter, count: int, *, strategy: Strategy = Strategy.GREEDY, seed: int = 0
) -> Iterator[UpgradeStep]:
    """Steps of one more m-router each, from none to `count`.

    >>> from sojourn.mplane.planning.paths import shortest_paths
    >>> from sojourn.mplane.planning.topology import triangle
    >>> counter = SegmentCounter(shortest_paths(triangle()))
    >>> [step.upgraded for step in plan_upgrade(counter, 2)]
    [(), (0,), (0, 1)]
    """
    routers = counter.paths.routers
    if not 0 <= count <= routers:
        raise ParameterError(f"{count} routers to upgrade of {routers}", action=f"upgrade 0 to {routers}")
    choose: dict[Strategy, Callable[[], Iterator[_Counted]]] = {
        Strategy.GREEDY: lambda: _most_crossed(counter, count),
        Strategy.RANDOM: lambda: _at_random(counter, count, seed),
        Strategy.BEST: lambda: _best_sets(counter, count),
    }
    return _steps(choose[strategy]())


def _steps(sets: Iterator[_Counted]) -> Iterator[UpgradeStep]:
    """Each set as a step from the one before; m-routers stay in the order in which they came."""
    order: tuple[int, ...] = ()
    for marks, segments in sets:
        added = tuple(int(router) for router in np.flatnonzero(marks) if router not in order)
        dropped = tuple(router for router in order if not marks[router])
        order = (*(router for router in order if marks[router]), *added)
        yield UpgradeStep(order, segments, added, dropped)


def _most_crossed(counter: SegmentCounter, count: int) -> Iterator[_Counted]:
    """Algorithm 1: the router inside most segments first, of equals the first in the file."""
    marks = counter.nothing_upgraded()
    for upgraded in range(count + 1):
        segments, crossing, _ = counter.score(marks)
        yield marks.copy(), segments
        if upgraded < count:
            marks[np.argmax(np.where(marks, -1, crossing))] = True


def _at_random(counter: SegmentCounter, count: int, seed: int) -> Iterator[_Counted]:
    order = np.random.default_rng(seed).permutation(counter.paths.routers)
    for upgraded in range(count + 1):
        marks = counter.nothing_upgraded()
        marks[order[:upgraded]] = True
        yield marks, counter.count(marks)


def _best_sets(counter: SegmentCounter, count: int) -> Iterator[_Counted]:
    marks = counter.nothing_upgraded()
    least = counter.count(~marks).hops
    for published, segments in _most_crossed(counter, count):
        if published.any():
            hops = _add_most_saving(counter, marks)
            if segments.hops < hops:
                marks, hops = published, segments.hops
            if hops > least:
                _exchange(counter, marks, hops)
        yield marks.copy(), counter.count(marks)


def _add_most_saving(counter: SegmentCounter, marks: NDArray[np.bool_]) -> int:
    """Mark the router that saves most hops; the hops left."""
    segments, _, relief = counter.score(marks)
    chosen = int(np.argmax(np.where(marks, -1, relief)))
    marks[chosen] = True
    return segments.hops - int(relief[chosen])


def _exchange(counter: SegmentCounter, marks: NDArray[np.bool_], hops: int) -> None:
    """Exchange m-routers for others, one by one, while hops are saved."""
    for _ in range(_MAX_ROUNDS):
        before = hops
        for router in np.flatnonzero(marks):
            marks[router] = False
            segments, _, relief = counter.score(marks)
            other = int(np.argmax(np.where(marks, -1, relief)))
            # Of equals the old one stays, so that sets change only for a gain.
            marks[other if segments.hops - relief[other] < hops else router] = True
            hops = min(hops, segments.hops - int(relief[other]))
        if hops == before:
            return
