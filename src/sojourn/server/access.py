"""Access: every request but those for health is made with a token whose role allows it, and not too often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sojourn.server.tokens import Role, Token

__all__ = ["admins", "bearer", "everyone", "must_be_node", "nodes", "readers"]

_BEARER = HTTPBearer(auto_error=False, description="a token made by `sojourn token create`")


def bearer(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> Token:
    """The caller's token; 401 without a valid one, 429 for callers that ask too often."""
    state = request.app.state
    text = given.credentials if given else ""
    # A caller without a valid token is known by its address: guessing is slow, too.
    _charge(request, f"address {request.client.host if request.client else ''}" if not text else f"token {text[:24]}")
    token: Token | None = state.tokens.check(text) if text else None
    if token is None:
        raise HTTPException(401, "a valid token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
    return token


def _charge(request: Request, caller: str) -> None:
    seconds = request.app.state.rates.wait_seconds(caller)
    if seconds:
        raise HTTPException(429, "too many requests", {"Retry-After": str(int(seconds) + 1)})


def _allowed(*roles: Role) -> Callable[[Token], Token]:
    def check(token: Annotated[Token, Depends(bearer)]) -> Token:
        if token.role not in roles:
            raise HTTPException(403, f"this needs the role {' or '.join(roles)}, the token's is {token.role}")
        return token

    return check


admins = Depends(_allowed(Role.ADMIN))
readers = Depends(_allowed(Role.ADMIN, Role.VIEWER))
nodes = Depends(_allowed(Role.ADMIN, Role.NODE))
everyone = Depends(_allowed(Role.ADMIN, Role.VIEWER, Role.NODE))


def must_be_node(token: Token, node: str) -> None:
    """Refuse a node's token for the things of another node."""
    if token.role is Role.NODE and token.node != node:
        raise HTTPException(403, f"the token is that of node {token.node}, not {node}")
