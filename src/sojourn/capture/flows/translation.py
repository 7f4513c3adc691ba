"""Flows through a device that translates addresses or ports: which flow behind it is which flow before it.

Packets of both points are told apart by what a translator leaves alone (`decode.ids`, the payload's identity). Of every
flow of the receiver a `FlowFingerprints` keeps the `KEPT` packets whose hashed ids are the lowest: a random few, from
all of its time. `Witnesses` are those that no other flow of the receiver has; looked for at the sender, they say which
flow sent them, unless several did. However many packets were lost on the way, those that arrived were sent.

A `FlowNames` gives the receiver's packets the flow ids of the sender, so that all that follows sees one set of flows,
named as at the sender. Several flows of the receiver may be one of the sender (the translator forgot a pause); one of
the receiver that shows packets of several is named for the most and counted as ``ambiguous``. A flow without a partner
keeps its own name.

Memory: 600 bytes per flow of the receiver while flows are paired. Time: O(1) per packet, 10 ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.flows.table import FlowTable, empty_slots, fill_slots, find_slot
from sojourn.core.arrays import Int64Array, PacketBatch, UInt8Array, UInt64Array, rows_of
from sojourn.core.hash_kernels import mix
from sojourn.core.kernels import kernel

KEPT = 16
_FIRST_CAPACITY = 1 << 10


@kernel
def _keep_lowest(
    slots: NDArray[np.int32],
    ids: UInt64Array,
    kept: UInt64Array,
    counts: Int64Array,
    used: int,
    flow_id: UInt64Array,
    packet_id: UInt64Array,
    start: int,
) -> tuple[int, int]:
    """Take in packets from `start` on, until they end or there is no room for flows; how far, and how many flows."""
    for i in range(start, flow_id.shape[0]):
        slot = find_slot(slots, ids, flow_id[i])
        row = np.int64(slots[slot])
        if row < 0:
            if used == ids.shape[0]:
                return i, used
            row = np.int64(used)
            slots[slot] = row
            ids[row] = flow_id[i]
            used += 1
        hashed = mix(packet_id[i])
        count = counts[row]
        if count == kept.shape[1] and hashed >= kept[row, count - 1]:
            continue
        # In ascending order, each once.
        place = count
        while place > 0 and kept[row, place - 1] > hashed:
            place -= 1
        if place > 0 and kept[row, place - 1] == hashed:
            continue
        last = min(count, kept.shape[1] - 1)
        for j in range(last, place, -1):
            kept[row, j] = kept[row, j - 1]
        kept[row, place] = hashed
        counts[row] = last + 1
    return flow_id.shape[0], used


class FlowFingerprints:
    """Of each flow, the packets with the lowest hashed ids."""

    def __init__(self, max_flows: int) -> None:
        self.max_flows = max_flows
        self.overflow_packets = 0
        self._used = 0
        capacity = min(_FIRST_CAPACITY, max_flows)
        self._ids = np.zeros(capacity, np.uint64)
        self._kept = np.zeros((capacity, KEPT), np.uint64)
        self._counts = np.zeros(capacity, np.int64)
        self._slots = empty_slots(capacity)

    def _grow(self) -> None:
        more = min(len(self._ids), self.max_flows - len(self._ids))
        self._ids = np.concatenate([self._ids, np.zeros(more, np.uint64)])
        self._kept = np.concatenate([self._kept, np.zeros((more, KEPT), np.uint64)])
        self._counts = np.concatenate([self._counts, np.zeros(more, np.int64)])
        self._slots = empty_slots(len(self._ids))
        fill_slots(self._slots, self._ids, self._used)

    def add(self, batch: PacketBatch) -> None:
        """Take in packets; those of flows beyond the limit are counted and left out."""
        start = 0
        while True:
            table = (self._slots, self._ids, self._kept, self._counts)
            start, self._used = _keep_lowest(*table, self._used, batch.flow_id, batch.packet_id, start)
            if start == len(batch):
                return
            if len(self._ids) == self.max_flows:
                self.overflow_packets += 1
                start += 1
            else:
                self._grow()

    def packets(self) -> tuple[UInt64Array, UInt64Array]:
        """The hashed ids that only one flow has, ascending, and the flow of each."""
        counts = self._counts[: self._used]
        held = np.arange(KEPT) < counts[:, None]
        hashed = self._kept[: self._used][held]
        flow = np.repeat(self._ids[: self._used], counts)
        order = np.argsort(hashed, kind="stable")
        hashed, flow = hashed[order], flow[order]
        like_next = hashed[1:] == hashed[:-1]
        alone = ~(np.r_[like_next, False] | np.r_[False, like_next]) if len(hashed) else np.zeros(0, np.bool_)
        return hashed[alone], flow[alone]


_UNSEEN, _SEEN, _SEVERAL = 0, 1, 2


@kernel
def _find_senders(
    slots: NDArray[np.int32],
    hashed: UInt64Array,
    sender: UInt64Array,
    state: UInt8Array,
    flow_id: UInt64Array,
    packet_id: UInt64Array,
) -> None:
    for i in range(flow_id.shape[0]):
        row = slots[find_slot(slots, hashed, mix(packet_id[i]))]
        if row < 0:
            continue
        if state[row] == _UNSEEN:
            state[row] = _SEEN
            sender[row] = flow_id[i]
        elif sender[row] != flow_id[i]:
            state[row] = _SEVERAL


class Witnesses:
    """Packets of the receiver's flows, looked for at the sender."""

    def __init__(self, receiver: FlowFingerprints) -> None:
        self._hashed, self._receiver = receiver.packets()
        self._sender = np.zeros(len(self._hashed), np.uint64)
        self._state = np.zeros(len(self._hashed), np.uint8)
        self._slots = empty_slots(len(self._hashed))
        fill_slots(self._slots, self._hashed, len(self._hashed))

    def add(self, batch: PacketBatch) -> None:
        """Look for them among packets of the sender."""
        _find_senders(self._slots, self._hashed, self._sender, self._state, batch.flow_id, batch.packet_id)

    def pairs(self) -> tuple[UInt64Array, Int64Array]:
        """Flows of the receiver and of the sender (two columns), and how many packets say so."""
        told = self._state == _SEEN
        both = np.stack([self._receiver[told], self._sender[told]], axis=1)
        pairs, votes = np.unique(both, axis=0, return_counts=True)
        return pairs.reshape(-1, 2), votes


@dataclass(frozen=True, eq=False)
class FlowNames:
    """The receiver's flows (``seen``, ascending) and the sender's flows that they are (``named``), with their votes.

    ``keys`` and ``key_sizes`` are the canonical bytes of the sender's keys. ``ambiguous`` counts flows of the receiver
    that showed packets of several flows of the sender.
    """

    seen: UInt64Array
    named: UInt64Array
    votes: Int64Array
    keys: UInt8Array
    key_sizes: UInt8Array
    ambiguous: int = 0

    @classmethod
    def none(cls) -> FlowNames:
        """Every flow keeps its name."""
        ids = np.zeros(0, np.uint64)
        return cls(ids, ids, np.zeros(0, np.int64), np.zeros((0, 0), np.uint8), np.zeros(0, np.uint8))

    @classmethod
    def of(cls, witnesses: Witnesses, table: FlowTable) -> FlowNames:
        """Pair flows as the packets say; `table` has the sender's keys."""
        pairs, votes = witnesses.pairs()
        # The most votes of each flow first; among equals the lower id, so that answers do not depend on chance.
        order = np.lexsort((pairs[:, 1], -votes, pairs[:, 0]))
        seen, first, among = np.unique(pairs[order, 0], return_index=True, return_counts=True)
        named = pairs[order[first], 1]
        rows = rows_of(table.ids, named)
        known = rows >= 0
        keys, sizes = table.key_bytes
        return cls(
            seen[known], named[known], votes[order[first]][known], keys[rows[known]], sizes[rows[known]],
            int(np.count_nonzero(among > 1)),
        )  # fmt: skip

    def rename(self, flow_id: UInt64Array) -> UInt64Array:
        """The sender's ids of the receiver's packets; a flow without a partner keeps its own."""
        if not len(self.seen):
            return flow_id
        rows = np.minimum(np.searchsorted(self.seen, flow_id), len(self.seen) - 1)
        return np.where(self.seen[rows] == flow_id, self.named[rows], flow_id)

    def rename_keys(self, flow_id: UInt64Array, keys: UInt8Array, sizes: UInt8Array) -> None:
        """Put the sender's keys in the place of those of renamed flows, row by row."""
        if len(self.seen):
            rows = rows_of(self.named, flow_id)
            renamed = rows >= 0
            keys[renamed], sizes[renamed] = self.keys[rows[renamed]], self.key_sizes[rows[renamed]]
