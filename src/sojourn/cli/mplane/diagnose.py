"""`sojourn mplane path` and `sojourn mplane diagnose`: a path's delay and loss, and the segment that changed them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.mplane.planning import app
from sojourn.cli.mplane.source import PathOptions, read_range
from sojourn.cli.options import grouped
from sojourn.cli.output import say
from sojourn.cli.reports import ReportOption, check_report, write_report
from sojourn.core.errors import UsageError
from sojourn.core.units import parse_duration, parse_share

if TYPE_CHECKING:
    from sojourn.mplane.planning.live_topology import Patience
    from sojourn.mplane.station.diagnosis import Diagnosis, DiagnosisPlan

_FOREVER_NS = 2**63 - 1
_INTERVALS = 10
StationFormat = Annotated[str, typer.Option("--format", metavar="FORMAT", help="table or json.")]


@app.command(epilog="Example:  sojourn mplane path --from a --to f -t net.csv --upgraded b,e a.jsonl b.epochs")
@grouped
def path(
    asked: PathOptions,
    between: Annotated[
        str | None, typer.Option(metavar="TIME..TIME", help="Intervals that begin in this range; default the last 10.")
    ] = None,
    output_format: StationFormat = "table",
) -> None:
    """Put a path's delay, deviation and loss together from its segments, and compare with probes over all of it.

    A segment that was not measured leaves the answer incomplete, and is named.
    """
    from sojourn.cli.mplane.output import print_state
    from sojourn.mplane.station.paths import by_segment, path_state, reached_ns

    _check_format(output_format)
    known = asked.read()
    since, until = read_range(between, where="--between") if between else (0, _FOREVER_NS)
    if between is None and asked.server is not None:
        since = time.time_ns() - 60_000_000_000
    found, whole = by_segment(asked.measurements(since, until), known, dscp=asked.dscp)
    if between is None:
        longest = max((one.end_ns - one.start_ns for some in found.values() for one in some), default=0)
        begin = reached_ns(found) - _INTERVALS * longest
        found = {segment: [one for one in some if one.start_ns >= begin] for segment, some in found.items()}
        whole = [one for one in whole if one.start_ns >= begin]
    print_state(path_state(known, found, whole), output_format)


@app.command(
    epilog="Example:  sojourn mplane diagnose --from a --to f -t net.csv --upgraded b,e "
    "--server http://127.0.0.1:8080 --baseline -10m..-5m"
)
@grouped
def diagnose(
    asked: PathOptions,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="TIME..TIME", help="What to compare with; by default the first half of the data."),
    ] = None,
    now: Annotated[
        str | None, typer.Option(metavar="TIME", help="When the intervals of now end; by default with the newest.")
    ] = None,
    intervals: Annotated[int, typer.Option(min=2, max=1000, help="How many intervals are now.")] = 3,
    least: Annotated[
        str, typer.Option(metavar="TIME|%", help="The least change of delay to report; a share is of the path's delay.")
    ] = "5%",
    least_loss: Annotated[str, typer.Option(metavar="%", help="The least change of loss to report.")] = "0.1%",
    false_alarms: Annotated[
        str | None,
        typer.Option(
            metavar="%",
            help="How often a diagnosis may blame a segment where nothing changed; by default 1%, 0.01% with --watch.",
        ),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="With --server: how far back to look, besides --baseline.")
    ] = "-10m",
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on: a line for every verdict that differs from the last, until Ctrl-C.")
    ] = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="--watch: time between two looks.")] = "1s",
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="--watch: for how long; else until Ctrl-C.")
    ] = None,
    report: ReportOption = None,
    output_format: StationFormat = "table",
) -> None:
    """Name the segment that made a path slow or lossy: now against a baseline, with an interval for each change.

    Says "nothing changed", "cleared" after an earlier change, or "too thin" and why, when that is the answer.
    """
    from sojourn.cli.mplane.output import print_diagnosis
    from sojourn.core.units import parse_time
    from sojourn.mplane.planning.live_topology import Patience
    from sojourn.mplane.station.diagnosis import DiagnosisPlan, Window
    from sojourn.mplane.station.diagnosis import diagnose as diagnose_path

    _check_format(output_format)
    if watch and report is not None:
        raise UsageError("a watch has no end to report", where="--report", action="leave --watch or --report out")
    sources = list(asked.files or [])
    check_report(report, sources)
    before = Window(*read_range(baseline, where="--baseline")) if baseline else None
    is_share = least.strip().endswith("%")
    plan = DiagnosisPlan(
        now_ns=parse_time(now) if now else None,
        before=before,
        intervals=intervals,
        dscp=asked.dscp,
        least_share=parse_share(least) if is_share else 0.0,
        least_ns=0 if is_share else parse_duration(least),
        least_loss=parse_share(least_loss),
        false_alarms=parse_share(false_alarms or ("0.01%" if watch else "1%")),
    )
    if watch:
        _watch(asked, plan, Patience.parse(every, duration), since, output_format)
        return
    known = asked.read()
    from_ns = before.from_ns if before else parse_time(since) if asked.server else 0
    until = plan.now_ns if plan.now_ns is not None else _FOREVER_NS
    result = diagnose_path(known, asked.measurements(from_ns, until), plan)
    print_diagnosis(result, output_format)
    for note in result.notes:
        say(note)
    write_report(result, report, sources)


def _watch(asked: PathOptions, plan: DiagnosisPlan, patience: Patience, since: str, how: str) -> None:
    """Print the verdict, and then every other one; files are read whole, a query unit is asked for what is new."""
    from sojourn.cli.mplane.output import print_verdict
    from sojourn.core.executors.interrupts import stopping_on_interrupt
    from sojourn.core.units import parse_time
    from sojourn.mplane.planning.live_topology import repeatedly
    from sojourn.mplane.station.diagnosis import diagnose as diagnose_path
    from sojourn.mplane.station.diagnosis import new_verdicts
    from sojourn.mplane.station.paths import RecentSegments

    if plan.now_ns is not None:
        raise UsageError("a watch ends with the newest intervals", where="--now", action="leave --now or --watch out")
    start_ns = time.time_ns()
    baseline = (plan.before.from_ns, plan.before.to_ns) if plan.before else None
    keep_ns = start_ns - parse_time(since, now_ns=start_ns)
    recent = RecentSegments(asked.measurements, baseline, keep_ns=keep_ns)
    read = asked.reader()

    def look() -> Diagnosis:
        known = read()
        rows = asked.measurements(0, _FOREVER_NS) if asked.files else recent.rows(time.time_ns())
        return diagnose_path(known, rows, plan)

    kept = "the last verdict is kept until it answers"
    with stopping_on_interrupt(patience.stop):
        for result in new_verdicts(repeatedly(look, patience, lambda error: say(f"{error}; {kept}"))):
            print_verdict(result, how)
            sys.stdout.flush()


def _check_format(text: str) -> None:
    if text not in ("table", "json"):
        raise UsageError(f"there is no format {text[:40]!r}", where="--format", action="use table or json")
