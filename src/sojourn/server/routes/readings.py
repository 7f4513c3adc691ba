"""What the fleet measured, for other systems: to be scraped by Prometheus, or as JSON."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from sojourn.core.units import parse_duration
from sojourn.exports.prometheus import exposition
from sojourn.exports.readings import MOST_NODES, MOST_SEGMENTS, MOST_TOP, ReadingLimits, Readings, Window
from sojourn.server.door.access import problems, readers
from sojourn.server.models import ReadingsAnswer
from sojourn.server.queries.query import while_connected
from sojourn.server.queries.readings import Asked
from sojourn.store.tokens import Token

router = APIRouter(tags=["readings"], responses=problems(400, 401, 403, 429, 503, 504))
Length = Annotated[str, Query(max_length=20, description="such as 30s or 5m")]


async def _readings(
    request: Request,
    window: Length = "60s",
    lag: Annotated[str, Query(max_length=20, description="how long ago the window ends")] = "15s",
    top: Annotated[int, Query(ge=0, le=MOST_TOP, description="instances of a metric")] = 10,
    nodes: Annotated[int, Query(ge=0, le=MOST_NODES, description="nodes of a metric")] = 100,
    segments: Annotated[int, Query(ge=0, le=MOST_SEGMENTS)] = 100,
    tag: Annotated[str | None, Query(max_length=200, description="only nodes with it, and no segments")] = None,
) -> Readings:
    asked = Asked(
        window=Window(window_ns=parse_duration(window, where="window"), lag_ns=parse_duration(lag, where="lag")),
        limits=ReadingLimits(top=top, nodes=nodes, segments=segments),
        tag=tag,
    )
    return await while_connected(request, request.app.state.readings.readings(asked))


Found = Annotated[Readings, Depends(_readings)]


@router.get("/api/v1/readings")
async def get_readings(_token: Annotated[Token, readers], found: Found) -> ReadingsAnswer:
    """All nodes' totals, the largest instances and segments' delays of the last window, under bounded names."""
    return ReadingsAnswer.model_validate(found.to_dict())


@router.get("/metrics/fleet", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def scrape(request: Request, _token: Annotated[Token, readers], found: Found) -> Response:
    """The same in OpenMetrics, or in Prometheus' text format."""
    body, media_type = await run_in_threadpool(exposition, found, request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": media_type})
