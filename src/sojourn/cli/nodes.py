"""`sojourn nodes`: the nodes that a query unit knows, and what they measure."""

from __future__ import annotations

from typing import Annotated

import typer

from sojourn.cli.options import FormatOption
from sojourn.cli.output import Format, TableColumn, write_rows

__all__ = ["EXAMPLE", "HELP", "ServerOption", "TokenOption", "nodes"]

HELP = "List the nodes that a query unit knows, when they were heard of last, and what they measure."
EXAMPLE = "Example:  sojourn nodes --server http://127.0.0.1:8080 --tag east"

ServerOption = Annotated[
    str,
    typer.Option("--server", envvar="SOJOURN_SERVER", metavar="URL", help="The query unit's address."),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="A viewer's or admin's token; by default $SOJOURN_TOKEN."),
]


def nodes(
    server: ServerOption = "http://127.0.0.1:8080",
    token: TokenOption = None,
    tag: Annotated[str | None, typer.Option(help="Only nodes with this tag.")] = None,
    output_format: FormatOption = None,
) -> None:
    """List nodes."""
    from sojourn.core.times import format_time
    from sojourn.server.client import Client, token_from

    with Client(server, token_from(token)) as client:
        found = client.nodes(tag=tag)
    columns: dict[str, list[object]] = {
        name: [node[name] for node in found] for name in ("name", "last_seen_ns", "listening", "tags", "metrics")
    }
    shown = [
        TableColumn("name", "node", justify="left"),
        TableColumn("last_seen_ns", "last heard of", format_time, justify="left"),
        TableColumn("listening", "live", lambda live: "yes" if live else "no", justify="left"),
        TableColumn("tags", "tags", ", ".join, justify="left"),
        TableColumn("metrics", "metrics", ", ".join, justify="left"),
    ]
    write_rows([columns], output_format or Format.TABLE, name="nodes", table=shown)
