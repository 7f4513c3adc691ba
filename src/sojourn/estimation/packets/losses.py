"""How many packets each flow lost: by cells, by which sampled packets are missing, and by what its group leaves for it.

A flow of loss rate r of which n packets were sampled, l of them missing, lost L = l + B packets, with B binomial of the
N − n others; l of n has probability r^l·(1 − r)^(n − l). Cells say that L is normal around a value, and so does the
group's loss (what both ends counted) less what the other flows of the group are expected to have lost.

**Rates** are distributed as flows' rates are here: weights of rates on a geometric grid, of none and of all, which
maximise the likelihood of all flows' evidence (expectation maximisation). All flows alike, a few that lose all that is
lost, flows that lose everything: the weights tell. That makes L a mixture, a beta-binomial with a free shape.

**Counters** that a flow's packets are spread over count what is missing one lost packet at a time. Losses of rate r put
r·N·a of them on average into a counter that takes the part a of the flow, beside B of the other flows: it is d with
Poisson's probability, and of these d each is the flow's own with probability r·N·a/(r·N·a + B). So its spoiled counters
weigh the rates, and say how many losses it has given each; flows that meet in counters are visited in turn until their
expected losses settle.

A sample's groups, where no counters are, serve as counters that take whole flows.

**Sizes are not certain**, so that only mean and variance of L are known for each rate: it has the distribution with
these of Panjer's class, binomial where N is certain, negative binomial where it is not (or Poisson's between them).
The ends of the interval use the size's moments as its own ends do (`sizes`), so that they hold for flows of all sizes.

Deterministic; O(flows × rates × counters of a flow).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray, Int32Array, Int64Array
from sojourn.core.kernels import borrowing_inlined, borrowing_kernel, inlined, kernel
from sojourn.estimation.learning import KEPT_FLOWS
from sojourn.estimation.normal import normal_below
from sojourn.estimation.packets.evidence import Heard, PacketEvidence, SpoiledCounters, joined, squeezed
from sojourn.estimation.packets.panjer import LARGE_PRODUCT, LEAST, add_masses, log_mass
from sojourn.estimation.packets.sizes import HIGH_TAIL, LOW_TAIL, SizePosterior, learning_groups, smoothed

RATES = 24
LOWEST_RATE, HIGHEST_RATE = 0.01, 0.8  # the lowest as a part of all packets' rate
PASSES = 60
SWEEPS = 25
CHANGED, ROUGHLY = 1e-3, 2e-2  # of all losses
LEAST_STRANGERS = 1e-9
# Numbers of packets up to which every one is looked at; beyond, components are normal.
INTEGERS = 256
NEGLIGIBLE = 1e-7
# Missing packets up to here are multiplied one by one.
FEW_MISSING = 6.0
BISECTIONS = 30
DEVIATIONS = 6.0
# Of whole numbers that are taken for a normal's.
ROUNDING_VARIANCE = 1 / 12


@dataclass(frozen=True, eq=False)
class LossPosterior:
    """Each flow's lost packets: mean, variance, the ends of the interval, and ``sure`` bounds."""

    mean: FloatArray
    variance: FloatArray
    low: FloatArray
    high: FloatArray
    sure: tuple[FloatArray, FloatArray]


class _Known(NamedTuple):
    """Of each flow: bounds, one normal message, sampled packets and those missing; the others' mean and variance.

    ``cell`` and ``part`` are its counters and what they take of it (no columns: there are none).
    """

    low: FloatArray
    high: FloatArray
    value: FloatArray
    precision: FloatArray
    kept: FloatArray
    missing: FloatArray
    others: FloatArray
    variance: FloatArray
    cell: Int32Array
    part: FloatArray

    def at(self, rows: Int64Array) -> _Known:
        low, high, value, precision, kept, missing, others, variance, cell, part = self
        numbers = (column[rows] for column in (low, high, value, precision, kept, missing, others, variance))
        return _Known(*numbers, cell[rows], part[rows])  # type: ignore[call-arg, arg-type]


class _Cells(NamedTuple):
    """What is missing in each counter, and what is expected to be, with its variance beyond chance; the losses that are
    expected of each flow, with theirs."""

    missing: FloatArray
    expected: FloatArray
    doubt: FloatArray
    of_flow: FloatArray
    of_flow_doubt: FloatArray


class _Rates(NamedTuple):
    """Rates, the squares of their widths, their weights, and logarithms of rate and of 1 − rate."""

    rate: FloatArray
    width2: FloatArray
    weight: FloatArray
    log: FloatArray
    log_rest: FloatArray


def loss_posterior(evidence: PacketEvidence, sizes: SizePosterior) -> LossPosterior:
    """The packets that every flow lost."""
    sampled, heard = evidence.sampled, evidence.of_lost
    low, high = _bounds(evidence, sizes)
    if (low == high).all():
        return LossPosterior(low, np.zeros_like(low), low, high, (low, high))
    counters = evidence.counters or _groups(evidence)
    if counters is not None:
        # They say what their messages say, and more.
        heard = heard._replace(precision=np.zeros_like(heard.precision))
    known = _known(evidence, heard, (low, high), sizes, counters)
    overall = _overall_rate(evidence, sizes, low)
    if counters is not None:
        cells = _cells(known, counters.missing, overall)
        rates = _settled(known, cells, overall, learning_groups(evidence, len(low)))
    else:
        none = np.zeros(0)
        cells = _Cells(none, none, none, none, none)
        rates = _learnt(known, cells, evidence, overall)
    if evidence.lost is not None and (evidence.counters is not None or counters is None):
        value, precision = joined(heard, sampled.group, evidence.lost, *_alone(known, cells, rates))
        known = known._replace(value=value, precision=precision)
    found = _answers(known, cells, rates)
    least, most = (
        _answers(known._replace(others=np.maximum(mean - sampled.kept, 0.0), variance=variance), cells, rates)
        for mean, variance in (sizes.least, sizes.most)
    )
    mean = found[:, 0]
    lower, upper = np.minimum(least[:, 2], found[:, 2]), np.maximum(most[:, 3], found[:, 3])
    ends = np.minimum(lower, np.floor(mean)), np.maximum(upper, np.ceil(mean))
    return LossPosterior(mean, found[:, 1], *ends, (low, high))


def _groups(evidence: PacketEvidence) -> SpoiledCounters | None:
    """The sample's groups as counters of whole flows, where all that is missing in them is known and no cell knows
    more."""
    group, lost = evidence.sampled.group, evidence.lost
    if lost is None or lost.noise.any() or evidence.of_lost.precision.any():
        return None
    return SpoiledCounters(group.astype(np.int32)[:, None], np.ones((len(group), 1)), lost.total)


def _known(
    evidence: PacketEvidence,
    heard: Heard,
    bounds: tuple[FloatArray, FloatArray],
    sizes: SizePosterior,
    counters: SpoiledCounters | None,
) -> _Known:
    sampled = evidence.sampled
    others = np.maximum(sizes.mean - sampled.kept, 0.0)
    cell, part = np.zeros((len(others), 0), np.int32), np.zeros((len(others), 0))
    if counters is not None:
        cell, part = counters.cell, counters.part
    return _Known(
        *bounds, heard.value, heard.precision, sampled.kept, sampled.missing, others, sizes.variance, cell, part
    )


def _answers(known: _Known, cells: _Cells, rates: _Rates) -> FloatArray:
    found = np.empty((len(known.low), 4))
    _answer(known, cells, rates, found)
    return found


def _cells(known: _Known, missing: FloatArray, overall: float) -> _Cells:
    """The counters, with every flow's losses expected at the rate of all."""
    of_flow = np.where(known.low == known.high, known.low, overall * (known.others + known.kept))
    kept = known.cell >= 0
    parts = (known.part * of_flow[:, None])[kept]
    expected: FloatArray = np.bincount(known.cell[kept], parts, len(missing)).astype(np.float64)
    return _Cells(missing, expected, np.zeros(len(missing)), of_flow, np.zeros(len(of_flow)))


def _settled(known: _Known, cells: _Cells, overall: float, some: Int64Array) -> _Rates:
    """The likeliest weights, and with them the losses that are expected of each flow, in place.

    Weights go on changing when losses hardly do: then some flows tell them, and in the end all have their losses.
    """
    rates = _first_rates(overall)
    first, everything = KEPT_FLOWS * rates.weight, np.arange(len(known.low))
    for rows, settled, learns in ((everything, ROUGHLY, True), (some, CHANGED, True), (everything, CHANGED, False)):
        for _ in range(SWEEPS):
            tally = first.copy()
            change = _sweep(known, cells, rates, tally, rows)
            if learns:
                tally[1:-1] = smoothed(tally[1:-1])
                rates = rates._replace(weight=tally / tally.sum())
            if change < settled * cells.of_flow[rows].sum():
                break
    return rates


def _bounds(evidence: PacketEvidence, sizes: SizePosterior) -> tuple[FloatArray, FloatArray]:
    """At least the sampled packets that are missing; at most what others than those that arrived can be."""
    sampled, heard = evidence.sampled, evidence.of_lost
    exact = heard.low == heard.high
    low = np.maximum(heard.low, sampled.missing)
    high = np.minimum(heard.high, sizes.high - (sampled.kept - sampled.missing))
    whole = sampled.share >= 1
    low, high = np.where(whole, sampled.missing, low), np.where(whole, sampled.missing, high)
    low, high = np.where(exact, heard.low, low), np.where(exact, heard.low, high)
    if evidence.lost is not None and not evidence.lost.noise.any():
        group, total = sampled.group, evidence.lost.total
        low, high = squeezed(low, np.minimum(high, np.maximum(total[group], low)), group, total)
    return low, np.maximum(high, low)


def _overall_rate(evidence: PacketEvidence, sizes: SizePosterior, low: FloatArray) -> float:
    """Of all packets, roughly: by the groups' totals, else by what samples and cells say."""
    if evidence.sent is not None and evidence.lost is not None:
        lost, sent = float(evidence.lost.total.sum()), float(evidence.sent.total.sum())
    else:
        sampled, heard = evidence.sampled, evidence.of_lost
        lost, sent = float(sampled.missing.sum()), float(sampled.kept.sum())
        if not sent:
            lost, sent = float(np.maximum(np.where(heard.precision > 0, heard.value, low), 0.0).sum()), sizes.mean.sum()
    return min(max(lost / max(sent, 1.0), 1e-6), 0.9)


def _first_rates(overall: float) -> _Rates:
    """All rates around that of all packets, and none and all."""
    between = np.geomspace(LOWEST_RATE * overall, max(HIGHEST_RATE, overall), RATES)
    rate = np.concatenate([[0.0], between, [1.0]])
    with np.errstate(divide="ignore"):
        shape = np.exp(-0.5 * (np.log(rate / overall) / 1.5) ** 2) + 0.02
        shape[0], shape[-1] = shape[1:-1].sum() / 4, shape[1:-1].sum() / 100
        width2 = (rate * math.log(between[1] / between[0])) ** 2 / 12
        width2[0] = width2[-1] = 0.0
        return _Rates(rate, width2, shape / shape.sum(), np.log(rate), np.log1p(-rate))


def _learnt(known: _Known, cells: _Cells, evidence: PacketEvidence, overall: float) -> _Rates:
    """The likeliest weights; whole groups are learnt from, as their flows add up."""
    rates = _first_rates(overall)
    rows = learning_groups(evidence, len(known.low))
    some = known.at(rows)
    group = evidence.sampled.group[rows]
    heard = evidence.of_lost._replace(value=some.value, precision=some.precision)
    first = KEPT_FLOWS * rates.weight
    for _ in range(PASSES):
        one = some
        if evidence.lost is not None:
            mean, variance = _alone(some, cells, rates)
            value, precision = joined(heard, group, evidence.lost, mean, variance)
            one = some._replace(value=value, precision=precision)
        tally = first.copy()
        _add_shares(one, cells, rates, tally)
        tally[1:-1] = smoothed(tally[1:-1])
        moved = tally / tally.sum()
        change = float(np.abs(moved - rates.weight).sum())
        rates = rates._replace(weight=moved)
        if change < 1e-3:
            break
    return rates


def _alone(known: _Known, cells: _Cells, rates: _Rates) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of each flow's losses by its own evidence."""
    found = np.empty((len(known.low), 2))
    _add_up(known, cells, rates, found)
    return found[:, 0], found[:, 1]


class _Mixture(NamedTuple):
    """A flow's losses: the logarithm of each rate's share, then the share, and their mean and variance at it. Before,
    the logarithms of rates' weights, and of each counter that tells of the flow what is missing in it, the part of the
    flow that it takes, what is expected of strangers, the variance of that, and 1/what is expected of all."""

    own: FloatArray
    mean: FloatArray
    variance: FloatArray
    log_weight: FloatArray
    spoiled: FloatArray


@borrowing_inlined
def _gather(f: int, known: _Known, cells: _Cells, mix: _Mixture) -> int:
    """Fill in a flow's counters that miss packets (or its only one); how many these are."""
    is_single, number = known.cell.shape[1] == 1, 0
    for e in range(known.cell.shape[1]):
        c = known.cell[f, e]
        if c >= 0 and (cells.missing[c] > 0 or is_single):
            taken, own = known.part[f, e], mix.spoiled[number]
            own[0], own[1] = cells.missing[c], taken
            own[2] = max(cells.expected[c] - cells.of_flow[f] * taken, 0.0) + LEAST_STRANGERS
            own[3] = max(cells.doubt[c] - cells.of_flow_doubt[f] * taken * taken, 0.0)
            own[4] = 1.0 / (own[2] + cells.of_flow[f] * taken)
            number += 1
    return number


@borrowing_inlined
def _doubt(f: int, k: int, known: _Known, rates: _Rates) -> float:
    """How far the losses at a rate are off as size and rate are not certain, in all counters alike."""
    size = known.others[f] + known.kept[f]
    return float(known.variance[f] * rates.rate[k] ** 2 + size * size * rates.width2[k])


@borrowing_inlined
def _likelihood(f: int, k: int, number: int, known: _Known, rates: _Rates, mix: _Mixture) -> float:
    """The logarithm of what a flow's counters say of a rate, but for what is the same for all rates."""
    mean = rates.rate[k] * (known.others[f] + known.kept[f])
    if known.cell.shape[1] == 1:
        missing, taken, strangers, unsure = mix.spoiled[0, 0], mix.spoiled[0, 1], mix.spoiled[0, 2], mix.spoiled[0, 3]
        both = mean * taken + strangers
        return log_mass(missing, both, both + _doubt(f, k, known, rates) + unsure)
    found, product = -mean, 1.0
    for i in range(number):
        missing, ratio = mix.spoiled[i, 0], (mean * mix.spoiled[i, 1] + mix.spoiled[i, 2]) * mix.spoiled[i, 4]
        if missing > FEW_MISSING:
            found += missing * math.log(ratio)
            continue
        # One logarithm of a product takes less time than the logarithms of its factors.
        for _ in range(int(missing)):
            product *= ratio
        if not 1.0 / LARGE_PRODUCT < product < LARGE_PRODUCT:
            found += math.log(product)
            product = 1.0
    total: float = found + math.log(product)
    return total


@borrowing_inlined
def _weigh_rates(f: int, known: _Known, cells: _Cells, rates: _Rates, mix: _Mixture) -> int:
    """The logarithm of each rate's share by samples and counters; how many counters tell of the flow."""
    lost, arrived = known.missing[f], known.kept[f] - known.missing[f]
    number = _gather(f, known, cells, mix)
    for k in range(len(rates.rate)):
        own = mix.log_weight[k]
        if lost > 0.0:
            own += lost * rates.log[k]
        if arrived > 0.0:
            own += arrived * rates.log_rest[k]
        if known.cell.shape[1] > 0:
            own += _likelihood(f, k, number, known, rates, mix)
        mix.own[k] = own
    return number


@borrowing_inlined
def _fill(f: int, known: _Known, cells: _Cells, rates: _Rates, mix: _Mixture) -> float:
    """What rates, samples and counters say; the number of losses that means are counted from."""
    number = _weigh_rates(f, known, cells, rates, mix)
    has_counters, others = known.cell.shape[1] > 0, known.others[f]
    for k in range(len(rates.rate)):
        rate, doubt = rates.rate[k], _doubt(f, k, known, rates)
        mean = variance = slope = 0.0
        for i in range(number):
            missing, taken, strangers = mix.spoiled[i, 0], mix.spoiled[i, 1], mix.spoiled[i, 2]
            part = rate * (others + known.kept[f]) * taken
            each = missing / (part + strangers)
            own = part * each
            scatter = strangers / (part + strangers)
            mean += own
            slope += taken * each * scatter
            variance += own * scatter + mix.spoiled[i, 3] * (own / (part + strangers)) ** 2
        if has_counters:
            variance += doubt * slope * slope
        else:
            mean = others * rate
            variance = mean * (1.0 - rate) + known.variance[f] * rate * rate + others * others * rates.width2[k]
        mix.mean[k], mix.variance[k] = mean, variance
    return 0.0 if has_counters else known.missing[f]


@borrowing_inlined
def _norm(own: FloatArray) -> None:
    """Shares from their logarithms, in place; all alike where none is possible: evidence that contradicts itself."""
    most = -np.inf
    for k in range(len(own)):
        most = max(most, own[k])
    if most == -np.inf:
        own[:] = 0.0
        most = 0.0
    total = 0.0
    for k in range(len(own)):
        own[k] = math.exp(max(own[k] - most, LEAST)) if own[k] > -np.inf else 0.0
        total += own[k]
    for k in range(len(own)):
        own[k] /= total


@borrowing_inlined
def _weigh(f: int, start: float, known: _Known, mix: _Mixture) -> None:
    """Shares, means and variances given the message or the exact number, rates' numbers taken for normal ones."""
    is_exact = known.low[f] == known.high[f]
    for k in range(len(mix.own)):
        if is_exact:
            number = max(known.low[f] - start, 0.0)
            if known.cell.shape[1] == 0 and mix.own[k] > -np.inf:
                mix.own[k] += log_mass(number, mix.mean[k], mix.variance[k])
            mix.mean[k], mix.variance[k] = number, 0.0
        elif known.precision[f] > 0.0:
            noise = 1.0 / known.precision[f] + ROUNDING_VARIANCE
            total = mix.variance[k] + noise
            off = known.value[f] - start - mix.mean[k]
            mix.own[k] -= 0.5 * (math.log(total) + off * off / total)
            mix.mean[k] += mix.variance[k] / total * off
            mix.variance[k] *= noise / total
    _norm(mix.own)


@inlined
def _new_mixture(known: _Known, rates: _Rates) -> _Mixture:
    count = len(rates.rate)
    spoiled = np.empty((known.cell.shape[1], 5))
    return _Mixture(np.empty(count), np.empty(count), np.empty(count), np.log(rates.weight + 1e-300), spoiled)


@kernel
def _sweep(known: _Known, cells: _Cells, rates: _Rates, tally: FloatArray, rows: Int64Array) -> float:
    """Visit flow after flow with what is expected of the others, and add up rates' shares; how far losses moved."""
    mix = _new_mixture(known, rates)
    change = 0.0
    for f in rows:
        size = known.others[f] + known.kept[f]
        if size <= 0.0:
            continue
        expected = square = 0.0
        if known.low[f] == known.high[f]:
            for k in range(len(rates.rate)):
                mean = size * rates.rate[k]
                mix.own[k] = mix.log_weight[k] + log_mass(max(known.low[f], 0.0), mean, mean * (1.0 - rates.rate[k]))
        else:
            _weigh_rates(f, known, cells, rates, mix)
        _norm(mix.own)
        for k in range(len(rates.rate)):
            tally[k] += mix.own[k]
            expected += mix.own[k] * rates.rate[k] * size
            square += mix.own[k] * rates.rate[k] ** 2 * (size * size + known.variance[f])
        if known.low[f] < known.high[f]:
            moved, wider = expected - cells.of_flow[f], square - expected**2 - cells.of_flow_doubt[f]
            cells.of_flow[f] += moved
            cells.of_flow_doubt[f] += wider
            change += abs(moved)
            for e in range(known.cell.shape[1]):
                if known.cell[f, e] >= 0:
                    cells.expected[known.cell[f, e]] += moved * known.part[f, e]
                    cells.doubt[known.cell[f, e]] += wider * known.part[f, e] ** 2
    return change


@kernel
def _add_up(known: _Known, cells: _Cells, rates: _Rates, found: FloatArray) -> None:
    """Mean and variance of each flow's losses."""
    mix = _new_mixture(known, rates)
    for f in range(len(known.low)):
        low, high = known.low[f], known.high[f]
        found[f, 0], found[f, 1] = low, 0.0
        if low < high:
            start = _fill(f, known, cells, rates, mix)
            _weigh(f, start, known, mix)
            centre = square = 0.0
            for k in range(len(rates.rate)):
                centre += mix.own[k] * mix.mean[k]
                square += mix.own[k] * (mix.variance[k] + mix.mean[k] * mix.mean[k])
            found[f, 0] = min(max(start + centre, low), high)
            found[f, 1] = min(max(square - centre * centre, 0.0), 0.25 * (high - low) ** 2)


@kernel
def _add_shares(known: _Known, cells: _Cells, rates: _Rates, tally: FloatArray) -> None:
    """Add each rate's shares of all flows."""
    mix = _new_mixture(known, rates)
    for f in range(len(known.low)):
        if known.others[f] + known.kept[f] > 0.0:
            start = _fill(f, known, cells, rates, mix)
            _weigh(f, start, known, mix)
            tally += mix.own


@kernel
def _answer(known: _Known, cells: _Cells, rates: _Rates, found: FloatArray) -> None:
    """Mean, variance, low and high of each flow."""
    _find(known, cells, rates, _new_mixture(known, rates), np.empty(INTEGERS + 1), found)


@borrowing_kernel
def _find(known: _Known, cells: _Cells, rates: _Rates, mix: _Mixture, mass: FloatArray, found: FloatArray) -> None:
    for f in range(len(known.low)):
        low, high = known.low[f], known.high[f]
        if low >= high:
            found[f, 0], found[f, 1], found[f, 2], found[f, 3] = low, 0.0, low, low
            continue
        start = _fill(f, known, cells, rates, mix)
        last = min(high - start, _reach(f, start, known, mix))
        if last <= INTEGERS:
            _by_numbers(f, start, int(last), known, mix, mass)
            _sum_up(f, start, int(last), known, mass, found[f])
        else:
            _weigh(f, start, known, mix)
            _by_normals(start, low, high, mix, found[f])


@borrowing_inlined
def _reach(f: int, start: float, known: _Known, mix: _Mixture) -> float:
    """Losses beyond `start` that are out of all likelihood."""
    most = -np.inf
    for k in range(len(mix.own)):
        most = max(most, mix.own[k])
    reach = 0.0
    for k in range(len(mix.own)):
        if mix.own[k] - most > math.log(NEGLIGIBLE):
            mean, variance = mix.mean[k], mix.variance[k]
            reach = max(reach, mean + DEVIATIONS * math.sqrt(variance) + 10.0 * max(1.0, variance / (mean + 1e-9)))
    if known.precision[f] > 0.0:
        above = known.value[f] - start + DEVIATIONS / math.sqrt(known.precision[f]) + 3.0
        reach = min(reach, max(above, 3.0))
    last: float = math.ceil(max(reach, known.low[f] - start))
    return last


@borrowing_inlined
def _by_numbers(f: int, start: float, last: int, known: _Known, mix: _Mixture, mass: FloatArray) -> None:
    """The probability of each number of losses beyond `start`."""
    most = -np.inf
    for k in range(len(mix.own)):
        most = max(most, mix.own[k])
    mass[: last + 1] = 0.0
    for k in range(len(mix.own)):
        if mix.own[k] - most < math.log(NEGLIGIBLE):
            continue
        share, mean = math.exp(mix.own[k] - most), mix.mean[k]
        if mean <= 1e-12:
            mass[0] += share
            continue
        add_masses(share, mean, max(mix.variance[k], 1e-3 * mean), mass[: last + 1])
    for number in range(last + 1):
        lost = start + number
        if lost < known.low[f] or lost > known.high[f]:
            mass[number] = 0.0
        elif known.precision[f] > 0.0:
            mass[number] *= math.exp(max(-0.5 * known.precision[f] * (lost - known.value[f]) ** 2, LEAST))


@borrowing_inlined
def _sum_up(f: int, start: float, last: int, known: _Known, mass: FloatArray, found: FloatArray) -> None:
    """Mean, variance and quantiles from the masses of numbers."""
    low, high = known.low[f], known.high[f]
    total = mean = square = 0.0
    for number in range(last + 1):
        total += mass[number]
        mean += mass[number] * number
        square += mass[number] * number * number
    if total <= 0.0:
        # The evidence contradicts itself: all that is left are the bounds.
        found[0] = min(max(known.value[f], low), high)
        found[1], found[2], found[3] = 0.25 * (high - low) ** 2, low, high
        return
    mean /= total
    found[0], found[1] = start + mean, max(square / total - mean * mean, 0.0)
    found[2], found[3] = low, high
    below, is_above = 0.0, False
    for number in range(last + 1):
        below += mass[number] / total
        if not is_above and below > LOW_TAIL:
            found[2], is_above = start + number, True
        if below >= HIGH_TAIL:
            found[3] = start + number
            break


@borrowing_inlined
def _by_normals(start: float, low: float, high: float, mix: _Mixture, found: FloatArray) -> None:
    """Mean, variance and quantiles of a mixture of normals within the bounds."""
    own, mean, variance = mix.own, mix.mean, mix.variance
    centre = square = 0.0
    for k in range(len(own)):
        centre += own[k] * mean[k]
        square += own[k] * (variance[k] + mean[k] * mean[k])
    found[0], found[1] = min(max(start + centre, low), high), max(square - centre * centre, 0.0)
    for number, level in enumerate((LOW_TAIL, HIGH_TAIL)):
        below, above = low - 1.0, high + 1.0
        for _ in range(BISECTIONS):
            middle = 0.5 * (below + above)
            reached = 0.0
            for k in range(len(own)):
                if own[k] > NEGLIGIBLE:
                    away = (middle - start - mean[k]) / math.sqrt(variance[k] + ROUNDING_VARIANCE)
                    reached += own[k] * normal_below(away)[0]
            if reached < level:
                below = middle
            else:
                above = middle
        found[2 + number] = min(max(math.floor(below) if number == 0 else math.ceil(above), low), high)
