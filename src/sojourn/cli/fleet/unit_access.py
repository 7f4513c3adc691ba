"""How commands reach a query unit: its address, a token, and whose certificates to trust."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from sojourn.client.collections import SinkClient
    from sojourn.client.query_unit import Client
    from sojourn.node.transports.http import HttpTransport

ServerOption: TypeAlias = Annotated[
    str,
    typer.Option("--server", envvar="SOJOURN_SERVER", metavar="URL", help="The query unit's address."),
]
TokenOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="A token; others see it in the list of processes. $SOJOURN_TOKEN."),
]
TokenFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="SOJOURN_TOKEN_FILE", metavar="FILE", help="File with the token."),
]
CaFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="SOJOURN_CA_FILE",
        metavar="FILE",
        help="Certificates (PEM) to trust instead of the system's, for https.",
    ),
]


@dataclass(frozen=True)
class UnitAccess:
    """A query unit, and what it is asked with: a group of options."""

    server: ServerOption = "http://127.0.0.1:8080"
    token: TokenOption = None
    token_file: TokenFileOption = None
    ca_file: CaFileOption = None

    def client(self, *, timeout_seconds: float | None = None) -> Client:
        from sojourn.client.query_unit import TIMEOUT_SECONDS, Client

        seconds = timeout_seconds or TIMEOUT_SECONDS
        return Client(self.server, self._token(), timeout_seconds=seconds, ca_file=self.ca_file)

    def sink_client(self) -> SinkClient:
        from sojourn.client.collections import SinkClient

        return SinkClient(self.server, self._token(), ca_file=self.ca_file)

    def transport(self, node: str, spool: Path | None) -> HttpTransport:
        from sojourn.node.agent.configuration import instance_of
        from sojourn.node.transports.http import HttpTransport

        instance = instance_of(spool) if spool else None
        return HttpTransport(self.server, self._token(), node=node, instance=instance, ca_file=self.ca_file)

    def _token(self) -> str:
        from sojourn.client.query_unit import token_from

        return token_from(self.token, self.token_file)
