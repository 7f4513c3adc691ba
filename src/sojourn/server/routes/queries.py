"""Queries over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request

from sojourn.server.door.access import problems, readers
from sojourn.server.models import Query, QueryAnswer
from sojourn.server.queries.query import QueryEngine, while_connected
from sojourn.store.tokens import Token

router = APIRouter(prefix="/api/v1", tags=["queries"])


@router.post("/query", responses=problems(400, 401, 403, 429, 503, 504))
async def query(request: Request, body: Query, _token: Annotated[Token, readers]) -> list[QueryAnswer]:
    """One answer; with a pattern, ``group`` or ``top`` one for each instance or group, the largest value first."""
    state = request.app.state
    engine = QueryEngine(state.store, state.live, state.workers, state.limits)
    with state.telemetry.query_seconds.time():
        stat, found = await while_connected(request, engine.answer(body))
    return [QueryAnswer.model_validate(one.fields(stat)) for one in found]
