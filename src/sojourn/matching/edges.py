"""Interval edges: which packets could have been seen at both points, although they start and stop apart.

A packet that one point missed counts as lost (or as missing at the sender) only if the other point was
surely capturing when it had to pass. The smallest and largest delay of the matched packets, measured with
the same two clocks, say when that was, so that the clocks' unknown offset cancels:

- sent at s, it would arrive between s + smallest and s + largest. With the receiver's first and last packet
  (of any flow or direction) at R₀ and R₁: s is inside if s + smallest ≥ R₀ and s + largest ≤ R₁;
- received at r, it was sent between r − largest and r − smallest: inside if r − largest ≥ S₀ and
  r − smallest ≤ S₁.

A flow's own matched packets widen this: one that was matched before and one that was matched after it
prove that both points were capturing, because packets of a flow stay near their order. So the intervals
of flow f are those above joined with the span of f's matched packets. An unmatched packet outside is
undecided: reported as an edge packet, and counted neither as sent nor as lost. A matched packet always
counts. A link that goes dead for good looks like a capture that stopped: its last packets are edge packets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.kernels import kernel

__all__ = ["CaptureSpan", "Edges", "find_edges"]


@dataclass(frozen=True, slots=True)
class CaptureSpan:
    """The first and the last packet of a point, both on the sender's clock."""

    first_ns: int
    last_ns: int


@dataclass(frozen=True, eq=False)
class Edges:
    """Per flow number, the first and last time that can be judged, at the sender and at the receiver."""

    sent: tuple[Int64Array, Int64Array]
    received: tuple[Int64Array, Int64Array]

    def judge_sent(self, flow: Int64Array, sent_ns: Int64Array) -> BoolArray:
        """Whether the receiver would surely have seen a packet sent then."""
        return _inside(flow, sent_ns, *self.sent)

    def judge_received(self, flow: Int64Array, received_ns: Int64Array) -> BoolArray:
        """Whether the sender would surely have seen a packet received then (on the sender's clock)."""
        return _inside(flow, received_ns, *self.received)


def _inside(flow: Int64Array, time_ns: Int64Array, low: Int64Array, high: Int64Array) -> BoolArray:
    inside: BoolArray = (time_ns >= low[flow]) & (time_ns <= high[flow])
    return inside


def find_edges(
    sender: CaptureSpan,
    receiver: CaptureSpan,
    *,
    flow: Int64Array,
    sent_ns: Int64Array,
    received_ns: Int64Array,
    flows: int,
) -> Edges:
    """The edges from the matched packets of one direction, all times on the sender's clock."""
    if not len(flow):
        never = np.full(flows, np.iinfo(np.int64).max)
        return Edges((never, -never), (never, -never))
    delay = received_ns - sent_ns
    smallest, largest = int(delay.min()), int(delay.max())
    return Edges(
        _joined(flow, sent_ns, _time(receiver.first_ns - smallest), _time(receiver.last_ns - largest), flows),
        _joined(flow, received_ns, _time(sender.first_ns + largest), _time(sender.last_ns + smallest), flows),
    )


def _time(value: int) -> int:
    """The value, or the nearest that fits 64 bits: absurd time stamps must not break a kernel."""
    limits = np.iinfo(np.int64)
    return min(max(value, int(limits.min)), int(limits.max))


@kernel
def _joined(
    flow: Int64Array, time_ns: Int64Array, low_ns: int, high_ns: int, flows: int
) -> tuple[Int64Array, Int64Array]:
    """The interval `low_ns … high_ns` widened, per flow, to its matched packets' times."""
    low = np.full(flows, low_ns)
    high = np.full(flows, high_ns)
    for i in range(flow.shape[0]):
        low[flow[i]] = min(low[flow[i]], time_ns[i])
        high[flow[i]] = max(high[flow[i]], time_ns[i])
    return low, high
