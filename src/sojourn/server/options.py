"""What a query unit is told when it is started, checked before anything starts."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from fastapi import FastAPI

from sojourn.core.errors import UsageError
from sojourn.server.door.access import is_loopback
from sojourn.server.door.gate import Dashboard
from sojourn.server.door.limits import Limits
from sojourn.server.ingest.link import BrokerOptions

# Beyond this the planning process, through which all else goes, is what is waited for.
MOST_WORKERS = 32


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
    graceful_seconds: int = 30  # what is under way when it is asked to end may take
    logs_json: bool = False
    broker: BrokerOptions | None = None
    dashboard: Callable[[FastAPI], Dashboard] | None = None
    workers: int = 0  # processes that take epochs beside the one that plans; none: one process does all

    def __post_init__(self) -> None:
        if not 0 <= self.workers <= MOST_WORKERS:
            raise UsageError(
                f"{self.workers} processes cannot take epochs",
                where="--workers",
                action=f"give 1 to {MOST_WORKERS}, at most one for each processor; 0: one process does all",
            )
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("TLS needs a certificate and its key", where="serve", action="give both")
        if self.certificate is not None and self.private_key is not None:
            check_pair(self.certificate, self.private_key)
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
        return is_loopback(self.host)


def check_pair(certificate: Path, private_key: Path) -> None:
    """Refuse what could not be served with, before an address is announced."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key)
    except OSError as error:
        what = error.strerror or str(error)
        files = f"{certificate}, {private_key}"
        raise UsageError(what, where=files, action="give a certificate and its private key, both PEM") from None
