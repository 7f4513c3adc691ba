"""The query unit's application: store, tokens, limits and routes put together.

Errors are JSON ``{"detail": …}`` of one line; a `SojournError` never becomes a 5xx unless the store itself fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse

from sojourn import __version__
from sojourn.core.errors import SojournError
from sojourn.core.host import service
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
from sojourn.server.door.access import SignIn, problems
from sojourn.server.door.allowances import Allowances
from sojourn.server.door.gate import Dashboard, Gate, explained_faults, explained_problem, refused
from sojourn.server.door.limits import IngestDesk, Limits, load_kernels
from sojourn.server.ingest.broker import BrokerIntake, new_unit
from sojourn.server.ingest.intake import Intake
from sojourn.server.ingest.link import BrokerOptions
from sojourn.server.ingest.messages import Takes
from sojourn.server.processes.forwarding import Introduced
from sojourn.server.processes.supervision import IngestProcesses
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
from sojourn.server.routes.topologies import NoTopologyError
from sojourn.server.routes.topologies import router as topology_routes
from sojourn.server.runs.engine import SegmentEngine, wanted_pairs
from sojourn.server.runs.naming import LossNamer
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
from sojourn.store.epochs import EpochStore
from sojourn.store.measurements import MeasurementStore
from sojourn.store.notifications import NotificationStore
from sojourn.store.runs import RunStore
from sojourn.store.tokens import TokenStore
from sojourn.store.topologies import TopologyStore
from sojourn.store.upkeep.clock import TrustedClock

DESK_THREADS = 4
NO_DASHBOARD = "This query unit has no dashboard; pip install 'sojourn[web]' and start it again to have one here.\n"


def create_app(
    store: EpochStore,
    *,
    limits: Limits | None = None,
    broker: BrokerOptions | None = None,
    processes: IngestProcesses | None = None,
    dashboard: Callable[[FastAPI], Dashboard] | None = None,
) -> FastAPI:
    """The application on an open store; with a broker it takes what nodes publish there, too.

    Where processes beside this one take epochs, it shares limits with them and has its requests from them.
    """
    limits = limits or Limits()
    unit = processes.unit if processes is not None else new_unit()
    allowances = processes.allowances.at(0, limits) if processes is not None else Allowances.own(limits)

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
            allowances,
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
        running.append(LossNamer(store, app.state.live, limits, _on_loop()))
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
        at_broker = None
        if broker is not None:
            takes = Takes.ALL if processes is None else Takes.REST
            at_broker = BrokerIntake(broker, app.state.intake, unit=unit, takes=takes)
            at_broker.start()
            app.state.is_at_broker = partial(_are_at_broker, at_broker, processes)
        service.ready("takes epochs and answers")
        watched = asyncio.create_task(_keep_alive())
        yield
        watched.cancel()
        service.stopping()
        if front is not None:
            await front.close()
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
    front = None if dashboard is None else dashboard(app)
    app.state.store = store
    app.state.tokens = TokenStore(store)
    app.state.audit = AuditLog(store)
    app.state.assignments = AssignmentStore(store)
    started_ns = processes.started_ns if processes is not None else time.time_ns()
    app.state.owners = OwnerStore(store, silence_ns=limits.owner_silence_ns, started_ns=started_ns)
    app.state.stream_states = StreamStateStore(store)
    app.state.inventory = InventoryStore(store)
    app.state.segments = SegmentControl(store, app.state.assignments, limits)
    app.state.objectives = ObjectiveControl(store, app.state.assignments, app.state.stream_states, limits)
    app.state.sinks = SinkStore(store, limits)
    app.state.sink_answers = SinkAnswers(store)
    app.state.measurements = MeasurementStore(store)
    app.state.topologies = TopologyStore(store)
    app.state.limits = limits
    app.state.processes = processes
    app.state.waking = set()
    app.state.ending = False
    app.state.is_at_broker = None if broker is None else lambda: False
    app.state.telemetry = Telemetry()
    app.state.quotas = Quotas(app.state.inventory, limits, app.state.telemetry)
    # Whether somebody may ask, and whether the unit is well, must not wait for threads that work on requests.
    app.state.desk = ThreadPoolExecutor(DESK_THREADS, "desk")
    # A large JSON document holds the interpreter while it is parsed: others have a turn between two of them.
    app.state.parsing = asyncio.Semaphore(1)
    sign_in = SignIn(app.state.tokens, limits, app.state.desk, allowances)
    app.add_middleware(Gate, sign_in=sign_in, limits=limits, allowances=allowances, front=front)
    app.add_middleware(RequestCounter, telemetry=app.state.telemetry)
    if processes is not None:
        app.add_middleware(Introduced)
    app.add_exception_handler(SojournError, explained_problem)
    app.add_exception_handler(RequestValidationError, explained_faults)
    app.add_exception_handler(TakenError, refused)
    app.add_exception_handler(SegmentExistsError, refused)
    app.add_exception_handler(ObjectiveExistsError, refused)
    app.add_exception_handler(NoSegmentError, _miss)
    app.add_exception_handler(NoObjectiveError, _miss)
    app.add_exception_handler(NoTopologyError, _miss)
    for routes in (epoch_routes, node_routes, query_routes, measurement_routes, segment_routes, sink_routes):
        app.include_router(routes)
    app.include_router(objective_routes)
    app.include_router(audit_routes)
    app.include_router(reading_routes)
    app.include_router(topology_routes)
    app.include_router(telemetry.router)
    app.add_route("/", _tell_of_dashboard)
    return app


async def _keep_alive() -> None:
    """Tell the service manager, if there is one that wants to know, that this loop goes round."""
    watchdog = service.Watchdog()
    while watchdog.seconds:
        watchdog.alive()
        await asyncio.sleep(watchdog.seconds)


async def _tell_of_dashboard(_: Request) -> PlainTextResponse:
    """What is at `/` where there is no dashboard: how to get it."""
    return PlainTextResponse(NO_DASHBOARD)


def _are_at_broker(own: BrokerIntake, processes: IngestProcesses | None) -> bool:
    return own.is_connected() and (processes is None or processes.are_at_broker())


def _on_loop() -> Callable[[Coroutine[Any, Any, Any]], Future[Any]]:
    """A way for other threads to have this loop do something."""
    loop = asyncio.get_running_loop()
    return lambda work: asyncio.run_coroutine_threadsafe(work, loop)


def _waking(app: FastAPI) -> Callable[[set[str]], object]:
    """A way for other threads to have nodes look at their assignments at once."""
    loop = asyncio.get_running_loop()
    return lambda nodes: asyncio.run_coroutine_threadsafe(app.state.live.wake(nodes, WAKE_SECONDS), loop)


async def _miss(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 404)
