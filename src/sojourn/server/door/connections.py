"""Connections: so many at once, each with so long to come to the point.

Guarantee: whoever opens connections and says nothing, or says it too slowly, keeps nobody else out. A connection is in
one phase at a time; its time in that phase is bounded, and when there are too many connections (of all, or of one
address) the oldest that is half open makes room, or else the oldest that is idle or far too slow. What is being worked
on is never dropped for a newcomer: then the newcomer is. TLS handshakes count from the moment of accepting.

Cost: O(1) per connection and change of phase. Descriptors: the limit follows from what the process may open, less a
reserve for the store, so that `accept` does not run out; should it nevertheless, newcomers are refused, not waited for.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import time
from asyncio import sslproto
from collections import Counter, OrderedDict
from collections.abc import Collection
from contextlib import suppress
from enum import Enum, auto
from types import FrameType
from typing import Any, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sojourn.core.errors import ServerError
from sojourn.server.door.access import address_group

MOST_CONNECTIONS = 4096  # with TLS each takes some 100 KB
TLS_BUFFER_BYTES = 32 << 10
RESERVED_DESCRIPTORS = 256  # the store's connections have three each, and solvers have pipes
SHARE_OF_AN_ADDRESS = 0.75
MOST_MESSAGE_BYTES = 1 << 20  # of a WebSocket, which pages alone have
BACKLOG = 1024  # in the kernel's queue: what is dealt with in less than a second; a longer one only delays everybody
ACCEPTED_AT_ONCE = 32
KEEP_ALIVE_SECONDS = 60
MOST_CLOSING = 64  # connections beyond the limit while those that were dropped are being closed
LOG_SECONDS = 10.0

SLOWEST_BYTES_PER_SECOND = 512.0
BODY_GRACE_SECONDS = 30.0
LONGEST_BODY_SECONDS = 3600.0
DRAINED_BYTES = 64 << 20
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG = logging.getLogger("sojourn.connections")


class Phase(Enum):
    """What a connection is doing."""

    OPENING = auto()  # handshake, request line and headers
    BODY = auto()
    WORKING = auto()  # the request is there, its answer is not
    STALLED = auto()  # the answer waits for its reader
    DRAINING = auto()  # the answer was given before the body had come; the rest is thrown away
    IDLE = auto()  # kept open for the next request
    DROPPED = auto()  # about to be closed


# Seconds that a connection may be in a phase; bodies, and answers that are being read, have longer as bytes move.
SECONDS = {
    Phase.OPENING: 10.0,
    Phase.BODY: BODY_GRACE_SECONDS,
    Phase.STALLED: 60.0,
    Phase.DRAINING: 10.0,
    Phase.IDLE: 75.0,
}
# Who makes room for a newcomer: the oldest of the first group that is old enough, else of the second, and so on.
EXPENDABLE = (
    ((Phase.OPENING, Phase.DRAINING), 0.5),
    ((Phase.IDLE, Phase.STALLED), 0.0),
    ((Phase.OPENING, Phase.DRAINING), 0.0),
    ((Phase.BODY,), 5.0),
)


class Connection(socket.socket):
    """An accepted connection, which its door knows of until it is closed."""

    door: Door
    group: str
    phase: Phase
    since: float
    received: int = 0  # in this phase
    unsent: int = 0  # when it was last looked at
    transport: asyncio.Transport | None = None

    def close(self) -> None:
        self.door.forget(self)
        super().close()


class Door(socket.socket):
    """A listening socket that keeps the connections it accepted within limits.

    One that another process has opened is `inherited` by its descriptor: several processes accept from it, each within
    limits of its own.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        most: int | None = None,
        proxies: Collection[str] = (),
        inherited: int | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol left to the kernel asyncio takes it for some other than TCP, and leaves Nagle's delay on.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=inherited)
        self._most = most or most_connections()
        self._most_of_address = max(int(self._most * SHARE_OF_AN_ADDRESS), 1)
        self._proxies = frozenset(address_group(proxy) for proxy in proxies)
        self._open: dict[int, Connection] = {}
        self._addresses: Counter[str] = Counter()
        # Those of a phase, longest in it first: of all addresses (None), and of each.
        self._order: dict[tuple[Phase, str | None], OrderedDict[int, Connection]] = {}
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self._logged = float("-inf")
        if inherited is not None:
            return
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.bind((host, port))
        except OSError as error:
            self.close()
            raise ServerError(
                error.strerror or str(error),
                where=f"{host}:{port}",
                action="choose another --host or --port, or stop what listens there",
            ) from None

    @property
    def count(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def listen(self, _backlog: int = BACKLOG, /) -> None:
        """Have so many wait in the kernel's queue, whatever asyncio asks for: a shorter queue, be it for a moment,
        would turn away who connects to another process."""
        super().listen(BACKLOG)

    def close(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()

    def accept(self) -> tuple[Connection, Any]:
        """A connection that there is room for; `BlockingIOError` when others have to be closed first."""
        if len(self._open) >= self._most + MOST_CLOSING:
            raise BlockingIOError(errno.EAGAIN, "connections are being closed")
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno not in _OUT_OF_DESCRIPTORS:
                raise
            self._refuse_one()
            raise BlockingIOError(errno.EAGAIN, "out of descriptors") from None
        connection = Connection(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        connection.door, connection.group = self, address_group(address[0])
        if not self._has_room(connection.group):
            socket.socket.close(connection)
            raise ConnectionAbortedError(errno.ECONNABORTED, "all connections are at work")
        self._open[connection.fileno()] = connection
        self._addresses[connection.group] += 1
        connection.phase, connection.since = Phase.OPENING, time.monotonic()
        self._file(connection)
        return connection, address

    def _has_room(self, group: str) -> bool:
        """Whether another connection may come from an address, after one that says nothing was dropped for it."""
        if group not in self._proxies and self._addresses[group] >= self._most_of_address:
            return self._make_room(group)
        return len(self._open) < self._most or self._make_room(None)

    def _make_room(self, group: str | None) -> bool:
        now = time.monotonic()
        for phases, least_seconds in EXPENDABLE:
            waiting = [self._order[phase, group] for phase in phases if (phase, group) in self._order]
            oldest = min((next(iter(some.values())) for some in waiting), key=lambda one: one.since, default=None)
            if oldest is None or now - oldest.since < least_seconds:
                continue
            if oldest.phase is Phase.BODY and oldest.received > SLOWEST_BYTES_PER_SECOND * (now - oldest.since):
                continue
            self.drop(oldest)
            self._log("too many connections: the oldest that is half open, idle or slow makes room")
            return True
        self._log("too many connections, all at work: new ones are refused")
        return False

    def _refuse_one(self) -> None:
        """Take a connection off the queue with the descriptor kept for this, so that accepting does not spin."""
        self._log("no descriptors left for connections; raise the limit of open files")
        self._make_room(None)
        if self._spare < 0:
            return
        os.close(self._spare)
        with suppress(OSError):  # it has gone, or somebody else took the descriptor
            socket.socket.accept(self)[0].close()
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            self._spare = -1

    def _log(self, text: str) -> None:
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            _LOG.warning("%s (%d open, %d allowed)", text, len(self._open), self._most)

    def find(self, descriptor: int) -> Connection | None:
        """The connection with a descriptor."""
        return self._open.get(descriptor)

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        if self._open.get(connection.fileno()) is connection:
            del self._open[connection.fileno()]
            self._unfile(connection)
            self._addresses[connection.group] -= 1
            if not self._addresses[connection.group]:
                del self._addresses[connection.group]

    def enter(self, connection: Connection, phase: Phase) -> None:
        """A connection goes on to a phase, or begins it anew."""
        if connection.phase is Phase.DROPPED:
            return
        self._unfile(connection)
        connection.phase, connection.since = phase, time.monotonic()
        self._file(connection)

    def _file(self, connection: Connection) -> None:
        for group in (None, connection.group):
            self._order.setdefault((connection.phase, group), OrderedDict())[id(connection)] = connection

    def _unfile(self, connection: Connection) -> None:
        for group in (None, connection.group):
            place = (connection.phase, group)
            if waiting := self._order.get(place):
                waiting.pop(id(connection), None)
                if not waiting:
                    del self._order[place]

    def drop(self, connection: Connection) -> None:
        """End a connection without a further word."""
        self.enter(connection, Phase.DROPPED)
        if connection.transport is not None:
            connection.transport.abort()
            return
        # Its transport may be busy with the handshake: the end of the stream ends that. One that is not connected any
        # more has noticed.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def sweep(self) -> None:
        """Drop whoever took too long; to be called about once a second."""
        now = time.monotonic()
        for phase, seconds in SECONDS.items():
            for connection in list(self._order.get((phase, None), {}).values()):
                if now - connection.since <= seconds:
                    break
                if not _has_moved(connection, now):
                    self.drop(connection)


def _has_moved(connection: Connection, now: float) -> bool:
    """Whether a connection that is over its time takes or brings bytes fast enough to go on."""
    seconds = now - connection.since
    if connection.phase is Phase.BODY:
        bound = BODY_GRACE_SECONDS + connection.received / SLOWEST_BYTES_PER_SECOND
        return seconds <= min(bound, LONGEST_BODY_SECONDS)
    if connection.phase is Phase.STALLED and connection.transport is not None:
        before, connection.unsent = connection.unsent, connection.transport.get_write_buffer_size()
        if connection.unsent < before:
            connection.door.enter(connection, Phase.STALLED)
            return True
    return False


class BoundedProtocol(H11Protocol):
    """HTTP that tells its door what it is doing."""

    _connection: Connection | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        door = self.config.door if isinstance(self.config, UnitConfiguration) else None
        taken = transport.get_extra_info("socket")
        if door is not None and taken is not None:
            self._connection = door.find(taken.fileno())
        if self._connection is not None:
            self._connection.transport = transport
            if self._connection.phase is Phase.DROPPED:
                transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note(len(data))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note(0)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._connection is not None:
            self._connection.unsent = self.transport.get_write_buffer_size()
            self._connection.door.enter(self._connection, Phase.STALLED)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._connection is not None and self._connection.phase is Phase.STALLED:
            self._connection.door.enter(self._connection, self._phase(0))

    def _note(self, size: int) -> None:
        connection = self._connection
        if connection is None or connection.phase in (Phase.DROPPED, Phase.STALLED):
            return
        phase = self._phase(size)
        if phase is not connection.phase:
            connection.door.enter(connection, phase)
            connection.received = 0
        connection.received += size
        if phase is Phase.DRAINING and connection.received > DRAINED_BYTES:
            connection.door.drop(connection)

    def _phase(self, size: int) -> Phase:
        """The phase after so many bytes; a request that has begun is timed from its first byte."""
        if self.transport.is_closing():
            return Phase.STALLED
        is_answered = self.cycle is None or self.cycle.response_complete
        if self.conn.their_state is h11.SEND_BODY:
            return Phase.DRAINING if is_answered else Phase.BODY
        if self.conn.their_state is h11.IDLE:
            return Phase.OPENING if size else Phase.IDLE
        return Phase.WORKING


# What speaks WebSockets, where there are any.
WEBSOCKETS: Literal["websockets-sansio"] = "websockets-sansio"


class UnitConfiguration(uvicorn.Config):
    """How the query unit speaks HTTP at a door."""

    def __init__(
        self,
        app: Any,
        door: Door,
        *,
        proxies: Collection[str] = (),
        accepted_at_once: int = ACCEPTED_AT_ONCE,
        keep_alive_seconds: int = KEEP_ALIVE_SECONDS,
        **options: Any,
    ) -> None:
        self.door, self.state = door, app.state
        options.setdefault("ws", "none")
        super().__init__(
            app,
            # Another loop, be it installed, accepts connections by itself, past the door.
            loop="asyncio",
            http=BoundedProtocol,
            ws_max_size=MOST_MESSAGE_BYTES,
            log_level="error",
            access_log=False,
            server_header=False,
            # Nobody says where somebody else comes from, unless named as a proxy.
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            timeout_keep_alive=keep_alive_seconds,
            # So few are accepted in one turn of the loop that what the others have sent is read before they are the
            # oldest; how many wait in the kernel's queue is the door's affair.
            backlog=accepted_at_once,
            **options,
        )


class UnitServer(uvicorn.Server):
    """A server that looks after its door's connections."""

    def __init__(self, configuration: UnitConfiguration) -> None:
        super().__init__(configuration)
        self._door = configuration.door
        self._state = configuration.state

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        # A buffer of 256 KiB for each connection would let a few thousand silent ones take a gigabyte; a record of TLS
        # has 16 KiB at most.
        sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        await super().serve(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and finish those under way; who only waits for something is told to come again."""
        self._state.ending = True
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit:
            # The application is given up where it stands, which is no fault of it that anybody has to read.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._door.sweep()
        return await super().on_tick(counter)


def raise_descriptors(each: int = 1) -> None:
    """Let this process open as many files as connections may need, so many each, if it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = each * MOST_CONNECTIONS + RESERVED_DESCRIPTORS + MOST_CLOSING
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def most_connections(each: int = 1) -> int:
    """How many connections, of so many files each, fit beside everything else that this process opens."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(min(max(soft - RESERVED_DESCRIPTORS - MOST_CLOSING, soft // 4) // each, MOST_CONNECTIONS), 1)
