"""`sojourn nodes`: the nodes that a query unit knows, how they fare, what they measure and cannot, and their tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from sojourn.cli.options import FormatOption, Output, UnitAccess, grouped
from sojourn.cli.output import Format, TableColumn, cell, columns, console, print_json, write_rows
from sojourn.core.errors import UsageError, harmless

app = typer.Typer(
    help="List the nodes that a query unit knows: heard of when, what waits there, what they measure or cannot.",
    epilog="Examples:  sojourn nodes --tag east; sojourn nodes --silent",
    invoke_without_command=True,
)
LEAST_SILENCE_NS = 10**9
DEFAULT = "default"
# Reports are on their way for a while: less says nothing of a clock.
CLOCK_AGREES_NS = 2 * 10**9
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]


@app.callback()
@grouped
def nodes(
    context: typer.Context,
    unit: UnitAccess,
    tag: Annotated[str | None, typer.Option(help="Only nodes with this tag.")] = None,
    silent: Annotated[bool, typer.Option("--silent", help="Only nodes that are silent.")] = False,
    output_format: FormatOption = None,
) -> None:
    """List nodes."""
    if context.invoked_subcommand is not None:
        return
    from sojourn.core.units import format_time

    with unit.client() as client:
        found = [node for node in client.nodes(tag=tag) if not silent or node["state"] == "silent"]
    own = ("name", "state", "last_seen_ns", "listening", "tags", "metrics")
    reported = ("version", "spool_epochs", "spool_bytes", "synchronised", "ahead_ns")
    block: dict[str, list[object]] = {name: [dict(node)[name] for node in found] for name in own}
    block |= {name: [(node["report"] or {}).get(name) for node in found] for name in reported}
    block["failed"] = [[f"{stream}: {reason}" for stream, reason in node["failed"].items()] for node in found]
    shown = [
        TableColumn("name", "node", justify="left"),
        TableColumn("state", "state", justify="left"),
        TableColumn("last_seen_ns", "last heard of", format_time, justify="left"),
        TableColumn("listening", "live", lambda live: "yes" if live else "no", justify="left"),
        *columns("tags", "metrics", show=", ".join, left=True),
        TableColumn("spool_epochs", "waiting", lambda count: "" if count is None else f"{count:,}", rank=1),
        TableColumn("ahead_ns", "clock", _clock_text, justify="left", rank=2),
        TableColumn("version", "version", lambda text: text or "", justify="left", rank=3),
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


@app.command(epilog="Example:  sojourn nodes show gateway-7")
@grouped
def show(unit: UnitAccess, node: NodeArgument, output_format: FormatOption = None) -> None:
    """Show a node: its agent, its spool and its clock, its streams and how they fare, and when it was silent."""
    if output_format not in (None, Format.TABLE, Format.JSON):
        raise UsageError("one node is shown as a table or as JSON", where="--format", action="use json")
    with unit.client() as client:
        found = client.node(node)
    if output_format is Format.JSON:
        print_json(found)
        return
    for line in _lines(found):
        console().print(cell(line), soft_wrap=True)


@app.command(epilog="Example:  sojourn nodes groups")
@grouped
def groups(unit: UnitAccess, output: Output) -> None:
    """List the groups of nodes, one for each tag: how many nodes, how many silent or with failed streams."""
    with unit.client() as client:
        found = client.groups()
    names = {"tag": "tag", "nodes": "nodes", "silent": "silent", "failed": "failed", "spool_epochs": "waiting"}
    block = {name: [group[name] for group in found] for name in names}
    shown = [TableColumn("tag", "tag", justify="left")]
    shown += [TableColumn(name, title, "{:,}".format) for name, title in names.items() if name != "tag"]
    write_rows([block], output.how, path=output.output, name="groups", table=shown, view=output.view)


@app.command(epilog="Example:  sojourn nodes events --open; sojourn nodes events --node gateway-7 --from -30d")
@grouped
def events(
    *,
    only_open: Annotated[bool, typer.Option("--open", help="Only nodes that are silent now.")] = False,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="Of this node.")] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Silent now, or back since: -1d, 10:05, ISO 8601.")
    ] = "-1d",
    unit: UnitAccess,
    output: Output,
) -> None:
    """List when nodes fell silent and when they were back, the latest first."""
    from sojourn.core.units import format_time, parse_time

    with unit.client() as client:
        found = client.events(node=node, only_open=only_open, since_ns=max(parse_time(start), 0))
    names = ("id", "node", "kind", "reason", "since_ns", "raised_ns", "cleared_ns")
    block = {name: [event[name] for event in found] for name in names}
    shown = [
        *columns("node", "kind", left=True),
        *columns(since_ns="since", raised_ns="noticed", show=format_time, left=True),
        TableColumn("cleared_ns", "back", lambda time: "" if time is None else format_time(time), justify="left"),
        TableColumn("reason", "reason", justify="left", rank=1),
    ]
    write_rows([block], output.how, path=output.output, name="events", table=shown, view=output.view)


@app.command(name="set", epilog="Example:  sojourn nodes set board-3 --silent-after 2h --quota-bytes 50MB")
@grouped
def set_node(
    *,
    node: NodeArgument,
    silent_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it may be silent: 2h, never, or default.")
    ] = None,
    quota_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of epochs that it may send on a day: 50MB, none, or default.")
    ] = None,
    quota_streams: Annotated[
        str | None, typer.Option(metavar="N", help="Streams that it may have: a number, none, or default.")
    ] = None,
    quota_keys: Annotated[
        str | None, typer.Option(metavar="N", help="Keys of all its streams: a number, none, or default.")
    ] = None,
    unit: UnitAccess,
) -> None:
    """Set how a node is treated (needs an admin's token); what is not given stays as it is."""
    from sojourn.client.query_unit import NodeSettings

    settings: NodeSettings = {}
    if silent_after is not None:
        allowed_ns = None if silent_after == DEFAULT else silence(silent_after, "--silent-after") or 0
        settings["silent_after_ns"] = allowed_ns
    if quota_bytes is not None:
        settings["quota_bytes"] = None if quota_bytes == DEFAULT else quota(quota_bytes, "--quota-bytes") or 0
    if quota_streams is not None:
        settings["quota_streams"] = None if quota_streams == DEFAULT else quota(quota_streams, "--quota-streams") or 0
    if quota_keys is not None:
        settings["quota_keys"] = None if quota_keys == DEFAULT else quota(quota_keys, "--quota-keys") or 0
    if not settings:
        raise UsageError("there is nothing to set", where="nodes set", action="give --silent-after, or a --quota")
    with unit.client() as client:
        client.set_node(node, **settings)


def quota(text: str, option: str) -> int | None:
    """A quota; None for none."""
    from sojourn.core.units import parse_bytes

    if text == "none":
        return None
    most = parse_bytes(text, where=option) if option == "--quota-bytes" or not text.isdecimal() else int(text)
    if not 0 < most < 2**63:
        raise UsageError(f"{text[:40]!r} is no quota", where=option, action="write none, or a positive number")
    return most


def silence(text: str, option: str) -> int | None:
    """How long a node may be silent; None for ever."""
    from sojourn.core.units import parse_duration

    if text == "never":
        return None
    allowed_ns = parse_duration(text)
    if allowed_ns < LEAST_SILENCE_NS:
        raise UsageError(f"{text!r} is too short", where=option, action="write never, or 1s or longer, such as 10min")
    return allowed_ns


def _clock_text(ahead_ns: int | None) -> str:
    """How a node's clock differs from the query unit's; the way of the report is within what does not count."""
    from sojourn.core.units import format_age

    if ahead_ns is None:
        return ""
    if abs(ahead_ns) < CLOCK_AGREES_NS:
        return "agrees"
    return f"{format_age(abs(ahead_ns))} {'ahead' if ahead_ns > 0 else 'behind'}"


def _lines(node: Mapping[str, Any]) -> list[str]:
    """A node in words, a line each."""
    from sojourn.core.units import format_time

    allowed = node["settings"]["silent_after_ns"]
    lines = [f"{node['name']}: {node['state']}, last heard of {format_time(node['last_seen_ns'])}"]
    lines.append(f"  known since {format_time(node['first_seen_ns'])}; tags: {', '.join(node['tags']) or 'none'}")
    lines += [f"  {line}" for line in _about_agent(node["report"])]
    if allowed is not None:
        lines.append(f"  may be silent {_allowed_text(allowed)}")
    lines.append(f"  {_usage_text(node['usage'])}")
    for stream in node["streams"]:
        state = node["states"].get(stream["name"], {"state": "not recorded now", "reason": None})
        number = "none stored yet" if stream["last_sequence"] is None else f"epochs to {stream['last_sequence']}"
        what = f"{stream['metric']} ({stream['unit']} of each {stream['granularity']})"
        reason = f": {state['reason']}" if state["reason"] else ""
        was = "was " if state["state"] == "running" and node["state"] != "present" else ""
        lines.append(f"  stream {stream['name']}: {what}, {number}, {was}{state['state']}{reason}")
    known = {stream["name"] for stream in node["streams"]}
    lines += [
        f"  stream {name}: {state['state']}: {state['reason']}"
        for name, state in node["states"].items()
        if name not in known
    ]
    return lines + [f"  {_event_text(event)}" for event in node["events"]]


def _usage_text(usage: Mapping[str, Any]) -> str:
    from sojourn.core.units import format_bytes

    def of(quota: int | None, shown: Callable[[int], str]) -> str:
        return "" if quota is None else f" of {shown(quota)}"

    sent = f"{format_bytes(usage['sent_bytes'])}{of(usage['quota_bytes'], format_bytes)} sent today"
    streams = f"{usage['streams']:,}{of(usage['quota_streams'], '{:,}'.format)} streams"
    return f"{sent}, {streams}, {usage['keys']:,}{of(usage['quota_keys'], '{:,}'.format)} keys"


def _allowed_text(allowed_ns: int) -> str:
    from sojourn.core.units import format_age

    return f"for {format_age(allowed_ns)}" if allowed_ns else "for ever"


def _about_agent(report: Mapping[str, Any] | None) -> list[str]:
    from sojourn.core.units import format_age, format_bytes, format_time, plural

    if report is None:
        return ["its agent has said nothing of itself: it has none, or one of an earlier version"]
    kept = {True: "is kept in step", False: "is not kept in step", None: "does not say whether it is kept in step"}
    clock = f"clock: {_clock_text(report['ahead_ns'])}, {kept[report['synchronised']]}"
    if report["clock_error_ns"] is not None and report["synchronised"]:
        clock += f" within {format_age(report['clock_error_ns'])}"
    size, limit = format_bytes(report["spool_bytes"]), format_bytes(report["spool_limit_bytes"])
    spool = f"spool: {plural(report['spool_epochs'], 'epoch')} of {size} wait, the limit is {limit}"
    if report["spool_trouble"]:
        spool += f"; {report['spool_trouble']}"
    return [
        f"sojourn {report['version']} on {report['system']}, since {format_time(report['started_ns'])}",
        spool,
        clock,
        f"as of {format_time(report['reported_ns'])}",
    ]


def _event_text(event: Mapping[str, Any]) -> str:
    from sojourn.core.units import format_time

    until = "now" if event["cleared_ns"] is None else format_time(event["cleared_ns"])
    return f"silent from {format_time(event['since_ns'])} until {until}: {event['reason']}"
