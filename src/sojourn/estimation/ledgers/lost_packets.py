"""The lost packets one by one: when each was sent, of which flow, and in which burst.

A burst is a run of consecutive packets of a flow that were all lost, as exact matching has it (`matching.bursts`):
packets are consecutive by their order at the sender, which its ledger tells. O(packets of flows with losses · log).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array, UInt64Array
from sojourn.sketches.ledgers.ledger import LedgerPackets


@dataclass(frozen=True, eq=False)
class LostPackets:
    """A row for each lost packet, in order of time: the number of its burst, and how many packets that has."""

    time_ns: Int64Array
    flow_id: UInt64Array
    packet_id: UInt64Array
    burst: Int64Array
    length: Int64Array

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def totals(self) -> dict[str, float | int | None]:
        """The bursts of all flows, by the names of an exact answer."""
        lengths = np.bincount(self.burst)
        mean = len(self) / len(lengths) if len(lengths) else None
        return {"loss_bursts": len(lengths), "mean_burst": mean, "longest_burst": int(lengths.max(initial=0))}


def lost_packets(packets: LedgerPackets, missing: LedgerPackets) -> LostPackets:
    """The missing of a ledger's packets; an id that is there twice counts once, as the first of its flow."""
    rows = np.flatnonzero(np.isin(packets.flow_id, missing.flow_id))
    rows = rows[np.lexsort((packets.time_ns[rows], packets.flow_id[rows]))]
    flow_id = packets.flow_id[rows]
    is_lost = _first_of_each(packets.packet_id[rows], missing.packet_id)
    goes_on = np.zeros(len(rows), bool)
    goes_on[1:] = is_lost[:-1] & (flow_id[1:] == flow_id[:-1])
    burst = np.cumsum(is_lost & ~goes_on)[is_lost] - 1
    lost = rows[is_lost]
    order = np.argsort(packets.time_ns[lost], kind="stable")
    lengths = np.bincount(burst)
    lost, burst = lost[order], burst[order]
    _, numbers = np.unique(burst, return_index=True)
    # Numbered as they begin.
    renumbered = np.empty(len(numbers), np.int64)
    renumbered[np.argsort(numbers, kind="stable")] = np.arange(len(numbers))
    columns = packets.time_ns[lost], packets.flow_id[lost], packets.packet_id[lost]
    return LostPackets(*columns, renumbered[burst], lengths[burst])


def _first_of_each(packet_id: UInt64Array, wanted: UInt64Array) -> BoolArray:
    """Where the wanted ids are, each once."""
    found = np.flatnonzero(np.isin(packet_id, wanted))
    _, first = np.unique(packet_id[found], return_index=True)
    is_first = np.zeros(len(packet_id), bool)
    is_first[found[first]] = True
    return is_first
