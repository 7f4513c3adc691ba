"""Access: every request but those for health is made with a token whose role allows it, and not too often.

Signing in leads from a request's bearer token to who it is, at a bounded cost for those who have none. Failures are
counted by address (IPv6 by /64, which is what one customer is given). An address that has used up its failures is
refused (429) without a look into the store, whatever it presents next, unless that is a valid token: the digests of all
valid tokens are kept in memory, at most a second old, so a guesser behind the same NAT or proxy locks nobody else out
for longer than that. A token that passes is still looked up for every request; revoking is immediate.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, get_type_hints

from fastapi import Depends, Header, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sojourn.core.errors import SojournError
from sojourn.core.keys import NAME_RULE, is_name
from sojourn.server.door.allowances import Allowances
from sojourn.server.door.limits import Limits, RateLimiter, SparingLog
from sojourn.server.models import Problem
from sojourn.store.tokens import Role, Token, TokenStore, digest_of

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


# What routes depend on is asynchronous: it waits for nothing, and FastAPI would hand anything else to a thread.
async def bearer(request: Request, _given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> Token:
    """The caller's token, which the gate has checked."""
    token: Token = request.state.token
    return token


class _Allowed:
    """A dependency that lets some roles in; the gate reads them, too, before it reads a body.

    Viewers of some nodes are let in only where a route says that it shows them these alone (`keeps_scope`).
    """

    def __init__(self, *roles: Role, keeps_scope: bool = False) -> None:
        self.roles, self.keeps_scope = roles, keeps_scope

    async def __call__(self, token: Annotated[Token, Depends(bearer)]) -> Token:
        must_have_role(token, self.roles)
        if token.tags is not None and not self.keeps_scope:
            raise HTTPException(403, f"the token is for the nodes of {', '.join(token.tags)}; this is about all nodes")
        return token


admins = Depends(_Allowed(Role.ADMIN))
readers = Depends(_Allowed(Role.ADMIN, Role.VIEWER))
readers_of_some = Depends(_Allowed(Role.ADMIN, Role.VIEWER, keeps_scope=True))
nodes = Depends(_Allowed(Role.ADMIN, Role.NODE))
everyone = Depends(_Allowed(Role.ADMIN, Role.VIEWER, Role.NODE))
everyone_of_some = Depends(_Allowed(Role.ADMIN, Role.VIEWER, Role.NODE, keeps_scope=True))


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


def visible_nodes(request: Request, token: Token) -> set[str] | None:
    """The nodes that a token may see; None for all."""
    if token.tags is None:
        return None
    wanted = set(token.tags)
    return {node.name for node in request.app.state.store.nodes() if wanted.intersection(node.tags)}


def must_see(request: Request, token: Token, node: str) -> None:
    """Refuse a viewer's token for a node that it is not for; whether there is such a node is not said."""
    seen = visible_nodes(request, token)
    if seen is not None and node not in seen:
        tags = ", ".join(token.tags or ())
        raise HTTPException(403, f"the token is for the nodes of {tags}, which {node[:200]} is not one of")


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
    409: "another agent has the node's name, or another segment the name",
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
    """Write down who changed what, and from where: in the log, and in the audit log, which takes a transaction."""
    address = request.client.host if request.client else "?"
    _LOG.info("%s at %s %s", token.describe(), address, what)
    request.app.state.audit.enter(what, who=token.describe(), address=address)


REFRESH_SECONDS = 1.0


def address_group(host: str) -> str:
    """What failures and connections are counted by: an IPv4 address, or an IPv6 network of 64 bits.

    >>> address_group("10.0.0.7"), address_group("2001:db8::1:2"), address_group("::ffff:10.0.0.7")
    ('10.0.0.7', '2001:db8::/64', '10.0.0.7')
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host[:64]
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached there.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("broker.example")
    (True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def too_many(seconds: float, what: str) -> HTTPException:
    """A refusal that says when to come back."""
    return HTTPException(429, what, {"Retry-After": str(int(seconds) + 1)})


class SignIn:
    """Who a request comes from; used from the event loop alone, the store is asked in `workers`."""

    def __init__(
        self,
        tokens: TokenStore,
        limits: Limits,
        workers: Executor,
        allowances: Allowances,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._workers = workers
        self._clock = clock
        self._valid: set[bytes] = set()
        self._refreshed = float("-inf")
        self._requests, self._failures = allowances.requests, allowances.failures
        self._open = RateLimiter(limits.requests_per_second, limits.burst, callers=limits.callers)
        self._failed = SparingLog(_LOG, clock=clock)

    def charge_open(self, host: str) -> None:
        """Let an address make a request that needs no token, or 429."""
        if seconds := self._open.wait_seconds(address_group(host)):
            raise too_many(seconds, "too many requests")

    async def token_of(self, host: str, text: str) -> Token:
        """The valid token that a text is; 401 if it is none, 429 after too many requests or failures."""
        group, digest = address_group(host), digest_of(text)
        token = None
        if digest is not None and digest in self._valid:
            token = await self._known(digest, text)
        elif not (seconds := self._failures.wait_seconds(group)):
            try:
                token = await self._new(digest, text)
            except SojournError:
                self._failures.give_back(group)  # nobody failed to sign in: the store did not answer
                raise
            if token is not None:
                self._failures.give_back(group)
        elif digest is not None and await self._is_valid(digest):
            token = await self._known(digest, text)
        else:
            raise too_many(seconds, "too many failed sign-ins from this address")
        if token is None:
            # Never what was presented.
            self._failed.warn(f"sign-in failed from {group} with {'an invalid token' if text else 'no token'}")
            raise HTTPException(401, await self._reason(digest, text), {"WWW-Authenticate": "Bearer"})
        return token

    async def _reason(self, digest: bytes | None, text: str) -> str:
        """Why a text is no valid token; that one was valid is told to nobody but who has its secret."""
        loop = asyncio.get_running_loop()
        known = None if digest is None else await loop.run_in_executor(self._workers, self._tokens.look, text)
        ended = None if known is None else known.ended(time.time_ns())
        if ended is None:
            return "a valid token is needed: Authorization: Bearer TOKEN"
        return f"{ended}; ask for another one (sojourn token rotate, or create)"

    async def _known(self, digest: bytes, text: str) -> Token | None:
        """A token that was valid a moment ago."""
        self._charge(digest)
        token = await self._looked_up(text)
        if token is None:
            self._valid.discard(digest)
        return token

    async def _new(self, digest: bytes | None, text: str) -> Token | None:
        """A text that was not seen as a token before; its address has been charged for a failure."""
        token = None if digest is None else await self._looked_up(text)
        if digest is not None and token is not None:
            self._valid.add(digest)
            self._charge(digest)
        return token

    def _charge(self, digest: bytes) -> None:
        if seconds := self._requests.wait_seconds(digest):
            raise too_many(seconds, "too many requests")

    async def _looked_up(self, text: str) -> Token | None:
        return await asyncio.get_running_loop().run_in_executor(self._workers, self._tokens.check, text)

    async def _is_valid(self, digest: bytes) -> bool:
        """Whether a digest is one of a valid token's, read again at most once a second."""
        now = self._clock()
        if now - self._refreshed >= REFRESH_SECONDS:
            self._refreshed = now
            loop = asyncio.get_running_loop()
            self._valid = set(await loop.run_in_executor(self._workers, self._tokens.valid_digests))
        return digest in self._valid
