"""Bursts of loss: runs of consecutive packets of a flow that were all lost.

Guarantee: counts are exact. Packets are consecutive by their numbers at the sender; a flow's packets that arrived
between two lost ones part them into two bursts, whatever the time between. O(1) a lost packet; 56 bytes a flow.

Packets at the edges of the captures are judged at the end, after later ones (see `consumers`): those before a flow's
first burst are kept apart, 16 bytes each, and put before it when the answer is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import Int64Array, lengthened
from sojourn.core.kernels import borrowing_kernel
from sojourn.matching.consumers import LostColumns, MatchedColumns

_LOST, _BURSTS, _LONGEST, _RUN, _LAST, _FIRST, _FIRST_RUN = range(7)
_FIELDS = 7


class FlowBursts:
    """A `PacketConsumer`: ``loss_bursts``, ``mean_burst`` and ``longest_burst``, in packets."""

    def __init__(self) -> None:
        self._flows = np.zeros((0, _FIELDS), np.int64)
        self._early: list[tuple[Int64Array, Int64Array]] = []

    def take_matched(self, packets: MatchedColumns) -> None:
        """Numbers tell where lost packets are apart."""

    def take_lost(self, packets: LostColumns) -> None:
        """The next lost packets, of each flow in sending order but for the edges."""
        if len(packets):
            self._reach(int(packets.flow.max()) + 1)
            early = np.zeros(len(packets), np.bool_)
            _lose(packets.flow, packets.number, self._flows, early)
            if early.any():
                self._early.append((packets.flow[early], packets.number[early]))

    def columns(self, flow: Int64Array) -> Mapping[str, NDArray[Any]]:
        """0 bursts, and NaN packets in one, for flows that lost nothing."""
        self._reach(int(flow.max(initial=-1)) + 1)
        state = self._whole()[flow]
        with np.errstate(invalid="ignore"):
            mean = state[:, _LOST] / state[:, _BURSTS]
        return {"loss_bursts": state[:, _BURSTS], "mean_burst": mean, "longest_burst": state[:, _LONGEST]}

    def totals(self, flow: Int64Array) -> Mapping[str, float | int | None]:
        """The bursts of all flows."""
        self._reach(int(flow.max(initial=-1)) + 1)
        state = self._whole()[flow]
        bursts = int(state[:, _BURSTS].sum())
        mean = int(state[:, _LOST].sum()) / bursts if bursts else None
        return {"loss_bursts": bursts, "mean_burst": mean, "longest_burst": int(state[:, _LONGEST].max(initial=0))}

    def _whole(self) -> Int64Array:
        """The flows' state with the early packets put before what is there."""
        if not self._early:
            return self._flows
        flow, number = (np.concatenate(columns) for columns in zip(*self._early, strict=True))
        order = np.lexsort((number, flow))
        before = np.zeros_like(self._flows)
        _lose(flow[order], number[order], before, np.zeros(len(flow), np.bool_))
        whole = self._flows.copy()
        _put_before(before, whole)
        return whole

    def _reach(self, flows: int) -> None:
        self._flows = lengthened(self._flows, flows)


@borrowing_kernel
def _lose(flow: Int64Array, number: Int64Array, flows: Int64Array, early: NDArray[np.bool_]) -> None:
    for i in range(flow.shape[0]):
        k = flow[i]
        if flows[k, _LOST] and number[i] < flows[k, _LAST]:
            early[i] = True
            continue
        if flows[k, _LOST] == 0 or number[i] != flows[k, _LAST] + 1:
            flows[k, _BURSTS] += 1
            flows[k, _RUN] = 0
            if flows[k, _BURSTS] == 1:
                flows[k, _FIRST] = number[i]
        flows[k, _RUN] += 1
        flows[k, _LOST] += 1
        flows[k, _LAST] = number[i]
        flows[k, _LONGEST] = max(flows[k, _LONGEST], flows[k, _RUN])
        if flows[k, _BURSTS] == 1:
            flows[k, _FIRST_RUN] = flows[k, _RUN]


@borrowing_kernel
def _put_before(before: Int64Array, whole: Int64Array) -> None:
    """Join the bursts of earlier packets with those of later ones; the last and the first may be one."""
    for k in range(before.shape[0]):
        if before[k, _LOST] == 0:
            continue
        joined = before[k, _LAST] + 1 == whole[k, _FIRST]
        whole[k, _LOST] += before[k, _LOST]
        whole[k, _BURSTS] += before[k, _BURSTS] - joined
        longest = max(whole[k, _LONGEST], before[k, _LONGEST])
        whole[k, _LONGEST] = max(longest, before[k, _RUN] + whole[k, _FIRST_RUN]) if joined else longest
