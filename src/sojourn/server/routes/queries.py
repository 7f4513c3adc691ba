"""Queries over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request

from sojourn.estimation.buckets.queries import FOREVER_NS, RangeQuery, answer_fields
from sojourn.server.door.access import problems, readers
from sojourn.server.models.fleet import Query, QueryAnswer
from sojourn.server.queries.answering import Found, Question
from sojourn.server.queries.query import QueryEngine, while_connected
from sojourn.store.tokens import Token

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["queries"])


@router.post("/query", responses=problems(400, 401, 403, 429, 503, 504))
async def query(request: Request, body: Query, _token: Annotated[Token, readers]) -> list[QueryAnswer]:
    """One answer; with ``top`` the largest instances', largest first."""
    state = request.app.state
    until = FOREVER_NS if body.to_ns is None else body.to_ns
    asked = RangeQuery(from_ns=body.from_ns, to_ns=until, stat=body.stat or "sum", method=body.method, cut=body.cut)
    question = Question(
        metric=body.metric,
        node=body.node,
        tag=body.tag,
        instance=body.instance,
        range=asked,
        stat_by_metric=body.stat is None,
        live=body.live,
        top=body.top,
    )
    engine = QueryEngine(state.store, state.live, state.workers, state.limits)
    with state.telemetry.query_seconds.time():
        found = await while_connected(request, engine.answer(question))
    return [_answer(one) for one in found]


def _answer(found: Found) -> QueryAnswer:
    rest = {
        "unit": found.unit,
        "stat": found.stat,
        "live": found.live,
        "instance": found.instance,
        "notes": list(found.notes),
    }
    return QueryAnswer.model_validate({**answer_fields(found.range), **rest})
