"""The answer of a run, as it is stored, and of many runs as one.

A run is answered once, by the same function as all segments (`segments.answer`), and what is stored of it is what later
questions need: totals, flows, the sampled packets' delays, and the smallest ones for the clock. Delays are *raw* there,
the receiver's reading less the sender's: the clocks are corrected when a question is answered, with all that is known
by then of both directions.

Runs add up: packets and losses exactly, means by their packets, percentiles from the sampled delays of all, each with
the packets that it stands for. Errors of a flow's means are taken to be common to all its runs, so that its interval is
never narrower than its runs' on average: what draws a flow towards the others does so in every run. Those of the
whole's means, which are sampled anew in each run, are independent. What the clocks leave unsure is added to both sides.

**Losses.** A packet that changed places with a marker is missing in one run and extra in the next. What a receiver has
beyond its run is looked for in the sender's run before (``displaced``), and taken off the losses of that; what a sender
has beyond its run, in the receiver's run before (``ahead``), where a marker was held up. Only the packets that were
late at the end of the last run have to be guessed, from the next run or from how the sampled packets of these overtook
each other (``overtaken``): where they did, no loss is called exact. The delays of packets that changed places are those
of no run: where a run shows any, a mean is as uncertain as its part of them may differ from the others, and nothing is
called exact.

Cost: O(flows + samples) for each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import InputError
from sojourn.core.estimates import LEVELS, Answer, Estimate, FlowDelays, Reason, Unanswered
from sojourn.core.keys import TrafficKey, key_id
from sojourn.epochs.epoch import Epoch, KernelClock, joined_clocks, merge_epochs
from sojourn.estimation.differences import poisson_95
from sojourn.estimation.lda import LdaAnswer
from sojourn.estimation.ledgers.answer import METHOD
from sojourn.estimation.order_statistics import weighed_percentiles
from sojourn.estimation.posterior.history import History
from sojourn.estimation.sample import MatchedSample, displaced_packets
from sojourn.matching.clock.correction import TimedPairs
from sojourn.segments.answer import (
    Interval,
    SegmentTotals,
    answer_interval,
    parts_of,
    without_other_way,
    without_unknown_losses,
)
from sojourn.segments.fleet.clocks import ClockAt, RunFrame, smallest
from sojourn.segments.fleet.leads import FARTHEST_NS
from sojourn.segments.fleet.ledgers.runs import LedgerRun, NamingWork, told_by_ends
from sojourn.segments.fleet.losses import (
    as_counted,
    combined_losses,
    crossed_shares,
    late_at_each,
    losses_without,
    with_late_ends,
)
from sojourn.segments.planning.layout import FLOWS, MOST_JOINT_FLOWS, SAMPLES, SEGMENT
from sojourn.segments.ranges import IN_RANGE_NS, recorded_base, retimed, shifted
from sojourn.sketches.sample import Sample
from sojourn.sketches.sketch import AnySketch, new_sketch

# Sampled delays that are stored of one flow and run; of more, so many that are evenly spread among them.
MOST_DELAYS = 512
# Sizes are whole numbers; a decoded one that is so near to one is that.
SURE_SIZE = 0.05
# Sampled packets whose order is looked at, the last ones of a run.
MOST_ORDERED = 4096
# Beyond these no clock and no packet counter of a run is believed: differences and sums of such numbers stay whole.
LAST_NS = (1 << 62) - (1 << 41)
MOST_PACKETS = 1 << 40
# Deviations by which packets that changed places with a marker may differ from others.
LATER = 2.0
# Packets for each sampled one, up to which a sample shows how many are late at one place, and not only on average.
DENSE = 2.0
_NONE = Estimate(0.0, 0.0, 0.0, 0, "counted", unit="packets")


@dataclass(frozen=True, eq=False)
class SampledDelays:
    """Raw delays of sampled packets: each with its flow's row (−1: of none that is known) and the packets it stands
    for.

    ``whole`` flows had all their packets sampled; ``is_whole`` says it of all packets.
    """

    row: Int64Array
    delay_ns: Int64Array
    weight: FloatArray
    whole: BoolArray
    is_whole: bool

    @classmethod
    def of(cls, sample: MatchedSample | None, flow_id: UInt64Array, base_ns: int) -> SampledDelays:
        if sample is None:
            none: Int64Array = np.empty(0, np.int64)
            return cls(none, none, np.empty(0), np.zeros(len(flow_id), bool), False)
        (row, is_flow_whole), weight = sample.flow_of_delay(flow_id), sample.delay_weight
        delay = np.rint(sample.delay_ns).astype(np.int64) + base_ns
        kept = _thinned(np.diff(sample.start))
        before, left = (np.bincount(rows + 1, minlength=len(flow_id) + 1) for rows in (row, row[kept]))
        weight = weight * (before / np.maximum(left, 1))[row + 1]
        # A packet that belongs to another run is among the delays of neither.
        complete = not sample.extra.any()
        whole = is_flow_whole & (before == left)[1:] & complete
        return cls(row[kept], delay[kept], weight[kept], whole, complete and sample.is_whole and len(kept) == len(row))

    def thinned(self, most: int) -> SampledDelays:
        """About so many of them, spread evenly, which stand for the others, too."""
        step = -(-len(self.row) // max(most, 1))
        if step <= 1:
            return self
        kept = slice(step // 2, None, step)
        scale = float(self.weight.sum() / self.weight[kept].sum())
        columns = self.row[kept].copy(), self.delay_ns[kept].copy(), self.weight[kept] * scale
        return SampledDelays(*columns, np.zeros_like(self.whole), False)


def _thinned(counts: Int64Array) -> Int64Array:
    """The places of sorted delays that are kept of each row."""
    if not len(counts) or counts.max() <= MOST_DELAYS:
        return np.arange(int(counts.sum()))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    spread = [
        start + (np.arange(n) if n <= MOST_DELAYS else np.linspace(0, n - 1, MOST_DELAYS).round().astype(np.int64))
        for start, n in zip(starts.tolist(), counts.tolist(), strict=True)
    ]
    return np.concatenate(spread).astype(np.int64)


@dataclass(frozen=True, eq=False)
class RunAnswer:
    """What two points recorded of one run says; delays are raw, and flows that have packets too much a negative loss.

    ``pairs`` are the packets with the smallest raw delays, ``kernels`` what either kernel said of its clock, and
    ``missed`` how many packets either had no room for. ``extra`` packets arrived that were not sent in this run,
    ``displaced`` ones of them were sent in the one before; ``ahead`` packets were sent in this run, and arrived in the
    one before, because they overtook the marker between. ``overtaken`` packets are late at any place of the run, on
    average. None where no sample tells. ``ledger`` is what ledgers tell, ``naming`` what the sender's is to be asked.
    """

    interval: Interval
    sampled: SampledDelays
    pairs: TimedPairs
    extra: Estimate | None = None
    displaced: Estimate | None = None
    ahead: Estimate | None = None
    kernels: tuple[KernelClock | None, KernelClock | None] = (None, None)
    missed: tuple[int, int] = (0, 0)
    overtaken: Estimate | None = None
    ledger: LedgerRun | None = None
    naming: NamingWork | None = None

    def with_some_elsewhere(self) -> RunAnswer:
        """The same, knowing that some of its packets are in no sample: they changed places with a marker."""
        sampled = self.sampled
        return replace(self, sampled=replace(sampled, whole=np.zeros_like(sampled.whole), is_whole=False))

    @property
    def frame(self) -> RunFrame:
        return RunFrame(self.interval.first_ns, self.interval.last_ns, self.kernels)


def answer_run(
    sent: Sequence[Epoch],
    received: Sequence[Epoch],
    *,
    before: Callable[[], Sequence[Epoch]] = tuple,
    arrived_before: Callable[[], Sequence[Epoch]] = tuple,
    offset_ns: int | None = None,
    history: History | None = None,
) -> RunAnswer:
    """The answer of the epochs between two places.

    `before` gives those that the sender recorded right before, `arrived_before` those of the receiver.

    `offset_ns` is about what the clocks differ by, where that is known. `history` is what flows were after the run
    right before this, by the same two places.
    """
    as_sent, (sent, received) = sent, (_on_one_lead(sent), _on_one_lead(received))
    was_on_one_lead = sent is as_sent  # else the ledger has other stamps
    sender = _believable(_merged(sent), "sender")
    receiver = _believable(_merged(received) if received else new_sketch(sender.parameters), "receiver")
    sender.parameters.require_equal(receiver.parameters)
    keys = _keys([*sent, *received])
    flow_id = np.array(list(keys), np.uint64)
    complete = all(epoch.keys is not None for epoch in (*sent, *received))
    is_joint = complete and 0 < len(flow_id) <= MOST_JOINT_FLOWS
    if offset_ns is None:
        offset_ns = _far_apart(sender, receiver)
    asked = {"joint": is_joint, "before": History.none() if history is None else history}
    interval = _answered(sender, receiver, flow_id, offset_ns, asked)
    if interval.sample is not None and (below := _least(interval.sample)) < 0:
        # What is left of delays has to be as if the clocks were in step, and not negative.
        offset_ns += below
        interval = _answered(sender, receiver, flow_id, offset_ns, asked)
    extra = None if interval.sample is None else interval.sample.extra_packets()
    losses = interval.totals.losses
    is_whole = extra is not None and losses.is_exact and not losses.lost
    pairs = _pairs(interval.sample, sender, offset_ns)
    ends = [[epoch.cut for epoch in end if epoch.cut is not None] for end in (sent, received)]
    kernels = [joined_clocks(cut.clock for cut in cuts) for cuts in ends]
    missed = [sum(cut.missed for cut in cuts) for cuts in ends]
    ledger = told_by_ends(sender, shifted(receiver, offset_ns), flow_id, offset_ns) if was_on_one_lead else None
    return RunAnswer(
        replace(interval, sample=None, ledger=None),
        SampledDelays.of(interval.sample, flow_id, offset_ns),
        smallest(pairs),
        extra,
        # Late packets are among the extra ones: where there are none, there is nothing to look for.
        extra if extra is not None and not extra.samples else _displaced(before(), sender, receiver),
        # Likewise, what arrived before is missing here.
        _NONE if is_whole else _displaced(arrived_before(), receiver, sender),
        (kernels[0], kernels[1]),
        (missed[0], missed[1]),
        _overtaken(pairs, interval.totals.received),
        ledger if isinstance(ledger, LedgerRun) else None,
        ledger if isinstance(ledger, NamingWork) else None,
    )


def _on_one_lead(epochs: Sequence[Epoch]) -> Sequence[Epoch]:
    """The epochs with all times as the clock counted during the last of them, if it was set between two of them.

    Those of a machine that was started anew in between have two counts, which nothing relates.
    """
    clocks = [epoch.cut.clock for epoch in epochs if epoch.cut is not None and epoch.cut.clock is not None]
    leads = [clock.lead_ns for clock in clocks if clock.lead_ns is not None]
    if len(leads) < len(epochs) or len(set(leads)) <= 1 or len({clock.boot for clock in clocks}) > 1:
        return epochs
    if max(leads) - min(leads) > FARTHEST_NS:
        raise InputError("a point's clock was set further than any clock can be", action="look at its agent")
    found = []
    for epoch, clock, lead in zip(epochs, clocks, leads, strict=True):
        slew = None if clock.slew is None else clock.slew.moved(leads[-1] - lead)
        cut = None if epoch.cut is None else replace(epoch.cut, clock=replace(clock, lead_ns=leads[-1], slew=slew))
        found.append(replace(epoch, sketch=retimed(epoch.sketch, leads[-1] - lead), cut=cut))
    return found


def _merged(epochs: Sequence[Epoch]) -> AnySketch:
    """What epochs recorded together; one alone is not copied, as nothing here changes it."""
    return epochs[0].sketch if len(epochs) == 1 else merge_epochs(list(epochs))


def _believable(sketch: AnySketch, point: str) -> AnySketch:
    """What was recorded at a point; an `InputError` if its times or numbers cannot be those of packets."""
    times = [time for time in (sketch.first_ns, sketch.last_ns) if time is not None]
    if any(not 0 <= time <= LAST_NS for time in times):
        raise InputError(f"the {point}'s times are no times of packets", action="set its clock")
    if sketch.recorded > MOST_PACKETS:
        raise InputError(f"{sketch.recorded} packets in one run of the {point}", action="look at its agent")
    return sketch


def _answered(
    sender: AnySketch, receiver: AnySketch, flow_id: UInt64Array, base_ns: int, how: Mapping[str, object]
) -> Interval:
    sizes: Int64Array = np.zeros(len(flow_id), np.int64)
    asked = {"sizes": sizes, "base_ns": base_ns, "signed": True, **how}
    return answer_interval(sender, shifted(receiver, base_ns), flow_id, **asked)  # type: ignore[arg-type]


def _least(sample: MatchedSample) -> int:
    return math.floor(sample.delay_ns.min()) if len(sample.delay_ns) else 0


def _displaced(before: Sequence[Epoch], sender: AnySketch, receiver: AnySketch) -> Estimate | None:
    if not before or before[0].parameters != sender.parameters:
        return None
    ends = [_sample_of(sketch) for sketch in (_merged(before), sender, receiver)]
    earlier, sent, received = ends
    return None if earlier is None or sent is None or received is None else displaced_packets(earlier, sent, received)


def _sample_of(sketch: AnySketch) -> Sample | None:
    parts = parts_of(sketch)
    sample = parts.get(SAMPLES, parts.get(FLOWS))
    return sample if isinstance(sample, Sample) else None


def _keys(epochs: Sequence[Epoch]) -> dict[int, TrafficKey]:
    """The flows that either point reported, by their ids."""
    keys = dict.fromkeys(key for epoch in epochs for key in epoch.keys or () if isinstance(key, TrafficKey))
    return {key_id(key): key for key in keys}


def _far_apart(sender: AnySketch, receiver: AnySketch) -> int:
    """What clocks that differ by more than delays do are apart; 0 for others.

    A run begins with the same packet at both points: so it is by the first times, but for packets that were lost then.
    What is left the flow-blind LDA tells, of which no cell alone reaches as far: its sum wraps at years, or at hours if
    it has thousands of packets.
    """
    sent, received = parts_of(sender), parts_of(receiver)
    if SEGMENT not in sent:
        return 0
    apart = 0
    if sender.first_ns is not None and receiver.first_ns is not None:
        apart = receiver.first_ns - sender.first_ns
    if abs(apart) <= IN_RANGE_NS:
        apart = 0
    rest = recorded_base(sent[SEGMENT], shifted(received[SEGMENT], apart))  # type: ignore[arg-type]
    return apart + (rest or 0)


def _pairs(sample: MatchedSample | None, sender: AnySketch, base_ns: int) -> TimedPairs:
    """The sampled packets' times by both clocks."""
    if sample is None or sender.first_ns is None:
        none: Int64Array = np.empty(0, np.int64)
        return TimedPairs(none, none)
    sent_ns = sample.sent_ns(sender.first_ns)
    return TimedPairs(sent_ns, sent_ns + np.rint(sample.delay_ns).astype(np.int64) + base_ns)


def _overtaken(pairs: TimedPairs, received: int) -> Estimate | None:
    """How many packets that were sent before a place of the run arrive behind it, on average over its places.

    That is the number of pairs of packets that changed places, over the number of packets. Of the packets a sample has
    some share, of the pairs its square.
    """
    if not len(pairs):
        return None
    arrivals = pairs.received_ns[np.lexsort((pairs.received_ns, pairs.sent_ns))[-MOST_ORDERED:]]
    late = late_at_each(arrivals) if (np.diff(arrivals) < 0).any() else np.zeros(1, np.int64)
    packets, swapped = max(received / len(pairs), 1.0), int(late.sum())
    if not swapped:
        return Estimate(0.0, 0.0, poisson_95(0)[1] / len(arrivals) * packets, 0, "order", unit="packets")
    value = swapped / len(arrivals) * packets
    if packets < DENSE:
        most = packets * float(np.quantile(late, 0.975))
    else:
        most = poisson_95(math.ceil(value * (1 + 2 / math.sqrt(swapped))))[1]
    return Estimate(value, 0.0, max(value, most), swapped, "order", unit="packets")


def combine(
    answers: Sequence[RunAnswer],
    clocks: Sequence[ClockAt],
    *,
    gaps: Sequence[int] = (),
    later: RunAnswer | None = None,
    foreign: UInt64Array | None = None,
    percentiles_of: UInt64Array | None = None,
) -> Interval:
    """Runs, oldest first, as one answer; delays are corrected by the clock of each.

    Percentiles are found of all packets, and of flows: those of `percentiles_of` alone, if these are given, as they
    cost the most.

    Before the runs that `gaps` count something is missing. `later` is the run after these, if it is known. Packets of
    `foreign` flows, which one of the points never sees, are not part of it.
    """
    crossed = crossed_shares(answers, gaps, later)
    answers = [
        answer if not share else answer.with_some_elsewhere() for answer, share in zip(answers, crossed, strict=True)
    ]
    flows = _combined_flows(answers, clocks, crossed, percentiles_of)
    whole = [answer.interval.totals for answer in answers]
    sent, received = (sum(getattr(one, name) for one in whole) for name in ("sent", "received"))
    losses = combined_losses(answers, gaps, later)
    if flows is not None and foreign is not None and len(foreign):
        others = np.isin(flows.flow_id, foreign)
        aside, flows = flows.at(np.flatnonzero(others)), flows.at(np.flatnonzero(~others))
        sent -= round(float(np.nansum(aside.packets)))
        losses = losses_without(losses, aside, flows, answers)
        received = sent - (losses.lost or 0)
    elif flows is not None:
        losses = as_counted(losses, flows, sent)
    flows = None if flows is None else with_late_ends(flows, answers, gaps, later)
    known = [i for i, clock in enumerate(clocks) if clock.tells_delays]
    delays = _combined_delays([whole[i] for i in known], [clocks[i] for i in known], [crossed[i] for i in known])
    tails = _percentiles([answers[i] for i in known], [clocks[i] for i in known], None)
    first, last = answers[0].interval.first_ns, answers[-1].interval.last_ns
    totals = SegmentTotals(sent, received, delays, losses, tails)
    return Interval(first, last, totals, None if flows is None else without_other_way(flows))


def _combined_delays(parts: Sequence[SegmentTotals], clocks: Sequence[ClockAt], crossed: Sequence[float]) -> LdaAnswer:
    """The mean and deviation of all delivered packets; the part that `crossed` markers may differ from the others."""
    rows = [row for row, part in enumerate(parts) if isinstance(part.delays.mean, Estimate)]
    told = [(parts[i].delays.mean, parts[i].delays.deviation, max(parts[i].received, 1), clocks[i]) for i in rows]
    nothing = Unanswered(Reason.NOTHING_RECORDED)
    if not told:
        why: Answer = parts[0].delays.mean if parts else nothing
        return LdaAnswer(why, why, why, nothing)
    weight = np.array([packets for _, _, packets, _ in told], np.float64)
    weight /= weight.sum()
    means = [mean for mean, *_ in told if isinstance(mean, Estimate)]
    value = np.array([mean.value for mean in means]) - np.array([clock.offset_ns for *_, clock in told])
    half = np.array([(mean.high - mean.low) / 2 for mean in means])
    mean = float(weight @ value)
    spreads = [one.value if isinstance(one, Estimate) else 0.0 for _, one, *_ in told]
    half = _bounded(half, math.sqrt(float(weight @ (np.square(spreads) + (value - mean) ** 2))))
    spread = math.sqrt(float(np.sum((weight * half) ** 2)))
    spread += LATER * float(weight @ (np.array([crossed[i] for i in rows]) * spreads))
    below, above = clock_room([clock for *_, clock in told], weight)
    samples = sum(one.samples for one in means)
    methods = [one.method for one in means]
    answer = Estimate(mean, mean - spread - below, mean + spread + above, samples, max(methods, key=methods.count))
    deviation: Answer = nothing
    known = [one for _, one, _, _ in told if isinstance(one, Estimate)]
    if len(known) == len(told):
        squares = np.array([one.value for one in known]) ** 2 + (value - mean) ** 2
        std = math.sqrt(float(weight @ squares))
        deviation = Estimate(std, std, std, samples, known[0].method)
    return LdaAnswer(answer, deviation, nothing, nothing)


def _bounded(half: FloatArray, deviation: float) -> FloatArray:
    """The half-widths of runs' means; one that bounds nothing, of a few packets, differs from others as packets do."""
    return np.where(np.isfinite(half), half, 2 * deviation) if np.isfinite(half).any() else half


def clock_room(clocks: Sequence[ClockAt], weight: FloatArray) -> tuple[float, float]:
    """How far delays may be lower and higher than with the offsets that were taken off."""
    below = above = 0.0
    for clock, share in zip(clocks, weight.tolist(), strict=True):
        if clock.low_ns is not None and clock.high_ns is not None:
            below += share * (clock.high_ns - clock.offset_ns)
            above += share * (clock.offset_ns - clock.low_ns)
    return below, above


@dataclass(eq=False)
class _Sums:
    """What is added up for each flow over its runs."""

    packets: FloatArray
    lost: FloatArray
    unknown_lost: BoolArray
    weight: FloatArray
    means: FloatArray
    squares: FloatArray
    below: FloatArray
    above: FloatArray
    samples: Int64Array
    silent: FloatArray
    ends: FloatArray
    has_ends: bool = True

    @classmethod
    def of(cls, count: int) -> _Sums:
        packets, lost, weight, means, squares, below, above, silent = np.zeros((8, count))
        unknown, samples = np.zeros(count, bool), np.zeros(count, np.int64)
        return cls(packets, lost, unknown, weight, means, squares, below, above, samples, silent, np.zeros((4, count)))

    def add(self, flows: FlowDelays, at: Int64Array, clock: ClockAt, crossed: float, late_ns: float) -> None:
        """Add a run; the delays of the part of its packets that `crossed` a marker may lie `late_ns` from the others'.

        Of few packets that is none, or by chance more than one.
        """
        self.packets[at] += np.nan_to_num(flows.packets)
        # A packet that changed places with a marker is missing in one run, and too much in another.
        self.lost[at] += np.nan_to_num(flows.lost)
        self.unknown_lost[at] |= np.isnan(flows.lost)
        ends = flows.packets_low, flows.packets_high, flows.lost_low, flows.lost_high
        self.has_ends &= all(end is not None for end in ends)
        for total, end in zip(self.ends, ends, strict=True):
            # As if all runs erred alike: what a flow has that others do not have, it has in all of them.
            total[at] += 0.0 if end is None else np.nan_to_num(end)
        delivered = _whole(np.maximum(np.nan_to_num(flows.packets) - np.nan_to_num(flows.lost), 0.0))
        known = flows.answered & clock.tells_delays
        weight = np.where(known, np.maximum(delivered, 1.0), 0.0)
        mean = np.where(known, flows.mean_ns - clock.offset_ns, 0.0)
        half = np.where(known, (flows.high_ns - flows.low_ns) / 2, 0.0)
        sizes = np.maximum(np.nan_to_num(flows.packets), 1.0)
        half += np.where(known, np.minimum(crossed + 2 * np.sqrt(crossed / sizes), 1.0) * late_ns, 0.0)
        below, above = clock_room([clock], np.ones(1))
        self.weight[at] += weight
        self.means[at] += weight * mean
        self.squares[at] += weight * (mean**2 + np.nan_to_num(flows.std_ns) ** 2)
        self.below[at] += weight * (half + below)
        self.above[at] += weight * (half + above)
        self.samples[at] += np.where(known, flows.samples, 0)
        is_sure = _is_whole(flows.packets) & _is_whole(flows.lost)
        self.silent[at] += np.where(known, 0.0, np.where(is_sure, delivered, np.nan_to_num(flows.packets)))


def _whole(sizes: FloatArray) -> FloatArray:
    """Sizes, exact where decoding came so near to a whole number: a run's part in a mean is as exact as the mean."""
    return np.where(_is_whole(sizes), np.rint(sizes), sizes)


def _is_whole(sizes: FloatArray) -> BoolArray:
    found: BoolArray = np.abs(sizes - np.rint(sizes)) < SURE_SIZE
    return found


def _combined_flows(
    answers: Sequence[RunAnswer],
    clocks: Sequence[ClockAt],
    crossed: Sequence[float],
    percentiles_of: UInt64Array | None,
) -> FlowDelays | None:
    rows = [row for row, answer in enumerate(answers) if answer.interval.flows]
    told = [(a, a.interval.flows, clocks[i]) for i in rows if (a := answers[i]).interval.flows is not None]
    if not told:
        return None
    flow_id = np.unique(np.concatenate([flows.flow_id for _, flows, _ in told]))
    sums = _Sums.of(len(flow_id))
    reason: list[Reason | None] = [None] * len(flow_id)
    method = [""] * len(flow_id)
    for row_of, (answer, flows, clock) in zip(rows, told, strict=True):
        at = np.searchsorted(flow_id, flows.flow_id)
        sums.add(flows, at, clock, crossed[row_of], _late(answer))
        for row, why, how in zip(at.tolist(), flows.reason, flows.method_of_flow, strict=True):
            # What one run does not know exactly is not known so of all.
            is_named = bool(why) or (how == METHOD and bool(method[row]))
            reason[row], method[row] = why or reason[row], method[row] if is_named else how
    known = sums.weight > 0
    weight = np.where(known, sums.weight, 1.0)
    mean = np.where(known, sums.means / weight, np.nan)
    std = np.sqrt(np.maximum(sums.squares / weight - np.nan_to_num(mean) ** 2, 0.0))
    # What a flow did in runs that do not tell differs from the others as its packets do among themselves.
    room = np.where(known, 2 * std * sums.silent / np.maximum(sums.silent + sums.weight, 1.0), 0.0)
    columns = {
        "mean_ns": mean,
        "low_ns": mean - sums.below / weight - room,
        "high_ns": mean + sums.above / weight + room,
        "std_ns": np.where(known, std, np.nan),
    }
    reasons = [None if is_known else why for is_known, why in zip(known.tolist(), reason, strict=True)]
    ends = dict(zip(("packets_low", "packets_high", "lost_low", "lost_high"), sums.ends, strict=True))
    found = FlowDelays(
        flow_id,
        **columns,
        samples=sums.samples,
        packets=sums.packets,
        lost=np.where(sums.unknown_lost, np.nan, sums.lost),
        reason=reasons,
        method="auto",
        methods=method,
        percentiles=_percentiles([a for a, *_ in told], [clock for *_, clock in told], flow_id, percentiles_of),
        **(ends if sums.has_ends else {}),
    )
    return without_unknown_losses(found)


def _late(answer: RunAnswer) -> float:
    """How far packets that changed places with a marker may lie from the others of a run."""
    deviation = answer.interval.totals.delays.deviation
    return LATER * deviation.value if isinstance(deviation, Estimate) else 0.0


def _percentiles(
    answers: Sequence[RunAnswer],
    clocks: Sequence[ClockAt],
    flow_id: UInt64Array | None,
    wanted: UInt64Array | None = None,
) -> FloatArray | None:
    """Of each flow (of those that are wanted, if these are given), or of all packets where no flows are given."""
    parts = [(a, clock) for a, clock in zip(answers, clocks, strict=True) if len(a.sampled.row) and clock.tells_delays]
    if not parts:
        return None if flow_id is None else np.full((len(flow_id), len(LEVELS), 3), np.nan)
    delay = np.concatenate([a.sampled.delay_ns - clock.offset_ns for a, clock in parts])
    weight = np.concatenate([a.sampled.weight for a, _ in parts])
    room = clock_room([clock for _, clock in parts], np.full(len(parts), 1 / len(parts)))
    if flow_id is None:
        found = weighed_percentiles(delay, weight, is_whole=all(a.sampled.is_whole for a, _ in parts))
        return _with_room(found, room)
    row = np.concatenate([_row_in(flow_id, a) for a, _ in parts])
    whole = np.ones(len(flow_id), bool)
    for a, clock in zip(answers, clocks, strict=True):
        flows = a.interval.flows
        assert flows is not None
        known = a.sampled.whole if clock.tells_delays else np.zeros(len(flows.flow_id), bool)
        # Of a run with no sampled packet nothing is known, unless nothing of a flow was delivered in it.
        whole[np.searchsorted(flow_id, flows.flow_id)] &= known | (flows.packets - flows.lost < SURE_SIZE)
    order = np.lexsort((delay, row))
    order = order[np.searchsorted(row[order], 0) :]
    starts = np.searchsorted(row[order], np.arange(len(flow_id) + 1))
    found = np.full((len(flow_id), len(LEVELS), 3), np.nan)
    is_wanted = np.diff(starts) > 0
    if wanted is not None:
        is_wanted &= np.isin(flow_id, wanted)
    for flow in np.flatnonzero(is_wanted).tolist():
        rows = order[starts[flow] : starts[flow + 1]]
        found[flow] = weighed_percentiles(delay[rows], weight[rows], is_whole=bool(whole[flow]))
    return _with_room(found, room)


def _row_in(flow_id: UInt64Array, answer: RunAnswer) -> Int64Array:
    """The rows of a run's sampled delays among the flows of all runs."""
    flows = answer.interval.flows
    assert flows is not None
    place = np.append(np.searchsorted(flow_id, flows.flow_id), -1)
    return place[answer.sampled.row]


def _with_room(found: FloatArray, room: tuple[float, float]) -> FloatArray:
    found[..., 1] -= room[0]
    found[..., 2] += room[1]
    return found
