"""`sojourn estimate`: the answer from two points' epochs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.options import FormatOption, WriteOption
from sojourn.cli.output import choose_format
from sojourn.cli.segments.measure import Method
from sojourn.cli.segments.output import (
    SegmentReport,
    interval_rows,
    loss_warnings,
    print_report,
    row_limit,
    totals_json,
)
from sojourn.core.errors import InputError, UsageError, WireError
from sojourn.core.units import parse_duration

if TYPE_CHECKING:
    from sojourn.core.keys import TrafficKey
    from sojourn.epochs.epoch import Epoch
    from sojourn.segments.two_step import TwoStepAnswer

__all__ = ["estimate"]

_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn estimate in.epochs out.epochs --limit 5
  $ sojourn estimate in.epochs out.epochs --flow '10.81.0.2:44244 > 10.82.0.2:5202 udp'
  $ sojourn estimate in.epochs out.epochs --sizes flows.json --format json
  $ sojourn estimate in.epochs out.epochs --heavy 1%

Sizes are what sojourn flows --format json writes at the sender; COLATE needs them.
"""


def estimate(
    sender: Annotated[Path, typer.Argument(metavar="SENDER_EPOCHS", help="Written by sojourn record.")],
    receiver: Annotated[Path, typer.Argument(metavar="RECEIVER_EPOCHS", help="Written by sojourn record.")],
    flow: Annotated[
        list[str] | None,
        typer.Option("--flow", metavar="KEY", help="Only this flow; repeatable."),
    ] = None,
    sizes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Flow sizes at the sender: JSON of sojourn flows.")
    ] = None,
    method: Annotated[
        Method,
        typer.Option(help="joint: decode all flows together (needs all keys); literal: one by one, as published."),
    ] = Method.JOINT,
    clock: Annotated[str, typer.Option(help="none, or offset=TIME that the receiver's clock is ahead.")] = "none",
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Also answer per interval, as given to record.")
    ] = None,
    heavy: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|PACKETS", help="Instead: the flows with so many packets (1000) or that share (1%)."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Only the largest flows; 0 is all. Default: 20 in a table, else all.")
    ] = None,
    output_format: FormatOption = None,
    output: WriteOption = None,
) -> None:
    """Estimate delay and loss of every flow from two points' epochs."""
    how = choose_format(output_format, output)
    if heavy is not None:
        from sojourn.cli.segments.heavy import print_heavy

        asked = _asked(flow) if flow else None
        print_heavy(_read(sender), asked, heavy, limit=row_limit(limit, how), how=how, path=output)
        return
    from sojourn.segments.two_step import estimate_epochs

    interval_ns = parse_duration(interval) if interval else 0
    answer = estimate_epochs(
        _read(sender),
        _read(receiver),
        keys=_asked(flow) if flow else None,
        packets=_sizes(sizes) if sizes else None,
        offset_ns=_offset(clock),
        interval_ns=interval_ns,
        method=method.value,
    )
    print_report(_report(answer, row_limit(limit, how)), how, output)


estimate.__doc__ = f"{estimate.__doc__}\n\n\b\n{_EXAMPLE}"


def _read(path: Path) -> list[Epoch]:
    from sojourn.epochs.wire import read_epochs

    with path.open("rb") as file:
        try:
            epochs = list(read_epochs(file))
        except WireError as error:
            action = error.action or "give a file written by sojourn record"
            raise WireError(error.what, where=f"{path}, {error.where}", action=action) from None
    if not epochs:
        raise InputError("there is no epoch in it", where=str(path), action="write it with sojourn record")
    return epochs


def _asked(texts: list[str]) -> list[TrafficKey]:
    from sojourn.core.keys import TrafficKey, parse_key

    keys = [parse_key(text) for text in texts]
    flows = [key for key in keys if isinstance(key, TrafficKey)]
    if len(flows) != len(keys):
        raise UsageError(f"{texts[0]!r} is no flow", where="--flow", action="write 'SRC:PORT > DEST:PORT tcp'")
    return flows


def _sizes(path: Path) -> dict[int, int]:
    """Packets by flow id, from the JSON that `sojourn flows` writes."""
    from ipaddress import ip_address

    from sojourn.core.keys import PROTOCOLS, FlowKey, key_id

    try:
        rows = json.loads(path.read_text())["flows"]
        sizes = {}
        for row in rows:
            protocol = PROTOCOLS.get(str(row["protocol"])) or int(row["protocol"])
            ends = ip_address(row["src_ip"]), row["src_port"], ip_address(row["dest_ip"]), row["dest_port"]
            sizes[key_id(FlowKey(*ends, protocol))] = int(row["packets"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"this is no flow table ({error})", where=str(path), action="write it with sojourn flows --format json"
        ) from None
    return sizes


def _offset(text: str) -> int:
    from sojourn.matching.clock.correction import parse_clock

    if text == "auto":
        raise UsageError("epochs do not tell clocks", where="--clock", action="use none or offset=TIME")
    return parse_clock(text).offset_ns


def _report(answer: TwoStepAnswer, limit: int | None) -> SegmentReport:
    whole = answer.whole
    rows = []
    if whole.flows is not None:
        if answer.intervals:
            rows = [
                interval_rows(part.flows, answer.keys.__getitem__, limit=limit, start_ns=part.first_ns)
                for part in answer.intervals
                if part.flows is not None
            ]
        else:
            rows = [interval_rows(whole.flows, answer.keys.__getitem__, limit=limit)]
    sketch: dict[str, object] = {
        "name": answer.kind,
        "memory_bytes": math.ceil(answer.memory_bits / 8),
        "bits_per_packet": answer.memory_bits / max(1, whole.totals.sent),
    }
    report = SegmentReport(totals_json(whole), rows, sketch)
    report.intervals = [{"start_ns": p.first_ns, "end_ns": p.last_ns, **totals_json(p)} for p in answer.intervals]
    report.warnings += [*answer.warnings, *loss_warnings(report)]
    if answer.literal_because:
        report.notes.append(f"flows are answered one by one: {answer.literal_because}")
    if answer.other_way:
        report.notes.append(
            f"{answer.other_way:,} flows travel the other way (or the clocks differ) and are part of the aggregate; "
            "record with a filter such as 'src net 10.0.0.0/8' to measure one direction"
        )
    return report
