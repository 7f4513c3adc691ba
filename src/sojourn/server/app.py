"""The query unit's application: store, tokens, limits and routes put together.

Errors are JSON ``{"detail": …}`` of one line; a `SojournError` never becomes a 5xx unless the store itself fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from sojourn import __version__
from sojourn.core.errors import SojournError
from sojourn.server import telemetry
from sojourn.server.control.owners import OwnerStore, TakenError
from sojourn.server.control.streams import AssignmentStore, StreamStateStore
from sojourn.server.door.access import problems
from sojourn.server.door.admission import IngestDesk, load_kernels
from sojourn.server.door.gate import Gate, explain_error, explain_faults
from sojourn.server.door.limits import Limits
from sojourn.server.door.sign_in import SignIn
from sojourn.server.queries.live import LiveDesk
from sojourn.server.queries.workers import QueryWorkers
from sojourn.server.routes import collections as sink_routes
from sojourn.server.routes import epochs as epoch_routes
from sojourn.server.routes import nodes as node_routes
from sojourn.server.routes import queries as query_routes
from sojourn.server.routes import segments as segment_routes
from sojourn.server.sinks.answers import SinkAnswers
from sojourn.server.sinks.retention import SinkRetention
from sojourn.server.sinks.store import LatePackets, SinkStore
from sojourn.server.sinks.worker import SinkWorker
from sojourn.server.telemetry import RequestCounter, Telemetry
from sojourn.server.upkeep import EpochRetention, KeyLister, Periodic
from sojourn.store.epochs import EpochStore
from sojourn.store.segments import SegmentStore
from sojourn.store.tokens import TokenStore

DESK_THREADS = 4


def create_app(store: EpochStore, *, limits: Limits | None = None) -> FastAPI:
    """The application on an open store."""
    limits = limits or Limits()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(load_kernels)
        app.state.live = LiveDesk(
            most_pending=limits.pending_requests,
            most_bytes=limits.live_bytes,
            most_together=limits.all_live_bytes,
        )
        app.state.ingest = IngestDesk(limits)
        app.state.workers = QueryWorkers(limits)
        app.state.worker = SinkWorker(app.state.sinks, LatePackets(store), app.state.telemetry, limits)
        retention = SinkRetention(store, limits.keep_collections_ns, forget=app.state.worker.forget)
        running: list[SinkWorker | Periodic] = [app.state.worker, retention, KeyLister(store)]
        if limits.keep_epochs_ns is not None:
            running.append(EpochRetention(store, app.state.segments, app.state.telemetry, limits.keep_epochs_ns))
        for part in running:
            part.start()
        yield
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
    app.state.assignments = AssignmentStore(store)
    app.state.owners = OwnerStore(store, silence_ns=limits.owner_silence_ns)
    app.state.stream_states = StreamStateStore(store)
    app.state.sinks = SinkStore(store, limits)
    app.state.sink_answers = SinkAnswers(store)
    app.state.segments = SegmentStore(store)
    app.state.limits = limits
    app.state.telemetry = Telemetry()
    # Whether somebody may ask, and whether the unit is well, must not wait for threads that work on requests.
    app.state.desk = ThreadPoolExecutor(DESK_THREADS, "desk")
    # A large JSON document holds the interpreter while it is parsed: others have a turn between two of them.
    app.state.parsing = asyncio.Semaphore(1)
    app.add_middleware(Gate, sign_in=SignIn(app.state.tokens, limits, app.state.desk), limits=limits)
    app.add_middleware(RequestCounter, telemetry=app.state.telemetry)
    app.add_exception_handler(SojournError, _explain)
    app.add_exception_handler(RequestValidationError, _explain_faults)
    app.add_exception_handler(TakenError, _refuse)
    for routes in (epoch_routes, node_routes, query_routes, segment_routes, sink_routes, telemetry):
        app.include_router(routes.router)
    return app


async def _explain(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SojournError)
    return explain_error(error)


async def _explain_faults(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": explain_faults(error.errors())}, 422)


async def _refuse(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 409)
