"""`sojourn mplane path` and `sojourn mplane diagnose`: a path's delay and loss, and the segment that changed them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.fleet.unit_access import CaFileOption, TokenFileOption, TokenOption, UnitAccess
from sojourn.cli.mplane.planning import WatchTimes
from sojourn.cli.mplane.source import (
    DirectedOption,
    FilesArgument,
    FromOption,
    NamesOption,
    ToOption,
    TopologyOption,
    UpgradedOption,
    path_reader,
    read_path,
    read_range,
    read_segments,
)
from sojourn.core.errors import UsageError, harmless
from sojourn.core.units import parse_duration, parse_share

if TYPE_CHECKING:
    from sojourn.core.errors import SojournError
    from sojourn.mplane.measurements import Segment, SegmentMeasurement
    from sojourn.mplane.planning.paths import PathSegments
    from sojourn.mplane.station.diagnosis import Diagnosis, DiagnosisPlan, Window

__all__ = ["RecentSegments", "watch_verdicts"]

_FOREVER_NS = 2**63 - 1
_INTERVALS = 10
ServerOption = Annotated[
    str | None, typer.Option(envvar="SOJOURN_SERVER", metavar="URL", help="Ask a query unit instead of files.")
]
DscpOption = Annotated[int, typer.Option(min=0, max=63, help="The class of traffic.")]
StationFormat = Annotated[str, typer.Option("--format", metavar="FORMAT", help="table or json.")]


def add_to(app: typer.Typer) -> None:
    """Make these commands sub-commands of `sojourn mplane`."""
    app.command(epilog="Example:  sojourn mplane path --from a --to f -t net.csv --upgraded b,e a.jsonl b.epochs")(path)
    app.command(
        epilog="Example:  sojourn mplane diagnose --from a --to f -t net.csv --upgraded b,e "
        "--server http://127.0.0.1:8080 --baseline -10m..-5m"
    )(diagnose)


def path(
    source: FromOption,
    target: ToOption,
    topology: TopologyOption,
    files: FilesArgument = None,
    upgraded: UpgradedOption = None,
    names: NamesOption = None,
    between: Annotated[
        str | None, typer.Option(metavar="TIME..TIME", help="Intervals that begin in this range; default the last 10.")
    ] = None,
    dscp: DscpOption = 0,
    directed: DirectedOption = None,
    server: ServerOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    output_format: StationFormat = "table",
) -> None:
    """Put a path's delay, deviation and loss together from its segments, and compare with probes over all of it.

    A segment that was not measured leaves the answer incomplete, and is named.
    """
    from sojourn.cli.mplane.output import print_state
    from sojourn.mplane.station.paths import by_segment, path_state, reached_ns

    _check_format(output_format)
    known = read_path(topology, source, target, upgraded, directed=directed, names=names)
    since, until = read_range(between, where="--between") if between else (0, _FOREVER_NS)
    if between is None and server is not None:
        since = time.time_ns() - 60_000_000_000
    unit = UnitAccess(server, token, token_file, ca_file) if server else None
    measurements = read_segments(files, unit, since, until)
    found, whole = by_segment(measurements, known, dscp=dscp)
    if between is None:
        longest = max((one.end_ns - one.start_ns for some in found.values() for one in some), default=0)
        begin = reached_ns(found) - _INTERVALS * longest
        found = {segment: [one for one in some if one.start_ns >= begin] for segment, some in found.items()}
        whole = [one for one in whole if one.start_ns >= begin]
    print_state(path_state(known, found, whole), output_format)


def diagnose(
    source: FromOption,
    target: ToOption,
    topology: TopologyOption,
    files: FilesArgument = None,
    upgraded: UpgradedOption = None,
    names: NamesOption = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="TIME..TIME", help="What to compare with; by default the first half of the data."),
    ] = None,
    now: Annotated[
        str | None, typer.Option(metavar="TIME", help="When the intervals of now end; by default with the newest.")
    ] = None,
    intervals: Annotated[int, typer.Option(min=2, max=1000, help="How many intervals are now.")] = 3,
    dscp: DscpOption = 0,
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
    directed: DirectedOption = None,
    server: ServerOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    output_format: StationFormat = "table",
) -> None:
    """Name the segment that made a path slow or lossy: now against a baseline, with an interval for each change.

    Says "nothing changed", "cleared" after an earlier change, or "too thin" and why, when that is the answer.
    """
    from sojourn.cli.mplane.output import print_diagnosis
    from sojourn.core.units import parse_time
    from sojourn.mplane.station.diagnosis import DiagnosisPlan, Window
    from sojourn.mplane.station.diagnosis import diagnose as diagnose_path

    _check_format(output_format)
    before = Window(*read_range(baseline, where="--baseline")) if baseline else None
    share, least_ns = _least(least)
    plan = DiagnosisPlan(
        now_ns=parse_time(now) if now else None,
        before=before,
        intervals=intervals,
        dscp=dscp,
        least_share=share,
        least_ns=least_ns,
        least_loss=parse_share(least_loss),
        false_alarms=parse_share(false_alarms or ("0.01%" if watch else "1%")),
    )
    unit = UnitAccess(server, token, token_file, ca_file) if server else None
    read = path_reader(topology, source, target, upgraded, directed=directed, names=names)
    if watch:
        times = _watch_times(every, duration)
        _watch(read, plan, times, (files, unit), since, output_format)
        return
    known = read()
    from_ns = before.from_ns if before else parse_time(since) if server else 0
    until = plan.now_ns if plan.now_ns is not None else _FOREVER_NS
    result = diagnose_path(known, read_segments(files, unit, from_ns, until), plan)
    print_diagnosis(result, output_format)
    for note in result.notes:
        print(harmless(f"sojourn: {note}"), file=sys.stderr)


def _watch(
    read: Callable[[], PathSegments],
    plan: DiagnosisPlan,
    times: WatchTimes,
    measured: tuple[list[Path] | None, UnitAccess | None],
    since: str,
    output_format: str,
) -> None:
    """Diagnose again and again: files are read whole, of a query unit only what is new is asked for."""
    from sojourn.cli.mplane.diagnose import RecentSegments, watch_verdicts
    from sojourn.core.units import parse_time
    from sojourn.mplane.station.diagnosis import diagnose as diagnose_path

    if plan.now_ns is not None:
        raise UsageError("a watch ends with the newest intervals", where="--now", action="leave --now or --watch out")
    files = measured[0]
    now_ns = time.time_ns()
    recent = RecentSegments(
        lambda a, b: read_segments(*measured, a, b), plan.before, keep_ns=now_ns - parse_time(since, now_ns=now_ns)
    )

    def measurements(now_ns: int) -> list[SegmentMeasurement]:
        return read_segments(*measured, 0, _FOREVER_NS) if files else recent.rows(now_ns)

    watch_verdicts(lambda now_ns: diagnose_path(read(), measurements(now_ns), plan), times, output_format)


def _watch_times(every: str, duration: str | None) -> WatchTimes:
    for_ns = None if duration is None else parse_duration(duration)
    return WatchTimes(every_ns=parse_duration(every), hold_ns=0, for_ns=for_ns)


def _least(text: str) -> tuple[float, int]:
    return (parse_share(text), 0) if text.strip().endswith("%") else (0.0, parse_duration(text))


def _check_format(text: str) -> None:
    if text not in ("table", "json"):
        raise UsageError(f"there is no format {text[:40]!r}", where="--format", action="use table or json")


# What comes later than this after its interval is no longer waited for.
LATE_NS = 60_000_000_000


class RecentSegments:
    """Measurements as they come, without reading all of them again: a baseline, and those of the last `keep_ns`.

    `read` gives those whose intervals begin in a range of time. An interval that was incomplete is replaced.
    """

    def __init__(
        self, read: Callable[[int, int], list[SegmentMeasurement]], before: Window | None, *, keep_ns: int
    ) -> None:
        self._read, self._before, self._keep_ns = read, before, keep_ns
        self._rows: dict[tuple[Segment, int, str, int], SegmentMeasurement] = {}
        self._read_ns: int | None = None

    def rows(self, now_ns: int) -> list[SegmentMeasurement]:
        """All that there is at a time, after one more reading."""
        oldest = now_ns - self._keep_ns
        since = oldest if self._before is None else min(oldest, self._before.from_ns)
        fresh = self._read(max(since, 0) if self._read_ns is None else self._read_ns - LATE_NS, 2**63 - 1)
        self._read_ns = now_ns
        self._rows.update({(one.segment, one.dscp, one.method, one.start_ns): one for one in fresh})
        self._rows = {place: one for place, one in self._rows.items() if self._is_kept(one, oldest)}
        return list(self._rows.values())

    def _is_kept(self, one: SegmentMeasurement, oldest_ns: int) -> bool:
        in_baseline = self._before is not None and self._before.from_ns <= one.start_ns < self._before.to_ns
        return in_baseline or one.start_ns >= oldest_ns


def watch_verdicts(look: Callable[[int], Diagnosis], times: WatchTimes, how: str) -> None:
    """Print the verdict, and then every other one, until the time is over or Ctrl-C."""
    from sojourn.cli.mplane.output import print_verdict
    from sojourn.core.executors.interrupts import stopping_on_interrupt
    from sojourn.mplane.planning.watch import Patience, repeatedly
    from sojourn.mplane.station.diagnosis import new_verdicts

    patience = Patience(times.every_ns, times.for_ns)
    with stopping_on_interrupt(patience.stop):
        for result in new_verdicts(repeatedly(lambda: look(time.time_ns()), patience, _say_silent)):
            print_verdict(result, how)
            sys.stdout.flush()


def _say_silent(error: SojournError) -> None:
    print(f"sojourn: {error}; the last verdict is kept until it answers", file=sys.stderr, flush=True)
