"""What a capture tells a planner: the sizes that flows have in an epoch, how many there are, and the packet rate.

One pass; memory O(flows × epochs). With an epoch shorter than the capture a flow counts once in every epoch it has
packets in, and the number of flows is that of the busiest epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import InputError


@dataclass(frozen=True, eq=False)
class CapturedTraffic:
    """Sizes of flows per epoch, flows in the busiest epoch, the epoch's length and packets per second."""

    packets: Int64Array
    flows: int
    epoch_ns: int
    rate: float


def read_traffic(batches: Iterable[PacketBatch], *, epoch_ns: int | None, name: str) -> CapturedTraffic:
    """Count every flow's packets in every epoch; without a length the whole capture is one epoch."""
    parts: list[tuple[UInt64Array, Int64Array, Int64Array]] = []
    first, last, total = np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0
    for batch in batches:
        if not len(batch):
            continue
        first, last = min(first, int(batch.time_ns.min())), max(last, int(batch.time_ns.max()))
        total += len(batch)
        slot = batch.time_ns // epoch_ns if epoch_ns else np.zeros(len(batch), np.int64)
        parts.append(_counted(batch.flow_id, slot, np.ones(len(batch), np.int64)))
    if not total:
        raise InputError("there is no IP packet", where=name, action="check the file and the filter")
    flow_id, slot, packets = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    _, slot, packets = _counted(flow_id, slot, packets)
    length = max(last - first, 1)
    busiest = int(np.unique(slot, return_counts=True)[1].max())
    return CapturedTraffic(packets, busiest, epoch_ns or length, total * 1e9 / length)


def _counted(flow_id: UInt64Array, slot: Int64Array, packets: Int64Array) -> tuple[UInt64Array, Int64Array, Int64Array]:
    """Packets added up per flow and slot."""
    order = np.lexsort((flow_id, slot))
    flow_id, slot, packets = flow_id[order], slot[order], packets[order]
    starts = np.flatnonzero(np.r_[True, (flow_id[1:] != flow_id[:-1]) | (slot[1:] != slot[:-1])])
    return flow_id[starts], slot[starts], np.add.reduceat(packets, starts)
