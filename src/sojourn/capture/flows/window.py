"""Which packets of a point are measured: those of chosen flows, each within the flow's own time window.

Open addressing over flow ids, half full at most; O(1) per packet, about 5 ns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.flows.table import empty_slots, fill_slots, find_slot
from sojourn.core.arrays import BoolArray, Int64Array, UInt64Array
from sojourn.core.batches import PacketBatch
from sojourn.core.errors import MismatchError
from sojourn.core.kernels import kernel

__all__ = ["FlowWindows"]

FAR_NS = 1 << 62  # beyond any time stamp: no bound


@kernel
def _inside(
    slots: NDArray[np.int32],
    ids: UInt64Array,
    low_ns: Int64Array,
    high_ns: Int64Array,
    flow_id: UInt64Array,
    time_ns: Int64Array,
) -> tuple[BoolArray, int]:
    inside = np.zeros(len(flow_id), np.bool_)
    count = 0
    for i in range(len(flow_id)):
        row = slots[find_slot(slots, ids, flow_id[i])]
        if row >= 0 and low_ns[row] <= time_ns[i] <= high_ns[row]:
            inside[i] = True
            count += 1
    return inside, count


class FlowWindows:
    """Flows by id (unique), and the first and last time at which their packets count."""

    def __init__(self, ids: UInt64Array, low_ns: Int64Array, high_ns: Int64Array) -> None:
        if not len(ids) == len(low_ns) == len(high_ns):
            raise MismatchError(f"{len(ids)} flows, {len(low_ns)} starts, {len(high_ns)} ends")
        self._ids, self._low_ns, self._high_ns = ids, low_ns, high_ns
        self._slots = empty_slots(len(ids))
        fill_slots(self._slots, ids, len(ids))

    def hold_all(self, flow_id: UInt64Array) -> bool:
        """Whether every packet of these flows counts, whenever it was seen."""
        limits = np.iinfo(np.int64)
        unbounded = bool((self._low_ns == limits.min).all() and (self._high_ns == limits.max).all())
        return unbounded and bool(np.isin(flow_id, self._ids).all())

    def earlier(self, by_ns: int) -> FlowWindows:
        """The windows for a clock that is `by_ns` behind; what is unbounded stays so."""
        if not by_ns:
            return self
        bounds = (
            np.where(np.abs(time_ns) < FAR_NS, time_ns - by_ns, time_ns) for time_ns in (self._low_ns, self._high_ns)
        )
        return FlowWindows(self._ids, *bounds)

    def select(self, batch: PacketBatch) -> PacketBatch:
        """The packets that count; the batch itself if all do."""
        inside, count = _inside(self._slots, self._ids, self._low_ns, self._high_ns, batch.flow_id, batch.time_ns)
        return batch if count == len(batch) else batch.select(inside)
