"""The query unit: its application (store, tokens, limits and routes put together), and how it is run at an address.

Errors are JSON ``{"detail": …}`` of one line; a `SojournError` never becomes a 5xx unless the store itself fails.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from sojourn import __version__
from sojourn.core.errors import ServerError, SojournError, UsageError, log_to_stderr
from sojourn.server import telemetry
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.control.inventory import InventoryStore
from sojourn.server.control.notifying import Notifier
from sojourn.server.control.objectives.assigning import NoObjectiveError, ObjectiveControl, ObjectiveExistsError
from sojourn.server.control.objectives.worker import ObjectiveWorker
from sojourn.server.control.owners import OwnerStore, TakenError
from sojourn.server.control.planning import SegmentPlanner, StoredTraffic
from sojourn.server.control.quotas import Quotas
from sojourn.server.control.segments import NoSegmentError, SegmentControl, SegmentExistsError
from sojourn.server.control.silence import SilenceWatch
from sojourn.server.control.states import StreamStateStore
from sojourn.server.door.access import SignIn, is_loopback, problems
from sojourn.server.door.connections import BACKLOG, Door, UnitConfiguration, UnitServer, raise_descriptors
from sojourn.server.door.gate import Gate, explain_error, explain_faults
from sojourn.server.door.limits import IngestDesk, Limits, load_kernels
from sojourn.server.ingest.broker import BrokerIntake
from sojourn.server.ingest.intake import Intake
from sojourn.server.ingest.link import BrokerOptions
from sojourn.server.queries.live import LiveDesk
from sojourn.server.queries.readings import ReadingsDesk
from sojourn.server.queries.workers import QueryWorkers
from sojourn.server.routes.audit import router as audit_routes
from sojourn.server.routes.collections import router as sink_routes
from sojourn.server.routes.epochs import epoch_routes, query_routes
from sojourn.server.routes.measurements import router as measurement_routes
from sojourn.server.routes.nodes import router as node_routes
from sojourn.server.routes.objectives import router as objective_routes
from sojourn.server.routes.readings import router as reading_routes
from sojourn.server.routes.segments import WAKE_SECONDS
from sojourn.server.routes.segments import router as segment_routes
from sojourn.server.runs.engine import SegmentEngine, wanted_pairs
from sojourn.server.runs.worker import RunWorker
from sojourn.server.sinks.answers import SinkAnswers
from sojourn.server.sinks.retention import SinkRetention
from sojourn.server.sinks.store import LatePackets, SinkStore
from sojourn.server.sinks.worker import SinkWorker
from sojourn.server.telemetry import RequestCounter, Telemetry
from sojourn.server.upkeep import (
    EPOCHS,
    Ageing,
    ClockWatch,
    EpochMerging,
    KeyLister,
    PartitionKeeper,
    Periodic,
    Retention,
)
from sojourn.store.audit import AuditLog
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.measurements import MeasurementStore
from sojourn.store.notifications import NotificationStore
from sojourn.store.runs import RunStore
from sojourn.store.tokens import Role, TokenStore, write_token
from sojourn.store.upkeep.clock import TrustedClock

DESK_THREADS = 4


def create_app(store: EpochStore, *, limits: Limits | None = None, broker: BrokerOptions | None = None) -> FastAPI:
    """The application on an open store; with a broker it takes what nodes publish there, too."""
    limits = limits or Limits()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(load_kernels)
        app.state.live = LiveDesk(
            most_pending=limits.pending_requests, most_bytes=limits.live_bytes, most_together=limits.all_live_bytes
        )
        app.state.ingest = IngestDesk(limits)
        app.state.intake = Intake(
            store,
            app.state.owners,
            app.state.stream_states,
            app.state.inventory,
            app.state.quotas,
            app.state.assignments,
            app.state.live,
            app.state.ingest,
            limits,
            app.state.telemetry,
        )
        app.state.wake = _waking(app)
        app.state.workers = QueryWorkers(limits)
        segments = SegmentEngine(store, app.state.segments.segments, app.state.live, app.state.workers, limits)
        app.state.readings = ReadingsDesk(store, segments, app.state.workers, limits)
        app.state.worker = SinkWorker(app.state.sinks, LatePackets(store), app.state.telemetry, limits)
        planner = SegmentPlanner(app.state.segments, StoredTraffic(store), app.state.wake)
        clock = ClockWatch(TrustedClock(store), app.state.telemetry)
        forget = app.state.worker.forget
        retention = SinkRetention(store, limits.keep_collections_ns, forget=forget, clock=clock.now_ns)
        runs = RunWorker(store, limits, partial(wanted_pairs, app.state.segments.segments))
        objectives = app.state.objectives
        judge = ObjectiveWorker(store, objectives, app.state.segments.segments, limits, app.state.wake)
        app.state.objective_worker = judge
        running: list[SinkWorker | Periodic] = [app.state.worker, retention, KeyLister(store), planner, runs]
        running += [judge, Notifier(NotificationStore(store)), PartitionKeeper(store)]
        running.append(SilenceWatch(app.state.inventory, limits))
        if limits.merge_epochs:
            running.append(EpochMerging(store, limits.merge_epochs, app.state.telemetry, clock))
        if limits.keep_epochs_ns is not None:
            kept: dict[str, Ageing] = {EPOCHS: store, "probed intervals": app.state.measurements}
            kept |= {"answered runs": RunStore(store), "ended recordings of points": app.state.segments.segments}
            kept |= {"cleared violations": objectives.objectives, "events of nodes": app.state.inventory}
            running.append(Retention(kept, app.state.telemetry, limits.keep_epochs_ns, clock))
        if limits.keep_audit_ns is not None:
            audited = {"actions of the audit log": app.state.audit}
            running.append(Retention(audited, app.state.telemetry, limits.keep_audit_ns, clock))
        for part in running:
            part.start()
        at_broker = BrokerIntake(broker, app.state.intake) if broker is not None else None
        if at_broker is not None:
            at_broker.start()
            app.state.is_at_broker = at_broker.is_connected
        yield
        if at_broker is not None:
            await at_broker.stop()
        await run_in_threadpool(app.state.workers.close)
        for part in reversed(running):
            await run_in_threadpool(part.stop)
        app.state.desk.shutdown(wait=False)

    app = FastAPI(
        title="Sojourn query unit",
        version=__version__,
        summary="Epochs and packets in, answers out.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=problems(413, 422),
    )
    app.state.store = store
    app.state.tokens = TokenStore(store)
    app.state.audit = AuditLog(store)
    app.state.assignments = AssignmentStore(store)
    app.state.owners = OwnerStore(store, silence_ns=limits.owner_silence_ns)
    app.state.stream_states = StreamStateStore(store)
    app.state.inventory = InventoryStore(store)
    app.state.segments = SegmentControl(store, app.state.assignments, limits)
    app.state.objectives = ObjectiveControl(store, app.state.assignments, app.state.stream_states, limits)
    app.state.sinks = SinkStore(store, limits)
    app.state.sink_answers = SinkAnswers(store)
    app.state.measurements = MeasurementStore(store)
    app.state.limits = limits
    app.state.waking = set()
    app.state.ending = False
    app.state.is_at_broker = None if broker is None else lambda: False
    app.state.telemetry = Telemetry()
    app.state.quotas = Quotas(app.state.inventory, limits, app.state.telemetry)
    # Whether somebody may ask, and whether the unit is well, must not wait for threads that work on requests.
    app.state.desk = ThreadPoolExecutor(DESK_THREADS, "desk")
    # A large JSON document holds the interpreter while it is parsed: others have a turn between two of them.
    app.state.parsing = asyncio.Semaphore(1)
    app.add_middleware(Gate, sign_in=SignIn(app.state.tokens, limits, app.state.desk), limits=limits)
    app.add_middleware(RequestCounter, telemetry=app.state.telemetry)
    app.add_exception_handler(SojournError, _explain)
    app.add_exception_handler(RequestValidationError, _explain_faults)
    app.add_exception_handler(TakenError, _refuse)
    app.add_exception_handler(SegmentExistsError, _refuse)
    app.add_exception_handler(ObjectiveExistsError, _refuse)
    app.add_exception_handler(NoSegmentError, _miss)
    app.add_exception_handler(NoObjectiveError, _miss)
    for routes in (epoch_routes, node_routes, query_routes, measurement_routes, segment_routes, sink_routes):
        app.include_router(routes)
    app.include_router(objective_routes)
    app.include_router(audit_routes)
    app.include_router(reading_routes)
    app.include_router(telemetry.router)
    return app


def _waking(app: FastAPI) -> Callable[[set[str]], object]:
    """A way for other threads to have nodes look at their assignments at once."""
    loop = asyncio.get_running_loop()
    return lambda nodes: asyncio.run_coroutine_threadsafe(app.state.live.wake(nodes, WAKE_SECONDS), loop)


async def _explain(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SojournError)
    return explain_error(error)


async def _explain_faults(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": explain_faults(error.errors())}, 422)


async def _refuse(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 409)


async def _miss(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 404)


TOKEN_NAME = "admin-token"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where the query unit keeps its data, and where it listens."""

    data: str
    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Path | None = None
    private_key: Path | None = None
    limits: Limits = field(default_factory=Limits)
    forwarded_from: tuple[str, ...] = ()  # proxies whose word on where a request comes from is taken
    own_directory: Path = Path()  # where the first token goes if the data is in a database elsewhere
    graceful_seconds: int = 30  # what is under way when it is asked to end may take
    logs_json: bool = False
    broker: BrokerOptions | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("TLS needs a certificate and its key", where="serve", action="give both")
        if self.certificate is not None and self.private_key is not None:
            _check_pair(self.certificate, self.private_key)
        for address in self.forwarded_from:
            try:
                ip_address(address)
            except ValueError:
                raise UsageError(
                    f"{address[:60]!r} is no address",
                    where="--forwarded-from",
                    action="give a proxy's, such as 10.0.0.2",
                ) from None

    @property
    def token_directory(self) -> Path:
        """Where the first admin's token is written."""
        return self.own_directory if "://" in self.data else Path(self.data)

    @property
    def scheme(self) -> str:
        return "https" if self.certificate else "http"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)


def _check_pair(certificate: Path, private_key: Path) -> None:
    """Refuse what could not be served with, before an address is announced."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key)
    except OSError as error:
        what = error.strerror or str(error)
        files = f"{certificate}, {private_key}"
        raise UsageError(what, where=files, action="give a certificate and its private key, both PEM") from None


def first_token(store: EpochStore, directory: Path) -> Path | None:
    """Where an admin's token was written, if there was none yet at all; only its owner can read it."""
    tokens = TokenStore(store)
    if tokens.all():
        return None
    token, text = tokens.create(Role.ADMIN, name="first admin")
    path = directory / TOKEN_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_token(path, text)
    except OSError as error:
        tokens.revoke(token.id)
        raise ServerError(
            error.strerror or str(error), where=str(path), action="the first admin's token has to be written there"
        ) from None
    return path


def make_server(store: EpochStore, door: Door, options: ServeOptions) -> UnitServer:
    """The query unit on an open store, to be run with its door as the only socket."""
    configuration = UnitConfiguration(
        create_app(store, limits=options.limits, broker=options.broker),
        door,
        proxies=options.forwarded_from,
        timeout_graceful_shutdown=options.graceful_seconds,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.private_key,
    )
    return UnitServer(configuration)


def serve(options: ServeOptions, announce: Callable[[str, Path | None], None]) -> None:
    """Serve until stopped; `announce` gets the URL and the first token's file once connections are accepted."""
    raise_descriptors()
    store = open_store(options.data)
    try:
        door = Door(options.host, options.port, proxies=options.forwarded_from)
        door.listen(BACKLOG)
        host, port = door.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        token_file = first_token(store, options.token_directory)
        log_to_stderr(as_json=options.logs_json)  # from here on: the address is the first line of all
        announce(f"{options.scheme}://{shown}:{port}", token_file)
        server = make_server(store, door, options)
        # What is there by now stays: searching the rest for garbage is quick, so closed connections go in time.
        gc.collect()
        gc.freeze()
        server.run(sockets=[door])
    finally:
        store.close()
