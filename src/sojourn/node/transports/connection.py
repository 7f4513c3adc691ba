"""The connection to a query unit: its address and its headers."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from sojourn import __version__
from sojourn.core.errors import UsageError

__all__ = ["checked_address", "connect", "read_token", "trusting"]

MOST_TOKEN = 1000


def checked_address(server: str, *, where: str) -> str:
    """The address without a slash at its end, if it is one.

    >>> checked_address("http://127.0.0.1:8080/", where="server")
    'http://127.0.0.1:8080'
    """
    if not server.startswith(("http://", "https://")):
        raise UsageError(f"{server!r} is no address of a server", where=where, action="write http://HOST:PORT")
    return server.rstrip("/")


def connect(server: str, token: str, *, timeout_seconds: float, ca_file: Path | None = None) -> httpx.Client:
    """A client that makes its requests to a checked address with a token; it trusts the system's certificates, or a
    file's instead."""
    headers = {"Authorization": f"Bearer {token}", "User-Agent": f"sojourn/{__version__}"}
    verify = True if ca_file is None else trusting(ca_file)
    return httpx.Client(base_url=server, headers=headers, timeout=timeout_seconds, verify=verify)


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
