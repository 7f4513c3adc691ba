"""IoTm round-trip times, decoded jointly: the mean of every listed flow from salted epochs of shared buckets.

A bucket's sum of round trips is B = Σ_f r_f·c_f over its packets of each flow, of which only the total C is known.
Given the flows' rates (`iotm_joint`, on the counts of packets sent),

    E[c | C] = G: each flow's part of C, by what it is expected to send there,
    Cov[B | C] = what mixing flows of different r leaves, plus ν·G·r² for packets that vary around their flow's mean.

Unknown are r_f = μ + δ_f with Var δ = τ², and the error of the rates, whose covariance the count decoder knows: a
linear model. ν comes from its marginal likelihood; τ is averaged over by that likelihood, as where flows hardly differ
the likeliest τ is 0 and would make them all equal for sure. The covariances depend on r, so it is solved three times.
Only buckets take part in which as many packets were acknowledged as sent. A flow's own packets are n draws around r_f,
so their mean is off it by ν·r²/n. Where the counts show that the list lacks flows, these are one more of them, whose
packets and means differ from bucket to bucket.

Guarantee: 95 % intervals that cover 90–98 % where the list of flows is complete. A flow that the buckets say
little about gets the mean of the others and an interval as wide as they differ. Cost: O(epochs · n · (n² + k²) + k³)
for k flows: a tenth of a second for 50 flows in sixteen epochs of 20 buckets, 1.2 s in a thousand. Memory: a thousand
such epochs take 40 MB, as they are spread out a stack at a time (`work_memory`).

Shahzad and Ganji, "IoTm", §IV-B, divides two estimates of one flow; docs/maths/iotm.md derives this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered, student_95
from sojourn.estimation.buckets.equations import METHOD, by_chance, shares_of, summed_squares
from sojourn.estimation.buckets.joint import METHOD_INCOMPLETE, Amounts, decode_amounts
from sojourn.estimation.buckets.whitening import whitened
from sojourn.estimation.buckets.work_memory import are_kept, is_large, most_learned, stacked
from sojourn.sketches.bucket_array import BucketArray

PASSES = 3
# μ, ν and τ² are learned from the buckets; so few (or two for each flow) can tell them, fewer cannot.
LEARNED, FEWEST_BUCKETS = 3, 15
# Variance per packet in squared mean round trips: keeps covariances regular where packets do not vary at all.
SLACK = 1e-3
# Packets squared by which a bucket's count may be off its even share.
EDGE = 1.0
# Variance of what a turn leaves over in one of a flow's buckets: that of x_j = [j < r] − r/m lies below.
REMAINDER = 1 / 6
# ν, τ² and ω² to begin with.
FIRST_SCALES = (0.2, 0.3, 0.1)
# A flow that seems to send nothing may still send this part of the mean.
LEAST_RATE = 1e-3
LOG_LIMIT = 12.0
# Deviations between flows that are weighed by their likelihood, in mean round trips.
BETWEEN = np.geomspace(0.003, 3.0, 16)


class SummedEpoch(Protocol):
    """An epoch's sums of round trips, the array that counts packets sent, and the buckets in which none is missing."""

    @property
    def sent(self) -> BucketArray: ...
    @property
    def round_trips(self) -> Int64Array: ...
    @property
    def usable(self) -> BoolArray: ...


def estimate_round_trips(
    epochs: Sequence[SummedEpoch],
    flow_id: UInt64Array,
    *,
    unit_ns: int = 1000,
    groups: Sequence[Sequence[int]] = (),
) -> list[Answer]:
    """The mean round-trip time of each flow, or of all packets of each group (places in the list), in ns.

    The method says where the list is not complete. A group's mean weighs its flows by their packets, whose numbers and
    means are wrong together: where a flow is taken to send too few, its mean seems too long. Its variance comes from
    the covariance of both.
    """
    groups = groups or [[f] for f in range(len(flow_id))]
    heard = [epoch for epoch in epochs if epoch.sent.recorded]
    if not heard:
        return [Unanswered(Reason.NOTHING_RECORDED)] * len(groups)
    counts = decode_amounts([epoch.sent for epoch in heard], flow_id, field="count")
    usable = _usable_epochs(heard, counts, flow_id)
    buckets = sum(int(stack.usable.sum()) for stack in usable)
    if buckets < max(min(FEWEST_BUCKETS, 2 * len(flow_id)), LEARNED + 1):
        return [Unanswered(Reason.NO_USABLE_CELLS)] * len(groups)
    found = _decode(usable, counts)
    # What unlisted flows add is learned from the buckets that the listed ones leave over.
    student = student_95(buckets - LEARNED if counts.is_complete else min(counts.degrees, buckets - LEARNED))
    method = METHOD if counts.is_complete else METHOD_INCOMPLETE
    answers: list[Answer] = []
    for members in groups:
        packets = float(counts.total[members].sum())
        if round(packets) < 1:
            answers.append(Unanswered(Reason.LOST_IN_NOISE))
            continue
        value, variance = _mean_of_group(found, counts, members)
        half = student * math.sqrt(max(variance, 0.0))
        estimate = Estimate.around(value * unit_ns, half * unit_ns, samples=round(packets), method=method)
        answers.append(estimate.not_below(0.0))
    return answers


@dataclass(frozen=True, eq=False)
class _Found:
    """Flows' means, the errors of their rates, the covariance of all these, and the variance of each flow's packets
    around its mean.

    ``both`` holds the means of what was recorded first, then the rates' errors.
    """

    both: FloatArray
    covariance: FloatArray
    own_packets: FloatArray


def _mean_of_group(found: _Found, counts: Amounts, members: Sequence[int]) -> tuple[float, float]:
    """The mean of all packets of some flows, and its variance."""
    flows = len(found.both) // 2
    mean, rate_error = found.both[members], found.both[flows:]
    weight = counts.total[members] / counts.total[members].sum()
    away = (mean - weight @ mean) / counts.total[members].sum()
    gradient = np.zeros(2 * flows)
    gradient[members] = weight
    gradient[flows:] = away @ counts.by_rate[members]
    variance = gradient @ found.covariance @ gradient + weight**2 @ found.own_packets[members]
    variance += away @ counts.own_covariance[np.ix_(members, members)] @ away
    return float(weight @ mean + gradient[flows:] @ rate_error), float(variance)


@dataclass(frozen=True, eq=False)
class _Stack:
    """Epochs of equally many buckets: what the usable ones hold, and what flows are expected to send into them.

    Arrays are epochs × buckets, epochs × flows or, ``shares`` and ``expected`` (the packets of each flow), epochs ×
    buckets × flows; of buckets that are not ``usable`` they are 0. ``scattered`` is the variance of a flow's packets
    from bucket to bucket, over its share of each; ``common`` that of all its packets, which its buckets share.
    ``unlisted`` is the variance of what the last, which stands for all that are not listed, sends into each bucket;
    ``sent`` is what each flow sent in all of the epoch, which had so many ``buckets``.
    """

    usable: BoolArray
    total: FloatArray
    packets: FloatArray
    shares: FloatArray
    expected: FloatArray
    amount: FloatArray
    scattered: FloatArray
    common: FloatArray
    unlisted: FloatArray
    weight: FloatArray
    sent: FloatArray
    buckets: int

    def __len__(self) -> int:
        return len(self.weight)

    def covariance(self, scale: FloatArray) -> FloatArray:
        """Σ_f scale_f · Cov(c_f): by chance in each bucket, and common to all of a flow's."""
        found = summed_squares(self.shares, scale * self.common)
        places = np.arange(found.shape[1])
        found[:, places, places] += _of_buckets(self.shares, scale * self.scattered) + self.unlisted * scale[-1]
        return found

    def counted(self) -> FloatArray:
        """The covariance of the packets of each bucket."""
        found = self.covariance(np.ones(self.amount.shape[1]))
        places = np.arange(found.shape[1])
        found[:, places, places] += EDGE
        return found

    def with_expected(self) -> _Stack:
        """With E[c | C]: each bucket's add up to the packets counted; all buckets tell, usable or not."""
        surprise = np.linalg.solve(self.counted(), (self.packets - _of_buckets(self.shares, self.amount))[:, :, None])
        drawn = self.amount + self.common * (self.shares.transpose(0, 2, 1) @ surprise)[:, :, 0]
        parts = self.shares * (drawn[:, None, :] + self.scattered[:, None, :] * surprise)
        parts[:, :, -1] += self.unlisted * surprise[:, :, 0]
        np.maximum(parts, 0.0, out=parts)
        parts *= (self.packets / np.maximum(parts.sum(axis=2), 1e-9))[:, :, None]
        return replace(self, expected=parts)

    def of_named(self) -> _Stack:
        """Without buckets that no flow names, which are empty: all epochs keep as many as any needs."""
        named = self.shares.any(axis=2)
        kept = np.argsort(~named, axis=1, kind="stable")[:, : int(named.sum(axis=1).max())]
        columns = ("usable", "total", "packets", "unlisted")
        found: dict[str, Any] = {name: np.take_along_axis(getattr(self, name), kept, axis=1) for name in columns}
        return replace(self, shares=np.take_along_axis(self.shares, kept[:, :, None], axis=1), **found)

    def of_usable(self) -> _Stack:
        """With nothing in buckets that are not usable, and without epochs that have no others."""
        some, usable = self.usable.any(axis=1), self.usable
        found = replace(
            self,
            total=np.where(usable, self.total, 0.0),
            packets=np.where(usable, self.packets, 0.0),
            shares=np.where(usable[:, :, None], self.shares, 0.0),
            expected=np.where(usable[:, :, None], self.expected, 0.0),
            unlisted=np.where(usable, self.unlisted, 0.0),
        )
        return found if some.all() else found.chosen(np.flatnonzero(some))

    def chosen(self, places: Int64Array) -> _Stack:
        """Some of the epochs."""
        found: dict[str, Any] = {name: getattr(self, name)[places] for name in _COLUMNS}
        return replace(self, **found)

    def mixing(self, mean: FloatArray, between: float) -> FloatArray:
        """Cov[B | C] if every packet took its flow's mean; these have the variance τ²."""
        cross = self.covariance(mean)
        found: FloatArray = self.covariance(mean**2)
        found -= cross @ np.linalg.solve(self.counted(), cross)
        if self.unlisted.any():
            # Other flows in each bucket, so another mean in each, as far off as those of listed flows are.
            places = np.arange(found.shape[1])
            found[:, places, places] += between * (self.expected[:, :, -1] ** 2 + self.unlisted)
        return found

    def of_rates(self, mean: FloatArray) -> FloatArray:
        """How the expected sums move with the rates: more of a flow pulls a bucket towards that flow's mean."""
        whole = np.where(self.usable, _of_buckets(self.shares, self.amount), 1.0)
        average = _of_buckets(self.shares, self.amount * mean) / whole
        moved: FloatArray = mean - average[:, :, None]
        moved *= self.shares
        moved *= (self.weight[:, None] * self.packets / whole)[:, :, None]
        return moved


_COLUMNS = [one.name for one in fields(_Stack) if one.name != "buckets"]


def _of_buckets(shares: FloatArray, amount: FloatArray) -> FloatArray:
    """What each bucket has of such amounts of flows."""
    found: FloatArray = np.einsum("enk,ek->en", shares, amount)
    return found


def _usable_epochs(epochs: Sequence[SummedEpoch], counts: Amounts, flow_id: UInt64Array) -> list[_Stack]:
    """The usable buckets of all epochs that have any."""
    rate = np.maximum(counts.rate, LEAST_RATE * counts.rate.mean())
    found = []
    for places in stacked([epoch.sent.parameters.buckets for epoch in epochs]):
        stack = _stack([epochs[e] for e in places], rate, counts, places, flow_id)
        if counts.is_complete and is_large(stack.usable.shape[1]):
            stack = stack.of_named()
        found.append(stack.with_expected().of_usable())
    return [stack for stack in found if len(stack)]


def _stack(
    epochs: Sequence[SummedEpoch], rate: FloatArray, counts: Amounts, places: Int64Array, flow_id: UInt64Array
) -> _Stack:
    """How flows' packets vary: those that take turns leave a remainder in a bucket, however many they are."""
    flows, scales, weight = len(flow_id), counts.scales, counts.weight[places]
    packets = np.array([epoch.sent.column("count") for epoch in epochs], np.float64)
    shares = np.full((*packets.shape, len(rate)), 1 / packets.shape[1])
    chance = np.ones((len(epochs), len(rate)))
    for e, epoch in enumerate(epochs):
        shares[e, :, :flows] = shares_of(epoch.sent.parameters, flow_id)
        chance[e, :flows] = by_chance(epoch.sent.parameters, flow_id)
    turns = np.array([epoch.sent.parameters.per_instance for epoch in epochs])[:, None]
    amount = rate * weight[:, None]
    even = (1 - chance) * np.minimum(amount, REMAINDER * turns)
    scattered = scales.chance * chance * amount
    common = scales.bunch * amount - scattered + (scales.change * amount) ** 2
    unlisted, sent = np.zeros_like(packets), np.zeros_like(amount)
    if scales.unlisted:
        # Few buckets hold most of what unlisted flows sent: where there is more than expected, all of it may be theirs.
        usual = scales.unlisted * packets.mean(axis=1)
        unlisted = np.maximum(usual[:, None], packets - _of_buckets(shares, amount)) ** 2
    sent[:, :flows] = counts.by_epoch[places]
    usable = np.array([epoch.usable for epoch in epochs]) & (packets > 0) & (shares.sum(axis=2) > 0)
    return _Stack(
        usable=usable,
        total=np.array([epoch.round_trips for epoch in epochs], np.float64),
        packets=packets,
        shares=shares,
        expected=np.empty(0),
        amount=amount,
        scattered=scattered + even,
        common=common,
        unlisted=unlisted,
        weight=weight,
        sent=np.maximum(sent, LEAST_RATE * amount),
        buckets=packets.shape[1],
    )


def _evenly_chosen(stacks: Sequence[_Stack], most: int) -> list[_Stack]:
    """So many epochs, evenly spaced, in as few stacks as their numbers of buckets allow."""
    ends = np.cumsum([len(stack) for stack in stacks])
    places = np.unique(np.linspace(0, ends[-1] - 1, most).astype(int))
    sizes = dict.fromkeys(stack.usable.shape[1] for stack in stacks)
    some = [
        stack.chosen(places[(places >= end - len(stack)) & (places < end)] - (end - len(stack)))
        for stack, end in zip(stacks, ends.tolist(), strict=True)
    ]
    return [_joined([stack for stack in some if stack.usable.shape[1] == size]) for size in sizes]


def _joined(stacks: Sequence[_Stack]) -> _Stack:
    found: dict[str, Any] = {name: np.concatenate([getattr(s, name) for s in stacks]) for name in _COLUMNS}
    return replace(stacks[0], **found)


@dataclass(frozen=True)
class _Spread:
    """How round trips vary: ν, the variance of a packet's around its flow's mean of the epoch, and ω², that of this
    mean around the flow's own, both over the square of the mean."""

    packets: float
    drift: float


@dataclass(frozen=True, eq=False)
class _Columns:
    """A stack's part of the model: columns of its unknown and of the sums, and what covariances are made of.

    The rows of buckets that are not usable are empty, with a variance of one.
    """

    columns: FloatArray
    mixing: FloatArray
    by_packets: FloatArray
    by_drift: FloatArray

    @classmethod
    def of(cls, stack: _Stack, rate_error: FloatArray, mean: FloatArray, between: float) -> _Columns:
        flows, places = len(mean), np.arange(stack.usable.shape[1])
        columns = np.empty((*stack.usable.shape, 2 * flows + 2))
        columns[:, :, :flows] = stack.expected
        columns[:, :, flows:-2] = stack.of_rates(mean) @ rate_error
        columns[:, :, -2], columns[:, :, -1] = stack.packets, stack.total
        mixing = stack.mixing(mean, between)
        slack = SLACK * float(mean.mean()) ** 2 * stack.packets
        mixing[:, places, places] += np.where(stack.usable, slack, 1.0)
        by_drift: FloatArray = (stack.expected * mean**2) @ stack.expected.transpose(0, 2, 1)
        return cls(columns, mixing, stack.expected @ mean**2, by_drift)

    def around(self, spread: _Spread) -> FloatArray:
        """The covariance of the sums of each epoch around what its flows' own means make of them."""
        found: FloatArray = spread.drift * self.by_drift
        found += self.mixing
        places = np.arange(found.shape[1])
        found[:, places, places] += spread.packets * self.by_packets
        return found


class _Model:
    """The linear model of [δ, z, μ], with covariances for flows that have about the given means.

    The rates' errors are L·z, where z has the covariance 1 whatever the counts tell of the rates.
    """

    def __init__(self, stacks: list[_Stack], rate_error: FloatArray, mean: FloatArray, between: float) -> None:
        self._stacks, self.mean, self._rate_error, self._between = stacks, mean, rate_error, between
        self.flows, self.average = len(mean), float(mean.mean())
        self._is_kept = are_kept([stack.usable.shape[1] for stack in stacks for _ in range(len(stack))])

    @cached_property
    def _kept(self) -> list[_Columns]:
        return [self._columns(stack) for stack in self._stacks]

    def _columns(self, stack: _Stack) -> _Columns:
        return _Columns.of(stack, self._rate_error, self.mean, self._between)

    def _parts(self) -> Iterator[tuple[_Stack, _Columns]]:
        """All epochs by stacks, which are spread out one after the other; few are kept."""
        for i, stack in enumerate(self._stacks):
            yield stack, self._kept[i] if self._is_kept else self._columns(stack)

    def weighed(self, spread: _Spread) -> tuple[FloatArray, float]:
        """(the products of all columns, the log determinant) under these variances."""
        gram, log_determinant = np.zeros((2 * self.flows + 2, 2 * self.flows + 2)), 0.0
        for _, part in self._parts():
            factor = np.linalg.cholesky(part.around(spread)).astype(np.float64)
            white = whitened(factor, part.columns).reshape(-1, len(gram))
            gram += white.T @ white
            log_determinant += 2 * float(np.log(factor.diagonal(axis1=1, axis2=2)).sum())
        return gram, log_determinant

    def equations(self, weighed: tuple[FloatArray, float], between: float) -> tuple[FloatArray, FloatArray, float]:
        """(precision, right side, −2 × the marginal log likelihood) of the unknown under τ²."""
        flows, (gram, log_determinant) = self.flows, weighed
        precision = np.zeros((2 * flows + 1, 2 * flows + 1))
        precision[:flows, :flows] = np.eye(flows) / between
        precision[flows:-1, flows:-1] = np.eye(flows)
        precision[-1, -1] = 1e-6 / self.average**2
        precision += gram[:-1, :-1]
        side = gram[:-1, -1].copy()
        factor = np.linalg.cholesky(precision).astype(np.float64)
        half = whitened(factor[None], side[None, :, None]).ravel()
        misfit = flows * np.log(between) + gram[-1, -1] + log_determinant - float(half @ half)
        misfit += 2 * float(np.log(np.diag(factor)).sum())
        return precision, side, float(misfit)

    def posterior(self, precision: FloatArray, side: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Flows' means and z, and the covariance of both, by such equations."""
        covariance = np.linalg.inv(precision)
        to_means = np.eye(2 * self.flows, 2 * self.flows + 1)
        to_means[: self.flows, -1] = 1.0
        return to_means @ (covariance @ side), to_means @ covariance @ to_means.T

    def recorded(self, both: FloatArray, covariance: FloatArray, spread: _Spread) -> tuple[FloatArray, FloatArray]:
        """The same for the errors of the rates, and the means of what was recorded: each epoch's is off the flow's own.

        An epoch's deviations are best predicted from its residuals; of their error, what depends on the flow's own mean
        and on the rates comes with those, the rest is the epoch's own.
        """
        flows = self.flows
        sent = sum(stack.sent.sum(axis=0) for stack in self._stacks)
        vary = spread.drift * self.mean**2
        moved, own, shift = np.eye(2 * flows), np.zeros((flows, flows)), np.zeros(flows)
        for stack, part in self._parts():
            weight, varied = stack.sent / sent, stack.expected * vary
            gain = np.linalg.solve(part.around(spread), varied)
            gain *= weight[:, None, :]
            columns = part.columns[:, :, : 2 * flows]
            shift += np.einsum("enk,en->k", gain, stack.total - columns @ both)
            moved[:flows] -= np.tensordot(gain, columns, axes=((0, 1), (0, 1)))
            varied *= weight[:, None, :]
            own += np.diag(vary * (weight**2).sum(axis=0)) - np.tensordot(gain, varied, axes=((0, 1), (0, 1)))
        found = both.copy()
        found[:flows] += shift
        moved[flows:, flows:] = self._rate_error
        found[flows:] = self._rate_error @ both[flows:]
        covariance = moved @ covariance @ moved.T
        covariance[:flows, :flows] += own
        return found, covariance


def _decode(stacks: list[_Stack], counts: Amounts) -> _Found:
    """Flows' means: three rounds of the model, each with its ν, ω² and τ² of the highest likelihood."""
    packets = sum(float(stack.packets.sum()) for stack in stacks)
    average = max(sum(float(stack.total.sum()) for stack in stacks) / packets, 1e-9)
    mean = np.full(len(counts.rate), average)
    logs = np.log(FIRST_SCALES if sum(map(len, stacks)) > 1 else FIRST_SCALES[:2])
    some = _evenly_chosen(stacks, min(most_learned(stack.buckets, stack.usable.shape[1]) for stack in stacks))
    for _ in range(PASSES):
        bounded = np.maximum(mean, 0.02 * average)
        between = _between(logs, average)
        logs = _likeliest(_Model(some, counts.rate_error, bounded, between), logs, average)
        spread = _spread(logs)
        model = _Model(stacks, counts.rate_error, bounded, between)
        own, covariance = _averaged(model, spread, average)
        mean = own[: model.flows]
    both, of_both = model.recorded(own, covariance, spread)
    found = both[: len(counts.total)]
    own_packets = spread.packets * np.maximum(found, 0.02 * average) ** 2 / np.maximum(counts.total, 1.0)
    if not counts.is_complete:
        # Of packets that are taken for a flow's so many may be an unlisted one's, whose mean differs as flows' do.
        doubtful = np.diag(counts.total_covariance) / np.maximum(counts.total, 1.0) ** 2
        own_packets += np.minimum(doubtful, 1.0) * _between(logs, average)
    return _Found(both, of_both, own_packets)


def _spread(logs: FloatArray) -> _Spread:
    scales = np.exp(np.clip(logs, -LOG_LIMIT, LOG_LIMIT)).tolist()
    return _Spread(scales[0], scales[2] if len(scales) > 2 else 0.0)


def _between(logs: FloatArray, average: float) -> float:
    """τ²"""
    return average**2 * math.exp(float(np.clip(logs[1], -LOG_LIMIT, LOG_LIMIT)))


def _likeliest(model: _Model, logs: FloatArray, average: float) -> FloatArray:
    """The logarithms of ν, τ² and, where there are several epochs, ω² of the highest likelihood."""
    from scipy.optimize import minimize

    def misfit(logs: FloatArray) -> float:
        return model.equations(model.weighed(_spread(logs)), _between(logs, average))[2]

    options = {"maxfev": 60, "xatol": 0.05, "fatol": 0.05}
    found: FloatArray = minimize(misfit, logs, method="Nelder-Mead", options=options).x
    return found


def _averaged(model: _Model, spread: _Spread, average: float) -> tuple[FloatArray, FloatArray]:
    """The posterior over all deviations between flows by their likelihood; all are as likely before."""
    weighed = model.weighed(spread)
    solved = [model.equations(weighed, value) for value in (BETWEEN * average) ** 2]
    misfit = np.array([value for _, _, value in solved])
    weight = BETWEEN * np.exp((misfit.min() - misfit) / 2)
    weight /= weight.sum()
    found = [
        (share, model.posterior(precision, side))
        for share, (precision, side, _) in zip(weight, solved, strict=True)
        if share > 1e-4
    ]
    share = np.array([part for part, _ in found]) / sum(part for part, _ in found)
    both: FloatArray = share @ np.array([posterior[0] for _, posterior in found])
    covariance = np.zeros((len(both), len(both)))
    for part, (one, of_one) in zip(share.tolist(), (posterior for _, posterior in found), strict=True):
        covariance += part * (of_one + np.outer(one - both, one - both))
    return both, covariance
