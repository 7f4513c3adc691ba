"""What was measured, over HTTP: epochs taken from nodes and given back as they came, and queries."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from sojourn.server.door.access import Instance, must_be_node, must_see, nodes, problems, readers_of_some, visible_nodes
from sojourn.server.door.limits import CBOR, CBOR_BODY
from sojourn.server.ingest.intake import Intake
from sojourn.server.models import EpochInfo, EpochResults, QueryAnswer
from sojourn.server.models import Query as Question
from sojourn.server.queries.query import QueryEngine, while_connected
from sojourn.store.tokens import Token

epoch_routes = APIRouter(prefix="/api/v1", tags=["epochs"], responses=problems(400, 401, 403, 409, 413, 429, 503))


@epoch_routes.post("/epochs", openapi_extra=CBOR_BODY)
async def add_epochs(
    request: Request, token: Annotated[Token, nodes], sojourn_instance: Instance = None
) -> EpochResults:
    """Store one or more epochs (a CBOR sequence), all or none; copies are recognised."""

    def may_write(node: str) -> None:
        must_be_node(token, node)

    intake: Intake = request.app.state.intake
    if token.node is not None:
        await intake.require_bytes(token.node)
    body = await request.body()
    return await intake.add_epochs(body, caller=token.id, may_write=may_write, instance=sojourn_instance)


@epoch_routes.get("/nodes/{node}/streams/{stream}/epochs")
def list_epochs(
    request: Request,
    node: str,
    stream: str,
    token: Annotated[Token, readers_of_some],
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[EpochInfo]:
    """The latest epochs of a stream, newest first."""
    must_see(request, token, node)
    return [EpochInfo.model_validate(frame) for frame in request.app.state.store.frames(node, stream, limit=limit)]


@epoch_routes.get(
    "/nodes/{node}/streams/{stream}/epochs/{sequence}",
    response_class=Response,
    responses={200: {"content": {CBOR: {"schema": {"type": "string", "format": "binary"}}}}, **problems(404)},
)
def get_epoch(
    request: Request, node: str, stream: str, sequence: int, token: Annotated[Token, readers_of_some]
) -> Response:
    """One epoch in the wire format."""
    must_see(request, token, node)
    data = request.app.state.store.epoch_bytes(node, stream, sequence) if abs(sequence) < 2**63 else None
    if data is None:
        raise HTTPException(404, "there is no such epoch")
    return Response(data, media_type=CBOR)


query_routes = APIRouter(prefix="/api/v1", tags=["queries"])


@query_routes.post("/query", responses=problems(400, 401, 403, 429, 503, 504))
async def query(request: Request, body: Question, token: Annotated[Token, readers_of_some]) -> list[QueryAnswer]:
    """One answer; with a pattern, ``group`` or ``top`` one for each instance or group, the largest value first."""
    state = request.app.state
    seen = await run_in_threadpool(visible_nodes, request, token)
    for node in [body.node] if isinstance(body.node, str) else body.node or []:
        await run_in_threadpool(must_see, request, token, node)
    engine = QueryEngine(state.store, state.live, state.workers, state.limits, among=seen)
    with state.telemetry.query_seconds.time():
        stat, found = await while_connected(request, engine.answer(body))
    return [QueryAnswer.model_validate(one.fields(stat)) for one in found]
