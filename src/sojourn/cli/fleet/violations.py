"""`sojourn violations`: what was not kept, when, and on what evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sojourn.cli.options import Output, UnitAccess, grouped
from sojourn.cli.output import Format, TableColumn, print_json, write_rows

HELP = "List the violations of objectives, the latest first: open ones, and those cleared since a time."
EXAMPLE = "Example:  sojourn violations --open; sojourn violations --objective mqtt --from -1d --format json"


@grouped
def violations(
    *,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that are not cleared.")] = False,
    objective: Annotated[str | None, typer.Option(metavar="NAME", help="Of this objective.")] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Open now, or cleared since: -1d, 10:05, ISO 8601.")
    ] = "-1d",
    unit: UnitAccess,
    output: Output,
) -> None:
    """Print one row for each violation, with the evidence that it was raised on."""
    from sojourn.core.units import format_time, parse_time

    with unit.client() as client:
        found = client.violations(objective=objective, only_open=only_open, since_ns=max(parse_time(start), 0))
    if output.how is Format.JSON and output.output is None:
        print_json({"violations": found})
        return
    rows = [_row(one, is_shown=output.how is Format.TABLE) for one in found]
    block = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    shown = [
        TableColumn("objective", "objective", justify="left"),
        TableColumn("condition", "condition", justify="left"),
        TableColumn("instance", "instance", justify="left"),
        TableColumn("node", "node", justify="left"),
        TableColumn("raised_ns", "raised", format_time, justify="left"),
        TableColumn("cleared", "cleared", justify="left"),
        TableColumn("value", "value"),
        TableColumn("interval", "interval", justify="left", rank=1),
        TableColumn("samples", "samples", "{:,}".format, rank=2),
    ]
    write_rows([block], output.how, path=output.output, name="violations", table=shown, view=output.view)


def _row(violation: Mapping[str, Any], *, is_shown: bool) -> dict[str, Any]:
    evidence, condition = violation["evidence"], violation["condition"]
    names = ("id", "objective", "condition", "instance", "raised_ns", "cleared_ns", "cleared_by")
    row = {name: violation[name] for name in names} | {"node": violation["node"] or ""}
    if is_shown:
        from sojourn.core.units import format_time

        cleared = "open" if row["cleared_ns"] is None else format_time(row["cleared_ns"])
        row |= {"value": amount(condition, evidence["value"]), "interval": interval(condition, evidence)}
        return row | {"samples": evidence["samples"], "cleared": cleared}
    kept = ("value", "low", "high", "level", "limit", "unit", "samples", "method", "epochs", "from_ns", "until_ns")
    return row | {name: evidence[name] for name in kept}


def amount(condition: str, value: float | None) -> str:
    """A value of a condition's statistic, in its unit."""
    from sojourn.objectives.condition import parse_condition

    return "" if value is None else parse_condition(condition).amount(value)


def interval(condition: str, evidence: Mapping[str, Any]) -> str:
    """The interval that a verdict rests on; open sides are infinite."""
    if evidence["value"] is None:
        return ""
    if evidence["low"] == evidence["high"]:
        return "exact"
    low, high = (amount(condition, evidence[side]) for side in ("low", "high"))
    return f"{low or '−∞'} … {high or '∞'}"
