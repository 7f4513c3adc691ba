"""`sojourn audit`: who changed what, from where and when."""

from __future__ import annotations

from typing import Annotated

import typer

from sojourn.cli.options import Output, UnitAccess, grouped
from sojourn.cli.output import TableColumn, columns, write_rows

HELP = "List administrative actions, the latest first: who did what, from where and when (needs an admin's token)."
EXAMPLE = "Example:  sojourn audit --from -7d --about gateway-7"


@grouped
def audit(
    *,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="Since then: -7d, 10:05, ISO 8601.")] = "-7d",
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Until then; by default now.")] = None,
    about: Annotated[str, typer.Option(metavar="TEXT", help="Only actions of which what or who has this text.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="At most so many.")] = 1000,
    unit: UnitAccess,
    output: Output,
) -> None:
    """Print one row for each action."""
    from sojourn.core.units import format_time, parse_time

    until = 2**63 - 1 if end is None else parse_time(end)
    with unit.client() as client:
        found = client.audit(from_ns=max(parse_time(start), 0), to_ns=max(until, 0), about=about, limit=limit)
    block = {name: [entry[name] for entry in found] for name in ("at_ns", "who", "address", "what")}
    shown = [
        TableColumn("at_ns", "when", format_time, justify="left"),
        *columns("who", left=True),
        TableColumn("address", "from", justify="left"),
        *columns("what", left=True),
    ]
    write_rows([block], output.how, path=output.output, name="actions", table=shown, view=output.view)
