"""The exact answer of every group of packets, flow by flow: of stretches of time (`intervals`), or of DSCP classes.

A number of the statistics stands for one flow in one group. Memory: 136 bytes for each flow of each group, and what
its percentiles take.

**Classes.** A packet's class is the sender's: routers may mark it anew on its way, and drop by what they read. Matching
knows packets by their position, so `SenderClasses` keeps the classes of those that are still on their way: one byte
each. Cost: about 40 ns per packet, where classes are asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.matching.bursts import FlowBursts
from sojourn.matching.consumers import LostColumns, MatchedColumns, PacketConsumer
from sojourn.matching.exact import ExactMatch, MeasuredFlows
from sojourn.matching.numbers import FlowNumbers
from sojourn.matching.percentiles import FlowPercentiles
from sojourn.matching.statistics import DelayTotals

_FLOW_BITS = 32
_FIRST_RING = 1 << 16


class GroupTotals:
    """Adds up packets by flow and group; groups are numbers from 0 to 2³² − 1."""

    def __init__(self) -> None:
        self._numbers = FlowNumbers()
        self._totals = DelayTotals()
        self._tails: tuple[PacketConsumer, ...] = (FlowPercentiles(), FlowBursts())

    def add_matched(self, packets: MatchedColumns, group: Int64Array) -> None:
        """The next packets seen at both points, in match order."""
        if len(packets):
            numbered = replace(packets, flow=self._number(packets.flow, group))
            self._totals.take_matched(numbered)
            for tail in self._tails:
                tail.take_matched(numbered)

    def add_lost(self, packets: LostColumns, group: Int64Array) -> None:
        """The next packets known to be lost."""
        if len(packets):
            numbered = replace(packets, flow=self._number(packets.flow, group))
            self._totals.take_lost(numbered)
            for tail in self._tails:
                tail.take_lost(numbered)

    def _number(self, flow: Int64Array, group: Int64Array) -> Int64Array:
        return self._numbers.of((group.astype(np.uint64) << np.uint64(_FLOW_BITS)) | flow.astype(np.uint64))

    def _measured(self, match: ExactMatch) -> tuple[Int64Array, Int64Array, Int64Array]:
        """The numbers of the flows that the whole measures: numbers, their groups, the flows' rows in the whole."""
        keys = self._numbers.ids
        flow = (keys & np.uint64((1 << _FLOW_BITS) - 1)).astype(np.int64)
        group = (keys >> np.uint64(_FLOW_BITS)).astype(np.int64)
        place = np.full(int(flow.max(initial=-1)) + 1, -1, np.int64)
        known = match.numbers[match.numbers < len(place)]
        place[known] = np.arange(len(match.numbers))[match.numbers < len(place)]
        rows = np.flatnonzero(place[flow] >= 0) if len(flow) else np.empty(0, np.int64)
        return rows, group[rows], place[flow[rows]]

    def answers_of(self, match: ExactMatch, wanted: Callable[[int], bool]) -> list[tuple[int, ExactMatch]]:
        """The answer of each wanted group, for the flows that the whole measures."""
        rows, group, place = self._measured(match)
        found = []
        for one in filter(wanted, np.unique(group).tolist()):
            own = group == one
            found.append((one, self._part(match, rows[own], match.flows.flow_id[place[own]])))
        return found

    def _part(self, match: ExactMatch, numbers: Int64Array, ids: UInt64Array) -> ExactMatch:
        """The answer with the flows and the aggregate of one group."""
        delays, lost = self._totals.statistics(numbers), self._totals.lost(numbers)
        none = np.zeros(len(numbers), np.int64)
        flows = MeasuredFlows(
            **vars(delays),
            flow_id=ids,
            packets=delays.received + lost,
            lost=lost,
            duplicates=none,
            receiver_only=none,
            edge=none,
        )
        return ExactMatch(
            flows=flows,
            numbers=numbers,
            unmatched_flows=match.unmatched_flows,
            aggregate=self._totals.aggregate(numbers),
            clock=match.clock,
            explanation=match.explanation,
            left_out={},
            tails=self._tails,
        )


class ClassTotals(GroupTotals):
    """The same by DSCP."""

    def answers(self, match: ExactMatch) -> list[tuple[int, ExactMatch]]:
        """Each DSCP and its answer."""
        return self.answers_of(match, lambda _: True)

    def only_class(self, match: ExactMatch) -> Int64Array:
        """The DSCP of each measured flow; −1 of those that have several, or none."""
        _, group, place = self._measured(match)
        only = np.full(len(match.numbers), -1, np.int64)
        only[place] = group
        only[np.bincount(place, minlength=len(only)) != 1] = -1
        return only


class SenderClasses:
    """The classes of the sender's packets by their position, as long as they may be asked for."""

    def __init__(self) -> None:
        self._ring = np.zeros(_FIRST_RING, np.uint8)
        self._batches: deque[tuple[int, int]] = deque()  # position behind each batch, and its last time
        self._first = self._next = 0

    def add(self, classes: UInt8Array, last_ns: int) -> None:
        """The next packets' classes, and the time of the last."""
        start, self._next = self._next, self._next + len(classes)
        self._batches.append((self._next, last_ns))
        size = len(self._ring)
        while size < self._next - self._first:
            size *= 2
        if size > len(self._ring):
            position = np.arange(self._first, start)
            wider = np.zeros(size, np.uint8)
            wider[position & (size - 1)] = self.of(position)
            self._ring = wider
        self._ring[np.arange(start, self._next) & (size - 1)] = classes

    def of(self, position: Int64Array) -> UInt8Array:
        found: UInt8Array = self._ring[position & (len(self._ring) - 1)]
        return found

    def forget(self, before_ns: int) -> None:
        """Nobody will ask for packets before this time."""
        while self._batches and self._batches[0][1] < before_ns:
            self._first = self._batches.popleft()[0]


def class_name(dscp: int) -> str:
    """What a DSCP is called (RFC 2474, 2597, 3246, 5865, 8622); its number where it has no name.

    >>> [class_name(dscp) for dscp in (0, 1, 46, 26, 48, 7)]
    ['CS0', 'LE', 'EF', 'AF31', 'CS6', '7']
    """
    names = {1: "LE", 44: "VA", 46: "EF"}
    if dscp in names:
        return names[dscp]
    if dscp % 8 == 0:
        return f"CS{dscp // 8}"
    if dscp // 8 in range(1, 5) and dscp % 8 in (2, 4, 6):
        return f"AF{dscp // 8}{dscp % 8 // 2}"
    return str(dscp)
