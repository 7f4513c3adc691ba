"""What routers look at and change in an IP header: the class (DSCP) and the hops left (TTL or hop limit).

Neither is part of a packet's identity. Cost: 2 ns per packet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.capture.decode.rows import Located
from sojourn.core.arrays import UInt8Array
from sojourn.core.kernels import kernel
from sojourn.core.memory_kernels import address_of, big_16, byte_at

__all__ = ["ForwardingBatch", "forwarding_batch"]


@dataclass(frozen=True, eq=False)
class ForwardingBatch:
    """One row per packet of the batch that it was decoded with."""

    dscp: UInt8Array
    hops_left: UInt8Array


@kernel
def _read(buffer: UInt8Array, rows: Located, dscp: UInt8Array, hops_left: UInt8Array) -> None:
    data = address_of(buffer)
    for i in range(len(rows)):
        row = rows[i]
        at = row["ip"]
        if row["version"] == 4:
            dscp[i] = byte_at(data, at + 1) >> 2
            hops_left[i] = byte_at(data, at + 8)
        else:
            dscp[i] = big_16(data, at) >> 6 & 0x3F
            hops_left[i] = byte_at(data, at + 7)


def forwarding_batch(data: UInt8Array, rows: Located) -> ForwardingBatch:
    """The columns of located packets."""
    batch = ForwardingBatch(np.empty(len(rows), np.uint8), np.empty(len(rows), np.uint8))
    _read(data, rows, batch.dscp, batch.hops_left)
    return batch
