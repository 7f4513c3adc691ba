"""`sojourn nodes`: the nodes that a query unit knows, what they measure and cannot, and their tags."""

from __future__ import annotations

from typing import Annotated

import typer

from sojourn.cli.options import FormatOption, UnitAccess, grouped
from sojourn.cli.output import Format, TableColumn, columns, write_rows
from sojourn.core.errors import harmless

app = typer.Typer(
    help="List the nodes that a query unit knows, when they were heard of last, and what they measure or cannot.",
    epilog="Example:  sojourn nodes --server http://127.0.0.1:8080 --tag east",
    invoke_without_command=True,
)
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]


@app.callback()
@grouped
def nodes(
    context: typer.Context,
    unit: UnitAccess,
    tag: Annotated[str | None, typer.Option(help="Only nodes with this tag.")] = None,
    output_format: FormatOption = None,
) -> None:
    """List nodes."""
    if context.invoked_subcommand is not None:
        return
    from sojourn.core.units import format_time

    with unit.client() as client:
        found = client.nodes(tag=tag)
    block: dict[str, list[object]] = {
        name: [dict(node)[name] for node in found] for name in ("name", "last_seen_ns", "listening", "tags", "metrics")
    }
    block["failed"] = [[f"{stream}: {reason}" for stream, reason in node["failed"].items()] for node in found]
    shown = [
        TableColumn("name", "node", justify="left"),
        TableColumn("last_seen_ns", "last heard of", format_time, justify="left"),
        TableColumn("listening", "live", lambda live: "yes" if live else "no", justify="left"),
        *columns("tags", "metrics", show=", ".join, left=True),
    ]
    if any(block["failed"]):
        shown.append(TableColumn("failed", "failed", "; ".join, justify="left"))
    write_rows([block], output_format or Format.TABLE, name="nodes", table=shown)


@app.command(epilog="Example:  sojourn nodes tag gateway-7 east lab")
@grouped
def tag(
    *,
    node: NodeArgument,
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="Tags that it gets, or loses.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take these tags from it.")] = False,
    unit: UnitAccess,
) -> None:
    """Give a node tags, or take them from it (needs an admin's token), and print all that it then has.

    Nodes with a tag are listed by `sojourn nodes --tag` and asked together by `sojourn query --tag`.
    """
    with unit.client() as client:
        has = client.change_tags(node, **{"remove" if remove else "add": tags})
    for text in has:
        print(harmless(text))


@app.command(epilog="Example:  sojourn nodes release gateway-7 --server http://127.0.0.1:8080")
@grouped
def release(unit: UnitAccess, node: NodeArgument) -> None:
    """Let another agent take over a node's name at once, such as one that was installed anew (needs an admin's token).

    Without it, the query unit refuses the other until the first has been silent for five minutes.
    """
    with unit.client() as client:
        streams = client.release(node)
    if not streams:
        print(f"no agent has the name {node}: any may take it")
    else:
        print(f"another agent may take over {', '.join(streams)} of {node} within the next hour")
