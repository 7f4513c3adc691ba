"""Transport columns: what passive round-trip times are read from, one row per decoded packet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array

__all__ = ["ACK", "FIN", "HAS_SACK", "HAS_TIMESTAMPS", "RST", "SYN", "TransportBatch"]

# Bits of ``flags``: TCP's own, and two that say which options the segment had.
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
HAS_TIMESTAMPS, HAS_SACK = 0x100, 0x200


@dataclass(frozen=True, eq=False)
class TransportBatch:
    """Columns of TCP segments, UDP datagrams and ICMP messages.

    ``reverse_id`` is the flow id of the opposite direction. For ICMP echo, ``seq`` is the sequence
    number, ``ack`` the identifier and ``flags`` the message type. ``sack_high`` is the highest right
    edge of the SACK blocks. ``payload_offset`` points into ``data``; ``payload_captured`` of the
    ``payload_bytes`` sent are present there. A row whose transport header is missing (a later fragment, too
    short a capture, another protocol) has ``protocol`` 0 and zeros but for its ids and time.
    """

    data: UInt8Array
    time_ns: Int64Array
    flow_id: UInt64Array
    reverse_id: UInt64Array
    protocol: NDArray[np.uint8]
    src_port: NDArray[np.uint16]
    dest_port: NDArray[np.uint16]
    flags: NDArray[np.uint16]
    seq: NDArray[np.uint32]
    ack: NDArray[np.uint32]
    tsval: NDArray[np.uint32]
    tsecr: NDArray[np.uint32]
    sack_high: NDArray[np.uint32]
    payload_offset: Int64Array
    payload_bytes: Int64Array
    payload_captured: Int64Array

    def __len__(self) -> int:
        return len(self.time_ns)
