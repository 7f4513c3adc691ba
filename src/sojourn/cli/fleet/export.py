"""`sojourn export`: what a fleet measured, for Prometheus, OTLP, Parquet and Grafana."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.options import UnitAccess, command_group, grouped
from sojourn.cli.output import opened, progress, say
from sojourn.core.errors import InputError, ServerError, UsageError

if TYPE_CHECKING:
    from sojourn.client.query_unit import ReadingQuestion

# What was computed for one who asked is kept for a few seconds.
LEAST_EVERY_SECONDS = 5.0

app = command_group(
    "Hand what a fleet measured to other systems: Prometheus, OTLP, Parquet, Grafana.",
    "sojourn export otlp --to http://127.0.0.1:4318 --every 60s",
)
WriteOption = Annotated[Path | None, typer.Option("--write", "-w", metavar="FILE", help="Write to a file, not stdout.")]


@dataclass(frozen=True)
class Wanted:
    """Which readings: a group of options. Their limits are checked by the query unit."""

    lag: Annotated[
        str, typer.Option(metavar="TIME", help="How long ago the window ends: the longest epoch of the nodes, or more.")
    ] = "15s"
    top: Annotated[int, typer.Option(min=0, max=100, help="Of each metric the largest instances.")] = 10
    nodes: Annotated[int, typer.Option(min=0, max=1000, help="Of each metric the largest nodes.")] = 100
    segments: Annotated[int, typer.Option(min=0, max=1000, help="The segments with most packets.")] = 100
    tag: Annotated[str | None, typer.Option(help="Only nodes with this tag, and no segments.")] = None

    def question(self, window: str) -> ReadingQuestion:
        return {
            "window": window,
            "lag": self.lag,
            "top": self.top,
            "nodes": self.nodes,
            "segments": self.segments,
            "tag": self.tag,
        }


@app.command(epilog="Example:  sojourn export prometheus --window 5m --top 20 -w /var/lib/node_exporter/sojourn.prom")
@grouped
def prometheus(
    *,
    window: Annotated[str, typer.Option(metavar="TIME", help="The stretch of time that readings are of.")] = "60s",
    wanted: Wanted,
    openmetrics: Annotated[bool, typer.Option("--openmetrics", help="In OpenMetrics, not in the text format.")] = False,
    output: WriteOption = None,
    unit: UnitAccess,
) -> None:
    """Print the readings of the last window once.

    A Prometheus that reaches the query unit scrapes them itself, at /metrics/fleet.
    """
    from sojourn.exports.prometheus import OPENMETRICS, exposition

    with unit.client() as client:
        found = client.readings(**wanted.question(window))
    body, _ = exposition(found, OPENMETRICS if openmetrics else "text/plain")
    with opened(output) as file:
        file.write(body.decode())


@app.command(epilog="Example:  sojourn export otlp --to http://127.0.0.1:4318 --every 60s")
@grouped
def otlp(
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The collector, OTLP over HTTP: http://HOST:4318.")],
    every: Annotated[str, typer.Option(metavar="TIME", help="How often, and the window of each time.")] = "60s",
    once: Annotated[bool, typer.Option("--once", help="Push one window, and end.")] = False,
    collector_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates (PEM) to trust for the collector.")
    ] = None,
    wanted: Wanted,
    unit: UnitAccess,
) -> None:
    """Push the readings of every window to an OpenTelemetry collector, until Ctrl-C.

    What the collector wants in its headers, such as a token, is taken from OTEL_EXPORTER_OTLP_HEADERS. A window that it
    did not take is not pushed again.
    """
    from sojourn.core.units import parse_duration
    from sojourn.exports.otlp import OtlpPusher

    seconds = parse_duration(every, where="--every") / 1e9
    if seconds < LEAST_EVERY_SECONDS:
        raise UsageError(f"{every!r} is too often", where="--every", action=f"give {LEAST_EVERY_SECONDS:.0f}s or more")
    last_said = ""
    due = time.monotonic()
    with unit.client() as client, OtlpPusher(to, ca_file=collector_ca, seconds=min(seconds, 10.0)) as pusher:
        if not once:
            say(f"pushing to {pusher.address} every {every}; Ctrl-C stops")
        while True:
            try:
                found = client.readings(**wanted.question(every))
                pusher.push(found)
                if once or last_said:
                    say(f"pushed {found.series:,} series" + (": it goes on" if last_said else ""))
                last_said = ""
            except (ServerError, InputError) as error:
                if once:
                    raise
                if str(error) != last_said:
                    say(f"{error}; trying again every {every}")
                last_said = str(error)
            if once:
                return
            due = max(due + seconds, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


@app.command(epilog="Example:  sojourn export parquet --from -1d --every 5m --metric disk_io -w estimates.parquet")
@grouped
def parquet(
    *,
    output: Annotated[Path, typer.Option("--write", "-w", metavar="FILE", help="The file; replaces what is there.")],
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="-1d, 10:05, ISO 8601 or Unix seconds.")] = "-1h",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="As --from.")] = "now",
    every: Annotated[str, typer.Option(metavar="TIME", help="The length of a step, answered by itself.")] = "5m",
    metric: Annotated[list[str] | None, typer.Option(help="Only this metric; repeatable.")] = None,
    node: Annotated[list[str] | None, typer.Option(help="Only this node; repeatable.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only nodes with this tag.")] = None,
    top: Annotated[int, typer.Option(min=0, max=1000, help="Instances of each metric and step, the largest.")] = 100,
    unit: UnitAccess,
) -> None:
    """Write estimates of all metrics, step by step: every node's total and the largest instances.

    Flows of a segment are written by `sojourn query --segment NAME --interval 5m --format parquet`.
    """
    from sojourn.client.estimates import EstimatesAsked, each_step
    from sojourn.core.units import parse_duration, parse_time
    from sojourn.exports.parquet import estimate_file

    asked = EstimatesAsked(
        from_ns=parse_time(start),
        to_ns=parse_time(end),
        every_ns=parse_duration(every, where="--every"),
        metrics=tuple(metric or ()),
        nodes=tuple(node or ()),
        tag=tag,
        top=top,
    )
    if output.is_dir():
        raise UsageError("this is a directory", where=str(output), action="name a file to write to")
    with unit.client() as client, progress("estimates") as advance, estimate_file(output) as file:
        for rows in each_step(client, asked, advance):
            file.add(rows)
    say(f"wrote {file.rows:,} estimates to {output}")


@app.command(epilog="Example:  sojourn export grafana -w sojourn-dashboard.json")
def grafana(output: WriteOption = None) -> None:
    """Print a dashboard for Grafana; import it there, and choose the Prometheus that scrapes the query unit."""
    from sojourn.exports.grafana import dashboard

    with opened(output) as file:
        json.dump(dashboard(), file, indent=2)
        file.write("\n")
    if output is None:
        sys.stdout.flush()
