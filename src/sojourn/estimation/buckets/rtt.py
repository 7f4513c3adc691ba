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
for k flows: half a second for 50 flows in ten epochs of 20 buckets.

Shahzad and Ganji, "IoTm", §IV-B, divides two estimates of one flow; docs/maths/iotm.md derives this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered, student_95
from sojourn.estimation.buckets.equations import METHOD, by_chance, shares_of, whitened
from sojourn.estimation.buckets.joint import METHOD_INCOMPLETE, MOST_LEARNED, Amounts, Scales, decode_amounts
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
    buckets = sum(len(epoch.packets) for epoch in usable)
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
class _Flows:
    """What flows are expected to send into an epoch's buckets, and how that varies.

    ``scattered`` is the variance of a flow's packets from bucket to bucket, over its share of each; ``common`` that of
    all its packets, which its buckets share. ``unlisted`` is the variance of what the last, which stands for all that
    are not listed, sends into each bucket.
    """

    shares: FloatArray
    amount: FloatArray
    scattered: FloatArray
    common: FloatArray
    unlisted: FloatArray

    def covariance(self, scale: FloatArray) -> FloatArray:
        """Σ_f scale_f · Cov(c_f): by chance in each bucket, and common to all of a flow's."""
        found: FloatArray = np.diag(self.shares @ (scale * self.scattered) + self.unlisted * scale[-1])
        found += (self.shares * (scale * self.common)) @ self.shares.T
        return found

    def expected(self, packets: FloatArray) -> FloatArray:
        """E[c | C], buckets × flows: rows add up to the packets counted."""
        counted = self.covariance(np.ones(len(self.amount))) + EDGE * np.eye(len(packets))
        surprise = np.linalg.solve(counted, packets - self.shares @ self.amount)
        parts = self.shares * (self.amount + self.common * (self.shares.T @ surprise))
        parts += self.shares * self.scattered * surprise[:, None]
        parts[:, -1] += self.unlisted * surprise
        parts = np.maximum(parts, 0.0)
        scaled: FloatArray = parts * (packets / np.maximum(parts.sum(axis=1), 1e-9))[:, None]
        return scaled

    def of(self, rows: BoolArray) -> _Flows:
        return replace(self, shares=self.shares[rows], unlisted=self.unlisted[rows])


@dataclass(frozen=True, eq=False)
class _Epoch:
    """An epoch's usable buckets: sums, packets, packets expected of each flow; and what each flow sent in all of it."""

    total: FloatArray
    packets: FloatArray
    expected: FloatArray
    flows: _Flows
    weight: float
    sent: FloatArray

    def mixing(self, mean: FloatArray, between: float) -> FloatArray:
        """Cov[B | C] if every packet took its flow's mean; these have the variance τ²."""
        counted = self.flows.covariance(np.ones(len(mean))) + EDGE * np.eye(len(self.packets))
        cross = self.flows.covariance(mean)
        found: FloatArray = self.flows.covariance(mean**2) - cross @ np.linalg.solve(counted, cross)
        if self.flows.unlisted.any():
            # Other flows in each bucket, so another mean in each, as far off as those of listed flows are.
            found += between * np.diag(self.expected[:, -1] ** 2 + self.flows.unlisted)
        return found

    def of_rates(self, mean: FloatArray) -> FloatArray:
        """How the expected sums move with the rates: more of a flow pulls a bucket towards that flow's mean."""
        shares, amount = self.flows.shares, self.flows.amount
        whole = shares @ amount
        average = (shares @ (amount * mean)) / whole
        moved: FloatArray = (self.weight * self.packets / whole)[:, None] * shares * (mean - average[:, None])
        return moved


def _usable_epochs(epochs: Sequence[SummedEpoch], counts: Amounts, flow_id: UInt64Array) -> list[_Epoch]:
    """The usable buckets of each epoch that has any."""
    found = []
    rate = np.maximum(counts.rate, LEAST_RATE * counts.rate.mean())
    for epoch, weight, sent in zip(epochs, counts.weight, counts.by_epoch, strict=True):
        packets = epoch.sent.column("count").astype(np.float64)
        shares = shares_of(epoch.sent.parameters, flow_id)
        if not counts.is_complete:
            shares = np.column_stack([shares, np.full(len(packets), 1 / len(packets))])
        flows = _expected_flows(epoch.sent, shares, rate * weight, counts.scales, flow_id)
        usable = epoch.usable & (packets > 0) & (flows.shares.sum(axis=1) > 0)
        if usable.any():
            total = epoch.round_trips[usable].astype(np.float64)
            expected = flows.expected(packets)[usable]
            of_all = np.append(sent, np.zeros(shares.shape[1] - len(sent)))
            found.append(_Epoch(total, packets[usable], expected, flows.of(usable), float(weight), of_all))
    return found


def _expected_flows(
    sent: BucketArray, shares: FloatArray, amount: FloatArray, scales: Scales, flow_id: UInt64Array
) -> _Flows:
    """How flows' packets vary: those that take turns leave a remainder in a bucket, however many they are."""
    chance = np.ones(len(amount))
    chance[: len(flow_id)] = by_chance(sent.parameters, flow_id)
    even = (1 - chance) * np.minimum(amount, REMAINDER * sent.parameters.per_instance)
    scattered = scales.chance * chance * amount
    common = scales.bunch * amount - scattered + (scales.change * amount) ** 2
    packets = sent.column("count").astype(np.float64)
    unlisted = np.zeros(len(packets))
    if scales.unlisted:
        # Few buckets hold most of what unlisted flows sent: where there is more than expected, all of it may be theirs.
        unlisted[:] = np.maximum(scales.unlisted * packets.mean(), packets - shares @ amount) ** 2
    return _Flows(shares, amount, scattered + even, common, unlisted)


@dataclass(frozen=True)
class _Spread:
    """How round trips vary: ν, the variance of a packet's around its flow's mean of the epoch, and ω², that of this
    mean around the flow's own, both over the square of the mean."""

    packets: float
    drift: float


class _Model:
    """The linear model of [δ, the rates' error, μ], with covariances for flows that have about the given means.

    All epochs have equally many rows here: those that an epoch lacks are empty, with a variance of one.
    """

    def __init__(self, epochs: list[_Epoch], rate_precision: FloatArray, mean: FloatArray, between: float) -> None:
        self.epochs, self.mean, self.rate_precision = epochs, mean, rate_precision
        self.flows, self.average = len(mean), float(mean.mean())
        rows = max(len(epoch.packets) for epoch in epochs)
        self.columns = np.zeros((len(epochs), rows, 2 * self.flows + 2))
        self.mixing = np.zeros((len(epochs), rows, rows))
        self.mixing[:] = np.eye(rows)
        self.by_packets = np.zeros((len(epochs), rows))
        self.by_drift = np.zeros((len(epochs), rows, rows))
        for e, epoch in enumerate(epochs):
            used = len(epoch.packets)
            mixing = epoch.mixing(mean, between) + np.diag(SLACK * self.average**2 * epoch.packets)
            self.mixing[e, :used, :used] = mixing
            columns = np.column_stack([epoch.expected, epoch.of_rates(mean), epoch.packets, epoch.total])
            self.columns[e, :used] = columns
            self.by_packets[e, :used] = epoch.expected @ mean**2
            self.by_drift[e, :used, :used] = (epoch.expected * mean**2) @ epoch.expected.T

    def around(self, spread: _Spread) -> FloatArray:
        """The covariance of the sums of each epoch around what its flows' own means make of them."""
        found: FloatArray = self.mixing + spread.drift * self.by_drift
        places = np.arange(found.shape[1])
        found[:, places, places] += spread.packets * self.by_packets
        return found

    def weighed(self, spread: _Spread) -> tuple[FloatArray, float]:
        """(the products of all columns, the log determinant) under these variances."""
        factor = np.linalg.cholesky(self.around(spread)).astype(np.float64)
        white = whitened(factor, self.columns).reshape(-1, self.columns.shape[2])
        return white.T @ white, 2 * float(np.log(factor.diagonal(axis1=1, axis2=2)).sum())

    def equations(self, weighed: tuple[FloatArray, float], between: float) -> tuple[FloatArray, FloatArray, float]:
        """(precision, right side, −2 × the marginal log likelihood) of the unknown under τ²."""
        flows, (gram, log_determinant) = self.flows, weighed
        precision = np.zeros((2 * flows + 1, 2 * flows + 1))
        precision[:flows, :flows] = np.eye(flows) / between
        precision[flows:-1, flows:-1] = self.rate_precision
        precision[-1, -1] = 1e-6 / self.average**2
        precision += gram[:-1, :-1]
        side = gram[:-1, -1].copy()
        factor = np.linalg.cholesky(precision).astype(np.float64)
        half = whitened(factor[None], side[None, :, None]).ravel()
        misfit = flows * np.log(between) + gram[-1, -1] + log_determinant - float(half @ half)
        misfit += 2 * float(np.log(np.diag(factor)).sum())
        return precision, side, float(misfit)

    def posterior(self, precision: FloatArray, side: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Flows' means and the errors of their rates, and the covariance of both, by such equations."""
        covariance = np.linalg.inv(precision)
        to_means = np.eye(2 * self.flows, 2 * self.flows + 1)
        to_means[: self.flows, -1] = 1.0
        return to_means @ (covariance @ side), to_means @ covariance @ to_means.T

    def recorded(self, both: FloatArray, covariance: FloatArray, spread: _Spread) -> tuple[FloatArray, FloatArray]:
        """The same for the means of what was recorded, in which each epoch's differs from the flow's own.

        An epoch's deviations are best predicted from its residuals; of their error, what depends on the flow's own mean
        and on the rates comes with those, the rest is the epoch's own.
        """
        flows = self.flows
        sent = np.array([np.maximum(epoch.sent, LEAST_RATE * epoch.flows.amount) for epoch in self.epochs])
        weight = sent / sent.sum(axis=0)
        vary = spread.drift * self.mean**2
        around = self.around(spread)
        moved, own, shift = np.eye(2 * flows), np.zeros((flows, flows)), np.zeros(flows)
        for e, epoch in enumerate(self.epochs):
            used = len(epoch.packets)
            gain = np.linalg.solve(around[e, :used, :used], epoch.expected * vary).T
            columns = self.columns[e, :used]
            shift += weight[e] * (gain @ (epoch.total - columns[:, : 2 * flows] @ both))
            moved[:flows] -= weight[e][:, None] * (gain @ columns[:, : 2 * flows])
            own += np.outer(weight[e], weight[e]) * (np.diag(vary) - gain @ (epoch.expected * vary))
        found = both.copy()
        found[:flows] += shift
        covariance = moved @ covariance @ moved.T
        covariance[:flows, :flows] += own
        return found, covariance


def _decode(epochs: list[_Epoch], counts: Amounts) -> _Found:
    """Flows' means: three rounds of the model, each with its ν, ω² and τ² of the highest likelihood."""
    packets = sum(float(epoch.packets.sum()) for epoch in epochs)
    average = max(sum(float(epoch.total.sum()) for epoch in epochs) / packets, 1e-9)
    mean = np.full(len(counts.rate), average)
    rate_precision = np.linalg.inv(counts.rate_covariance).astype(np.float64)
    logs = np.log(FIRST_SCALES if len(epochs) > 1 else FIRST_SCALES[:2])
    # So many, evenly spaced, tell how round trips vary.
    some = [epochs[i] for i in np.unique(np.linspace(0, len(epochs) - 1, MOST_LEARNED).astype(int))]
    for _ in range(PASSES):
        bounded = np.maximum(mean, 0.02 * average)
        between = _between(logs, average)
        logs = _likeliest(_Model(some, rate_precision, bounded, between), logs, average)
        spread = _spread(logs)
        model = _Model(epochs, rate_precision, bounded, between)
        own, covariance = _averaged(model, spread, average)
        both, of_both = model.recorded(own, covariance, spread)
        mean = own[: model.flows]
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
