"""A segment measured by sketches: the second pass, and the answers from its epochs.

Both points record the surveyed flows into the flow sketch (LDS or COLATE) and into a small flow-blind LDA, which
gives the aggregate: flows that lose nothing keep their cells in a flow sketch, so its usable cells alone would speak
too well of the segment. Sketches are linear, so the answer for the whole is that of the merged intervals, in which
the packets in flight at an interval's edge are whole again.
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
from sojourn.core.estimates import Reason
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.recorder import Recorder, SlotOf
from sojourn.estimation.auto import combine
from sojourn.estimation.colate import estimate_flow_means
from sojourn.estimation.columns import FlowDelays, flow_delays_of, unanswered_flows
from sojourn.estimation.lda import LdaAnswer, estimate_lda
from sojourn.estimation.lds import estimate_lds
from sojourn.estimation.sample import estimate_sample
from sojourn.estimation.sizing import changed, fit_cells, fit_colate, fit_lda, fit_lds, fit_sample
from sojourn.estimation.survey import Point, Survey
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.registry import AnySketch, new_sketch

__all__ = [
    "Interval",
    "PointRecorder",
    "SegmentPlan",
    "SegmentTotals",
    "answer_interval",
    "estimate_flows",
    "measure_segment",
    "plan_segment",
]

BLIND_SHARE = 8
BLIND_BYTES = 16 << 10
LEAST_BLIND_BYTES = 1 << 10


@dataclass(frozen=True)
class SegmentPlan:
    """What each point records: a sketch of flows (none for plain LDA), samples beside it, the flow-blind LDA.

    ``joint`` decodes the flow sketch for all flows together, instead of one by one as published.
    """

    name: str
    flows: Parameters | None
    segment: LdaParameters
    samples: Parameters | None = None
    joint: bool = False

    @property
    def streams(self) -> dict[str, Parameters]:
        """What is recorded, by the name of its stream."""
        streams = {"flows": self.flows, "samples": self.samples, "segment": self.segment}
        return {name: parameters for name, parameters in streams.items() if parameters is not None}

    @property
    def memory_bits(self) -> int:
        return sum(parameters.memory_bits for parameters in self.streams.values())

    @property
    def parameters(self) -> dict[str, object]:
        """All parameters by their symbols, for the record."""
        return {parameters.kind: parameters.to_mapping() for parameters in self.streams.values()}


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
    salt: int = 0,
    changes: Mapping[str, str] | None = None,
    joint: bool = False,
) -> SegmentPlan:
    """Share out a point's memory among the sketches that `name` needs; `changes` set single parameters."""
    wanted = changes or {}
    if name == "lda":
        return SegmentPlan(name, None, changed(fit_lda(memory_bytes, salt=salt), wanted))
    blind_bytes = max(LEAST_BLIND_BYTES, min(BLIND_BYTES, memory_bytes // BLIND_SHARE))
    blind = fit_lda(blind_bytes, salt=salt)
    rest = memory_bytes - blind_bytes
    if name == "auto":
        cells = changed(fit_cells(rest, flows=flows, salt=salt), wanted)
        left = rest - cells.memory_bits // 8
        return SegmentPlan(name, cells, blind, fit_sample(left, flows=flows, salt=salt), joint=True)
    if name == "lds":
        parameters = fit_lds(rest, flows=flows, loss=0.0 if joint else loss, salt=salt)
        return SegmentPlan(name, changed(parameters, wanted), blind, joint=joint)
    if name == "colate":
        return SegmentPlan(name, changed(fit_colate(rest, flows=flows, salt=salt), wanted), blind, joint=joint)
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


def _estimate_jointly(
    sender: AnySketch, receiver: AnySketch, flow_id: UInt64Array, grand_mean: float | None
) -> FlowDelays:
    """All flows at once; `flow_id` must list every recorded one, as a survey does."""
    from sojourn.estimation.joint_colate import estimate_colate_joint
    from sojourn.estimation.joint_lds import estimate_lds_joint

    if sender.parameters.kind == "counter_vector":
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
    before, after = sent["segment", slot], received["segment", slot]
    totals = SegmentTotals(before.recorded, after.recorded, estimate_lda(before, after))  # type: ignore[arg-type]
    flows = None
    if plan.flows is not None:
        ends = sent["flows", slot], received["flows", slot]
        if plan.joint and before.recorded:
            flows = _estimate_jointly(*ends, flow_id, getattr(totals.delays.mean, "value", None))
        else:
            flows = estimate_flows(*ends, flow_id, sizes)
        if plan.samples is not None:
            flows = combine(flows, estimate_flows(sent["samples", slot], received["samples", slot], flow_id, sizes))
        elif whole and not plan.joint:
            flows = replace(flows, packets=sizes.astype(np.float64), lost=np.minimum(flows.lost, sizes))
    return Interval(before.first_ns or 0, before.last_ns or 0, totals, flows)
