"""Segments over HTTP: those of the fleet are created, shown and removed; those that MPlane measures are listed, too.

Measurements of earlier probers came where segments are created now, and stations asked for them where segments are
listed. Both are told what to upgrade.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from sojourn.mplane.measurements import Segment
from sojourn.segments.fleet.point import parse_point
from sojourn.segments.fleet.segment import DEFAULT_CONFIDENCE, DEFAULT_ERROR, FleetSegment
from sojourn.server.control.segments import NoSegmentError
from sojourn.server.control.views import SegmentViews, measured_detail, measured_row
from sojourn.server.door.access import admins, everyone, log_action, must_have_role, problems, readers
from sojourn.server.door.gate import parsed
from sojourn.server.models import (
    LostQuery,
    NewSegment,
    PacketsQuery,
    SegmentDetail,
    SegmentInfo,
    SegmentQuery,
    SegmentRanking,
    SegmentTotals,
)
from sojourn.server.queries.answering import measured_between
from sojourn.server.queries.query import while_connected
from sojourn.server.runs.engine import SegmentEngine
from sojourn.store.tokens import Role, Token

# Segments that MPlane has not measured for so long are no longer listed.
MEASURED_NS = 86_400_000_000_000
LATEST_NS = 600_000_000_000
WAKE_SECONDS = 10.0
_EARLIER = "measurements of segments are at /api/v1/segments/measurements"

router = APIRouter(prefix="/api/v1", tags=["segments"], responses=problems(400, 401, 403, 429, 503, 504))
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": NewSegment.model_json_schema()}},
    }
}


def _views(request: Request) -> SegmentViews:
    state = request.app.state
    return SegmentViews(state.store, state.segments, state.stream_states, state.live.is_listening)


def wake(request: Request, nodes: Iterable[str]) -> None:
    """Have nodes look at their assignments at once, without waiting for them."""
    task = asyncio.create_task(request.app.state.live.wake(set(nodes), WAKE_SECONDS))
    request.app.state.waking.add(task)  # the loop itself keeps no task alive
    task.add_done_callback(request.app.state.waking.discard)


@router.post("/segments", status_code=201, responses=problems(409), openapi_extra=_BODY)
async def create_segment(request: Request, token: Annotated[Token, everyone]) -> SegmentDetail:
    """Create a segment between two points of the fleet (admins): its nodes begin to record it at once."""
    body = await request.body()
    if b'"measurements"' in body[:1000]:
        raise HTTPException(400, f"this prober is of an earlier version: upgrade it ({_EARLIER})")
    must_have_role(token, (Role.ADMIN,))
    segment = _segment(body)
    changed = await run_in_threadpool(request.app.state.segments.create, segment)
    await run_in_threadpool(log_action, request, token, f"created the segment {segment.name}")
    wake(request, changed)
    return await _detail(request, segment.name)


async def _detail(request: Request, name: str) -> SegmentDetail:
    """A segment of the fleet, or 404."""
    segment = await run_in_threadpool(request.app.state.segments.segments.named, name)
    if segment is None:
        raise _unknown(name)
    return await run_in_threadpool(_views(request).detail, segment)


def _segment(body: bytes) -> FleetSegment:
    """The segment that a body describes; 422 if it is none, 400 if it cannot be."""
    new = parsed(NewSegment, body)
    wanted: dict[str, Any] = {"memory_bytes": new.memory_bytes, "error": new.error, "confidence": new.confidence}
    if new.memory_bytes is None:
        wanted |= {
            "error": DEFAULT_ERROR if new.error is None else new.error,
            "confidence": DEFAULT_CONFIDENCE if new.confidence is None else new.confidence,
        }
    return FleetSegment(
        name=new.name,
        sender=parse_point(new.sender, default="out", filter=new.filter, where="from"),
        receiver=parse_point(new.receiver, default="in", filter=new.filter, where="to"),
        epoch_ns=new.epoch_ns,
        both_directions=new.both_directions,
        sketch=new.sketch,
        **wanted,
    )


@router.get("/segments")
async def list_segments(
    request: Request,
    _token: Annotated[Token, readers],
    from_ns: Annotated[int | None, Query(include_in_schema=False)] = None,
) -> list[SegmentInfo]:
    """All segments: those of the fleet by name, then those that MPlane measured within the last day."""
    if from_ns is not None:
        raise HTTPException(400, f"this client is of an earlier version: upgrade it ({_EARLIER})")
    rows = await run_in_threadpool(_views(request).rows)
    measured = await run_in_threadpool(request.app.state.measurements.measured, time.time_ns() - MEASURED_NS)
    return [*rows, *(measured_row(segment, measured[segment]) for segment in sorted(measured, key=str))]


@router.get("/segments/{name}", responses=problems(404))
async def get_segment(request: Request, name: str, _token: Annotated[Token, readers]) -> SegmentDetail:
    """One segment: its points and how they fare, its plan, its generations."""
    return await (_measured if ">" in name else _detail)(request, name)


async def _measured(request: Request, name: str) -> SegmentDetail:
    """A segment that MPlane measures, by its hops."""
    state = request.app.state
    measured: dict[Segment, int] = await run_in_threadpool(state.measurements.measured, 0)
    segment = next((one for one in measured if str(one) == name), None)
    if segment is None:
        raise _unknown(name)
    last_ns = measured[segment]
    span = max(0, last_ns - LATEST_NS), last_ns
    asked = measured_between, state.store.engine.url, *span, None, name, state.limits.query_decoded_bytes
    found = await while_connected(request, state.workers.call(*asked))
    return measured_detail(segment, last_ns, found[-1] if found else None)


@router.post("/segments/query")
async def rank_segments(
    request: Request, body: SegmentRanking, _token: Annotated[Token, readers]
) -> list[SegmentTotals]:
    """The totals of many segments of the fleet, the largest first."""
    with request.app.state.telemetry.query_seconds.time():
        found = await while_connected(request, _engine(request).rank(body))
    return [SegmentTotals.model_validate(row) for row in found]


def _engine(request: Request) -> SegmentEngine:
    state = request.app.state
    return SegmentEngine(state.store, state.segments.segments, state.live, state.workers, state.limits)


@router.post("/segments/{name}/query", responses=problems(404))
async def query_segment(
    request: Request, name: str, body: SegmentQuery, _token: Annotated[Token, readers]
) -> dict[str, Any]:
    """Delay, percentiles and loss of a segment's flows and of all packets, in the form of `sojourn measure`."""
    with request.app.state.telemetry.query_seconds.time():
        return await while_connected(request, _engine(request).answer(name, body))


@router.post("/segments/{name}/lost", responses=problems(404))
async def list_lost(request: Request, name: str, body: LostQuery, _token: Annotated[Token, readers]) -> dict[str, Any]:
    """The packets that a segment has lost, one by one, as far as its nodes' ledgers tell."""
    with request.app.state.telemetry.query_seconds.time():
        return await while_connected(request, _engine(request).lost(name, body))


@router.post("/segments/{name}/packets", responses=problems(404))
async def list_packets(
    request: Request, name: str, body: PacketsQuery, _token: Annotated[Token, readers]
) -> dict[str, Any]:
    """The packets of one flow with their delays, lost ones marked, as far as both nodes' ledgers hold them now."""
    with request.app.state.telemetry.query_seconds.time():
        return await while_connected(request, _engine(request).packets(name, body))


@router.delete("/segments/{name}", status_code=204, response_class=Response, responses=problems(404))
async def remove_segment(request: Request, name: str, token: Annotated[Token, admins]) -> Response:
    """Remove a segment of the fleet; points that no other needs are no longer recorded. What was recorded stays."""
    changed = await run_in_threadpool(request.app.state.segments.remove, name)
    await run_in_threadpool(log_action, request, token, f"removed the segment {name}")
    wake(request, changed)
    return Response(status_code=204)


def _unknown(name: str) -> NoSegmentError:
    return NoSegmentError(f"there is no segment {name[:200]}", action="sojourn segment list shows all")
