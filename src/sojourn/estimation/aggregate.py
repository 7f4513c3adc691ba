"""The delay of everything that crossed a segment, from whichever part of the records knows it.

The flow-blind LDA answers, with an interval that holds whatever the flows do. Two things are better:

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

from sojourn.core.estimates import Answer, Estimate, Reason
from sojourn.estimation.columns import FlowDelays
from sojourn.estimation.lda import LdaAnswer
from sojourn.estimation.quantiles import student_95
from sojourn.estimation.sample import MatchedSample

__all__ = ["segment_delays", "with_remainder", "within"]

# Sums of integers divided and rounded: what is known to so many nanoseconds is known exactly.
EXACT_WITHIN_NS = 2.0
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
    """Whether no size or loss is an estimate: these are whole numbers by chance only."""
    sizes = np.concatenate([flows.packets, flows.lost])
    return bool(np.all(sizes == np.rint(sizes)))


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
