"""M-sets that follow a network: its topology is polled.

A router that disappears keeps its number, and a new one gets the next, so that the numbers of the m-sets before and
after a change mean the same routers. Until routing has converged packets may take the old paths or the new ones:
whoever monitors keeps what a change replaced for a hold time (`probes.Prober.probe`).

Costs one reading per poll; a change costs what `m_sets_after_change` costs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from sojourn.core.errors import ParameterError, SojournError, UsageError
from sojourn.core.units import parse_duration
from sojourn.mplane.planning.paths import shortest_paths
from sojourn.mplane.planning.segments import MSets, m_sets, m_sets_after_change
from sojourn.mplane.planning.topology import Topology

_Seen = TypeVar("_Seen")
_WAKE_SECONDS = 0.1
_LEAST_EVERY_NS, MOST_NS = 100_000_000, 86_400 * 10**9


@dataclass
class Patience:
    """How often to look (ns), for how long (None: for ever), and whether someone has had enough."""

    every_ns: int
    for_ns: int | None = None
    is_over: bool = False

    @classmethod
    def parse(cls, every: str, duration: str | None) -> Patience:
        """From texts such as ``1s``."""
        patience = cls(parse_duration(every), None if duration is None else parse_duration(duration))
        if not _LEAST_EVERY_NS <= patience.every_ns <= MOST_NS:
            raise ParameterError("out of range", where="--every", action="use 100ms to 24h")
        if patience.for_ns is not None and patience.for_ns <= 0:
            raise ParameterError("no time to watch for", where="--for", action="give more than 0")
        return patience

    def stop(self) -> None:
        """End soon; may be called from a signal handler."""
        self.is_over = True


def repeatedly(
    look: Callable[[], _Seen], patience: Patience, on_error: Callable[[SojournError], None] | None = None
) -> Iterator[_Seen]:
    """What is seen at every look; at least one is taken.

    What the first look raises passes through. Where a later one fails nothing is given, and `on_error` gets the first
    of such looks in a row.
    """
    end = math.inf if patience.for_ns is None else time.monotonic_ns() + patience.for_ns
    is_silent, has_seen = False, False
    while True:
        try:
            seen = look()
        except SojournError as error:
            if not has_seen:
                raise
            if not is_silent and on_error is not None and not patience.is_over:
                on_error(error)
            is_silent = True
        else:
            is_silent, has_seen = False, True
            yield seen
        due = min(time.monotonic_ns() + patience.every_ns, end)
        while not patience.is_over and (left := (due - time.monotonic_ns()) / 1e9) > 0:
            time.sleep(min(left, _WAKE_SECONDS))
        if patience.is_over or due == end:
            return


# A link's ends and its weight.
NamedLink = tuple[str, str, int]


@dataclass(frozen=True)
class Change:
    """The m-sets in force from a time on, those before (None at first), and the links that went and came."""

    at_ns: int
    before: MSets | None
    after: MSets
    gone: tuple[NamedLink, ...]
    come: tuple[NamedLink, ...]


class TopologyWatch:
    """Polls a topology; `upgraded` names the m-routers, which must be there at the first poll.

    `sets` are the m-sets in force, once there are any.
    """

    def __init__(self, read: Callable[[], Topology], upgraded: Sequence[str] = ()) -> None:
        self._read, self._upgraded = read, tuple(upgraded)
        self.sets: MSets | None = None

    def poll(self, now_ns: int) -> Change | None:
        """Read the topology; the change if there is one, which the first reading always is.

        What the reading raises passes through, and leaves all as it was.
        """
        topology, before = self._read(), self.sets
        if before is None:
            self.sets = self._fresh(topology)
            return Change(now_ns, None, self.sets, (), tuple(_links(topology)))
        names = before.shortest.topology.names
        new = tuple(name for name in topology.names if name not in set(names))
        if new:
            before = self._fresh(renumbered(before.shortest.topology, (*names, *new)))
        topology = renumbered(topology, (*names, *new))
        old, fresh = set(_links(before.shortest.topology)), set(_links(topology))
        if old == fresh and not new:
            return None
        if topology.weight_unit != before.shortest.topology.weight_unit:
            self.sets = m_sets(shortest_paths(topology), before.upgraded)
        else:
            self.sets = m_sets_after_change(before, topology)
        return Change(now_ns, before, self.sets, tuple(sorted(old - fresh)), tuple(sorted(fresh - old)))

    def _fresh(self, topology: Topology) -> MSets:
        marks = np.zeros(len(topology.names), dtype=np.bool_)
        marks[[topology.router(name) for name in self._upgraded]] = True
        return m_sets(shortest_paths(topology), marks)

    def changes(
        self, patience: Patience, *, on_error: Callable[[SojournError], None] | None = None
    ) -> Iterator[Change]:
        """Changes as they are seen, reading again and again.

        Where a later reading fails the m-sets stay in force; `on_error` gets the first error of such readings in a row.
        """
        looks = repeatedly(lambda: self.poll(time.time_ns()), patience, on_error)
        return (change for change in looks if change is not None)


def renumbered(topology: Topology, names: tuple[str, ...]) -> Topology:
    """The same links among `names`, which include all of the topology's routers and give the order."""
    if names == topology.names:
        return topology
    place = {name: number for number, name in enumerate(names)}
    missing = [name for name in topology.names if name not in place]
    if missing:
        raise UsageError(f"the router {missing[0]} has no number", where="topology")
    number = np.array([place[name] for name in topology.names], dtype=np.int32)
    source, target = number[topology.source], number[topology.target]
    order = np.lexsort((target, source))
    degree = np.bincount(source, minlength=len(names))
    return Topology(
        names,
        np.concatenate(([0], np.cumsum(degree))),
        target[order],
        topology.weight[order],
        topology.latency_ns[order],
        topology.weight_unit,
        topology.remarks,
        {(int(number[u]), int(number[v])): rate for (u, v), rate in topology.rates.items()},
    )


def _links(topology: Topology) -> list[NamedLink]:
    names = topology.names
    ends = zip(topology.source.tolist(), topology.target.tolist(), topology.weight.tolist(), strict=True)
    return [(names[u], names[v], weight) for u, v, weight in ends]
