"""When traffic has outgrown a point's plan, and the plan that follows.

A plan is made for so many flows, so much loss and so many packets in an epoch (`plan_point`). It is kept while traffic
stays within a band around that (`GROWN` above, `SHRUNK` below), which is wider than what makes a difference, so that
traffic that goes up and down does not change the plan with every wave. What was seen gets a margin. Where nothing was
lost, the loss planned for is what the packets counted do not rule out (three in so many, at 95 %): a plan that is made
for lost packets needs several times the memory, and loss that begins makes the next plan.

A segment that asks for a ledger has one where memory and loss allow (`fits_ledger`): else its points record what
`auto` does, until they do again. One that asks for the best begins with `auto`, and goes over to a ledger once
`ENOUGH_COUNTED` packets tell that so few of them are lost, or go elsewhere, that it names them all.

Where a segment asks for an error with a confidence, its memory is found by trying plans in worlds of the traffic seen
(`sized_memory`): some seconds of computing, so it is for a worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sojourn.segments.fleet.segment import AUTO, BEST, LEDGER, Wanted
from sojourn.segments.plan import (
    HELD_EPOCHS,
    MOST_PLANNED_FLOWS,
    MOST_PLANNED_PACKETS,
    SegmentPlan,
    plan_ledger,
    plan_point,
)
from sojourn.segments.planning.layout import RECEIPT
from sojourn.segments.planning.ledgers import beside_bytes
from sojourn.sketches.ledgers.ledger import BYTES_PER_PACKET
from sojourn.sketches.ledgers.power_sums import threshold_for
from sojourn.sketches.ledgers.receipt import ReceiptParameters

FIRST_FLOWS, FIRST_LOSS = 1000, 0.01
GROWN, SHRUNK = 2.0, 8.0
PACKETS_GROWN, PACKETS_SHRUNK = 4.0, 16.0
MARGIN = 1.25
# What watches a segment for ever must answer on the day that it first loses packets, and after a night without traffic.
LEAST_LOSS, LEAST_FLOWS, LEAST_PACKETS = 1e-5, 32, 1000
UNCOUNTED_LOSS = 0.001  # where few packets, or none, were counted
NOT_RULED_OUT = 3.0  # lost packets, where none was: e⁻³ is 5 %
LEAST_SIZED_BYTES = 4_000
# A ledger pays where few packets are lost, and flows have some packets each to share what they take by themselves.
MOST_LEDGER_LOSS, LEAST_FLOW_PACKETS = 0.1, 10
FIRST_PACKETS = 100_000
# By so many a share of 10 % is known to within 1 %, three standard deviations.
ENOUGH_COUNTED = 10_000
# Beside a ring of 49 MiB this fits what an agent allows a stream; of fewer epochs packets are forgotten too soon.
MOST_LEDGER_BYTES, LEAST_HELD_EPOCHS = 36 << 20, 2.0
# Copies come within milliseconds: of a hundred thousand packets a second these are the last two seconds and a half.
MOST_REMEMBERED = 1 << 18
# An epoch may lose more than is usual: sums for half as many more losses, and never for less than two in a thousand.
LOSS_ROOM, LEAST_LEDGER_LOSS = 1.5, 0.002
MOST_SIZED = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of a group's traffic, in an epoch of its busiest point.

    ``loss`` is the largest share of packets that a segment of the group lost, ``common_share`` the share of the
    point's packets that another point of the group has in common with it. ``counted`` packets tell the loss.
    """

    flows: int
    packets: int
    loss: float
    common_share: float = 1.0
    counted: int = 0

    @property
    def expected_loss(self) -> float:
        """The loss to plan for: what was seen, or more where that is not ruled out."""
        possible = min(UNCOUNTED_LOSS, NOT_RULED_OUT / self.counted) if self.counted else UNCOUNTED_LOSS
        return max(self.loss, possible, LEAST_LOSS)


def first_plan(memory_bytes: int, sketch: Wanted = AUTO) -> SegmentPlan:
    """The plan for traffic of which nothing is known."""
    if sketch == LEDGER:
        return _ledger(memory_bytes, flows=FIRST_FLOWS, loss=FIRST_LOSS, packets=FIRST_PACKETS)
    return plan_point(memory_bytes, flows=FIRST_FLOWS, loss=FIRST_LOSS)


def planned_again(current: SegmentPlan, memory_bytes: int, sketch: Wanted = AUTO) -> SegmentPlan:
    """The plan for the same traffic in another memory, or of another sketch."""
    is_ledger = sketch == LEDGER or (sketch == BEST and current.name == LEDGER)
    packets = current.packets or (FIRST_PACKETS if is_ledger else 0)
    traffic = {"flows": current.flows, "loss": current.loss, "packets": packets, "markers": current.markers}
    if is_ledger and fits_ledger(current.flows, packets, current.loss):
        return _ledger(memory_bytes, **traffic)  # type: ignore[arg-type]
    return plan_point(memory_bytes, **traffic)  # type: ignore[arg-type]


def fits_ledger(flows: int, packets: int, loss: float, *, room: float = 1.0) -> bool:
    """Whether memory and loss allow a ledger for epochs of so many packets; with a `room` the limits are wider."""
    held = MOST_LEDGER_BYTES / (BYTES_PER_PACKET * max(packets, 1))
    is_rare = loss <= MOST_LEDGER_LOSS * room
    return is_rare and held * room >= LEAST_HELD_EPOCHS and packets * room >= LEAST_FLOW_PACKETS * flows


def _to_name(seen: Seen) -> float:
    """The share of packets that receipts have to name: those that are lost, and the sender's for elsewhere if few."""
    elsewhere = 1 - seen.common_share
    return max(seen.expected_loss, elsewhere if elsewhere <= MOST_LEDGER_LOSS else 0.0)


def _suits_ledger(seen: Seen, sketch: Wanted, *, room: float = 1.0) -> bool:
    """Whether a ledger is asked for, or the best, which it is for such traffic; with a `room` the limits are wider."""
    flows, packets, loss = _expected(seen)
    if sketch == BEST:
        # What the sender has for elsewhere is to be named as well.
        loss = max(loss, 1 - seen.common_share)
        return seen.counted >= ENOUGH_COUNTED and fits_ledger(flows, packets, loss, room=room)
    return sketch == LEDGER and fits_ledger(flows, packets, loss, room=room)


def _ledger(memory_bytes: int, *, flows: int, loss: float, packets: int, markers: float = 1.0) -> SegmentPlan:
    held = min(float(HELD_EPOCHS), MOST_LEDGER_BYTES / (BYTES_PER_PACKET * packets))
    beside = min(memory_bytes, beside_bytes(packets))
    plan = plan_ledger(packets, flows=flows, loss=loss, memory_bytes=beside, markers=markers, held=held)
    receipt = plan.parts[RECEIPT]
    assert isinstance(receipt, ReceiptParameters)
    # A run joins epochs that either end was the only one to cut: the shortest of them has to do for all its losses.
    remembered = min(receipt.remembered, MOST_REMEMBERED)
    # Groups are a power of two, of which an epoch as it is planned for is to leave none half empty.
    run = math.ceil(packets / (1 << max(0, round(math.log2(packets / receipt.run)))))
    share = receipt.loss_ppm / 1e6
    sizes = {
        "least": packets,
        "remembered": remembered,
        "run": run,
        "threshold": threshold_for(run * share / (1 - share)),
    }
    return replace(plan, parts={**plan.parts, RECEIPT: replace(receipt, **sizes)})


def replanned(
    current: SegmentPlan, seen: Seen, *, memory_bytes: int | None = None, sketch: Wanted = AUTO
) -> SegmentPlan | None:
    """The plan that follows, in the same memory unless another is given; None where the current one is good enough."""
    if not is_outgrown(current, seen, memory_bytes=memory_bytes, sketch=sketch):
        return None
    following = planned_for(seen, -(-current.memory_bits // 8) if memory_bytes is None else memory_bytes, sketch)
    return following if following.records_otherwise(current) else None


def is_outgrown(current: SegmentPlan, seen: Seen, *, memory_bytes: int | None = None, sketch: Wanted = AUTO) -> bool:
    """Whether traffic has left the band that a plan is made for, or the memory, if one is given, its plan's."""
    flows, packets, loss = _expected(seen)
    has_ledger = current.name == LEDGER
    # What a ledger's point takes follows from its traffic.
    is_resized = memory_bytes is not None and _is_outside(memory_bytes, current.memory_bits / 8, MARGIN, GROWN)
    is_resized &= not has_ledger
    room = MARGIN if has_ledger else 1 / MARGIN  # what is about at a limit does not change with every wave
    may_have = _suits_ledger(seen, sketch, room=room)
    if sketch == BEST and has_ledger and seen.counted < ENOUGH_COUNTED:
        may_have = True  # too little is known for a change
    return seen.packets > 0 and (
        is_resized
        or may_have != has_ledger
        or _is_outside(flows, current.flows, GROWN, SHRUNK)
        or _is_outside(_to_name(seen) if has_ledger else loss, current.loss, GROWN, SHRUNK)
        or _is_outside(packets, current.packets, PACKETS_GROWN, PACKETS_SHRUNK)
        or _is_outside(seen.common_share, current.markers, GROWN, GROWN)
    )


def planned_for(seen: Seen, memory_bytes: int, sketch: Wanted = AUTO) -> SegmentPlan:
    """The plan for such traffic, with a margin."""
    flows, packets, loss = _expected(seen)
    if _suits_ledger(seen, sketch):
        return _ledger(
            memory_bytes,
            flows=min(MOST_PLANNED_FLOWS, math.ceil(MARGIN * flows)),
            loss=min(MOST_LEDGER_LOSS * LOSS_ROOM, max(LEAST_LEDGER_LOSS, LOSS_ROOM * _to_name(seen))),
            packets=min(MOST_PLANNED_PACKETS, math.ceil(MARGIN * packets)),
            markers=min(1.0, max(0.0, seen.common_share)),
        )
    return plan_point(
        memory_bytes,
        flows=min(MOST_PLANNED_FLOWS, math.ceil(MARGIN * flows)),
        loss=min(1.0, MARGIN * loss),
        packets=min(MOST_PLANNED_PACKETS, math.ceil(MARGIN * packets)),
        markers=min(1.0, max(0.0, seen.common_share)),
    )


def _expected(seen: Seen) -> tuple[int, int, float]:
    """Flows, packets and loss to plan for, without the margin."""
    return max(seen.flows, LEAST_FLOWS), max(seen.packets, LEAST_PACKETS), seen.expected_loss


def _is_outside(seen: float, planned: float, grown: float, shrunk: float) -> bool:
    """Whether something left the band of what was planned for; what was not known then is outside."""
    return seen > grown * planned or seen * shrunk < planned


def sized_memory(seen: Seen, *, error: float, confidence: float) -> int:
    """The bytes by which flows' means are within a share of the truth, with a confidence, in such traffic.

    Those of flows with 100 packets or more count; where none has as many, those of the largest.
    What is tried is what a point records, with the sample that it always has.
    Cost: seconds.
    """
    from sojourn.segments.planning.search import Wish, plan_memory
    from sojourn.segments.planning.world import ExpectedTraffic, pareto_sizes

    flows, packets, loss = _expected(seen)
    flows, packets = math.ceil(MARGIN * flows), max(math.ceil(MARGIN * flows), math.ceil(MARGIN * packets))
    sizes = pareto_sizes(min(flows, MOST_SIZED), packets * min(1.0, MOST_SIZED / flows))
    lost = np.full(len(sizes), min(1.0, MARGIN * loss))
    wish = Wish(error, confidence)
    if sizes.max() < wish.least_packets:
        wish = replace(wish, least_packets=int(sizes.max()))
    found = plan_memory("auto", ExpectedTraffic(sizes, lost, flows), wish, point=True)
    return max(LEAST_SIZED_BYTES, found.budget_bytes)
