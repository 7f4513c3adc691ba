"""An ingest process: takes epochs at the query unit's address, and hands everything else to the planning process.

Guarantee: an epoch that it acknowledges is in the store, as from a query unit of one process; limits, quotas and names
are the query unit's, whichever process a node reaches. It ends with the planning process, at once if that is killed,
and in order if that ends in order: what it has begun is finished and acknowledged.
Cost: some 150 MB, most of which are libraries; a database connection for each batch that is being stored.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Scope

from sojourn.core.errors import SojournError, log_to_stderr
from sojourn.core.executors.interpreters import die_with, heed
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.control.inventory import InventoryStore
from sojourn.server.control.owners import OwnerStore, TakenError
from sojourn.server.control.quotas import Quotas
from sojourn.server.control.states import StreamStateStore
from sojourn.server.door.access import SignIn
from sojourn.server.door.allowances import SharedAllowances
from sojourn.server.door.connections import (
    MOST_MESSAGE_BYTES,
    WEBSOCKETS,
    Door,
    UnitConfiguration,
    UnitServer,
    most_connections,
    raise_descriptors,
)
from sojourn.server.door.gate import Gate, explained_faults, explained_problem, refused
from sojourn.server.door.limits import IngestDesk, load_kernels
from sojourn.server.ingest.broker import BrokerIntake
from sojourn.server.ingest.intake import Intake
from sojourn.server.ingest.messages import Takes
from sojourn.server.options import ServeOptions, check_pair
from sojourn.server.processes.forwarding import Divided, Forwarder
from sojourn.server.queries.live import LiveDesk
from sojourn.server.routes.epochs import epoch_routes
from sojourn.server.telemetry import RequestCounter, Telemetry
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.tokens import TokenStore

_LOG = logging.getLogger("sojourn.workers")
DESK_THREADS = 2
END = b"end"
# A process that is busy leaves the next connection to one that is not.
ACCEPTED_AT_ONCE = 1
# A forwarded request has a connection to its sender and one to the planning process.
DESCRIPTORS_EACH = 2
REPORT_TICKS = 3  # of a tenth of a second


@dataclass(frozen=True, kw_only=True)
class IngestSetup:
    """What an ingest process is told at its start."""

    options: ServeOptions
    number: int  # from 1: its place among the processes of the query unit
    unit: str  # the query unit's name at a broker
    started_ns: int  # when the query unit started
    has_pages: bool = False  # which hold WebSockets


def create_ingest_app(store: EpochStore, setup: IngestSetup, shared: SharedAllowances, forward: Forwarder) -> FastAPI:
    """The application of an ingest process on an open store."""
    options, limits = setup.options, setup.options.limits
    allowances = shared.at(setup.number, limits)
    inventory, telemetry = InventoryStore(store), Telemetry()
    desk = ThreadPoolExecutor(DESK_THREADS, "desk")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(load_kernels)
        app.state.intake = intake = Intake(
            store,
            OwnerStore(store, silence_ns=limits.owner_silence_ns, started_ns=setup.started_ns),
            StreamStateStore(store),
            inventory,
            Quotas(inventory, limits, telemetry),
            AssignmentStore(store),
            LiveDesk(most_pending=0, most_bytes=0),  # nodes are asked by the planning process
            IngestDesk(limits),
            limits,
            allowances,
            telemetry,
        )
        at_broker = None
        if options.broker is not None:
            who: dict[str, Any] = {"unit": setup.unit, "number": setup.number, "members": options.workers}
            at_broker = BrokerIntake(options.broker, intake, takes=Takes.REQUESTS, **who)
            at_broker.start()
            app.state.is_at_broker = at_broker.is_connected
        yield
        if at_broker is not None:
            await at_broker.stop()
        desk.shutdown(wait=False)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.telemetry = telemetry
    app.state.is_at_broker = None if options.broker is None else lambda: False
    sign_in = SignIn(TokenStore(store), limits, desk, allowances)
    app.add_middleware(Gate, sign_in=sign_in, limits=limits, allowances=allowances)
    app.add_middleware(RequestCounter, telemetry=telemetry)
    app.add_middleware(Divided, forward=forward, sockets=_sockets(forward, setup), is_ours=_is_ours)
    app.add_exception_handler(SojournError, explained_problem)
    app.add_exception_handler(RequestValidationError, explained_faults)
    app.add_exception_handler(TakenError, refused)
    app.include_router(epoch_routes)
    return app


def _sockets(forward: Forwarder, setup: IngestSetup) -> ASGIApp | None:
    if not setup.has_pages:
        return None
    from sojourn.server.processes.sockets import SocketForwarder

    return SocketForwarder(forward, most_bytes=MOST_MESSAGE_BYTES)


def _is_ours(scope: Scope) -> bool:
    return bool(scope["method"] == "POST" and scope["path"] == "/api/v1/epochs")


class IngestServer(UnitServer):
    """Serves at the inherited door, and tells the planning process several times a second how it fares."""

    def __init__(self, configuration: UnitConfiguration, control: Connection[Any, Any]) -> None:
        super().__init__(configuration)
        self._control = control
        threading.Thread(target=self._obey, name="sojourn-control", daemon=True).start()

    def _obey(self) -> None:
        with suppress(EOFError, OSError):
            if self._control.recv_bytes() == END:
                self.should_exit = True
                self._control.recv_bytes()
        os._exit(1)  # the planning process is gone

    async def on_tick(self, counter: int) -> bool:
        if counter % REPORT_TICKS == 0:
            # The planning process may be slow to read it: nobody else waits for that.
            await asyncio.to_thread(self.report)
        return await super().on_tick(counter)

    def report(self) -> None:
        """Say what was counted since the last time, and whether the broker is connected."""
        is_at_broker = self._state.is_at_broker
        said = {
            "counts": self._state.telemetry.take_counts(),
            "at_broker": None if is_at_broker is None else is_at_broker(),
        }
        with suppress(OSError):
            self._control.send_bytes(json.dumps(said).encode())


def live(listening: int, channel: int, control: int, memory: int, parent: int) -> None:
    """The process' life."""
    die_with(parent)
    connection: Connection[Any, Any] = Connection(control)
    try:
        setup: IngestSetup = pickle.loads(connection.recv_bytes())
    except (EOFError, OSError):
        return
    log_to_stderr(as_json=setup.options.logs_json)
    try:
        # The planning process has prepared it. While a database is away there is somebody at the door who says so.
        store = open_store(setup.options.data, is_prepared=True)
        configuration = _configuration(store, setup, listening, channel, memory)
    except SojournError as error:
        # What could be read when the query unit started may be gone, or a certificate without its key, for a while.
        _LOG.warning("warning: ingest process %d cannot take epochs: %s", setup.number, error)
        sys.exit(1)
    server = IngestServer(configuration, connection)
    gc.collect()
    gc.freeze()
    heed(signal.SIGTERM)
    try:
        server.run(sockets=[configuration.door])
        server.report()
    finally:
        store.close()


def _configuration(
    store: EpochStore, setup: IngestSetup, listening: int, channel: int, memory: int
) -> UnitConfiguration:
    """What is served at the inherited door, loaded."""
    options = setup.options
    if options.certificate is not None and options.private_key is not None:
        check_pair(options.certificate, options.private_key)
    raise_descriptors(DESCRIPTORS_EACH)
    most = most_connections(DESCRIPTORS_EACH)
    door = Door(options.host, options.port, most=most, proxies=options.forwarded_from, inherited=listening)
    shared = SharedAllowances(options.workers + 1, memory)
    forward = Forwarder(socket.socket(fileno=channel))
    configuration = UnitConfiguration(
        create_ingest_app(store, setup, shared, forward),
        door,
        proxies=options.forwarded_from,
        accepted_at_once=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=options.graceful_seconds,
        ws=WEBSOCKETS if setup.has_pages else "none",
        ssl_certfile=options.certificate,
        ssl_keyfile=options.private_key,
    )
    configuration.load()
    return configuration
