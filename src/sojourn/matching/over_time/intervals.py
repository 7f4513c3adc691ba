"""The exact answer of every stretch of time: packets by when they were sent, in the sender's clock.

A stretch begins at a multiple of its length since the Unix epoch. A consumer of packets like others (`consumers`): its
groups (`groups`) are stretches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import Int64Array
from sojourn.matching.consumers import LostColumns, MatchedColumns
from sojourn.matching.exact import ExactMatch
from sojourn.matching.groups import GroupTotals


class IntervalTotals(GroupTotals):
    """Adds up packets by flow and stretch; `check` is told the time spanned so far, and may refuse it."""

    def __init__(self, interval_ns: int, check: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        self.interval_ns = interval_ns
        self._check = check
        self._first_ns: int | None = None
        self._span = 0, 0
        self._slots: set[int] = set()

    def _slot(self, sent_ns: Int64Array) -> Int64Array:
        if not len(sent_ns):
            return sent_ns
        if self._first_ns is None:
            # Packets may come later that were sent earlier: stretches are counted from one far before.
            self._first_ns = (int(sent_ns[0]) // self.interval_ns - (1 << 20)) * self.interval_ns
            self._span = int(sent_ns[0]), int(sent_ns[0])
        self._span = min(self._span[0], int(sent_ns.min())), max(self._span[1], int(sent_ns.max()))
        self._check(self._span[1] - self._span[0])
        slot = (sent_ns - self._first_ns) // self.interval_ns
        self._slots.update(np.unique(slot).tolist())
        return slot

    def take_matched(self, packets: MatchedColumns) -> None:
        self.add_matched(packets, self._slot(packets.sent_ns))

    def take_lost(self, packets: LostColumns) -> None:
        self.add_lost(packets, self._slot(packets.sent_ns))

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
        first, length = self._first_ns or 0, self.interval_ns
        parts = self.answers_of(match, lambda slot: before_ns is None or first + (slot + 1) * length <= before_ns)
        return [(first + slot * length, part) for slot, part in parts]
