"""A coordinated sample: the same packets at every observation point, in fixed memory.

A packet is kept when the hash of its id lies below a threshold; whenever the sample is full the threshold halves
and what no longer qualifies goes. Two points sample the same packets below the smaller of their thresholds, so that
matching the two samples is matching a random share of the packets: enough for clocks and directions.

Memory: `capacity` × 24 bytes. Time: one hash per packet, O(1); a capture of at most `capacity` packets is kept whole.
"""

from __future__ import annotations

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import BoolArray, Int64Array, PacketBatch, UInt64Array
from sojourn.core.hash_kernels import mix, mix_column
from sojourn.core.kernels import kernel

EVERYTHING = 2**64 - 1
_SALT = np.uint64(hashing.salt_for(1 << 23, 0))


@kernel
def _select(packet_id: UInt64Array, threshold: np.uint64, chosen: Int64Array, start: int) -> tuple[int, int]:
    """Rows from `start` on that qualify, until `chosen` is full; how many, and the row to go on from."""
    count = 0
    for row in range(start, len(packet_id)):
        if mix(packet_id[row] ^ _SALT) <= threshold:
            if count == len(chosen):
                return count, row
            chosen[count] = row
            count += 1
    return count, len(packet_id)


class PacketSample:
    """The packets of one observation point whose hashes are smallest."""

    def __init__(self, capacity: int = 1 << 18) -> None:
        self.capacity = capacity
        self.threshold = EVERYTHING
        self.count = 0
        self._flow_id = np.empty(capacity, np.uint64)
        self._packet_id = np.empty(capacity, np.uint64)
        self._time_ns = np.empty(capacity, np.int64)
        self._chosen = np.empty(capacity, np.int64)

    def add(self, batch: PacketBatch) -> None:
        """Offer a batch."""
        row = 0
        while row < len(batch):
            room = self._chosen[: self.capacity - self.count]
            count, row = _select(batch.packet_id, np.uint64(self.threshold), room, row)
            chosen, target = room[:count], slice(self.count, self.count + count)
            self._flow_id[target] = batch.flow_id[chosen]
            self._packet_id[target] = batch.packet_id[chosen]
            self._time_ns[target] = batch.time_ns[chosen]
            self.count += count
            if row < len(batch):
                self._halve()

    def _halve(self) -> None:
        self.threshold //= 2
        self._keep(self._below(self.threshold))

    def _below(self, threshold: int) -> BoolArray:
        return mix_column(self._packet_id[: self.count] ^ _SALT) <= np.uint64(threshold)

    def _keep(self, rows: BoolArray) -> None:
        kept = int(np.count_nonzero(rows))
        for column in (self._flow_id, self._packet_id, self._time_ns):
            column[:kept] = column[: self.count][rows]
        self.count = kept

    def packets(self, threshold: int = EVERYTHING) -> PacketBatch:
        """The sampled packets below a threshold, in the order in which they came."""
        rows = np.flatnonzero(self._below(min(threshold, self.threshold)))
        sizes = np.zeros(len(rows), np.int64)
        return PacketBatch(self._flow_id[rows], self._packet_id[rows], self._time_ns[rows], sizes)

    @property
    def share(self) -> float:
        """The share of all packets that the sample holds, in expectation."""
        return (self.threshold + 1) / 2**64


def common_sample(sender: PacketSample, receiver: PacketSample) -> tuple[PacketBatch, PacketBatch]:
    """The packets that both points would have kept."""
    threshold = min(sender.threshold, receiver.threshold)
    return sender.packets(threshold), receiver.packets(threshold)
