"""Running the query unit: a directory, an address, and a first token for its admin."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from sojourn.core.errors import ServerError, UsageError
from sojourn.epochs.store import EpochStore, open_store
from sojourn.server.app import create_app
from sojourn.server.limits import Limits
from sojourn.server.tokens import Role, TokenStore

__all__ = ["ServeOptions", "first_token", "serve"]

BACKLOG = 2048


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where the query unit keeps its data, and where it listens."""

    data: str
    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Path | None = None
    private_key: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("TLS needs a certificate and its key", where="serve", action="give both")
        if self.certificate is not None and self.private_key is not None:
            _check_pair(self.certificate, self.private_key)

    @property
    def scheme(self) -> str:
        return "https" if self.certificate else "http"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _check_pair(certificate: Path, private_key: Path) -> None:
    """Refuse what could not be served with, before anybody is told an address."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key)
    except OSError as error:
        what = error.strerror or str(error)
        files = f"{certificate}, {private_key}"
        raise UsageError(what, where=files, action="give a certificate and its private key, both PEM") from None


def first_token(store: EpochStore) -> str | None:
    """An admin's token if there is none yet at all."""
    tokens = TokenStore(store)
    return None if tokens.all() else tokens.create(Role.ADMIN, name="first admin")[1]


def serve(options: ServeOptions, announce: Callable[[str, str | None], None]) -> None:
    """Serve until stopped; `announce` is told the URL and the first token once connections are accepted."""
    _log_to_stderr()
    store = open_store(options.data)
    try:
        listening = _listen(options)
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        announce(f"{options.scheme}://{shown}:{port}", first_token(store))
        configuration = uvicorn.Config(
            create_app(store, limits=options.limits),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=3,
            ssl_certfile=options.certificate,
            ssl_keyfile=options.private_key,
        )
        uvicorn.Server(configuration).run(sockets=[listening])
    finally:
        store.close()


def _log_to_stderr() -> None:
    """What the unit does on its own is said in the manner of all commands."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sojourn: %(message)s"))
    log = logging.getLogger("sojourn")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _listen(options: ServeOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ServerError(
            error.strerror or str(error),
            where=f"{options.host}:{options.port}",
            action="choose another --host or --port, or stop what listens there",
        ) from None
    return listening
