"""Coordinated samples of two ends, matched: mean delay, deviation and loss of each flow and of the whole.

Below the smaller of the two ends' thresholds a group's samples contain the same packets but for those lost on the way:
a random sample (by hash) of what was sent. With n of a flow's packets there, m of them at the receiver and a part p
of the group's packets in the sample:

- mean: the m delays' mean μ ± t·s/√m·√(1 − p), a sample without replacement of the delivered packets, with s the
  moderated deviation (below) and t for its degrees of freedom; exact where nothing was cut (p = 1) and all that
  arrived is paired, else p is less by the share that is not;
- loss: the share (n − m)/n of its packets; exact where nothing was cut;
- extra packets: what the receiver's sample has beyond the sender's, by the group's share (weighed Poisson numbers);
- size: the group's packet counter times the flow's share of the group's sample; a flow alone in its group has the
  counters' exact size and loss;
- the whole: groups are strata, each weighed by the packets that its counter says were delivered.

Loss does not bias any of these: a lost packet is missing from its own flow's sample and touches no other.
Identical packets are paired in the order of their times; where the receiver has more, the later ones are copies
made on the way, and where it has fewer, none is paired: which of them was lost is not known.
O(slots · log slots).

**Moderated variances.** A variance from three delays is hardly one, and too small just when the mean is off. The
variances of all samples together show how large they usually are (v₀) and how much they really differ: as if each came
with d₀ degrees of freedom of its own, estimated from the spread of their logarithms (beyond what chance gives it). The
moderated variance (d₀v₀ + d·s²)/(d₀ + d) then has d₀ + d degrees, and a sample of one has v₀ and d₀. Smyth,
"Linear Models and Empirical Bayes Methods for Assessing Differential Expression" (2004), §6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import (
    LEVELS,
    MOST_DEGREES,
    Answer,
    Estimate,
    FlowDelays,
    Reason,
    Unanswered,
    spread_95,
    student_95,
)
from sojourn.estimation.differences import weighed_poisson_95
from sojourn.estimation.order_statistics import sample_percentiles, weighed_percentiles
from sojourn.estimation.packets.evidence import SampledPackets
from sojourn.estimation.percentiles.shape import SampledDelays
from sojourn.sketches.sample import PACKETS, KeptPackets, Sample, SampleParameters

_ASYMPTOTIC = 6.0
# Samples that vary, to tell how much they usually do.
FEWEST_VARIED = 3


@dataclass(frozen=True)
class UsualVariance:
    """v₀ and d₀; without enough samples to tell, nothing is borrowed (d₀ = 0)."""

    variance: float
    degrees: float

    def moderate(self, variance: FloatArray, degrees: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The variances with their degrees of freedom, improved."""
        total = degrees + self.degrees
        own = np.where(degrees > 0, degrees * np.nan_to_num(variance), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return (own + self.degrees * self.variance) / total, total


def moderated(variance: FloatArray, degrees: FloatArray, mean: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The variances of samples with their degrees of freedom, improved by what they have in common.

    Where hardly any sample varies, the packets that were not sampled still may: one more than was seen, by its mean, or
    by that of all where its packets took no time at all.
    """
    varied = (degrees > 0) & (variance > 0)
    if varied.sum() >= FEWEST_VARIED:
        return usual_variance(variance, degrees).moderate(variance, degrees)
    known = degrees > 0
    of_all = float(np.average(mean[known], weights=degrees[known])) if known.any() else 0.0
    square = np.maximum(np.where(mean == 0, of_all, mean) ** 2, 1.0)
    part = (float(np.sum((degrees * np.nan_to_num(variance) / square)[varied])) + 1) / (float(degrees.sum()) + 1)
    return part * square, np.full(len(square), float(degrees.sum()))


def usual_variance(variance: FloatArray, degrees: FloatArray) -> UsualVariance:
    """What the samples that vary at all have in common."""
    varied = (degrees > 0) & (variance > 0)
    if varied.sum() < FEWEST_VARIED:
        return UsualVariance(0.0, 0.0)
    half = degrees[varied] / 2
    centred = np.log(variance[varied]) - _digamma(half) + np.log(half)
    mean = float(centred.mean())
    excess = float(centred.var(ddof=1)) - float(_trigamma(half).mean())
    degrees_0 = MOST_DEGREES if excess <= 0 else min(MOST_DEGREES, 2 * _inverse_trigamma(excess))
    half_0 = np.array([degrees_0 / 2])
    return UsualVariance(math.exp(mean + float(_digamma(half_0)[0]) - math.log(degrees_0 / 2)), degrees_0)


def _digamma(x: FloatArray) -> FloatArray:
    """ψ, by its asymptotic series after stepping x above 6; within 10⁻⁹.

    SciPy's would cost every `sojourn measure` the 0.15 s of importing scipy.special; a test compares the two.
    """
    shift = np.zeros_like(x)
    while (x < _ASYMPTOTIC).any():
        low = x < _ASYMPTOTIC
        shift = shift - np.where(low, 1 / x, 0.0)
        x = np.where(low, x + 1, x)
    inverse = 1 / x**2
    return shift + np.log(x) - 0.5 / x - inverse * (1 / 12 - inverse * (1 / 120 - inverse / 252))


def _trigamma(x: FloatArray) -> FloatArray:
    """ψ′, likewise; within 10⁻⁷."""
    shift = np.zeros_like(x)
    while (x < _ASYMPTOTIC).any():
        low = x < _ASYMPTOTIC
        shift = shift + np.where(low, 1 / x**2, 0.0)
        x = np.where(low, x + 1, x)
    inverse = 1 / x**2
    return shift + 1 / x + inverse / 2 + inverse / x * (1 / 6 - inverse * (1 / 30 - inverse / 42))


def _trigamma_at(x: float) -> float:
    """ψ′ of one number, which columns would take ten times as long for."""
    shift = 0.0
    while x < _ASYMPTOTIC:
        shift += 1 / x**2
        x += 1
    inverse = 1 / x**2
    return shift + 1 / x + inverse / 2 + inverse / x * (1 / 6 - inverse * (1 / 30 - inverse / 42))


def _inverse_trigamma(value: float) -> float:
    """The x with ψ′(x) = `value`, by bisection: ψ′ falls."""
    low, high = 1e-3, float(MOST_DEGREES)
    for _ in range(60):
        middle = math.sqrt(low * high)
        if _trigamma_at(middle) > value:
            low = middle
        else:
            high = middle
    return low


METHOD = "sample"
LEAST_FOR_DEVIATION = 3
_TAG_BITS = np.int64(32)


_Rows = tuple[Int64Array, Int64Array, list[Reason | None]]


@dataclass(frozen=True, eq=False)
class MatchedSample:
    """The two ends' samples, matched and summed up: one row per ⟨group, flow tag⟩ that was sampled at the sender.

    ``sampled`` packets lie below the common threshold at the sender, ``arrived`` of them at the receiver too;
    ``paired`` of these have a known delay. ``alone`` says that the group's samples show no other flow;
    ``extra`` counts each group's packets that the receiver sampled more often than the sender, ``copied`` those of them
    that the sender has, too.
    """

    parameters: SampleParameters
    code: Int64Array
    sampled: Int64Array
    arrived: Int64Array
    paired: Int64Array
    mean_ns: FloatArray
    squares: FloatArray
    alone: BoolArray
    share: FloatArray
    sent: Int64Array
    received: Int64Array
    extra: Int64Array
    copied: Int64Array
    delay_ns: FloatArray
    """The known delays, ``start[i] … start[i + 1]`` those of row i, sorted."""
    start: Int64Array
    sent_time: Int64Array
    """When the packets of these delays were sent, as far as a sample keeps times (modulo 2ᵗ)."""

    @property
    def group(self) -> Int64Array:
        return self.code >> _TAG_BITS

    def flows(self, flow_id: UInt64Array, *, percentiles: bool = True) -> FlowDelays:
        """The answer for each flow; percentiles on demand."""
        row, group, reason = self._rows(flow_id)
        share, paired = self.share[group], self._column(self.paired, row)
        with np.errstate(invalid="ignore", divide="ignore"):
            half = self._half_widths(row, group, share)
            divisor = np.where(share < 1, paired - 1, paired)
            std = np.sqrt(self._column(self.squares, row) / np.where(divisor > 0, divisor, np.nan))
        packets, lost = self._sizes(row, group, share)
        known = np.array([r is None for r in reason], bool)
        mean = np.where(known, self._column(self.mean_ns, row), np.nan)
        low, high = (np.where(known, mean + sign * half, np.nan) for sign in (-1, 1))
        samples = np.where(known, paired, 0).astype(np.int64)
        std = np.where(known, std, np.nan)
        tails = self._percentiles(np.where(known, row, -1)) if percentiles else None
        return FlowDelays(flow_id, mean, low, high, std, samples, packets, lost, reason, METHOD, percentiles=tails)

    def packets(self, flow_id: UInt64Array) -> tuple[SampledPackets, bool]:
        """What was kept of each flow's packets, and whether all that was kept is of these flows."""
        row, group, reason = self._rows(flow_id)
        apart = np.array([why is not Reason.LOST_IN_NOISE for why in reason], bool)
        kept, arrived = (np.nan_to_num(self._column(column, row)) for column in (self.sampled, self.arrived))
        share = np.where(self.share >= 1, 1.0, np.minimum(self.fraction, 1 - 1e-9))[group]
        share, kept, arrived = (np.where(apart, column, 0.0) for column in (share, kept, arrived))
        is_all = len(np.unique(row[row >= 0])) == len(self.code)
        return SampledPackets(group, share, kept, kept - arrived), is_all

    def mean(self) -> Answer:
        """The mean delay of everything that was delivered, by strata."""
        groups = len(self.share)
        paired = np.bincount(self.group, self.paired, groups)
        if not paired.sum():
            return Unanswered(Reason.NONE_ARRIVED if self.sampled.sum() else Reason.NOTHING_RECORDED)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.bincount(self.group, self.paired * self.mean_ns, groups) / paired
            apart = self.paired * (self.mean_ns - mean[self.group]) ** 2
            variance = np.bincount(self.group, self.squares + apart, groups) / (paired - 1)
        seen = paired > 0
        weight = np.where(seen, np.minimum(self.sent, self.received), 0).astype(np.float64)
        weight = weight if weight.sum() else np.where(seen, paired, 0.0)
        weight /= weight.sum()
        degrees = np.where(seen, paired - 1, 0.0)
        variance, degrees = moderated(variance, degrees, mean)
        value = float(np.sum((weight * mean)[seen]))
        arrived = np.bincount(self.group, self.arrived, groups)
        known = np.minimum(self.fraction * paired / np.maximum(arrived, 1), 1.0)
        parts = (weight**2 * variance)[seen] / paired[seen] * (1 - known[seen])
        half = _strata_half_width(parts, degrees[seen])
        return Estimate.around(value, half, samples=int(paired.sum()), method=METHOD)

    def deviation(self) -> Answer:
        """The deviation of single delays, groups weighed as for the mean; over all packets where all were kept."""
        mean, paired = self.mean(), float(self.paired.sum())
        if not isinstance(mean, Estimate) or paired < LEAST_FOR_DEVIATION:
            return Unanswered(Reason.NO_USABLE_CELLS)
        groups = len(self.share)
        of_group = np.bincount(self.group, self.paired, groups)
        weight = np.where(of_group > 0, np.minimum(self.sent, self.received) / np.maximum(of_group, 1), 0.0)
        weight = weight if weight.sum() else np.ones(groups)
        square = self.squares + self.paired * (self.mean_ns - mean.value) ** 2
        variance = float(np.sum(weight[self.group] * square) / np.sum(weight[self.group] * self.paired))
        low, high = (math.sqrt(variance * factor) for factor in spread_95(paired - 1))
        value = math.sqrt(variance)
        if self.is_whole:
            low = high = value
        return Estimate(value, min(low, value), max(high, value), int(paired), METHOD)

    def percentiles(self) -> FloatArray:
        """Those of everything that was delivered, groups weighed as for the mean."""
        return weighed_percentiles(self.delay_ns, self.delay_weight, is_whole=self.is_whole)

    @property
    def delay_weight(self) -> FloatArray:
        """How many delivered packets each of the known delays stands for, by its group."""
        of_group = np.bincount(self.group, self.paired, len(self.share))
        weight = np.minimum(self.sent, self.received) / np.maximum(of_group, 1)
        weight = weight if weight.sum() else np.ones(len(weight))
        return np.repeat(weight[self.group], self.paired)

    def flow_of_delay(self, flow_id: UInt64Array) -> tuple[Int64Array, BoolArray]:
        """Which of some flows each of the known delays belongs to, −1 where to none of them; and of which flows every
        delivered packet has a known delay."""
        row, group, reason = self._rows(flow_id)
        flow_of_row = np.full(len(self.code), -1, np.int64)
        known = np.array([why is None for why in reason], bool) & (row >= 0)
        flow_of_row[row[known]] = np.flatnonzero(known)
        whole: BoolArray = self._column(self.paired, row) == self._column(self.arrived, row)
        return np.repeat(flow_of_row, self.paired), whole & (row >= 0) & (self.share[group] >= 1)

    def halves(self, flow_id: UInt64Array) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The known delays of each flow in two halves, by chance: how many, mean, and squares around it (2 × flows)."""
        row, _, reason = self._rows(flow_id)
        known = np.array([why is None for why in reason], bool)
        of_row = np.repeat(np.arange(len(self.code)), self.paired)
        order, which = self._halved
        half = 2 * of_row + which
        delay, length = self.delay_ns[order], 2 * len(self.code)
        count = np.bincount(half, minlength=length).astype(np.float64)
        mean = np.bincount(half, delay, length) / np.maximum(count, 1.0)
        squares = np.bincount(half, (delay - mean[half]) ** 2, length).astype(np.float64)
        columns = (np.where(known, [self._column(c[i::2], row) for i in (0, 1)], 0.0) for c in (count, mean, squares))
        count, mean, squares = (np.nan_to_num(column) for column in columns)
        return count, mean, squares

    @cached_property
    def _halved(self) -> tuple[Int64Array, Int64Array]:
        """The known delays of each row in an order by chance, and to which half each of these belongs."""
        of_row = np.repeat(np.arange(len(self.code)), self.paired)
        order = np.lexsort((np.random.default_rng(0).random(len(of_row)), of_row))
        rank = np.arange(len(of_row)) - self.start[:-1][of_row]
        return order, (rank + of_row) % 2

    def delays(self, flow_id: UInt64Array) -> SampledDelays:
        """The known delays of each flow, with the half of each that `halves` has it in."""
        row, group, reason = self._rows(flow_id)
        known = np.array([why is None for why in reason], bool)
        order, which = self._halved
        half = np.empty_like(which)
        half[order] = which
        paired, arrived = (np.nan_to_num(self._column(column, row)) for column in (self.paired, self.arrived))
        count = np.where(known, paired, 0).astype(np.int64)
        start = np.concatenate([[0], np.cumsum(count)])
        first = np.where(known, self.start[np.maximum(row, 0)], 0)
        place = np.repeat(first - start[:-1], count) + np.arange(start[-1])
        whole = known & (paired == arrived) & (self.share[group] >= 1)
        return SampledDelays(start, self.delay_ns[place], half[place], whole)

    def _percentiles(self, row: Int64Array) -> FloatArray:
        """Of each flow; NaN without a row."""
        if not len(self.code):
            return np.full((len(row), len(LEVELS), 3), np.nan)
        whole = (self.share[self.group] >= 1) & (self.paired == self.arrived)
        found: FloatArray = sample_percentiles(self.start, self.delay_ns, whole)[np.maximum(row, 0)]
        found[row < 0] = np.nan
        return found

    @property
    def is_whole(self) -> bool:
        """Whether every delivered packet has a known delay; extra packets are not delivered ones."""
        arrived = int(self.received.sum() - self.extra.sum())
        return bool((self.share >= 1).all()) and int(self.paired.sum()) == arrived

    def extra_packets(self) -> Estimate:
        """Packets that arrived without being sent, or twice."""
        return _all_packets(self.extra, self.share, self.sent)

    def copies(self) -> Estimate:
        """Packets that arrived once more: unlike extra ones, none that only changed places with the first or last."""
        return _all_packets(self.copied, self.share, self.sent)

    def sent_ns(self, first_ns: int) -> Int64Array:
        """When the packets of `delay_ns` were sent, given the time from which on all of them were."""
        return first_ns + ((self.sent_time - first_ns) & self.parameters.shape.time_mask)

    def _rows(self, flow_id: UInt64Array) -> _Rows:
        """Each flow's row (−1: not sampled), its group, and why there is no delay; found once for a list of flows."""
        if self._asked and self._asked[0][0] is flow_id:
            return self._asked[0][1]
        found = self._find_rows(flow_id)
        self._asked[:] = [(flow_id, found)]
        return found

    @cached_property
    def _asked(self) -> list[tuple[UInt64Array, _Rows]]:
        """The flows that were last looked for, and where they are."""
        return []

    def _find_rows(self, flow_id: UInt64Array) -> _Rows:
        group, tag = self.parameters.locate(flow_id)
        code = (group << _TAG_BITS) | tag
        row = np.full(len(code), -1, np.int64)
        if len(self.code):
            at = np.minimum(np.searchsorted(self.code, code), len(self.code) - 1)
            row = np.where(self.code[at] == code, at, -1)
        reason = np.full(len(code), None, object)
        reason[(row < 0) & (self.share[group] >= 1)] = Reason.UNKNOWN_INSTANCE
        reason[(row < 0) & (self.share[group] < 1)] = Reason.NOT_SAMPLED
        reason[(row >= 0) & (self._column(self.paired, row) == 0)] = Reason.NONE_ARRIVED
        # Two of the flows asked for have one tag: what it holds cannot be told apart.
        order = np.lexsort((flow_id, code))
        in_order = code[order]
        other = (in_order[1:] == in_order[:-1]) & (flow_id[order][1:] != flow_id[order][:-1])
        if other.any():
            reason[np.isin(code, in_order[1:][other])] = Reason.LOST_IN_NOISE
        return row, group, reason.tolist()

    @staticmethod
    def _column(column: Int64Array | FloatArray | BoolArray, row: Int64Array) -> FloatArray:
        """The flows' values of a column; NaN without a row."""
        if not len(column):
            return np.full(len(row), np.nan)
        return np.where(row >= 0, column[np.maximum(row, 0)], np.nan)

    @cached_property
    def fraction(self) -> FloatArray:
        """The part of each group's packets that was sampled: by its counter, so without the threshold's chance."""
        return np.bincount(self.group, self.sampled, len(self.share)) / np.maximum(self.sent, 1)

    def _half_widths(self, row: Int64Array, group: Int64Array, share: FloatArray) -> FloatArray:
        degrees = np.maximum(self.paired - 1, 0).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = self.squares / degrees
        variance, degrees = moderated(variance, degrees, self.mean_ns)
        paired, arrived = self._column(self.paired, row), self._column(self.arrived, row)
        # Identical packets of which some were lost arrived, but with a delay that is not known.
        known = self.fraction[group] * paired / np.maximum(arrived, 1)
        error = np.sqrt(self._column(variance, row) / paired * np.maximum(1 - known, 0.0))
        quantile = _students(self._column(degrees, row))
        half = np.where(np.isinf(quantile) | np.isnan(error), np.inf, error * quantile)
        return np.where((share >= 1) & (paired == arrived), 0.0, half)

    def _sizes(self, row: Int64Array, group: Int64Array, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Packets sent and lost."""
        sampled, arrived = self._column(self.sampled, row), self._column(self.arrived, row)
        with np.errstate(invalid="ignore", divide="ignore"):
            packets = sampled / self.fraction[group]
            lost = packets * (sampled - arrived) / sampled
        alone = (self._column(self.alone, row) == 1) & (share < 1)
        return packets, np.where(alone, np.maximum(self.sent - self.received, 0)[group], lost)


def match_samples(sender: Sample, receiver: Sample) -> MatchedSample:
    """Match what both ends kept below their common thresholds."""
    p = sender.parameters
    p.require_equal(receiver.parameters)
    threshold = np.minimum(sender.thresholds, receiver.thresholds)
    ends = [_below(sample.kept(), threshold) for sample in (sender, receiver)]
    end = np.repeat([0, 1], [len(ends[0]), len(ends[1])])
    names = ("group", "hash", "flow", "time")
    group, hashed, flow, time = (np.concatenate([getattr(kept, name) for kept in ends]) for name in names)
    order = np.lexsort(((flow << 1) | end, (group << p.hash_bits) | hashed))
    code = ((group << _TAG_BITS) | flow)[order]
    end, hashed, time = end[order], hashed[order], time[order]
    first = np.r_[True, (code[1:] != code[:-1]) | (hashed[1:] != hashed[:-1])][: len(code)]
    run = np.cumsum(first) - 1
    runs = int(first.sum())
    sent, received = (np.bincount(run[end == e], minlength=runs) for e in (0, 1))
    run_code = code[first]
    pairs = ((sent > 0) & (sent <= received))[run]
    since = _centred(time - time[first][run], p.time_bits)
    if (received > sent).any():
        pairs &= _rank(run, end, since) < sent[run]
    paired_run, delay, sent_since = _delays(run[pairs], end[pairs], since[pairs], p.time_bits)
    sent_time = (time[first][paired_run] + sent_since) & p.shape.time_mask
    codes, stratum = np.unique(run_code[sent > 0], return_inverse=True)
    of_run = np.full(runs, -1, np.int64)
    of_run[sent > 0] = stratum
    count = len(codes)
    paired = np.bincount(of_run[paired_run], minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(of_run[paired_run], delay, count) / paired
    by_row = np.lexsort((delay, of_run[paired_run]))
    squares = np.bincount(of_run[paired_run], (delay - np.nan_to_num(mean)[of_run[paired_run]]) ** 2, count)
    tags = np.bincount(np.unique(code) >> _TAG_BITS, minlength=p.groups)
    extra = np.maximum(received - sent, 0)
    return MatchedSample(
        p,
        codes,
        np.bincount(stratum, sent[sent > 0], count).astype(np.int64),
        np.bincount(stratum, np.minimum(sent, received)[sent > 0], count).astype(np.int64),
        paired,
        np.nan_to_num(mean),
        squares.astype(np.float64),
        tags[codes >> _TAG_BITS] == 1,
        threshold / p.everything,
        sender.arrays[0][:, PACKETS].copy(),
        receiver.arrays[0][:, PACKETS].copy(),
        np.bincount(run_code >> _TAG_BITS, extra, p.groups).astype(np.int64),
        np.bincount(run_code >> _TAG_BITS, np.where(sent > 0, extra, 0), p.groups).astype(np.int64),
        delay[by_row],
        np.concatenate([[0], np.cumsum(paired)]),
        sent_time[by_row],
    )


def displaced_packets(earlier: Sample, sender: Sample, receiver: Sample) -> Estimate:
    """Packets that the receiver has beyond those of the sender, and that the sender had *earlier*: late ones."""
    threshold = np.minimum(np.minimum(sender.thresholds, receiver.thresholds), earlier.thresholds)
    group, (before, sent, received) = _presence([_below(one.kept(), threshold) for one in (earlier, sender, receiver)])
    counts = np.bincount(group[before & received & ~sent], minlength=sender.parameters.groups)
    return _all_packets(counts, threshold / sender.parameters.everything, receiver.arrays[0][:, PACKETS])


def _all_packets(seen_of: Int64Array, share: FloatArray, packets: Int64Array) -> Estimate:
    """Packets of a kind, of which some of each group were seen in its sampled share.

    Groups have shares of their own: what many of one group's show says little of another's. `packets` tell what one
    that was not seen would have stood for.
    """
    seen = int(seen_of.sum())
    if (share >= 1).all():
        return Estimate(seen, seen, seen, seen, METHOD, unit="packets")
    weight = 1 / np.where(share > 0, share, 1.0)
    value = float(np.sum(seen_of * weight))
    unseen = float(np.average(weight, weights=np.maximum(packets, 1)))
    low, high = weighed_poisson_95(value, float(np.sum(seen_of * weight**2)), unseen)
    return Estimate(value, min(low, value), max(high, value), seen, METHOD, unit="packets")


def _presence(samples: Sequence[KeptPackets]) -> tuple[Int64Array, BoolArray]:
    """The distinct packets that any of some samples kept: the group of each, and by a row for each sample if it did."""
    group, hashed, flow = (
        np.concatenate([getattr(one, name) for one in samples]) for name in ("group", "hash", "flow")
    )
    order = np.lexsort((flow, hashed, group))
    is_new = np.zeros(len(order), np.bool_)
    is_new[:1] = True
    for column in (group, hashed, flow):
        is_new[1:] |= np.diff(column[order]) != 0
    packet = np.empty(len(order), np.int64)
    packet[order] = np.cumsum(is_new) - 1
    is_there = np.zeros((len(samples), int(is_new.sum())), np.bool_)
    is_there[np.repeat(np.arange(len(samples)), [len(one) for one in samples]), packet] = True
    return group[order][is_new], is_there


def estimate_sample(sender: Sample, receiver: Sample, flow_id: UInt64Array) -> FlowDelays:
    """The mean delay, deviation, size and loss of each flow."""
    return match_samples(sender, receiver).flows(flow_id)


def _below(kept: KeptPackets, threshold: Int64Array) -> KeptPackets:
    return kept.select(kept.hash < threshold[kept.group])


def _centred(values: Int64Array, bits: int) -> Int64Array:
    """Values modulo 2ᵇ, around zero."""
    spare = np.int64(64 - bits)
    return (values << spare) >> spare


def _rank(run: Int64Array, end: Int64Array, since: Int64Array) -> Int64Array:
    """How many packets of the same run and end are older."""
    order = np.lexsort((since, end, run))
    group = 2 * run[order] + end[order]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    rank = np.empty(len(run), np.int64)
    rank[order] = np.arange(len(run)) - np.repeat(starts, np.diff(np.r_[starts, len(run)]))
    return rank


def _delays(
    run: Int64Array, end: Int64Array, since: Int64Array, bits: int
) -> tuple[Int64Array, FloatArray, Int64Array]:
    """The delay of every packet in runs with as many at either end, the k-th with the k-th; and when it was sent."""
    order = np.lexsort((since, 2 * run + end))
    run, end, since = run[order], end[order], since[order]
    delay = _centred(since[end == 1] - since[end == 0], bits)
    return run[end == 0], delay.astype(np.float64), since[end == 0]


def _students(degrees: FloatArray) -> FloatArray:
    """Student's quantile for each number of degrees, rounded down."""
    whole = np.floor(np.minimum(np.nan_to_num(degrees), MOST_DEGREES)).astype(np.int64)
    values, at = np.unique(whole, return_inverse=True)
    return np.array([student_95(v) for v in values.tolist()])[at] if len(values) else np.empty(0)


def _strata_half_width(parts: FloatArray, degrees: FloatArray) -> float:
    """The interval of a weighted sum of means: Satterthwaite's degrees from each part of the variance."""
    total = float(parts.sum())
    if not total:
        return 0.0
    if not math.isfinite(total) or (degrees[parts > 0] < 1).any():
        return math.inf
    effective = total**2 / float(np.sum(parts[parts > 0] ** 2 / degrees[parts > 0]))
    return student_95(int(min(effective, MOST_DEGREES))) * math.sqrt(total)
