"""Health, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request, Response

from sojourn import __version__
from sojourn.server.door.access import readers
from sojourn.server.models.fleet import Health, Problem
from sojourn.server.telemetry import MEDIA_TYPE
from sojourn.store.tokens import Token

__all__ = ["router"]

router = APIRouter(tags=["status"])


@router.get("/health", responses={503: {"model": Problem, "description": "the store does not answer"}})
async def health(request: Request) -> Health:
    """Whether the query unit and its store work; needs no token, and takes the same time however much is stored."""
    state = request.app.state
    await asyncio.get_running_loop().run_in_executor(state.desk, state.store.check)
    return Health(status="ok", version=__version__)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}},
        401: {"model": Problem},
        403: {"model": Problem},
        429: {"model": Problem},
    },
)
def metrics(request: Request, _token: Annotated[Token, readers]) -> Response:
    """Counters in Prometheus' text format."""
    state = request.app.state
    return Response(state.telemetry.render(state.store.totals() | state.sinks.totals()), media_type=MEDIA_TYPE)
