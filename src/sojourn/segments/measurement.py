"""A segment measured by sketches: the second pass, and the answers from its epochs.

Both points record the surveyed flows into what the plan says (cells, spread cells, samples) and into a small
flow-blind LDA, which gives the aggregate: flows that lose nothing keep their cells in a flow sketch, so its usable
cells alone would speak too well of the segment. Sketches are linear, so the answer for the whole is that of the merged
intervals, in which the packets in flight at an interval's edge are whole again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from sojourn.capture.flows.table import FlowTable, FlowWindows
from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import InputError, ParameterError
from sojourn.core.estimates import Estimate, Reason
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.recorder import Recorder, SlotOf
from sojourn.estimation.auto import combine, segment_delays, shrink_means, with_remainder, within
from sojourn.estimation.columns import FlowDelays, flow_delays_of, unanswered_flows
from sojourn.estimation.differences import Losses, Parts, count_losses, with_extra
from sojourn.estimation.lda import LdaAnswer, estimate_lda
from sojourn.estimation.lds import estimate_lds
from sojourn.estimation.sample import MatchedSample, match_samples
from sojourn.segments.ranges import DelayRange, moved, moved_flows, widened
from sojourn.segments.sizing import (
    MOST_JOINT_FLOWS,
    MOST_LOST,
    changed,
    fit_auto,
    fit_blind,
    fit_colate,
    fit_lda,
    fit_lds,
    fit_sample,
)
from sojourn.segments.survey import Point, Survey
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.registry import AnySketch, new_sketch
from sojourn.sketches.sample import Sample

__all__ = [
    "FLOWS",
    "MOST_JOINT_FLOWS",
    "SAMPLES",
    "SEGMENT",
    "SPREAD",
    "Interval",
    "PointRecorder",
    "SegmentPlan",
    "SegmentTotals",
    "StreamAnswers",
    "answer_interval",
    "answer_streams",
    "estimate_flows",
    "estimate_streams",
    "measure_segment",
    "packets_of",
    "plan_segment",
    "plan_survey",
    "with_known_counts",
]

FLOWS, SPREAD, ELEPHANTS, SAMPLES, SEGMENT = "flows", "spread", "elephants", "samples", "segment"
CELLS = (FLOWS, SPREAD, ELEPHANTS)
BLIND_SHARE = 8
BLIND_BYTES = 16 << 10
LEAST_BLIND_BYTES = 1 << 10
SAMPLE_SHARE, LEAST_WITH_SAMPLE = 16, 16 << 10
# Decoded losses are estimates: half a packet below none is none.
ROUNDING = 0.5


@dataclass(frozen=True)
class SegmentPlan:
    """What each point records: flows' cells, cells or counters that flows are spread over, cells that sample for
    elephants, samples (any of them or none, for plain LDA), and the flow-blind LDA.

    ``joint`` decodes the cells for all flows together, instead of one by one as published. ``base_ns`` is taken off the
    receiver's times before they are recorded and added to the answers (`ranges`).
    """

    name: str
    flows: Parameters | None
    segment: LdaParameters
    samples: Parameters | None = None
    spread: Parameters | None = None
    elephants: Parameters | None = None
    joint: bool = False
    base_ns: int = 0

    @property
    def streams(self) -> dict[str, Parameters]:
        """What is recorded, by the name of its stream."""
        streams = {
            FLOWS: self.flows,
            SPREAD: self.spread,
            ELEPHANTS: self.elephants,
            SAMPLES: self.samples,
            SEGMENT: self.segment,
        }
        return {name: parameters for name, parameters in streams.items() if parameters is not None}

    @property
    def keyed_stream(self) -> str:
        """The stream whose epochs carry the keys of the active flows; none for plain LDA."""
        return next((stream for stream in self.streams if stream != SEGMENT), "")

    @property
    def memory_bits(self) -> int:
        return sum(parameters.memory_bits for parameters in self.streams.values())

    def reaching(self, delays: DelayRange) -> SegmentPlan:
        """The plan under which such delays are exact; the same where they are already."""
        wider = {stream: widened(parameters, delays.spread_ns) for stream, parameters in self.streams.items()}
        return replace(self, **wider, base_ns=delays.base_ns)  # type: ignore[arg-type]

    @property
    def parameters(self) -> dict[str, object]:
        """All parameters by their symbols, for the record."""
        return {
            f"{stream} {p.kind}" if stream in (SPREAD, ELEPHANTS) else p.kind: p.to_mapping()
            for stream, p in self.streams.items()
        }


@dataclass(frozen=True)
class SegmentTotals:
    """The whole traffic of an interval: what both ends counted, what that says of losses, and the delays."""

    sent: int
    received: int
    delays: LdaAnswer
    losses: Losses

    @property
    def lost(self) -> int | None:
        """Packets lost; None where more arrived than was sent, and nothing tells how many were lost all the same."""
        return self.losses.lost


@dataclass(frozen=True, eq=False)
class Interval:
    """One stretch of time (the whole, or a part): totals, and each flow's answer."""

    first_ns: int
    last_ns: int
    totals: SegmentTotals
    flows: FlowDelays | None

    @property
    def answered(self) -> bool:
        """Whether any flow has an answer."""
        return self.flows is not None and bool(self.flows.answered.any())

    def moved(self, base_ns: int) -> Interval:
        """The answer with the base of its delays added again."""
        totals = replace(self.totals, delays=moved(self.totals.delays, base_ns))
        return replace(self, totals=totals, flows=moved_flows(self.flows, base_ns))


def plan_survey(
    survey: Survey, name: str, memory_bytes: int, *, changes: Mapping[str, str] | None = None, joint: bool = False
) -> SegmentPlan:
    """The plan for what a survey found: its flows, its loss, and where its delays lie."""

    def planned(size: int) -> SegmentPlan:
        flows, packets = len(survey.flow_id), survey.packets
        plan = plan_segment(name, size, flows=flows, loss=survey.loss, packets=packets, changes=changes, joint=joint)
        return plan.reaching(survey.delay_range)

    plan = planned(memory_bytes)
    # Wider counters for delays that are far apart leave room for fewer of them.
    too_large = survey.delay_range.spread_ns and plan.memory_bits > 8 * memory_bytes
    return planned(memory_bytes * 8 * memory_bytes * 99 // (100 * plan.memory_bits)) if too_large else plan


def plan_segment(
    name: str,
    memory_bytes: int,
    *,
    flows: int,
    loss: float,
    packets: int = 0,
    salt: int = 0,
    changes: Mapping[str, str] | None = None,
    joint: bool = False,
) -> SegmentPlan:
    """Share out a point's memory among the sketches that `name` needs; `changes` set single parameters.

    `packets` are those expected of all flows together (0: unknown).
    """
    wanted = changes or {}
    lost = packets * loss if packets else MOST_LOST
    if name == "lda":
        return SegmentPlan(name, None, changed(fit_lda(memory_bytes, salt=salt, lost=lost), wanted))
    blind_bytes = max(LEAST_BLIND_BYTES, min(BLIND_BYTES, memory_bytes // BLIND_SHARE))
    blind = fit_blind(blind_bytes, salt=salt, lost=lost)
    rest = memory_bytes - max(blind_bytes, -(-blind.memory_bits // 8))
    if name == "auto":
        # Nothing is known beforehand: a small sample answers where loss turns out to spoil the cells.
        aside = 0 if packets or rest < LEAST_WITH_SAMPLE else rest // SAMPLE_SHARE
        shares = fit_auto(rest - aside, flows=flows, loss=loss, packets=packets, salt=salt, joint=joint)
        if aside:
            samples = fit_sample(aside, flows=flows, salt=salt) if shares.samples is None else shares.samples
            shares = replace(shares, samples=samples)
        if wanted:
            raise ParameterError(
                "auto sets its parameters itself", action="use lds, colate or sample to set single ones"
            )
        return SegmentPlan(
            name, shares.cells, blind, shares.samples, shares.spread, elephants=shares.elephants, joint=True
        )
    if name == "lds":
        parameters = fit_lds(rest, flows=flows, loss=loss, salt=salt, joint=joint)
        return SegmentPlan(name, changed(parameters, wanted), blind, joint=joint)
    if name == "colate":
        counters = fit_colate(rest, flows=flows, salt=salt, joint=joint)
        return SegmentPlan(name, changed(counters, wanted), blind, joint=joint)
    if name == "sample":
        return SegmentPlan(name, changed(fit_sample(rest, flows=flows, salt=salt), wanted), blind)
    raise ParameterError(f"{name!r} is no sketch for a segment", action="use auto, lds, colate, sample or lda")


def estimate_flows(
    sender: AnySketch,
    receiver: AnySketch,
    flow_id: UInt64Array,
    packets: Int64Array,
    sample: MatchedSample | None = None,
) -> FlowDelays:
    """The delays of flows from two sketches of any kind that answers per flow; `sample` if they are matched already."""
    kind = sender.parameters.kind
    if not sender.recorded:
        return unanswered_flows(flow_id, Reason.NOTHING_RECORDED, kind)
    if kind == "lds":
        return estimate_lds(sender, receiver, flow_id)  # type: ignore[arg-type]
    if kind == "sample":
        return (sample or match_samples(sender, receiver)).flows(flow_id)  # type: ignore[arg-type]
    if kind == "counter_vector":
        from sojourn.estimation.published.colate import estimate_flow_means

        answers = estimate_flow_means(sender, receiver, flow_id, packets)  # type: ignore[arg-type]
        lost = np.full(len(flow_id), np.nan)
        return flow_delays_of(flow_id, answers, packets, lost, "colate theorem 2, centred")
    raise ParameterError(f"a sketch of kind {kind} does not answer per flow", action="record lds, colate or sample")


def estimate_streams(
    sent: Mapping[str, AnySketch],
    received: Mapping[str, AnySketch],
    flow_id: UInt64Array,
    *,
    sizes: Int64Array,
    delays: LdaAnswer,
    joint: bool,
    sample: MatchedSample | None = None,
) -> FlowDelays | None:
    """The flows' delays from all streams of two points; None where only the segment was recorded.

    Joint decoding needs `flow_id` to list every recorded flow, and no more than `MOST_JOINT_FLOWS`. `sample` is
    the matched sample, where there is one.
    """
    blind = delays.mean if isinstance(delays.mean, Estimate) else None
    cells = None
    if FLOWS in sent:
        streams = [stream for stream in CELLS if stream in sent]
        if joint and len(flow_id) <= MOST_JOINT_FLOWS and sent[FLOWS].parameters.kind != "sample":
            ends = [sent[stream] for stream in streams], [received[stream] for stream in streams]
            # Flows whose cells are spoiled are known by other means then; leaning to the mean of all packets would
            # draw the others away from where flows are.
            alone = len(sent) == len((FLOWS, SEGMENT))
            cells = _estimate_jointly(*ends, flow_id, blind.value if alone and blind is not None else None)
        else:
            cells = estimate_flows(sent[FLOWS], received[FLOWS], flow_id, sizes, sample)
    if SAMPLES not in sent:
        return cells
    samples = estimate_flows(sent[SAMPLES], received[SAMPLES], flow_id, sizes, sample)
    return shrink_means(samples, blind) if cells is None else combine(cells, samples, blind)


@dataclass(frozen=True, eq=False)
class StreamAnswers:
    """All that two points' streams tell: the whole's delays, the flows, and the matched sample where there is one."""

    delays: LdaAnswer
    flows: FlowDelays | None
    parts: list[Parts]
    sample: MatchedSample | None

    def losses(
        self, sent: int, received: int, *, parts: Sequence[Parts] = (), foreign: tuple[int, int] = (0, 0)
    ) -> Losses:
        """The losses of the whole; `parts` are further counts of both ends.

        `foreign` packets are in the sketches of either end although they are not part of the whole.
        """
        extra = None if self.sample is None else self.sample.extra_packets().less(foreign[1])
        return count_losses(sent, received, [*parts] if any(foreign) else [*self.parts, *parts], extra)


def answer_streams(
    sent: Mapping[str, AnySketch],
    received: Mapping[str, AnySketch],
    flow_id: UInt64Array,
    *,
    sizes: Int64Array,
    joint: bool,
) -> StreamAnswers:
    """The answers of all streams of two points; flows without a loss that can be known have none."""
    before, after = sent[SEGMENT], received[SEGMENT]
    blind = estimate_lda(before, after)  # type: ignore[arg-type]
    stream = SAMPLES if SAMPLES in sent else FLOWS
    sample = None
    if stream in sent and isinstance(sent[stream], Sample) and isinstance(received[stream], Sample):
        sample = match_samples(sent[stream], received[stream])  # type: ignore[arg-type]
    flows = None
    if len(flow_id):
        flows = estimate_streams(sent, received, flow_id, sizes=sizes, delays=blind, joint=joint, sample=sample)
    if flows is not None:
        flows = replace(flows, lost=_never_negative(flows.lost))
    delays = segment_delays(blind, received=after.recorded, sample=sample, flows=flows)
    if flows is not None:
        flows = with_remainder(flows, delays.mean, after.recorded)
    parts = [part for stream in sent for part in Parts.of_sketches(sent[stream], received[stream])]
    return StreamAnswers(delays, flows, parts, sample)


def _never_negative(lost: FloatArray) -> FloatArray:
    """Losses; NaN where more arrived than was sent, so that nothing is known of them."""
    with np.errstate(invalid="ignore"):
        return np.where(lost < -ROUNDING, np.nan, np.maximum(lost, 0.0))


def _estimate_jointly(
    senders: list[AnySketch], receivers: list[AnySketch], flow_id: UInt64Array, grand_mean: float | None
) -> FlowDelays:
    """All flows at once; `flow_id` must list every recorded one, as a survey does."""
    from sojourn.estimation.joint.segments import estimate_colate_joint, estimate_lds_joint, estimate_stack

    sender, receiver = senders[0], receivers[0]
    kind = sender.parameters.kind
    if len(senders) > 1:
        return estimate_stack(senders, receivers, flow_id, grand_mean=grand_mean)  # type: ignore[arg-type]
    if not sender.recorded:
        return unanswered_flows(flow_id, Reason.NOTHING_RECORDED, f"{kind} joint")
    if kind == "counter_vector":
        return estimate_colate_joint(sender, receiver, flow_id, grand_mean=grand_mean)  # type: ignore[arg-type]
    return estimate_lds_joint(sender, receiver, flow_id, grand_mean=grand_mean)  # type: ignore[arg-type]


class PointRecorder:
    """The recorders of one point, and its epochs by slot."""

    def __init__(self, name: str, plan: SegmentPlan, slot_of: SlotOf | None) -> None:
        self._slot_of = slot_of
        self._recorders = {
            stream: Recorder(name, stream, lambda _, p=parameters: new_sketch(p), slot_of=slot_of)  # type: ignore[misc]
            for stream, parameters in plan.streams.items()
        }
        self._merged: dict[tuple[str, int], AnySketch] = {}

    def record(self, batch: PacketBatch) -> None:
        for stream, recorder in self._recorders.items():
            for epoch in recorder.record(batch):
                self._take(stream, epoch)

    def finish(self) -> dict[tuple[str, int], AnySketch]:
        for stream, recorder in self._recorders.items():
            for epoch in recorder.finish():
                self._take(stream, epoch)
        return self._merged

    def _take(self, stream: str, epoch: Epoch) -> None:
        slot = 0
        if self._slot_of is not None and epoch.first_ns is not None:
            slot = int(self._slot_of(np.array([epoch.first_ns]))[0])
        held = self._merged.get((stream, slot))
        self._merged[stream, slot] = epoch.sketch if held is None else held.merge(epoch.sketch)


def measure_segment(
    sender: Point,
    receiver: Point,
    survey: Survey,
    plan: SegmentPlan,
    *,
    interval_ns: int = 0,
    markers: bool = False,
    advance: Callable[[str, float], None] = lambda _step, _share: None,
) -> tuple[Interval, list[Interval]]:
    """Record both points and answer: for the whole, and for each interval if any are asked for."""
    slots: tuple[SlotOf | None, SlotOf | None] = (None, None)
    if interval_ns:
        slots = tuple(_slot_by(b) for b in survey.boundaries(interval_ns, markers=markers))  # type: ignore[assignment]
    advance("recording", 0.5)
    correct = _receivers_clock(survey, plan.base_ns)
    with ThreadPoolExecutor(2) as pool:
        sent, received = pool.map(
            _record_point,
            (sender, receiver),
            (plan, plan),
            slots,
            (survey.sender_windows, survey.receiver_windows.earlier(plan.base_ns)),
            (None, correct),
            survey.uncounted,
            (survey.sender.packets, survey.receiver.packets),
        )
    advance("estimating", 0.9)
    counts = [packets_of(point.counts, survey.flow_id) for point in (sent, received)]
    sizes = counts[0]
    parts = []
    if interval_ns:
        both = sorted({slot for _, slot in sent.sketches} & {slot for _, slot in received.sketches})
        parts = [answer_interval(plan, sent.sketches, received.sketches, s, survey.flow_id, sizes) for s in both]
    ends = _merged(sent.sketches), _merged(received.sketches)
    whole = answer_interval(plan, *ends, 0, survey.flow_id, sizes, whole=True)
    return _with_survey(whole, survey, counts), parts


def _with_survey(whole: Interval, survey: Survey, counts: list[Int64Array]) -> Interval:
    """The answer, where the survey knows more: each delay's bounds, losses despite copies, the flows' own counts."""
    totals, flows = whole.totals, whole.flows
    if survey.is_complete and len(survey.match.packets):
        delays = within(totals.delays, survey.match.aggregate.min_ns, survey.match.aggregate.max_ns)
        totals = replace(totals, delays=delays)
    if survey.extra is not None:
        totals = replace(totals, losses=with_extra(totals.sent, totals.received, survey.extra))
    if flows is not None:
        flows = with_known_counts(flows, *counts)
    if len(survey.resegmented):
        split = np.isin(survey.flow_id, survey.resegmented)
        others = Parts(counts[0][~split], counts[1][~split]).lost
        totals = replace(totals, losses=Losses(None, others, totals.sent), delays=_unbounded(totals.delays))
        # Only packets that offloading left alone have a delay, and they need not be like the others.
        if flows is not None:
            low, high = (
                np.where(split, far, bound) for far, bound in ((-np.inf, flows.low_ns), (np.inf, flows.high_ns))
            )
            flows = replace(flows, lost=np.where(split, np.nan, flows.lost), low_ns=low, high_ns=high)
    return replace(whole, totals=totals, flows=flows)


def _unbounded(delays: LdaAnswer) -> LdaAnswer:
    mean = delays.mean
    return replace(delays, mean=replace(mean, low=-np.inf, high=np.inf)) if isinstance(mean, Estimate) else delays


def with_known_counts(flows: FlowDelays, sent: Int64Array, received: Int64Array) -> FlowDelays:
    """The flows' packets and losses from what both points counted of each, where the sketch does not know them."""
    packets = np.where(np.isnan(flows.packets), sent, flows.packets)
    lost = np.where(np.isnan(flows.lost), Parts(sent, received).lost_of_each, flows.lost)
    return replace(flows, packets=packets, lost=lost)


def _receivers_clock(survey: Survey, base_ns: int) -> Callable[[Int64Array], Int64Array] | None:
    """The receiver's times on the sender's clock, less the base of the delays; None where they are so already."""
    if not survey.clock.corrected and not base_ns:
        return None
    return lambda time_ns: survey.clock.correct(time_ns) - base_ns


def _slot_by(boundaries: Int64Array) -> SlotOf:
    return lambda time_ns: np.searchsorted(boundaries, time_ns, side="right")


@dataclass(frozen=True, eq=False)
class _RecordedPoint:
    """A point's sketches by stream and slot, and the packets of each flow that they hold."""

    sketches: dict[tuple[str, int], AnySketch]
    counts: FlowTable


def _record_point(
    point: Point,
    plan: SegmentPlan,
    slot_of: SlotOf | None,
    windows: FlowWindows,
    correct: Callable[[Int64Array], Int64Array] | None,
    uncounted: BoolArray | None,
    packets: int,
) -> _RecordedPoint:
    recorder = PointRecorder(point.name, plan, slot_of)
    everything = windows.hold_all(point.flows.ids) and uncounted is None
    counts = point.flows if everything else FlowTable(point.flows.max_flows)
    row = 0
    seen = 0
    for found in point.batches(again=True):
        # A capture that is still being written counts as far as the survey knows it.
        batch = found if seen + len(found) <= packets else found.select(slice(0, packets - seen))
        seen += len(batch)
        counted = batch
        if uncounted is not None:
            counted = batch.select(~uncounted[row : row + len(batch)])
            row += len(batch)
        if correct is not None:
            counted = _corrected(counted, correct)
        if not everything:
            counted = windows.select(counted)
            counts.update(counted.flow_id, counted.time_ns, counted.size_bytes)
        recorder.record(counted)
    if seen < packets:
        raise InputError(
            f"it had {packets:,} packets to measure when it was read first, and {seen:,} the second time",
            where=point.name,
            action="measure a capture that is complete, or a copy of it",
        )
    return _RecordedPoint(recorder.finish(), counts)


def _corrected(batch: PacketBatch, correct: Callable[[Int64Array], Int64Array]) -> PacketBatch:
    return PacketBatch(batch.flow_id, batch.packet_id, correct(batch.time_ns), batch.size_bytes)


def _merged(sketches: dict[tuple[str, int], AnySketch]) -> dict[tuple[str, int], AnySketch]:
    """All slots of a stream added up, as slot 0."""
    whole: dict[tuple[str, int], AnySketch] = {}
    for (stream, _), sketch in sketches.items():
        held = whole.get((stream, 0))
        whole[stream, 0] = sketch if held is None else held.merge(sketch)
    return whole


def packets_of(counts: FlowTable, flow_id: UInt64Array) -> Int64Array:
    """The packets of each flow in a table; 0 where it is not there."""
    if not len(counts):
        return np.zeros(len(flow_id), np.int64)
    order = np.argsort(counts.ids)
    at = np.minimum(np.searchsorted(counts.ids[order], flow_id), len(order) - 1)
    rows = order[at]
    return np.where(counts.ids[rows] == flow_id, counts.packets[rows], 0)


def answer_interval(
    plan: SegmentPlan,
    sent: dict[tuple[str, int], AnySketch],
    received: dict[tuple[str, int], AnySketch],
    slot: int,
    flow_id: UInt64Array,
    sizes: Int64Array,
    *,
    whole: bool = False,
) -> Interval:
    """The answer of one slot; flows' sizes are known only for the whole."""
    ends = [{stream: sketch for (stream, at), sketch in point.items() if at == slot} for point in (sent, received)]
    before, after = ends[0][SEGMENT], ends[1][SEGMENT]
    answers = answer_streams(ends[0], ends[1], flow_id, sizes=sizes, joint=plan.joint)
    flows = answers.flows
    # Packets in flight at an interval's edge are extra in one interval and missing in another: that proves nothing.
    counts = before.recorded, after.recorded
    losses = answers.losses(*counts) if whole else count_losses(*counts, [])
    totals = SegmentTotals(*counts, answers.delays, losses)
    if flows is not None and whole and not plan.joint and plan.samples is None:
        flows = replace(flows, packets=sizes.astype(np.float64), lost=np.minimum(flows.lost, sizes))
    return Interval(before.first_ns or 0, before.last_ns or 0, totals, flows).moved(plan.base_ns)
