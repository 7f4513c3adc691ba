"""Objectives and their violations over HTTP: created and removed by admins, checked by viewers too."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import SojournError
from sojourn.objectives.objective import Objective, objective_of
from sojourn.server.control.objectives.assigning import NoObjectiveError
from sojourn.server.control.objectives.due import DueWork
from sojourn.server.control.objectives.evaluating import run_task
from sojourn.server.control.objectives.judging import judged, log_changes
from sojourn.server.control.objectives.models import (
    NewObjective,
    ObjectiveCheck,
    ObjectiveDetail,
    ObjectiveInfo,
    VerdictInfo,
    ViolationInfo,
)
from sojourn.server.control.objectives.views import ObjectiveViews
from sojourn.server.door.access import admins, log_action, problems, readers, readers_of_some, visible_nodes
from sojourn.server.queries.query import while_connected
from sojourn.server.routes.segments import wake
from sojourn.store.objectives import StoredObjective, Verdict, worst_state
from sojourn.store.tokens import Token

router = APIRouter(prefix="/api/v1", tags=["objectives"], responses=problems(400, 401, 403, 429, 503, 504))
MOST_VERDICTS = 1000
_ORDER = ("violated", "undecided", "met")


def _views(request: Request) -> ObjectiveViews:
    state = request.app.state
    return ObjectiveViews(state.store, state.objectives, state.stream_states, state.objective_worker.trouble)


def _stored(request: Request, name: str) -> StoredObjective:
    found: StoredObjective | None = request.app.state.objectives.objectives.named(name)
    if found is None:
        raise NoObjectiveError(f"there is no objective {name[:200]}", action="sojourn objective list shows all")
    return found


@router.post("/objectives", status_code=201, responses=problems(409))
async def create_objective(request: Request, body: NewObjective, token: Annotated[Token, admins]) -> ObjectiveDetail:
    """Create an objective (admins): its nodes begin to record what it needs at once."""
    table = body.model_dump(exclude_none=True)
    objective = objective_of(table.pop("name"), table)
    changed = await run_in_threadpool(request.app.state.objectives.create, objective)
    await run_in_threadpool(log_action, request, token, f"created the objective {objective.name}")
    wake(request, changed)
    request.app.state.objective_worker.look_now()
    return await run_in_threadpool(lambda: _views(request).detail(_stored(request, objective.name)))


@router.get("/objectives")
def list_objectives(request: Request, _token: Annotated[Token, readers]) -> list[ObjectiveInfo]:
    """All objectives by name, and how each fares."""
    return _views(request).rows()


@router.get("/objectives/{name}", responses=problems(404))
def get_objective(request: Request, name: str, _token: Annotated[Token, readers]) -> ObjectiveDetail:
    """One objective: its table, and what it is judged at, with the state and the cost of each."""
    return _views(request).detail(_stored(request, name))


@router.delete("/objectives/{name}", status_code=204, response_class=Response, responses=problems(404))
async def remove_objective(request: Request, name: str, token: Annotated[Token, admins]) -> Response:
    """Remove an objective and the streams that it assigned; what was recorded stays, open violations are cleared."""
    objective = (await run_in_threadpool(_stored, request, name)).objective
    changed, cleared = await run_in_threadpool(request.app.state.objectives.remove, name)
    log_changes(objective, cleared)
    await run_in_threadpool(log_action, request, token, f"removed the objective {name}")
    wake(request, changed)
    return Response(status_code=204)


@router.post("/objectives/{name}/check", responses=problems(404))
async def check_objective(request: Request, name: str, _token: Annotated[Token, readers]) -> ObjectiveCheck:
    """Judge an objective on its latest stretch now, without raising or clearing anything."""
    objective = (await run_in_threadpool(_stored, request, name)).objective
    with request.app.state.telemetry.query_seconds.time():
        return await while_connected(request, _checked(request, objective))


async def _checked(request: Request, objective: Objective) -> ObjectiveCheck:
    state = request.app.state
    due = DueWork(state.store, state.objectives, state.segments.segments, state.limits)
    tasks = await run_in_threadpool(lambda: list(due.tasks(objective, again=True)))
    verdicts: list[Verdict] = []
    reasons: list[str] = [] if tasks else ["nothing was measured yet"]
    for task in tasks:
        try:
            evaluated = await state.workers.call(run_task, state.store.engine.url, task)
        except SojournError as error:
            reasons.append(f"{task.place}: {error}")
            continue
        for one in evaluated:
            verdicts += judged(objective, one, places=len(tasks)).verdicts
            reasons += [] if one.reason is None else [f"{one.place}: {one.reason}"]
    verdicts.sort(key=lambda verdict: _ORDER.index(verdict.state))
    fields: list[dict[str, Any]] = [{**vars(verdict), "node": verdict.node or None} for verdict in verdicts]
    return ObjectiveCheck(
        name=objective.name,
        state=worst_state(verdict.state for verdict in verdicts),  # type: ignore[arg-type]
        verdicts=[VerdictInfo.model_validate(one) for one in fields[:MOST_VERDICTS]],
        reasons=reasons,
    )


@router.get("/violations")
def list_violations(
    request: Request,
    token: Annotated[Token, readers_of_some],
    objective: Annotated[str | None, Query(max_length=200)] = None,
    open_only: Annotated[bool, Query(alias="open", description="only those that are not cleared")] = False,
    since_ns: Annotated[
        int | None, Query(ge=0, lt=2**63, description="those that are open, or were cleared since")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[ViolationInfo]:
    """Violations, the latest first."""
    asked = {"objective": objective, "is_open": True if open_only else None, "since_ns": since_ns, "limit": limit}
    found = request.app.state.objectives.objectives.violations(**asked, among=visible_nodes(request, token))
    return [ViolationInfo.model_validate(one.fields()) for one in found]
