"""`sojourn segment`: segments between the nodes of a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sojourn.cli.options import FormatOption, UnitAccess, grouped
from sojourn.cli.output import Format, TableColumn, cell, console, print_json, write_rows
from sojourn.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(
    help="Create, list, show and remove segments: what is measured between two nodes, continuously.",
    no_args_is_help=True,
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The segment's name.")]
EPOCH = "10s"


@app.command(epilog="Example:  sojourn segment create uplink --from gateway-7:eth0 --to core-1:eth2 --both-directions")
@grouped
def create(
    *,
    name: NameArgument,
    sender: Annotated[
        str,
        typer.Option(
            "--from", metavar="NODE:IFACE[:in|out]", help="Where packets come first: what leaves (out) there."
        ),
    ],
    receiver: Annotated[
        str, typer.Option("--to", metavar="NODE:IFACE[:in|out]", help="Where they come next: what enters (in) there.")
    ],
    packet_filter: Annotated[
        str, typer.Option("--filter", metavar="FILTER", help="Only these packets, in tcpdump's syntax.")
    ] = "",
    epoch: Annotated[str, typer.Option(metavar="TIME", help="How often the nodes report, from 1s to 1h.")] = EPOCH,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each point, such as 128KB; else as --error needs.")
    ] = None,
    error: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Error of flows' means that is allowed. Default: 5%.")
    ] = None,
    confidence: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of flows within that error. Default: 95%.")
    ] = None,
    both_directions: Annotated[
        bool, typer.Option("--both-directions", help="Also what goes back between the two interfaces.")
    ] = False,
    sketch: Annotated[
        Literal["auto", "ledger", "best"],
        typer.Option(
            help="ledger: exact losses and means, every lost packet by its name; the agents keep their last packets "
            "(up to 36 MiB), and where more than a tenth is lost, or memory is short, auto is recorded. best: auto "
            "first, and a ledger once it is measured that losses, flows and memory suit it."
        ),
    ] = "auto",
    unit: UnitAccess,
    output_format: FormatOption = None,
) -> None:
    """Create a segment from one node's interface to another's (needs an admin's token), and show it.

    The two agents begin to record at once. What both have recorded is compared, flow by flow.
    """
    how = _size(memory, error, confidence) | {"filter": packet_filter, "both_directions": both_directions}
    how["epoch_ns"] = _duration(epoch)
    if sketch != "auto":  # which query units of earlier versions do not ask
        how["sketch"] = sketch
    with unit.client() as client:
        _print_segment(client.create_segment(name, sender, receiver, **how), output_format)


def _duration(epoch: str) -> int:
    from sojourn.core.units import parse_duration

    return parse_duration(epoch, where="--epoch")


def _size(memory: str | None, error: str | None, confidence: str | None) -> dict[str, Any]:
    """What the segment's points are sized by."""
    from sojourn.core.units import parse_bytes, parse_share

    if memory is None:
        shares = {"--error": error, "--confidence": confidence}
        found = {flag: None if text is None else parse_share(text, where=flag) for flag, text in shares.items()}
        return {"error": found["--error"], "confidence": found["--confidence"]}
    if error is not None or confidence is not None:
        raise UsageError("a memory or an error, not both", where="--memory", action="leave --memory or --error out")
    return {"memory_bytes": parse_bytes(memory, where="--memory")}


@app.command(name="list", epilog="Example:  sojourn segment list --format json")
@grouped
def list_segments(unit: UnitAccess, output_format: FormatOption = None) -> None:
    """List all segments, those between nodes and those that MPlane measures, and how they fare."""
    with unit.client() as client:
        found = client.segments()
    names = [name for name in (found[0] if found else ()) if name != "hops"]
    block: dict[str, list[object]] = {name: [segment.get(name) for segment in found] for name in names}
    write_rows([block], output_format or Format.TABLE, name="segments", table=_columns(found))


def _columns(found: list[dict[str, Any]]) -> list[TableColumn]:
    from sojourn.core.units import format_bytes, format_duration

    columns = [
        TableColumn("name", "segment", justify="left"),
        TableColumn("kind", "kind", justify="left"),
        TableColumn("from", "from", justify="left"),
        TableColumn("to", "to", justify="left"),
        TableColumn("both_directions", "both", _shown(lambda both: "yes" if both else "no"), justify="left", rank=2),
        TableColumn("epoch_ns", "epoch", _shown(format_duration), rank=2),
        TableColumn("memory_bytes", "memory", _shown(format_bytes), rank=3),
        TableColumn("state", "state", _shown(str), justify="left"),
    ]
    if any(segment.get("filter") for segment in found):
        columns.insert(4, TableColumn("filter", "filter", _shown(str), justify="left", rank=1))
    if any(segment.get("reason") for segment in found):
        columns.append(TableColumn("reason", "why", _shown(str), justify="left", rank=1))
    return columns


def _shown(show: Any) -> Any:
    return lambda value: "" if value is None else show(value)


@app.command(epilog="Example:  sojourn segment show uplink")
@grouped
def show(name: NameArgument, unit: UnitAccess, output_format: FormatOption = None) -> None:
    """Show a segment: both its points and how they fare, its plan and its generations."""
    with unit.client() as client:
        _print_segment(client.segment(name), output_format)


@app.command(epilog="Example:  sojourn segment remove uplink")
@grouped
def remove(name: NameArgument, unit: UnitAccess) -> None:
    """Remove a segment (needs an admin's token); points that no other segment needs are no longer recorded."""
    with unit.client() as client:
        client.remove_segment(name)


def _print_segment(segment: Mapping[str, Any], output_format: Format | None) -> None:
    if output_format not in (None, Format.TABLE):
        if output_format is not Format.JSON:
            raise UsageError("one segment is shown as a table or as JSON", where="--format", action="use json")
        print_json(segment)
        return
    for line in _lines(segment):
        console().print(cell(line), soft_wrap=True)


def _lines(segment: Mapping[str, Any]) -> list[str]:
    """A segment in words, a line each."""
    from sojourn.core.units import format_time

    with_filter = f", filter {segment['filter']!r}" if segment["filter"] else ""
    lines = [f"{segment['name']}: {segment['from']} to {segment['to']}{with_filter}"]
    if segment["kind"] != "fleet":
        return [*lines, f"  {segment['kind']}, measured until {format_time(segment['last_ns'])}"]
    for direction in segment["directions"]:
        if len(segment["directions"]) > 1:
            lines.append(f"  {direction['name']}")
        lines += [f"  {end:<5}{_end(direction[end])}" for end in ("from", "to")]
    lines += [f"  {_generation(one)}" for one in segment["generations"] if one["until_ns"] is None]
    return lines


def _end(end: Mapping[str, Any]) -> str:
    from sojourn.core.units import format_time

    text = f"{end['point']} {end['state']}" + (f": {end['reason']}" if end["reason"] else "")
    last = end["last_epoch"]
    if last is None:
        return f"{text}; no epoch yet"
    until = f", until {format_time(last['last_ns'])}" if last["last_ns"] is not None else ""
    return f"{text}; last epoch {last['sequence']}{until}"


def _generation(one: Mapping[str, Any]) -> str:
    from sojourn.core.units import format_bytes, format_duration

    plan = one["plan"]
    role = "plan" if one["current"] else "former plan, still recorded,"
    packets = f", {plan['packets']:,} packets an epoch" if plan["packets"] else ""
    return (
        f"{role} {plan['kind']} (generation {one['number']}): {format_bytes(plan['memory_bytes'])} a point every "
        f"{format_duration(plan['epoch_ns'])}, made for {plan['flows']:,} flows, {plan['loss']:.3g} lost{packets}"
    )
