"""Dense numbers for flow ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.flows.table import empty_slots, fill_slots, find_slot
from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.kernels import kernel


class FlowNumbers:
    """Numbers flow ids densely in order of appearance; O(1) per packet, 16 bytes per flow."""

    def __init__(self) -> None:
        self._ids = np.empty(1 << 10, np.uint64)
        self._slots = empty_slots(len(self._ids))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> UInt64Array:
        """The flows' ids, by number."""
        return self._ids[: self._count]

    def of(self, flow_id: UInt64Array) -> Int64Array:
        """The number of each packet's flow.

        >>> FlowNumbers().of(np.array([7, 9, 7], np.uint64))
        array([0, 1, 0])
        """
        numbers = np.empty(len(flow_id), np.int64)
        done = 0
        while done < len(flow_id):
            done, self._count = _number(flow_id, numbers, done, self._slots, self._ids, self._count)
            if done < len(flow_id):
                self._ids = np.concatenate([self._ids, np.empty(len(self._ids), np.uint64)])
                self._slots = empty_slots(len(self._ids))
                fill_slots(self._slots, self._ids, self._count)
        return numbers


@kernel
def _number(
    flow_id: UInt64Array, numbers: Int64Array, start: int, slots: NDArray[np.int32], ids: UInt64Array, count: int
) -> tuple[int, int]:
    """Number rows from `start` on until there is no room for a new flow: where it stopped, and the flows."""
    for i in range(start, flow_id.shape[0]):
        at = find_slot(slots, ids, flow_id[i])
        if slots[at] < 0:
            if count == ids.shape[0]:
                return i, count
            ids[count] = flow_id[i]
            slots[at] = count
            count += 1
        numbers[i] = slots[at]
    return flow_id.shape[0], count
