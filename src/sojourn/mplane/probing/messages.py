"""The messages of active probing: small, versioned, checked for their size before anything is read.

=======  ================  ==============================================================================
kind     way               says
=======  ================  ==============================================================================
START    prober→reflector  an interval begins, with at most `count` probes
PROBE    prober→reflector  probe number `sequence` of the interval, padded to the size asked for
END      prober→reflector  the interval is over, `count` probes were sent
FETCH    prober→reflector  which probes from number `sequence` on came, and when? padded to the answer's size
REPORT   reflector→prober  `count` time stamps from number `sequence` on; 0 is a probe that did not come
=======  ================  ==============================================================================

Every message carries the random number (key) of its session; START and END carry sequence numbers of their own. A
REPORT is the only answer, and never longer than its FETCH: nobody can use a reflector to send more than he sends
himself. All numbers are big-endian; a header is 28 bytes. With a shared key, messages are signed (see `probe_keys`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

from sojourn.core.errors import WireError
from sojourn.mplane.probing.keys import SEAL_BYTES

__all__ = [
    "FETCH_STAMPS",
    "HEADER_BYTES",
    "MAGIC",
    "MAX_MESSAGE",
    "MAX_PROBES",
    "Flaw",
    "Kind",
    "Message",
    "Report",
    "pack",
    "pack_report",
    "report_bytes",
    "unpack",
    "unpack_report",
]

MAGIC = b"SJPR"
VERSION = 2
# Below the least IPv6 MTU, so that no message is ever cut in pieces.
MAX_MESSAGE = 1200
MAX_PROBES = 2048
# magic, version, kind, count, key, interval, sequence
_HEADER = struct.Struct(">4sBBHQQI")
# flaws, probes that came after END, copies
_REPORT = struct.Struct(">BxHH")
_STAMP_BYTES = 8
HEADER_BYTES = _HEADER.size
FETCH_STAMPS = (MAX_MESSAGE - SEAL_BYTES - _HEADER.size - _REPORT.size) // _STAMP_BYTES


class Kind(IntEnum):
    """What a message is."""

    START = 1
    PROBE = 2
    END = 3
    FETCH = 4
    REPORT = 5


class Flaw(IntFlag):
    """What keeps an interval from being used, as the reflector saw it."""

    START_LOST = 1
    END_LOST = 2
    UNKNOWN = 4
    NONE = 0


@dataclass(frozen=True)
class Message:
    """A header; `size` is the message's bytes with padding."""

    kind: Kind
    key: int
    interval: int
    sequence: int
    count: int
    size: int = HEADER_BYTES


@dataclass(frozen=True)
class Report:
    """What a reflector received of an interval: ns by probe, from number `first` on; 0 for none."""

    key: int
    interval: int
    first: int
    flaws: Flaw = Flaw.NONE
    late: int = 0
    copies: int = 0
    stamps: tuple[int, ...] = field(default=())


def report_bytes(stamps: int) -> int:
    """The length of a REPORT with so many time stamps.

    >>> report_bytes(FETCH_STAMPS) <= MAX_MESSAGE - SEAL_BYTES < report_bytes(FETCH_STAMPS + 1)
    True
    """
    return _HEADER.size + _REPORT.size + stamps * _STAMP_BYTES


def pack(message: Message) -> bytes:
    """A message's bytes, with zeros up to its size."""
    header = _HEADER.pack(MAGIC, VERSION, message.kind, message.count, message.key, message.interval, message.sequence)
    return header.ljust(message.size, b"\0")


def unpack(data: bytes) -> Message:
    """The header of any message; WireError for what is none."""
    if not _HEADER.size <= len(data) <= MAX_MESSAGE:
        raise WireError(f"{len(data)} bytes are no message", where="probe", action="28 to 1200 bytes are")
    magic, version, kind, count, key, interval, sequence = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or kind not in set(Kind):
        raise WireError("not a message of this version", where="probe")
    if count > MAX_PROBES or sequence + (count if kind == Kind.REPORT else 0) >= 1 << 32:
        raise WireError(f"{count} probes from number {sequence} on", where="probe")
    return Message(Kind(kind), key, interval, sequence, count, len(data))


def pack_report(report: Report) -> bytes:
    """A REPORT's bytes."""
    most = (1 << 16) - 1
    header = _HEADER.pack(MAGIC, VERSION, Kind.REPORT, len(report.stamps), report.key, report.interval, report.first)
    body = _REPORT.pack(report.flaws, min(report.late, most), min(report.copies, most))
    return header + body + struct.pack(f">{len(report.stamps)}Q", *report.stamps)


def unpack_report(data: bytes) -> Report:
    """A REPORT; WireError unless its length is exactly that of its time stamps."""
    message = unpack(data)
    if message.kind is not Kind.REPORT or len(data) != report_bytes(message.count):
        raise WireError(f"{len(data)} bytes with {message.count} stamps are no report", where="probe")
    flaws, late, copies = _REPORT.unpack_from(data, _HEADER.size)
    if flaws > sum(Flaw):
        raise WireError(f"unknown flaws {flaws}", where="probe")
    stamps = struct.unpack_from(f">{message.count}Q", data, _HEADER.size + _REPORT.size)
    if any(stamp >= 1 << 63 for stamp in stamps):
        raise WireError("a time stamp beyond 63 bits", where="probe")
    return Report(message.key, message.interval, message.sequence, Flaw(flaws), late, copies, stamps)
