"""`sojourn measure -i SENDER -i RECEIVER`: two interfaces of this machine, measured while the packets pass."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sojourn.cli.capture.packet_source import (
    DirectionName,
    filter_of,
    refuse_files,
    ring_bytes_of,
    seconds_of,
    stopping_on_interrupt,
)
from sojourn.cli.output import progress
from sojourn.cli.segments.output import (
    SegmentReport,
    exact_report,
    exact_totals,
    interval_rows,
    joint_notes,
    key_lookup,
    loss_warnings,
    sketch_json,
    totals_json,
    truth_summary,
)
from sojourn.core.errors import UsageError
from sojourn.core.units import parse_duration

if TYPE_CHECKING:
    from sojourn.capture.decode.decoder import DecodeOptions
    from sojourn.capture.live.reader import LiveReader
    from sojourn.segments.live import LiveAnswer
    from sojourn.segments.measurement import SegmentPlan

__all__ = ["LiveRequest", "live_report"]

_CLOCK = "clock: this machine's one clock stamps both interfaces; there is nothing to correct"


@dataclass(frozen=True, kw_only=True)
class LiveRequest:
    """What the user asked for; ``sketch`` is None for exact matching."""

    interfaces: list[str]
    filter_words: list[str]
    duration: str | None
    directions: str
    max_delay: str
    promiscuous: bool
    buffer: str | None
    reverse: bool
    sketch: str | None
    joint: bool
    memory_bytes: int
    flows: int
    loss: float
    changes: Mapping[str, str]
    truth: bool

    def __post_init__(self) -> None:
        if len(self.interfaces) != 2:
            raise UsageError(
                f"{len(self.interfaces)} interface(s) given",
                where="measure",
                action="give two: -i SENDER_IFACE -i RECEIVER_IFACE (rtt and record take one)",
            )
        refuse_files(self.filter_words, "measure")

    def plan(self) -> SegmentPlan | None:
        from sojourn.segments.measurement import plan_segment

        if self.sketch is None:
            return None
        return plan_segment(
            self.sketch,
            self.memory_bytes,
            flows=self.flows,
            loss=self.loss,
            changes=self.changes,
            joint=self.joint,
        )

    def readers(self, options: DecodeOptions) -> list[LiveReader]:
        """Both interfaces, sender first."""
        from sojourn.capture.live.reader import LiveReader

        names = self.interfaces[::-1] if self.reverse else self.interfaces
        packet_filter, readers = filter_of(self.filter_words), []
        try:
            for name, direction in zip(names, _directions(self.directions), strict=True):
                readers.append(
                    LiveReader(
                        name,
                        options,
                        packet_filter=packet_filter,
                        direction=direction.literal,
                        promiscuous=self.promiscuous,
                        ring_bytes=ring_bytes_of(self.buffer),
                    )
                )
        except BaseException:
            for reader in readers:
                reader.close()
            raise
        return readers


def _directions(text: str) -> list[DirectionName]:
    """The directions of the sender and the receiver."""
    words = [word.strip() for word in text.split(",")]
    if len(words) != 2 or not set(words) <= set(DirectionName):
        raise UsageError(f"{text!r} are no two directions", where="--directions", action="write for example in,out")
    return [DirectionName(word) for word in words]


def live_report(request: LiveRequest, options: DecodeOptions, limit: int | None) -> SegmentReport:
    """Capture, measure, and put the answer into words."""
    from sojourn.segments.live import LiveSegment

    plan = request.plan()
    max_delay_ns, seconds = parse_duration(request.max_delay), seconds_of(request.duration)
    with ExitStack() as stack:
        readers = [stack.enter_context(reader) for reader in request.readers(options)]
        sender, receiver = readers
        segment = LiveSegment(
            sender,
            receiver,
            plan,
            seconds=seconds,
            max_delay_ns=max_delay_ns,
            keep_all=plan is None or request.truth,
        )
        with stopping_on_interrupt(segment.stop), progress("measure") as advance:
            answer = segment.run(advance)
        report = _report(answer, plan, readers, limit)
        _add_notes(report, answer, readers)
    return report


def _report(
    answer: LiveAnswer, plan: SegmentPlan | None, readers: list[LiveReader], limit: int | None
) -> SegmentReport:
    key_of = key_lookup(*(reader.flows for reader in readers))
    whole, match = answer.whole, answer.match
    if plan is None or whole is None:
        if match is None:
            raise UsageError("nothing was measured", where="measure")
        return exact_report(match, key_of, limit=limit, resegmented=answer.resegmented.tolist())
    rows = [] if whole.flows is None else [interval_rows(whole.flows, key_of, limit=limit, truth=match)]
    report = SegmentReport(totals_json(whole), rows, sketch_json(plan, whole))
    if match is not None:
        report.truth = exact_totals(match) | truth_summary(whole.flows, match)
    report.notes += joint_notes(plan, whole)
    return report


def _add_notes(report: SegmentReport, answer: LiveAnswer, readers: list[LiveReader]) -> None:
    report.clock = {"offset_ns": 0, "skew_ppm": 0.0, "uncertainty_ns": 0, "corrected": False}
    report.aggregate |= {"start_ns": answer.first_ns, "end_ns": answer.last_ns}
    ignored: dict[str, int] = {}
    for reader, side in zip(readers, ("sender", "receiver"), strict=True):
        ignored.update({f"{text} at {side}": count for text, count in reader.ignored.items()})
        report.warnings += reader.warnings
    report.direction = {"sender": readers[0].name, "receiver": readers[1].name}
    if answer.other_way and answer.whole is not None and not answer.whole.answered:
        report.warnings.append(
            f"everything that was answered travels from {readers[1].name} to {readers[0].name}: to measure that way, "
            "exchange the interfaces or give --reverse"
        )
    ignored.update(answer.left_out)
    if answer.match is not None:
        ignored.update(answer.match.ignored())
    report.ignored = ignored
    report.warnings += loss_warnings(report, answer.resegmented)
    report.notes.append(_CLOCK)
    if len(answer.one_sided):
        count = len(answer.one_sided)
        report.notes.append(f"{count:,} flows were seen at one interface only and are not measured")
    if answer.other_way:
        report.notes.append(
            f"{answer.other_way:,} flows travel the other way and are part of the aggregate; "
            "choose --directions, or a filter such as 'src net 10.0.0.0/8'"
        )
