"""Topologies over HTTP: stored by admins; planned with, and looked at with what was measured, by viewers.

Files are read, and all that is computed from them, by query workers.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import UsageError
from sojourn.estimation.buckets.queries import FOREVER_NS
from sojourn.server.door.access import admins, checked_name, log_action, problems, readers
from sojourn.server.queries.query import while_connected
from sojourn.server.queries.workers import QueryWorkers
from sojourn.server.topologies import answering
from sojourn.server.topologies.models import (
    ChangesQuery,
    PathQuery,
    TopologyDetail,
    TopologyInfo,
    UpgradeAnswer,
    UpgradeQuery,
)
from sojourn.store.tokens import Token
from sojourn.store.topologies import TopologyFile, TopologyStore

router = APIRouter(prefix="/api/v1", tags=["topologies"], responses=problems(400, 401, 403, 429, 503, 504))
_HERE = "/topologies/{name}"
_BODY = {
    "requestBody": {
        "required": True,
        "description": "the file as it is",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class NoTopologyError(UsageError):
    """There is none of that name."""


def _store(request: Request) -> TopologyStore:
    found: TopologyStore = request.app.state.topologies
    return found


def _workers(request: Request) -> QueryWorkers:
    found: QueryWorkers = request.app.state.workers
    return found


async def _file(request: Request, name: str) -> TopologyFile:
    found = await run_in_threadpool(_store(request).named, checked_name(name))
    if found is None:
        raise NoTopologyError(f"there is no topology {name[:200]}", action="the list of topologies has all")
    return found


@router.get("/topologies")
def list_topologies(request: Request, _token: Annotated[Token, readers]) -> list[TopologyInfo]:
    """All topologies by name."""
    return [TopologyInfo(**vars(one)) for one in _store(request).all()]


@router.put(_HERE, responses=problems(413), openapi_extra=_BODY)
async def store_topology(
    request: Request,
    name: str,
    token: Annotated[Token, admins],
    file_name: Annotated[str, Query(min_length=1, max_length=200, description="its ending tells the format")],
    directed: Annotated[bool | None, Query(description="whether links lead one way as they are listed")] = None,
) -> TopologyInfo:
    """Store a topology file (admins), in the place of what had the name: Rocketfuel, GraphML, GML or CSV."""
    if PurePath(file_name).name != file_name or not file_name.isprintable():
        raise HTTPException(400, "file_name is the name of a file, without folders")
    asked = answering.read_file, file_name, await request.body(), directed
    file, _remarks = await while_connected(request, _workers(request).call(*asked))
    stored = await run_in_threadpool(_store(request).put, checked_name(name), file, who=token.describe())
    await run_in_threadpool(log_action, request, token, f"stored the topology {name}")
    return TopologyInfo(**vars(stored))


@router.get(_HERE, responses=problems(404))
async def get_topology(request: Request, name: str, _token: Annotated[Token, readers]) -> TopologyDetail:
    """Its routers and links."""
    file = await _file(request, name)
    found = await while_connected(request, _workers(request).call(answering.describe, file))
    return TopologyDetail(name=name, **found)


@router.delete(_HERE, status_code=204, response_class=Response, responses=problems(404))
async def remove_topology(request: Request, name: str, token: Annotated[Token, admins]) -> Response:
    """Forget a topology (admins)."""
    if not await run_in_threadpool(_store(request).remove, checked_name(name)):
        raise NoTopologyError(f"there is no topology {name[:200]}", action="the list of topologies has all")
    await run_in_threadpool(log_action, request, token, f"removed the topology {name}")
    return Response(status_code=204)


@router.post(_HERE + "/upgrade", responses=problems(404))
async def plan_upgrade(
    request: Request, name: str, body: UpgradeQuery, _token: Annotated[Token, readers]
) -> UpgradeAnswer:
    """Which routers to upgrade, step by step: probe hop count and localisation granularity."""
    asked = (await _file(request, name)), body.count, body.strategy, body.exclude, body.must, body.traffic
    found = await while_connected(request, _workers(request).call(answering.plan, *asked))
    return UpgradeAnswer(**found)


@router.post(_HERE + "/changes", responses=problems(404))
async def find_changes(
    request: Request, name: str, body: ChangesQuery, _token: Annotated[Token, readers]
) -> dict[str, Any]:
    """All segments of the topology that were measured, and how the delay and loss of each changed."""
    asked = (await _file(request, name)), _measured(request, body)
    return await while_connected(request, _workers(request).call(answering.changes, *asked))


@router.post(_HERE + "/path", responses=problems(404))
async def find_path(request: Request, name: str, body: PathQuery, _token: Annotated[Token, readers]) -> dict[str, Any]:
    """A path between two routers, its delay by segments, and the segment that changed it."""
    asked = (await _file(request, name)), _measured(request, body), body.source, body.target, body.upgraded
    return await while_connected(request, _workers(request).call(answering.path, *asked))


def _measured(request: Request, body: ChangesQuery) -> answering.Measured:
    state = request.app.state
    return answering.Measured(
        url=state.store.engine.url,
        from_ns=max(0, body.from_ns),
        to_ns=FOREVER_NS if body.to_ns is None else body.to_ns,
        dscp=body.dscp,
        most_bytes=state.limits.query_decoded_bytes,
    )
