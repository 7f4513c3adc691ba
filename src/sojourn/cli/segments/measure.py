"""`sojourn measure`: one-way delay, jitter and loss of every flow between two captures."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.capture.packet_source import BufferOption, ForOption, LiveLimits, PromiscuousOption, filter_of
from sojourn.cli.options import FormatOption, InnerOption, StrictOption, VerboseOption, WriteOption
from sojourn.cli.output import choose_format, progress
from sojourn.cli.segments.output import (
    SegmentReport,
    exact_report,
    exact_totals,
    interval_rows,
    joint_notes,
    key_lookup,
    loss_warnings,
    print_report,
    rounded,
    row_limit,
    sketch_json,
    totals_json,
    truth_summary,
)
from sojourn.core.errors import UsageError
from sojourn.core.units import parse_bytes, parse_duration, parse_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.core.keys import TrafficKey
    from sojourn.segments.measurement import Interval, SegmentPlan
    from sojourn.segments.points import CaptureOptions, CapturePoint
    from sojourn.segments.survey import Survey

__all__ = ["Method", "SketchName", "capture_options", "measure", "parse_changes"]

_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn measure ingress.pcap.gz egress.pcap.gz --memory 128KB --truth --limit 2
  ingress.pcap.gz → egress.pcap.gz; 5,519 packets travel the other way and are not measured
  44,829 packets sent, 36,308 received, 8,521 lost (19.01%)
  mean delay 24.3 ms, 95 % 23.9 ms … 24.7 ms, standard deviation 6.58 ms
  truth: mean 24.3 ms, deviation 7.52 ms
  source      port  destination  port  proto  packets  lost     mean  …

  $ sojourn measure in.pcap out.pcap --sketch exact --format json
  $ sojourn measure in.pcap out.pcap --interval 1s --markers -w flows.csv
  $ sojourn measure in.pcap out.pcap udp port 5000

Live, on the router between the two, what enters at lan0 and leaves at wan0:

  $ sojourn measure -i lan0 -i wan0 --for 10s
"""


class Method(StrEnum):
    """How a flow sketch is decoded."""

    LITERAL = "literal"
    JOINT = "joint"


class SketchName(StrEnum):
    """What the points record."""

    AUTO = "auto"
    LDS = "lds"
    COLATE = "colate"
    SAMPLE = "sample"
    LDA = "lda"
    EXACT = "exact"


def measure(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SENDER RECEIVER [FILTER]...",
            help="Captures at the sending and the receiving point (none with -i), then a filter in tcpdump's syntax.",
        ),
    ] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option(
            "--interface", "-i", metavar="IFACE", help="Capture live: give it twice, for the sender and the receiver."
        ),
    ] = None,
    duration: ForOption = None,
    directions: Annotated[
        str,
        typer.Option(metavar="D,D", help="Live: packets captured at the sender and the receiver: in, out or both."),
    ] = "in,out",
    max_delay: Annotated[
        str, typer.Option(metavar="TIME", help="Live: no packet is longer on its way; waited before and after.")
    ] = "1s",
    promiscuous: PromiscuousOption = False,
    buffer: BufferOption = None,
    flows: Annotated[int, typer.Option(min=1, help="Live: flows expected.")] = 1000,
    loss: Annotated[float, typer.Option(min=0, max=1, help="Live: share of packets expected to be lost.")] = 0.01,
    sketch: Annotated[
        SketchName,
        typer.Option(
            help="auto: cells and samples, the best of both; lds, colate, sample: one structure per flow; "
            "lda: the whole segment; exact: match all."
        ),
    ] = SketchName.AUTO,
    method: Annotated[
        Method, typer.Option(help="lds, colate: decode all flows jointly, or flow by flow as published.")
    ] = Method.JOINT,
    memory: Annotated[
        str | None, typer.Option(help="Memory of the sketches at each point; 1MB by default.", metavar="SIZE")
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Choose the memory by the error wanted, such as 5% (captures only)."),
    ] = None,
    confidence: Annotated[
        str, typer.Option(metavar="SHARE", help="With --error: the share of flows that shall be within it.")
    ] = "95%",
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
    inner: InnerOption = False,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Only the largest flows; 0 is all. Default: 20 in a table, else all.")
    ] = None,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    output_format: FormatOption = None,
    output: WriteOption = None,
) -> None:
    """Measure one-way delay, jitter and loss of every flow between two captures or interfaces."""
    wanted = _wanted_error(error, confidence, memory, live=bool(interface), sketch=sketch)
    memory_bytes = parse_bytes(memory or "1MB")
    interval_ns = parse_duration(interval) if interval else 0
    how = choose_format(output_format, output)
    rows = row_limit(limit, how)
    if interface:
        from sojourn.cli.segments.measure_live import LiveRequest, live_report

        _refuse_for_live(clock=clock, needs_captures=markers or interval is not None)
        request = LiveRequest(
            interfaces=interface,
            filter_words=words or [],
            duration=duration,
            directions=directions,
            max_delay=max_delay,
            promiscuous=promiscuous,
            buffer=buffer,
            reverse=reverse,
            sketch=None if sketch is SketchName.EXACT else sketch.value,
            joint=method is Method.JOINT,
            memory_bytes=memory_bytes,
            flows=flows,
            loss=loss,
            changes=parse_changes(parameter or []),
            truth=truth,
        )
        report = live_report(request, capture_options(key, inner, strict, None).decode, rows)
        print_report(report, how, output, verbose=verbose)
        return
    LiveLimits(duration, promiscuous=promiscuous, buffer=buffer).refuse_without_interface("measure")
    sender, receiver, expression = _captures(words or [])
    with progress("measure") as advance:
        from sojourn.matching.clock.correction import parse_clock
        from sojourn.segments.measurement import measure_segment, plan_survey
        from sojourn.segments.points import survey_captures

        mode = parse_clock(clock)
        paths = (receiver, sender) if reverse else (sender, receiver)
        points, survey = survey_captures(
            paths,
            capture_options(key, inner, strict, expression),
            clock=mode.reversed() if reverse else mode,
            keep_all=truth or sketch is SketchName.EXACT,
            advance=advance,
        )
        if sketch is SketchName.EXACT:
            split = survey.resegmented.tolist()
            report = exact_report(survey.match, _key_of(survey), limit=rows, resegmented=split)
        else:
            changes = parse_changes(parameter or [])
            joint = method is Method.JOINT
            chosen = None
            if wanted is not None:
                from sojourn.segments.planning.survey import plan_surveyed

                chosen = plan_surveyed(
                    sketch.value, survey, error=wanted[0], confidence=wanted[1], joint=joint, advance=advance
                )
                memory_bytes = chosen[1].budget_bytes
            plan = plan_survey(survey, sketch.value, memory_bytes, changes=changes, joint=joint)
            whole, parts = measure_segment(
                *points, survey, plan, interval_ns=interval_ns, markers=markers, advance=advance
            )
            report = _sketch_report(survey, plan, whole, parts, rows=rows, truth=truth)
            if chosen is not None:
                from sojourn.cli.segments.planned_memory import add_planned

                add_planned(report, chosen, whole.flows, survey)
    _add_notes(report, points, survey)
    print_report(report, how, output, verbose=verbose)


measure.__doc__ = f"{measure.__doc__}\n\n\b\n{_EXAMPLE}"


def _wanted_error(
    error: str | None, confidence: str, memory: str | None, *, live: bool, sketch: SketchName
) -> tuple[float, float] | None:
    """The error and confidence to choose the memory by, or None where the memory is given."""
    if error is None:
        return None
    if memory is not None:
        raise UsageError("--error chooses the memory", where="measure", action="give --memory or --error, not both")
    if live or sketch in (SketchName.EXACT, SketchName.LDA):
        raise UsageError(
            "--error is for sketches of flows in captures", where="measure", action="size with `sojourn plan`"
        )
    return parse_share(error), parse_share(confidence)


def _captures(words: list[str]) -> tuple[str, str, list[str]]:
    """Sender, receiver and filter."""
    if len(words) < 2:
        raise UsageError(
            "two points are needed", where="measure", action="give captures SENDER RECEIVER, or -i IFACE -i IFACE"
        )
    return words[0], words[1], words[2:]


def _refuse_for_live(*, clock: str, needs_captures: bool) -> None:
    """What has no meaning for interfaces is not silently left out."""
    if needs_captures:
        raise UsageError("--interval and --markers need captures", where="measure", action="use record and estimate")
    if clock not in ("auto", "none"):
        raise UsageError("both interfaces have one clock", where="measure", action=f"leave --clock {clock} out")


def capture_options(key: str, inner: bool, strict: bool, expression: list[str] | None) -> CaptureOptions:
    """Reading options from what the user wrote."""
    from sojourn.capture.decode.decoder import DecodeOptions
    from sojourn.capture.decode.ids import FlowKeying
    from sojourn.segments.points import CaptureOptions

    return CaptureOptions(DecodeOptions(keying=FlowKeying.parse(key), inner=inner), filter_of(expression or []), strict)


def _key_of(survey: Survey) -> Callable[[int], TrafficKey]:
    return key_lookup(survey.receiver.flows, survey.sender.flows)


def _sketch_report(
    survey: Survey, plan: SegmentPlan, whole: Interval, parts: list[Interval], *, rows: int | None, truth: bool
) -> SegmentReport:
    key_of = _key_of(survey)
    match = survey.match if truth else None
    blocks = []
    if parts:
        blocks = [interval_rows(p.flows, key_of, limit=rows, start_ns=p.first_ns) for p in parts if p.flows]
    elif whole.flows is not None:
        blocks = [interval_rows(whole.flows, key_of, limit=rows, truth=match)]
    report = SegmentReport(totals_json(whole), blocks, sketch_json(plan, whole))
    report.intervals = [{"start_ns": p.first_ns, "end_ns": p.last_ns, **totals_json(p)} for p in parts]
    if truth:
        report.truth = exact_totals(survey.match) | truth_summary(whole.flows, survey.match)
    report.notes += joint_notes(plan, whole)
    return report


def parse_changes(parameter: list[str]) -> dict[str, str]:
    """Parameters of a sketch as NAME=VALUE."""
    from sojourn.core.errors import ParameterError

    pairs = [text.partition("=") for text in parameter]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ParameterError(f"parameter {name!r} has no value", action="write NAME=VALUE, such as rows=4")
    return {name.strip(): value.strip() for name, _, value in pairs}


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
        report.warnings += point.reader.warnings
    report.warnings += survey.warnings
    report.direction = {"sender": points[0].name, "receiver": points[1].name, "other_way": survey.other_way}
    if survey.is_complete:
        ignored.update(survey.match.ignored())
    report.ignored = ignored
    report.warnings += loss_warnings(report, survey.resegmented)
    report.notes.append(f"clock: {survey.match.explanation}")
    if len(survey.match.unmatched_flows):
        count = len(survey.match.unmatched_flows)
        report.notes.append(f"{count:,} flows were seen at one point only and are not measured")
