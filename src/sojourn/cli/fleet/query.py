"""`sojourn query`: ask the query unit about an instance, a node or a group of nodes."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sojourn.cli.fleet.unit_access import CaFileOption, ServerOption, TokenFileOption, TokenOption, UnitAccess
from sojourn.cli.output import cell, console, print_json
from sojourn.core.errors import UsageError
from sojourn.core.units import format_bytes, format_duration

__all__ = ["EXAMPLE", "HELP", "query"]

HELP = "Ask how much of a metric an instance used, or its mean, between two times; the current epoch included."
EXAMPLE = "Example:  sojourn query --node gateway-7 --metric disk_io --instance 'mosquitto[812]' --from -10m --stat sum"


class Stat(StrEnum):
    """What to compute."""

    SUM = "sum"
    MEAN = "mean"


class QueryMethod(StrEnum):
    """How buckets are decoded."""

    LITERAL = "literal"
    JOINT = "joint"


class Cut(StrEnum):
    """What happens to epochs that the range cuts."""

    WHOLE = "whole"
    INSIDE = "inside"
    PRO_RATA = "pro-rata"


class QueryFormat(StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    JSON = "json"


def query(
    metric: Annotated[str, typer.Option(help="What was measured: disk_io, cpu, memory, rtt, …")],
    node: Annotated[str | None, typer.Option(help="The node that measured it.")] = None,
    tag: Annotated[str | None, typer.Option(help="All nodes with this tag, added up.")] = None,
    instance: Annotated[
        str | None,
        typer.Option(help="A process 'name[pid]' or flow 'SRC:PORT > DEST:PORT tcp'; none is the whole node."),
    ] = None,
    top: Annotated[int, typer.Option(min=0, max=1000, help="The largest instances instead of one.")] = 0,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="-10m, 10:05, ISO 8601 or Unix seconds.")
    ] = "-5m",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="As --from; now is the current epoch too.")] = "now",
    stat: Annotated[
        Stat | None,
        typer.Option(help="sum of the measurements, or their mean; by default what suits the metric."),
    ] = None,
    method: Annotated[QueryMethod, typer.Option(help="joint decodes all instances together.")] = QueryMethod.JOINT,
    cut: Annotated[
        Cut, typer.Option(help="Epochs that the range cuts: taken whole, left out, or by their share of time.")
    ] = Cut.WHOLE,
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
    server: ServerOption = "http://127.0.0.1:8080",
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="How long to wait for the answer.")] = 60.0,
    output_format: Annotated[QueryFormat, typer.Option("--format", help="For people or programs.")] = QueryFormat.TABLE,
) -> None:
    """Ask."""
    from sojourn.core.units import parse_time

    question: dict[str, Any] = {
        "metric": metric,
        "node": node,
        "tag": tag,
        "instance": instance,
        "top": top,
        "from_ns": parse_time(start),
        "to_ns": None if end == "now" else parse_time(end),
        "stat": stat.value if stat else None,
        "method": method.value,
        "cut": cut.value,
        "live": live,
    }
    if spool is None and (node is None) == (tag is None):
        raise UsageError("a question is about one node or one tag", where="query", action="give --node or --tag")
    if end != "now" and question["from_ns"] > question["to_ns"]:
        raise UsageError("the range ends before it begins", where="--to", action="give --from before --to")
    if spool is not None:
        from sojourn.node.agent.local import ask_spool

        answers = ask_spool(spool, stream, question)
    else:
        with UnitAccess(server, token, token_file, ca_file).client(timeout_seconds=timeout) as client:
            answers = client.query(question)
    if output_format is QueryFormat.JSON:
        print_json(answers if top else answers[0])
    else:
        _print_answers(answers)


def _print_answers(answers: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = (
        "instance",
        answers[0]["stat"] if answers else "value",
        "95 % low",
        "95 % high",
        "samples",
        "epochs",
        "method",
    )
    for title in titles:
        table.add_column(title, justify="left" if title in ("instance", "method") else "right", no_wrap=True)
    for answer in answers:
        numbers = _shown(answer["value"], answer["low"], answer["high"], answer["unit"])
        epochs = f"{answer['epochs']}{' + live' if answer['live'] else ''}"
        name = answer.get("instance") or ""
        texts = (name, *numbers, f"{answer['samples']:,}", epochs, answer["method"])
        table.add_row(*map(cell, texts))
    console().print(table)
    stderr = console(stderr=True)
    for note in dict.fromkeys(
        note for answer in answers for note in (*answer["notes"], answer["reason"] or "") if note
    ):
        stderr.print(cell(note))


def _shown(value: float | None, low: float | None, high: float | None, unit: str) -> tuple[str, str, str]:
    """A value and its bounds in a unit for people; bounds that are the value itself are exact."""
    shown = partial(_amount, unit=unit)
    if value is not None and value == low == high:
        return shown(value), "exact", "exact"
    return shown(value), shown(low), shown(high)


def _amount(value: float | None, *, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "ns":
        return format_duration(value)
    if unit == "bytes":
        return format_bytes(value)
    return f"{f'{value:,.4g}' if abs(value) < 1e4 else f'{value:,.0f}'} {unit}"
