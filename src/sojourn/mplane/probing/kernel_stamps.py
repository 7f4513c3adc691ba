"""UDP with the kernel's own time stamps: when a datagram was received, and when it was sent.

Guarantee: a received stamp is taken when the interface hands the datagram to the kernel, before any process is woken;
a sent one when the datagram leaves the interface's queue for the driver (`Sent.WIRE`), or when it enters that queue
(`Sent.QUEUE`). Both are CLOCK_REALTIME in ns. Neither waits for this process, so a busy machine does not show in them.

Sent stamps come back through the socket's error queue with a copy of the datagram, which identifies it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from enum import StrEnum
from types import TracebackType
from typing import Self

from sojourn.core.errors import ServerError

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
