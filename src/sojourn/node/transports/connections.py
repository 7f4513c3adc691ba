"""Connections by HTTP/1.1 that are kept open and used again: the standard library's, which take little memory.

Guarantee: safe from several threads, each request has a connection to itself. One that was kept is used again only if
the other end has not closed it meanwhile; nothing is sent twice. Proxies are those of the environment (``http_proxy``,
``https_proxy``, ``all_proxy``, ``no_proxy``), reached by HTTP; redirects are not followed. Cost: 2 MB with TLS for the
process, a socket for each request at a time.
"""

from __future__ import annotations

import os
import select
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from sojourn.core.errors import UsageError

# What may stand in a path; what is quoted already stays as it is.
_IN_PATHS = "/%:@!$&'()*+,;=~"
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for; ``params`` follow the path behind a question mark."""

    method: str
    path: str
    params: Mapping[str, Any] | None = None
    body: bytes | None = None
    headers: Mapping[str, str]

    @property
    def target(self) -> str:
        """The path with its parameters, as it is sent."""
        path = quote(self.path, safe=_IN_PATHS)
        if not self.params:
            return path
        return f"{path}?{urlencode({name: _texts(value) for name, value in self.params.items()}, doseq=True)}"


def _texts(value: Any) -> list[str]:
    """A parameter as it is written; of a list, each.

    >>> _texts(True), _texts([1, 2])
    (['true'], ['1', '2'])
    """
    items = value if isinstance(value, list | tuple) else [value]
    return ["" if item is None else str(item).lower() if isinstance(item, bool) else str(item) for item in items]


class NotConnectedError(OSError):
    """The other end could not be reached."""


class HttpConnections:
    """Connections to one server, at an address that was checked; headers go with every request."""

    def __init__(self, server: str, headers: Mapping[str, str], *, tls: ssl.SSLContext | None = None) -> None:
        self._to = urlsplit(server)
        self.headers = dict(headers)  # another token may come to be used
        self._is_tls = self._to.scheme == "https"
        self._tls = (tls or ssl.create_default_context()) if self._is_tls else None
        self._proxy = _proxy_for(self._to)
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close what is not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def response(self, request: Request, *, seconds: float) -> Iterator[HTTPResponse]:
        """The answer to a request, whose body is still to be read; each wait takes at most some seconds."""
        connection = self._taken(seconds)
        is_kept = False
        try:
            target = self._to.path + request.target
            if self._proxy is not None and not self._is_tls:
                target = f"http://{self._to.netloc.rpartition('@')[2]}{target}"
            headers = {**self.headers, **self._for_proxy(), **request.headers}
            connection.request(request.method, target, request.body, headers)
            with connection.getresponse() as response:
                yield response
                # What is left of a body would be taken for the next answer.
                is_kept = not response.will_close and (response.isclosed() or response.length == 0)
        finally:
            if is_kept:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()

    def _taken(self, seconds: float) -> HTTPConnection:
        """A connection that nobody else has: one that was kept and is still open, or a new one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connected(seconds)
            if connection.sock is not None and not _has_ended(connection.sock):
                connection.sock.settimeout(seconds)
                return connection
            connection.close()

    def _connected(self, seconds: float) -> HTTPConnection:
        host, port = self._to.hostname or "", self._to.port
        at = (host, port) if self._proxy is None else (self._proxy.hostname or "", self._proxy.port or 80)
        if self._tls is None:
            connection = HTTPConnection(*at, timeout=seconds)
        else:
            connection = HTTPSConnection(*at, timeout=seconds, context=self._tls)
            if self._proxy is not None:
                connection.set_tunnel(host, port or 443, headers=_authorization(self._proxy))
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            connection.close()
            raise NotConnectedError(str(error)) from None
        return connection

    def _for_proxy(self) -> dict[str, str]:
        return {} if self._proxy is None or self._is_tls else _authorization(self._proxy)


def pieces(response: HTTPResponse) -> Iterator[bytes]:
    """A body as it comes."""
    while piece := response.read1(_PIECE_BYTES):
        yield piece


def _has_ended(sock: Any) -> bool:
    """Whether the other end has closed a connection on which nothing is awaited."""
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    return bool(waiting.poll(0))


def _proxy_for(to: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for an address."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    address = proxies.get(to.scheme) or proxies.get("all")
    if not address or proxy_bypass(to.netloc.rpartition("@")[2]):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http":
        raise UsageError(
            f"the environment's proxy is at {proxy.scheme}://", where="proxy", action="give one at http://, or no_proxy"
        )
    return proxy


def _authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    named = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(named.encode()).decode()}"}
