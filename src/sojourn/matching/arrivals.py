"""Jitter and reordering of every flow, from the order in which its packets arrived.

Jitter is RFC 3550 §6.4.1's running estimate after the last packet. A packet is reordered when one of its flow that was
sent later had already arrived, and its extent is the number of packets that had arrived since the first such one
(RFC 4737 §3.3, §4.2.2); a flow's is that of its worst packet.

The first packet that was sent later and had arrived is one of the *records*: packets sent later than all that arrived
before them. Records with consecutive numbers that arrived one after the other are kept as one *run* (a flow without
loss or reordering is a single one): the newest run of each flow with the flow, the latest `KEPT_RUNS` others of all
flows in a ring. Only where reordering reaches further back than that many losses and reorderings is an extent too
small: it then counts from the oldest run that is left.
O(1) a packet in order, O(runs that it goes back) for one that is not. Memory: 80 bytes a flow, and the ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import borrowing_inlined, borrowing_kernel
from sojourn.matching.consumers import LostColumns, MatchedColumns

KEPT_RUNS = 1 << 18
JITTER_GAIN = 1 / 16

# Columns of a flow's state.
_ARRIVED, _NEWEST_NS, _NUMBER, _PLACE, _LENGTH, _OLDER, _REORDERED, _EXTENT, _DELAY = range(9)
_FIELDS = 9
# Columns of a run in the ring: its first packet's number and place of arrival, its length, and the run before it.
_RUN_NUMBER, _RUN_PLACE, _RUN_LENGTH, _RUN_OLDER = range(4)


class FlowArrivals:
    """A `PacketConsumer`: ``jitter_ns``, ``reordered`` and ``reorder_extent``."""

    def __init__(self, *, kept_runs: int = KEPT_RUNS) -> None:
        self._flows = np.zeros((0, _FIELDS), np.int64)
        self._jitter = np.zeros(0)
        self._ring = np.zeros((kept_runs, 4), np.int64)
        self._runs = np.zeros(1, np.int64)  # that have been put into the ring so far

    def take_matched(self, packets: MatchedColumns) -> None:
        """The next packets, in order of arrival."""
        if len(packets):
            self._reach(int(packets.flow.max()) + 1)
            rows = packets.flow, packets.number, packets.sent_ns, packets.delay_ns
            _arrive(rows, self._flows, self._jitter, self._ring, self._runs)

    def take_lost(self, packets: LostColumns) -> None:
        """A lost packet does not arrive."""

    def columns(self, flow: Int64Array) -> Mapping[str, NDArray[Any]]:
        """NaN for the jitter of a flow of which nothing arrived."""
        self._reach(int(flow.max(initial=-1)) + 1)
        state = self._flows[flow]
        jitter = np.where(state[:, _ARRIVED] > 0, self._jitter[flow], np.nan)
        return {"jitter_ns": jitter, "reordered": state[:, _REORDERED], "reorder_extent": state[:, _EXTENT]}

    def totals(self, flow: Int64Array) -> Mapping[str, float | int | None]:
        """The flows' jitters, weighed by their packets; all that was reordered; the largest extent."""
        columns = self.columns(flow)
        weights = self._flows[flow, _ARRIVED]
        jitter = float(np.average(np.nan_to_num(columns["jitter_ns"]), weights=weights)) if weights.sum() else None
        extent = int(columns["reorder_extent"].max(initial=0))
        return {"jitter_ns": jitter, "reordered": int(columns["reordered"].sum()), "reorder_extent": extent}

    def _reach(self, flows: int) -> None:
        if flows > len(self._flows):
            more = max(flows, 2 * len(self._flows)) - len(self._flows)
            self._flows = np.concatenate([self._flows, np.zeros((more, _FIELDS), np.int64)])
            self._jitter = np.concatenate([self._jitter, np.zeros(more)])


@borrowing_kernel
def _arrive(
    rows: tuple[Int64Array, Int64Array, Int64Array, Int64Array],
    flows: Int64Array,
    jitter: FloatArray,
    ring: Int64Array,
    runs: Int64Array,
) -> None:
    flow, number, sent_ns, delay_ns = rows
    for i in range(flow.shape[0]):
        k = flow[i]
        arrived = flows[k, _ARRIVED]
        if arrived == 0:
            _begin_run(flows, k, number[i], arrived)
            flows[k, _NEWEST_NS] = sent_ns[i]
        else:
            jitter[k] += (abs(float(delay_ns[i]) - float(flows[k, _DELAY])) - jitter[k]) * JITTER_GAIN
            if sent_ns[i] < flows[k, _NEWEST_NS]:
                flows[k, _REORDERED] += 1
                extent = arrived - _first_later(flows, k, number[i], ring, runs[0])
                flows[k, _EXTENT] = max(flows[k, _EXTENT], extent)
            elif number[i] == flows[k, _NUMBER] + flows[k, _LENGTH] and arrived == flows[k, _PLACE] + flows[k, _LENGTH]:
                flows[k, _LENGTH] += 1
            elif number[i] >= flows[k, _NUMBER] + flows[k, _LENGTH]:
                _keep_run(flows, k, ring, runs)
                _begin_run(flows, k, number[i], arrived)
            # One that was sent at the same instant as the newest, but before it, is neither late nor a record.
            flows[k, _NEWEST_NS] = max(flows[k, _NEWEST_NS], sent_ns[i])
        flows[k, _DELAY] = delay_ns[i]
        flows[k, _ARRIVED] = arrived + 1


@borrowing_inlined
def _begin_run(flows: Int64Array, k: int, number: int, place: int) -> None:
    flows[k, _NUMBER], flows[k, _PLACE], flows[k, _LENGTH] = number, place, 1


@borrowing_inlined
def _keep_run(flows: Int64Array, k: int, ring: Int64Array, runs: Int64Array) -> None:
    """Put a flow's newest run into the ring, where it takes the place of the oldest of all."""
    at = runs[0] % ring.shape[0]
    ring[at, _RUN_NUMBER], ring[at, _RUN_PLACE] = flows[k, _NUMBER], flows[k, _PLACE]
    ring[at, _RUN_LENGTH], ring[at, _RUN_OLDER] = flows[k, _LENGTH], flows[k, _OLDER]
    runs[0] += 1
    flows[k, _OLDER] = runs[0]  # from 1 on: a flow without an older run has 0


@borrowing_inlined
def _first_later(flows: Int64Array, k: int, number: int, ring: Int64Array, runs: int) -> int:
    """Where the first record arrived that has a larger number."""
    start, place, older = flows[k, _NUMBER], flows[k, _PLACE], flows[k, _OLDER]
    while start > number and older > 0 and older > runs - ring.shape[0]:
        at = (older - 1) % ring.shape[0]
        if ring[at, _RUN_NUMBER] + ring[at, _RUN_LENGTH] - 1 <= number:
            break
        start, place, older = ring[at, _RUN_NUMBER], ring[at, _RUN_PLACE], ring[at, _RUN_OLDER]
    first: int = place + max(0, number + 1 - start)
    return first
