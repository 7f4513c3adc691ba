"""The exact answer of every stretch of time: packets by when they were sent, in the sender's clock.

A stretch begins at a multiple of its length since the Unix epoch. A consumer of packets like others (`consumers`): a
number stands for one flow in one stretch. Memory: 136 bytes for each flow of each stretch, the rows of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.matching.bursts import FlowBursts
from sojourn.matching.consumers import LostColumns, MatchedColumns, PacketConsumer
from sojourn.matching.exact import ExactMatch, MeasuredFlows
from sojourn.matching.numbers import FlowNumbers
from sojourn.matching.percentiles import FlowPercentiles
from sojourn.matching.statistics import DelayTotals

_FLOW_BITS = 32


class IntervalTotals:
    """Adds up packets by flow and stretch; `check` is told the time spanned so far, and may refuse it."""

    def __init__(self, interval_ns: int, check: Callable[[int], None] = lambda _: None) -> None:
        self.interval_ns = interval_ns
        self._check = check
        self._numbers = FlowNumbers()
        self._totals = DelayTotals()
        self._tails: tuple[PacketConsumer, ...] = (FlowPercentiles(), FlowBursts())
        self._first_ns: int | None = None
        self._span = 0, 0
        self._slots: set[int] = set()

    def _number(self, flow: Int64Array, sent_ns: Int64Array) -> Int64Array:
        if self._first_ns is None:
            # Packets may come later that were sent earlier: stretches are counted from one far before.
            self._first_ns = (int(sent_ns[0]) // self.interval_ns - (1 << 20)) * self.interval_ns
            self._span = int(sent_ns[0]), int(sent_ns[0])
        self._span = min(self._span[0], int(sent_ns.min())), max(self._span[1], int(sent_ns.max()))
        self._check(self._span[1] - self._span[0])
        slot = (sent_ns - self._first_ns) // self.interval_ns
        self._slots.update(np.unique(slot).tolist())
        return self._numbers.of((slot.astype(np.uint64) << np.uint64(_FLOW_BITS)) | flow.astype(np.uint64))

    def take_matched(self, packets: MatchedColumns) -> None:
        if len(packets):
            numbered = replace(packets, flow=self._number(packets.flow, packets.sent_ns))
            self._totals.take_matched(numbered)
            for tail in self._tails:
                tail.take_matched(numbered)

    def take_lost(self, packets: LostColumns) -> None:
        if len(packets):
            numbered = replace(packets, flow=self._number(packets.flow, packets.sent_ns))
            self._totals.take_lost(numbered)
            for tail in self._tails:
                tail.take_lost(numbered)

    def columns(self, flow: Int64Array) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002
        """Flows as a whole have nothing of this."""
        return {}

    def totals(self, flow: Int64Array) -> Mapping[str, float | int | None]:  # noqa: ARG002
        return {}

    def ended(self, before_ns: int) -> int:
        """How many stretches with packets ended before a time."""
        first, length = self._first_ns or 0, self.interval_ns
        return sum(first + (slot + 1) * length <= before_ns for slot in self._slots)

    def answers(self, match: ExactMatch, *, before_ns: int | None = None) -> list[tuple[int, ExactMatch]]:
        """When each stretch begins and its answer, for the flows that the whole measures; `before_ns`: ended ones."""
        keys = self._numbers.ids
        flow = (keys & np.uint64((1 << _FLOW_BITS) - 1)).astype(np.int64)
        slot = (keys >> np.uint64(_FLOW_BITS)).astype(np.int64)
        place = np.full(int(flow.max(initial=-1)) + 1, -1, np.int64)
        known = match.numbers[match.numbers < len(place)]
        place[known] = np.arange(len(match.numbers))[match.numbers < len(place)]
        rows = np.flatnonzero(place[flow] >= 0) if len(flow) else np.empty(0, np.int64)
        found = []
        for one in np.unique(slot[rows]).tolist():
            start_ns = (self._first_ns or 0) + one * self.interval_ns
            if before_ns is not None and start_ns + self.interval_ns > before_ns:
                continue
            own = rows[slot[rows] == one]
            ids = match.flows.flow_id[place[flow[own]]]
            found.append((start_ns, self._part(match, own, ids)))
        return found

    def _part(self, match: ExactMatch, numbers: Int64Array, ids: UInt64Array) -> ExactMatch:
        """The answer with the flows and the aggregate of one stretch."""
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
