"""How sure each delay is: a Gaussian model of all delays of a chunk of the trace, solved as one sparse system.

A visit's delay is its node's centre plus noise; centres (one for a node and a few periods) scatter around the mean
delay of a hop. What ties delays together is stated as observations with a variance: a packet's delays add up to its
time in the network (exactly), a group's to S, each stays within its bounds (the first two moments of the truncated
normal law). Spreads are not those of estimated delays, which are too similar, but come from what is known: a packet's
time in the network less its nodes' centres has the variance of all its delays together. Centres and spreads are found
in rounds, each from the last one's answer. The model sees the estimates only in what remains of S where that may
over-count, so it serves any estimator.

Answers are the mean and the deviation of each delay; deviations by solving for `PROBES` draws of all noise, which errs
by 1 / √(2 PROBES). Deterministic. Cost: about 0.02 ms for a delay, and 2 kB while its chunk is solved.

Intervals contain 95 % of the delays: they come from those means and deviations, with fitted factors.

An interval reaches from its delay's posterior mean so many deviations down and so many up, is cut at the guaranteed
bounds, and is widened to the estimate where that lies outside. Delays are skewed and have heavier tails than the normal
distribution, so the factors are not 1.96: they are quantile regressions (2.5 % and 97.5 %) on how much the trace tells
of the delay, where it lies in its node's distribution and how wide its bounds are, all in units of the node's spread.

Guarantee: within the bounds, and around the estimate, both but for the rounding of a nanosecond; delays that are known
have no width. The coverage of 95 % is measured, not proved: docs/maths/tomography.md has the table.
Cost: about 0.02 ms for a delay; the trace is taken in chunks of `CHUNK_VISITS` visits, so memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu
from scipy.special import ndtr

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, ranges
from sojourn.core.results import Advance
from sojourn.tomography.bounds.constraints import Bounds
from sojourn.tomography.trace import CollectionTrace

NS_PER_MS = 1e6
CHUNK_VISITS = 30_000  # about 60 MB while it is solved; the constants below: seeds 1 to 20, docs/maths/tomography.md
ROUNDS, PROBES, ROUND_PROBES = 3, 32, 8
CENTRE_PERIODS = 4.0  # a node has one centre for so many periods, as in the windows of the estimates
FIRST_CENTRE_SHARE = 0.45  # deviation of centres over that of delays, before the first round
LEAST_CENTRE_SHARE = 0.1
POOLING = 100.0  # a node's variance counts its visits, and so many of the whole trace
TAIL = 4.0  # degrees of freedom: a packet or visit far off has a larger variance
CENTRE_TAIL = 2.0
ARRIVAL_WEIGHT = 0.3  # of an arrival's bounds, most of whose evidence its delays' bounds have already
LARGEST_GROUP = 20  # larger ones give little evidence of each and fill the matrix
ROUNDING_MS, UPPER_MS, REMAINS_SHARE, MEMBER_MS = 0.3, 0.3, 0.7, 0.3  # deviation of S, see `Posteriors._sums`
NARROWEST_MS, SMALLEST_VARIANCE = 1e-3, 0.01


@dataclass(frozen=True)
class Posterior:
    """Of the visit at each place: its delay's mean and deviation, its node's centre and its spread around it; in ms."""

    place: Int64Array
    hops: Int64Array  # of its packet
    mean: FloatArray
    deviation: FloatArray
    centre: FloatArray
    spread: FloatArray


@dataclass(frozen=True)
class _Visits:
    """Visits of whole packets in ms; packets, nodes and centres numbered from 0; `after` and `before` are columns."""

    place: Int64Array
    packet: Int64Array
    node: Int64Array
    centre: Int64Array
    before: Int64Array  # the unknown that the arrival is, or -1
    after: Int64Array
    at_middle: FloatArray  # the delay with both arrivals in the middle of their bounds, which unknowns count from
    least: FloatArray
    most: FloatArray
    estimate: FloatArray
    total: FloatArray  # of each packet
    arrival_width: FloatArray  # of each unknown

    @property
    def unknowns(self) -> int:
        return len(self.arrival_width)

    @property
    def centres(self) -> int:
        return int(self.centre.max()) + 1

    @property
    def hops(self) -> Int64Array:
        return np.asarray(np.bincount(self.packet)[self.packet])

    @property
    def mean(self) -> float:
        """The mean delay of a hop, which is known."""
        return float(self.total.sum() / len(self.place))


@dataclass(frozen=True)
class _Sums:
    """Groups as observations: Σ of the members' delays is about `value`, with a variance."""

    row: Int64Array
    visit: Int64Array
    value: FloatArray
    variance: FloatArray


class Posteriors:
    """Makes the posteriors of a trace's chunks; has its groups by packet."""

    def __init__(self, trace: CollectionTrace, bounds: Bounds, arrival_ns: Int64Array) -> None:
        self._trace, self._bounds, self._arrival = trace, bounds, arrival_ns
        self._born = (trace.t0_ns - trace.t0_ns.min()) // max(int(CENTRE_PERIODS * trace.period_ns), 1)
        self._missing = trace.gaps / (len(trace) + trace.gaps)
        self._group_of = np.full(len(trace), -1, np.int64)
        self._group_of[trace.owner[bounds.groups.last]] = np.arange(len(bounds.groups.last))
        self._number = np.full(len(trace.node), -1, np.int64)

    def of(self, packets: Int64Array) -> Posterior:
        """Of the visits of these packets, one packet after the other, as if they were the whole trace."""
        visits = self._visits(packets)
        overall, known = visits.mean, visits.unknowns
        centre = np.full(len(visits.place), overall)
        if not known:
            nothing = np.zeros(len(centre))
            return Posterior(visits.place, visits.hops, visits.estimate, nothing, centre, nothing)
        pooled, variance = _spreads(visits, centre, centre)
        sums = self._sums(visits, packets, pooled)
        matrix = _matrix(visits, sums)
        centre_variance = np.full(visits.centres, FIRST_CENTRE_SHARE**2 * pooled)
        random = np.random.default_rng(0)
        for remaining in reversed(range(ROUNDS)):
            precision, value = _observations(visits, sums, centre, variance, centre_variance)
            unknown, draws = _solve(matrix, precision, value, random, ROUND_PROBES if remaining else PROBES)
            mean = visits.at_middle + _delays(visits, unknown[:, None])[:, 0]
            moved = unknown[known:]
            centre = overall + moved[visits.centre]
            if remaining:
                pooled, variance = _spreads(visits, centre, mean)
                square = moved**2 + (draws[known:] ** 2).mean(1)
                centre_variance = (CENTRE_TAIL * square.mean() + square) / (CENTRE_TAIL + 1)
                centre_variance = np.maximum(centre_variance, LEAST_CENTRE_SHARE**2 * pooled)
        deviation = np.sqrt((_delays(visits, draws) ** 2).mean(1))
        mean = np.clip(mean, visits.least, visits.most)
        return Posterior(visits.place, visits.hops, mean, deviation, centre, np.sqrt(variance))

    def _visits(self, packets: Int64Array) -> _Visits:
        trace, bounds = self._trace, self._bounds
        lengths = np.diff(trace.start)[packets]
        places, offset = ranges(trace.start[packets], lengths)
        is_visit = offset < np.repeat(lengths - 1, lengths)
        place, packet = places[is_visit], np.repeat(np.arange(len(packets)), lengths - 1)
        _nodes, node = np.unique(trace.node[place], return_inverse=True)
        block = self._born[packets][packet]
        _pairs, centre = np.unique(node.astype(np.int64) * (int(block.max()) + 1) + block, return_inverse=True)
        is_unknown = bounds.high_ns[places] > bounds.low_ns[places]
        column = np.where(is_unknown, np.cumsum(is_unknown) - 1, -1)
        local = np.flatnonzero(is_visit)
        middle = (bounds.low_ns + bounds.high_ns)[places] // 2
        least = bounds.least_ns[place] / NS_PER_MS
        return _Visits(
            place=place,
            packet=packet,
            node=node,
            centre=centre,
            before=column[local],
            after=column[local + 1],
            at_middle=(middle[local + 1] - middle[local]) / NS_PER_MS,
            least=least,
            most=np.maximum(bounds.most_ns[place] / NS_PER_MS, least + NARROWEST_MS),
            estimate=(self._arrival[place + 1] - self._arrival[place]) / NS_PER_MS,
            total=(trace.sink_ns - trace.t0_ns)[packets] / NS_PER_MS,
            arrival_width=(bounds.high_ns - bounds.low_ns)[places[is_unknown]] / NS_PER_MS,
        )

    def _sums(self, visits: _Visits, packets: Int64Array, pooled: float) -> _Sums:
        """Groups whose members all are among the visits, as observations.

        An equation is as good as S's rounding. An upper bound is worth less the more of it remains, the more members
        may have been counted on, and the more packets are missing from the trace that may be in it. A member that is
        not sure may or may not be in it.
        """
        groups = self._bounds.groups
        group = self._group_of[packets]
        group = group[group >= 0]
        group = group[groups.is_used[group] & groups.is_whole[group]]
        counts = np.diff(groups.start)[group]
        entry, _offset = ranges(groups.start[group], counts)
        row = np.repeat(np.arange(len(group)), counts)
        entry, row = entry[~groups.is_out[entry]], row[~groups.is_out[entry]]
        self._number[visits.place] = np.arange(len(visits.place))
        visit = self._number[groups.member[entry]]
        self._number[visits.place] = -1
        size = np.bincount(row, minlength=len(group))
        is_good = (size <= LARGEST_GROUP) & (np.bincount(row[visit < 0], minlength=len(group)) == 0)
        kept, group = is_good[row], group[is_good]
        row, visit, sure = (np.cumsum(is_good) - 1)[row[kept]], visit[kept], groups.is_sure[entry[kept]]
        others, total = size[is_good] - 1, groups.sum_ns[group] / NS_PER_MS
        summed = np.bincount(row, visits.estimate[visit], len(group))
        doubtful = np.bincount(row[~sure], visits.estimate[visit[~sure]] ** 2, len(group))
        is_equation = self._bounds.is_exact & groups.is_closed[group]
        remains = total - summed
        counted_on = (UPPER_MS + REMAINS_SHARE * np.abs(remains) + MEMBER_MS * others) ** 2
        hidden = self._missing / (1 - self._missing) * others * (visits.mean**2 + pooled)
        return _Sums(
            row=row,
            visit=visit,
            value=np.where(is_equation & (doubtful == 0), total, summed + 0.5 * np.clip(remains, -0.6, 5)),
            variance=np.where(is_equation, ROUNDING_MS**2, counted_on + hidden) + doubtful,
        )


def chunks_of(trace: CollectionTrace) -> Iterator[Int64Array]:
    """All packets in chunks of their generation times, of about so many visits each."""
    order = np.argsort(trace.t0_ns, kind="stable")
    visits = np.cumsum(np.diff(trace.start)[order] - 1)
    parts = max(round(int(visits[-1]) / CHUNK_VISITS), 1)
    edges = np.searchsorted(visits, np.arange(1, parts) * (int(visits[-1]) / parts), side="right")
    for packets in np.split(order, edges):
        yield np.sort(packets)


def _spreads(visits: _Visits, centre: FloatArray, mean: FloatArray) -> tuple[float, FloatArray]:
    """The variance of delays around their centres: of all together, and of each visit.

    A node's own share follows the means, which are too similar, scaled up to the packets' totals; the rest grows
    with the node's centre.
    """
    counts = np.bincount(visits.node)
    off = mean - centre
    residual = visits.total - np.bincount(visits.packet, centre)
    pooled = max(float((residual**2).sum() / len(mean)), SMALLEST_VARIANCE)
    own = np.bincount(visits.node, off**2) * max(pooled / max(float((off**2).mean()), 1e-6), 1.0)
    size = np.maximum(centre, 0.1 * visits.mean)
    usual = pooled * size / size.mean()
    variance = (own[visits.node] + POOLING * usual) / (counts[visits.node] + POOLING)
    excess = residual**2 / np.bincount(visits.packet, variance)
    variance *= ((TAIL + np.minimum(excess, 100)) / (TAIL + 1))[visits.packet]
    variance = np.minimum((TAIL * variance + off**2) / (TAIL + 1), 25 * variance)
    return pooled, np.maximum(variance, SMALLEST_VARIANCE)


def _matrix(visits: _Visits, sums: _Sums) -> sparse.csr_matrix:
    """What is observed of the unknowns: arrivals, then centres. Rows as in `_observations`."""
    count, unknowns, centres = len(visits.place), visits.unknowns, visits.centres
    number, one = np.arange(count), np.ones(count)
    arrivals, groups = np.arange(unknowns), len(sums.value)
    after, before = visits.after[sums.visit], visits.before[sums.visit]
    blocks = (
        (np.tile(number, 3), np.r_[visits.after, visits.before, unknowns + visits.centre], np.r_[one, -one, -one]),
        (np.arange(centres), unknowns + np.arange(centres), np.ones(centres)),
        (arrivals, arrivals, np.ones(unknowns)),
        (np.tile(number, 2), np.r_[visits.after, visits.before], np.r_[one, -one]),
        (np.tile(sums.row, 2), np.r_[after, before], np.repeat([1.0, -1.0], len(after))),
    )
    first = np.cumsum([0, count, centres, unknowns, count, groups])
    row = np.concatenate([block[0] + begin for block, begin in zip(blocks, first[:-1], strict=True)])
    column = np.concatenate([block[1] for block in blocks])
    sign = np.concatenate([block[2] for block in blocks])
    is_open: BoolArray = column >= 0
    return sparse.csr_matrix(
        (sign[is_open], (row[is_open], column[is_open])), shape=(int(first[-1]), unknowns + centres)
    )


def _observations(
    visits: _Visits, sums: _Sums, centre: FloatArray, variance: FloatArray, centre_variance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Precision and value of every row: noise, centres, arrivals' bounds, delays' bounds, sums."""
    mean, square = _truncated(centre, np.sqrt(variance), visits.least, visits.most)
    # What the bounds add to the law around the centre, so that both together have the truncated law's moments.
    added = np.maximum(1 / square - 1 / variance, 1e-9)
    middle = (mean / square - centre / variance) / added
    known = np.bincount(sums.row, visits.at_middle[sums.visit], len(sums.value))
    nothing = np.zeros(visits.centres + visits.unknowns)
    arrival = ARRIVAL_WEIGHT / np.maximum(visits.arrival_width, 0.05) ** 2
    return (
        np.concatenate([1 / variance, 1 / centre_variance, arrival, added, 1 / sums.variance]),
        np.concatenate([visits.mean - visits.at_middle, nothing, middle - visits.at_middle, sums.value - known]),
    )


def _truncated(
    centre: FloatArray, spread: FloatArray, least: FloatArray, most: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of a normal law cut off at both ends; flat where those are near, at the nearer one if far."""
    low, high = (least - centre) / spread, (most - centre) / spread
    is_above = low > 0  # mirrored, as the normal law's tail is exact below
    a, b = np.where(is_above, -high, low), np.where(is_above, -low, high)
    inside = np.maximum(ndtr(b) - ndtr(a), 1e-300)
    at_a, at_b = np.exp(-a * a / 2) / np.sqrt(2 * np.pi), np.exp(-b * b / 2) / np.sqrt(2 * np.pi)
    shift = (at_a - at_b) / inside
    square = 1 + (a * at_a - b * at_b) / inside - shift**2
    nearest = np.clip(0, low, high)
    is_far, is_narrow = inside < 1e-200, (high - low < 0.05) | (square < 1e-6)
    shift = np.where(is_far, nearest, np.where(is_above, -shift, shift))
    square = np.where(is_far, 1 / np.maximum(nearest**2, 1), square)
    shift = np.where(is_narrow & ~is_far, (low + high) / 2, np.clip(shift, low, high))
    square = np.minimum(np.where(is_narrow & ~is_far, (high - low) ** 2 / 12, square), 1)
    return np.clip(centre + spread * shift, least, most), spread**2 * np.maximum(square, 1e-6)


def _solve(
    matrix: sparse.csr_matrix, precision: FloatArray, value: FloatArray, random: np.random.Generator, probes: int
) -> tuple[FloatArray, FloatArray]:
    """The unknowns' mean, and draws of their deviations from it (columns), a few at a time to save memory."""
    weight = np.sqrt(precision)
    weighted = sparse.diags(weight) @ matrix
    factors = splu(
        (weighted.T @ weighted).tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    mean = factors.solve(np.asarray(weighted.T @ (weight * value)))
    draws = [
        factors.solve(np.asarray(weighted.T @ random.standard_normal((len(value), ROUND_PROBES))))
        for _batch in range(probes // ROUND_PROBES)
    ]
    return np.asarray(mean), np.concatenate(draws, axis=1)


def _delays(visits: _Visits, unknown: FloatArray) -> FloatArray:
    """Delays from columns of unknowns; an arrival that is known adds nothing."""
    padded = np.concatenate([unknown[: visits.unknowns], np.zeros((1, unknown.shape[1]))])
    return np.asarray(padded[visits.after] - padded[visits.before])


# Quantile regressions over 80 simulated networks (seeds 1000 to 1079); `python -m bench.tomography_fit --write`
# rewrites them. The logarithm of a factor is linear in `features`, here in the same order.
BELOW = (0.255, -0.266, 0.659, 0.067, 0.268)
ABOVE = (-0.111, -0.491, 0.328, 0.466, 0.111)


LEVEL = 0.95
ROUNDING_NS = 1_000
TINY_MS = 1e-9
# Where the factors were fitted; beyond, they stay as they are at the edge.
TELLS, POSITION, WIDTH = (-3.0, 1.0), (-2.0, 4.0), (-2.0, 4.0)


@dataclass(frozen=True)
class Intervals:
    """Of every place: what its delay likely lies within; meaningless at a sink's place."""

    low_ns: Int64Array
    high_ns: Int64Array


def intervals(
    trace: CollectionTrace,
    bounds: Bounds,
    arrival_ns: Int64Array,
    *,
    advance: Advance | None = None,
) -> Intervals:
    """Intervals at `LEVEL` for the delays that these arrivals estimate."""
    estimate = np.diff(arrival_ns, append=arrival_ns[-1])
    low, high = estimate.copy(), estimate.copy()
    is_uncertain = uncertain_visits(trace, bounds)
    believed = bounds.believed or bounds
    posteriors = Posteriors(trace, believed, arrival_ns)
    done = 0
    for packets in chunks_of(trace):
        answer = posteriors.of(packets)
        chosen = is_uncertain[answer.place]
        place = answer.place[chosen]
        likely_low, likely_high = _around(answer, believed)
        low[place] = np.minimum(np.maximum(likely_low[chosen], bounds.least_ns[place]), estimate[place])
        high[place] = np.maximum(np.minimum(likely_high[chosen], bounds.most_ns[place]), estimate[place])
        done += len(packets)
        if advance is not None:
            advance("finding intervals", done / len(trace))
    return Intervals(low, high)


def uncertain_visits(trace: CollectionTrace, bounds: Bounds) -> BoolArray:
    """Which places are visits whose delay is not known: neither straight to the sink nor fixed by bounds."""
    lengths = np.diff(trace.start)
    is_open = bounds.most_ns - bounds.least_ns > ROUNDING_NS
    return np.asarray(trace.is_visit & np.repeat(lengths > 2, lengths) & is_open)


def judge(
    trace: CollectionTrace, bounds: Bounds, likely: Intervals, truth_ns: Int64Array
) -> tuple[float | None, float | None]:
    """The share of uncertain delays that their intervals contain, and the mean width in ms; None without any."""
    visit = np.flatnonzero(uncertain_visits(trace, bounds))
    visit = visit[(truth_ns[visit] >= 0) & (truth_ns[visit + 1] >= 0)]
    if not len(visit):
        return None, None
    delay = truth_ns[visit + 1] - truth_ns[visit]
    low, high = likely.low_ns[visit], likely.high_ns[visit]
    held = (delay >= low - ROUNDING_NS) & (delay <= high + ROUNDING_NS)
    return float(held.mean()), float((high - low).mean() / NS_PER_MS)


def features(answer: Posterior, bounds: Bounds) -> FloatArray:
    """What the factors follow, a row for each visit.

    1; how little evidence the trace has of the delay; where it lies in its node's distribution; the bounds' width;
    whether the packet has two hops, as what one of two delays has too little the other has too much.
    """
    spread = np.maximum(answer.spread, TINY_MS)
    width = (bounds.most_ns - bounds.least_ns)[answer.place] / NS_PER_MS
    columns = (
        np.ones(len(spread)),
        np.clip(np.log(np.maximum(answer.deviation, TINY_MS) / spread), *TELLS),
        np.clip((answer.mean - answer.centre) / spread, *POSITION),
        np.clip(np.log(np.maximum(width, TINY_MS) / spread), *WIDTH),
        (answer.hops == 2).astype(np.float64),
    )
    return np.stack(columns, axis=1)


def _around(answer: Posterior, bounds: Bounds) -> tuple[Int64Array, Int64Array]:
    """The intervals around the means, in ns, before they are cut and widened."""
    found = features(answer, bounds)
    below, above = (np.exp(found @ np.array(factors)) * answer.deviation for factors in (BELOW, ABOVE))
    low = np.floor((answer.mean - below) * NS_PER_MS).astype(np.int64)
    high = np.ceil((answer.mean + above) * NS_PER_MS).astype(np.int64)
    return low, high
