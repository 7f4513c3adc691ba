"""Cells and samples together: each flow is answered from all that was recorded of it.

Cells (decoded jointly) know flows that lost nothing exactly; a sample knows flows that lost much. `combine` makes both
observations of one posterior (`hierarchy`), together with what flows have in common. Where they know a mean exactly
there is nothing to lean on; where cells are fewer than flows, sizes are too doubtful for it, and both are weighed by
their precision. A flow of which nothing is known is answered by how flows are distributed: ``prior only``; where it was
known in the run before, by that, too: ``history``.

**The whole segment.** The flow-blind LDA answers, with an interval that is valid whatever the flows do. Two things are
better:

- where other parts know the delay of *every* delivered packet (samples that kept everything, flows whose cells are all
  solved), the mean is exact, and an interval wider than that would hide it;
- where loss left the LDA few packets, fewer than the coordinated sample has, that answers, by strata; where neither
  has a bounded answer, the flows that have one do, each with its packets' weight. What no flow speaks for is taken to
  differ from the others as they differ among themselves.

What the whole knows serves flows too: a single flow that has no answer of its own is the whole less the others.

Cost: O(flows).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.core.estimates import NORMAL_95, Answer, Estimate, FlowDelays, Reason, student_95, unanswered_flows
from sojourn.estimation.lda import LdaAnswer
from sojourn.estimation.packets.answer import PacketCounts
from sojourn.estimation.percentiles.shape import SampledDelays
from sojourn.estimation.percentiles.shared import learn_shape, share_percentiles
from sojourn.estimation.posterior.adding_up import added_up
from sojourn.estimation.posterior.components import FlowPrior
from sojourn.estimation.posterior.evidence import Evidence, Logarithms, Whole
from sojourn.estimation.posterior.held_out import Halves, judge
from sojourn.estimation.posterior.hierarchy import FlowPosterior, learnt_prior, posterior_under
from sojourn.estimation.posterior.history import Filter, History, Message
from sojourn.estimation.sample import MatchedSample

# Sums of integers divided and rounded: what is known to so many nanoseconds is known exactly, where that is nothing
# beside the mean itself.
EXACT_WITHIN_NS = 2.0
EXACT_PART = 1e-3
# Of an LDA: from fewer, in heavy tails, an interval holds less often than it claims, and a larger sample is better.
ENOUGH_SAMPLES = 100
# Decoded sizes may be off by this part.
SAME_SIZE = 0.01


def segment_delays(
    blind: LdaAnswer, *, received: int, sample: MatchedSample | None = None, flows: FlowDelays | None = None
) -> LdaAnswer:
    """The LDA's answer, or a better one."""
    if _is_exact(blind.mean, received):
        return blind
    by_sample = None if sample is None else sample.mean()
    if isinstance(by_sample, Estimate) and sample is not None and sample.is_whole:
        return replace(blind, mean=by_sample, deviation=sample.deviation())
    by_flows = None if flows is None else _of_flows(flows)
    if flows is not None and by_flows is not None and _is_exact(by_flows, received) and _sizes_are_exact(flows):
        return replace(blind, mean=by_flows)
    if _is_bounded(blind.mean) and blind.mean.samples >= ENOUGH_SAMPLES:
        return blind
    direct = [answer for answer in (blind.mean, by_sample) if _is_bounded(answer)]
    rest = [answer for answer in (blind.mean, by_sample, by_flows) if isinstance(answer, Estimate)]
    if not rest:
        return blind
    # By what they rest on, not by what they claim: the narrowest of several intervals is the luckiest.
    mean = max(direct, key=lambda answer: answer.samples) if direct else min(rest, key=lambda one: one.high - one.low)
    if mean is blind.mean:
        return blind
    deviation = sample.deviation() if mean is by_sample and sample is not None else blind.deviation
    return replace(blind, mean=mean, deviation=deviation or blind.deviation)


def within(delays: LdaAnswer, low_ns: int, high_ns: int) -> LdaAnswer:
    """The same answer, knowing that every delay lies between the two."""
    mean = delays.mean
    if not isinstance(mean, Estimate) or not low_ns <= mean.value <= high_ns:
        return delays
    return replace(delays, mean=replace(mean, low=max(mean.low, low_ns), high=min(mean.high, high_ns)))


def with_remainder(flows: FlowDelays, whole: Answer, received: int) -> FlowDelays:
    """The flows, and if just one that delivered packets has no answer, what the others leave of the whole for it."""
    weight = flows.packets - flows.lost
    silent = np.flatnonzero(~flows.answered & ~(weight == 0))
    others = flows.answered & (weight > 0)
    if len(silent) != 1 or not isinstance(whole, Estimate) or flows.reason[silent[0]] is not Reason.NO_USABLE_CELLS:
        return flows
    row = int(silent[0])
    left = received - float(weight[others].sum())
    if not (left > 0 and abs(left - weight[row]) <= SAME_SIZE * left):
        return flows
    value = (whole.value * received - float(np.sum((weight * flows.mean_ns)[others]))) / left
    half = (flows.high_ns - flows.low_ns)[others] / 2
    half_width = ((whole.high - whole.low) / 2 * received + float(np.sum(weight[others] * half))) / left
    columns = {name: getattr(flows, name).copy() for name in ("mean_ns", "low_ns", "high_ns", "samples")}
    answer = (value, value - half_width, value + half_width, min(whole.samples, round(left)))
    for column, number in zip(columns.values(), answer, strict=True):
        column[row] = number
    methods, reasons = list(flows.method_of_flow), list(flows.reason)
    methods[row], reasons[row] = f"{whole.method} of the whole", None
    return replace(flows, **columns, methods=methods, reason=reasons)


def _is_bounded(answer: Answer | None) -> TypeGuard[Estimate]:
    return isinstance(answer, Estimate) and math.isfinite(answer.high - answer.low)


def _is_exact(answer: Answer, received: int) -> bool:
    if not isinstance(answer, Estimate):
        return False
    return answer.samples >= received and answer.high - answer.low <= EXACT_WITHIN_NS


def _sizes_are_exact(flows: FlowDelays) -> bool:
    """Whether no size or loss is an estimate."""
    ends = (flows.packets_low, flows.packets_high), (flows.lost_low, flows.lost_high)
    return all(low is not None and high is not None and bool(np.all(low == high)) for low, high in ends)


def _of_flows(flows: FlowDelays) -> Estimate | None:
    """The flows' means weighed by their delivered packets; their errors added up as if they were all one."""
    weight = np.maximum(np.nan_to_num(flows.packets) - np.nan_to_num(flows.lost), 0.0)
    known = flows.answered & (weight > 0)
    if not known.any():
        return None
    share = weight[known] / weight[known].sum()
    mean = flows.mean_ns[known]
    value = float(np.sum(share * mean))
    half = float(np.sum(share * (flows.high_ns[known] - flows.low_ns[known]))) / 2
    unheard = 1 - float(weight[known].sum() / weight.sum())
    if unheard > 0:
        apart = math.sqrt(float(np.sum(share * (mean - value) ** 2)))
        half += unheard * student_95(int(known.sum()) - 1) * apart if known.sum() > 1 else math.inf
    method = flows.method if flows.methods is None else flows.methods[int(np.argmax(np.where(known, weight, -1)))]
    return Estimate.around(value, half, samples=int(flows.samples[known].sum()), method=method)


PRIOR_ONLY = "prior only"
BY_HISTORY = "history"
# Of the posterior's width: cells of whole flows are solved exactly, to which messages of all cells only come near.
FAR_CLOSER = 0.1
# Decoded numbers of packets below are none.
LEAST_PACKETS = 0.5
# Of sampled delays: clocks and rounding leave a few that are not.
MOSTLY_POSITIVE = 0.99
# Sampled packets that tell a deviation better than a flow's cells, of which eight or so each give one square.
TELL_DEVIATION = 10

# Mean, low and high of each flow.
Interval = tuple[FloatArray, FloatArray, FloatArray]


def combine(
    cells: FlowDelays | None,
    samples: FlowDelays,
    counts: PacketCounts,
    halves: Halves | None = None,
    before: History | None = None,
    delays: SampledDelays | None = None,
    whole: Whole | None = None,
) -> FlowDelays:
    """Every flow's answer from cells and samples, with sizes and losses as all of them say.

    Where the samples are given in `halves`, too, one of them checks what is said of the other. `before` is what the run
    before says of the flows; with it the answers have states for the next run (`history`). With all sampled `delays`,
    flows share what these tell of percentiles: they are filled in where `samples` have them. `whole` is what is known
    of all packets' mean.
    """
    if cells is None:
        cells = unanswered_flows(samples.flow_id, Reason.NOT_SAMPLED, samples.method)
    weight = _cell_weight(cells, samples)
    mean, half = _by_precision(cells, samples, weight)
    low, high = mean - half, mean + half
    with np.errstate(invalid="ignore"):
        # A flow that sent nothing, or of which nothing arrived, has no mean.
        absent = np.array([reason in _ABSENT for reason in cells.reason], bool) | (
            counts.packets - counts.lost < LEAST_PACKETS
        )
        # What is exact needs no other flow.
        exact = _is_sharp(mean, half)
        leans = ~exact & ~(absent & ~samples.answered)
    if cells.heard_ns is None:
        leans &= ~cells.answered
    evidence = _evidence(cells, samples, counts.packets - counts.lost)
    evidence = replace(
        evidence,
        size_doubt=_size_doubt(evidence, counts),
        each=cells.heard_inverse,
        logs=None if delays is None else _logarithms(delays),
        apart=float(cells.heard_apart[0]) if cells.heard_apart is not None and len(cells.heard_apart) else math.inf,
        whole=whole,
    )
    past = None if before is None else Filter.of(_settled(evidence, exact, mean), before, cells.flow_id)
    told = None if past is None else past.message(_usual_size(evidence, counts))
    evidence = _with_message(evidence, told)
    prior = learnt_prior(evidence) if leans.any() else None
    if prior is not None:
        prior, evidence = added_up(prior, evidence)
        posterior = _posterior(prior, evidence, leans, halves)
        leans, (mean, low, high) = _leaning(posterior, leans, half, (mean, low, high))
        del posterior
    if delays is not None and len(delays.delay_ns) and delays.delay_ns.min() >= 0:
        mean, low, high = FlowPosterior(mean, low, high).at_least(0.0)
    by_history = leans & (told.precision > 0) if told is not None else np.zeros(len(mean), bool)
    found = counts.applied(_told(cells, samples, weight, (mean, low, high), by_history))
    if delays is not None:
        found = _with_shared_percentiles(found, cells, evidence, prior, delays)
    states = None if past is None else past.states(mean)
    return found if states is None else replace(found, state_ns=states[0], state_variance=states[1])


def _leaning(
    posterior: FlowPosterior, asked: BoolArray, half: FloatArray, alone: Interval
) -> tuple[BoolArray, Interval]:
    """Which of the flows `asked` for lean on the others, and every flow's answer: `alone`, ± `half`, if far closer."""
    mean, low, high = alone
    with np.errstate(invalid="ignore"):
        leans = asked & ~(half <= FAR_CLOSER * (posterior.high - posterior.low) / 2)
    ends = np.where(leans, posterior.low, low), np.where(leans, posterior.high, high)
    return leans, (np.where(leans, posterior.mean, mean), *ends)


def _is_sharp(mean: FloatArray, half: FloatArray) -> BoolArray:
    """Whether what is known of a mean leaves nothing to lean on others for."""
    sharp: BoolArray = half <= np.minimum(EXACT_WITHIN_NS, EXACT_PART * np.abs(mean))
    return sharp


_ABSENT = (Reason.UNKNOWN_INSTANCE, Reason.NOTHING_RECORDED)


def _posterior(prior: FlowPrior, evidence: Evidence, asked: BoolArray, halves: Halves | None) -> FlowPosterior:
    """What all flows together say of those asked for."""
    found = posterior_under(prior, evidence, asked=asked)
    return found if halves is None else judge(prior, evidence, halves).applied(found, evidence)


def _with_shared_percentiles(
    found: FlowDelays, cells: FlowDelays, evidence: Evidence, prior: FlowPrior | None, delays: SampledDelays
) -> FlowDelays:
    """The answers with percentiles by what flows have in common, where that predicts: in place."""
    own = found.percentiles
    if own is None:
        return found
    by_themselves = replace(found, shared_shape=np.zeros(own.shape[:2], bool))
    if not np.isnan(own[found.answered, :, 0]).any():
        return by_themselves
    with np.errstate(invalid="ignore"):
        # Cells tell these means whatever packets are held out.
        by_cells = cells.answered & _is_sharp(cells.mean_ns, (cells.high_ns - cells.low_ns) / 2)
    evidence = _settled(evidence, by_cells, cells.mean_ns)
    prior = prior or learnt_prior(evidence)
    learnt = None if prior is None else learn_shape(delays, evidence, prior)
    if learnt is None:
        return by_themselves
    answer = FlowPosterior(found.mean_ns, found.low_ns, found.high_ns)
    return replace(found, shared_shape=share_percentiles(own, delays, evidence, learnt, answer))


def _evidence(cells: FlowDelays, samples: FlowDelays, delivered: FloatArray) -> Evidence:
    """What was observed of each flow."""
    count = np.where(samples.answered, samples.samples, 0).astype(np.float64)
    nothing = np.zeros(len(count))
    heard, precision = cells.heard_ns, cells.heard_precision
    if heard is None or precision is None:
        heard, precision = nothing, nothing
    return Evidence(
        np.where(precision > 0, heard, 0.0),
        precision,
        np.where(count > 0, samples.mean_ns, 0.0),
        count,
        np.nan_to_num(samples.std_ns**2 * np.maximum(count - 1, 0.0)),
        np.maximum(np.where(np.isnan(delivered), _unseen_size(count, delivered), delivered), 1.0),
    )


def _logarithms(delays: SampledDelays) -> Logarithms | None:
    """Of each flow's sampled delays; None where more than a few of them have none."""
    positive = delays.delay_ns > 0
    if not len(positive) or positive.mean() < MOSTLY_POSITIVE:
        return None
    number = np.diff(delays.start)
    row = np.repeat(np.arange(len(number)), number)
    log = np.log(np.maximum(delays.delay_ns, delays.delay_ns[positive].min()))
    mean = np.bincount(row, log, len(number)) / np.maximum(number, 1)
    squares: FloatArray = np.bincount(row, (log - mean[row]) ** 2, len(number)).astype(np.float64)
    return Logarithms(mean, squares)


def known_of_whole(blind: Answer | None, sample: MatchedSample | None) -> Whole | None:
    """The mean of all packets by the flow-blind LDA and by the sample, each by the packets that it rests on.

    Not by what they claim: where delays are skewed, the one that is low by chance claims to be sure.
    """
    known = [one for one in (blind, None if sample is None else sample.mean()) if _is_bounded(one) and one.samples > 0]
    if not known:
        return None
    share = np.array([float(one.samples) for one in known])
    share /= share.sum()
    value = float(share @ [one.value for one in known])
    half = share * [(one.high - one.low) / 2 for one in known]
    return Whole(value, float(half @ half) / NORMAL_95**2)


def _settled(evidence: Evidence, exact: BoolArray, mean: FloatArray) -> Evidence:
    """The evidence with what is known exactly of some flows, to a nanosecond."""
    value, precision = np.where(exact, mean, evidence.value), np.where(exact, 1.0, evidence.precision)
    return replace(evidence, value=value, precision=precision)


def _usual_size(evidence: Evidence, counts: PacketCounts) -> FloatArray:
    """The size by whose inverse a mean scatters, on average over what it may be."""
    least = np.clip(np.nan_to_num(counts.packets_low - counts.lost, nan=1.0), 1.0, evidence.size)
    found: FloatArray = 2 / (1 / evidence.size + 1 / least)
    return found


def _size_doubt(evidence: Evidence, counts: PacketCounts) -> FloatArray:
    """The variance of each size's logarithm: as if the farther end of its interval were its deviations away."""
    least = np.clip(np.nan_to_num(counts.packets_low - counts.lost_high, nan=1.0), 1.0, evidence.size)
    most = np.maximum(np.nan_to_num(counts.packets_high - counts.lost_low, nan=0.0), evidence.size)
    found: FloatArray = (np.log(np.maximum(evidence.size / least, most / evidence.size)) / NORMAL_95) ** 2
    return found


def _with_message(evidence: Evidence, message: Message | None) -> Evidence:
    """The evidence with one more observation of each mean."""
    if message is None:
        return evidence
    precision = evidence.precision + message.precision
    total = evidence.precision * evidence.value + message.precision * message.value
    value = np.where(precision > 0, total / np.where(precision > 0, precision, 1.0), 0.0)
    return replace(evidence, value=value, precision=precision)


def _unseen_size(count: FloatArray, delivered: FloatArray) -> float:
    """What to take for the size of a flow that no sample shows: half of what one sampled packet stands for."""
    seen = (count > 0) & (delivered > 0)
    return 0.5 * float(np.median(delivered[seen] / count[seen])) if seen.any() else 1.0


def _told(
    cells: FlowDelays,
    samples: FlowDelays,
    weight: FloatArray,
    interval: Interval,
    by_history: BoolArray,
) -> FlowDelays:
    """The flows' answers, with what each rests on."""
    mean, low, high = interval
    answered = ~np.isnan(mean)
    by_cells, by_samples = cells.answered, samples.answered
    rows = zip(by_cells.tolist(), by_samples.tolist(), (weight > 0.5).tolist(), strict=True)
    unheard = [BY_HISTORY if is_known else PRIOR_ONLY for is_known in by_history.tolist()]
    names = zip(cells.method_of_flow, samples.method_of_flow, unheard, strict=True)
    methods = [
        cell if has_cells and (is_most or not has_samples) else sample if has_samples else other
        for (has_cells, has_samples, is_most), (cell, sample, other) in zip(rows, names, strict=True)
    ]
    reasons = [
        None if is_answered else cell or sample
        for is_answered, cell, sample in zip(answered.tolist(), cells.reason, samples.reason, strict=True)
    ]
    return FlowDelays(
        cells.flow_id,
        mean,
        low,
        high,
        std_ns=_deviation(cells, samples),
        samples=np.where(by_cells, np.maximum(cells.samples, samples.samples), samples.samples),
        packets=cells.packets,
        lost=cells.lost,
        reason=reasons,
        method="auto",
        methods=methods,
        percentiles=samples.percentiles,
    )


def _deviation(cells: FlowDelays, samples: FlowDelays) -> FloatArray:
    """The standard deviation of each flow's delays, from what has more degrees of freedom."""
    sampled = np.isfinite(samples.std_ns) & (samples.samples >= TELL_DEVIATION)
    by_cells = cells.answered & np.isfinite(cells.std_ns) & ~sampled
    return np.where(by_cells, cells.std_ns, samples.std_ns)


def _by_precision(cells: FlowDelays, samples: FlowDelays, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cells' and samples' answers weighed by their precision, and the half-width of the 95 % interval."""
    both = cells.answered & samples.answered
    with np.errstate(invalid="ignore"):
        mean = np.where(both, weight * cells.mean_ns + (1 - weight) * samples.mean_ns, samples.mean_ns)
        rest = np.where(weight < 1, (1 - weight) ** 2 * _variance(samples), 0.0)
        half = NORMAL_95 * np.sqrt(weight**2 * _variance(cells) + rest)
        half = np.where(both, half, (samples.high_ns - samples.low_ns) / 2)
    alone = cells.answered & ~samples.answered
    mean = np.where(alone, cells.mean_ns, mean)
    return mean, np.where(alone, (cells.high_ns - cells.low_ns) / 2, half)


def _variance(flows: FlowDelays) -> FloatArray:
    half: FloatArray = (flows.high_ns - flows.low_ns) / (2 * NORMAL_95)
    return half**2


def _cell_weight(cells: FlowDelays, samples: FlowDelays) -> FloatArray:
    """The cells' part of the precision: all of it where they are exact or the sample knows no interval."""
    by_cells, by_samples = _variance(cells), _variance(samples)
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = by_samples / (by_cells + by_samples)
    return np.where(np.isfinite(weight), weight, np.where(by_samples == 0, 0.5, 1.0))
