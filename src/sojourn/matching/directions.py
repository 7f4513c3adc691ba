"""Directions: which flows travel from the sender's point to the receiver's, and which the other way.

A capture holds both directions of a conversation. With synchronous clocks the sign of a flow's delays
tells; with clocks that differ by seconds it does not. What always tells is a conversation with itself: of
its two flows, the one with the larger raw delay (receiver's clock minus sender's) travels forward, because
the clocks shift both alike. So:

1. conversations whose two flows were both matched: whenever the direction changes from one packet to the
   next, the two raw delays are compared (close in time, so that skew and steps do not matter); the majority
   of these votes decides;
2. other flows, when step 1 found any conversation: by the side of the clock line, estimated from the
   conversations, on which most of their packets lie;
3. when there is no conversation: by the sign of most of their delays (less a given offset), provided that
   the flows fall on both sides of 0 and at most `CONTRADICTING_SHARE` of all packets contradict their
   flow. Otherwise all flows are taken to travel as the user named the points.

Cost: O(matched packets), one word per flow.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.kernels import kernel
from sojourn.matching.clock.correction import ClockReading, TimedPairs, estimate_clock

__all__ = ["forward_flows"]

CONTRADICTING_SHARE = 0.01


def forward_flows(
    flow: Int64Array,
    pairs: TimedPairs,
    opposite: Int64Array,
    *,
    offset_ns: int | None = None,
    resolution_ns: int = 1,
) -> BoolArray:
    """For each flow number, whether it travels forward; flows without pairs are called forward.

    `flow` numbers the flow of each pair, pairs are in the order of the receiver's clock, `opposite` is the
    number of each flow's other direction (−1 without one), `offset_ns` a clock offset the user gave.
    """
    votes = _votes(flow, pairs.raw_delay_ns, opposite)
    has_opposite = opposite >= 0
    votes[has_opposite] = votes[has_opposite] - votes[opposite[has_opposite]]
    settled = votes != 0
    forward: BoolArray = votes >= 0
    if settled.all():
        return forward
    if offset_ns is not None:
        reading = ClockReading(0, float(offset_ns))
    elif settled.any():
        reading = _from_conversations(flow, pairs, forward, settled, resolution_ns)
    else:
        reading = ClockReading(0)
    above = pairs.raw_delay_ns > reading.at(pairs.received_ns, pairs.sent_ns)
    packets = np.bincount(flow, minlength=len(opposite))
    ahead = np.bincount(flow[above], minlength=len(opposite))
    by_sign: BoolArray = 2 * ahead >= packets
    if not settled.any() and not _sides_are_clear(packets, ahead, by_sign):
        return np.ones(len(opposite), np.bool_)
    return np.where(settled, forward, by_sign)


def _from_conversations(
    flow: Int64Array, pairs: TimedPairs, forward: BoolArray, settled: BoolArray, resolution_ns: int
) -> ClockReading:
    sure, _ = pairs.split(settled[flow])
    there, back = sure.split(forward[flow[settled[flow]]])
    return estimate_clock(there, back, resolution_ns=resolution_ns).fitted


def _sides_are_clear(packets: Int64Array, ahead: Int64Array, by_sign: BoolArray) -> bool:
    """Whether flows lie on both sides of the clock line and hardly any packet contradicts its flow."""
    seen = packets > 0
    contradicting = np.minimum(ahead, packets - ahead).sum()
    both = bool((by_sign & seen).any() and (~by_sign & seen).any())
    return both and bool(contradicting <= CONTRADICTING_SHARE * packets.sum())


@kernel
def _votes(flow: Int64Array, raw_delay_ns: Int64Array, opposite: Int64Array) -> Int64Array:
    """Per flow: how often its delay exceeded the latest of its opposite, minus how often not.

    A packet votes only if its opposite was seen since the flow's own last packet.
    """
    votes = np.zeros(opposite.shape[0], np.int64)
    latest = np.zeros(opposite.shape[0], np.int64)
    fresh = np.zeros(opposite.shape[0], np.bool_)
    for i in range(flow.shape[0]):
        own = flow[i]
        other = opposite[own]
        if other < 0:
            continue
        if fresh[other]:
            votes[own] += 1 if raw_delay_ns[i] > latest[other] else -1
            fresh[other] = False
        latest[own] = raw_delay_ns[i]
        fresh[own] = True
    return votes
