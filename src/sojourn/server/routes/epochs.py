"""What was measured, over HTTP: epochs taken from nodes and given back as they came, segments, and queries.

Segments are written by probers, and read by the monitoring station.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from sojourn.core.errors import InputError
from sojourn.mplane.measurements import SegmentMeasurement, from_row, measured_by, to_row
from sojourn.server.door.access import Instance, checked_name, must_be_node, nodes, problems, readers
from sojourn.server.door.limits import CBOR, CBOR_BODY, checked_epochs
from sojourn.server.models import (
    EpochInfo,
    EpochResult,
    EpochResults,
    QueryAnswer,
    SegmentResults,
    SegmentRow,
    SegmentRows,
)
from sojourn.server.models import Query as Question
from sojourn.server.queries.answering import measured_segments
from sojourn.server.queries.query import QueryEngine, while_connected
from sojourn.store.tokens import Token

epoch_routes = APIRouter(prefix="/api/v1", tags=["epochs"], responses=problems(400, 401, 403, 409, 413, 429, 503))


@epoch_routes.post("/epochs", openapi_extra=CBOR_BODY)
async def add_epochs(
    request: Request, token: Annotated[Token, nodes], sojourn_instance: Instance = None
) -> EpochResults:
    """Store one or more epochs (a CBOR sequence), all or none; copies are recognised."""
    ingest = request.app.state.ingest
    body = await request.body()
    async with ingest.turn(token.id):
        epochs = await checked_epochs(request, body)
        if not epochs:
            raise HTTPException(400, "the body holds no epoch")
        streams: dict[str, set[str]] = {}
        for epoch in epochs:
            streams.setdefault(epoch.node, set()).add(epoch.stream)
        for node, names in streams.items():
            must_be_node(token, checked_name(node))
            for name in names:
                checked_name(name)
        for node, names in streams.items():
            await ingest.run(request.app.state.owners.claim, node, names, sojourn_instance)
        statuses = await ingest.run(request.app.state.store.add_encoded, epochs)
    for status, count in Counter(statuses).items():
        request.app.state.telemetry.epochs.labels(status.value).inc(count)
    return EpochResults(
        results=[
            EpochResult(node=epoch.node, stream=epoch.stream, sequence=epoch.sequence, status=status.value)
            for epoch, status in zip(epochs, statuses, strict=True)
        ]
    )


@epoch_routes.get("/nodes/{node}/streams/{stream}/epochs")
def list_epochs(
    request: Request,
    node: str,
    stream: str,
    _token: Annotated[Token, readers],
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[EpochInfo]:
    """The latest epochs of a stream, newest first."""
    return [EpochInfo.model_validate(frame) for frame in request.app.state.store.frames(node, stream, limit=limit)]


@epoch_routes.get(
    "/nodes/{node}/streams/{stream}/epochs/{sequence}",
    response_class=Response,
    responses={200: {"content": {CBOR: {"schema": {"type": "string", "format": "binary"}}}}, **problems(404)},
)
def get_epoch(request: Request, node: str, stream: str, sequence: int, _token: Annotated[Token, readers]) -> Response:
    """One epoch in the wire format."""
    data = request.app.state.store.epoch_bytes(node, stream, sequence) if abs(sequence) < 2**63 else None
    if data is None:
        raise HTTPException(404, "there is no such epoch")
    return Response(data, media_type=CBOR)


segment_routes = APIRouter(prefix="/api/v1", tags=["segments"], responses=problems(400, 401, 403, 429, 503, 504))

_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SegmentRows"}}},
    }
}
Nanoseconds = Annotated[int, Query(ge=0, lt=2**63, description="ns since the Unix epoch")]


@segment_routes.post("/segments", openapi_extra=_BODY)
async def add_segments(request: Request, token: Annotated[Token, nodes]) -> SegmentResults:
    """Store measurements of segments, all or none; a node's token writes those that the node itself measured."""
    body = await request.body()
    async with request.app.state.parsing:
        measurements = await run_in_threadpool(_measurements, body)
    for one in measurements:
        must_be_node(token, measured_by(one.segment))
    statuses = await run_in_threadpool(request.app.state.segments.add, measurements)
    return SegmentResults(statuses=[status.value for status in statuses])


def _measurements(body: bytes) -> list[SegmentMeasurement]:
    """The measurements in a body of JSON; 422 if it is not as described, 400 if one cannot be."""
    try:
        rows = SegmentRows.model_validate_json(body).measurements
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from None
    measurements = []
    for number, row in enumerate(rows):
        try:
            measurements.append(from_row(row.model_dump(), where=f"measurement {number}"))
        except InputError as error:
            raise HTTPException(400, str(error)) from None
    return measurements


@segment_routes.get("/segments")
async def list_segments(
    request: Request,
    _token: Annotated[Token, readers],
    from_ns: Nanoseconds = 0,
    to_ns: Nanoseconds = 2**63 - 1,
    node: Annotated[str | None, Query(max_length=200)] = None,
    segment: Annotated[str | None, Query(max_length=20_000, description="a>x>b, or a>[r]>b")] = None,
) -> SegmentRows:
    """The intervals that begin in a range of time, oldest first: probed ones, and those of LDAs inside routers."""
    state = request.app.state
    most = state.limits.query_decoded_bytes
    asked = measured_segments, state.store.engine.url, from_ns, to_ns, node, segment, most
    found = await while_connected(request, state.workers.call(*asked))
    return SegmentRows(measurements=[SegmentRow.model_validate(to_row(one)) for one in found])


query_routes = APIRouter(prefix="/api/v1", tags=["queries"])


@query_routes.post("/query", responses=problems(400, 401, 403, 429, 503, 504))
async def query(request: Request, body: Question, _token: Annotated[Token, readers]) -> list[QueryAnswer]:
    """One answer; with a pattern, ``group`` or ``top`` one for each instance or group, the largest value first."""
    state = request.app.state
    engine = QueryEngine(state.store, state.live, state.workers, state.limits)
    with state.telemetry.query_seconds.time():
        stat, found = await while_connected(request, engine.answer(body))
    return [QueryAnswer.model_validate(one.fields(stat)) for one in found]
