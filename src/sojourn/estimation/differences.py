"""Two ends of a segment, cell by cell: delay sums, packet counts, usable cells, and how many packets were lost.

A cell is usable when both ends counted the same packets: equal counts, and equal digests where there are
any. The difference of the two sums is then the sum of its packets' delays.

Of `sent` packets L are lost, and X arrive beyond them: copies that the network made, packets that offloading took
apart, packets from across the edge of a recording. Counts alone give L − X = sent − received. What else is known:

- wherever both ends count a part of the traffic (a cell, a flow), a part that received more proves extra packets, one
  that received fewer proves losses, and a cell of equal counts but other packets (its digests differ) proves one of
  each. Nothing extra anywhere: sent − received is exact;
- a coordinated sample shows the extra packets themselves: X is their number by the share that was sampled, with
  Poisson's interval, and exact where everything was;
- otherwise L is unknown, but for its bounds.

Cost: O(cells).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.errors import MismatchError
from sojourn.core.estimates import Estimate

if TYPE_CHECKING:  # exact answers count losses, too, and have no sketches
    from sojourn.sketches.counter_vector import CounterVector
    from sojourn.sketches.lda import Lda
    from sojourn.sketches.lds import Lds
    from sojourn.sketches.sketch import AnySketch


@dataclass(frozen=True, eq=False)
class CellDifference:
    """What the segment did to each cell.

    ``delay_sum`` means something only where ``usable``; an empty cell is not usable.
    """

    delay_sum: Int64Array
    sent: Int64Array
    received: Int64Array
    usable: BoolArray
    total_sent: int
    total_received: int

    @property
    def used_packets(self) -> int:
        """The packets in usable cells: LDA's effective sample size."""
        return int(self.sent[self.usable].sum())

    def select(self, cells: slice) -> CellDifference:
        """Some of the cells; the totals are those of all."""
        columns = self.delay_sum[cells], self.sent[cells], self.received[cells], self.usable[cells]
        return CellDifference(*columns, self.total_sent, self.total_received)


def cell_difference(sender: Lda | Lds | CounterVector, receiver: Lda | Lds | CounterVector) -> CellDifference:
    """Compare two sketches with counts; O(cells)."""
    sender.parameters.require_equal(receiver.parameters)
    if not sender.has("count"):
        raise MismatchError(
            "cells without counts cannot show a loss",
            where=sender.parameters.kind,
            action="record with count_bits",
        )
    sent, received = sender.column("count"), receiver.column("count")
    usable = (sent == received) & (sent > 0)
    if sender.has("digest"):
        usable &= sender.column("digest") == receiver.column("digest")
    return CellDifference(delay_sums(sender, receiver), sent, received, usable, sender.recorded, receiver.recorded)


def delay_sums(sender: Lda | Lds | CounterVector, receiver: Lda | Lds | CounterVector) -> Int64Array:
    """Receiver minus sender, modulo the counters' width and centred around zero."""
    *_, field = sender.parameters.places["sum"]
    difference = receiver.column("sum") - sender.column("sum")
    spare = np.int64(64 - field.bits) if field.is_centred else np.int64(0)
    return (difference << spare) >> spare


@dataclass(frozen=True)
class Losses:
    """Packets lost (None: not known) and the bounds of their number; extra packets at the receiver, at least."""

    lost: int | None
    low: int
    high: int
    extra: int = 0

    @property
    def is_exact(self) -> bool:
        return self.lost == self.low == self.high


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of the traffic, no packet in two of them: what each end counted.

    ``swapped`` of them agree in number although their packets differ.
    """

    sent: Int64Array
    received: Int64Array
    swapped: int = 0

    @classmethod
    def of_cells(cls, cells: CellDifference) -> Parts:
        """Cells of which each packet is in one at most."""
        other = (cells.sent == cells.received) & (cells.sent > 0) & ~cells.usable
        return cls(cells.sent, cells.received, int(other.sum()))

    @classmethod
    def of_sketches(cls, sender: AnySketch, receiver: AnySketch) -> list[Parts]:
        """What two sketches show of all packets: the rows of an LDS that take every packet, an LDA, counters."""
        from sojourn.sketches.counter_vector import CounterVector
        from sojourn.sketches.lda import Lda
        from sojourn.sketches.lds import Lds
        from sojourn.sketches.sample import Sample

        if isinstance(sender, Sample) or (isinstance(sender, Lds) and sender.parameters.weights):
            return []
        if not isinstance(sender, Lda | Lds | CounterVector) or not sender.has("count"):
            return []
        cells = cell_difference(sender, receiver)  # type: ignore[arg-type]
        if not isinstance(sender, Lds):
            return [cls.of_cells(cells)]
        p = sender.parameters
        rows = [slice(row * p.columns, (row + 1) * p.columns) for row, share in enumerate(p.row_shares) if share >= 1]
        return [cls.of_cells(cells.select(row)) for row in rows]

    @property
    def lost_of_each(self) -> FloatArray:
        """What each part lost; NaN where it received more than was sent, so that it is not known."""
        return np.where(self.received <= self.sent, self.sent - self.received, np.nan)

    @property
    def lost(self) -> int:
        return int(np.maximum(self.sent - self.received, 0).sum()) + self.swapped

    @property
    def extra(self) -> int:
        return int(np.maximum(self.received - self.sent, 0).sum()) + self.swapped


def count_losses(sent: int, received: int, parts: Sequence[Parts], extra: Estimate | None = None) -> Losses:
    """The losses of the whole traffic from its `parts`; `extra` is what a sample says of packets beyond those sent.

    >>> count_losses(10, 8, [])
    Losses(lost=2, low=2, high=2, extra=0)
    >>> count_losses(10, 12, [])
    Losses(lost=None, low=0, high=10, extra=2)
    """
    missing = sent - received
    surely = max([0, -missing, *(part.extra for part in parts), *(part.lost - missing for part in parts)])
    low = missing + surely
    if not surely:
        return Losses(low, low, low)
    if extra is None:
        return Losses(None, low, max(sent, low), surely)
    lost, least, most = (
        min(missing + max(surely, round(bound)), max(sent, low)) for bound in (extra.value, extra.low, extra.high)
    )
    return Losses(lost, least, most, surely)


def with_extra(sent: int, received: int, extra: Estimate) -> Losses:
    """The losses where a sample estimates the packets beyond those sent, less copies that were counted as sent."""
    missing = sent - received
    value, low, high = (min(max(round(missing + number), 0), sent) for number in (extra.value, extra.low, extra.high))
    return Losses(value, low, high, max(0, round(extra.low)))


def poisson_95(count: int) -> tuple[float, float]:
    """The exact 95 % interval of an expected number of which `count` were seen.

    >>> [round(bound, 2) for bound in poisson_95(0)]
    [0.0, 3.69]
    """
    from scipy.special import gammaincinv

    low = float(gammaincinv(count, 0.025)) if count else 0.0
    return low, float(gammaincinv(count + 1, 0.975))


def weighed_poisson_95(value: float, squares: float, unseen: float) -> tuple[float, float]:
    """The 95 % interval of a sum of Poisson numbers, each with a weight: its value, Σ n·w² of what was seen, and the
    weight of one that was not. Fay and Feuer, "Confidence Intervals for Directly Standardized Rates" (1997).

    >>> [round(bound, 2) for bound in weighed_poisson_95(0.0, 0.0, 10.0)], weighed_poisson_95(3, 3, 1) == poisson_95(3)
    ([0.0, 36.89], True)
    """
    from scipy.special import gammaincinv

    low = squares / value * float(gammaincinv(value**2 / squares, 0.025)) if value else 0.0
    above, beyond = value + unseen, squares + unseen**2
    return low, beyond / above * float(gammaincinv(above**2 / beyond, 0.975))


def poisson_most(expected: float) -> int:
    """The number that is exceeded once in 40 times, where `expected` are.

    >>> poisson_most(0.02), poisson_most(0.1), poisson_most(4.0)
    (0, 1, 8)
    """
    from scipy.special import gammainc

    most = math.floor(expected)
    while gammainc(most + 1, expected) > 0.025:
        most += 1
    return most
