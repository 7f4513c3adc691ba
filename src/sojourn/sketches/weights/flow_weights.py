"""Flow weights: how much a packet of a flow counts in an LDS, as a policy decides (LDS §4.1).

A table from flow ids to weights, open addressing: 5 ns per packet. What is not in it weighs 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.flows.table import empty_slots, fill_slots, find_slot
from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.kernels import kernel
from sojourn.core.keys import FlowKey, key_id

__all__ = ["FlowWeights"]

MAX_WEIGHT = 1 << 20
MAX_FLOWS = 1 << 20
_FIRST_CAPACITY = 1 << 10


class FlowWeights:
    """Weights by flow id; flows that are not named weigh 1.

    `cover` remembers at most `MAX_FLOWS` flows (or those of one batch, if more): then the table starts anew.
    """

    def __init__(self, weights: Mapping[int, int]) -> None:
        self._begin()
        self.largest = 1
        ids = np.array(list(weights), np.uint64)
        self.learn(ids, np.array([weights[i] for i in weights], np.int64))

    @classmethod
    def from_policy(cls, flows: Iterable[FlowKey], policy: Callable[[FlowKey], int]) -> FlowWeights:
        """The weights that a policy, a function of the flow's key, gives to known flows."""
        return cls({key_id(flow): policy(flow) for flow in flows})

    def _begin(self) -> None:
        self._count = 0
        self._ids = np.zeros(_FIRST_CAPACITY, np.uint64)
        self._weights = np.ones(_FIRST_CAPACITY, np.int64)
        self._slots = empty_slots(_FIRST_CAPACITY)

    def of(self, flow_id: UInt64Array) -> Int64Array:
        """The weight of each packet's flow."""
        weights = np.ones(len(flow_id), np.int64)
        _look_up(self._slots, self._ids, self._weights, flow_id, weights)
        return weights

    def unknown(self, flow_id: UInt64Array) -> Int64Array:
        """The positions of packets whose flow is not in the table, the first of each flow."""
        rows = np.flatnonzero(_absent(self._slots, self._ids, flow_id))
        _, first = np.unique(flow_id[rows], return_index=True)
        return rows[first]

    def cover(self, flow_id: UInt64Array, weigh: Callable[[Int64Array], Int64Array]) -> None:
        """Learn the flows of packets that are not in the table; `weigh` gives the weights of packets by position."""
        rows = self.unknown(flow_id)
        if self._count + len(rows) > MAX_FLOWS:
            self._begin()
            rows = self.unknown(flow_id)
        if len(rows):
            self.learn(flow_id[rows], weigh(rows))

    def learn(self, flow_id: UInt64Array, weights: Int64Array) -> None:
        """Note the weights of flows that are not in the table yet."""
        if len(weights) and not 1 <= int(weights.min()) <= int(weights.max()) <= MAX_WEIGHT:
            wrong = weights[(weights < 1) | (weights > MAX_WEIGHT)][0]
            raise ParameterError(f"flow weight {wrong} is outside 1 … {MAX_WEIGHT}", where="flow weights")
        self._make_room(self._count + len(flow_id))
        end = self._count + len(flow_id)
        self._ids[self._count : end], self._weights[self._count : end] = flow_id, weights
        _enter(self._slots, self._ids, self._count, end)
        self._count = end
        self.largest = max(self.largest, int(weights.max(initial=1)))

    def _make_room(self, flows: int) -> None:
        if flows <= len(self._ids):
            return
        more = 2 * max(flows, len(self._ids)) - len(self._ids)
        self._ids = np.concatenate([self._ids, np.zeros(more, np.uint64)])
        self._weights = np.concatenate([self._weights, np.ones(more, np.int64)])
        self._slots = empty_slots(len(self._ids))
        fill_slots(self._slots, self._ids, self._count)


@kernel
def _look_up(
    slots: NDArray[np.int32], ids: UInt64Array, known: Int64Array, flow_id: UInt64Array, weights: Int64Array
) -> None:
    for i in range(len(flow_id)):
        row = slots[find_slot(slots, ids, flow_id[i])]
        if row >= 0:
            weights[i] = known[row]


@kernel
def _absent(slots: NDArray[np.int32], ids: UInt64Array, flow_id: UInt64Array) -> NDArray[np.bool_]:
    absent = np.empty(len(flow_id), np.bool_)
    for i in range(len(flow_id)):
        absent[i] = slots[find_slot(slots, ids, flow_id[i])] < 0
    return absent


@kernel
def _enter(slots: NDArray[np.int32], ids: UInt64Array, start: int, end: int) -> None:
    for row in range(start, end):
        slots[find_slot(slots, ids, ids[row])] = row
