"""The planning process' side: ingest processes are started, watched, started again, and ended in order.

Guarantee: a process that ends is started again, after a pause that grows to half a minute if that happens again and
again; what it had under way counts no more, and what it had counted is kept but for its last moments. None outlives the
planning process. When that is to end, they take no more connections and finish what they have begun, for as long as the
query unit may take to end; then they are killed.
Cost: a thread for each, which waits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from sojourn.core.executors.interpreters import how_ended, start_interpreter
from sojourn.server.door.allowances import SharedAllowances
from sojourn.server.door.connections import Door, UnitConfiguration, UnitServer, most_connections
from sojourn.server.ingest.broker import new_unit
from sojourn.server.options import ServeOptions
from sojourn.server.processes.ingest import END, IngestSetup, live
from sojourn.server.telemetry import Telemetry

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, WELL_SECONDS = 0.1, 30.0, 10.0
# One that has said nothing for so long does not answer.
SILENT_SECONDS = 5.0
# Beyond the time for what is under way: one that was just started has to notice first.
START_SECONDS = 3.0
LOOK_SECONDS = 0.05
TAKEN_AT_ONCE = 32
_LOG = logging.getLogger("sojourn.workers")


class IngestProcesses:
    """The ingest processes of a query unit; what they share is made before they are started."""

    def __init__(self, options: ServeOptions, door: Door) -> None:
        self.unit = new_unit()
        self.started_ns = time.time_ns()
        self.allowances = SharedAllowances(options.workers + 1)
        self._options, self._door = options, door
        self._keepers: list[_Keeper] = []

    def start(self, telemetry: Telemetry, accept: Callable[[socket.socket], None]) -> None:
        """Start all; `accept` gets the connections that they make, in the event loop that this is called in."""
        # What draws pages is not imported by who hands on what they say.
        options, has_pages = replace(self._options, dashboard=None), self._options.dashboard is not None
        who: dict[str, Any] = {"unit": self.unit, "started_ns": self.started_ns, "has_pages": has_pages}
        for number in range(1, self._options.workers + 1):
            setup = IngestSetup(options=options, number=number, **who)
            self._keepers.append(_Keeper(setup, self._door.fileno(), self.allowances, telemetry, accept))
        for keeper in self._keepers:
            keeper.start()

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [keeper.pid for keeper in self._keepers if keeper.pid is not None]

    def check(self) -> str:
        """``ok``, or how many do not answer."""
        missing = sum(not keeper.is_well for keeper in self._keepers)
        return f"{missing} of {len(self._keepers)} do not answer" if missing else "ok"

    def are_at_broker(self) -> bool:
        """Whether all of them take what nodes publish."""
        return all(keeper.is_at_broker for keeper in self._keepers)

    async def end(self, seconds: float, is_hurried: Callable[[], bool]) -> None:
        """Have all end in order within a time, or at once if it is hurried then."""
        for keeper in self._keepers:
            keeper.end()
        deadline = time.monotonic() + seconds + START_SECONDS
        while any(keeper.is_alive() for keeper in self._keepers):
            if time.monotonic() > deadline or is_hurried():
                for keeper in self._keepers:
                    keeper.kill()
            await asyncio.sleep(LOOK_SECONDS)


class _Keeper(threading.Thread):
    """Keeps one ingest process running until it is to end."""

    def __init__(
        self,
        setup: IngestSetup,
        listening: int,
        allowances: SharedAllowances,
        telemetry: Telemetry,
        accept: Callable[[socket.socket], None],
    ) -> None:
        super().__init__(name=f"sojourn-worker-{setup.number}", daemon=True)
        self._setup, self._listening = setup, listening
        self._allowances, self._telemetry, self._accept = allowances, telemetry, accept
        self._loop = asyncio.get_running_loop()
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Connection[Any, Any] | None = None
        self._heard = float("-inf")
        self.is_at_broker = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    @property
    def is_well(self) -> bool:
        return time.monotonic() - self._heard < SILENT_SECONDS

    def run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._ending.is_set():
            begun = time.monotonic()
            try:
                what = self._keep_one()
            except OSError as error:
                what = f"cannot be started ({error.strerror or error})"
            self._heard, self.is_at_broker = float("-inf"), False
            if self._ending.is_set():
                return
            pause = FIRST_PAUSE_SECONDS if time.monotonic() - begun > WELL_SECONDS else pause
            _LOG.warning("warning: ingest process %d %s; it is started again", self._setup.number, what)
            self._ending.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _keep_one(self) -> str:
        """Start a process and listen to it until it has ended; how it did."""
        control, theirs = Pipe()
        channel, its_channel = socket.socketpair()
        try:
            shared = self._allowances.descriptor
            process = start_interpreter(live, self._listening, its_channel.fileno(), theirs.fileno(), shared)
        except OSError:
            control.close()
            channel.close()
            raise
        finally:
            theirs.close()
            its_channel.close()
        with self._lock:
            self._process, self._control = process, control
        self._in_loop(self._attend, channel)
        try:
            with suppress(OSError):
                control.send_bytes(pickle.dumps(self._setup))
            if self._ending.is_set():
                self.end()
            self._listen(control)
            return f"({process.pid}) ended {how_ended(process.wait())}"
        finally:
            with self._lock:
                self._process = self._control = None
            self._in_loop(self._leave, channel)
            self._allowances.clear(self._setup.number)
            control.close()

    def _listen(self, control: Connection[Any, Any]) -> None:
        with suppress(EOFError, OSError):
            while True:
                said = json.loads(control.recv_bytes())
                self._telemetry.add_counts(said["counts"])
                self._heard, self.is_at_broker = time.monotonic(), bool(said["at_broker"])

    def end(self) -> None:
        """Have the process end in order, and start no other."""
        self._ending.set()
        with self._lock, suppress(OSError):
            if self._control is not None:
                self._control.send_bytes(END)

    def kill(self) -> None:
        """End the process at once."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def _in_loop(self, function: Callable[[socket.socket], None], channel: socket.socket) -> None:
        try:
            self._loop.call_soon_threadsafe(function, channel)
        except RuntimeError:  # the loop has ended
            channel.close()

    def _attend(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._loop.add_reader(channel, self._take, channel)

    def _leave(self, channel: socket.socket) -> None:
        self._loop.remove_reader(channel)
        channel.close()

    def _take(self, channel: socket.socket) -> None:
        """Accept the connections that were handed over."""
        for _ in range(TAKEN_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._loop.remove_reader(channel)
                return
            for descriptor in descriptors:
                self._accept(socket.socket(fileno=descriptor))


class PlanningServer(UnitServer):
    """Serves what ingest processes hand over; the door is theirs alone."""

    def __init__(self, configuration: UnitConfiguration, processes: IngestProcesses) -> None:
        super().__init__(configuration)
        self._processes = processes
        self._most = most_connections()
        self._connecting: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 (others listen)
        await super().startup([])
        self._door.listen()  # who connects before an ingest process is there waits for it
        self._processes.start(self._state.telemetry, self._accept)

    def _accept(self, connection: socket.socket) -> None:
        if len(self.server_state.connections) >= self._most:
            connection.close()
            return
        task = asyncio.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        config, state = self.config, self.lifespan.state

        def protocol() -> asyncio.Protocol:
            kind: Any = config.http_protocol_class
            made: asyncio.Protocol = kind(config=config, server_state=self.server_state, app_state=state)
            return made

        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The ingest processes end first: they need this one for what they have begun to forward."""
        self._state.ending = True
        begun, most = time.monotonic(), self.config.timeout_graceful_shutdown or 0
        for listening in sockets or []:
            listening.close()
        await self._processes.end(most, lambda: self.force_exit)
        self.config.timeout_graceful_shutdown = max(1, int(most - (time.monotonic() - begun)))
        await super().shutdown([])
