"""The second pass of a measurement of captures: what the survey chose is recorded at both points, and answered."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sojourn.capture.flows.table import FlowTable, FlowWindows
from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch, UInt64Array, rows_of
from sojourn.core.estimates import Estimate, FlowDelays
from sojourn.core.results import Advance, silent
from sojourn.epochs.epoch import Epoch
from sojourn.estimation.auto import within
from sojourn.estimation.differences import Losses, Parts, with_extra
from sojourn.segments.answer import Interval, answer_interval, in_turn
from sojourn.segments.plan import SegmentPlan
from sojourn.segments.planning.layout import SAMPLES, SEGMENT
from sojourn.segments.record import PointRecorder, SlotOf
from sojourn.segments.survey import MOST_INTERVALS, CapturePoint, Survey
from sojourn.sketches.ledgers.ledger import Ledger
from sojourn.sketches.sketch import AnySketch

MOST_SKETCH_BYTES = 8 << 30  # of all intervals' sketches, which are kept until both points are recorded


def measure_surveyed(
    sender: CapturePoint,
    receiver: CapturePoint,
    survey: Survey,
    plan: SegmentPlan,
    *,
    interval_ns: int = 0,
    markers: bool = False,
    advance: Advance = silent,
) -> tuple[Interval, list[Interval]]:
    """Record both points and answer: for the whole, and for each interval if any are asked for."""
    slots: tuple[SlotOf | None, SlotOf | None] = (None, None)
    if interval_ns:
        most = min(MOST_INTERVALS, max(1, MOST_SKETCH_BYTES * 8 // (2 * plan.memory_bits)))
        ends = survey.boundaries(interval_ns, markers=markers, most=most)
        slots = tuple(partial(np.searchsorted, end, side="right") for end in ends)  # type: ignore[assignment]
    advance("recording", 0.5)

    def correct(time_ns: Int64Array) -> Int64Array:
        """The receiver's times on the sender's clock, less the base of the delays."""
        return survey.clock.correct(time_ns) - plan.base_ns

    ledger = Ledger(plan.ledger) if plan.ledger else None
    with ThreadPoolExecutor(2) as pool:
        sent, received = pool.map(
            _record_point,
            (sender, receiver),
            (plan, plan),
            slots,
            (survey.sender_windows, survey.receiver_windows.earlier(plan.base_ns)),
            (None, correct if survey.clock.corrected or plan.base_ns else None),
            survey.uncounted,
            (survey.sender.packets, survey.receiver.packets),
            (ledger, None),
        )
    advance("estimating", 0.9)
    counts = [packets_of(point.counts, survey.flow_id) for point in (sent, received)]

    known: dict[str, Any] = {"sizes": counts[0], "joint": plan.joint, "base_ns": plan.base_ns, "ledger": ledger}
    both = sorted(sent.sketches.keys() & received.sketches.keys()) if interval_ns else []
    recorded = {slot: (sent.sketches[slot], received.sketches[slot]) for slot in both}
    parts = in_turn(recorded, partial(answer_interval, flow_id=survey.flow_id, whole=False, **known))
    merged = sent.merged(), received.merged()
    whole = answer_interval(*merged, survey.flow_id, whole=True, **known)
    if whole.ledger is not None:
        whole = replace(whole, ledger=whole.ledger.sized(*merged))
    return _with_survey(whole, plan, survey, counts), parts


def _with_survey(whole: Interval, plan: SegmentPlan, survey: Survey, counts: list[Int64Array]) -> Interval:
    """The answer, where the survey knows more: each delay's bounds, losses despite copies, the flows' own counts."""
    totals, flows = whole.totals, whole.flows
    if flows is not None and not plan.joint and SAMPLES not in plan.parts:
        sent = counts[0].astype(np.float64)
        lost = np.minimum(flows.lost, sent)
        # Of cells that are read one by one it is known that they never count too little.
        most = {"lost_low": np.zeros_like(lost), "lost_high": lost} if flows.lost_low is None else {}
        flows = replace(flows.with_columns(most), packets=sent, lost=lost, packets_low=sent, packets_high=sent)
    if survey.is_complete and len(survey.match.packets):
        delays = within(totals.delays, survey.match.aggregate.min_ns, survey.match.aggregate.max_ns)
        totals = replace(totals, delays=delays)
    if survey.extra is not None and (whole.ledger is None or not totals.losses.is_exact):
        totals = replace(totals, losses=with_extra(totals.sent, totals.received, survey.extra))
    if flows is not None:
        # What the sketch does not know of a flow, both points counted.
        flows = _filled(flows, counts[0].astype(np.float64), Parts(counts[0], counts[1]).lost_of_each)
    if len(survey.resegmented):
        split = np.isin(survey.flow_id, survey.resegmented)
        others = Parts(counts[0][~split], counts[1][~split]).lost
        totals = replace(totals, losses=Losses(None, others, totals.sent))
        if isinstance(mean := totals.delays.mean, Estimate):
            totals = replace(totals, delays=replace(totals.delays, mean=replace(mean, low=-np.inf, high=np.inf)))
        # Only packets that offloading left alone have a delay, and they need not be like the others.
        if flows is not None:
            low, high = (
                np.where(split, far, bound) for far, bound in ((-np.inf, flows.low_ns), (np.inf, flows.high_ns))
            )
            flows = replace(flows, low_ns=low, high_ns=high)
            flows = _replaced(flows, ("lost", "lost_low", "lost_high"), split, np.full(len(split), np.nan))
    return replace(whole, totals=totals, flows=flows)


def _filled(flows: FlowDelays, packets: FloatArray, lost: FloatArray) -> FlowDelays:
    """The flows with what was counted where they know nothing."""
    names = ("packets", "packets_low", "packets_high"), ("lost", "lost_low", "lost_high")
    flows = _replaced(flows, names[0], np.isnan(flows.packets), packets)
    return _replaced(flows, names[1], np.isnan(flows.lost), lost)


def _replaced(flows: FlowDelays, names: tuple[str, ...], rows: BoolArray, values: FloatArray) -> FlowDelays:
    """The flows with other values in some rows of the columns that they have."""
    columns = {name: getattr(flows, name) for name in names}
    known = {name: column for name, column in columns.items() if column is not None}
    return flows.with_columns({name: np.where(rows, values, column) for name, column in known.items()})


@dataclass(frozen=True, eq=False)
class _RecordedPoint:
    """A point's sketches by slot, and the packets of each flow that they hold."""

    sketches: dict[int, AnySketch]
    counts: FlowTable

    def merged(self) -> AnySketch:
        """All slots added up."""
        first, *others = self.sketches.values()
        for sketch in others:
            first = first.merge(sketch)
        return first


def _record_point(
    point: CapturePoint,
    plan: SegmentPlan,
    slot_of: SlotOf | None,
    windows: FlowWindows,
    correct: Callable[[Int64Array], Int64Array] | None,
    uncounted: BoolArray | None,
    packets: int,
    ledger: Ledger | None,
) -> _RecordedPoint:
    """The second pass over a point: what the survey chose of its packets, by the sender's clock."""
    recorder = PointRecorder("point", SEGMENT, plan.stream, slot_of=slot_of, ledger=ledger)
    sketches: dict[int, AnySketch] = {}
    everything = windows.hold_all(point.flows.ids) and uncounted is None
    counts = point.flows if everything else FlowTable(point.flows.max_flows)
    seen = 0
    for found in point.known_batches(packets):
        batch = found
        seen += len(batch)
        if uncounted is not None:
            batch = batch.select(~uncounted[seen - len(batch) : seen])
        if correct is not None:
            batch = PacketBatch(batch.flow_id, batch.packet_id, correct(batch.time_ns), batch.size_bytes)
        if not everything:
            batch = windows.select(batch)
            counts.update(batch.flow_id, batch.time_ns, batch.size_bytes)
        _merge_by_slot(sketches, recorder.record(batch), slot_of)
    _merge_by_slot(sketches, recorder.finish(), slot_of)
    return _RecordedPoint(sketches, counts)


def _merge_by_slot(sketches: dict[int, AnySketch], epochs: list[Epoch], slot_of: SlotOf | None) -> None:
    for epoch in epochs:
        slot = 0
        if slot_of is not None and epoch.first_ns is not None:
            slot = int(slot_of(np.array([epoch.first_ns]))[0])
        sketches[slot] = sketches[slot].merge(epoch.sketch) if slot in sketches else epoch.sketch


def packets_of(counts: FlowTable, flow_id: UInt64Array) -> Int64Array:
    """The packets of each flow in a table; 0 where it is not there."""
    return np.append(counts.packets, 0)[rows_of(counts.ids, flow_id)]


def sketch_notes(plan: SegmentPlan, whole: Interval) -> list[str]:
    """What is to be said of how it was decoded: that there were too many flows for all together, what a ledger told."""
    if whole.ledger is not None:
        return whole.ledger.notes(whole.totals.sent)
    from sojourn.segments.planning.layout import MOST_JOINT_FLOWS

    flows = whole.flows
    if not plan.joint or flows is None or len(flows.flow_id) <= MOST_JOINT_FLOWS:
        return []
    return [f"more than {MOST_JOINT_FLOWS:,} flows are not decoded jointly but one by one; a filter makes them fewer"]
