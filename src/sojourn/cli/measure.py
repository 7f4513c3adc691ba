"""`sojourn measure`: one-way delay, jitter and loss of every flow between two captures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.output import Format, choose_format, progress
from sojourn.cli.segment_output import (
    SegmentReport,
    exact_rows,
    interval_rows,
    print_report,
    rounded,
    row_limit,
    totals_json,
)
from sojourn.core.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.core.keys import TrafficKey
    from sojourn.estimation.points import CaptureOptions, CapturePoint
    from sojourn.estimation.segment import Interval, SegmentPlan
    from sojourn.estimation.survey import Survey

__all__ = ["SketchName", "capture_options", "measure", "parse_changes"]

_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn measure ingress.pcap.gz egress.pcap.gz --memory 128KB --truth --limit 2
  44,829 packets sent, 36,308 received, 8,521 lost (19.01%)
  mean delay 24.3 ms, 95 % 23.9 ms … 24.7 ms, standard deviation 6.58 ms
  truth: mean 24.3 ms, deviation 7.52 ms
  source      port  destination  port  proto  packets  lost     mean  …

  $ sojourn measure in.pcap out.pcap --sketch exact --format json
  $ sojourn measure in.pcap out.pcap --interval 1s --markers -w flows.csv
  $ sojourn measure in.pcap out.pcap udp port 5000
"""


class SketchName(StrEnum):
    """What the points record."""

    LDS = "lds"
    COLATE = "colate"
    SAMPLE = "sample"
    LDA = "lda"
    EXACT = "exact"


def measure(
    sender: Annotated[str, typer.Argument(metavar="SENDER", help="Capture at the sending point.")],
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="Capture at the receiving point.")],
    expression: Annotated[
        list[str] | None, typer.Argument(metavar="[FILTER]...", help="Only packets that match, in tcpdump's syntax.")
    ] = None,
    sketch: Annotated[
        SketchName,
        typer.Option(help="lds, colate and sample answer per flow, lda for the whole segment; exact matches all."),
    ] = SketchName.LDS,
    memory: Annotated[str, typer.Option(help="Memory of the sketches at each point.", metavar="SIZE")] = "1MB",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter of the sketch; repeatable."),
    ] = None,
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Also answer for every stretch of this length (1s, 500ms).")
    ] = None,
    markers: Annotated[bool, typer.Option("--markers", help="End intervals at packets that both points saw.")] = False,
    truth: Annotated[bool, typer.Option("--truth", help="Match every packet too and show the truth.")] = False,
    clock: Annotated[
        str, typer.Option(help="auto corrects what the packets contradict, none nothing, offset=TIME that much.")
    ] = "auto",
    reverse: Annotated[bool, typer.Option("--reverse", help="Measure receiver → sender.")] = False,
    key: Annotated[
        str, typer.Option(help="What makes a flow: five-tuple, host-pair, dest, prefix/LEN, vlan+five-tuple.")
    ] = "five-tuple",
    inner: Annotated[bool, typer.Option("--inner", help="Look into tunnels.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Only the largest flows; 0 is all. Default: 20 in a table, else all.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on a damaged capture.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell what was ignored, by reason.")] = False,
    output_format: Annotated[
        Format | None, typer.Option("--format", help="How to write; by default after the file's ending.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--write", "-w", metavar="FILE", help="Write to a file.")] = None,
) -> None:
    """Measure one-way delay, jitter and loss of every flow between two captures."""
    memory_bytes = parse_bytes(memory)
    interval_ns = parse_duration(interval) if interval else 0
    how = choose_format(output_format, output)
    rows = row_limit(limit, how)
    with progress("measure") as advance:
        from sojourn.capture.clock import parse_clock
        from sojourn.estimation.points import CapturePoint, with_common_identity
        from sojourn.estimation.segment import measure_segment, plan_segment
        from sojourn.estimation.survey import survey_segment

        mode = parse_clock(clock)
        paths = (receiver, sender) if reverse else (sender, receiver)
        options = with_common_identity(paths, capture_options(key, inner, strict, expression))
        points = CapturePoint(paths[0], options), CapturePoint(paths[1], options)
        keep_all = truth or sketch is SketchName.EXACT
        survey = survey_segment(*points, clock=mode.reversed() if reverse else mode, keep_all=keep_all, advance=advance)
        if sketch is SketchName.EXACT:
            report = _exact_report(survey, rows)
        else:
            changes = parse_changes(parameter or [])
            flows = len(survey.flow_id)
            plan = plan_segment(sketch.value, memory_bytes, flows=flows, loss=survey.loss, changes=changes)
            whole, parts = measure_segment(
                *points, survey, plan, interval_ns=interval_ns, markers=markers, advance=advance
            )
            report = _sketch_report(survey, plan, whole, parts, rows=rows, truth=truth)
    _add_notes(report, points, survey)
    print_report(report, how, output, verbose=verbose)


measure.__doc__ = f"{measure.__doc__}\n\n\b\n{_EXAMPLE}"


def capture_options(key: str, inner: bool, strict: bool, expression: list[str] | None) -> CaptureOptions:
    """Reading options from what the user wrote."""
    from sojourn.capture.decoder import DecodeOptions
    from sojourn.capture.filters import PacketFilter
    from sojourn.capture.keying import FlowKeying
    from sojourn.estimation.points import CaptureOptions

    packet_filter = PacketFilter(" ".join(expression)) if expression else None
    return CaptureOptions(DecodeOptions(keying=FlowKeying.parse(key), inner=inner), packet_filter, strict)


def _key_of(survey: Survey) -> Callable[[int], TrafficKey]:
    """A flow's key from either point's flow table."""
    rows = {
        flow_id: (table, row)
        for table in (survey.receiver.flows, survey.sender.flows)
        for row, flow_id in enumerate(table.ids.tolist())
    }

    def key_of(flow_id: int) -> TrafficKey:
        table, row = rows[flow_id]
        return table.key(row)

    return key_of


def _sketch_report(
    survey: Survey, plan: SegmentPlan, whole: Interval, parts: list[Interval], *, rows: int | None, truth: bool
) -> SegmentReport:
    key_of = _key_of(survey)
    match = survey.match if truth else None
    blocks = []
    if parts:
        answered = [part for part in parts if part.flows is not None]
        blocks = [interval_rows(p.flows, key_of, limit=rows, start_ns=p.first_ns) for p in answered if p.flows]
    elif whole.flows is not None:
        blocks = [interval_rows(whole.flows, key_of, limit=rows, truth=match)]
    report = SegmentReport(totals_json(whole), blocks, _sketch_json(plan, whole))
    report.intervals = [{"start_ns": p.first_ns, "end_ns": p.last_ns, **totals_json(p)} for p in parts]
    report.truth = _exact_totals(survey) if truth else None
    return report


def parse_changes(parameter: list[str]) -> dict[str, str]:
    """Parameters of a sketch as NAME=VALUE."""
    from sojourn.core.errors import ParameterError

    pairs = [text.partition("=") for text in parameter]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ParameterError(f"parameter {name!r} has no value", action="write NAME=VALUE, such as rows=4")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _sketch_json(plan: SegmentPlan, whole: Interval) -> dict[str, object]:
    return {
        "name": plan.name,
        "parameters": plan.parameters,
        "memory_bytes": -(-plan.memory_bits // 8),
        "bits_per_packet": plan.memory_bits / max(1, whole.totals.sent),
    }


def _exact_report(survey: Survey, rows: int | None) -> SegmentReport:
    blocks = [exact_rows(survey.match, _key_of(survey), limit=rows)]
    return SegmentReport(_exact_totals(survey), blocks, {"name": "exact", "parameters": {}})


def _exact_totals(survey: Survey) -> dict[str, object]:
    total = survey.match.aggregate
    mean = rounded(total.mean_ns)
    return {
        "sent": total.sent,
        "received": total.received,
        "lost": total.lost,
        "mean_ns": mean,
        "std_ns": rounded(total.std_ns),
        "low_ns": mean,
        "high_ns": mean,
        "samples": total.received,
        "reordered": total.reordered,
    }


def _add_notes(report: SegmentReport, points: tuple[CapturePoint, CapturePoint], survey: Survey) -> None:
    clock = survey.clock
    report.clock = {
        "offset_ns": rounded(clock.offset_ns),
        "skew_ppm": clock.skew_ppm,
        "uncertainty_ns": rounded(clock.uncertainty_ns),
        "corrected": clock.corrected,
    }
    ignored: dict[str, int] = {}
    for point, side in zip(points, ("sender", "receiver"), strict=True):
        for text, count in point.reader.ignored.items():
            ignored[f"{text} at {side}"] = count
        report.notes += [f"sojourn: warning: {warning}" for warning in point.reader.warnings]
    if survey.is_complete:
        ignored.update(survey.match.ignored())
    report.ignored = ignored
    report.notes.append(f"clock: {survey.match.explanation}")
    if len(survey.match.unmatched_flows):
        count = len(survey.match.unmatched_flows)
        report.notes.append(f"{count:,} flows were seen at one point only and are not measured")
