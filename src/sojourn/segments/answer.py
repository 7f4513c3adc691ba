"""The answer from what two points recorded: one way for captures, interfaces, epochs of agents and simulated worlds.

Sketches are linear, so the answer for the whole is that of the merged epochs, in which the packets in flight at an
interval's edge are whole again. Where the sender's epochs report all keys, cells are decoded for all of them jointly;
else one by one, as published. Epochs alone tell nothing of clocks and directions (`offset_ns` shifts the receiver's
times; flows that arrive before they are sent have no answer).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import InputError, ParameterError, UsageError
from sojourn.core.estimates import Estimate, FlowDelays, Reason, flow_delays_of, unanswered_flows
from sojourn.core.keys import Key, TrafficKey, key_id
from sojourn.epochs.epoch import MAX_KEYS, Epoch, merge_epochs
from sojourn.estimation.auto import combine, known_of_whole, segment_delays, with_remainder
from sojourn.estimation.differences import Losses, Parts, cell_difference, count_losses
from sojourn.estimation.lda import LdaAnswer, estimate_lda
from sojourn.estimation.ledgers.answer import LedgerFound, read_receipts
from sojourn.estimation.packets.answer import PacketCounts
from sojourn.estimation.posterior.held_out import Halves
from sojourn.estimation.posterior.history import History
from sojourn.estimation.sample import MatchedSample, match_samples
from sojourn.segments.planning.layout import ELEPHANTS, FLOWS, MOST_JOINT_FLOWS, RECEIPT, SAMPLES, SEGMENT, SPREAD
from sojourn.segments.plausibility import Capture, doubt_negative, judge_epochs, refuse_negative
from sojourn.segments.ranges import moved, moved_flows, recorded_base, shifted
from sojourn.sketches.lda import Lda
from sojourn.sketches.lds import Lds
from sojourn.sketches.ledgers.ledger import Ledger
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sample import Sample
from sojourn.sketches.sketch import AnySketch
from sojourn.sketches.stack import Stack

CELLS = (FLOWS, SPREAD, ELEPHANTS)
# Decoded losses are estimates: half a packet below none is none.
ROUNDING = 0.5


@dataclass(frozen=True)
class SegmentTotals:
    """The whole traffic of an interval: what both ends counted, what that says of losses, and the delays."""

    sent: int
    received: int
    delays: LdaAnswer
    losses: Losses
    percentiles: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Interval:
    """One stretch of time (the whole, or a part): totals, and each flow's answer.

    ``sample`` is what both ends' coordinated samples have in common, without the base of the delays; ``ledger`` what
    receipts and the sender's ledger tell, likewise.
    """

    first_ns: int
    last_ns: int
    totals: SegmentTotals
    flows: FlowDelays | None
    sample: MatchedSample | None = None
    ledger: LedgerFound | None = None

    @property
    def answered(self) -> bool:
        """Whether any flow has an answer."""
        return self.flows is not None and bool(self.flows.answered.any())

    @property
    def other_way(self) -> int:
        """How many flows were recorded that travel from the receiver to the sender (or the clocks differ)."""
        return sum(reason is Reason.OTHER_WAY for reason in (self.flows.reason if self.flows is not None else ()))

    def moved(self, base_ns: int) -> Interval:
        """The answer with the base of its delays added again."""
        tails = self.totals.percentiles
        tails = None if tails is None else tails + base_ns
        totals = replace(self.totals, delays=moved(self.totals.delays, base_ns), percentiles=tails)
        return replace(self, totals=totals, flows=moved_flows(self.flows, base_ns))


def estimate_flows(
    sender: AnySketch,
    receiver: AnySketch,
    flow_id: UInt64Array,
    packets: Int64Array,
    sample: MatchedSample | None = None,
    *,
    percentiles: bool = True,
) -> FlowDelays:
    """The delays of flows from two sketches of any kind that answers per flow; `sample` if they are matched already.

    Samples tell `percentiles`, too.
    """
    kind = sender.parameters.kind
    if not sender.recorded:
        return unanswered_flows(flow_id, Reason.NOTHING_RECORDED, kind)
    if kind == "lds":
        from sojourn.estimation.lds import estimate_lds

        return estimate_lds(sender, receiver, flow_id)  # type: ignore[arg-type]
    if kind == "sample":
        matched = sample or match_samples(sender, receiver)  # type: ignore[arg-type]
        return matched.flows(flow_id, percentiles=percentiles)
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
    percentiles: bool = True,
    before: History | None = None,
) -> FlowDelays | None:
    """The flows' delays from all streams of two points; None where only the segment was recorded.

    Joint decoding needs `flow_id` to list every recorded flow, and no more than `MOST_JOINT_FLOWS`. `sample` is
    the matched sample, where there is one, `before` what the run before says. The list's order does not matter.
    """
    order = np.argsort(flow_id, kind="stable")
    asked: dict[str, Any] = {"delays": delays, "joint": joint, "sample": sample, "percentiles": percentiles}
    found = _estimate_in_order(sent, received, flow_id[order], sizes=sizes[order], before=before, **asked)
    if found is None or np.array_equal(order, np.arange(len(order))):
        return found
    return found.at(np.argsort(order))


def _estimate_in_order(
    sent: Mapping[str, AnySketch],
    received: Mapping[str, AnySketch],
    flow_id: UInt64Array,
    *,
    sizes: Int64Array,
    delays: LdaAnswer,
    joint: bool,
    sample: MatchedSample | None,
    percentiles: bool,
    before: History | None,
) -> FlowDelays | None:
    """The same; what is rounded, or learnt from some of many flows, is so in the order of the list."""
    blind = delays.mean if isinstance(delays.mean, Estimate) else None
    sample = sample or _matched(sent, received)
    cells = None
    if FLOWS in sent:
        streams = [stream for stream in CELLS if stream in sent]
        if joint and len(flow_id) <= MOST_JOINT_FLOWS and sent[FLOWS].parameters.kind != "sample":
            ends = [sent[stream] for stream in streams], [received[stream] for stream in streams]
            # Flows whose cells are spoiled are known by other means then; leaning to the mean of all packets would
            # draw the others away from where flows are.
            alone = len(sent) == len((FLOWS, SEGMENT))
            known = blind.value if alone and blind is not None else None
            cells = _estimate_jointly(*ends, flow_id, known, beside=SAMPLES in sent)
        else:
            cells = estimate_flows(sent[FLOWS], received[FLOWS], flow_id, sizes, sample, percentiles=percentiles)
    counts = _count_packets(sent, received, flow_id, cells, sample, is_complete=joint)
    if SAMPLES not in sent:
        return cells if cells is None or counts is None else counts.applied(cells)
    samples = estimate_flows(sent[SAMPLES], received[SAMPLES], flow_id, sizes, sample, percentiles=percentiles)
    assert counts is not None
    if cells is not None:
        # What cells say of packets is counted: of a million flows it takes 61 MB.
        cells = replace(cells, heard_counts=None)
    halves = None if sample is None else Halves(*sample.halves(flow_id))
    sampled = None if sample is None or not percentiles else sample.delays(flow_id)
    return combine(cells, samples, counts, halves, before, sampled, known_of_whole(delays.mean, sample))


def _count_packets(
    sent: Mapping[str, AnySketch],
    received: Mapping[str, AnySketch],
    flow_id: UInt64Array,
    cells: FlowDelays | None,
    sample: MatchedSample | None,
    *,
    is_complete: bool,
) -> PacketCounts | None:
    """The flows' packets and losses; None where neither a sample nor cells decoded for all flows know of them."""
    if sample is None and (cells is None or cells.heard_counts is None):
        return None
    from sojourn.estimation.packets.answer import count_packets, counted_packets

    if cells is None:
        cells = unanswered_flows(flow_id, Reason.NOT_SAMPLED, "sample")
    if cells.heard_counts is None and isinstance(sent.get(FLOWS), Lds):
        cells = replace(cells, heard_counts=_upper_bounds(cells))
    counters = None
    for stream in CELLS:
        if stream in sent and sent[stream].parameters.kind == "counter_vector" and cells.heard_counts is not None:
            counters = counted_packets(sent[stream], received[stream], flow_id)  # type: ignore[arg-type]
    recorded = {"sent": sent[SEGMENT].recorded, "received": received[SEGMENT].recorded}
    return count_packets(cells, sample, counters, **recorded, is_complete=is_complete)


@dataclass(frozen=True, eq=False)
class StreamAnswers:
    """All that two points' streams tell: the whole's delays, the flows, and the matched sample where there is one."""

    delays: LdaAnswer
    flows: FlowDelays | None
    parts: list[Parts]
    sample: MatchedSample | None
    ledger: LedgerFound | None = None

    def losses(
        self, sent: int, received: int, *, parts: Sequence[Parts] = (), foreign: tuple[int, int] = (0, 0)
    ) -> Losses:
        """The losses of the whole; `parts` are further counts of both ends.

        `foreign` packets are in the sketches of either end although they are not part of the whole.
        """
        if self.ledger is not None and not any(foreign) and (exact := self.ledger.losses(sent, received)) is not None:
            return exact
        extra = None if self.sample is None else self.sample.extra_packets().less(foreign[1])
        return count_losses(sent, received, [*parts] if any(foreign) else [*self.parts, *parts], extra)


def answer_streams(
    sent: Mapping[str, AnySketch],
    received: Mapping[str, AnySketch],
    flow_id: UInt64Array,
    *,
    sizes: Int64Array,
    joint: bool,
    signed: bool = False,
    before: History | None = None,
    ledger: Ledger | None = None,
) -> StreamAnswers:
    """The answers of all streams of two points; flows without a loss that can be known have none.

    With `signed`, for whoever adds runs up, a flow of which more arrived than was sent has a negative loss instead, and
    percentiles are left to the sampled delays of all runs. `before` is what the run before says of the flows, `ledger`
    the sender's, which receipts are read by.
    """
    here, there = sent[SEGMENT], received[SEGMENT]
    blind = estimate_lda(here, there)  # type: ignore[arg-type]
    sample = _matched(sent, received)
    flows = None
    if len(flow_id):
        asked = {"sizes": sizes, "delays": blind, "joint": joint, "sample": sample, "percentiles": not signed}
        flows = estimate_streams(sent, received, flow_id, **asked, before=before)  # type: ignore[arg-type]
    found = None
    if RECEIPT in sent:
        found = read_receipts(sent[RECEIPT], received[RECEIPT], flow_id, ledger)  # type: ignore[arg-type]
        flows = None if flows is None else found.applied(flows)
    if flows is not None and not signed:
        # Where more arrived than was sent, nothing is known of losses.
        flows = without_unknown_losses(flows)
    delays = segment_delays(blind, received=there.recorded, sample=sample, flows=flows)
    delays = delays if found is None else found.whole(delays, here.recorded)
    if flows is not None:
        flows = with_remainder(flows, delays.mean, there.recorded)
    parts = [part for stream in sent for part in Parts.of_sketches(sent[stream], received[stream])]
    return StreamAnswers(delays, flows, parts, sample, found)


def _upper_bounds(cells: FlowDelays) -> FloatArray | None:
    """Of numbers of packets by cells that are read one by one, which never count too little."""
    if np.isnan(cells.packets).any() or np.isnan(cells.lost).any():
        return None
    none = np.zeros(len(cells.packets))
    lost = np.where(cells.lost < 0, cells.packets, cells.lost)
    return np.column_stack([none, none, none, np.ceil(cells.packets), none, none, none, np.ceil(lost)])


def _matched(sent: Mapping[str, AnySketch], received: Mapping[str, AnySketch]) -> MatchedSample | None:
    """What both points' samples have in common, where there are any."""
    stream = SAMPLES if SAMPLES in sent else FLOWS
    if stream in sent and isinstance(sent[stream], Sample) and isinstance(received[stream], Sample):
        return match_samples(sent[stream], received[stream])  # type: ignore[arg-type]
    return None


def without_unknown_losses(flows: FlowDelays) -> FlowDelays:
    """The flows, with NaN for losses where more arrived than was sent, so that they are not known."""
    with np.errstate(invalid="ignore"):
        unknown = ~(flows.lost >= -ROUNDING)
        columns = {
            name: np.where(unknown, np.nan, np.maximum(column, 0.0))
            for name in ("lost", "lost_low", "lost_high")
            if (column := getattr(flows, name)) is not None
        }
    return flows.with_columns(columns)


def _estimate_jointly(
    senders: list[AnySketch],
    receivers: list[AnySketch],
    flow_id: UInt64Array,
    grand_mean: float | None,
    *,
    beside: bool,
) -> FlowDelays:
    """All flows at once; `flow_id` must list every recorded one, as a survey does. A sample may be `beside` them."""
    from sojourn.estimation.joint.segments import estimate_colate_joint, estimate_lds_joint, estimate_stack

    sender, receiver = senders[0], receivers[0]
    kind = sender.parameters.kind
    if len(senders) > 1 or beside:
        return estimate_stack(senders, receivers, flow_id, grand_mean=grand_mean)  # type: ignore[arg-type]
    if not sender.recorded:
        return unanswered_flows(flow_id, Reason.NOTHING_RECORDED, f"{kind} joint")
    if kind == "counter_vector":
        return estimate_colate_joint(sender, receiver, flow_id, grand_mean=grand_mean)  # type: ignore[arg-type]
    return estimate_lds_joint(sender, receiver, flow_id, grand_mean=grand_mean)  # type: ignore[arg-type]


def parts_of(sketch: AnySketch) -> dict[str, AnySketch]:
    """What a point's stream holds, by the names of a plan's parts."""
    if isinstance(sketch, Stack):
        return dict(sketch.parts)
    return {SEGMENT if isinstance(sketch, Lda) else FLOWS: sketch}


@dataclass(frozen=True, eq=False)
class CountedFlows:
    """What both points counted of each flow beside the sketches: the first of the flows that are decoded.

    Of ``split`` flows the points show other packets, as offloading makes them; ``foreign`` packets of flows that only
    one point saw are in the sketches of either.
    """

    sent: Int64Array
    received: Int64Array
    split: BoolArray
    foreign: tuple[int, int]

    def applied(self, flows: FlowDelays) -> FlowDelays:
        """The answers of these flows: nothing that was counted has to be estimated."""
        lost = np.where(self.split, np.nan, Parts(self.sent, self.received).lost_of_each)
        flows = flows.at(np.arange(len(self.sent))).counted(self.sent.astype(np.float64), lost)
        return without_other_way(flows)

    def losses(self, answers: StreamAnswers, sent: int, received: int) -> Losses:
        own = Parts(self.sent, self.received)
        losses = answers.losses(sent, received, parts=[own], foreign=self.foreign)
        if not self.split.any():
            return losses
        return Losses(None, Parts(own.sent[~self.split], own.received[~self.split]).lost, sent, losses.extra)


def answer_interval(
    sender: AnySketch,
    receiver: AnySketch,
    flow_id: UInt64Array,
    *,
    sizes: Int64Array,
    joint: bool,
    base_ns: int = 0,
    whole: bool = True,
    signed: bool = False,
    counted: CountedFlows | None = None,
    before: History | None = None,
    ledger: Ledger | None = None,
) -> Interval:
    """What two points' sketches say of one stretch of time; `flow_id` lists every recorded flow if `joint`.

    Unless it is the whole, packets in flight at its edges are extra here and missing there: that proves nothing.
    `signed`, `before` and `ledger` are as for `answer_streams`.
    """
    sent, received = parts_of(sender), parts_of(receiver)
    before = None if before is None else before.less(base_ns)
    asked: dict[str, Any] = {"sizes": sizes, "joint": joint, "signed": signed, "before": before, "ledger": ledger}
    answers = answer_streams(sent, received, flow_id, **asked)
    counts = sender.recorded, receiver.recorded
    flows = answers.flows
    if counted is not None:
        counts = counts[0] - counted.foreign[0], counts[1] - counted.foreign[1]
        losses = counted.losses(answers, *counts)
        flows = None if flows is None else counted.applied(flows)
    else:
        losses = answers.losses(*counts) if whole or answers.ledger else count_losses(*counts, [])
    tails = None if answers.sample is None or signed else answers.sample.percentiles()
    totals = SegmentTotals(*counts, answers.delays, losses, tails)
    frame = sender.first_ns or 0, sender.last_ns or 0
    return Interval(*frame, totals, flows, answers.sample, answers.ledger).moved(base_ns)


def in_turn(ends: Mapping[int, tuple[AnySketch, AnySketch]], answer: Callable[..., Interval]) -> list[Interval]:
    """The answers of intervals by their numbers, oldest first, each with what flows were in the one right before."""
    found: list[Interval] = []
    last, before = None, History.none()
    for number, (sender, receiver) in ends.items():
        if number - 1 != last:
            before = History.none()
        found.append(answer(sender, receiver, before=before))
        last, before = number, History.of(found[-1].flows)
    return found


@dataclass(frozen=True, eq=False)
class EpochsAnswer:
    """The whole, its intervals, and the keys of the flows that were asked for.

    ``literal_because`` says why cells were not decoded jointly, where they were not although they could be.
    """

    whole: Interval
    intervals: list[Interval]
    keys: dict[int, TrafficKey]
    memory_bits: int
    kind: str
    literal_because: str = ""
    warnings: tuple[str, ...] = ()


def answer_epochs(
    sender: list[Epoch],
    receiver: list[Epoch],
    *,
    keys: list[TrafficKey] | None = None,
    packets: dict[int, int] | None = None,
    offset_ns: int = 0,
    interval_ns: int = 0,
    method: Literal["joint", "literal"] = "joint",
) -> EpochsAnswer:
    """Answer from two points' epochs; `keys` are the flows asked for (all reported ones by default).

    `packets` are flows' sizes at the sender by their ids, where they are known. `interval_ns` is the epochs' length, to
    answer for each of them, too.
    """
    recorded = merge_epochs(_one_stream(sender, "sender")), merge_epochs(_one_stream(receiver, "receiver"))
    recorded[0].parameters.require_equal(recorded[1].parameters)
    parts = parts_of(recorded[0])
    has_cells = FLOWS in parts and not isinstance(parts[FLOWS], Sample)
    because = _not_joint_because(sender) if method == "joint" and len(parts) > 1 else ""
    joint = method == "joint" and not because and len(parts) > 1
    reported = _reported(sender, receiver) if len(parts) > 1 and (keys is None or joint) else []
    listed = {key_id(key): key for key in ([*reported, *(keys or [])] if joint else keys or reported)}
    asked = listed if keys is None else {key_id(key): key for key in keys}
    base_ns, warnings = _judged(recorded, (sender[0].node, receiver[0].node), offset_ns)
    question = _Question(listed, asked, packets or {}, offset_ns, joint, base_ns)
    whole = question.answer(*recorded, whole=True)
    intervals = []
    if interval_ns:
        ahead = round((offset_ns + base_ns) / interval_ns)
        slots = [_by_slot(epochs, interval_ns, late) for epochs, late in ((sender, 0), (receiver, ahead))]
        both = sorted(set(slots[0]) & set(slots[1]))
        intervals = in_turn({s: (merge_epochs(slots[0][s]), merge_epochs(slots[1][s])) for s in both}, question.answer)
    if not whole.answered:
        refuse_negative(whole.totals.delays.mean, offset_ns)
    warnings += doubt_negative(whole.totals.delays.mean)
    parameters = {name: part.parameters for name, part in parts.items()}
    bits = recorded[0].parameters.memory_bits
    why = because if has_cells else ""
    return EpochsAnswer(whole, intervals, asked, bits, _kind(parameters), why, tuple(warnings))


def _one_stream(epochs: list[Epoch], point: str) -> list[Epoch]:
    """The epochs, all of one stream that holds a segment."""
    if not epochs or len({epoch.stream for epoch in epochs}) > 1 or SEGMENT not in parts_of(epochs[0].sketch):
        raise InputError(
            f"the {point}'s epochs are not one stream of a segment", action="give files written by sojourn record"
        )
    return epochs


def _judged(recorded: tuple[AnySketch, AnySketch], names: tuple[str, str], offset_ns: int) -> tuple[int, list[str]]:
    """The base of the delays (`ranges`), and what is doubtful; an `InputError` where epochs cannot be compared."""
    before, after = (parts_of(sketch)[SEGMENT] for sketch in recorded)
    after = shifted(after, offset_ns)
    base_ns = recorded_base(before, after)  # type: ignore[arg-type]
    frames = [
        Capture(name, (sketch.first_ns or 0) - ahead, (sketch.last_ns or 0) - ahead)
        for name, sketch, ahead in zip(names, (before, after), (0, offset_ns), strict=True)
    ]
    cells = cell_difference(before, after)  # type: ignore[arg-type]
    return base_ns or 0, judge_epochs(frames[0], frames[1], cells, base_ns=base_ns)


def _kind(parts: dict[str, Parameters]) -> str:
    flows = [part for part in parts if part != SEGMENT]
    if SAMPLES in flows or len(flows) > 1:
        return "auto"
    return parts[flows[0] if flows else SEGMENT].kind


def _not_joint_because(sender: list[Epoch]) -> str:
    """What joint decoding lacks; empty where nothing."""
    if any(epoch.keys is None for epoch in sender):
        return "joint decoding needs the keys of all flows: record the sender with --keys"
    if any(len(epoch.keys or ()) >= MAX_KEYS for epoch in sender):
        return "joint decoding needs the keys of all flows, more than an epoch carries: shorten --interval"
    if len({key for epoch in sender for key in epoch.keys or ()}) > MOST_JOINT_FLOWS:
        return f"there are more than {MOST_JOINT_FLOWS:,} flows, too many to decode jointly"
    return ""


def _by_slot(epochs: list[Epoch], interval_ns: int, late: int) -> dict[int, list[Epoch]]:
    """Epochs by their interval, counted from `late` on."""
    slots: dict[int, list[Epoch]] = {}
    for epoch in epochs:
        if epoch.first_ns is not None:
            slots.setdefault(epoch.first_ns // interval_ns - late, []).append(epoch)
    return slots


def _reported(sender: list[Epoch], receiver: list[Epoch]) -> list[TrafficKey]:
    """All keys that came with the epochs of either point, in their order, once each."""
    epochs = [*sender, *receiver]
    if all(epoch.keys is None for epoch in epochs):
        raise UsageError(
            "neither point's epochs report which flows were active",
            where="keys",
            action="name the flows with --flow, or record both points with --keys",
        )
    keys: dict[Key, None] = {}
    for epoch in epochs:
        keys.update(dict.fromkeys(epoch.keys or ()))
    return [key for key in keys if isinstance(key, TrafficKey)]


@dataclass(frozen=True, eq=False)
class _Question:
    """The flows that are decoded and, of these, the ones to answer for; sizes where they are known."""

    listed: dict[int, TrafficKey]
    asked: dict[int, TrafficKey]
    packets: dict[int, int]
    offset_ns: int
    joint: bool
    base_ns: int

    def answer(
        self, sender: AnySketch, receiver: AnySketch, *, whole: bool = False, before: History | None = None
    ) -> Interval:
        receiver = shifted(receiver, self.offset_ns + self.base_ns)
        for part in parts_of(sender).values():
            # What the flows weighed when they were recorded: epochs carry the policy, not the weights.
            if isinstance(part, Lds) and part.parameters.weights:
                part.weights = part.parameters.policy.weights_of(list(self.listed), list(self.listed.values()))
        answer = answer_interval(
            sender,
            receiver,
            np.array(list(self.listed), np.uint64),
            sizes=np.array([self.packets.get(flow_id, 0) for flow_id in self.listed], np.int64),
            joint=self.joint,
            base_ns=self.base_ns,
            whole=whole,
            before=before,
        )
        if answer.flows is None:
            return answer
        row = {flow_id: at for at, flow_id in enumerate(self.listed)}
        asked = answer.flows.at(np.array([row[flow_id] for flow_id in self.asked], np.int64))
        return replace(answer, flows=without_other_way(asked))


def without_other_way(flows: FlowDelays) -> FlowDelays:
    """Flows whose delay is surely negative travel the other way (or the clocks differ): no answer."""
    backward = np.nan_to_num(flows.high_ns, nan=1.0) < 0
    for column in (flows.mean_ns, flows.low_ns, flows.high_ns, flows.std_ns):
        column[backward] = np.nan
    if flows.percentiles is not None:
        flows.percentiles[backward] = np.nan
    if flows.shared_shape is not None:
        flows.shared_shape[backward] = False
    for row in np.flatnonzero(backward).tolist():
        flows.reason[row] = Reason.OTHER_WAY
    return flows
