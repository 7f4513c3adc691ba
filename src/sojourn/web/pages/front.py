"""The way in to the dashboard: who may see its pages, and what they may load.

Guarantee: nothing but the form to sign in is shown without a valid token of a role that may read. The token is looked
up for every page, under the limits and the count of failed sign-ins of the interface (`SignIn`), and every
`WATCH_SECONDS` for as long as a page is open: one that was revoked ends its pages by itself. Pages get what they show
from the interface itself (`Unit`), with their viewer's token, so they show nobody what the interface would not.

A page may load from this host alone (Content-Security-Policy): scripts are those of this host, and those in the page
that carry its nonce. Vue compiles templates as it runs, for which ``unsafe-eval`` is needed; styles are set by scripts,
for which ``unsafe-inline`` is, of styles alone. What changes something, and sockets, come from a page of this host.

Cost: nothing of NiceGUI is imported before the first visit, which takes about a second longer for it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from fastapi import FastAPI, HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from sojourn.core.errors import SojournError
from sojourn.server.door.access import SignIn, must_have_role, too_many
from sojourn.server.door.gate import status_of
from sojourn.server.door.limits import RateLimiter
from sojourn.store.tokens import Role, Token
from sojourn.web.pages.plain import refusal_page, sign_in_page
from sojourn.web.pages.sessions import MOST_SESSIONS, Session, Sessions, cookie_of, set_cookie

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from sojourn.web.uploads.desk import UploadDesk, UploadOptions

REPORT = "/report"  # of an upload: a page of its own, not one of the site
PAGES = (
    *("/", "/segments", "/segment", "/nodes", "/node", "/query", "/collections", "/collection"),
    *("/networks", "/network", "/captures", REPORT),
)
SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
ICON = "/favicon.ico"
OWN_FILES = {"style.css": "text/css", "script.js": "text/javascript", "icon.svg": "image/svg+xml"}
OWN, SOCKET = "/_sojourn/", "/_nicegui_ws/"
# What a page may have its browser send: files, which it streams to the interface with its session's token.
SEND = "/_sojourn/send"
_SENDABLE = re.compile(r"/api/v1/(?:topologies/[^/]+|uploads(?:/[^/]+){0,3})")
STILL_OPEN = "/_sojourn/session"
# A page is kept here for a minute if its browser never connects: a token may open so many.
PAGES_PER_SECOND, PAGES_AT_ONCE = 2.0, 60
READERS = (Role.ADMIN, Role.VIEWER)
WATCH_SECONDS = 5.0
MOST_FORM_BYTES = 4096
_PREFIXES = ("/_nicegui/", SOCKET, OWN)
_ASSETS = Path(__file__).parent / "assets"
_FROM_HERE = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; font-src 'self' data:; style-src 'self' "
    "'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; script-src 'self'"
)
# A report runs its own script, which its page names by a digest, and nothing of it reaches this site or its session.
_OF_REPORT = (
    "sandbox allow-scripts allow-downloads allow-popups; default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class PageFront:
    """The pages of one query unit, whose application they ask; belongs to one event loop, and one to a process."""

    def __init__(self, unit: FastAPI, *, uploads: UploadOptions | None = None) -> None:
        self._unit = unit
        self.takes_uploads = uploads is not None
        self._desk: UploadDesk | None = None
        if uploads is not None:
            from sojourn.web.uploads.desk import UploadDesk
            from sojourn.web.uploads.routes import router

            self._desk = unit.state.uploads = UploadDesk(uploads)
            unit.include_router(router)
        self.sessions = Sessions()
        self._sockets: Counter[str] = Counter()
        self._opened = RateLimiter(PAGES_PER_SECOND, PAGES_AT_ONCE, callers=MOST_SESSIONS)
        self._site: ASGIApp | None = None
        self._starting = asyncio.Lock()
        self._running = AsyncExitStack()

    def owns(self, path: str) -> bool:
        """Whether a path is one of the dashboard's."""
        return path in PAGES or path in (SIGN_IN, SIGN_OUT, ICON) or path.startswith(_PREFIXES)

    async def close(self) -> None:
        """End what pages have running."""
        await self._running.aclose()
        if self._desk is not None:
            await run_in_threadpool(self._desk.close)

    async def serve(self, scope: Scope, receive: Receive, send: Send, sign_in: SignIn) -> None:
        """Answer a browser."""
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send, sign_in)
            return
        if scope["type"] == "http":
            guarded = _Guarded(send)
            answer = await self._answer(scope, receive, guarded, sign_in)
            if answer is not None:
                await answer(scope, receive, guarded)

    async def _answer(self, scope: Scope, receive: Receive, send: _Guarded, sign_in: SignIn) -> Response | None:
        """What to answer with; None if the site has answered."""
        path = scope["path"]
        session: Session | None = None
        try:
            if path in (SIGN_IN, SIGN_OUT):
                sign_in.charge_open(_host(scope))
                if scope["method"] == "POST":
                    return await self._change(scope, receive, sign_in)
                return sign_in_page(next_path=self._next(_asked(scope, "next")))
            session = self.sessions.find(cookie_of(Headers(scope=scope).get("cookie", "")))
            if path.startswith(f"{SEND}/"):
                return await self._sent(scope, receive, send, session)
            if scope["method"] not in ("GET", "HEAD"):
                return refusal_page(405, "pages are asked for with GET")
            if (answer := await self._before_site(scope, session, sign_in)) is not None:
                send.policy = _OF_REPORT if path == REPORT and answer.status_code == 200 else send.policy
                return answer
        except HTTPException as refusal:
            if refusal.status_code == 401:
                if session is not None:
                    self.sessions.end(session)
                return sign_in_page(next_path=self._next(_whole(scope)), problem=refusal.detail, status=401)
            return refusal_page(refusal.status_code, refusal.detail, refusal.headers)
        except SojournError as error:
            return refusal_page(status_of(error), str(error))
        await self._shown(scope, receive, send, session)
        return None

    async def _before_site(self, scope: Scope, session: Session | None, sign_in: SignIn) -> Response | None:
        """What is answered without the site; None if that is for it to do."""
        path = scope["path"]
        if path.startswith(_PREFIXES) or path == ICON:
            sign_in.charge_open(_host(scope))  # no token is looked up for each piece of a page
            return self._file(path, session)
        if session is None:
            return RedirectResponse(f"{SIGN_IN}?next={quote(_whole(scope))}", 303)
        token = await self._token(session, _host(scope), sign_in)
        if seconds := self._opened.wait_seconds(token.id):
            raise too_many(seconds, "too many pages at once with this token")
        return self._report(_asked(scope, "id"), token) if path == REPORT else None

    def _report(self, name: str, token: Token) -> Response:
        """The report of an upload."""
        if self._desk is None:
            raise HTTPException(404, "this query unit takes no uploads; start it with --uploads SIZE")
        from sojourn.web.uploads.routes import report_of

        return report_of(self._desk, name, token)

    async def _sent(self, scope: Scope, receive: Receive, send: _Guarded, session: Session | None) -> Response | None:
        """What a page's script sends, handed on to the interface as the session's token may."""
        path = scope["path"].removeprefix(SEND)
        if session is None:
            return PlainTextResponse("sign in first\n", 401)
        if not _is_own(Headers(scope=scope), needs_origin=True):
            return PlainTextResponse("this came from a page of another site\n", 403)
        if scope["method"] not in ("POST", "PUT", "DELETE") or not _SENDABLE.fullmatch(path):
            return PlainTextResponse("pages do not send this\n", 405)
        await self._forward(scope, receive, send, session, quote(path))
        return None

    async def _forward(self, scope: Scope, receive: Receive, send: _Guarded, session: Session, path: str) -> None:
        """Have the interface answer, under the same roles and limits as any client with the session's token."""
        own = (b"authorization", b"cookie")
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in own]
        headers.append((b"authorization", f"Bearer {session.text}".encode()))
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        asked = {**scope, "method": method, "path": unquote(path), "raw_path": path.encode(), "headers": headers}
        await self._unit({**asked, "state": dict(scope.get("state", {}))}, receive, send)

    def _file(self, path: str, session: Session | None) -> Response | None:
        """A file of ours, or why there is none; None if it is for the site to give."""
        if path == STILL_OPEN:
            return Response(status_code=401 if session is None or session.has_ended else 204)
        if path.startswith(OWN) or path == ICON:
            return _own_file(path)
        if session is None or path.startswith(SOCKET):  # what is not a socket is no use there
            return PlainTextResponse("sign in first\n", 401)
        return None

    async def _shown(self, scope: Scope, receive: Receive, send: _Guarded, session: Session | None) -> None:
        # Where the site lies is for the site to say, not for a browser.
        left_out = (b"x-forwarded-prefix", b"accept-encoding")
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in left_out]
        site = await self._started()
        send.is_of_site = True
        state = {**scope.get("state", {}), "session": session, "front": self}
        await site({**scope, "headers": headers, "state": state}, receive, send)

    async def _token(self, session: Session, host: str, sign_in: SignIn) -> Token:
        """The token of a session, looked up now; 401 if it is not valid any more."""
        try:
            session.token = await sign_in.token_of(host, session.text)
        except HTTPException as refusal:
            session.has_ended = refusal.status_code == 401
            raise
        must_have_role(session.token, READERS)
        return session.token

    async def _change(self, scope: Scope, receive: Receive, sign_in: SignIn) -> Response:
        """Somebody signs in or out."""
        headers = Headers(scope=scope)
        if not _is_own(headers, needs_origin=False):
            return refusal_page(403, "this came from a page of another site")
        is_secure = scope.get("scheme") == "https"
        session = self.sessions.find(cookie_of(headers.get("cookie", "")))
        if scope["path"] == SIGN_OUT:
            if session is not None:
                self.sessions.end(session)
            return RedirectResponse(SIGN_IN, 303, {"set-cookie": set_cookie("", is_secure=is_secure)})
        form = QueryParams(await _body(receive))
        text, following = form.get("token", "").strip(), self._next(form.get("next", "/"))
        try:
            token = await sign_in.token_of(_host(scope), text)
            must_have_role(token, READERS)
        except HTTPException as refusal:
            problem = refusal.detail
            if refusal.status_code == 401 and "a valid token is needed" in problem:
                problem = "This is no valid token."
            page = sign_in_page(next_path=following, problem=problem, status=refusal.status_code)
            page.headers.update(refusal.headers or {})
            return page
        if session is not None:
            self.sessions.end(session)
        session = self.sessions.open(text, token)
        return RedirectResponse(following, 303, {"set-cookie": set_cookie(session.key, is_secure=is_secure)})

    def _next(self, asked: str) -> str:
        """Where to go after signing in: a page of ours, whatever was asked for."""
        try:
            parts = urlsplit(asked if asked.isprintable() and "\\" not in asked else "/")
        except ValueError:
            return "/"
        is_page = not parts.scheme and not parts.netloc and parts.path in PAGES
        return f"{parts.path}?{parts.query}" if is_page and parts.query else parts.path if is_page else "/"

    async def _connect(self, scope: Scope, receive: Receive, send: Send, sign_in: SignIn) -> None:
        """A page's socket, for as long as its session is good."""
        headers = Headers(scope=scope)
        session = self.sessions.find(cookie_of(headers.get("cookie", "")))
        most = self._unit.state.limits.token_requests
        is_welcome = session is not None and _is_own(headers, needs_origin=True) and scope["path"].startswith(SOCKET)
        if session is None or not is_welcome or self._sockets[session.token.id] >= most:
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            token = await self._token(session, _host(scope), sign_in)
        except (HTTPException, SojournError):
            await send({"type": "websocket.close", "code": 1008})
            return
        self._sockets[token.id] += 1
        try:
            site = await self._started()
            await _while_good(site, scope, receive, send, lambda: self._is_good(session, _host(scope), sign_in))
        finally:
            self._sockets[token.id] -= 1
            if not self._sockets[token.id]:
                del self._sockets[token.id]

    async def _is_good(self, session: Session, host: str, sign_in: SignIn) -> bool:
        """Whether a session that has a page open may keep it."""
        if self.sessions.find(session.key) is None:
            return False
        try:
            await self._token(session, host, sign_in)
        except HTTPException as refusal:
            return refusal.status_code == 429  # too much at once says nothing against the token
        except SojournError:
            pass  # the store does not answer: nor will it answer what the page asks
        return True

    async def _started(self) -> ASGIApp:
        async with self._starting:
            if self._site is None:
                site = await run_in_threadpool(_import_site)
                await self._running.enter_async_context(site.router.lifespan_context(site))
                self._site = site
        return self._site

    @property
    def unit(self) -> FastAPI:
        """The application that answers what pages ask."""
        return self._unit


def _import_site() -> FastAPI:
    from sojourn.web.pages.site import make_site

    return make_site()


class _Guarded:
    """Sends an answer with the headers that keep a page to this host."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_of_site = False  # whose pages have scripts in them
        self.policy = _FROM_HERE
        self._nonce = secrets.token_urlsafe(18)
        self._start: Message | None = None
        self._page: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            headers.update(_HEADERS)
            is_page = self.is_of_site and headers.get("content-type", "").startswith("text/html")
            nonce = f" 'nonce-{self._nonce}' 'unsafe-eval'" if is_page else ""
            headers["content-security-policy"] = f"{self.policy}{nonce}"
            if headers.get("content-type", "").startswith("text/html"):
                headers["cache-control"] = "no-store"
            if not is_page:
                await self._send(message)
                return
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._page.append(message.get("body", b""))
            if not message.get("more_body", False):
                # Within the page `<` of anybody else's text is escaped: every tag is the site's own.
                page = b"".join(self._page).replace(b"<script", f'<script nonce="{self._nonce}"'.encode())
                MutableHeaders(raw=self._start["headers"])["content-length"] = str(len(page))
                await self._send(self._start)
                await self._send({"type": "http.response.body", "body": page})


async def _while_good(
    site: ASGIApp, scope: Scope, receive: Receive, send: Send, is_good: Callable[[], Coroutine[Any, Any, bool]]
) -> None:
    """Let a socket be used until its session is good no more."""

    async def watch() -> None:
        while await is_good():
            await asyncio.sleep(WATCH_SECONDS)
        with suppress(Exception):  # it may have gone in the meantime
            await send({"type": "websocket.close", "code": 1008})

    watching = asyncio.create_task(watch())

    async def receive_while_good() -> Message:
        if watching.done():
            return {"type": "websocket.disconnect", "code": 1008}
        return await receive()

    try:
        await site(scope, receive_while_good, send)
    finally:
        watching.cancel()


def _own_file(path: str) -> Response:
    name = "icon.svg" if path == ICON else path.removeprefix(OWN)
    if name not in OWN_FILES:
        return PlainTextResponse("there is no such file\n", 404)
    return FileResponse(_ASSETS / name, media_type=OWN_FILES[name], headers={"cache-control": "no-cache"})


def _host(scope: Scope) -> str:
    return (scope.get("client") or ("",))[0]


def _whole(scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    return f"{scope['path']}?{query}" if query else str(scope["path"])


def _asked(scope: Scope, name: str) -> str:
    return QueryParams(scope["query_string"]).get(name, "/")


def _is_own(headers: Headers, *, needs_origin: bool) -> bool:
    """Whether a request comes from a page of this host, as far as the browser says."""
    origin = headers.get("origin")
    if origin is None:
        return not needs_origin and headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""


async def _body(receive: Receive) -> bytes:
    """A form's few bytes; 413 beyond them."""
    body: bytes = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if len(body) > MOST_FORM_BYTES:
            raise HTTPException(413, f"the form exceeds {MOST_FORM_BYTES} bytes")
        if message["type"] != "http.request" or not message.get("more_body", False):
            return body
