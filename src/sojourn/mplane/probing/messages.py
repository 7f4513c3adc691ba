"""The messages of active probing: small, versioned, size-checked before anything is read, signed with a shared key.

=======  ================  ==============================================================================
kind     way               says
=======  ================  ==============================================================================
START    prober→reflector  an interval begins, with at most `count` probes
PROBE    prober→reflector  probe number `sequence` of the interval, padded to the requested size
END      prober→reflector  the interval is over, `count` probes were sent
FETCH    prober→reflector  which probes from number `sequence` on arrived, and when? padded to the answer's size
REPORT   reflector→prober  `count` time stamps from number `sequence` on; 0 is a probe that did not arrive
=======  ================  ==============================================================================

Every message carries the random number (key) of its session; START and END carry sequence numbers of their own. A
REPORT is the only answer, and never longer than its FETCH: a reflector cannot be used to amplify traffic. All numbers
are big-endian; a header is 28 bytes.

A signed message is followed by the time it was sent (8 bytes, ns since the Unix epoch) and a tag: the first 16 bytes of
HMAC-SHA-256 over its direction, the message and that time. The message contains its session's random number, so a tag
is useless in another session, and the direction keeps a request from being sent back as an answer. `MOST_AGE_NS` is how
far the ends' clocks may be apart, and for how long a message could be replayed at all; the reflector refuses replays
too. Messages are authenticated, not encrypted.

UDP with the kernel's own time stamps: when a datagram was received, and when it was sent.

Guarantee: a received stamp is taken when the interface hands the datagram to the kernel, before any process is woken;
a sent one when the datagram leaves the interface's queue for the driver (`Sent.WIRE`), or when it enters that queue
(`Sent.QUEUE`). Both are CLOCK_REALTIME in ns. Neither waits for this process, so a busy machine does not show in them.

Sent stamps come back through the socket's error queue with a copy of the datagram, which identifies it.
"""

from __future__ import annotations

import hmac
import os
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum, IntFlag, StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from sojourn.core.errors import ServerError, UsageError, WireError

# From linux/net_tstamp.h, linux/errqueue.h and asm-generic/socket.h.
_SO_TIMESTAMPING_NEW = 65
_TX_SOFTWARE, _RX_SOFTWARE, _SOFTWARE, _TX_SCHED = 1 << 1, 1 << 3, 1 << 4, 1 << 8
_STAMPS = struct.Struct("=qqqqqq")
_EXTENDED_ERROR = struct.Struct("=IBBBBII")
_ORIGIN_TIMESTAMPING = 4
_RECVERR = {(socket.IPPROTO_IP, 11), (socket.IPPROTO_IPV6, 25)}
_IPV6_TCLASS = 67
_MSG_ERRQUEUE = 0x2000
_MAX_DATAGRAM = 2048
_ANCILLARY_BYTES = 512
_BUFFER_BYTES = 1 << 20


class Sent(StrEnum):
    """Which moment of sending is stamped: before or after this machine's own egress queue."""

    WIRE = "wire"
    QUEUE = "queue"


class StampedSocket:
    """A bound UDP socket that never blocks; a context manager."""

    def __init__(
        self, *, address: str = "", port: int = 0, ipv6: bool = False, dscp: int = 0, sent: Sent | None = None
    ) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
        transmit = {None: 0, Sent.WIRE: _TX_SOFTWARE, Sent.QUEUE: _TX_SCHED}[sent]
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING_NEW, _RX_SOFTWARE | _SOFTWARE | transmit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            if ipv6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                self._socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_TCLASS, dscp << 2)
            else:
                self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            self._socket.bind((address, port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise ServerError(
                getattr(error, "strerror", None) or str(error),
                where=f"{address or 'any address'}:{port}",
                action="choose another address or port of this machine",
            ) from None
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def send(self, data: bytes, address: tuple[str, int]) -> None:
        """Send one datagram; OSError where the machine refuses."""
        self._socket.sendto(data, address)

    def received(self) -> Iterator[tuple[bytes, int, tuple[str, int]]]:
        """All datagrams that wait: bytes, when each was received (0: unknown to the kernel), who sent it."""
        while True:
            try:
                data, ancillary, _flags, source = self._socket.recvmsg(_MAX_DATAGRAM, _ANCILLARY_BYTES)
            except OSError:  # nothing waits, or an ICMP error about an earlier datagram: the loss itself will show
                return
            yield data, _stamp(ancillary), (source[0], source[1])

    def sent(self) -> Iterator[tuple[bytes, int]]:
        """The stamps of datagrams sent: a copy (its headers before it) and when it left."""
        while True:
            try:
                data, ancillary, _flags, _source = self._socket.recvmsg(_MAX_DATAGRAM, _ANCILLARY_BYTES, _MSG_ERRQUEUE)
            except OSError:
                return
            if _is_sent_stamp(ancillary):
                yield data, _stamp(ancillary)


def _stamp(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPING_NEW and len(data) >= _STAMPS.size:
            seconds, nanoseconds, *_ = _STAMPS.unpack_from(data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return 0


def _is_sent_stamp(ancillary: list[tuple[int, int, bytes]]) -> bool:
    for level, kind, data in ancillary:
        if (level, kind) in _RECVERR and len(data) >= _EXTENDED_ERROR.size:
            return bool(_EXTENDED_ERROR.unpack_from(data)[1] == _ORIGIN_TIMESTAMPING)
    return False


TAG_BYTES = 16
_TIME = struct.Struct(">Q")
SEAL_BYTES = _TIME.size + TAG_BYTES
MOST_AGE_NS = 60 * 10**9
SHORTEST_KEY, LONGEST_KEY = 16, 1024
_HOW = "make one by: (umask 077; openssl rand -hex 32 > FILE)"


class Way(Enum):
    """Who a message is for."""

    TO_REFLECTOR = b"sojourn probe to reflector\0"
    TO_PROBER = b"sojourn probe to prober\0"


def sealed(key: bytes, way: Way, message: bytes, time_ns: int) -> bytes:
    """A message with the time it is sent at, and its tag."""
    timed = message + _TIME.pack(time_ns)
    return timed + _tag(key, way, timed)


def unsealed(key: bytes, way: Way, data: bytes) -> tuple[bytes, int]:
    """The message, and when it was sent; WireError unless the key's holder made it for this way."""
    timed, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
    if len(data) < SEAL_BYTES or not hmac.compare_digest(tag, _tag(key, way, timed)):
        raise WireError("not signed with the key", where="probe")
    return timed[: -_TIME.size], _TIME.unpack_from(timed, len(timed) - _TIME.size)[0]


def _tag(key: bytes, way: Way, timed: bytes) -> bytes:
    return hmac.digest(key, way.value + timed, "sha256")[:TAG_BYTES]


def read_probe_key(path: Path) -> bytes:
    """The key in a file that only its owner may read: 16 to 1024 characters, but for space around them."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsageError("not a file", where=str(path), action=_HOW)
            if status.st_mode & 0o077:
                raise UsageError("others may read the key", where=str(path), action=f"chmod 600 {path}")
            key = file.read(LONGEST_KEY + 2).strip()
    except OSError as error:
        raise UsageError(error.strerror or str(error), where=str(path), action=_HOW) from None
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        what = f"a key of {len(key)} characters, where {SHORTEST_KEY} to {LONGEST_KEY} are allowed"
        raise UsageError(what, where=str(path), action=_HOW)
    return key


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
