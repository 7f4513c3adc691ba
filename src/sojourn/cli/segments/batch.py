"""`sojourn batch`: many captures, or files of epochs, at once, on all processors or on a Dask cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sojourn.cli.options import TABLE_ROWS, InnerOption, KeyOption, Output, StrictOption, command_group, grouped
from sojourn.cli.output import Format, TableColumn, choose_format, loss_style, progress, say, warn, write_rows
from sojourn.cli.segments.measure import SketchOptions
from sojourn.core.errors import UsageError, harmless
from sojourn.core.units import format_duration

if TYPE_CHECKING:
    from sojourn.segments.batch.parts import Measuring, Part

app = command_group(
    "Measure, record or decode many files at once: on all processors of this machine, or on a Dask cluster.",
    "sojourn batch measure 'in/*.pcap.gz' 'out/*.pcap.gz' --workers 8",
)
MOST_WARNINGS = 20


@dataclass(frozen=True)
class Workers:
    """Who does the work: a group of options."""

    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of this machine; by default one for each processor.")
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="A Dask cluster's scheduler, tcp://HOST:PORT, instead; it has the files too."
        ),
    ] = None


SendersArgument = Annotated[
    str, typer.Argument(metavar="SENDERS", help="A directory, or a pattern in quotes: 'in/*.pcap.gz'.")
]
ReceiversArgument = Annotated[
    str, typer.Argument(metavar="RECEIVERS", help="The same of the receiving point, paired in order of the names.")
]
FlowsOption = Annotated[
    Path | None,
    typer.Option(
        "--flows", metavar="FILE", help="Also write every flow of every part: .parquet, .csv, .jsonl or .json."
    ),
]


def _time(value: float | None) -> str:
    return "—" if value is None else format_duration(value)


COLUMNS = [
    TableColumn("part", "part"),
    TableColumn("sender", "sender", justify="left"),
    TableColumn("receiver", "receiver", justify="left", rank=3),
    TableColumn("sent", "packets", "{:,}".format),
    TableColumn("lost", "lost", "{:,}".format, style=loss_style),
    TableColumn("mean_ns", "mean", _time),
    TableColumn("p99_ns", "p99", _time, rank=1),
    TableColumn("std_ns", "deviation", _time, rank=2),
    TableColumn("error", "no answer because", justify="left", rank=0),
]


@app.command(epilog="Example:  sojourn batch measure 'in/*.pcap.gz' 'out/*.pcap.gz' --flows flows.parquet")
@grouped
def measure(
    *,
    senders: SendersArgument,
    receivers: ReceiversArgument,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[FILTER]...", help="A filter in tcpdump's syntax.")
    ] = None,
    who: Workers,
    recorded: SketchOptions,
    output: Output,
    flows: FlowsOption = None,
    clock: Annotated[str, typer.Option(help="auto, none or offset=TIME, as of `sojourn measure`.")] = "auto",
    max_delay: Annotated[str | None, typer.Option(metavar="TIME", help="No packet is longer on its way.")] = None,
    key: KeyOption = "five-tuple",
    inner: InnerOption = False,
    strict: StrictOption = False,
) -> None:
    """Measure every pair of captures, as `sojourn measure` does one, and add them up."""
    from sojourn.segments.batch.parts import captures_measure

    options: dict[str, Any] = {**recorded.given(), "where": " ".join(words or []), "clock": clock}
    options |= {"max_delay": max_delay, "key": key, "inner": inner, "strict": strict}
    _run(senders, receivers, captures_measure(options), who, output, flows)


@app.command(epilog="Example:  sojourn batch estimate in-epochs/ out-epochs/ --cluster tcp://10.0.0.1:8786")
@grouped
def estimate(
    *,
    senders: SendersArgument,
    receivers: ReceiversArgument,
    who: Workers,
    output: Output,
    flows: FlowsOption = None,
    method: Annotated[Literal["literal", "joint"], typer.Option(help="joint decodes all flows together.")] = "joint",
    clock: Annotated[str, typer.Option(help="none, or offset=TIME that the receiver's clock is ahead.")] = "none",
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Flows of each interval, as given to record.")
    ] = None,
) -> None:
    """Decode every pair of files of epochs, as `sojourn estimate` does one, and add them up."""
    from sojourn.segments.batch.parts import epochs_measure

    options: dict[str, Any] = {"method": method, "clock": clock, "interval": interval}
    _run(senders, receivers, epochs_measure(options), who, output, flows)


@app.command(epilog="Example:  sojourn batch record eth0-*.pcap.gz --node gateway-7 -w gateway-7.epochs")
@grouped
def record(
    *,
    captures: Annotated[
        list[str], typer.Argument(metavar="CAPTURE...", help="Captures of one point, such as rotated ones.")
    ],
    output: Annotated[Path, typer.Option("--write", "-w", metavar="EPOCHS", help="Where to write; - is stdout.")],
    node: Annotated[str, typer.Option(help="Name of the node that they are of.")],
    who: Workers,
    recorded: SketchOptions,
    where: Annotated[str, typer.Option("--filter", metavar="FILTER", help="Only these, in tcpdump's syntax.")] = "",
    flows: Annotated[int, typer.Option(min=1, help="Flows expected in an epoch.")] = 1000,
    loss: Annotated[float, typer.Option(min=0, max=1, help="Share of packets expected to be lost.")] = 0.01,
    salt: Annotated[int, typer.Option(min=0, help="Salt of the hash functions.")] = 0,
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="An epoch for every stretch of this time; else one of all.")
    ] = None,
    key: KeyOption = "five-tuple",
    inner: InnerOption = False,
    strict: StrictOption = False,
) -> None:
    """Record many captures of one point into epochs, as `sojourn record` does one, and merge them."""
    from sojourn.core.executors.executor import open_executor
    from sojourn.segments.batch.recording import record_merged
    from sojourn.segments.record import check_target

    for path in captures:
        check_target(path, output)
    options: dict[str, Any] = {**recorded.given(), "where": where, "flows": flows, "loss": loss, "salt": salt}
    options |= {"interval": interval, "key": key, "inner": inner, "strict": strict}
    is_cluster = who.cluster is not None
    with progress("record") as advance, open_executor(who.workers, who.cluster) as executor:
        paths = [str(Path(path).absolute()) if is_cluster else path for path in captures]
        merged = record_merged(executor, paths, node=node, is_cluster=is_cluster, advance=advance, **options)
    size = merged.write(lambda: nullcontext(sys.stdout.buffer) if str(output) == "-" else output.open("wb"))
    say(merged.summary(size))
    warn(merged.warnings)


def _run(senders: str, receivers: str, measure: Measuring, who: Workers, output: Output, flows: Path | None) -> None:
    """Measure all pairs; exit code 1 if one of them could not be."""
    from sojourn.core.executors.executor import open_executor
    from sojourn.segments.batch.parts import BatchResult, Pair, flow_blocks, measured_parts, pairs_of

    pairs, is_cluster = pairs_of(senders, receivers), who.cluster is not None
    if is_cluster:  # its workers are in directories of their own
        pairs = [Pair(sender=str(Path(p.sender).absolute()), receiver=str(Path(p.receiver).absolute())) for p in pairs]
    how = None if flows is None else choose_format(None, flows)
    if how is Format.TABLE:
        raise UsageError("flows are for programs", where=str(flows), action="use .parquet, .csv, .jsonl or .json")
    parts: list[Part] = []
    with progress("batch") as advance, open_executor(who.workers, who.cluster) as executor:
        known: dict[str, Any] = {"is_cluster": is_cluster, "with_flows": how is not None, "advance": advance}
        found: Iterator[Part] = measured_parts(executor, pairs, measure, **known)
        blocks = flow_blocks(found, parts)
        if how is None:
            for _ in blocks:
                pass
        else:
            write_rows(blocks, how, path=flows)
    result = BatchResult(parts)
    if output.how is Format.TABLE:
        print("\n".join(map(harmless, result.summary.split("\n"))), flush=True)
    shown = [column for column in COLUMNS if column.name != "error" or result.failed]
    left_out = output.write(result, shown)
    if left_out and output.how is Format.TABLE and output.limit is None:
        say(f"{left_out} more parts than {TABLE_ROWS}; --limit 0 shows all")
    texts = [f"part {number}: {text}" for number, part in enumerate(parts, start=1) for text in part.warnings]
    warn([*texts[:MOST_WARNINGS], *([f"and {len(texts) - MOST_WARNINGS} more"] if len(texts) > MOST_WARNINGS else [])])
    if result.failed:
        say(
            f"{len(result.failed)} of {len(parts)} parts could not be measured; the first one: {result.failed[0].error}"
        )
        raise typer.Exit(1)
