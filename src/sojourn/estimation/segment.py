"""A segment measured by sketches: the second pass, and the answers from its epochs.

Both points record the surveyed flows into what the plan says (cells, spread cells, samples) and into a small
flow-blind LDA, which gives the aggregate: flows that lose nothing keep their cells in a flow sketch, so its usable
cells alone would speak too well of the segment. Sketches are linear, so the answer for the whole is that of the merged
intervals, in which the packets in flight at an interval's edge are whole again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from sojourn.capture.flow_window import FlowWindows
from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.batches import PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.core.estimates import Estimate, Reason
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.recorder import Recorder, SlotOf
from sojourn.estimation.auto import combine, drawn_together
from sojourn.estimation.colate import estimate_flow_means
from sojourn.estimation.columns import FlowDelays, flow_delays_of, unanswered_flows
from sojourn.estimation.differences import cell_difference
from sojourn.estimation.lda import LdaAnswer, estimate_lda
from sojourn.estimation.lds import estimate_lds
from sojourn.estimation.sample import estimate_sample
from sojourn.estimation.sizing import MOST_JOINT_FLOWS, changed, fit_auto, fit_colate, fit_lda, fit_lds, fit_sample
from sojourn.estimation.survey import Point, Survey
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.registry import AnySketch, new_sketch

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
    "answer_interval",
    "estimate_flows",
    "estimate_streams",
    "measure_segment",
    "plan_segment",
]

FLOWS, SPREAD, ELEPHANTS, SAMPLES, SEGMENT = "flows", "spread", "elephants", "samples", "segment"
CELLS = (FLOWS, SPREAD, ELEPHANTS)
BLIND_SHARE = 8
BLIND_BYTES = 16 << 10
LEAST_BLIND_BYTES = 1 << 10


@dataclass(frozen=True)
class SegmentPlan:
    """What each point records: flows' cells, cells or counters that flows are spread over, cells that sample for
    elephants, samples (any of them or none, for plain LDA), and the flow-blind LDA.

    ``joint`` decodes the cells for all flows together, instead of one by one as published.
    """

    name: str
    flows: Parameters | None
    segment: LdaParameters
    samples: Parameters | None = None
    spread: Parameters | None = None
    elephants: Parameters | None = None
    joint: bool = False

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

    @property
    def parameters(self) -> dict[str, object]:
        """All parameters by their symbols, for the record."""
        return {
            f"{stream} {p.kind}" if stream in (SPREAD, ELEPHANTS) else p.kind: p.to_mapping()
            for stream, p in self.streams.items()
        }


@dataclass(frozen=True)
class SegmentTotals:
    """The whole traffic of an interval: exact counts, and what the LDA says of delays."""

    sent: int
    received: int
    delays: LdaAnswer

    @property
    def lost(self) -> int:
        return self.sent - self.received


@dataclass(frozen=True, eq=False)
class Interval:
    """One stretch of time (the whole, or a part): totals, and each flow's answer."""

    first_ns: int
    last_ns: int
    totals: SegmentTotals
    flows: FlowDelays | None


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
    if name == "lda":
        return SegmentPlan(name, None, changed(fit_lda(memory_bytes, salt=salt), wanted))
    blind_bytes = max(LEAST_BLIND_BYTES, min(BLIND_BYTES, memory_bytes // BLIND_SHARE))
    blind = fit_lda(blind_bytes, salt=salt)
    rest = memory_bytes - blind_bytes
    if name == "auto":
        shares = fit_auto(rest, flows=flows, loss=loss, packets=packets, salt=salt, joint=joint)
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


def estimate_flows(sender: AnySketch, receiver: AnySketch, flow_id: UInt64Array, packets: Int64Array) -> FlowDelays:
    """The delays of flows from two sketches of any kind that answers per flow."""
    kind = sender.parameters.kind
    if not sender.recorded:
        return unanswered_flows(flow_id, Reason.NOTHING_RECORDED, kind)
    if kind == "lds":
        return estimate_lds(sender, receiver, flow_id)  # type: ignore[arg-type]
    if kind == "sample":
        return estimate_sample(sender, receiver, flow_id)  # type: ignore[arg-type]
    if kind == "counter_vector":
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
) -> FlowDelays | None:
    """The flows' delays from all streams of two points; None where only the segment was recorded.

    Joint decoding needs `flow_id` to list every recorded flow, and no more than `MOST_JOINT_FLOWS`.
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
            cells = estimate_flows(sent[FLOWS], received[FLOWS], flow_id, sizes)
    if SAMPLES not in sent:
        return cells
    samples = estimate_flows(sent[SAMPLES], received[SAMPLES], flow_id, sizes)
    return drawn_together(samples, blind) if cells is None else combine(cells, samples, blind)


def _estimate_jointly(
    senders: list[AnySketch], receivers: list[AnySketch], flow_id: UInt64Array, grand_mean: float | None
) -> FlowDelays:
    """All flows at once; `flow_id` must list every recorded one, as a survey does."""
    from sojourn.estimation.joint_colate import estimate_colate_joint
    from sojourn.estimation.joint_lds import estimate_lds_joint
    from sojourn.estimation.joint_stack import estimate_stack

    sender, receiver = senders[0], receivers[0]
    kind = sender.parameters.kind
    if len(senders) > 1:
        return estimate_stack(senders, receivers, flow_id, grand_mean=grand_mean)  # type: ignore[arg-type]
    if not cell_difference(sender, receiver).usable.any():  # type: ignore[arg-type]
        reason = Reason.NO_USABLE_CELLS if sender.recorded else Reason.NOTHING_RECORDED
        return unanswered_flows(flow_id, reason, f"{kind} joint")
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
    correct = survey.clock.correct if survey.clock.corrected else None
    with ThreadPoolExecutor(2) as pool:
        sent, received = pool.map(
            _record_point,
            (sender, receiver),
            (plan, plan),
            slots,
            (survey.sender_windows, survey.receiver_windows),
            (None, correct),
        )
    advance("estimating", 0.9)
    sizes = _sizes(survey)
    parts = []
    if interval_ns:
        both = sorted({slot for _, slot in sent} & {slot for _, slot in received})
        parts = [answer_interval(plan, sent, received, slot, survey.flow_id, sizes) for slot in both]
    whole = answer_interval(plan, _merged(sent), _merged(received), 0, survey.flow_id, sizes, whole=True)
    return whole, parts


def _slot_by(boundaries: Int64Array) -> SlotOf:
    return lambda time_ns: np.searchsorted(boundaries, time_ns, side="right")


def _record_point(
    point: Point,
    plan: SegmentPlan,
    slot_of: SlotOf | None,
    windows: FlowWindows,
    correct: Callable[[Int64Array], Int64Array] | None,
) -> dict[tuple[str, int], AnySketch]:
    recorder = PointRecorder(point.name, plan, slot_of)
    everything = windows.hold_all(point.flows.ids)
    for batch in point.batches(again=True):
        on_time = batch if correct is None else _corrected(batch, correct)
        recorder.record(on_time if everything else windows.select(on_time))
    return recorder.finish()


def _corrected(batch: PacketBatch, correct: Callable[[Int64Array], Int64Array]) -> PacketBatch:
    return PacketBatch(batch.flow_id, batch.packet_id, correct(batch.time_ns), batch.size_bytes)


def _merged(sketches: dict[tuple[str, int], AnySketch]) -> dict[tuple[str, int], AnySketch]:
    """All slots of a stream added up, as slot 0."""
    whole: dict[tuple[str, int], AnySketch] = {}
    for (stream, _), sketch in sketches.items():
        held = whole.get((stream, 0))
        whole[stream, 0] = sketch if held is None else held.merge(sketch)
    return whole


def _sizes(survey: Survey) -> Int64Array:
    """The flows' packets at the sender, as flow records would tell them."""
    table = survey.sender.flows
    order = np.argsort(table.ids)
    at = np.minimum(np.searchsorted(table.ids[order], survey.flow_id), len(order) - 1)
    rows = order[at]
    return np.where(table.ids[rows] == survey.flow_id, table.packets[rows], 0)


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
    totals = SegmentTotals(before.recorded, after.recorded, estimate_lda(before, after))  # type: ignore[arg-type]
    flows = estimate_streams(ends[0], ends[1], flow_id, sizes=sizes, delays=totals.delays, joint=plan.joint)
    if flows is not None and whole and not plan.joint and plan.samples is None:
        flows = replace(flows, packets=sizes.astype(np.float64), lost=np.minimum(flows.lost, sizes))
    return Interval(before.first_ns or 0, before.last_ns or 0, totals, flows)
