"""What was recorded of each flow's packets: cells, sampled packets, and the totals of the groups that are sampled.

A number of packets (sent, or lost) is known to cells as a value with a precision and as sure bounds (`Heard`). A sample
has n of a flow's packets, each of which it kept with probability p, and knows which of them are missing at the receiver
(`SampledPackets`). It also counts all packets of each group of flows at both ends, so that where every flow is listed
the flows of a group add up: their bounds bound each other (`squeezed`), and answers can be whole numbers that add up,
too (`rounded_within`).

Cost: O(flows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray, Int32Array, Int64Array
from sojourn.core.kernels import inlined, kernel

# Bounds move bounds; after so many rounds hardly any more.
ROUNDS = 3
LEAST_VARIANCE = 1e-12
# Deviations, and copies as many, beyond which Poisson's number lies once in 30,000 flows or seldomer.
MOST_COPIES = 4.0
MOVES = 8
SETTLED = 1e-9


class Heard(NamedTuple):
    """What cells say of a number of packets of each flow: a value with a precision (0: nothing), and sure bounds."""

    value: FloatArray
    precision: FloatArray
    low: FloatArray
    high: FloatArray

    @classmethod
    def nothing(cls, flows: int, most: float) -> Heard:
        none = np.zeros(flows)
        return cls(none, none, none, np.full(flows, most))

    @classmethod
    def exactly(cls, value: FloatArray) -> Heard:
        return cls(value, np.zeros(len(value)), value, value)

    def less(self, other: Heard) -> Heard:
        """The difference of two numbers that are known apart."""
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = np.where(self.low == self.high, 0.0, 1 / self.precision)
            variance += np.where(other.low == other.high, 0.0, 1 / other.precision)
            precision = np.where(variance > 0, 1 / variance, 0.0)
        return Heard(self.value - other.value, precision, self.low - other.high, self.high - other.low)

    @classmethod
    def of_columns(cls, columns: FloatArray) -> Heard:
        """The inverse of `columns`."""
        return cls(*(np.ascontiguousarray(column) for column in columns.T))

    def within(self, low: FloatArray, high: FloatArray) -> Heard:
        """The same, with bounds that are sure as well; those of flows that contradict them are left alone."""
        lower, upper = np.maximum(self.low, low), np.minimum(self.high, high)
        fits = lower <= upper
        return self._replace(low=np.where(fits, lower, self.low), high=np.where(fits, upper, self.high))

    def with_copies(self, expected: FloatArray) -> Heard:
        """The same of losses that as many copies hide as are `expected` of each flow: Poisson's number of them, and no
        more than its deviations allow."""
        exact = self.low == self.high
        own = np.where(exact, 0.0, 1 / np.maximum(self.precision, LEAST_VARIANCE))
        told = exact | (self.precision > 0)
        precision = np.where(told, 1 / np.maximum(own + expected, LEAST_VARIANCE), 0.0)
        most = np.where(expected > 0, expected + MOST_COPIES * np.sqrt(expected) + MOST_COPIES, 0.0)
        value = np.where(exact, self.low, self.value) + expected
        return Heard(value, precision, np.maximum(self.low, 0.0), np.maximum(self.high + most, 0.0))

    @property
    def columns(self) -> FloatArray:
        """Flows × four."""
        return np.column_stack(self)


class SampledPackets(NamedTuple):
    """What a sample has of each flow: its group, the probability of a packet to be kept (1: all are; 0: the flow cannot
    be told apart), packets kept at the sender, and of these the ones that did not arrive."""

    group: Int64Array
    share: FloatArray
    kept: FloatArray
    missing: FloatArray


class GroupTotals(NamedTuple):
    """A number of packets of each group of flows, and the variance of that (0: counted)."""

    total: FloatArray
    noise: FloatArray


class SpoiledCounters(NamedTuple):
    """Counters, each packet in one of them: those of each flow (−1: none), the part of the flow that each takes, and
    how many packets are missing in every counter."""

    cell: Int32Array
    part: FloatArray
    missing: FloatArray


class CountedPackets(NamedTuple):
    """Counters as above, with the packets that each holds at the sender; ``missing`` is of no use where it is not
    ``clean``: extra packets hide what is missing."""

    cell: Int32Array
    part: FloatArray
    sent: FloatArray
    missing: FloatArray
    clean: bool

    @property
    def spoiled(self) -> SpoiledCounters | None:
        return SpoiledCounters(self.cell, self.part, self.missing) if self.clean else None

    def bounds(self, held: FloatArray, *, is_complete: bool) -> tuple[FloatArray, FloatArray]:
        """The fewest and the most of some packets that each flow can have: in counters that it shares with no other
        flow of a complete list they are all its own."""
        of_cell = np.append(held, 0.0)  # behind them, what no cell holds
        users = np.append(np.bincount(self.cell[self.cell >= 0], minlength=len(held)), 0)
        own = users[self.cell] == 1 if is_complete else np.zeros(self.cell.shape, bool)
        parts: FloatArray = of_cell[self.cell]
        return np.where(own, parts, 0.0).sum(axis=1), parts.sum(axis=1)


@dataclass(frozen=True, eq=False)
class PacketEvidence:
    """All that is known of flows' packets; ``sent`` and ``lost`` of groups only where flows add up to them."""

    of_sent: Heard
    of_lost: Heard
    sampled: SampledPackets
    sent: GroupTotals | None = None
    lost: GroupTotals | None = None
    counters: SpoiledCounters | None = None


def joined(
    heard: Heard, group: Int64Array, groups: GroupTotals, mean: FloatArray, variance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Value and precision of cells' messages and of what each group leaves for the flow, if its flows are expected as
    `mean` and `variance` say without the group."""
    total = groups.total - np.bincount(group, mean, len(groups.total))
    noise = groups.noise + np.bincount(group, variance, len(groups.total))
    value, spread = total[group] + mean, np.maximum(noise[group] - variance, 0.0)
    precision = 1 / np.maximum(spread, LEAST_VARIANCE)
    both = heard.precision + precision
    return (heard.precision * heard.value + precision * value) / both, both


def squeezed(low: FloatArray, high: FloatArray, group: Int64Array, total: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds of flows that add up to their groups' totals; those of a group that contradict it are left alone."""
    lower, upper = low, high
    for _ in range(ROUNDS):
        least, most = (np.bincount(group, bound, len(total)) for bound in (lower, upper))
        upper, lower = (
            np.minimum(upper, total[group] - least[group] + lower),
            np.maximum(lower, total[group] - most[group] + upper),
        )
    wrong = np.bincount(group, lower > upper, len(total)) > 0
    return np.where(wrong[group], low, lower), np.where(wrong[group], high, upper)


def rounded_within(
    value: FloatArray, spread: FloatArray, bounds: tuple[FloatArray, FloatArray], group: Int64Array, total: FloatArray
) -> FloatArray:
    """Whole numbers near `value` and within the bounds that add up to their groups' totals, if any do.

    What is missing goes to the flows by their `spread` (variance); of the rest after rounding down, the flows with the
    largest remainders have one more.
    """
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(total) + 1))
    found = np.clip(value, *bounds)
    _round_groups(order, starts, total, (found, spread, *bounds))
    return found


Columns = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


@kernel
def _round_groups(order: Int64Array, starts: Int64Array, total: FloatArray, columns: Columns) -> None:
    for g in range(len(total)):
        own = order[starts[g] : starts[g + 1]]
        if len(own) > 0:
            _move(own, total[g], columns)
            _round(own, total[g], columns)


@inlined
def _move(own: Int64Array, total: float, columns: Columns) -> None:
    """Move the values of a group towards its total; bounds that are met leave the rest to others."""
    value, spread, low, high = columns
    for _ in range(MOVES):
        left, room = total, 0.0
        for f in own:
            left -= value[f]
        for f in own:
            if (left > 0 and value[f] < high[f]) or (left < 0 and value[f] > low[f]):
                room += spread[f]
        if abs(left) < SETTLED or room <= 0:
            break
        for f in own:
            if (left > 0 and value[f] < high[f]) or (left < 0 and value[f] > low[f]):
                value[f] = min(max(value[f] + left * spread[f] / room, low[f]), high[f])


@inlined
def _round(own: Int64Array, total: float, columns: Columns) -> None:
    """Round a group's values down, and those with the largest remainders up, as the total says."""
    value, _, low, high = columns
    remainder = np.empty(len(own))
    rest = total
    for i, f in enumerate(own):
        down = np.floor(value[f] + SETTLED)
        remainder[i] = value[f] - down
        value[f] = max(down, low[f])
        rest -= value[f]
    for i in np.argsort(-remainder):
        f = own[i]
        if rest >= 0.5 and value[f] + 1 <= high[f]:
            value[f] += 1
            rest -= 1
