"""Cells and samples together: each flow is answered from all that was recorded of it.

Cells (LDS, decoded jointly) know flows that lost nothing exactly; a sample knows flows that lost much. `combine` joins
both by precision: the cells' answer is a posterior, the sample's raw mean one more observation of the same flow.

`shrink_means` improves sampled means by shrinkage towards the common mean. A flow's realised mean M over its N packets
scatters around the common mean μ by τ² + σ²/N, its sampled mean m over n of them around M by σ²/n·(1 − n/N). The
answer is μ + B(m − μ), B = (τ² + σ²/N)/(τ² + σ²/n). σ² is pooled over flows: a flow's own variance is small just when
its mean is, and weighing by it would drag μ down where delays are skewed. τ² follows Paule and Mandel; μ also uses the
flow-blind mean of all packets, which is τ²·ΣN²/(ΣN)² away from μ. Where the logarithms of the means are the likelier
normal ones (flows that differ by factors, τ > μ/4), all this is done with them. The interval adds the sampling error by
the flow's own (moderated) variance, B²·h², to what flows differ by, (1 − B)²·(τ² + σ²/N). A flow of which nothing is
known is answered by μ, with that interval: its method is ``prior only``.

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
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.core.estimates import NORMAL_95, Answer, Estimate, FlowDelays, Reason, student_95
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.lda import LdaAnswer
from sojourn.estimation.sample import MatchedSample

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


PRIOR_ONLY = "prior only"
LEAST_FLOWS = 8
# Flows whose means differ by less than this part of the mean do not differ by factors; skewed delays may look like it.
FACTORS = 0.25
TAU_ROUNDS = 40
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class _Common:
    """What flows have in common, on a scale: μ and its variance, τ², σ² of one packet."""

    is_log: bool
    mean: float
    mean_variance: float
    between: float
    within: float
    likelihood: float


def combine(cells: FlowDelays, samples: FlowDelays, grand_mean: Estimate | None = None) -> FlowDelays:
    """Every flow's answer from cells, samples or both; sizes and losses are the cells' where they know them."""
    known = np.isfinite(cells.packets)
    packets = np.where(known, cells.packets, samples.packets)
    lost = np.where(known, cells.lost, samples.lost)
    shrunk = shrink_means(replace(samples, packets=packets, lost=lost), grand_mean)
    both = cells.answered & samples.answered
    weight = np.where(both, _cell_weight(cells, samples), np.where(cells.answered, 1.0, 0.0))
    with np.errstate(invalid="ignore"):
        rest = np.where(weight < 1, (1 - weight) ** 2 * _variance(samples), 0.0)
        half = NORMAL_95 * np.sqrt(weight**2 * _variance(cells) + rest)
    mean = np.where(both, weight * cells.mean_ns + (1 - weight) * samples.mean_ns, np.nan)
    columns = {
        "mean_ns": np.where(both, mean, np.where(cells.answered, cells.mean_ns, shrunk.mean_ns)),
        "low_ns": np.where(both, mean - half, np.where(cells.answered, cells.low_ns, shrunk.low_ns)),
        "high_ns": np.where(both, mean + half, np.where(cells.answered, cells.high_ns, shrunk.high_ns)),
        "std_ns": np.where(cells.answered & np.isfinite(cells.std_ns), cells.std_ns, shrunk.std_ns),
        "samples": np.where(cells.answered, np.maximum(cells.samples, shrunk.samples), shrunk.samples),
    }
    sure = (weight > 0.5) | ~samples.answered
    rows = zip(cells.answered.tolist(), sure.tolist(), cells.method_of_flow, shrunk.method_of_flow, strict=True)
    methods = [cell if by_cells and mainly else sample for by_cells, mainly, cell, sample in rows]
    reasons = [
        None if answered else cell or sample
        for answered, cell, sample in zip(
            (~np.isnan(columns["mean_ns"])).tolist(), cells.reason, shrunk.reason, strict=True
        )
    ]
    return FlowDelays(
        cells.flow_id,
        **columns,
        packets=packets,
        lost=lost,
        reason=reasons,
        method="auto",
        methods=methods,
        percentiles=samples.percentiles,
    )


def _variance(flows: FlowDelays) -> FloatArray:
    half: FloatArray = (flows.high_ns - flows.low_ns) / (2 * NORMAL_95)
    return half**2


def _cell_weight(cells: FlowDelays, samples: FlowDelays) -> FloatArray:
    """The cells' part of the precision: all of it where they are exact or the sample knows no interval."""
    by_cells, by_samples = _variance(cells), _variance(samples)
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = by_samples / (by_cells + by_samples)
    return np.where(np.isfinite(weight), weight, np.where(by_samples == 0, 0.5, 1.0))


def shrink_means(samples: FlowDelays, grand_mean: Estimate | None = None) -> FlowDelays:
    """The sampled means with shrinkage: each towards the common mean, as far as flows hardly differ.

    `grand_mean` is the flow-blind mean of all delivered packets.
    """
    count = samples.samples.astype(np.float64)
    size = np.maximum(np.nan_to_num(samples.packets - samples.lost, nan=1.0), np.maximum(count, 1.0))
    half = (samples.high_ns - samples.low_ns) / 2
    with np.errstate(invalid="ignore"):
        uncertain: BoolArray = samples.answered & (half > 0) & (count > 0)
    common = _common(samples, uncertain, size, grand_mean)
    if common is None:
        return samples
    # Flows that were active but have no sampled packet that arrived.
    silent = np.array([reason is Reason.NOT_SAMPLED for reason in samples.reason], bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        y, own = (np.log(samples.mean_ns), half / samples.mean_ns) if common.is_log else (samples.mean_ns, half)
        prior = common.between + common.within / size
        error = common.within * np.maximum(1 / count - 1 / size, 0.0)
        kept = np.where(silent, 0.0, prior / np.maximum(prior + error, _TINY))
        drawn = common.mean + np.where(silent, 0.0, kept * (y - common.mean))
        guess = 2 / (uncertain.sum() + 1) * (y - common.mean) ** 2
        rest = (1 - kept) ** 2 * (prior + common.mean_variance + np.where(silent, 0.0, guess))
        far = np.isinf(own) & (kept < 0.5)
        sampling = np.where(silent | far, 0.0, kept**2 * own**2) + np.where(far, kept**2 * error * NORMAL_95**2, 0.0)
        width = np.sqrt(sampling + NORMAL_95**2 * rest)
    changed = uncertain | silent
    turn = np.exp if common.is_log else np.asarray
    columns = {
        name: np.where(changed, turn(value), getattr(samples, name))
        for name, value in (("mean_ns", drawn), ("low_ns", drawn - width), ("high_ns", drawn + width))
    }
    methods = [PRIOR_ONLY if none else m for none, m in zip(silent.tolist(), samples.method_of_flow, strict=True)]
    reasons = [None if none else why for why, none in zip(samples.reason, silent.tolist(), strict=True)]
    return replace(samples, **columns, reason=reasons, methods=methods)  # type: ignore[arg-type]


def _common(samples: FlowDelays, telling: BoolArray, size: FloatArray, grand_mean: Estimate | None) -> _Common | None:
    """What the sampled flows have in common, on the scale on which their means are more likely; None if too few."""
    mean, count = samples.mean_ns[telling], samples.samples[telling].astype(np.float64)
    squares = np.nan_to_num(samples.std_ns[telling] ** 2 * (count - 1))
    degrees = float(np.sum(count - 1))
    if len(mean) < LEAST_FLOWS or degrees < LEAST_FLOWS or not squares.any():
        return None
    share = float(np.sum(size**2) / np.sum(size) ** 2)
    linear = _fitted(mean, count, float(squares.sum()) / degrees, share, grand_mean, is_log=False)
    if not (mean > 0).all() or linear.between < (FACTORS * linear.mean) ** 2 or not _surely_differ(mean, count):
        return linear
    relative = float(squares.sum() / np.sum(mean**2 * (count - 1)))
    logarithmic = _fitted(np.log(mean), count, relative, share, grand_mean, is_log=True)
    better = logarithmic.likelihood - float(np.log(mean).sum()) > linear.likelihood
    return logarithmic if better else linear


def _surely_differ(mean: FloatArray, count: FloatArray) -> bool:
    """Whether flows with many sampled packets differ as much as those with few, as they do if their means differ."""
    distance = (mean - float(np.average(mean, weights=count))) ** 2
    many = count >= np.median(count)
    if many.all():
        many = count > np.median(count)
    if many.sum() < LEAST_FLOWS or (~many).sum() < LEAST_FLOWS:
        return True
    fewer = float(np.average(1 / count[~many])) / float(np.average(1 / count[many]))
    return float(distance[~many].mean()) < math.sqrt(fewer) * float(distance[many].mean())


def _fitted(
    y: FloatArray, count: FloatArray, within: float, share: float, grand_mean: Estimate | None, *, is_log: bool
) -> _Common:
    """τ² and μ for given σ²; `share` is ΣN²/(ΣN)²."""
    if is_log:
        y = y + within / (2 * count)
    square = within / count
    between = _between_flows(y, square)
    weight = 1 / (square + between)
    mean, variance = float(np.sum(weight * y) / weight.sum()), float(1 / weight.sum())
    if grand_mean is not None and (grand_mean.value > 0 or not is_log):
        blind, own = grand_mean.value, (grand_mean.high - grand_mean.low) / (2 * NORMAL_95)
        if is_log:
            blind, own = math.log(blind) - between / 2, own / blind
        blind_variance = between * share + own**2 + _TINY * abs(blind) ** 2
        if math.isfinite(blind_variance):
            mean = (mean / variance + blind / blind_variance) / (1 / variance + 1 / blind_variance)
            variance = 1 / (1 / variance + 1 / blind_variance)
    likelihood = 0.5 * float(np.sum(np.log(weight) - weight * (y - mean) ** 2))
    return _Common(is_log, mean, variance, between, within, likelihood)


@inlined
def _excess(mean: FloatArray, square: FloatArray, tau_square: float) -> float:
    weight = 1 / (square + tau_square)
    common = np.sum(weight * mean) / np.sum(weight)
    return float(np.sum(weight * (mean - common) ** 2)) - (len(mean) - 1)


@kernel
def _between_flows(mean: FloatArray, square: FloatArray) -> float:
    """τ²: the variance of the flows' true means, by the equation of Paule and Mandel (bisection)."""
    low, high = 0.0, float(np.var(mean)) * 4 + _TINY
    if _excess(mean, square, low) <= 0:
        return 0.0
    for _ in range(TAU_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if _excess(mean, square, middle) > 0 else (low, middle)
    return (low + high) / 2
