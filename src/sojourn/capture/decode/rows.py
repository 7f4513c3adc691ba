"""Located packets: where a frame's IP packet and its transport header lie, one record per packet.

The decoder's first kernel writes these, the others read them: ids, flow table, transport columns. Every
offset was checked when it was written: ``ip ≤ transport``, and ``ip`` to ``end`` lies inside of the frame.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOCATED", "MAX_TAGS", "Located", "empty_rows"]

LOCATED = np.dtype(
    [
        ("ip", np.int64),  # offset of the IP header
        ("transport", np.int64),  # offset behind it and its extension headers; may lie beyond `end`
        ("end", np.int64),  # end of the captured bytes of the IP packet
        ("ip_bytes", np.int64),  # total length that the IP header tells
        ("time_ns", np.int64),
        ("vlans", np.uint64),  # up to four tags of 16 bits, outermost lowest; 0x1000 marks a used one
        ("identification", np.uint32),  # IPv4's, or that of IPv6's fragment header
        ("ports", np.uint32),  # source port × 2¹⁶ + destination port
        ("fragment", np.uint16),  # offset in units of 8 bytes; bit 15: more follow
        ("version", np.uint8),
        ("protocol", np.uint8),  # of the flow: a later fragment's is that of its first
        ("own_protocol", np.uint8),  # as this packet's own headers tell
    ],
    align=True,
)
MAX_TAGS = 4

Located: TypeAlias = NDArray[np.void]


def empty_rows(count: int) -> Located:
    return np.empty(count, LOCATED)
