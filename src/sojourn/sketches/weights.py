"""Flow weights: how much a packet of a flow counts in an LDS, as a policy decides (LDS §4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.keys import FlowKey, key_id

__all__ = ["FlowWeights"]

MAX_WEIGHT = 1 << 20


class FlowWeights:
    """Weights by flow id; flows that are not named weigh 1. O(log n) per packet."""

    def __init__(self, weights: Mapping[int, int]) -> None:
        for weight in weights.values():
            if not 1 <= weight <= MAX_WEIGHT:
                raise ParameterError(f"flow weight {weight} is outside 1 … {MAX_WEIGHT}", where="flow weights")
        pairs = sorted(weights.items())
        self._ids = np.array([flow for flow, _ in pairs], np.uint64)
        self._weights = np.array([weight for _, weight in pairs], np.int64)
        self.largest = max(weights.values(), default=1)

    @classmethod
    def from_policy(cls, flows: Iterable[FlowKey], policy: Callable[[FlowKey], int]) -> FlowWeights:
        """The weights that a policy, a function of the flow's key, gives to known flows."""
        return cls({key_id(flow): policy(flow) for flow in flows})

    def of(self, flow_id: UInt64Array) -> Int64Array:
        """The weight of each packet's flow."""
        if not self._ids.size:
            return np.ones(len(flow_id), np.int64)
        position = np.minimum(np.searchsorted(self._ids, flow_id), len(self._ids) - 1)
        return np.where(self._ids[position] == flow_id, self._weights[position], 1)
