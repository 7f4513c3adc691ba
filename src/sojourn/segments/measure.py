"""The road of a measurement, for files, interfaces and epochs: plan, record both points, answer.

- `measure_files`: a survey of both captures finds the flows, the clock and the loss; the plan follows; a second pass
  records both points.
- `measure_interfaces`: the same recorder and the same answer, on two interfaces of this machine at once.
- `estimate`: the answer from epochs, of which each point recorded its own (`record.record`). What the survey does for
  captures cannot be done here: flows of both directions are recorded (filter one), captures are not trimmed to each
  other (start and stop them around the traffic, or cut intervals), and clocks are taken as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

from sojourn.capture.files.pipes import is_pipe, kept_pipes
from sojourn.capture.files.reader import filter_of, is_capture
from sojourn.capture.flows.table import FlowTable
from sojourn.core.errors import InputError, UsageError, WireError
from sojourn.core.estimates import FlowDelays
from sojourn.core.files import FilePath, input_bytes, open_input, shown_name
from sojourn.core.keys import PROTOCOLS, FlowKey, TrafficKey, key_id, parse_key
from sojourn.core.results import Advance, silent
from sojourn.core.units import format_bytes, format_duration, parse_share, plural
from sojourn.epochs.epoch import Epoch
from sojourn.matching.clock.correction import ClockMode, parse_clock
from sojourn.segments.exact import ExactAnswer, match_captures
from sojourn.segments.record import EXACT, LEDGER, Method, Recording, SketchName, decode_options, memory_of, ns_of
from sojourn.segments.result import SegmentResult, exact_result, rounded, sketch_result
from sojourn.segments.survey import (
    CaptureOptions,
    CapturePoint,
    Survey,
    share_wire_sizes,
    survey_captures,
)
from sojourn.segments.translated import IdentityName, name_by_sender

if TYPE_CHECKING:
    from sojourn.capture.files.reader import CaptureReader
    from sojourn.capture.live.reader import LiveReader
    from sojourn.capture.packets import Interface
    from sojourn.segments.answer import EpochsAnswer
    from sojourn.segments.live import LiveAnswer
    from sojourn.segments.plan import SegmentPlan
    from sojourn.segments.planning.search import MemoryPlan, Wish

CONFIDENCE = 0.95
MOST_SIZES_BYTES = 1 << 30  # of a table of flows' sizes
EpochsSource: TypeAlias = FilePath | Recording | list[Epoch]


def measure_files(
    sender: FilePath,
    receiver: FilePath,
    *,
    sketch: SketchName | None = None,
    method: Method = "joint",
    memory: str | int | None = None,
    error: str | float | None = None,
    confidence: str | float | None = None,
    parameters: Mapping[str, str] | None = None,
    interval: str | int | None = None,
    markers: bool = False,
    max_delay: str | int | None = None,
    truth: bool = False,
    clock: str = "auto",
    reverse: bool = False,
    key: str = "five-tuple",
    identity: IdentityName = "packet",
    by: Literal["dscp"] | None = None,
    timeline: bool = False,
    inner: bool = False,
    where: str = "",
    strict: bool = False,
    advance: Advance = silent,
    interim: Callable[[SegmentResult], None] | None = None,
) -> SegmentResult:
    """Delay, jitter and loss of every flow between two captures.

    Every packet is matched, which is exact, unless a ``sketch`` (auto, lds, colate, sample, lda, ledger) is asked for:
    what one of ``memory`` (1 MB) at each point would have told, or of the memory that follows from the ``error`` that a
    share (``confidence``, 95 %) of the flows shall stay within; ``truth`` puts the exact answer beside it. Whoever asks
    for one of these without a sketch gets auto. ``interval`` also answers for every stretch of that length, with
    ``markers`` (of sketches) ended by packets that both points saw. No packet is longer on its way than ``max_delay``,
    which is found where it is not given. ``where`` is a filter in tcpdump's syntax, ``key`` what makes a flow. With
    ``identity`` payload a device between the points may translate addresses and ports: flows are named as at the
    sender. ``by`` dscp also answers for the packets of each DSCP, ``timeline`` for the time that passes (exact).
    Captures through pipes are matched in one pass, and ``interim`` is given each interval's answer as it is known.
    """
    of_sketches = (memory, error, confidence, parameters or None, truth or None, markers or None)
    sketch = sketch or _default_sketch(*of_sketches, method=method)
    wanted = _wanted_error(error, confidence, memory, sketch)
    if sketch == EXACT and (markers or parameters):
        raise UsageError(
            "exact matching has neither markers nor parameters", where="measure", action="use another --sketch"
        )
    _refuse_unheeded(sketch, by, method, max_delay if not truth else None)
    mode, interval_ns = parse_clock(clock), ns_of(interval, "--interval")
    first_name, second_name = os.fspath(sender), os.fspath(receiver)
    names = (second_name, first_name) if reverse else (first_name, second_name)
    options = CaptureOptions(decode_options(key, inner, dscp=by is not None), filter_of(where), strict)
    pipes = is_pipe(names[0]), is_pipe(names[1])
    with ExitStack() as stack:
        one_pass = sketch == EXACT and identity != "payload" and any(pipes) and names != ("-", "-")
        paths, notes = (names, []) if one_pass else kept_pipes(names, stack)
        first, second = (CapturePoint(path, options, name=shown_name(n)) for path, n in zip(paths, names, strict=True))
        points = first, second
        if not one_pass:
            share_wire_sizes(points)
        translation = name_by_sender(points) if identity == "payload" else None
        clock_mode = mode.reversed() if reverse else mode
        exact = None
        if truth or sketch == EXACT:
            limit = None if max_delay is None else ns_of(max_delay, "--max-delay")
            stretches = interval_ns if sketch == EXACT else 0
            asked: dict[str, Any] = {"max_delay_ns": limit, "interval_ns": stretches, "advance": advance}
            if one_pass:
                exact = _measure_pipes(points, pipes, clock_mode, interim, **asked)
            else:
                exact = match_captures(points, clock=clock_mode, timeline=timeline, **asked)
        survey = exact.survey if exact is not None else survey_captures(points, clock=clock_mode, advance=advance)
        key_of = _KeyLookup((survey.receiver.flows, survey.sender.flows))
        if exact is not None and sketch == EXACT:
            result = exact_result(
                exact.match,
                key_of,
                resegmented=exact.resegmented.tolist(),
                max_delay_ns=exact.max_delay_ns,
                intervals=exact.intervals,
                classes=exact.classes,
                timeline=exact.timeline,
            )
            result = replace(result, notes=[_matched_within(exact.max_delay_ns), *exact.notes])
        else:
            from sojourn.segments.plan import plan_survey, usual_memory
            from sojourn.segments.surveyed import measure_surveyed, sketch_notes

            joint, memory_bytes, chosen = (
                method == "joint",
                memory_of(memory, usual_memory(sketch, survey.packets)),
                None,
            )
            if wanted is not None:
                from sojourn.segments.planning.search import plan_surveyed

                chosen = plan_surveyed(
                    sketch, survey, error=wanted[0], confidence=wanted[1], joint=joint, advance=advance
                )
                memory_bytes = chosen[1].budget_bytes
            plan = plan_survey(survey, sketch, memory_bytes, changes=parameters, joint=joint)
            whole, parts = measure_surveyed(
                *points, survey, plan, interval_ns=interval_ns, markers=markers or bool(plan.ledger), advance=advance
            )
            match = None if exact is None else exact.match
            result = sketch_result(
                plan.name, plan.memory_bits, whole, parts, key_of, parameters=plan.parameters, truth=match
            )
            result = replace(result, notes=sketch_notes(plan, whole))
            if chosen is not None:
                result = _with_planned(result, chosen, whole.flows, survey)
        result = _with_survey_notes(replace(result, notes=[*notes, *result.notes]), points, survey, exact)
        return result if translation is None else translation.told(result, survey.match)


def _measure_pipes(
    points: tuple[CapturePoint, CapturePoint],
    are_pipes: tuple[bool, bool],
    clock: ClockMode,
    interim: Callable[[SegmentResult], None] | None,
    *,
    max_delay_ns: int | None,
    interval_ns: int,
    advance: Advance,
) -> ExactAnswer:
    """One pass over two captures of which at least one cannot be read again."""
    from sojourn.segments.piped import PIPED_MAX_DELAY_NS, InterimAnswer, PipedMeasurement

    reach = PIPED_MAX_DELAY_NS if max_delay_ns is None else max_delay_ns

    def tell(answer: InterimAnswer) -> None:
        if interim is not None:
            key_of = _KeyLookup((points[1].flows, points[0].flows))
            part = exact_result(answer.match, key_of, max_delay_ns=reach)
            frame = {"start_ns": answer.start_ns, "end_ns": answer.end_ns}
            interim(replace(part, aggregate={**frame, **part.aggregate}, notes=answer.notes))

    known: dict[str, Any] = {"are_pipes": are_pipes, "advance": advance, "interim": tell}
    return PipedMeasurement(points, clock, max_delay_ns=reach, interval_ns=interval_ns, **known).run()


def _refuse_unheeded(sketch: SketchName, by: str | None, method: Method, max_delay: str | int | None = None) -> None:
    """What this sketch would not heed is refused, instead of being passed over."""
    if sketch != EXACT and by is not None:
        raise UsageError("classes are exact matching's", where="--by", action="leave it out, or use --sketch exact")
    if sketch != EXACT and max_delay is not None:
        action = "leave it out, add --truth, or use --sketch exact"
        raise UsageError("only exact matching waits for packets", where="--max-delay", action=action)
    if sketch not in ("lds", "colate") and method != "joint":
        raise UsageError(f"{sketch} has one method", where="--method", action="leave it out, or use --sketch lds")


def _default_sketch(*given: object, method: Method) -> SketchName:
    """Exact, unless something was given that only sketches have."""
    return "exact" if all(value is None for value in given) and method == "joint" else "auto"


def _wanted_error(
    error: str | float | None, confidence: str | float | None, memory: str | int | None, sketch: str
) -> tuple[float, float] | None:
    """The error and confidence to choose the memory by, or None where the memory is given."""
    if error is None:
        if confidence is not None:
            raise UsageError("--confidence is that of an --error", where="measure", action="give both")
        return None
    if memory is not None:
        raise UsageError("--error chooses the memory", where="measure", action="give --memory or --error, not both")
    if sketch in (EXACT, LEDGER, "lda"):
        raise UsageError(
            "--error is for sketches of flows in captures", where="measure", action="size with `sojourn plan`"
        )
    wanted = parse_share(error, where="--error")
    certain = CONFIDENCE if confidence is None else parse_share(confidence, where="--confidence")
    if not 0 < wanted < 1 or not 0 < certain < 1:
        raise UsageError(f"{wanted} at {certain}", where="--error", action="give shares between 0 and 1, such as 5%")
    return wanted, certain


@dataclass(frozen=True, eq=False)
class _KeyLookup:
    """A flow's key, from any of the points' flow tables."""

    tables: tuple[FlowTable, ...]

    @cached_property
    def _rows(self) -> dict[int, tuple[FlowTable, int]]:
        return {flow_id: (table, row) for table in self.tables for row, flow_id in enumerate(table.ids.tolist())}

    def __call__(self, flow_id: int) -> TrafficKey:
        if flow_id not in self._rows:
            most = max(table.max_flows for table in self.tables)
            raise InputError(
                f"there are more than {most:,} flows",
                action="use a filter, or a wider --key such as host-pair",
            )
        table, row = self._rows[flow_id]
        return table.key(row)


def _with_planned(
    result: SegmentResult, chosen: tuple[Wish, MemoryPlan], flows: FlowDelays | None, survey: Survey
) -> SegmentResult:
    """The result with the wish, the memory and the expected (with the truth: the achieved) share of flows."""
    wish, plan = chosen
    planned: dict[str, object] = {
        "error": wish.error,
        "confidence": wish.confidence,
        "least_packets": wish.least_packets,
        "memory_bytes": plan.memory_bytes,
        "expected_share": plan.prediction.share,
        "baseline_share": plan.prediction.baseline,
    }
    note = (
        f"planned: {format_bytes(plan.memory_bytes)} per point for an error of {100 * wish.error:.3g} % in "
        f"{100 * wish.confidence:.3g} % of the flows of {plural(wish.least_packets, 'packet')} or more "
        f"(simulated: {plan.prediction.share:.1%})"
    )
    if result.truth is not None and flows is not None:
        from sojourn.segments.planning.search import achieved_share

        count, share = achieved_share(flows, survey, wish)
        planned |= {"promised_flows": count, "achieved_share": share}
        note += f"; achieved: {share:.1%} of {plural(count, 'flow')}"
    return replace(result, sketch={**result.sketch, "planned": planned}, notes=[*result.notes, note])


def _with_survey_notes(
    result: SegmentResult, points: tuple[CapturePoint, CapturePoint], survey: Survey, exact: ExactAnswer | None
) -> SegmentResult:
    """The result with what reading and matching the captures found beside the answer."""
    match = survey.match if exact is None else exact.match
    clock = match.clock
    resegmented = survey.resegmented if exact is None else exact.resegmented
    remarks = [p.named(text) for p in points for text in p.reader.remarks]
    notes = [*result.notes, *remarks, f"clock: {match.explanation}"]
    if count := len(match.unmatched_flows):
        notes.append(f"{_flows_were(count)} seen at one point only and not measured")
    result = replace(
        result,
        clock={
            "offset_ns": rounded(clock.offset_ns),
            "skew_ppm": clock.skew_ppm,
            "uncertainty_ns": rounded(clock.uncertainty_ns),
            "corrected": clock.corrected,
        },
        ignored=_ignored(points[0].reader, points[1].reader)
        | (match.ignored() if exact is not None or survey.is_complete else {}),
        direction={"sender": points[0].name, "receiver": points[1].name, "other_way": survey.other_way},
        warnings=[
            *(p.named(text) for p in points for text in p.reader.warnings),
            *survey.warnings,
            *(() if exact is None else exact.warnings),
        ],
        notes=notes,
    )
    return result.with_loss_warnings(resegmented)


def _matched_within(max_delay_ns: int) -> str:
    return f"packets were waited for at the other point for up to {format_duration(max_delay_ns)} (--max-delay)"


def _flows_were(count: int) -> str:
    return f"{plural(count, 'flow')} {'was' if count == 1 else 'were'}"


def _ignored(sender: CaptureReader | LiveReader, receiver: CaptureReader | LiveReader) -> dict[str, int]:
    sides = (sender, "sender"), (receiver, "receiver")
    return {f"{text} at {side}": count for reader, side in sides for text, count in reader.ignored.items()}


EXPECTED_FLOWS, EXPECTED_LOSS = 1000, 0.01
_ONE_CLOCK = "clock: this machine's one clock stamps both interfaces; there is nothing to correct"


def measure_interfaces(
    sender: Interface,
    receiver: Interface,
    *,
    max_delay: str | int = "1s",
    sketch: SketchName | None = None,
    method: Method = "joint",
    memory: str | int | None = None,
    flows: int | None = None,
    loss: float | None = None,
    parameters: Mapping[str, str] | None = None,
    truth: bool = False,
    reverse: bool = False,
    key: str = "five-tuple",
    by: Literal["dscp"] | None = None,
    inner: bool = False,
    where: str = "",
    advance: Advance = silent,
) -> SegmentResult:
    """The same between two interfaces of this machine, while packets pass: for the sender's seconds, or until Ctrl-C.

    None may be longer on its way than ``max_delay``. ``flows`` (1000) and ``loss`` (0.01) are what to expect: the
    sketches, where they are asked for as for captures, are made for that. ``reverse`` exchanges the interfaces, and
    leaves their directions.
    """
    from sojourn.core.executors.interrupts import stopping_on_interrupt
    from sojourn.segments.live import LiveSegment

    asked = sketch
    sketch = sketch or _default_sketch(memory, flows, loss, parameters or None, truth or None, method=method)
    _refuse_unheeded(sketch, by, method)

    def planned(name: SketchName = "auto") -> SegmentPlan:
        from sojourn.segments.plan import plan_segment, usual_memory

        expected: dict[str, Any] = {"flows": flows or EXPECTED_FLOWS, "loss": EXPECTED_LOSS if loss is None else loss}
        return plan_segment(
            name, memory_of(memory, usual_memory(name)), changes=parameters, joint=method == "joint", **expected
        )

    plan = planned(sketch) if sketch != EXACT else None
    names = (receiver.name, sender.name) if reverse else (sender.name, receiver.name)
    options, packet_filter = decode_options(key, inner, dscp=by is not None), filter_of(where)
    with ExitStack() as stack:
        ends = [
            replace(end, name=n, seconds=None, packets=None) for n, end in zip(names, (sender, receiver), strict=True)
        ]
        readers = [stack.enter_context(end.reader(options, packet_filter)) for end in ends]
        max_delay_ns = ns_of(max_delay, "--max-delay")
        known: dict[str, Any] = {
            "max_delay_ns": max_delay_ns,
            "exact": plan is None or truth,
            "by_class": by is not None,
            "fallback": planned if asked is None and by is None else None,
        }
        segment = LiveSegment(readers[0], readers[1], plan, seconds=sender.seconds, **known)
        with stopping_on_interrupt(segment.stop):
            answer = segment.run(advance)
        return _live_result(answer, readers, max_delay_ns)


def _live_result(answer: LiveAnswer, readers: list[LiveReader], max_delay_ns: int) -> SegmentResult:
    key_of = _KeyLookup(tuple(reader.flows for reader in readers))
    whole, match, plan = answer.whole, answer.match, answer.plan
    if plan is not None and whole is not None:
        result = sketch_result(plan.name, plan.memory_bits, whole, [], key_of, parameters=plan.parameters, truth=match)
        from sojourn.segments.surveyed import sketch_notes

        notes = sketch_notes(plan, whole)
    elif match is not None:
        split = answer.resegmented.tolist()
        result = exact_result(match, key_of, resegmented=split, max_delay_ns=max_delay_ns, classes=answer.classes)
        notes = [_matched_within(max_delay_ns)]
    else:
        raise UsageError("nothing was measured", where="measure")
    warnings = [text for reader in readers for text in reader.warnings]
    if answer.overload is not None:
        notes.insert(0, answer.overload.told(answer.first_ns))
    if answer.other_way and whole is not None and not whole.answered:
        warnings.append(
            f"everything that was answered travels from {readers[1].name} to {readers[0].name}: to measure that way, "
            "exchange the interfaces or give --reverse"
        )
    notes += [text for reader in readers for text in reader.remarks]
    notes.append(_ONE_CLOCK)
    if count := len(answer.one_sided):
        notes.append(f"{_flows_were(count)} seen at one interface only and not measured")
    if answer.other_way:
        notes.append(
            f"{_travel_back(answer.other_way)} the other way and part of the aggregate; "
            "choose --directions, or a filter such as 'src net 10.0.0.0/8'"
        )
    result = replace(
        result,
        aggregate={**result.aggregate, "start_ns": answer.first_ns, "end_ns": answer.last_ns},
        clock={"offset_ns": 0, "skew_ppm": 0.0, "uncertainty_ns": 0, "corrected": False},
        ignored=_ignored(*readers) | answer.left_out | (match.ignored() if match is not None else {}),
        direction={"sender": readers[0].name, "receiver": readers[1].name},
        warnings=warnings,
        notes=notes,
    )
    return result.with_loss_warnings(answer.resegmented)


def _travel_back(count: int) -> str:
    return f"{plural(count, 'flow')} {'travels' if count == 1 else 'travel'}"


class MeasureOptions(TypedDict, total=False):
    """The options of `measure`, as `measure_files` and `measure_interfaces` have them."""

    sketch: SketchName | None
    method: Method
    memory: str | int | None
    parameters: Mapping[str, str] | None
    truth: bool
    reverse: bool
    key: str
    inner: bool
    where: str
    advance: Advance
    by: Literal["dscp"] | None
    interim: Callable[[SegmentResult], None] | None  # of captures, as the next eight
    error: str | float | None
    confidence: str | float | None
    interval: str | int | None
    markers: bool
    clock: str
    identity: IdentityName
    timeline: bool
    strict: bool
    max_delay: str | int  # of interfaces, as the rest
    flows: int | None
    loss: float | None


def measure(
    sender: FilePath | Interface, receiver: FilePath | Interface, **options: Unpack[MeasureOptions]
) -> SegmentResult:
    """Measure delay, jitter and loss of every flow between two captures, or two interfaces of this machine.

    `sketch` is auto, lds, colate, sample, lda, ledger or exact; `memory` is that of each point's sketches (1 MB).
    `where` is a filter in tcpdump's syntax, `key` what makes a flow. With `truth` every packet is matched, too.
    Captures can be answered per `interval` and by the `error` wanted; see `measure_files` and `measure_interfaces`.
    """
    from sojourn.capture.packets import Interface

    given: dict[str, Any] = dict(options)
    if isinstance(sender, Interface) and isinstance(receiver, Interface):
        _refuse_others(given, measure_interfaces, "is for captures")
        return measure_interfaces(sender, receiver, **given)
    if isinstance(sender, Interface) or isinstance(receiver, Interface):
        raise UsageError("a capture and an interface", where="measure", action="give two captures or two interfaces")
    _refuse_others(given, measure_files, "is for interfaces")
    return measure_files(sender, receiver, **given)


def _refuse_others(given: Mapping[str, object], function: Callable[..., object], why: str) -> None:
    """An option that would have no effect is a misunderstanding."""
    known = signature(function).parameters
    if others := [name for name in given if name not in known]:
        raise UsageError(f"{others[0]} {why}", where="measure", action="leave it out")


def estimate(
    sender: EpochsSource,
    receiver: EpochsSource,
    *,
    flows: Sequence[str | TrafficKey] | None = None,
    sizes: FilePath | Mapping[int, int] | None = None,
    method: Method = "joint",
    clock: str = "none",
    interval: str | int | None = None,
) -> SegmentResult:
    """The answer from two points' epochs: lists of them, what `record` gave, or the files that were written of it.

    ``flows`` are those to answer for (all that were reported). ``sizes`` are flows' packets at the sender, by flow id
    or as the JSON of ``sojourn flows`` (COLATE needs them). ``interval`` is the epochs' length, to answer for each.
    """
    from sojourn.segments.answer import answer_epochs

    if clock == "auto":
        raise UsageError("epochs do not tell clocks", where="--clock", action="use none or offset=TIME")
    answer = answer_epochs(
        epochs_from(sender),
        epochs_from(receiver),
        keys=None if flows is None else flow_keys(flows),
        packets=_sizes(sizes) if isinstance(sizes, str | os.PathLike) else dict(sizes or {}),
        offset_ns=parse_clock(clock).offset_ns,
        interval_ns=ns_of(interval, "--interval"),
        method=method,
    )
    result = sketch_result(answer.kind, answer.memory_bits, answer.whole, answer.intervals, answer.keys.__getitem__)
    return replace(result, warnings=answer.warnings, notes=_estimate_notes(answer)).with_loss_warnings()


def _estimate_notes(answer: EpochsAnswer) -> list[str]:
    notes = ["clock: epochs do not tell the offset of the two clocks; delays and their intervals are relative to it"]
    if answer.literal_because:
        notes.append(f"flows are answered one by one: {answer.literal_because}")
    if answer.whole.other_way:
        notes.append(
            f"{_travel_back(answer.whole.other_way)} the other way (or the clocks differ) and part of the aggregate; "
            "record with a filter such as 'src net 10.0.0.0/8' to measure one direction"
        )
    return notes


def epochs_from(source: EpochsSource) -> list[Epoch]:
    """A point's epochs, wherever they are."""
    return list(source) if isinstance(source, list | Recording) else read_epoch_file(source)


def read_epoch_file(path: FilePath) -> list[Epoch]:
    """All epochs of a file that `record` wrote, each once: a second one that is the same in everything is a copy."""
    from sojourn.epochs.wire import read_epochs

    name = shown_name(path)
    epochs: list[Epoch] = []
    numbers: dict[tuple[str, str, int], list[Epoch]] = {}
    with input_bytes(path) as opened:
        file: Any = opened
        if is_capture(file.peek(4)[:4]):
            raise InputError("not epochs but a capture", where=name, action="record it first, or use sojourn measure")
        try:
            for epoch in read_epochs(file):
                # Recordings that were put into one file each begin at 0: the number alone does not make a copy.
                same = numbers.setdefault((epoch.node, epoch.stream, epoch.sequence), [])
                if epoch not in same:
                    same.append(epoch)
                    epochs.append(epoch)
        except WireError as error:
            action = error.action or "give a file written by sojourn record"
            raise WireError(error.what, where=f"{name}, {error.where}", action=action) from None
    if not epochs:
        raise InputError("there is no epoch in it", where=name, action="write it with sojourn record")
    return epochs


def flow_keys(flows: Sequence[str | TrafficKey]) -> list[TrafficKey]:
    """Keys of flows, from their texts."""
    keys = [parse_key(flow) if isinstance(flow, str) else flow for flow in flows]
    found = [key for key in keys if isinstance(key, TrafficKey)]
    if len(found) != len(keys):
        raise UsageError(f"{flows[0]!r} is no flow", where="--flow", action="write 'SRC:PORT > DEST:PORT tcp'")
    return found


def _sizes(path: FilePath) -> dict[int, int]:
    """Packets by flow id, from the JSON that `sojourn flows` writes."""
    from ipaddress import ip_address

    with open_input(path) as file:
        text = file.read(MOST_SIZES_BYTES)
    try:
        sizes = {}
        for row in json.loads(text)["flows"]:
            protocol = PROTOCOLS.get(str(row["protocol"])) or int(row["protocol"])
            ends = ip_address(row["src_ip"]), row["src_port"], ip_address(row["dest_ip"]), row["dest_port"]
            sizes[key_id(FlowKey(*ends, protocol))] = int(row["packets"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"this is no flow table ({error})", where=str(path), action="write it with sojourn flows --format json"
        ) from None
    return sizes
