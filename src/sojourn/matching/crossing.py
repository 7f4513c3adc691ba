"""What two points have in common: evidence of the same packets, interval edges, directions, offloading.

**Comparable packets** bound from below how many should have matched if both points saw the same traffic and gave
packets the same identities: per flow, the smaller of the two points' packets while both were capturing. Loss does
not lower that share: what was lost is missing from the receiver's number already.

**Edges.** A packet that one point missed counts as lost (or as missing at the sender) only if the other point was
surely capturing when it had to pass. The smallest and largest delay of the matched packets, measured with
the same two clocks, tell when that was, so that the clocks' unknown offset cancels:

- sent at s, it would arrive between s + smallest and s + largest. With the receiver's first and last packet
  (of any flow or direction) at R₀ and R₁: s is inside if s + smallest ≥ R₀ and s + largest ≤ R₁;
- received at r, it was sent between r − largest and r − smallest: inside if r − largest ≥ S₀ and
  r − smallest ≤ S₁.

A flow's own matched packets widen this: one that was matched before and one that was matched after it
prove that both points were capturing, because packets of a flow stay near their order. So the intervals
of flow f are those above joined with the span of f's matched packets. An unmatched packet outside is
undecided: reported as an edge packet, and counted neither as sent nor as lost. A matched packet always
counts. A link that goes dead for good looks like a capture that stopped: its last packets are edge packets.

**Directions.** With clocks that differ by seconds the sign of a flow's delays does not tell which way it travels. What
always tells is a conversation with itself: of its two flows, the one with the larger raw delay (receiver's clock minus
sender's) travels forward, because the clocks shift both by the same amount. So:

1. conversations whose two flows were both matched: whenever the direction changes from one packet to the
   next, the two raw delays are compared (close in time, so that skew and steps do not matter); the majority
   of these votes decides;
2. other flows, when step 1 found any conversation: by the side of the clock line, estimated from the
   conversations, on which most of their packets lie;
3. when there is no conversation: by the sign of most of their delays (less a given offset), provided that
   the flows fall on both sides of 0 and at most `CONTRADICTING_SHARE` of all packets contradict their
   flow. Otherwise all flows are taken to travel as the user named the points.

**Offloading.** Network cards and Linux put packets together (GRO, LRO) and take them apart (TSO, GSO), and a capture
behind that sees packets that were never on the wire. Where these could not be split (`capture.decode.segmentation`)
they look lost, and the other point's look as if nobody had sent
them. Two signs together tell it from loss: one point has packets longer than any wire's (`ON_A_WIRE`) and clearly
longer than the other point's, or the flow's packets are on average of another size at the two points (`OTHER_SIZE`);
and where packets were matched, the flow has unmatched packets at *both* points. A lossy network leaves the receiver
none.

Cost: a few passes over the columns, O(packets), one word per flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sojourn.capture.decode.segmentation import OFFLOADING_OFF
from sojourn.capture.flows.table import FlowTable
from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array, rows_of
from sojourn.core.kernels import kernel
from sojourn.matching.clock.correction import ClockReading, TimedPairs, estimate_clock

if TYPE_CHECKING:
    from sojourn.matching.exact import MeasuredFlows


@dataclass(frozen=True, slots=True)
class Crossing:
    """The packets that both points saw.

    Of ``pairs``, ``forward`` travel from the sender to the receiver, ``simultaneous`` have one time at both and
    ``earlier`` were received before they were sent, by the clocks as they are; ``one_delay`` says that all have the
    same raw delay. ``in_common`` is ``comparable`` whatever the time. ``shared_ids`` packets of the sender have the
    identity of another; ``unpaired_copies`` of them did not arrive while the other did, and ``ambiguous`` ones were on
    their way together, of ``sent`` that were looked at. ``resolution_ns`` is that of the time stamps.
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
    ambiguous: int
    sent: int
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


@dataclass(frozen=True, slots=True)
class CaptureSpan:
    """The first and the last packet of a point, both on the sender's clock."""

    first_ns: int
    last_ns: int


@dataclass(frozen=True, eq=False)
class Edges:
    """Per flow number, the first and last time at the sender (and at the receiver, on the sender's clock) at which the
    other point would surely have seen a packet."""

    sent: tuple[Int64Array, Int64Array]
    received: tuple[Int64Array, Int64Array]


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
    delay = received_ns - sent_ns
    return edges_of(
        sender,
        receiver,
        delays=(int(delay.min()), int(delay.max())) if len(delay) else None,
        sent=_spans(flow, sent_ns, flows),
        received=_spans(flow, received_ns, flows),
    )


def edges_of(
    sender: CaptureSpan,
    receiver: CaptureSpan,
    *,
    delays: tuple[int, int] | None,
    sent: tuple[Int64Array, Int64Array],
    received: tuple[Int64Array, Int64Array],
) -> Edges:
    """The same from the smallest and largest delay and each flow's first and last matched packet at both points."""
    if delays is None:
        never = np.full(len(sent[0]), np.iinfo(np.int64).max)
        return Edges((never, -never), (never, -never))
    smallest, largest = delays
    return Edges(
        _joined(sent, _time(receiver.first_ns - smallest), _time(receiver.last_ns - largest)),
        _joined(received, _time(sender.first_ns + largest), _time(sender.last_ns + smallest)),
    )


def _joined(span: tuple[Int64Array, Int64Array], low_ns: int, high_ns: int) -> tuple[Int64Array, Int64Array]:
    """The interval `low_ns … high_ns` widened, per flow, to its matched packets' times."""
    return np.minimum(span[0], low_ns), np.maximum(span[1], high_ns)


def _time(value: int) -> int:
    """The value, or the nearest that fits 64 bits: absurd time stamps must not break a kernel."""
    limits = np.iinfo(np.int64)
    return min(max(value, int(limits.min)), int(limits.max))


def _spans(flow: Int64Array, time_ns: Int64Array, flows: int) -> tuple[Int64Array, Int64Array]:
    """Per flow, the first and the last of its times; the other way round where there is none."""
    low = np.full(flows, np.iinfo(np.int64).max)
    high = np.full(flows, np.iinfo(np.int64).min)
    _widen_spans(flow, time_ns, low, high)
    return low, high


@kernel
def _widen_spans(flow: Int64Array, time_ns: Int64Array, low: Int64Array, high: Int64Array) -> None:
    for i in range(flow.shape[0]):
        low[flow[i]] = min(low[flow[i]], time_ns[i])
        high[flow[i]] = max(high[flow[i]], time_ns[i])


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


def _votes(flow: Int64Array, raw_delay_ns: Int64Array, opposite: Int64Array) -> Int64Array:
    """Per flow: how often its delay exceeded the latest of its opposite, minus how often not.

    A packet votes only if its opposite was seen since the flow's own last packet.
    """
    votes, latest = np.zeros((2, len(opposite)), np.int64)
    _count_votes(flow, raw_delay_ns, opposite, votes, latest, np.zeros(len(opposite), np.bool_))
    return votes


@kernel
def _count_votes(
    flow: Int64Array,
    raw_delay_ns: Int64Array,
    opposite: Int64Array,
    votes: Int64Array,
    latest: Int64Array,
    fresh: BoolArray,
) -> None:
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


ON_A_WIRE = 1600
CLEARLY_LONGER = 1.5
OTHER_SIZE = 1.1
WRONGLY_SPLIT = 0.05
OFFLOAD_ACTION = f"capture with offloading off on both interfaces: {OFFLOADING_OFF}"


def resegmented_flows(
    flows: MeasuredFlows, sender: FlowTable, receiver: FlowTable, longest: tuple[int, int], *, were_split: bool = False
) -> UInt64Array:
    """The measured flows whose packets were put together or taken apart; `longest` are the two points' longest packets.

    Without unmatched packets at both points a flow is not one of them. Where super-packets `were_split`, it is one if
    `WRONGLY_SPLIT` of the receiver's packets, or more, have no partner: by another length than the wire's, then.
    """
    both = np.flatnonzero((flows.lost > 0) & (flows.receiver_only > 0))
    if not len(both):
        return np.zeros(0, np.uint64)
    suspects = flows.flow_id[both]
    alone, received = flows.receiver_only[both], flows.received[both]
    wrongly = were_split & (alone >= WRONGLY_SPLIT * (alone + received))
    return suspects[_differ(longest) | _other_size(suspects, sender, receiver) | wrongly]


def resegmented(flow_id: UInt64Array, sender: FlowTable, receiver: FlowTable, longest: tuple[int, int]) -> BoolArray:
    """The same from counts alone, for each flow: only where one point surely has packets that no wire carries."""
    if not _differ(longest):
        return np.zeros(len(flow_id), np.bool_)
    return _other_size(flow_id, sender, receiver)


def _differ(longest: tuple[int, int]) -> bool:
    return max(longest) > ON_A_WIRE and max(longest) > CLEARLY_LONGER * min(longest)


def _other_size(flow_id: UInt64Array, sender: FlowTable, receiver: FlowTable) -> BoolArray:
    sent, received = (_mean_size(table, flow_id) for table in (sender, receiver))
    with np.errstate(invalid="ignore"):
        return np.maximum(sent, received) > OTHER_SIZE * np.minimum(sent, received)


def _mean_size(table: FlowTable, flow_id: UInt64Array) -> FloatArray:
    """The flows' bytes per packet; NaN for those that are not in the table."""
    return np.append(table.bytes / np.maximum(table.packets, 1), np.nan)[rows_of(table.ids, flow_id)]
