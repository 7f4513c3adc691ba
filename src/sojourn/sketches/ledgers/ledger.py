"""`Ledger`: the packets that passed a point last, each with its id, time and flow, in a ring of fixed size.

Guarantee: bounded. The newest packets are there, whatever their rate; the oldest are forgotten, and it is known until
when (`forgotten_ns`): a stretch of time that the ledger does not hold in full is refused, never answered in part.
Memory: 24 bytes for each packet, all of it taken at the start, and 16 for each 4096 of them. Time: a copy, about 2 ns
for each packet; a stretch of time is found in O(blocks + packets of the blocks that it touches).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.kernels import kernel

BLOCK = 4096
BYTES_PER_PACKET = 24
MOST_LEDGER_PACKETS = 1 << 30
NOTHING_FORGOTTEN = -(2**63)
_FAR = 2**63 - 1


@kernel
def _append(
    columns: tuple[UInt64Array, UInt64Array, Int64Array],
    batch: tuple[UInt64Array, UInt64Array, Int64Array],
    edges: Int64Array,
    written: int,
    forgotten_ns: int,
) -> int:
    """Write a batch over the oldest packets, block by block; until when packets are forgotten then."""
    flow_id, packet_id, time_ns = columns
    size = len(time_ns)
    place = written % size
    for i in range(len(batch[2])):
        now = batch[2][i]
        block = place // BLOCK
        if place % BLOCK == 0:
            # A block is forgotten as a whole, when its first packet is written over.
            forgotten_ns = max(forgotten_ns, edges[block, 1])
            edges[block, 0], edges[block, 1] = _FAR, NOTHING_FORGOTTEN
        flow_id[place], packet_id[place], time_ns[place] = batch[0][i], batch[1][i], now
        edges[block, 0], edges[block, 1] = min(edges[block, 0], now), max(edges[block, 1], now)
        place += 1
        if place == size:
            place = 0
    return forgotten_ns


@dataclass(frozen=True, eq=False)
class LedgerPackets:
    """Packets of a ledger, in the order in which they were recorded."""

    flow_id: UInt64Array
    packet_id: UInt64Array
    time_ns: Int64Array

    def __len__(self) -> int:
        return len(self.time_ns)


class Ledger:
    """The last `packets` packets of one point (rounded up to whole blocks)."""

    def __init__(self, packets: int) -> None:
        if not 1 <= packets <= MOST_LEDGER_PACKETS:
            raise ParameterError(
                f"{packets} packets", where="ledger", action=f"use a whole number in 1 … {MOST_LEDGER_PACKETS}"
            )
        blocks = -(-packets // BLOCK)
        self.size = blocks * BLOCK
        self._columns = np.zeros(self.size, np.uint64), np.zeros(self.size, np.uint64), np.zeros(self.size, np.int64)
        self._edges = np.empty((blocks, 2), np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget everything, as if nothing had been there."""
        self._edges[:, 0], self._edges[:, 1] = _FAR, NOTHING_FORGOTTEN
        self.written, self.forgotten_ns = 0, NOTHING_FORGOTTEN
        self._lead_written, self._lead_since_ns = 0, NOTHING_FORGOTTEN

    @property
    def memory_bytes(self) -> int:
        return self.size * BYTES_PER_PACKET + self._edges.nbytes

    @property
    def held(self) -> int:
        """How many packets it has."""
        return len(self._rows(np.arange(len(self._edges))))

    def _rows(self, blocks: Int64Array) -> Int64Array:
        """The places of the packets of some blocks, oldest first."""
        under_way = self.written % self.size // BLOCK
        in_order = blocks[np.argsort((blocks - under_way - 1) % len(self._edges), kind="stable")]
        rows: Int64Array = (in_order[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        if self.written < self.size:
            rows = rows[rows < self.written]
        elif self.written % BLOCK:  # what is left of the block that is being written over is forgotten
            rows = rows[(rows // BLOCK != under_way) | (rows < self.written % self.size)]
        return rows

    def append(self, batch: PacketBatch) -> None:
        """Enter the packets of a batch."""
        if not len(batch):
            return
        if self._lead_since_ns == _FAR:
            self._lead_since_ns = int(batch.time_ns.min())
        columns = batch.flow_id, batch.packet_id, batch.time_ns
        self.forgotten_ns = int(_append(self._columns, columns, self._edges, self.written, self.forgotten_ns))
        self.written += len(batch)

    def begin_lead(self) -> None:
        """The clock was set: stamps of packets from now on are not comparable with those before."""
        self._lead_written, self._lead_since_ns = self.written, _FAR

    @property
    def comparable_since_ns(self) -> int:
        """From when on all packets are still there, by stamps as they are now."""
        return max(self.forgotten_ns + 1, self._lead_since_ns)

    def holds(self, first_ns: int) -> bool:
        """Whether all packets from a time on are still there."""
        return self.forgotten_ns < first_ns

    def between(self, first_ns: int, last_ns: int) -> LedgerPackets | None:
        """All packets with times in ``first_ns … last_ns``; None where some of them may be forgotten."""
        if not self.holds(first_ns):
            return None
        return self._select(self._rows_between(first_ns, last_ns))

    def of_flow(self, flow_id: int, first_ns: int, last_ns: int) -> LedgerPackets:
        """A flow's packets with such times, as far as they are still there, and were stamped since a clock was set."""
        rows = self._rows_between(first_ns, last_ns)
        rows = rows[self._columns[0][rows] == np.uint64(flow_id)]
        last = self.written - 1
        return self._select(rows[last - (last - rows) % self.size >= self._lead_written])

    def _rows_between(self, first_ns: int, last_ns: int) -> Int64Array:
        touched = (self._edges[:, 0] <= last_ns) & (self._edges[:, 1] >= first_ns)
        rows = self._rows(np.flatnonzero(touched))
        time_ns = self._columns[2][rows]
        return rows[(time_ns >= first_ns) & (time_ns <= last_ns)]

    def _select(self, rows: Int64Array) -> LedgerPackets:
        return LedgerPackets(*(column[rows] for column in self._columns))  # type: ignore[arg-type]
