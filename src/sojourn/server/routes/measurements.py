"""Measurements of segments over HTTP: written by probers, and read by the monitoring station."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import InputError
from sojourn.mplane.measurements import SegmentMeasurement, from_row, measured_by, to_row
from sojourn.server.door.access import must_be_node, nodes, problems, readers
from sojourn.server.door.gate import parsed
from sojourn.server.models import MeasurementResults, MeasurementRow, MeasurementRows
from sojourn.server.queries.answering import measured_between
from sojourn.server.queries.query import while_connected
from sojourn.store.tokens import Token

router = APIRouter(prefix="/api/v1", tags=["segments"], responses=problems(400, 401, 403, 429, 503, 504))

_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/MeasurementRows"}}},
    }
}
Nanoseconds = Annotated[int, Query(ge=0, lt=2**63, description="ns since the Unix epoch")]


@router.post("/segments/measurements", openapi_extra=_BODY)
async def add_measurements(request: Request, token: Annotated[Token, nodes]) -> MeasurementResults:
    """Store measurements of segments, all or none; a node's token writes those that the node itself measured."""
    body = await request.body()
    async with request.app.state.parsing:
        measurements = await run_in_threadpool(_measurements, body)
    for one in measurements:
        must_be_node(token, measured_by(one.segment))
    statuses = await run_in_threadpool(request.app.state.measurements.add, measurements)
    return MeasurementResults(statuses=[status.value for status in statuses])


def _measurements(body: bytes) -> list[SegmentMeasurement]:
    """The measurements in a body of JSON; 422 if it is not as described, 400 if one cannot be."""
    rows = parsed(MeasurementRows, body).measurements
    measurements = []
    for number, row in enumerate(rows):
        try:
            measurements.append(from_row(row.model_dump(), where=f"measurement {number}"))
        except InputError as error:
            raise HTTPException(400, str(error)) from None
    return measurements


@router.get("/segments/measurements")
async def list_measurements(
    request: Request,
    _token: Annotated[Token, readers],
    from_ns: Nanoseconds = 0,
    to_ns: Nanoseconds = 2**63 - 1,
    node: Annotated[str | None, Query(max_length=200)] = None,
    segment: Annotated[str | None, Query(max_length=20_000, description="a>x>b, or a>[r]>b")] = None,
) -> MeasurementRows:
    """The intervals that begin in a range of time, oldest first: probed ones, and those of LDAs inside routers."""
    state = request.app.state
    most = state.limits.query_decoded_bytes
    asked = measured_between, state.store.engine.url, from_ns, to_ns, node, segment, most
    found = await while_connected(request, state.workers.call(*asked))
    return MeasurementRows(measurements=[MeasurementRow.model_validate(to_row(one)) for one in found])
