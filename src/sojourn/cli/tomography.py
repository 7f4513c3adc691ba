"""`sojourn tomography`: where, hop by hop, each packet of a collection network waited."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sojourn.cli.options import Output, VerboseOption, grouped
from sojourn.cli.output import Format, TableColumn, columns, progress, warn
from sojourn.cli.reports import ReportOption, check_report, write_report
from sojourn.core.units import format_duration, plural

if TYPE_CHECKING:
    from sojourn.tomography.result import TomographyResult

HELP = "Show where each packet waited: the delay at every hop, within guaranteed bounds, from the sink's trace alone."
EXAMPLE = """\
[bold]Examples[/bold]

\b
  $ sojourn lab wireless --nodes 100 -w trace.csv --truth hops.csv
  $ sojourn tomography trace.csv
  $ sojourn tomography trace.csv --packet 17:3 --bounds lp
  $ sojourn tomography trace.csv --truth hops.csv --format json | jq .summary
  $ sojourn tomography trace.csv --report waits.html
"""
PACKET_TABLE = [
    *columns("origin", "seq", "hop", "node"),
    *columns(delay_ns="delay", low_ns="at least", high_ns="at most", show=format_duration),
    *columns(likely_low_ns="likely from", likely_high_ns="to", show=format_duration, rank=1),
]
NODE_TABLE = [
    *columns("node"),
    *columns(mean_ns="mean delay", p95_ns="95 % within", show=format_duration),
    TableColumn("queue_share", "in queue", "{:.1%}".format),
    TableColumn("packets", "packets", "{:,}".format),
]
_CONFLICTS_SHOWN = 20


@grouped
def tomography(
    trace: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="The sink's trace: CSV, JSON lines (also .gz) or Parquet; - is stdin."),
    ],
    packet: Annotated[str, typer.Option(metavar="ORIGIN:SEQ", help="Only this packet, hop by hop.")] = "",
    truth: Annotated[
        Path | None, typer.Option(metavar="HOPS", help="The truth of every hop: show how far the answers are off.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="With --truth: show how far the baselines' answers are off as well.")
    ] = False,
    method: Annotated[
        Literal["domo", "published", "mnt"],
        typer.Option(
            help="domo: sums and node centres; published: as in Domo's paper; mnt: the middle of MNT's bounds."
        ),
    ] = "domo",
    window: Annotated[float, typer.Option(min=0.1, help="Length of a window in generation periods.")] = 4.0,
    ratio: Annotated[float, typer.Option(min=0.05, max=1.0, help="Share of each window that is kept.")] = 0.5,
    omega: Annotated[
        str | None, typer.Option(metavar="TIME", help="Least delay of a hop; learnt from the trace by default.")
    ] = None,
    epsilon: Annotated[
        str, typer.Option(metavar="TIME", help="Longest time from a packet's time stamp to its entering the queue.")
    ] = "2.1ms",
    sums: Annotated[
        Literal["auto", "exact", "upper", "own", "unused"],
        typer.Option(
            help="Sums of delays are equations (exact), upper bounds (upper), or bound their own packet (own); "
            "auto: by the trace."
        ),
    ] = "auto",
    bounds: Annotated[
        Literal["propagation", "lp"],
        typer.Option(help="lp: exact bounds by linear programs; much slower, and seldom much narrower."),
    ] = "propagation",
    cut: Annotated[
        int, typer.Option(min=10, metavar="N", help="Unknown times that a linear program looks at, at most.")
    ] = 10_000,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Processes at most; by default one for each processor, 1 is none beside."
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Work on a Dask cluster: its scheduler, tcp://HOST:PORT.")
    ] = None,
    report: ReportOption = None,
    verbose: VerboseOption = False,
    *,
    output: Output,
) -> None:
    from sojourn.tomography.result import tomography as locate

    check_report(report, [trace, *([truth] if truth else [])])
    by_node = output.how is Format.TABLE and not packet
    with progress(trace.name) as advance:
        result = locate(
            trace, packet=packet, truth=truth, baselines=baselines, method=method, window=window, ratio=ratio,
            omega=omega, epsilon=epsilon, sums=sums, bounds=bounds, cut=cut,
            likely=truth is not None or report is not None or not by_node, workers=workers, cluster=cluster,
            advance=advance,
        )  # fmt: skip
    _tell(result, verbose=verbose)
    write_report(result, report)
    if not by_node:
        output.write(result, PACKET_TABLE)
        return
    hidden = output.write(result.nodes, NODE_TABLE)
    print(result.summary + (f"\n{plural(hidden, 'node')} not shown" if hidden else ""), file=sys.stderr)


def _tell(result: TomographyResult, *, verbose: bool) -> None:
    """What was left out or does not fit together, on stderr."""
    trace, bounds = result.trace, result.bounds
    warn(result.warnings)
    if not verbose:
        return
    for kind, counts in (("ignored", trace.ignored), ("note", trace.notes)):
        for reason, count in counts.items():
            print(f"{kind}: {count:,} × {reason}", file=sys.stderr)
    for conflict in bounds.conflicts[:_CONFLICTS_SHOWN]:
        names = sorted({f"{trace.origin[p]}:{trace.shown_sequence[p]}" for p in (conflict.packet, conflict.other)})
        print(f"conflict: {conflict.kind} of packet {' and '.join(names)}", file=sys.stderr)
    if bounds.conflict_count > _CONFLICTS_SHOWN:
        print(f"conflict: {bounds.conflict_count - _CONFLICTS_SHOWN:,} more", file=sys.stderr)
