"""The same measurement in two steps: each point records alone, and only epochs travel.

Both points must be told the same (sketch, memory, expected flows and loss, salt): parameters follow from that alone.
What the survey does for `measure` cannot be done here: flows of both directions are recorded (filter one), captures
are not trimmed to each other (start and stop them around the traffic, or cut intervals), and clocks are taken as they
are (`offset_ns` shifts the receiver's).

A point that reports keys keeps no flow table: a key reporter (`sketches.key_reporter`) per open epoch tells which
packets are the first of their flow, and only their keys are read. Without keys the flows asked for must be named.

Where the sender's epochs report all keys, cells are decoded for all of them jointly; else one by one, as published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sojourn.core.arrays import Int64Array, PacketBatch
from sojourn.core.errors import InputError, MismatchError, UsageError
from sojourn.core.estimates import Reason
from sojourn.core.keys import Key, TrafficKey, key_id
from sojourn.epochs.epoch import MAX_KEYS, Epoch, merge_epochs
from sojourn.epochs.recorder import Recorder, SlotOf, every
from sojourn.estimation.columns import FlowDelays
from sojourn.estimation.differences import cell_difference, count_losses
from sojourn.segments.measurement import (
    FLOWS,
    MOST_JOINT_FLOWS,
    SAMPLES,
    SEGMENT,
    Interval,
    SegmentPlan,
    SegmentTotals,
    answer_streams,
)
from sojourn.segments.plausibility import Capture, judge_epochs, refuse_negative
from sojourn.segments.ranges import recorded_base, shifted
from sojourn.sketches.key_reporter import KeyReporter
from sojourn.sketches.lds import Lds, LdsParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.registry import AnySketch, new_sketch
from sojourn.sketches.weights import FlowWeights

__all__ = ["KeyReports", "TwoStepAnswer", "estimate_epochs", "record_epochs", "without_other_way"]

LEAST_KEYS = 1024

KeysAt = Callable[[Int64Array], list[TrafficKey]]


@dataclass(frozen=True, eq=False)
class _NumberedBatch(PacketBatch):
    """Packets that remember their rows in the batch that their keys can be read from."""

    row: Int64Array

    @classmethod
    def number(cls, batch: PacketBatch) -> _NumberedBatch:
        return cls(**batch.columns(), row=np.arange(len(batch)))  # type: ignore[arg-type]


class KeyReports:
    """The keys of all epochs of a point, each reported once per epoch; `keys_at` reads those of the current batch.

    ``expected_missed`` is how many keys the reporters' false positives hid; ``beyond`` counts keys over what an epoch
    can carry.
    """

    def __init__(self, keys_at: KeysAt, *, flows: int) -> None:
        self.keys_at = keys_at
        self.flows = max(LEAST_KEYS, flows)
        self.reported = self.beyond = 0
        self.expected_missed = 0.0
        self.memory_bits = 0
        self._open = 0

    def begin(self) -> _KeysOfEpoch:
        """The keys of a new epoch."""
        reporter = KeyReporter(self.flows)
        self._open += 1
        self.memory_bits = max(self.memory_bits, self._open * reporter.memory_bits)
        return _KeysOfEpoch(self, reporter)

    def end(self, epoch: _KeysOfEpoch, reporter: KeyReporter) -> None:
        self._open -= 1
        self.reported += len(epoch.found)
        self.expected_missed += reporter.expected_missed


class _KeysOfEpoch:
    def __init__(self, reports: KeyReports, reporter: KeyReporter) -> None:
        self._reports, self._reporter = reports, reporter
        self.found: dict[int, Key] = {}

    def see(self, batch: _NumberedBatch) -> None:
        """Note the keys that the reporter calls new; after a rotation it may call one new again."""
        new = np.flatnonzero(self._reporter.first_seen(batch.flow_id))
        ids = batch.flow_id[new].tolist()
        fresh = [i for i, flow_id in enumerate(ids) if flow_id not in self.found]
        room = MAX_KEYS - len(self.found)
        self._reports.beyond += max(0, len(fresh) - room)
        chosen = fresh[: max(room, 0)]
        keys = self._reports.keys_at(batch.row[new[chosen]]) if chosen else []
        self.found.update(zip((ids[i] for i in chosen), keys, strict=True))

    def keys(self) -> tuple[Key, ...]:
        self._reports.end(self, self._reporter)
        return tuple(self.found.values())


def record_epochs(
    batches: Iterable[PacketBatch],
    plan: SegmentPlan,
    *,
    node: str,
    interval_ns: int = 0,
    keys: KeyReports | None = None,
    keys_at: KeysAt | None = None,
    complete_until: Callable[[], int] | None = None,
) -> Iterator[Epoch]:
    """Epochs of all streams as they close; the first that holds flows has the active keys if `keys` reports them.

    `keys_at` reads the keys of the current batch's packets; flows that are weighted need it. `complete_until` tells,
    after each batch, the time before which no packet will come any more: epochs that end before it close at once,
    although nothing follows them.
    """
    slot_of: SlotOf | None = every(interval_ns) if interval_ns else None
    flows = _FlowSketches(plan.flows, keys_at) if plan.flows is not None else None
    recorders = []
    for stream, parameters in plan.streams.items():
        make = flows.new if flows is not None and stream == FLOWS else lambda _, p=parameters: new_sketch(p)
        begin = keys.begin if keys is not None and stream == plan.keyed_stream else None
        recorders.append(Recorder(node, stream, make, slot_of=slot_of, keys_for=begin))
    for batch in batches:
        if flows is not None:
            flows.weigh(batch)
        numbered = batch if keys is None else _NumberedBatch.number(batch)
        for recorder in recorders:
            yield from recorder.record(numbered)
            if complete_until is not None:
                yield from recorder.close_before(complete_until())
    for recorder in recorders:
        yield from recorder.finish()


class _FlowSketches:
    """Makes the flow sketches of all epochs; where flows are weighted, all share one table of their weights."""

    def __init__(self, parameters: Parameters, keys_at: KeysAt | None) -> None:
        self._parameters = parameters
        self._weighted = parameters if isinstance(parameters, LdsParameters) and parameters.weights else None
        self._weights = FlowWeights({})
        self._keys_at = keys_at
        if self._weighted is not None and keys_at is None:
            raise UsageError("weights need the flows' keys", where="record", action="give keys_at")

    def new(self, _sequence: int) -> AnySketch:
        return new_sketch(self._parameters) if self._weighted is None else Lds(self._weighted, self._weights)

    def weigh(self, batch: PacketBatch) -> None:
        """Learn the weights of flows that a batch is the first to show."""
        if self._weighted is not None and (keys_at := self._keys_at) is not None:
            policy = self._weighted.policy
            self._weights.cover(batch.flow_id, lambda rows: policy.weigh(keys_at(rows)))


@dataclass(frozen=True, eq=False)
class TwoStepAnswer:
    """The whole, its intervals, and the keys of the flows that were asked for.

    ``literal_because`` says why cells were not decoded jointly, where they were not although they could be.
    """

    whole: Interval
    intervals: list[Interval]
    keys: dict[int, TrafficKey]
    other_way: int
    memory_bits: int
    kind: str
    literal_because: str = ""
    warnings: tuple[str, ...] = ()


def estimate_epochs(
    sender: list[Epoch],
    receiver: list[Epoch],
    *,
    keys: list[TrafficKey] | None = None,
    packets: dict[int, int] | None = None,
    offset_ns: int = 0,
    interval_ns: int = 0,
    method: Literal["joint", "literal"] = "joint",
) -> TwoStepAnswer:
    """Answer from two points' epochs; `keys` are the flows asked for (all reported ones by default)."""
    points = [_by_stream(epochs, name) for epochs, name in ((sender, "sender"), (receiver, "receiver"))]
    if set(points[0]) != set(points[1]):
        raise MismatchError(
            f"the sender's epochs hold {', '.join(sorted(points[0]))}, the receiver's {', '.join(sorted(points[1]))}",
            action="record both with the same --sketch",
        )
    because = "" if method == "literal" or not _has_cells(points[0]) else _not_joint_because(points)
    joint = method == "joint" and not because and _has_cells(points[0])
    reported = _reported(points) if keys is None or joint else []
    listed = {key_id(key): key for key in ([*reported, *(keys or [])] if joint else keys or reported)}
    asked = listed if keys is None else {key_id(key): key for key in keys}
    base_ns, warnings = _judged(points, offset_ns)
    question = _Question(listed, asked, packets or {}, offset_ns, joint, base_ns)
    whole = question.answer(points[0], points[1], whole=True)
    parts = []
    if interval_ns:
        ahead = round((offset_ns + base_ns) / interval_ns)
        slots = [_by_slot(point, interval_ns, late) for point, late in zip(points, (0, ahead), strict=True)]
        both = sorted(set(slots[0]) & set(slots[1]))
        parts = [question.answer(slots[0][s], slots[1][s]) for s in both]
    other_way = sum(reason is Reason.OTHER_WAY for reason in (whole.flows.reason if whole.flows else []))
    first = {stream: epochs[0].parameters for stream, epochs in points[0].items()}
    bits = sum(parameters.memory_bits for parameters in first.values())
    if not whole.answered:
        refuse_negative(whole.totals.delays.mean, offset_ns)
    return TwoStepAnswer(whole, parts, asked, other_way, bits, _kind(first), because, tuple(warnings))


def _judged(points: list[dict[str, list[Epoch]]], offset_ns: int) -> tuple[int, list[str]]:
    """The base of the delays (`ranges`), and what is doubtful; an `InputError` where epochs cannot be compared."""
    before, after = (merge_epochs(point[SEGMENT]) for point in points)
    before.parameters.require_equal(after.parameters)
    names = [point[SEGMENT][0].node for point in points]
    after = shifted(after, offset_ns)
    base_ns = recorded_base(before, after)  # type: ignore[arg-type]
    frames = [
        Capture(name, (sketch.first_ns or 0) - ahead, (sketch.last_ns or 0) - ahead)
        for name, sketch, ahead in zip(names, (before, after), (0, offset_ns), strict=True)
    ]
    cells = cell_difference(before, after)  # type: ignore[arg-type]
    return base_ns or 0, judge_epochs(frames[0], frames[1], cells, base_ns=base_ns)


def _kind(first: dict[str, Parameters]) -> str:
    flows = [stream for stream in first if stream != SEGMENT]
    if SAMPLES in flows or len(flows) > 1:
        return "auto"
    return first[flows[0] if flows else SEGMENT].kind


def _has_cells(streams: dict[str, list[Epoch]]) -> bool:
    return FLOWS in streams and streams[FLOWS][0].parameters.kind != "sample"


def _not_joint_because(points: list[dict[str, list[Epoch]]]) -> str:
    """What joint decoding lacks; empty where nothing."""
    cells = points[0][FLOWS]
    if any(epoch.keys is None for epoch in cells):
        return "joint decoding needs the keys of all flows: record the sender with --keys"
    if any(len(epoch.keys or ()) >= MAX_KEYS for epoch in cells):
        return "joint decoding needs the keys of all flows, more than an epoch carries: shorten --interval"
    if len({key for epoch in cells for key in epoch.keys or ()}) > MOST_JOINT_FLOWS:
        return f"there are more than {MOST_JOINT_FLOWS:,} flows, too many to decode jointly"
    return ""


def _by_stream(epochs: list[Epoch], point: str) -> dict[str, list[Epoch]]:
    streams: dict[str, list[Epoch]] = {}
    for epoch in epochs:
        streams.setdefault(epoch.stream, []).append(epoch)
    if SEGMENT not in streams:
        raise InputError(
            f"the {point}'s epochs have no stream {SEGMENT!r}", action="give files written by sojourn record"
        )
    return streams


def _by_slot(streams: dict[str, list[Epoch]], interval_ns: int, late: int) -> dict[int, dict[str, list[Epoch]]]:
    """Epochs by their interval, counted from `late` on."""
    slots: dict[int, dict[str, list[Epoch]]] = {}
    for stream, epochs in streams.items():
        for epoch in epochs:
            if epoch.first_ns is not None:
                slots.setdefault(epoch.first_ns // interval_ns - late, {}).setdefault(stream, []).append(epoch)
    return {slot: held for slot, held in slots.items() if set(held) == set(streams)}


def _reported(points: list[dict[str, list[Epoch]]]) -> list[TrafficKey]:
    """All keys that came with the flows' epochs of either point, in their order, once each."""
    epochs = [epoch for streams in points for stream, held in streams.items() if stream != SEGMENT for epoch in held]
    if epochs and all(epoch.keys is None for epoch in epochs):
        raise UsageError(
            "neither point's epochs report which flows were active",
            where="keys",
            action="name the flows with --flow, or record at least one point with --keys",
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
        self, sender: dict[str, list[Epoch]], receiver: dict[str, list[Epoch]], *, whole: bool = False
    ) -> Interval:
        ends = [{stream: merge_epochs(epochs) for stream, epochs in point.items()} for point in (sender, receiver)]
        ends[1] = {stream: shifted(sketch, self.offset_ns + self.base_ns) for stream, sketch in ends[1].items()}
        for sketch in ends[0].values():
            _tell_weights(sketch, self.listed)
        before, after = ends[0][SEGMENT], ends[1][SEGMENT]
        ids = np.array(list(self.listed), np.uint64)
        sizes = np.array([self.packets.get(flow_id, 0) for flow_id in self.listed], np.int64)
        answers = answer_streams(ends[0], ends[1], ids, sizes=sizes, joint=self.joint)
        counts = before.recorded, after.recorded
        totals = SegmentTotals(*counts, answers.delays, answers.losses(*counts) if whole else count_losses(*counts, []))
        flows = answers.flows
        if flows is not None:
            row = {flow_id: at for at, flow_id in enumerate(self.listed)}
            flows = flows.at(np.array([row[flow_id] for flow_id in self.asked], np.int64))
        answer = Interval(before.first_ns or 0, before.last_ns or 0, totals, flows).moved(self.base_ns)
        return answer if answer.flows is None else replace(answer, flows=without_other_way(answer.flows))


def _tell_weights(sketch: AnySketch, asked: dict[int, TrafficKey]) -> None:
    """What the flows weighed when they were recorded: epochs carry the policy, not the weights."""
    if isinstance(sketch, Lds) and sketch.parameters.weights:
        sketch.weights = sketch.parameters.policy.weights_of(list(asked), list(asked.values()))


def without_other_way(flows: FlowDelays) -> FlowDelays:
    """Flows whose delay is surely negative travel the other way (or the clocks differ): no answer."""
    backward = np.nan_to_num(flows.high_ns, nan=1.0) < 0
    for column in (flows.mean_ns, flows.low_ns, flows.high_ns, flows.std_ns):
        column[backward] = np.nan
    for row in np.flatnonzero(backward).tolist():
        flows.reason[row] = Reason.OTHER_WAY
    return flows
