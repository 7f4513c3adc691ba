"""M-sets that follow a network: its topology is polled, and old m-sets stay monitored for the hold time after a change.

Until routing has converged packets may take the old paths or the new ones, so both are monitored
(`segments.monitored_at`). A router that disappears keeps its number, and a new one gets the next, so that the numbers
in all retained m-sets mean the same routers.

Costs one reading per poll; a change costs what `m_sets_after_change` costs. Retained are the m-sets of the hold time,
at most `MAX_HISTORY`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ParameterError, SojournError, UsageError
from sojourn.core.units import parse_duration
from sojourn.mplane.planning.paths import shortest_paths
from sojourn.mplane.planning.segments import MSets, m_sets, m_sets_after_change, monitored_at
from sojourn.mplane.planning.topology import Topology

_Seen = TypeVar("_Seen")
_WAKE_SECONDS = 0.1
_LEAST_EVERY_NS, _MOST_NS = 100_000_000, 86_400 * 10**9


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
        if not _LEAST_EVERY_NS <= patience.every_ns <= _MOST_NS:
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


MAX_HISTORY = 1_000

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
    """Polls a topology; `upgraded` names the m-routers, which must be there at the first poll."""

    def __init__(self, read: Callable[[], Topology], upgraded: Sequence[str] = (), *, hold_ns: int) -> None:
        if not 0 <= hold_ns <= _MOST_NS:
            raise ParameterError(f"a hold time of {hold_ns} ns", where="--hold", action="use 0 to 24h")
        self._read = read
        self._upgraded = tuple(upgraded)
        self._hold_ns = hold_ns
        self._history: list[tuple[int, MSets]] = []

    @property
    def history(self) -> tuple[tuple[int, MSets], ...]:
        """Since when which m-sets are in force: the newest, and older ones within their hold time."""
        return tuple(self._history)

    def poll(self, now_ns: int) -> Change | None:
        """Read the topology; the change if there is one, which the first reading always is.

        What the reading raises passes through, and leaves all as it was.
        """
        topology = self._read()
        if not self._history:
            sets = m_sets(shortest_paths(topology), self._marks(topology))
            self._history.append((now_ns, sets))
            return Change(now_ns, None, sets, (), tuple(_links(topology)))
        self._forget(now_ns)
        names = self._history[-1][1].shortest.topology.names
        new = tuple(name for name in topology.names if name not in set(names))
        if new:
            self._add_routers((*names, *new))
        before = self._history[-1][1]
        topology = renumbered(topology, (*names, *new))
        old, fresh = set(_links(before.shortest.topology)), set(_links(topology))
        if old == fresh and not new:
            return None
        after = self._after_change(before, topology)
        self._history.append((now_ns, after))
        return Change(now_ns, before, after, tuple(sorted(old - fresh)), tuple(sorted(fresh - old)))

    def changes(
        self, patience: Patience, *, on_error: Callable[[SojournError], None] | None = None
    ) -> Iterator[Change]:
        """Changes as they are seen, reading again and again.

        Where a later reading fails the m-sets stay in force; `on_error` gets the first error of such readings in a row.
        """
        looks = repeatedly(lambda: self.poll(time.time_ns()), patience, on_error)
        return (change for change in looks if change is not None)

    def monitored(self, now_ns: int) -> dict[str, list[str]]:
        """By node the routers it monitors at a time, those within their hold time among them."""
        names = self._history[-1][1].shortest.topology.names if self._history else ()
        sets = monitored_at(self._history, now_ns, hold_ns=self._hold_ns)
        return {names[node]: [names[router] for router in sorted(routers)] for node, routers in enumerate(sets)}

    def _after_change(self, before: MSets, topology: Topology) -> MSets:
        if topology.weight_unit != before.shortest.topology.weight_unit:
            return m_sets(shortest_paths(topology), before.upgraded)
        return m_sets_after_change(before, topology)

    def _marks(self, topology: Topology) -> NDArray[np.bool_]:
        marks = np.zeros(len(topology.names), dtype=np.bool_)
        marks[[topology.router(name) for name in self._upgraded]] = True
        return marks

    def _forget(self, now_ns: int) -> None:
        """Drop m-sets whose hold time is over; the newest stay always."""
        ends = [since + self._hold_ns for since, _ in self._history[1:]]
        over = sum(end <= now_ns for end in ends)
        self._history = self._history[max(over, len(self._history) - MAX_HISTORY + 1) :]

    def _add_routers(self, names: tuple[str, ...]) -> None:
        """Let all kept m-sets know routers that came later."""
        for i, (since, sets) in enumerate(self._history):
            topology = renumbered(sets.shortest.topology, names)
            self._history[i] = since, m_sets(shortest_paths(topology), self._marks(topology))


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
