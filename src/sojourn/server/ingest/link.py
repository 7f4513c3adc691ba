"""The link to a broker: kept up by a thread of its own, whose messages are worked off in the query unit's event loop.

Guarantee: nothing that a broker does ends the query unit, which goes on over HTTP. A broker that is away, refuses or
restarts is tried again, with pauses that grow to a minute, a little more or less each; its password is read anew each
time. Both the beginning and the end of such an absence are logged once. A message is acknowledged to the broker when it
was worked off, of which at most `receive_maximum` wait here; what a killed query unit had not worked off, nodes send
again. So a session is not kept: the broker would keep messages for a query unit that is gone instead of giving them to
one that is there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sojourn.core.errors import SojournError
from sojourn.node.transports.broker import Arrived, BrokerAccess, BrokerConnection, Outgoing
from sojourn.node.transports.exchange import read_token
from sojourn.node.transports.sending import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, pause_about
from sojourn.node.transports.transport import TransportError
from sojourn.server.door.access import is_loopback

CONNECT_SECONDS = 10.0
JOIN_SECONDS = 15.0
_LOG = logging.getLogger("sojourn.broker")


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """The broker of a query unit, and the file with its password."""

    access: BrokerAccess
    password_file: Path | None = None

    @property
    def is_exposed(self) -> bool:
        """Whether others on the way can read the password."""
        return self.password_file is not None and not self.access.is_tls and not is_loopback(self.access.host)

    def current(self) -> BrokerAccess:
        """How it is signed in to now: passwords are rotated."""
        if self.password_file is None:
            return self.access
        return replace(self.access, password=read_token(self.password_file))


class BrokerLink:
    """Calls `work` in the event loop for every message, and `changed` for every beginning and end of a connection."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        client_id: str,
        filters: Sequence[str],
        receive_maximum: int,
        work: Callable[[Arrived], Coroutine[Any, Any, None]],
        changed: Callable[[bool], object],
    ) -> None:
        self._options, self._client_id, self._filters = options, client_id, filters
        self._receive_maximum = receive_maximum
        self._work, self._changed = work, changed
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: BrokerConnection | None = None
        self._stopping = threading.Event()
        self._was_lost = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="sojourn-broker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Take no more messages, finish those that came, and leave the broker."""
        self._stopping.set()
        self._was_lost.set()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=JOIN_SECONDS)
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)

    def post(self, message: Outgoing) -> Future[Sequence[int]] | None:
        """Publish without waiting; None while there is no broker, or for what it would not take."""
        connection = self._connection
        if connection is not None:
            with suppress(SojournError, ValueError):
                return connection.post(message)
        return None

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            self._was_lost.clear()
            try:
                connection = self._connect()
            except Exception as error:
                self._note_trouble(error)
                pause_about(self._stopping, pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                continue
            pause = FIRST_PAUSE_SECONDS
            self._serve(connection)
            if not self._stopping.is_set():
                pause_about(self._stopping, pause)

    def _connect(self) -> BrokerConnection:
        connection = BrokerConnection(
            self._options.current(),
            client_id=self._client_id,
            receive_maximum=self._receive_maximum,
            arrived=self._arrived,
            lost=lambda _why: self._was_lost.set(),
        )
        connection.open(CONNECT_SECONDS)
        try:
            connection.subscribe(self._filters, seconds=CONNECT_SECONDS)
        except Exception:
            connection.close()
            raise
        return connection

    def _serve(self, connection: BrokerConnection) -> None:
        """Until the connection is lost, or the query unit ends."""
        self._connection = connection
        self._tell(is_there=True)
        _LOG.info("taking messages at %s", connection.access.url)
        self._trouble = ""
        self._was_lost.wait()
        self._connection = None
        self._tell(is_there=False)
        if not self._stopping.is_set():
            self._note_trouble(TransportError("lost the connection", where=connection.access.url))
        connection.close()

    def _tell(self, *, is_there: bool) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed, is_there)

    def _note_trouble(self, error: Exception) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            _LOG.warning("warning: %s; will try again, nodes keep their epochs", error)

    def _arrived(self, message: Arrived) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._begin, message)

    def _begin(self, message: Arrived) -> None:
        task = self._loop.create_task(self._worked_off(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _worked_off(self, message: Arrived) -> None:
        try:
            await self._work(message)
        except Exception as error:
            # A fault in one message, whoever's it is, must not end all messages to come.
            _LOG.error("error: a message on %s went wrong, and others go on: %r", message.topic[:200], error)
        finally:
            with suppress(Exception):
                message.done()
