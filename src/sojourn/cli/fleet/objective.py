"""`sojourn objective`: what is to be guaranteed, and whether it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sojourn.cli.fleet.violations import amount, interval
from sojourn.cli.options import FormatOption, UnitAccess, grouped
from sojourn.cli.output import Format, TableColumn, cell, console, print_json, write_rows
from sojourn.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sojourn.objectives.objective import Objective

app = typer.Typer(
    help="Add, list, show, check and remove objectives: what is to be guaranteed of nodes, segments, paths.",
    no_args_is_help=True,
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The objective's name.")]
VIOLATED = 3  # exit status of a check


@app.command(
    epilog="Examples:  sojourn objective add mqtt --tag intersection --metric rtt --interface eth0 --port 1883 "
    "--require 'mean < 100ms'; sojourn objective add --file objectives.toml"
)
@grouped
def add(
    *,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Its name; none with --file.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="All objectives of a TOML file instead.")
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="'mean < 100ms', 'loss < 0.1%', 'rate < 500/s' …; repeatable."),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="What nodes measure: disk_io, cpu, memory, rtt, …")] = None,
    tag: Annotated[str | None, typer.Option(help="All nodes with this tag, now and later.")] = None,
    node: Annotated[list[str] | None, typer.Option(help="A node, or a pattern such as '*'; repeatable.")] = None,
    instance: Annotated[
        list[str] | None, typer.Option(help="Instances that fit this pattern, such as 'backup*'; repeatable.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Flows to this port.")] = None,
    group: Annotated[
        Literal["name", "port", "node"] | None,
        typer.Option(help="Judge together: processes of a name, flows to a port, all of a node."),
    ] = None,
    interface: Annotated[str | None, typer.Option(metavar="IFACE", help="Where nodes capture traffic.")] = None,
    direction: Annotated[Literal["in", "out", "both"] | None, typer.Option(help="Of traffic there.")] = None,
    packet_filter: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Only these packets, in tcpdump's syntax.")
    ] = None,
    segment: Annotated[str | None, typer.Option(metavar="NAME", help="A segment instead of a metric.")] = None,
    path: Annotated[
        str | None, typer.Option(metavar="'A > B'", help="Each segment that MPlane measures on that way instead.")
    ] = None,
    collection: Annotated[
        str | None, typer.Option(metavar="[NODE/]NAME", help="Each node of a sink's collection instead.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long a stretch is judged. Default: 1min.")
    ] = None,
    error: Annotated[str | None, typer.Option(metavar="SHARE", help="What streams are sized for. Default: 5%.")] = None,
    false_alarms: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Of evaluations, at most. Default: 0.1%.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Whom to tell of violations.")] = None,
    unit: UnitAccess,
    output_format: FormatOption = None,
) -> None:
    """Add an objective, or all of a file (needs an admin's token), and show it.

    Nodes that are selected by a tag begin to record what it needs at once.
    """
    table = {"require": require, "metric": metric, "tag": tag, "nodes": node, "instances": instance, "port": port}
    table |= {"group": group, "interface": interface, "direction": direction, "filter": packet_filter}
    table |= {"segment": segment, "path": path, "collection": collection, "every": every, "error": error}
    table |= {"false_alarms": false_alarms, "webhook": webhook}
    from sojourn.objectives.objective import table_of

    wanted = _wanted(name, file, {key: value for key, value in table.items() if value})
    with unit.client() as client:
        for one in wanted:
            _print_objective(client.create_objective(one.name, **table_of(one)), output_format)


def _wanted(name: str | None, file: Path | None, table: Mapping[str, Any]) -> list[Objective]:
    from sojourn.objectives.objective import objective_of, read_objectives

    if (name is None) == (file is None):
        raise UsageError(
            "one objective by its name, or a file of them", where="objective", action="give NAME or --file"
        )
    if name is not None:
        return [objective_of(name, table)]
    if table:
        raise UsageError(f"{next(iter(table))} is in the file", where="--file", action="leave the other options out")
    assert file is not None
    return read_objectives(file)


@app.command(name="list", epilog="Example:  sojourn objective list --format json")
@grouped
def list_objectives(unit: UnitAccess, output_format: FormatOption = None) -> None:
    """List all objectives: met, violated or undecided, and what they cost."""
    from sojourn.core.units import format_bytes, format_duration

    with unit.client() as client:
        found = client.objectives()
    names = list(found[0]) if found else []
    block: dict[str, list[object]] = {name: [one.get(name) for one in found] for name in names}
    shown = [
        TableColumn("name", "objective", justify="left"),
        TableColumn("state", "state", justify="left"),
        TableColumn("subject", "about", justify="left", rank=2),
        TableColumn("require", "requires", " and ".join, justify="left"),
        TableColumn("every_ns", "every", format_duration, rank=2),
        TableColumn("open_violations", "open"),
        TableColumn("places", "judged at", rank=3),
        TableColumn("epoch_bytes", "bytes each time", format_bytes, rank=3),
    ]
    if any(one.get("reason") for one in found):
        shown.append(TableColumn("reason", "why", lambda text: text or "", justify="left", rank=1))
    write_rows([block], output_format or Format.TABLE, name="objectives", table=shown)


@app.command(epilog="Example:  sojourn objective show mqtt")
@grouped
def show(name: NameArgument, unit: UnitAccess, output_format: FormatOption = None) -> None:
    """Show an objective: what it requires, where it is judged, the worst instances, and what that costs."""
    with unit.client() as client:
        _print_objective(client.objective(name), output_format)


@app.command(epilog="Example:  sojourn objective remove mqtt")
@grouped
def remove(name: NameArgument, unit: UnitAccess) -> None:
    """Remove an objective and the streams that it assigned (needs an admin's token); open violations are cleared."""
    with unit.client() as client:
        client.remove_objective(name)


@app.command(epilog="Example:  sojourn objective check mqtt && echo kept")
@grouped
def check(name: NameArgument, unit: UnitAccess, output_format: FormatOption = None) -> None:
    """Judge an objective now, on its latest stretch: each condition of each instance. Exit status 3 if violated.

    Nothing is raised or cleared by it.
    """
    with unit.client() as client:
        found = client.check_objective(name)
    if output_format is Format.JSON:
        print_json(found)
    else:
        rows = [_verdict_row(verdict, output_format or Format.TABLE) for verdict in found["verdicts"]]
        block = {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}
        shown = [TableColumn(key, key, justify="left") for key in ("state", "condition", "instance", "node")]
        shown += [TableColumn("value", "value"), TableColumn("interval", "interval", justify="left", rank=1)]
        shown += [TableColumn("samples", "samples", "{:,}".format, rank=2)]
        write_rows([block], output_format or Format.TABLE, name="verdicts", table=shown)
        for reason in dict.fromkeys(found["reasons"]):
            console(stderr=True).print(cell(reason))
        if output_format in (None, Format.TABLE):
            console(stderr=True).print(cell(f"{name} is {found['state']}"))
    if found["state"] == "violated":
        raise typer.Exit(VIOLATED)


def _verdict_row(verdict: Mapping[str, Any], how: Format) -> dict[str, Any]:
    evidence = verdict["evidence"]
    row = {key: verdict[key] for key in ("state", "condition", "instance")} | {"node": verdict["node"] or ""}
    if how is not Format.TABLE:
        return row | {key: value for key, value in evidence.items() if key != "state"}
    value = amount(verdict["condition"], evidence["value"])
    return row | {
        "value": value or evidence["reason"] or "",
        "interval": interval(verdict["condition"], evidence),
        "samples": evidence["samples"],
    }


def _print_objective(objective: Mapping[str, Any], output_format: Format | None) -> None:
    if output_format not in (None, Format.TABLE):
        if output_format is not Format.JSON:
            raise UsageError("one objective is shown as a table or as JSON", where="--format", action="use json")
        print_json(objective)
        return
    for line in _lines(objective):
        console().print(cell(line), soft_wrap=True)


def _lines(objective: Mapping[str, Any]) -> list[str]:
    """An objective in words, a line each."""
    from sojourn.core.units import format_duration, plural

    count = objective["open_violations"]
    opened = f", {plural(count, 'open violation')}" if count else ""
    lines = [f"{objective['name']}: {objective['subject']}: {' and '.join(objective['require'])}"]
    rate = f"{objective['false_alarms'] * 100:g} % false alarms"
    lines.append(f"  {objective['state']}{opened}; judged every {format_duration(objective['every_ns'])}, {rate}")
    if objective["webhook"]:
        lines.append(f"  tells {objective['webhook']}")
    places = objective["judged_at"]
    lines += [f"  {line}" for place in places for line in _place(place)]
    return lines if places else [*lines, f"  {objective['reason']}"]


def _place(place: Mapping[str, Any]) -> list[str]:
    from sojourn.core.units import format_bytes, format_time, plural

    until = f" until {format_time(place['until_ns'])}" if place["until_ns"] else ""
    text = f"{place['place']}: {place['state']}{until}"
    if place["instances"]:
        counts = ", ".join(f"{place[state]} {state}" for state in ("violated", "undecided", "met") if place[state])
        text += f"; {plural(place['instances'], 'instance')}: {counts}"
    if place["own"]:
        made = f"made for {plural(place['planned'], 'instance')}" if place["planned"] else "before any was seen"
        text += f"; {place['buckets']} buckets, {made}"
    if place["epoch_bytes"] is not None:
        text += f", {format_bytes(place['epoch_bytes'])} an epoch"
    if place["reason"]:
        text += f"; {place['reason']}"
    worst = [
        f"  {one['condition']}: worst {one['instance'] or 'all'} "
        f"{amount(one['condition'], one['value']) or one['reason'] or ''} {interval(one['condition'], one)}".rstrip()
        for one in place["worst"]
    ]
    return [text, *worst]
