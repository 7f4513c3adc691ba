"""Access: every request but those for health is made with a token whose role allows it, and not too often."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, get_type_hints

from fastapi import Depends, Header, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sojourn.core.keys import NAME_RULE, is_name
from sojourn.server.models.fleet import Problem
from sojourn.store.tokens import Role, Token

Instance = Annotated[
    str | None,
    Header(
        alias="Sojourn-Instance",
        pattern="^[0-9a-f]{8,64}$",
        description="which of the agents with the node's name it is; the same as long as its spool is kept",
    ),
]

_BEARER = HTTPBearer(auto_error=False, description="a token made by `sojourn token create`")
_LOG = logging.getLogger("sojourn.access")


def bearer(request: Request, _given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> Token:
    """The caller's token, which the gate has checked."""
    token: Token = request.state.token
    return token


class _Allowed:
    """A dependency that lets some roles in; the gate reads them, too, before it reads a body."""

    def __init__(self, *roles: Role) -> None:
        self.roles = roles

    def __call__(self, token: Annotated[Token, Depends(bearer)]) -> Token:
        must_have_role(token, self.roles)
        return token


admins = Depends(_Allowed(Role.ADMIN))
readers = Depends(_Allowed(Role.ADMIN, Role.VIEWER))
nodes = Depends(_Allowed(Role.ADMIN, Role.NODE))
everyone = Depends(_Allowed(Role.ADMIN, Role.VIEWER, Role.NODE))


@lru_cache(maxsize=1000)
def roles_of(endpoint: Callable[..., Any] | None) -> tuple[Role, ...]:
    """The roles that may use a route, after its function's parameters; none if it names none."""
    hints = get_type_hints(endpoint, include_extras=True) if endpoint else {}
    for hint in hints.values():
        for note in getattr(hint, "__metadata__", ()):
            allowed = getattr(note, "dependency", None)
            if isinstance(allowed, _Allowed):
                return allowed.roles
    return ()


def must_have_role(token: Token, roles: tuple[Role, ...]) -> None:
    """Refuse a token of any other role."""
    if token.role not in roles:
        raise HTTPException(403, f"this needs the role {' or '.join(roles)}, the token's is {token.role}")


def must_be_node(token: Token, node: str) -> None:
    """Refuse a node's token for the things of another node."""
    if token.role is Role.NODE and token.node != node:
        raise HTTPException(403, f"the token is that of node {token.node}, not {node[:200]}")


def checked_name(name: str) -> str:
    """The name of a node, stream, tag or collection; 400 if nothing can be called so."""
    if not is_name(name):
        raise HTTPException(400, f"a name has {NAME_RULE}")
    return name


_PROBLEMS = {
    400: "what was sent or asked cannot be",
    401: "no valid token",
    403: "the role does not allow it, or it is another node's",
    404: "it is not there, or nobody waits for it",
    409: "another agent has the node's name",
    413: "too large",
    422: "not as described here",
    429: "too many requests",
    503: "the store does not answer, or there is too much to do; see Retry-After",
    504: "it took too long, and was ended",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route may refuse, for its description."""
    return {status: {"model": Problem, "description": _PROBLEMS[status]} for status in statuses}


def log_action(request: Request, token: Token, what: str) -> None:
    """Write down who changed what, and from where."""
    _LOG.info("%s at %s %s", token.describe(), request.client.host if request.client else "?", what)
