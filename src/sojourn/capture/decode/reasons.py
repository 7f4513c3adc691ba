"""Why a frame is no packet of ours, and what else is worth telling about a packet: counted, never hidden.

Every frame is either a decoded IP packet or ignored for exactly one reason. A note is about a packet
that was decoded all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeVar

import numpy as np

from sojourn.core.arrays import Int64Array

__all__ = ["NOTE_TEXTS", "REASON_TEXTS", "Note", "SkipReason", "counts_by_text"]

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
