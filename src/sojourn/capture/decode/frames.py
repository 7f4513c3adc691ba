"""Frames, located packets and the reasons for what is skipped: what the passes of the decoder hand on.

A reader (pcap, pcapng, a live ring) only finds frames; it copies nothing and looks into none of them. The decoder's
first kernel writes located packets, the others read them: ids, flow table, transport columns. Every offset was checked
when it was written: ``ip ≤ transport``, and ``ip`` to ``end`` lies inside of the frame. Every frame is either a decoded
IP packet or ignored for exactly one counted reason; a note is about a packet that was decoded all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import BoolArray, Int64Array, UInt8Array


@dataclass(frozen=True, eq=False)
class Frames:
    """One row per captured packet; offsets point into ``data``, a window of the file or a ring.

    ``captured`` bytes of the frame are present, ``length`` were on the wire. ``link`` is the link type
    (the LINKTYPE_ number of the capture file formats). Rows are in the order of the capture.
    ``offload`` is what the kernel says of packets that it, or a card, takes apart or has put together: the payload of
    each packet of the wire (``gso_size``; 0 for a packet as it was on the wire) in the lower 16 bits, `Offload` flags
    above them. A capture file has nobody to say it.
    """

    data: UInt8Array
    offset: Int64Array
    captured: Int64Array
    length: Int64Array
    time_ns: Int64Array
    link: Int64Array
    offload: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.offset)

    def select(self, rows: slice | BoolArray) -> Frames:
        """Some of the frames; their bytes stay where they are."""
        present = [f.name for f in fields(self) if f.name != "data" and getattr(self, f.name) is not None]
        return Frames(data=self.data, **{name: getattr(self, name)[rows] for name in present})


SEGMENT_BITS = 0xFFFF


class Offload(IntFlag):
    """What a packet was put together of, and which way it went; kept above the 16 bits of ``gso_size``."""

    TCP = 1
    UDP = 2
    OUTGOING = 4


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
        ("offload", np.uint8),  # `Offload` flags and payload of the wire's packets, as the kernel tells; else 0
        ("segment", np.uint16),
    ],
    align=True,
)
MAX_TAGS = 4
Located: TypeAlias = NDArray[np.void]


def empty_rows(count: int) -> Located:
    return np.empty(count, LOCATED)


_Reason = TypeVar("_Reason", bound=IntEnum)


class SkipReason(IntEnum):
    """Why a frame was ignored."""

    OUTSIDE_BUFFER = 0
    UNSUPPORTED_LINK = 1
    IEEE_802_15_4 = 2
    LINK_HEADER_CUT = 3
    ARP = 4
    LLC = 5
    PPP_CONTROL = 6
    MPLS_PAYLOAD = 7
    OTHER_PROTOCOL = 8
    TOO_MANY_HEADERS = 9
    IP_HEADER_CUT = 10
    IP_HEADER_MALFORMED = 11


REASON_TEXTS = {
    SkipReason.OUTSIDE_BUFFER: "frame outside of its buffer",
    SkipReason.UNSUPPORTED_LINK: "unsupported link type",
    SkipReason.IEEE_802_15_4: "802.15.4 frame (unsupported)",
    SkipReason.LINK_HEADER_CUT: "link header cut short",
    SkipReason.ARP: "arp",
    SkipReason.LLC: "llc frame without ip",
    SkipReason.PPP_CONTROL: "ppp or pppoe control",
    SkipReason.MPLS_PAYLOAD: "mpls payload without ip",
    SkipReason.OTHER_PROTOCOL: "other network protocol",
    SkipReason.TOO_MANY_HEADERS: "too many nested headers",
    SkipReason.IP_HEADER_CUT: "ip header cut short",
    SkipReason.IP_HEADER_MALFORMED: "ip header malformed",
}


class Note(IntEnum):
    """What is worth telling about a decoded packet."""

    FRAGMENT_INHERITED = 0
    FRAGMENT_ORPHANED = 1
    TRANSPORT_CUT = 2
    TUNNEL_NOT_OPENED = 3


NOTE_TEXTS = {
    Note.FRAGMENT_INHERITED: "later fragments counted with the flow of their first",
    Note.FRAGMENT_ORPHANED: "later fragments whose first was not seen (ports 0)",
    Note.TRANSPORT_CUT: "packets whose ports were not captured (ports 0)",
    Note.TUNNEL_NOT_OPENED: "tunnel packets whose inside is no ip packet (counted as the tunnel)",
}


def counts_by_text(counts: Int64Array, texts: Mapping[_Reason, str]) -> dict[str, int]:
    """The counts that are not 0, by their texts.

    >>> counts_by_text(np.array([0, 2, 0, 0]), NOTE_TEXTS)
    {'later fragments whose first was not seen (ports 0)': 2}
    """
    return {text: int(counts[which]) for which, text in texts.items() if counts[which]}


def empty_counts() -> tuple[Int64Array, Int64Array]:
    """Zeroed counts, one slot per reason and per note."""
    return np.zeros(len(SkipReason), np.int64), np.zeros(len(Note), np.int64)
