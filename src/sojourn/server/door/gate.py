"""The gate that every request passes: token first, then the size of its body, and only then what it says.

Guarantee: without a valid token nothing is done for a request but those of `OPEN_PATHS`, and not a byte of its body is
read; with one whose role does not allow the route, neither. A body is counted as it comes, announced or
chunked, against the limit of its route; all bodies together, and those under one token, against limits of their own.
Uploads alone, which go to disk as they come, are not part of these: they have room of their own there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sojourn.core.errors import ServerError, SojournError, StoreError
from sojourn.server.door.access import SignIn, must_have_role, roles_of, too_many
from sojourn.server.door.allowances import Allowances, Tally
from sojourn.server.door.limits import CBOR, BusyError, Limits
from sojourn.server.queries.workers import TooLongError
from sojourn.store.tokens import Token

OPEN_PATHS = frozenset({"/", "/health", "/health/live", "/health/ready", "/openapi.json"})
MOST_FAULTS, MOST_TEXT = 5, 100
MOST_DETAIL = 1000
_EPOCHS = re.compile(r"/api/v1/(epochs|nodes/[^/]+/requests/[^/]+)/?")
_BULK = re.compile(r"/api/v1/(segments/measurements|nodes/[^/]+/collections/[^/]+/packets|topologies/[^/]+)/?")


_UPLOADS = re.compile(r"/api/v1/uploads/[^/]+/files/[^/]+/?")


Model = TypeVar("Model", bound=BaseModel)


class Front(Protocol):
    """What people see in a browser, beside the interface: paths of its own, to which it lets in by `SignIn` itself."""

    def owns(self, path: str) -> bool:
        """Whether a path is its own, and no route's."""

    async def serve(self, scope: Scope, receive: Receive, send: Send, sign_in: SignIn) -> None:
        """Answer a request, or a connection, for one of its paths."""


class Dashboard(Front, Protocol):
    """The pages of a query unit; it is asked to end with it."""

    async def close(self) -> None:
        """End what it has running."""


class Gate:
    """Middleware around all routes."""

    def __init__(
        self, app: ASGIApp, sign_in: SignIn, limits: Limits, allowances: Allowances, front: Front | None = None
    ) -> None:
        self._app = app
        self._front = front
        self._sign_in = sign_in
        self._limits = limits
        self._buffered, self._running = allowances.buffered, allowances.running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if self._front is not None and self._front.owns(scope["path"]):
            await self._front.serve(scope, receive, send, self._sign_in)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            body = await self._admitted(scope, receive)
        except HTTPException as refusal:
            answer = JSONResponse({"detail": refusal.detail}, refusal.status_code, refusal.headers)
            await answer(scope, receive, send)
            return
        except SojournError as error:
            await explain_error(error)(scope, receive, send)
            return
        try:
            await self._app(scope, body.receive, send)
        except ClientDisconnect:
            pass  # there is nobody left to answer
        finally:
            body.release()
            self._running.add(body.who, -1)

    async def _admitted(self, scope: Scope, receive: Receive) -> _Body:
        """The body of a request whose sender may make it, not read yet."""
        headers, host = Headers(scope=scope), (scope.get("client") or ("",))[0]
        if scope["path"] in OPEN_PATHS:
            self._sign_in.charge_open(host)
            self._running.add("", 1)
            return _Body(scope, receive, self._limits, self._buffered, most=0)
        token = await self._sign_in.token_of(host, _bearer(headers.get("authorization", "")))
        scope.setdefault("state", {})["token"] = token
        most = self._most_bytes(scope["path"], headers)
        # The server's own parser has refused what is no number.
        if int(headers.get("content-length", 0)) > most:
            raise _too_large(most)
        if self._running.of(token.id) >= self._limits.token_requests:
            raise too_many(1, "too many requests at once with this token")
        self._running.add(token.id, 1)
        is_kept = not _UPLOADS.fullmatch(scope["path"])
        return _Body(scope, receive, self._limits, self._buffered, most=most, token=token, is_kept=is_kept)

    def _most_bytes(self, path: str, headers: Headers) -> int:
        """The largest body of a route: what is parsed as JSON is kept small, as parsing stops everything else."""
        limits = self._limits
        if _EPOCHS.fullmatch(path):
            return limits.body_bytes
        if limits.upload_bytes and _UPLOADS.fullmatch(path):
            return limits.upload_bytes
        if not _BULK.fullmatch(path):
            return min(limits.json_bytes, limits.body_bytes)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        return limits.body_bytes if kind == CBOR else min(limits.bulk_json_bytes, limits.body_bytes)


class _Body:
    """A request's body on its way in, counted."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        limits: Limits,
        buffered: Tally,
        *,
        most: int,
        token: Token | None = None,
        is_kept: bool = True,
    ) -> None:
        self._scope, self._receive = scope, receive
        self._limits, self._buffered = limits, buffered
        self._most, self._token = most, token
        self._size = 0
        self._is_kept = is_kept  # in memory, until it was worked on
        self.who = token.id if token else ""

    async def receive(self) -> Message:
        if self._token is not None and self._size == 0:
            # The router has found the route by now, and nothing was read yet.
            must_have_role(self._token, roles_of(self._scope.get("endpoint")))
        message = await self._receive()
        if message["type"] == "http.request" and (size := len(message.get("body", b""))):
            self._count(size)
        return message

    def _count(self, size: int) -> None:
        if self._is_kept:
            self._buffered.add(self.who, size)
        self._size += size
        if self._size > self._most:
            raise _too_large(self._most)
        if self._buffered.of(self.who) > self._limits.token_buffered_bytes:
            raise too_many(1, "too many bytes at once with this token")
        if self._buffered.total() > self._limits.buffered_bytes:
            raise HTTPException(503, "too many bytes at once", {"Retry-After": "1"})

    def release(self) -> None:
        if self._size and self._is_kept:
            self._buffered.add(self.who, -self._size)


def _bearer(header: str) -> str:
    kind, _, text = header.partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body exceeds {most} bytes")


def status_of(error: SojournError) -> int:
    """The number of an error of ours: the store's are 503, what took too long 504, all others are the sender's."""
    return 504 if isinstance(error, TooLongError) else 503 if isinstance(error, StoreError | ServerError) else 400


def explain_error(error: SojournError) -> JSONResponse:
    """The answer for an error of ours."""
    headers = {"Retry-After": str(error.retry_seconds)} if isinstance(error, BusyError) else None
    return JSONResponse({"detail": str(error)[:MOST_DETAIL]}, status_of(error), headers)


async def explained_problem(_request: Request, error: Exception) -> JSONResponse:
    """A handler of errors of ours."""
    assert isinstance(error, SojournError)
    return explain_error(error)


async def explained_faults(_request: Request, error: Exception) -> JSONResponse:
    """A handler of requests that are not as described."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": explain_faults(error.errors())}, 422)


async def refused(_request: Request, error: Exception) -> JSONResponse:
    """A handler of what contradicts what is there."""
    return JSONResponse({"detail": str(error)}, 409)


def parsed(kind: type[Model], body: bytes) -> Model:
    """What a body of JSON says; 422 if it is not as described."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from None


def explain_faults(errors: Sequence[Any]) -> str:
    """What is wrong with a request, and where: one short line that repeats nothing of what was sent but names.

    >>> explain_faults([{"loc": ("body", "metric"), "msg": "Field required", "input": {"a": 1}}])
    'body.metric: Field required'
    """
    faults = [
        f"{'.'.join(str(part)[:MOST_TEXT] for part in error['loc'])[: 2 * MOST_TEXT]}: {error['msg'][: 2 * MOST_TEXT]}"
        for error in errors[:MOST_FAULTS]
    ]
    more = len(errors) - len(faults)
    return "; ".join(faults) + (f"; and {more} more" if more > 0 else "")
