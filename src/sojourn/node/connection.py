"""The connection to a query unit: its address, its headers, and its word for what is wrong."""

from __future__ import annotations

import httpx

from sojourn import __version__
from sojourn.core.errors import UsageError

__all__ = ["checked_address", "connect", "detail_of"]

MOST_DETAIL = 300


def checked_address(server: str, *, where: str) -> str:
    """The address without a slash at its end, if it is one.

    >>> checked_address("http://127.0.0.1:8080/", where="server")
    'http://127.0.0.1:8080'
    """
    if not server.startswith(("http://", "https://")):
        raise UsageError(f"{server!r} is no address of a server", where=where, action="write http://HOST:PORT")
    return server.rstrip("/")


def connect(server: str, token: str, *, timeout_seconds: float) -> httpx.Client:
    """A client that makes its requests to a checked address with a token."""
    headers = {"Authorization": f"Bearer {token}", "User-Agent": f"sojourn/{__version__}"}
    return httpx.Client(base_url=server, headers=headers, timeout=timeout_seconds)


def detail_of(response: httpx.Response) -> str:
    """The server's own word for why it refused."""
    try:
        return str(response.json()["detail"])[:MOST_DETAIL]
    except (ValueError, KeyError, TypeError):
        return response.text[:100]
