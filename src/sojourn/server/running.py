"""Running the query unit: a directory, an address, and a first token for its admin."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from sojourn.core.errors import ServerError, UsageError, log_to_stderr
from sojourn.server.app import create_app
from sojourn.server.door.connections import BACKLOG, Door, UnitConfiguration, UnitServer, raise_descriptors
from sojourn.server.door.limits import Limits
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.tokens import Role, TokenStore, write_token

TOKEN_NAME = "admin-token"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where the query unit keeps its data, and where it listens."""

    data: str
    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Path | None = None
    private_key: Path | None = None
    limits: Limits = field(default_factory=Limits)
    forwarded_from: tuple[str, ...] = ()  # proxies whose word on where a request comes from is taken
    own_directory: Path = Path()  # where the first token goes if the data is in a database elsewhere
    graceful_seconds: int = 3

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("TLS needs a certificate and its key", where="serve", action="give both")
        if self.certificate is not None and self.private_key is not None:
            _check_pair(self.certificate, self.private_key)
        for address in self.forwarded_from:
            try:
                ip_address(address)
            except ValueError:
                raise UsageError(
                    f"{address[:60]!r} is no address",
                    where="--forwarded-from",
                    action="give a proxy's, such as 10.0.0.2",
                ) from None

    @property
    def token_directory(self) -> Path:
        """Where the first admin's token is written."""
        return self.own_directory if "://" in self.data else Path(self.data)

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
    """Refuse what could not be served with, before an address is announced."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key)
    except OSError as error:
        what = error.strerror or str(error)
        files = f"{certificate}, {private_key}"
        raise UsageError(what, where=files, action="give a certificate and its private key, both PEM") from None


def first_token(store: EpochStore, directory: Path) -> Path | None:
    """Where an admin's token was written, if there was none yet at all; only its owner can read it."""
    tokens = TokenStore(store)
    if tokens.all():
        return None
    token, text = tokens.create(Role.ADMIN, name="first admin")
    path = directory / TOKEN_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_token(path, text)
    except OSError as error:
        tokens.revoke(token.id)
        raise ServerError(
            error.strerror or str(error), where=str(path), action="the first admin's token has to be written there"
        ) from None
    return path


def make_server(store: EpochStore, door: Door, options: ServeOptions) -> UnitServer:
    """The query unit on an open store, to be run with its door as the only socket."""
    configuration = UnitConfiguration(
        create_app(store, limits=options.limits),
        door,
        proxies=options.forwarded_from,
        timeout_graceful_shutdown=options.graceful_seconds,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.private_key,
    )
    return UnitServer(configuration)


def serve(options: ServeOptions, announce: Callable[[str, Path | None], None]) -> None:
    """Serve until stopped; `announce` gets the URL and the first token's file once connections are accepted."""
    raise_descriptors()
    store = open_store(options.data)
    try:
        door = Door(options.host, options.port, proxies=options.forwarded_from)
        door.listen(BACKLOG)
        host, port = door.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        token_file = first_token(store, options.token_directory)
        log_to_stderr()  # from here on: the address is the first line of all
        announce(f"{options.scheme}://{shown}:{port}", token_file)
        server = make_server(store, door, options)
        # What is there by now stays: searching the rest for garbage is quick, so closed connections go in time.
        gc.collect()
        gc.freeze()
        server.run(sockets=[door])
    finally:
        store.close()
