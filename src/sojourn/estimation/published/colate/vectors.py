"""COLATE's loss variant: which of several counter vectors answers, and which of its counters.

Every vector takes a share of the packets by their hash, the same packets at every observation point, and counts them
(`sketches.counter_vector`, ``shares``). As published, the most frequent vector whose two packet counters agree
answers: a loss between the points makes them differ. A vector of N packets survives a loss rate l with probability
(1 − l)ᴺ, so the vector that answers has lost nothing and holds few packets.

With a count array the loss is seen counter by counter: the most frequent vector with counters that agree answers from
these alone.

Guarantee: without duplicated packets, what is usable lost nothing on the way. Cost: O(vectors · n).

Shahzad and Liu, "Noise Can Help", §1.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.estimation.differences import delay_sums
from sojourn.sketches.counter_vector import CounterVector

__all__ = ["UsableVector", "usable_vector"]

FEWEST_COUNTERS = 3


@dataclass(frozen=True, eq=False)
class UsableVector:
    """The vector that answers: its share of the packets, its usable counters, and what they hold.

    ``cells`` is where the vector lies in the sketch, ``position`` where each of its counters lies among the usable
    ones; ``delay_sum`` and ``count`` (None without a count array) are those of the usable counters, in their unit.
    """

    cells: slice
    share: float
    usable: BoolArray
    position: Int64Array
    delay_sum: Int64Array
    count: Int64Array | None

    @property
    def whole(self) -> bool:
        """Whether all counters can be used."""
        return bool(self.usable.all())

    def held(self, packets: int, row: Int64Array) -> float:
        """How many of a flow's packets are expected in the usable ones of its counters, `row` naming all m."""
        return packets * self.share * float(self.usable[row].mean())


def usable_vector(sender: CounterVector, receiver: CounterVector) -> UsableVector | None:
    """The most frequent vector that can answer; None where all have lost packets."""
    sender.parameters.require_equal(receiver.parameters)
    parameters = sender.parameters
    counted = sender.has("count") and parameters.choice == "packet"
    sums = delay_sums(sender, receiver)
    if counted:
        usable_cells = sender.column("count") == receiver.column("count")
    else:
        usable_cells = np.repeat(sender.column("packets") == receiver.column("packets"), parameters.counters)
    for v in np.argsort([-share for share in parameters.shares], kind="stable").tolist():
        cells = slice(v * parameters.counters, (v + 1) * parameters.counters)
        usable = usable_cells[cells]
        if usable.sum() >= FEWEST_COUNTERS:
            count = sender.column("count")[cells][usable] if counted else None
            position = np.cumsum(usable) - 1
            return UsableVector(cells, parameters.shares[v], usable, position, sums[cells][usable], count)
    return None
