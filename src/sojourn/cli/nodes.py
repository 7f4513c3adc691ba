"""`sojourn nodes`: the nodes that a query unit knows, and what they measure."""

from __future__ import annotations

from typing import Annotated

import typer

from sojourn.cli.options import FormatOption
from sojourn.cli.output import Format, TableColumn, write_rows
from sojourn.cli.unit_access import CaFileOption, ServerOption, TokenFileOption, TokenOption, UnitAccess

__all__ = ["EXAMPLE", "HELP", "nodes"]

HELP = "List the nodes that a query unit knows, when they were heard of last, and what they measure."
EXAMPLE = "Example:  sojourn nodes --server http://127.0.0.1:8080 --tag east"


def nodes(
    server: ServerOption = "http://127.0.0.1:8080",
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    tag: Annotated[str | None, typer.Option(help="Only nodes with this tag.")] = None,
    output_format: FormatOption = None,
) -> None:
    """List nodes."""
    from sojourn.core.times import format_time

    with UnitAccess(server, token, token_file, ca_file).client() as client:
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
