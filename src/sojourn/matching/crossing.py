"""What two points have in common, in counts: the evidence that they saw the same packets, and which way these went.

Guarantee: ``comparable`` bounds from below how many packets should have matched if both points saw the same traffic and
gave packets the same identities: per flow, the smaller of the two points' packets while both were capturing. Loss does
not lower that share: what was lost is missing from the receiver's number already.

Cost: a few passes over the columns, O(packets).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.matching.clock.correction import ClockReading

__all__ = ["Crossing", "comparable_packets"]


@dataclass(frozen=True, slots=True)
class Crossing:
    """The packets that both points saw.

    Of ``pairs``, ``forward`` travel from the sender to the receiver, ``simultaneous`` have one time at both and
    ``earlier`` were received before they were sent, by the clocks as they are; ``one_delay`` says that all have the
    same raw delay. ``in_common`` is ``comparable`` whatever the time. ``shared_ids`` packets of the sender have the
    identity of another; ``unpaired_copies`` of them did not arrive while the other did. ``resolution_ns`` is that of
    the time stamps.
    """

    pairs: int
    forward: int
    simultaneous: int
    earlier: int
    one_delay: bool
    comparable: int
    in_common: int
    shared_ids: int
    unpaired_copies: int
    resolution_ns: int

    @property
    def backward(self) -> int:
        return self.pairs - self.forward


def comparable_packets(
    flows: tuple[Int64Array, Int64Array], times: tuple[Int64Array, Int64Array], clock: ClockReading, count: int
) -> tuple[int, int]:
    """``comparable`` by the clocks as they are or as the pairs suggest, whichever is more; and whatever the time.

    `flows` and `times` are both points' rows: flow numbers below `count`, and times.
    """
    sent, received = times
    if not len(sent) or not len(received):
        return 0, 0
    everything = np.minimum(*(np.bincount(flow, minlength=count) for flow in flows)).sum()
    readings = [received]
    if clock != ClockReading(clock.reference_ns):
        readings.append(received - clock.at(received))
    return max(_while_both(flows, sent, times_ns, count) for times_ns in readings), int(everything)


def _while_both(flows: tuple[Int64Array, Int64Array], sent_ns: Int64Array, received_ns: Int64Array, count: int) -> int:
    """The packets, per flow the smaller number of the two points, in the time that both captures cover."""
    first = max(int(sent_ns.min()), int(received_ns.min()))
    last = min(int(sent_ns.max()), int(received_ns.max()))
    if first > last:
        return 0
    counts = []
    for flow, time_ns in zip(flows, (sent_ns, received_ns), strict=True):
        inside = (time_ns >= first) & (time_ns <= last)
        counts.append(np.bincount(flow if inside.all() else flow[inside], minlength=count))
    return int(np.minimum(*counts).sum())
