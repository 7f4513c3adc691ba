"""`sojourn nodes`: the nodes that a query unit knows, what they measure, and what they cannot."""

from __future__ import annotations

from typing import Annotated

import typer

from sojourn.cli.fleet.unit_access import CaFileOption, ServerOption, TokenFileOption, TokenOption, UnitAccess
from sojourn.cli.options import FormatOption
from sojourn.cli.output import Format, TableColumn, write_rows

__all__ = ["EXAMPLE", "HELP", "app", "nodes", "release"]

HELP = "List the nodes that a query unit knows, when they were heard of last, and what they measure or cannot."
EXAMPLE = "Example:  sojourn nodes --server http://127.0.0.1:8080 --tag east"


app = typer.Typer(help=HELP, epilog=EXAMPLE, invoke_without_command=True)


@app.callback()
def nodes(
    context: typer.Context,
    server: ServerOption = "http://127.0.0.1:8080",
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    tag: Annotated[str | None, typer.Option(help="Only nodes with this tag.")] = None,
    output_format: FormatOption = None,
) -> None:
    """List nodes."""
    if context.invoked_subcommand is not None:
        return
    from sojourn.core.units import format_time

    with UnitAccess(server, token, token_file, ca_file).client() as client:
        found = client.nodes(tag=tag)
    columns: dict[str, list[object]] = {
        name: [node[name] for node in found] for name in ("name", "last_seen_ns", "listening", "tags", "metrics")
    }
    columns["failed"] = [[f"{stream}: {reason}" for stream, reason in node.get("failed", {}).items()] for node in found]
    shown = [
        TableColumn("name", "node", justify="left"),
        TableColumn("last_seen_ns", "last heard of", format_time, justify="left"),
        TableColumn("listening", "live", lambda live: "yes" if live else "no", justify="left"),
        TableColumn("tags", "tags", ", ".join, justify="left"),
        TableColumn("metrics", "metrics", ", ".join, justify="left"),
    ]
    if any(columns["failed"]):
        shown.append(TableColumn("failed", "failed", "; ".join, justify="left"))
    write_rows([columns], output_format or Format.TABLE, name="nodes", table=shown)


@app.command(epilog="Example:  sojourn nodes release gateway-7 --server http://127.0.0.1:8080")
def release(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")],
    server: ServerOption = "http://127.0.0.1:8080",
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Let another agent take over a node's name at once, such as one that was installed anew (needs an admin's token).

    Without it, the query unit refuses the other until the first has been silent for five minutes.
    """
    with UnitAccess(server, token, token_file, ca_file).client() as client:
        streams = client.release(node)
    if not streams:
        print(f"no agent has the name {node}: any may take it")
    else:
        print(f"another agent may take over {', '.join(streams)} of {node} within the next hour")
