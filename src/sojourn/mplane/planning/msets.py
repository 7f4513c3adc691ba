"""What each m-router and m-server monitors: its m-set, before and after links fail.

A node follows its shortest paths up to the first m-router on each; what lies behind is that m-router's to monitor. The
m-servers that it meets on the way it monitors itself, and looks past them: a packet in transit does not pass through a
server. So a node's m-set holds every router that a shortest path without an m-router inside leads to. Where only some
of the equal-cost paths to a router are without one, these stay with the node (D₂ in the paper's Fig. 8) and `paths` is
less than `equal_cost`.

Every measurement of a path of the network is then a sum over segments: all nodes' m-sets together hold each segment of
`sojourn.mplane.planning.segments` once, and this is tested.

Costs one walk over a router's links per node; when links fail, only for nodes whose own shortest paths did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ParameterError
from sojourn.mplane.planning.paths import ShortestPaths, after_change
from sojourn.mplane.planning.segments import paths_from
from sojourn.mplane.planning.topology import Topology

__all__ = ["MSet", "MSets", "m_sets", "m_sets_after_change", "monitored_at"]


@dataclass(frozen=True)
class MSet:
    """The routers that one node monitors, nearest first; over how many paths, of how many equal-cost ones there
    are."""

    target: NDArray[np.int32]
    paths: NDArray[np.int64]
    equal_cost: NDArray[np.int64]

    def same_as(self, other: MSet) -> bool:
        """Whether both hold the same routers and paths."""
        columns = ((self.target, other.target), (self.paths, other.paths), (self.equal_cost, other.equal_cost))
        return all(np.array_equal(mine, theirs) for mine, theirs in columns)


@dataclass(frozen=True)
class MSets:
    """The m-set of every node by its number; nodes marked in `upgraded` are m-routers, the others have m-servers."""

    shortest: ShortestPaths
    upgraded: NDArray[np.bool_]
    sets: tuple[MSet, ...]

    def of(self, router: int) -> MSet:
        return self.sets[router]


def m_sets(shortest: ShortestPaths, upgraded: NDArray[np.bool_]) -> MSets:
    """The m-sets of all nodes, given the m-routers."""
    return MSets(shortest, upgraded.copy(), tuple(_m_set(shortest, upgraded, s) for s in range(shortest.routers)))


def m_sets_after_change(sets: MSets, topology: Topology) -> MSets:
    """The m-sets once links have failed or come back; nodes whose shortest paths are the same keep theirs."""
    shortest, changed = after_change(sets.shortest, topology)
    renewed = {int(s): _m_set(shortest, sets.upgraded, int(s)) for s in changed}
    return MSets(shortest, sets.upgraded, tuple(renewed.get(s, old) for s, old in enumerate(sets.sets)))


def monitored_at(history: Sequence[tuple[int, MSets]], now_ns: int, *, hold_ns: int) -> list[frozenset[int]]:
    """By node the routers it monitors at a time, given since when (ns, ascending) which m-sets hold.

    The newest sets are monitored, and older ones until `hold_ns` after they were replaced, so that every path is
    covered while routing converges, also when one change follows another.
    """
    times = [since for since, _ in history]
    if hold_ns < 0 or times != sorted(times):
        raise ParameterError("m-sets are out of order in time, or the hold time is negative", where="monitored_at")
    begun = [sets for since, sets in history if since <= now_ns]
    replaced = [*times[1 : len(begun)], None]
    held = [sets for sets, until in zip(begun, replaced, strict=False) if until is None or now_ns < until + hold_ns]
    if not held:
        raise ParameterError("no m-sets hold yet at that time", where="monitored_at")
    nodes = range(len(held[0].sets))
    return [frozenset(int(t) for sets in held for t in sets.of(node).target) for node in nodes]


def _m_set(shortest: ShortestPaths, upgraded: NDArray[np.bool_], source: int) -> MSet:
    others = shortest.order[source, 1 : shortest.reached[source]]
    staying = paths_from(shortest, source, upgraded)
    equal_cost = paths_from(shortest, source, np.zeros_like(upgraded))
    target = others[staying[others] > 0]
    return MSet(target, staying[target], equal_cost[target])
