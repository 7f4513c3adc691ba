"""When traffic has outgrown a point's plan, and the plan that follows.

A plan is made for so many flows, so much loss and so many packets in an epoch (`plan_point`). It is kept while traffic
stays within a band around that (`GROWN` above, `SHRUNK` below), which is wider than what makes a difference, so that
traffic that goes up and down does not change the plan with every wave. What was seen gets a margin.

Where a segment asks for an error with a confidence, its memory is found by trying plans in worlds of the traffic seen
(`sized_memory`): some seconds of computing, so it is for a worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.segments.plan import MOST_PLANNED_FLOWS, MOST_PLANNED_PACKETS, SegmentPlan, plan_point

FIRST_FLOWS, FIRST_LOSS = 1000, 0.01
GROWN, SHRUNK = 2.0, 8.0
PACKETS_GROWN, PACKETS_SHRUNK = 4.0, 16.0
MARGIN = 1.25
# What watches a segment for ever must answer on the day that it first loses packets, and after a night without traffic.
LEAST_LOSS, LEAST_FLOWS, LEAST_PACKETS = 0.001, 32, 1000
LEAST_SIZED_BYTES = 8_000
MOST_SIZED = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of a group's traffic, in an epoch of its busiest point.

    ``loss`` is the largest share of packets that a segment of the group lost, ``common_share`` the share of the
    point's packets that another point of the group has in common with it.
    """

    flows: int
    packets: int
    loss: float
    common_share: float = 1.0


def first_plan(memory_bytes: int) -> SegmentPlan:
    """The plan for traffic of which nothing is known."""
    return plan_point(memory_bytes, flows=FIRST_FLOWS, loss=FIRST_LOSS)


def planned_again(current: SegmentPlan, memory_bytes: int) -> SegmentPlan:
    """The plan for the same traffic in another memory."""
    return plan_point(
        memory_bytes, flows=current.flows, loss=current.loss, packets=current.packets, markers=current.markers
    )


def replanned(current: SegmentPlan, seen: Seen, *, memory_bytes: int | None = None) -> SegmentPlan | None:
    """The plan that follows, in the same memory unless another is given; None where the current one is good enough."""
    memory = -(-current.memory_bits // 8) if memory_bytes is None else memory_bytes
    is_resized = memory_bytes is not None and _is_outside(memory, current.memory_bits / 8, MARGIN, GROWN)
    flows, packets, loss = _expected(seen)
    outgrown = (
        is_resized
        or _is_outside(flows, current.flows, GROWN, SHRUNK)
        or _is_outside(loss, max(current.loss, LEAST_LOSS), GROWN, SHRUNK)
        or _is_outside(packets, current.packets, PACKETS_GROWN, PACKETS_SHRUNK)
        or _is_outside(seen.common_share, current.markers, GROWN, GROWN)
    )
    if not outgrown or seen.packets <= 0:
        return None
    following = plan_point(
        memory,
        flows=min(MOST_PLANNED_FLOWS, math.ceil(MARGIN * flows)),
        loss=min(1.0, MARGIN * loss),
        packets=min(MOST_PLANNED_PACKETS, math.ceil(MARGIN * packets)),
        markers=min(1.0, max(0.0, seen.common_share)),
    )
    return following if (following.stream, following.markers) != (current.stream, current.markers) else None


def _expected(seen: Seen) -> tuple[int, int, float]:
    """Flows, packets and loss to plan for, without the margin."""
    return max(seen.flows, LEAST_FLOWS), max(seen.packets, LEAST_PACKETS), max(seen.loss, LEAST_LOSS)


def _is_outside(seen: float, planned: float, grown: float, shrunk: float) -> bool:
    """Whether something left the band of what was planned for; what was not known then is outside."""
    return seen > grown * planned or seen * shrunk < planned


def sized_memory(seen: Seen, *, error: float, confidence: float) -> int:
    """The bytes by which flows' means are within a share of the truth, with a confidence, in such traffic.

    Cost: seconds.
    """
    from sojourn.segments.planning.search import Wish, plan_memory
    from sojourn.segments.planning.world import ExpectedTraffic, pareto_sizes

    flows, packets, loss = _expected(seen)
    flows, packets = math.ceil(MARGIN * flows), max(math.ceil(MARGIN * flows), math.ceil(MARGIN * packets))
    sizes = pareto_sizes(min(flows, MOST_SIZED), packets * min(1.0, MOST_SIZED / flows))
    lost = np.full(len(sizes), min(1.0, MARGIN * loss))
    found = plan_memory("auto", ExpectedTraffic(sizes, lost, flows), Wish(error, confidence))
    return max(LEAST_SIZED_BYTES, found.budget_bytes)
