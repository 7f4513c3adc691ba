"""`sojourn query`: ask the query unit about instances, groups of them, nodes or groups of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from sojourn.cli.options import NamesOption, Output, UnitAccess, grouped
from sojourn.cli.output import Format, TableColumn, cell, console, print_json, warn, write_rows
from sojourn.core.errors import InputError, UsageError
from sojourn.core.results import row_order
from sojourn.core.units import format_bytes, format_duration

if TYPE_CHECKING:
    from sojourn.client.query_unit import Client, QueryAnswer
    from sojourn.client.translation import Translation

HELP = (
    "Ask how much of a metric instances used, or their mean, between two times; the current epoch included. With "
    "--segment: delay and loss between two nodes."
)
EXAMPLE = (
    "Examples:  sojourn query --node gateway-7 --metric disk_io --instance 'mosquitto*' --from -10m --group name; "
    "sojourn query --segment uplink --top 10 --by p99; "
    "sojourn query --segment uplink --flow '10.0.0.1:5000 > 10.0.2.1:9 udp' --packets --last 10s"
)


USUAL_START = "-5m"
MOST_INSTANCES = 1000
_OF_SEGMENTS = ("flow", "by", "interval", "lost", "packets", "last")


@dataclass(frozen=True)
class SegmentOptions:
    """A question about a segment: a group of options."""

    segment: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A segment (NAME:reverse is the way back); several are a path, of which each flow is broken down; a "
            "pattern with * and ? is many, each one's totals.",
        ),
    ] = None
    flow: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="With --segment: only this flow; repeatable.")
    ] = None
    by: Annotated[
        Literal["packets", "mean", "p50", "p90", "p95", "p99", "loss"] | None,
        typer.Option(help="With --segment: what --top flows are the largest by."),
    ] = None
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --segment: also for each stretch of about this length.")
    ] = None

    lost: Annotated[
        bool, typer.Option("--lost", help="With --segment: every lost packet, where ledgers are kept; bursts of them.")
    ] = False
    packets: Annotated[
        bool,
        typer.Option(
            "--packets",
            help="With --segment and --flow: every packet's delay, lost ones marked, as both agents' ledgers hold them "
            "now; the newest 10000, or --top N of them.",
        ),
    ] = False
    last: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With --packets: of so long up to now; without --from 10s."),
    ] = None

    @property
    def given(self) -> list[str]:
        """The options that only a segment has, as far as they were given."""
        return [f"--{name}" for name in _OF_SEGMENTS if getattr(self, name)]


@dataclass(frozen=True)
class PseudonymOptions:
    """In which names is asked of nodes that go by pseudonyms: a group of options."""

    pseudonyms: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The nodes' key of pseudonyms: instances are asked for and shown in clear."),
    ] = None
    names: NamesOption = None

    def translation(self) -> Translation | None:
        if self.pseudonyms is None:
            if self.names is not None:
                raise UsageError("names are for pseudonyms", where="--names", action="give --pseudonyms, too")
            return None
        from sojourn.client.translation import Translation

        return Translation.of_files(self.pseudonyms, self.names)


@grouped
def query(
    *,
    metric: Annotated[str | None, typer.Option(help="What was measured: disk_io, cpu, memory, rtt, …")] = None,
    segment: SegmentOptions,
    node: Annotated[list[str] | None, typer.Option(help="A node that measured it; repeatable.")] = None,
    tag: Annotated[str | None, typer.Option(help="All nodes with this tag.")] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            help="A process 'name[pid]' or flow 'SRC:PORT > DEST:PORT tcp', or a pattern with * and ?: all that fit "
            "it, such as 'mosquitto*' or '* > *:1883 tcp'; none is all of the nodes, added up."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every instance, the largest first; as --instance '*'.")] = False,
    group: Annotated[
        Literal["name", "port", "instance", "pattern", "node"] | None,
        typer.Option(
            help="Take together: processes of a name, flows to a port, an instance that several nodes saw, all that "
            "fit the pattern, or all of a node."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=0, max=100_000, help="Only the largest instances or groups.")] = 0,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", show_default=USUAL_START, help="-10m, 10:05, ISO 8601 or Unix seconds."),
    ] = None,
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="As --from; now is the current epoch too.")] = "now",
    stat: Annotated[
        Literal["sum", "mean"] | None,
        typer.Option(help="sum of the measurements, or their mean; by default what suits the metric."),
    ] = None,
    method: Annotated[
        Literal["literal", "joint"], typer.Option(help="joint decodes all instances together.")
    ] = "joint",
    cut: Annotated[
        Literal["whole", "inside", "pro-rata"],
        typer.Option(help="Epochs that the range cuts: taken whole, left out, or by their share of time."),
    ] = "whole",
    spool: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Ask a node's own spool instead of the query unit (stored epochs)."),
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help="With --spool: the stream that holds the metric; by default the only one.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live/--stored", help="Ask the nodes for their current epoch, or do not.")
    ] = True,
    hidden: PseudonymOptions,
    unit: UnitAccess,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="How long to wait for the answer.")] = 60.0,
    output: Output,
) -> None:
    """Print one answer, or one for each instance or group; of a segment, all packets and each flow."""
    translation = hidden.translation()
    if segment.segment:
        others: dict[str, object] = {"--metric": metric, "--node": node, "--tag": tag, "--instance": instance}
        others |= {"--all": every, "--group": group, "--stat": stat, "--spool": spool, "--stream": stream}
        _refuse([name for name, value in others.items() if value], "--segment")
        with unit.client(timeout_seconds=timeout, pseudonyms=translation) as client:
            _print_segment(client, segment, (start, end), {"top": top, "live": live}, output)
        return
    _refuse(segment.given, "--metric")
    if metric is None:
        raise UsageError("what is asked for is missing", where="query", action="give --metric, or --segment")
    if every and instance is not None:
        raise UsageError("every instance or some, not both", where="--all", action="leave --all or --instance out")
    if spool is None and bool(node) == (tag is not None):
        raise UsageError("a question is about nodes or one tag", where="query", action="give --node or --tag")
    question: dict[str, Any] = {"metric": metric, "node": node, "tag": tag, "top": _few(top), "live": live}
    question |= {"instance": "*" if every else instance, "group": group, "stat": stat, "method": method, "cut": cut}
    question |= _range(start, end)
    if spool is not None:
        answers = _of_spool(spool, stream, question, translation)
    else:
        with unit.client(timeout_seconds=timeout, pseudonyms=translation) as client:
            answers = client.query(**question)
    _print_answers(answers, output, is_list=bool(every or group or top))


def _few(top: int) -> int:
    if top > MOST_INSTANCES:
        what = f"{top:,} instances or groups are more than one answer has"
        raise UsageError(what, where="--top", action=f"give {MOST_INSTANCES:,} at most, or --all")
    return top


def _of_spool(
    spool: Path, stream: str | None, question: Mapping[str, Any], translation: Translation | None
) -> list[QueryAnswer]:
    from sojourn.node.agent.local import ask_spool

    found = ask_spool(spool, stream, translation.question(question) if translation else question)
    return cast("list[QueryAnswer]", translation.answers(found) if translation else found)


def _refuse(given: Sequence[str], beside: str) -> None:
    if given:
        raise UsageError(f"{' and '.join(given)} has no meaning beside {beside}", where="query", action="leave it out")


def _print_segment(
    client: Client, asked: SegmentOptions, span: tuple[str | None, str], about: Mapping[str, Any], output: Output
) -> None:
    from sojourn.cli.segments.measure import FLOW_COLUMNS, print_result, print_segment
    from sojourn.core.units import parse_duration

    if asked.packets:
        _print_packets(client, asked, span, about["top"], output)
        return
    _refuse(["--last"] if asked.last else [], "a question without --packets")
    names, question = asked.segment or [], {**_range(*span), **about, "by": asked.by}
    if asked.lost:
        _print_lost(client, asked, question, output)
        return
    if any(sign in name for name in names for sign in "*?"):
        _print_ranking(client, asked, question, output)
        return
    interval_ns = 0 if asked.interval is None else parse_duration(asked.interval, where="--interval")
    if asked.interval is not None and interval_ns <= 0:
        raise UsageError(f"{asked.interval!r} is no length of time", where="--interval", action="give one such as 10s")
    whole = {**question, "interval_ns": interval_ns, "flows": asked.flow or []}
    if len(names) == 1:
        print_segment(client.query_segment(names[0], **whole), output, verbose=True)
        return
    path = client.query_path(names, **whole)
    warn(path.warnings)
    means = [TableColumn(name, heading, _shown_time) for name, heading in path.headings]
    print_result(path, output, [*FLOW_COLUMNS, *means, TableColumn("slowest", "slowest", justify="left")])


def _print_lost(client: Client, asked: SegmentOptions, question: Mapping[str, Any], output: Output) -> None:
    from sojourn.cli.segments.measure import FLOW_COLUMNS, print_result
    from sojourn.core.units import format_time

    names = asked.segment or []
    if len(names) > 1 or any(sign in name for name in names for sign in "*?"):
        raise UsageError("lost packets are those of one segment", where="--lost", action="give --segment once, by name")
    _refuse([name for name in asked.given if name in ("--by", "--interval")], "--lost")
    most = {"most": question["top"]} if question["top"] else {}
    found = client.lost_packets(names[0], question["from_ns"], question["to_ns"], flows=asked.flow or [], **most)
    columns = [TableColumn("time_ns", "sent at", format_time, justify="left"), *FLOW_COLUMNS]
    columns += [TableColumn("burst", "burst", "{:,}".format, rank=1)]
    columns += [TableColumn("doubtful", "may be late", lambda value: "yes" if value else "", rank=2)]
    print_result(found, output, columns)
    for note in found.notes:
        console(stderr=True).print(cell(note))


def _print_packets(
    client: Client, asked: SegmentOptions, span: tuple[str | None, str], top: int, output: Output
) -> None:
    from sojourn.cli.segments.measure import print_result
    from sojourn.core.units import format_time, parse_duration

    names, flows = asked.segment or [], asked.flow or []
    if len(names) > 1 or any(sign in name for name in names for sign in "*?"):
        raise UsageError("packets are those of one segment", where="--packets", action="give --segment once, by name")
    if len(flows) != 1:
        what = "which flow's packets is not said" if not flows else "packets are those of one flow"
        raise UsageError(what, where="--packets", action="give --flow 'SRC:PORT > DEST:PORT tcp' once")
    _refuse([name for name in asked.given if name in ("--by", "--interval", "--lost")], "--packets")
    about: dict[str, Any] = {"most": top} if top else {}
    if span != (None, "now"):
        _refuse(["--last"] if asked.last else [], "--from and --to")
        about |= _range(*span)
    elif asked.last is not None:
        about["last_ns"] = parse_duration(asked.last, where="--last")
        if about["last_ns"] <= 0:
            raise UsageError(f"{asked.last!r} is no length of time", where="--last", action="give one such as 10s")
    found = client.flow_packets(names[0], flows[0], **about)
    warn(found.warnings)
    columns = [
        TableColumn("time_ns", "sent at", format_time, justify="left"),
        TableColumn("delay_ns", "delay", _shown_time),
        TableColumn("fate", "", lambda fate: "" if fate == "arrived" else str(fate), justify="left"),
    ]
    print_result(found, output, columns)
    for note in found.notes:
        console(stderr=True).print(cell(note))


def _print_ranking(client: Client, asked: SegmentOptions, question: Mapping[str, Any], output: Output) -> None:
    names = asked.segment or []
    if len(names) > 1:
        raise UsageError("a pattern stands alone", where="--segment", action="give one pattern, or segments by name")
    _refuse([name for name in asked.given if name != "--by"], "a pattern of segments")
    by = asked.by or "mean"
    if by not in ("mean", "p99", "loss", "packets"):
        raise UsageError(f"segments are not ranked by {by}", where="--by", action="use mean, p99, loss or packets")
    span = question["from_ns"], question["to_ns"]
    rows = client.rank_segments(*span, segments=names[0], top=question["top"], by=by)
    if not rows:
        what = f"no segment that fits {names[0]!r} has an answer in the range"
        raise InputError(what, where="--segment", action="sojourn segment list tells which there are")
    write_rows([_block(rows)], output.how, path=output.output, name="segments", table=RANKING, view=output.view)


def _shown_time(value: float | None) -> str:
    return "–" if value is None else format_duration(value)


RANKING = [
    TableColumn("segment", "segment", justify="left"),
    TableColumn("sent", "packets", "{:,}".format),
    TableColumn("lost", "lost", lambda value: "–" if value is None else f"{value:,}"),
    TableColumn("loss", "loss", lambda value: "–" if value is None else f"{value:.2%}"),
    TableColumn("mean_ns", "mean", _shown_time),
    TableColumn("worst_p99_ns", "worst p99", _shown_time),
    TableColumn("clock", "clock", justify="left", rank=1),
    TableColumn("runs", "runs", "{:,}".format, rank=2),
]


def _range(start: str | None, end: str) -> dict[str, Any]:
    from sojourn.core.units import parse_time

    from_ns, to_ns = parse_time(USUAL_START if start is None else start), None if end == "now" else parse_time(end)
    if to_ns is not None and from_ns > to_ns:
        raise UsageError("the range ends before it begins", where="--to", action="give --from before --to")
    return {"from_ns": from_ns, "to_ns": to_ns}


def _print_answers(answers: Sequence[QueryAnswer], output: Output, *, is_list: bool) -> None:
    """The answers, and remarks on stderr; of an instance that nobody has seen, an error that names similar ones."""
    is_list = is_list or any(sign in (answer["instance"] or "") for answer in answers for sign in "*?")
    is_unknown = len(answers) == 1 and answers[0]["reason"] == "unknown instance"
    if output.how is Format.JSON and output.output is None:
        print_json(answers if is_list else answers[0])
    elif not is_unknown:
        left_out = ("covered", "notes") if output.how in (Format.CSV, Format.PARQUET) else ()
        order = row_order(_block(answers), output.sort, output.limit or None)
        rows = answers if order is None else [answers[i] for i in order]
        shown = _block([_shown(row) for row in rows] if output.how is Format.TABLE else rows, left_out)
        view = replace(output.view, sort="", limit=None)
        write_rows([shown], output.how, path=output.output, name="answers", table=_columns(answers), view=view)
    if is_unknown:
        what, notes = f"nobody has seen {answers[0]['instance']!r} in the range", answers[0]["notes"]
        raise InputError(what, where="--instance", action="; ".join(notes) or "--all lists every instance")
    remarks = [note for answer in answers for note in (*answer["notes"], answer["reason"] or "") if note]
    for note in dict.fromkeys(remarks):
        console(stderr=True).print(cell(note))


def _block(rows: Sequence[Mapping[str, Any]], left_out: Sequence[str] = ()) -> dict[str, list[object]]:
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ()) if name not in left_out}


def _shown(answer: QueryAnswer) -> dict[str, object]:
    """A row of the table: values in units for people; bounds that are the value itself are exact."""
    value, low, high = (_amount(answer[name], answer["unit"]) for name in ("value", "low", "high"))
    if answer["value"] is not None and answer["value"] == answer["low"] == answer["high"]:
        low = high = "exact"
    epochs = f"{answer['epochs']}{' + live' if answer['live'] else ''}"
    return {**answer, "value": value, "low": low, "high": high, "epochs": epochs}


def _columns(answers: Sequence[QueryAnswer]) -> list[TableColumn]:
    """What a table shows: nodes where there are several, and of groups how many instances they are of."""
    columns = [
        TableColumn("instance", "instance", justify="left"),
        TableColumn("value", answers[0]["stat"] if answers else "value"),
        TableColumn("low", "95 % low", rank=1),
        TableColumn("high", "95 % high", rank=1),
        TableColumn("samples", "samples", "{:,}".format, rank=2),
        TableColumn("epochs", "epochs", rank=3),
        TableColumn("method", "method", justify="left", rank=4),
    ]
    if len({answer["node"] for answer in answers}) > 1:
        columns.insert(0, TableColumn("node", "node", justify="left"))
    if any((answer["members"] or 0) > 1 for answer in answers):
        columns.insert(-1, TableColumn("members", "members", "{:,}".format, rank=2))
    return columns


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "ns":
        return format_duration(value)
    if unit == "bytes":
        return format_bytes(value)
    return f"{f'{value:,.4g}' if abs(value) < 1e4 else f'{value:,.0f}'} {unit}"
