"""Nodes: who they are, what they measure, what they are assigned, and what they are asked about the current epoch."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from sojourn.node.agent.configuration import checked_stream
from sojourn.server.control.inventory import grouped
from sojourn.server.control.models import Node, NodeDetail, NodeEventInfo, NodeGroup, NodeSettings, ReportedStates
from sojourn.server.control.nodes import all_nodes, known_node, node_detail, streams_of
from sojourn.server.door.access import (
    Instance,
    admins,
    checked_name,
    log_action,
    must_be_node,
    must_see,
    nodes,
    problems,
    readers_of_some,
    visible_nodes,
)
from sojourn.server.door.limits import CBOR_BODY
from sojourn.server.ingest.intake import Intake
from sojourn.server.models import (
    MOST_TAGS,
    Assignment,
    Assignments,
    KeyInfo,
    LiveAsked,
    Released,
    Stream,
    StreamInfo,
    StreamStates,
    TagChange,
    Tags,
)
from sojourn.server.queries.answering import known_keys
from sojourn.server.queries.query import while_connected
from sojourn.store.tokens import Role, Token

LOOK_SECONDS = 1.0

router = APIRouter(prefix="/api/v1", tags=["nodes"], responses=problems(400, 401, 403, 409, 429))


def _intake(request: Request) -> Intake:
    intake: Intake = request.app.state.intake
    return intake


@router.get("/nodes")
async def list_nodes(request: Request, token: Annotated[Token, readers_of_some], tag: str | None = None) -> list[Node]:
    """All nodes that ever sent something, or those with a tag."""
    return await run_in_threadpool(_visible, request, token, tag=tag)


def _visible(request: Request, token: Token, *, tag: str | None = None) -> list[Node]:
    seen = visible_nodes(request, token)
    return [node for node in all_nodes(request.app.state, tag=tag) if seen is None or node.name in seen]


@router.get("/nodes/{node}", responses=problems(404))
async def show_node(request: Request, node: str, token: Annotated[Token, readers_of_some]) -> NodeDetail:
    """All that is known of a node."""
    await run_in_threadpool(must_see, request, token, node)
    return await run_in_threadpool(node_detail, request.app.state, node)


@router.patch("/nodes/{node}/settings", responses=problems(404))
def set_settings(request: Request, node: str, body: NodeSettings, token: Annotated[Token, admins]) -> NodeSettings:
    """Set how a node is treated: what is left out stays, what is null is as with all nodes."""
    known_node(request.app.state, checked_name(node))
    changes = body.model_dump(exclude_unset=True)
    settings: NodeSettings = request.app.state.inventory.set_settings(node, changes)
    request.app.state.quotas.forget(node)
    log_action(request, token, f"set {', '.join(f'{name}={value}' for name, value in changes.items())} of {node}")
    return settings


@router.get("/groups")
async def list_groups(request: Request, token: Annotated[Token, readers_of_some]) -> list[NodeGroup]:
    """The groups of nodes, one for each tag."""
    found = await run_in_threadpool(_visible, request, token)
    return [NodeGroup(**group) for group in grouped(found)]


@router.get("/events")
def list_events(
    request: Request,
    token: Annotated[Token, readers_of_some],
    node: str | None = None,
    only_open: Annotated[bool, Query(alias="open", description="only those that are not cleared")] = False,
    since_ns: Annotated[int | None, Query(ge=0, lt=2**63, description="open now, or cleared since")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[NodeEventInfo]:
    """Events of nodes, the latest first: those that fell silent, and until when."""
    seen = visible_nodes(request, token)
    found = request.app.state.inventory.events(
        node=node, only_open=only_open, since_ns=since_ns, limit=limit, among=seen
    )
    return [NodeEventInfo(**vars(event)) for event in found]


@router.put("/nodes/{node}/tags")
def set_tags(request: Request, node: str, body: Tags, token: Annotated[Token, admins]) -> Tags:
    """Replace a node's tags, by which groups of nodes are asked together."""
    request.app.state.store.set_tags(checked_name(node), [checked_name(tag) for tag in body.tags])
    log_action(request, token, f"set the tags of {node}: {', '.join(body.tags) or 'none'}")
    return body


@router.post("/nodes/{node}/tags")
def change_tags(request: Request, node: str, body: TagChange, token: Annotated[Token, admins]) -> Tags:
    """Give a node tags and take others from it, all at once; all that it then has."""
    add = [checked_name(tag) for tag in body.add]
    tags = request.app.state.store.change_tags(checked_name(node), add, body.remove, most=MOST_TAGS)
    log_action(request, token, f"changed the tags of {node}: {', '.join(tags) or 'none'}")
    return Tags(tags=tags)


@router.get("/nodes/{node}/streams")
def list_streams(request: Request, node: str, token: Annotated[Token, readers_of_some]) -> list[StreamInfo]:
    """The streams that a node announced."""
    must_see(request, token, node)
    return streams_of(request.app.state.store, node)


@router.put("/nodes/{node}/streams/{stream}")
def announce_stream(
    request: Request,
    node: str,
    stream: str,
    body: Stream,
    token: Annotated[Token, nodes],
    sojourn_instance: Instance = None,
) -> StreamInfo:
    """A node says what a stream of it measures; the answer tells the number that its epochs go on from."""
    must_be_node(token, node)
    return _intake(request).announce(node, stream, body, sojourn_instance)


@router.get("/nodes/{node}/states")
def list_states(request: Request, node: str, token: Annotated[Token, readers_of_some]) -> StreamStates:
    """How a node's streams fare: recorded since when, or not, and why."""
    must_see(request, token, node)
    return StreamStates(streams=request.app.state.stream_states.of(node))


@router.put("/nodes/{node}/states")
def set_states(
    request: Request, node: str, body: ReportedStates, token: Annotated[Token, nodes], sojourn_instance: Instance = None
) -> StreamStates:
    """A node tells how its agent and all its streams fare; those left out are no longer recorded."""
    must_be_node(token, node)
    return _intake(request).set_states(node, body, sojourn_instance)


@router.post("/nodes/{node}/release")
def release(request: Request, node: str, token: Annotated[Token, nodes], sojourn_instance: Instance = None) -> Released:
    """Let another agent have a node's name at once: an agent that ends says so of itself, an admin of any."""
    must_be_node(token, node)
    owners = request.app.state.owners
    if sojourn_instance is not None:
        return Released(streams=owners.leave(node, sojourn_instance))
    if token.role is not Role.ADMIN:
        raise HTTPException(403, "only an admin releases the name of another agent")
    log_action(request, token, f"released the name {node}")
    return Released(streams=owners.release(node))


@router.get("/nodes/{node}/assignments")
def get_assignments(
    request: Request, node: str, token: Annotated[Token, nodes], sojourn_instance: Instance = None
) -> Assignments:
    """What a node shall record."""
    must_be_node(token, node)
    return _intake(request).assignments(node, sojourn_instance)


@router.put("/nodes/{node}/assignments/{stream}")
def assign(request: Request, node: str, stream: str, body: Assignment, token: Annotated[Token, admins]) -> Assignments:
    """Tell a node to record a stream, or to record it otherwise; 400 says what it could never record."""
    limits, assignments = request.app.state.limits, request.app.state.assignments
    checked_stream(checked_name(stream), body.configuration, where="assignment", most_bytes=limits.assignment_bytes)
    assigned = assignments.of(checked_name(node))[1]
    if stream not in assigned and len(assigned) >= limits.assignments:
        raise HTTPException(400, f"{node} is assigned {limits.assignments} streams already, which is the limit")
    assignments.assign(node, stream, body.configuration)
    log_action(request, token, f"assigned {stream} to {node}")
    request.app.state.wake({node})
    version, streams = assignments.of(node)
    return Assignments(version=version, streams=streams)


@router.delete("/nodes/{node}/assignments/{stream}")
def withdraw(request: Request, node: str, stream: str, token: Annotated[Token, admins]) -> Assignments:
    """Tell a node to stop recording a stream."""
    version, streams = request.app.state.assignments.of(node)
    if stream in streams:
        request.app.state.assignments.assign(node, stream, None)
        log_action(request, token, f"withdrew {stream} from {node}")
        request.app.state.wake({node})
        version, streams = request.app.state.assignments.of(node)
    return Assignments(version=version, streams=streams)


@router.get(
    "/nodes/{node}/requests", responses={204: {"description": "nobody asked in time"}}, response_model=LiveAsked
)
async def wait_for_request(
    request: Request,
    node: str,
    token: Annotated[Token, nodes],
    wait: Annotated[float, Query(ge=0, le=60)] = 25.0,
    sojourn_instance: Instance = None,
) -> LiveAsked | Response:
    """A node waits here for questions about its current epoch."""
    must_be_node(token, node)
    await run_in_threadpool(request.app.state.owners.require_owner, node, sojourn_instance)
    left = min(wait, request.app.state.limits.poll_seconds)
    while True:
        asked: LiveAsked | None = await request.app.state.live.next_request(node, min(left, LOOK_SECONDS))
        if asked is not None:
            return asked
        left -= LOOK_SECONDS
        # A node that has gone must not pass for one that listens.
        if left <= 0 or request.app.state.ending or await request.is_disconnected():
            return Response(status_code=204)


@router.post(
    "/nodes/{node}/requests/{request_id}",
    status_code=204,
    response_class=Response,
    responses=problems(404),
    openapi_extra=CBOR_BODY,
)
async def answer_request(
    request: Request,
    node: str,
    request_id: str,
    token: Annotated[Token, nodes],
    more: Annotated[bool, Query(description="whether this is a part, and more of the answer follows")] = False,
) -> Response:
    """A node's answer: snapshots of its open epochs, and closed ones that wait to be sent (a CBOR sequence); or what
    its ledger was asked for."""
    must_be_node(token, node)
    body = await request.body()
    await _intake(request).answer(node, request_id, body, more=more)
    return Response(status_code=204)


@router.get("/keys", responses=problems(503, 504))
async def list_keys(
    request: Request,
    token: Annotated[Token, readers_of_some],
    node: str | None = None,
    stream: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[KeyInfo]:
    """Instances that nodes reported, most recently seen first; who sees some nodes alone names one of them."""
    state = request.app.state
    if token.tags is not None:
        if node is None:
            raise HTTPException(403, f"the token is for the nodes of {', '.join(token.tags)}; name one of them")
        await run_in_threadpool(must_see, request, token, node)
    asked = known_keys, state.store.engine.url, node, stream, limit
    found = await while_connected(request, state.workers.call(*asked))
    return [KeyInfo(id=str(instance), key=text) for instance, text in found]
