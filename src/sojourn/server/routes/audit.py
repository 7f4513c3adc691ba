"""The audit log: administrative actions, for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from sojourn.server.control.models import AuditAction
from sojourn.server.door.access import admins, problems
from sojourn.store.tokens import Token

router = APIRouter(prefix="/api/v1", tags=["audit"], responses=problems(400, 401, 403, 429))


@router.get("/audit")
def list_actions(
    request: Request,
    _token: Annotated[Token, admins],
    from_ns: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    to_ns: Annotated[int, Query(ge=0, lt=2**63)] = 2**63 - 1,
    about: Annotated[str, Query(max_length=200, description="a text that the action, or who did it, has")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[AuditAction]:
    """Administrative actions, the latest first."""
    found = request.app.state.audit.entries(from_ns=from_ns, to_ns=to_ns, about=about, limit=limit)
    return [AuditAction(**vars(entry)) for entry in found]
