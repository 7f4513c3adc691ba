"""One request to a query unit and its answer, checked before anybody uses it.

Guarantee: what `exchange` returns was answered by a query unit as far as that can be seen: a status of success, JSON by
its content type, complete, and no larger than the limit, which is checked before a body is read and while it is. All
else is a `TransportError` that says what came instead (a redirect, a login page, another program's JSON), since it may
be gone at the next try; only a refusal in the query unit's own words is a `RefusedError`.
Cost: the body in memory once, at most `most_bytes`; at most `seconds` for the whole of it, however slowly it comes.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from http.client import BadStatusLine, HTTPException, HTTPResponse
from json import dumps as encode_json
from pathlib import Path
from typing import Any

from sojourn import __version__
from sojourn.core.errors import UsageError
from sojourn.node.transports.connections import HttpConnections, Request, pieces
from sojourn.node.transports.forms import not_ours, parsed
from sojourn.node.transports.transport import NoAnswerError, RefusedError, TransportError, refusal

MOST_DETAIL = 300
MOST_TOKEN = 1000
JSON = "application/json"
# Of an answer that is no success only so much is read: enough for any word of a query unit.
MOST_REFUSAL_BYTES = 1 << 16


def exchange(
    connections: HttpConnections,
    server: str,
    method: str,
    path: str,
    *,
    seconds: float,
    most_bytes: int,
    may_be_empty: bool = False,
    **how: Any,
) -> Any:
    """The answer's JSON; None for an answer without content, where there may be one.

    ``how`` has ``headers``, ``params``, and ``json`` or ``content``.
    """
    request = _request(method, path, **how)
    deadline = time.monotonic() + seconds
    try:
        with connections.response(request, seconds=seconds) as response:
            if response.status == 204 and may_be_empty:
                return None
            return _answer(response, server, most_bytes, deadline)
    except TimeoutError:
        raise NoAnswerError(f"did not answer within {seconds:g} s", where=server, action="is it overloaded?") from None
    except (HTTPException, OSError) as error:
        raise _out_of_reach(error, server) from None


def _request(
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    json: object = None,
    content: bytes | None = None,
) -> Request:
    # A compressed body could be any size once it is unpacked.
    all_headers = {**(headers or {}), "Accept": JSON, "Accept-Encoding": "identity"}
    if json is not None:
        content = encode_json(json, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        all_headers["Content-Type"] = JSON
    return Request(method=method, path=path, params=params, body=content, headers=all_headers)


def _out_of_reach(error: Exception, server: str) -> TransportError:
    # Its status line is what a server of another kind sends first.
    what = "no HTTP comes back" if isinstance(error, BadStatusLine) and not isinstance(error, OSError) else str(error)
    what = " ".join(what.split())[:MOST_DETAIL] or type(error).__name__
    return TransportError(f"cannot be reached ({what})", where=server, action="is it running?")


def _answer(response: HTTPResponse, server: str, most_bytes: int, deadline: float) -> Any:
    status = response.status
    if 300 <= status < 400:
        to = response.headers.get("location", "nowhere")[:MOST_DETAIL]
        raise TransportError(
            f"answered {status}, a redirect to {to}", where=server, action="give the query unit's own address"
        )
    if not 200 <= status < 300:
        raise _refusal(status, _detail(response, server, deadline), server)
    if not _is_json(response):
        raise not_ours(server, f"a page, not with JSON (status {status}, {_kind(response)})")
    return parsed(_body(response, server, most_bytes, deadline), server)


def _refusal(status: int, detail: str | None, server: str) -> TransportError | RefusedError:
    if detail is None:
        return not_ours(server, f"{status} and a page, not with JSON")
    return refusal(status, detail, server)


def _detail(response: HTTPResponse, server: str, deadline: float) -> str | None:
    """The query unit's own word for why it refused; None where the answer is somebody else's."""
    if not _is_json(response):
        return None
    try:
        answer = parsed(_body(response, server, MOST_REFUSAL_BYTES, deadline), server)
    except TransportError:
        return None
    if not isinstance(answer, dict) or "detail" not in answer:
        return None
    return " ".join(str(answer["detail"]).split())[:MOST_DETAIL]


def _is_json(response: HTTPResponse) -> bool:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    return _kind(response) == JSON and encoding in ("", "identity")


def _kind(response: HTTPResponse) -> str:
    content_type: str = response.headers.get("content-type") or "no content type"
    return content_type.partition(";")[0].strip().lower()[:60]


def _body(response: HTTPResponse, server: str, most: int, deadline: float) -> bytes:
    length = response.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise not_ours(server, f"{int(length):,} bytes, more than the {most:,} of any answer to this")
    body = bytearray()
    for piece in pieces(response):
        body += piece
        if len(body) > most:
            raise not_ours(server, f"more than the {most:,} bytes of any answer to this")
        if time.monotonic() > deadline:
            raise NoAnswerError("did not finish its answer in time", where=server, action="is it overloaded?")
    return bytes(body)


def checked_address(server: str, *, where: str) -> str:
    """The address without a slash at its end, if it is one.

    >>> checked_address("http://127.0.0.1:8080/", where="server")
    'http://127.0.0.1:8080'
    """
    if not server.startswith(("http://", "https://")):
        raise UsageError(f"{server!r} is no address of a server", where=where, action="write http://HOST:PORT")
    return server.rstrip("/")


def connect(server: str, token: str, *, ca_file: Path | None = None) -> HttpConnections:
    """Connections that make their requests to a checked address with a token; they trust the system's certificates, or
    a file's instead."""
    headers = {"Authorization": f"Bearer {token}", "User-Agent": f"sojourn/{__version__}"}
    return HttpConnections(server, headers, tls=None if ca_file is None else trusting(ca_file))


def trusting(ca_file: Path) -> ssl.SSLContext:
    """TLS that trusts the certificates of a file."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        what = "no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise UsageError(what, where=str(ca_file), action="give the file of the server's CA, PEM") from None


def read_token(path: Path) -> str:
    """The token in a file."""
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(MOST_TOKEN).strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror or str(error) if isinstance(error, OSError) else "this is not a token"
        raise UsageError(what, where=str(path), action="give the file with a token") from None
    if not token or not token.isprintable() or " " in token:
        raise UsageError("there is no token in it", where=str(path), action="sojourn token create makes one")
    return token
