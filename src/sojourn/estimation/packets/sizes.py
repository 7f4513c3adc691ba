"""How many packets each flow sent: by cells, by how many of them were sampled, and by what its group leaves for it.

Of N packets n are sampled with probability C(N, n)·pⁿ·(1 − p)^(N − n); cells say that N is normal around a value. The
group's counter less what the other flows of the group are expected to be is another such value. All are multiplied on
points within the sure bounds of N, every integer where these are few.

**The value** is the mean under the distribution that flows' sizes have here, learnt from the same evidence: weights of
integers and of geometric steps, which maximise the likelihood (expectation maximisation, from a power law).

**The interval** leans on no other flow's size: else the few elephants of which nothing was sampled would be called
mice, and an interval that holds for most flows would hold for hardly any of these. Its upper end is the 97.5 % quantile
with all N equally likely beforehand, its lower end the 2.5 % quantile with all log N equally likely; with a sample
alone these are the exact ends of Clopper and Pearson (in their Poisson form, Garwood's). So it holds for large flows
as for small ones.

Deterministic; O(flows). C. J. Clopper and E. S. Pearson, "The Use of Confidence or Fiducial
Limits", Biometrika 26 (1934); F. Garwood, "Fiducial Limits for the Poisson Distribution", Biometrika 28 (1936).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import borrowing_inlined, borrowing_kernel, kernel
from sojourn.estimation.learning import INTEGERS, KEPT_FLOWS, LEARN_FLOWS, RATIO, learning_rows
from sojourn.estimation.packets.evidence import PacketEvidence, joined, squeezed
from sojourn.estimation.packets.panjer import LEAST, log_rising

POINTS = 64
# Above this part of the upper end of a range its points are even, below they are denser towards the lower end.
EVEN_FROM = 0.2
DEVIATIONS = 7.0
POINTS_OF_BIN = 4
PASSES = 40
SMOOTHING = 0.2
LOW_TAIL, HIGH_TAIL = 0.025, 0.975


@dataclass(frozen=True, eq=False)
class SizePosterior:
    """Each flow's packets: mean and variance, the ends of the interval, and with each end the moments under the prior
    that it comes from; ``sure`` bounds."""

    mean: FloatArray
    variance: FloatArray
    low: FloatArray
    high: FloatArray
    least: tuple[FloatArray, FloatArray]
    most: tuple[FloatArray, FloatArray]
    sure: tuple[FloatArray, FloatArray]


class Known(NamedTuple):
    """What the kernels take of each flow: bounds, one normal message, its sampled packets, and the logarithm of the
    probability that one is not."""

    low: FloatArray
    high: FloatArray
    value: FloatArray
    precision: FloatArray
    kept: FloatArray
    share: FloatArray
    log_rest: FloatArray


def size_posterior(evidence: PacketEvidence) -> SizePosterior:
    """The packets of every flow."""
    sampled, heard = evidence.sampled, evidence.of_sent
    low, high = _bounds(evidence)
    log_rest = np.log1p(-np.minimum(sampled.share, 1 - 1e-12))
    known = Known(low, high, heard.value, heard.precision, sampled.kept, sampled.share, log_rest)
    rows = learning_rows(len(low))
    weight = _learnt(_at(known, rows), None)
    if evidence.sent is not None:
        alone = _moments(known, weight, ends=False)
        value, precision = joined(heard, sampled.group, evidence.sent, alone[:, 0], alone[:, 1])
        known = known._replace(value=value, precision=precision)
        weight = _learnt(_at(known, rows), weight)
    found = _moments(known, weight)
    mean, variance, least, most = found[:, 0], found[:, 1], found[:, 2], found[:, 3]
    return SizePosterior(
        mean,
        variance,
        np.minimum(least, np.floor(mean)),
        np.maximum(most, np.ceil(mean)),
        (found[:, 4], found[:, 5]),
        (found[:, 6], found[:, 7]),
        (low, high),
    )


def _bounds(evidence: PacketEvidence) -> tuple[FloatArray, FloatArray]:
    """At least what was sampled, and one packet of every flow that is listed where there are as many."""
    sampled, heard = evidence.sampled, evidence.of_sent
    low, high = np.maximum(heard.low, sampled.kept), heard.high
    whole = sampled.share >= 1
    low, high = np.where(whole, sampled.kept, low), np.where(whole, sampled.kept, high)
    low = np.where((high >= 1) & ~whole, np.maximum(low, 1.0), low)
    if evidence.sent is not None:
        group, total = sampled.group, evidence.sent.total
        short = np.bincount(group, low, len(total)) > total
        low = np.where(short[group] & ~whole, np.maximum(heard.low, sampled.kept), low)
        low, high = squeezed(low, np.minimum(high, total[group]), group, total)
    # Cells that contradict the sample are not believed.
    return low, np.maximum(high, low)


def learning_groups(evidence: PacketEvidence, flows: int) -> Int64Array:
    """Some flows, those of a group all or none."""
    if evidence.lost is None or flows <= LEARN_FLOWS:
        return learning_rows(flows)
    group = evidence.sampled.group
    shuffled = np.random.default_rng(0).permutation(len(evidence.lost.total))
    flows_of = np.bincount(group, minlength=len(shuffled))[shuffled]
    chosen = shuffled[: 1 + int(np.searchsorted(np.cumsum(flows_of), LEARN_FLOWS))]
    return np.flatnonzero(np.isin(group, chosen))


def _at(known: Known, rows: Int64Array) -> Known:
    return Known(*(column[rows] for column in known))


def _learnt(known: Known, start: FloatArray | None) -> FloatArray:
    """Weights of the bins of sizes."""
    edges = bin_edges(float(known.high.max(initial=1.0)))
    likelihood = _bin_likelihood(known, edges)
    weight = _power_law(edges, likelihood) if start is None or len(start) != len(edges) - 1 else start
    return _likeliest(likelihood, weight)


@kernel
def _likeliest(likelihood: FloatArray, first: FloatArray) -> FloatArray:
    """The weights after some passes of expectation maximisation; O(flows × bins) each."""
    weight = first.copy()
    for _ in range(PASSES):
        tally = KEPT_FLOWS * first
        for f in range(len(likelihood)):
            total = 0.0
            for j in range(len(weight)):
                total += likelihood[f, j] * weight[j]
            if total > 0.0:
                each = 1.0 / total
                for j in range(len(weight)):
                    tally[j] += likelihood[f, j] * weight[j] * each
        tally = smoothed(tally)
        weight = tally / np.sum(tally)
    return weight


@kernel
def smoothed(weight: FloatArray) -> FloatArray:
    """Each weight with parts of its neighbours': likeliest weights of many bins by few flows would be spikes."""
    found = np.empty(len(weight))
    for j in range(len(weight)):
        beside = weight[max(j - 1, 0)] + weight[min(j + 1, len(weight) - 1)]
        found[j] = (1 - 2 * SMOOTHING) * weight[j] + SMOOTHING * beside
    return found


def bin_edges(largest: float) -> FloatArray:
    """Integers, then geometric steps up to the largest possible size."""
    last = INTEGERS + 0.5
    steps = max(1, math.ceil(math.log(max(largest, last) / last) / math.log(RATIO)) + 1)
    return np.concatenate([np.arange(INTEGERS) + 0.5, last * RATIO ** np.arange(steps + 1)])


def _power_law(edges: FloatArray, likelihood: FloatArray) -> FloatArray:
    """The power law that makes the evidence likeliest."""
    centre, width = np.sqrt(edges[1:] * np.maximum(edges[:-1], 1.0)), np.diff(edges)
    best, most = np.ones(len(centre)), -np.inf
    for exponent in np.linspace(0.0, 3.0, 13):
        weight = width / centre**exponent
        weight /= weight.sum()
        reached = float(np.log(np.maximum(likelihood @ weight, 1e-300)).sum())
        if reached > most:
            best, most = weight, reached
    return best


@borrowing_inlined
def _log_likelihood(size: float, f: int, known: Known) -> float:
    """Of a size, but for what does not depend on it."""
    found: float = -0.5 * known.precision[f] * (size - known.value[f]) ** 2
    if known.share[f] > 0.0:
        kept = known.kept[f]
        found += (size - kept) * known.log_rest[f]
        if kept > 0.0:
            found += log_rising(size - kept + 1.0, kept)
    return found


@kernel
def _bin_likelihood(known: Known, edges: FloatArray) -> FloatArray:
    """Flows × bins: the mean likelihood over a bin's points, the largest of each flow 1."""
    found = np.zeros((len(known.low), len(edges) - 1))
    _fill_bins(known, edges, found)
    return found


@borrowing_kernel
def _fill_bins(known: Known, edges: FloatArray, found: FloatArray) -> None:
    bins = len(edges) - 1
    for f in range(len(known.low)):
        low, high = known.low[f], known.high[f]
        most = -np.inf
        for j in range(bins):
            points = 1 if j < INTEGERS else POINTS_OF_BIN
            best = -np.inf
            for i in range(points):
                size = edges[j] + (edges[j + 1] - edges[j]) * (i + 0.5) / points
                if edges[j + 1] <= low or edges[j] >= high + 1.0:
                    continue
                best = max(best, _log_likelihood(min(max(size, low), high), f, known))
            found[f, j] = best
            most = max(most, best)
        for j in range(bins):
            found[f, j] = math.exp(max(found[f, j] - most, LEAST)) if found[f, j] > -np.inf else 0.0


def _moments(known: Known, weight: FloatArray, *, ends: bool = True) -> FloatArray:
    """Mean, variance, low, high; mean and variance with all log N equally likely, and with all N. Without `ends` the
    first two."""
    edges = bin_edges(float(known.high.max(initial=1.0)))
    density = np.log(np.maximum(weight, 1e-300) / np.diff(edges)) if len(weight) == len(edges) - 1 else None
    if density is None:
        # Those to learn from were smaller than others may be: their power law goes on.
        tail = np.full(len(edges) - 1 - len(weight), weight[-1])
        density = np.log(np.maximum(np.concatenate([weight, tail]), 1e-300) / np.diff(edges))
    found = np.empty((len(known.low), 8 if ends else 2))
    _integrate(known, edges, density, found)
    return found


@borrowing_inlined
def _range(f: int, known: Known) -> tuple[float, float]:
    """Where the evidence lets the size be, within its bounds."""
    low, high = known.low[f], known.high[f]
    if known.share[f] > 0.0:
        kept, odds = known.kept[f], (1.0 - known.share[f]) / known.share[f]
        deviation = math.sqrt((kept + 1.0) * odds / known.share[f])
        low = max(low, kept * (1.0 + odds) - DEVIATIONS * deviation)
        high = min(high, (kept + 1.0) * (1.0 + odds) + DEVIATIONS * deviation + 5.0 * odds)
    if known.precision[f] > 0.0:
        deviation = 1.0 / math.sqrt(known.precision[f]) + 0.5
        below, above = known.value[f] - DEVIATIONS * deviation, known.value[f] + DEVIATIONS * deviation
        if below <= high and above >= low:
            low, high = max(low, below), min(high, above)
    low = math.floor(low)
    return low, max(math.ceil(high), low)


@borrowing_inlined
def _spread_points(low: float, high: float, place: FloatArray, width: FloatArray) -> int:
    """Points of a range and how many integers each stands for: all of them, even ones, or denser to the lower end."""
    span = high - low
    if span < POINTS:
        count = int(span) + 1
        for j in range(count):
            place[j], width[j] = low + j, 1.0
        return count
    scale = math.log(span + 1.0) / (POINTS - 1)
    for j in range(POINTS):
        if low > EVEN_FROM * high:
            width[j] = span / (POINTS - 1)
            place[j] = low + j * width[j]
        else:
            place[j] = low + math.exp(j * scale) - 1.0
            width[j] = scale * (place[j] - low + 1.0)
    return POINTS


@borrowing_inlined
def _sum_up(place: FloatArray, weight: FloatArray, count: int) -> tuple[float, float]:
    """Norm the weights in place; mean and variance."""
    total = mean = square = 0.0
    for j in range(count):
        total += weight[j]
        mean += weight[j] * place[j]
    mean /= total
    for j in range(count):
        weight[j] /= total
        square += weight[j] * (place[j] - mean) ** 2
    return mean, square


@borrowing_inlined
def _quantile(level: float, place: FloatArray, width: FloatArray, weight: FloatArray, count: int) -> float:
    """Where the weights reach a level: a point, or between the integers that it stands for."""
    below = 0.0
    for j in range(count):
        if below + weight[j] >= level:
            passed = (level - below) / weight[j] - 0.5
            return float(place[j] + passed * (width[j] - 1.0))
        below += weight[j]
    return float(place[count - 1])


@kernel
def _integrate(known: Known, edges: FloatArray, density: FloatArray, found: FloatArray) -> None:
    """Fill in what `found` has columns for; `density` is the logarithm of the prior's between two `edges`."""
    _integrate_all(known, edges, density, np.empty((6, POINTS)), found)


@borrowing_kernel
def _integrate_all(
    known: Known, edges: FloatArray, density: FloatArray, scratch: FloatArray, found: FloatArray
) -> None:
    place, width, logs = scratch[0], scratch[1], scratch[2]
    learnt, by_log, even = scratch[3], scratch[4], scratch[5]
    has_ends = found.shape[1] > 2
    for f in range(len(known.low)):
        own = found[f]
        if known.low[f] >= known.high[f]:
            own[:] = known.low[f]
            own[1] = 0.0
            if has_ends:
                own[5] = own[7] = 0.0
            continue
        low, high = _range(f, known)
        count = _spread_points(low, high, place, width)
        most, most_learnt = -np.inf, -np.inf
        # Points rise, and so do their bins.
        within = max(np.searchsorted(edges, min(max(place[0], known.low[f]), known.high[f]), side="right") - 1, 0)
        for j in range(count):
            place[j] = min(max(place[j], known.low[f]), known.high[f])
            while within < len(density) - 1 and place[j] >= edges[within + 1]:
                within += 1
            logs[j] = _log_likelihood(place[j], f, known)
            learnt[j] = logs[j] + density[within]
            most, most_learnt = max(most, logs[j]), max(most_learnt, learnt[j])
        for j in range(count):
            learnt[j] = width[j] * math.exp(max(learnt[j] - most_learnt, LEAST))
        own[0], own[1] = _sum_up(place, learnt, count)
        if not has_ends:
            continue
        for j in range(count):
            even[j] = width[j] * math.exp(max(logs[j] - most, LEAST))
            by_log[j] = even[j] / max(place[j], 1.0)
        own[4], own[5] = _sum_up(place, by_log, count)
        own[6], own[7] = _sum_up(place, even, count)
        low, high = _quantile(LOW_TAIL, place, width, by_log, count), _quantile(HIGH_TAIL, place, width, even, count)
        own[2], own[3] = max(math.floor(low), known.low[f]), min(math.ceil(high), known.high[f])
