"""Two ends of a segment, cell by cell: sums of delays, packet counts, and which cells can be used.

A cell is usable when both ends counted the same packets: equal counts, and equal digests where there are
any. The difference of the two sums is then the sum of its packets' delays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.errors import MismatchError
from sojourn.sketches.counter_vector import CounterVector
from sojourn.sketches.lda import Lda
from sojourn.sketches.lds import Lds

__all__ = ["CellDifference", "cell_difference"]


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
    field = next(f for table in sender.parameters.tables() for f in table.fields if f.name == "sum")
    difference = receiver.column("sum") - sender.column("sum")
    spare = np.int64(64 - field.bits) if field.is_centred else np.int64(0)
    return (difference << spare) >> spare
