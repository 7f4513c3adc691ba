"""Frames: where each captured packet lies in a buffer. What every reader gives and the decoder takes.

A reader (pcap, pcapng, a live ring) only finds frames; it copies nothing and looks into none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sojourn.core.arrays import Int64Array, UInt8Array

__all__ = ["Frames"]


@dataclass(frozen=True, eq=False)
class Frames:
    """One row per captured packet; offsets point into ``data``, a window of the file or a ring.

    ``captured`` bytes of the frame are present, ``length`` were on the wire. ``link`` is the link type
    (the LINKTYPE_ number of the capture file formats). Rows are in the order of the capture.
    """

    data: UInt8Array
    offset: Int64Array
    captured: Int64Array
    length: Int64Array
    time_ns: Int64Array
    link: Int64Array

    def __len__(self) -> int:
        return len(self.offset)
