"""Clocks followed: how far the receiver's clock is from the sender's in every run, within bounds that hold.

The receiver's clock reads θ more than the sender's. A packet that travels to the receiver bounds θ from above by its
raw delay, one that travels back from below; nothing is assumed of delays but that they are not negative. Of every run
the smallest raw delays are kept (`smallest`), so that a bound takes no more than reading those:

- in the run itself, with clocks whose rates differ by no more than `MAX_SKEW_PPM`;
- from the runs around it as well, up to `REACH_NS` away, where some straight line fits them all: it gives the range of
  rates, by which a bound is carried from its packet to the run. Where none fits (a clock was set, or wandered), the
  run's own count; one that has packets of one direction alone takes the bounds of those before or after it, carried at
  any rate that a clock may have.

Clocks that are set are no guess where points tell their leads (`segments.fleet.leads`): times are put on those of the
last run first, on which θ only drifts, and what a run's own leads differ by is added to its θ in the end. Leads are of
one count: runs before and after a machine was started anew are followed apart (`Stretch`). Of runs that
do not tell, the bounds have to hold for all of the run in time: where one direction has no packets in more than a
quarter of it, before or after its others, those nearest outside have to agree with it.

What two kernels say of their own clocks (`KernelClock`, where both are kept in step) bounds θ too; both are combined
where they agree, and packets have the word where not. If the bounds of a run contradict each other, or its points say
so, a clock was set during it, and its delays are unknown. If there is no bound from one side, θ is not known: delays
are relative to the clocks if that is so of all runs, and unknown if it is so of some.

The correction is 0 where that fits all runs, else the middle of the bounds, carried along the common line so that what
varies over time is not the bounds' own chance.
Cost: O(pairs) for each run. Moon, Skelly and Towsley, INFOCOM 1999, for the hulls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.matching.clock.correction import MAX_SKEW_PPM, TimedPairs
from sojourn.matching.clock.lines import Corridor, lower_hull
from sojourn.segments.fleet.leads import Kernels, Leads, Steering, was_set

BLOCKS = 8
# No packet is on its way for longer: then clocks are apart, and one of them was never set.
LONGEST_NS = 3_600_000_000_000
REACH_NS = 120_000_000_000
# Of a run's time, how much may be without packets of a direction at either end: a step there moves its mean by as much.
UNCOVERED = 0.25
_STEEPEST = MAX_SKEW_PPM * 1e-6
_ANY_RATE = -_STEEPEST, _STEEPEST
BY_PACKETS, BY_KERNELS, BY_BOTH = "packets both ways", "the kernels' synchronisation", "packets and kernels"
UNKNOWN = "unknown: no packets travel back, and the kernels' clocks are not both synchronised"
WAS_SET = "a clock was set meanwhile"
CONTRADICTED = "packets of the two directions contradict each other: a clock was set meanwhile"
NOT_FOLLOWED = "nothing travelled back for minutes"


@dataclass(frozen=True, slots=True)
class ClockAt:
    """θ during a run: the correction and its bounds; None where a bound is not known, or the clock was set.

    ``set_ns`` is the part of it by which clocks were set between this run and the last.
    """

    offset_ns: float
    low_ns: float | None
    high_ns: float | None
    source: str
    skew_ppm: float = 0.0
    set_ns: int = 0

    @property
    def is_known(self) -> bool:
        return self.low_ns is not None and self.high_ns is not None

    @property
    def was_set(self) -> bool:
        return self.source in (WAS_SET, CONTRADICTED)

    @property
    def tells_delays(self) -> bool:
        """Whether delays of this run can be put beside those of the others."""
        return not self.was_set and self.source != NOT_FOLLOWED

    @property
    def uncertainty_ns(self) -> float | None:
        """How far the offset may be off at most."""
        if self.low_ns is None or self.high_ns is None:
            return None
        return max(self.offset_ns - self.low_ns, self.high_ns - self.offset_ns)


@dataclass(frozen=True, slots=True)
class RunFrame:
    """When a run was, by the sender's clock, and what the two kernels said of theirs."""

    first_ns: int
    last_ns: int
    kernels: Kernels = (None, None)

    @property
    def middle_ns(self) -> int:
        return self.first_ns + (self.last_ns - self.first_ns) // 2

    def on(self, leads: Leads | None) -> RunFrame:
        """The same run by the sender's clock as it would have been on these leads."""
        if leads is None:
            return self
        by_ns, steering = np.full(2, leads.since(self.kernels).sender_ns), leads.steering(self.kernels)
        if steering is not None:
            ends = np.array([self.first_ns, self.last_ns])
            by_ns = by_ns + np.rint(steering.of_end(0, ends)).astype(np.int64)
        return RunFrame(self.first_ns - int(by_ns[0]), self.last_ns - int(by_ns[1]), self.kernels)


def smallest(pairs: TimedPairs, *, sign: int = 1, blocks: int = BLOCKS) -> TimedPairs:
    """Of each of some stretches of equal time, the packet with the smallest raw delay (largest, if `sign` is −1)."""
    if len(pairs) <= blocks:
        return pairs
    first, last = int(pairs.sent_ns.min()), int(pairs.sent_ns.max())
    block = (pairs.sent_ns - first) * blocks // (last - first + 1)
    order = np.lexsort((sign * pairs.raw_delay_ns, block))
    rows = order[np.flatnonzero(np.diff(block[order], prepend=-1))]
    return TimedPairs(pairs.sent_ns[rows], pairs.received_ns[rows])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Runs, oldest first, between which neither machine was started anew, and the packets of both directions.

    Pairs are on `leads` (`leads.on_leads`), the runs' own times as they were stored; `backward` pairs have the same two
    clocks' readings as `forward` ones.
    """

    runs: Sequence[RunFrame]
    forward: TimedPairs
    backward: TimedPairs
    leads: Leads | None = None

    def set_by(self) -> list[int]:
        """By how much clocks were set between each run and the one that has the leads."""
        moved = [Leads(0, 0) if self.leads is None else self.leads.since(run.kernels) for run in self.runs]
        return [by.receiver_ns - by.sender_ns for by in moved]

    def bounds(self) -> list[_Bounds]:
        ends = _sorted(self.forward), _sorted(self.backward)
        found = []
        for run, by_ns in zip(self.runs, self.set_by(), strict=True):
            steering = None if self.leads is None else self.leads.steering(run.kernels)
            bounds = _Bounds.of(run.on(self.leads), *ends, steering=steering)
            found.append(bounds.moved(by_ns).steered(run.middle_ns, steering))
        return found

    def least_raw_ns(self) -> float:
        return float(self.forward.raw_delay_ns.min()) if len(self.forward) else 0.0


def follow(
    runs: Sequence[RunFrame], forward: TimedPairs, backward: TimedPairs, leads: Leads | None = None
) -> list[ClockAt]:
    """θ of each run of one stretch."""
    return follow_all([Stretch(runs, forward, backward, leads)])[0]


def follow_all(stretches: Sequence[Stretch]) -> list[list[ClockAt]]:
    """θ of each run of each stretch; corrections are such that all runs can be put beside each other."""
    bounds = [one for stretch in stretches for one in stretch.bounds()]
    least = [stretch.least_raw_ns() for stretch in stretches for _ in stretch.runs]
    kernels = [_kernels(run) for stretch in stretches for run in stretch.runs]
    clocks = iter(_corrected(bounds, kernels, least))
    return [[replace(next(clocks), set_ns=by_ns) for by_ns in stretch.set_by()] for stretch in stretches]


def _sorted(pairs: TimedPairs) -> TimedPairs:
    order = np.argsort(pairs.sent_ns, kind="stable")
    return TimedPairs(pairs.sent_ns[order], pairs.received_ns[order])


def _between(pairs: TimedPairs, first_ns: int, last_ns: int) -> TimedPairs:
    rows = slice(*np.searchsorted(pairs.sent_ns, [first_ns, last_ns + 1]).tolist())
    return TimedPairs(pairs.sent_ns[rows], pairs.received_ns[rows])


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The bounds of θ by packets (infinite: none), the middle of the common line and its slope.

    ``set_ns`` is what was added to them for clocks that were set; ``was_set`` says that one was within the run.
    """

    low: float
    high: float
    middle: float
    slope: float
    set_ns: int = 0
    was_set: bool = False

    def moved(self, by_ns: int) -> _Bounds:
        """The bounds of a θ that is larger."""
        if not by_ns:
            return self
        return replace(self, low=self.low + by_ns, high=self.high + by_ns, middle=self.middle + by_ns, set_ns=by_ns)

    @classmethod
    def of(
        cls, run: RunFrame, forward: TimedPairs, backward: TimedPairs, *, steering: Steering | None = None
    ) -> _Bounds:
        if was_set(run.kernels):
            return cls(-math.inf, math.inf, 0.0, 0.0, was_set=True)
        own = _between(forward, run.first_ns, run.last_ns), _between(backward, run.first_ns, run.last_ns)
        low, high = _carried(run.middle_ns, *own, _ANY_RATE)
        if math.isfinite(high - low) and Leads.of(run.kernels) is None:
            low, high = _covering(run, (forward, backward), own)
            if math.isinf(high - low):
                return cls(low, high, 0.0, 0.0)
        around = _around(run, forward, REACH_NS, REACH_NS), _around(run, backward, REACH_NS, REACH_NS)
        slopes = _common_slopes(run.middle_ns, *around) if low <= high else None
        if slopes is not None:
            wide_low, wide_high = _carried(run.middle_ns, *around, slopes)
            if max(low, wide_low) <= min(high, wide_high):
                low, high = max(low, wide_low), min(high, wide_high)
                return cls(low, high, (low + high) / 2, sum(slopes) / 2).during(run, slopes, steering)
        if math.isinf(high - low):
            low, high = _by_neighbours(run, forward, backward, own[0])
        # By rates of the run's own packets: no line fits those around, or there are none of one direction.
        rates = _common_slopes(run.middle_ns, *own) or _ANY_RATE
        return cls(low, high, (low + high) / 2, 0.0).during(run, rates, steering)

    def steered(self, middle_ns: int, steering: Steering | None) -> _Bounds:
        """The bounds of a θ by clocks that were steered, amid a run, of one by the machines' oscillators."""
        if steering is None or not math.isfinite(self.high - self.low):
            return self
        by_ns = steering.apart(middle_ns, middle_ns + round(self.middle))
        low, high, middle = (one + by_ns for one in (self.low, self.high, self.middle))
        return replace(self, low=low, high=high, middle=middle)

    def during(self, run: RunFrame, rates: tuple[float, float], steering: Steering | None) -> _Bounds:
        """The bounds of θ at any time of a run, of those amid it: no packet need have passed there."""
        if self.low > self.high:
            return self
        length_ns = run.last_ns - run.first_ns
        if steering is None:
            reach = max(map(abs, rates)) * length_ns / 2
            return replace(self, low=self.low - reach, high=self.high + reach)
        # What an oscillator is off is what its count is steered by, the other way round: both have to be added first.
        changes = [rate * length_ns + steering.change_ns for rate in rates]
        unlike = max(map(abs, rates)) * steering.unlike_ns
        reach = (max(map(abs, changes)) + unlike) / 2 + steering.bend_ns
        slope = self.slope + steering.change_ns / max(length_ns, 1)
        return replace(self, low=self.low - reach, high=self.high + reach, slope=slope)


def _covering(
    run: RunFrame, ends: tuple[TimedPairs, TimedPairs], own: tuple[TimedPairs, TimedPairs]
) -> tuple[float, float]:
    """The bounds by a run's own packets, with those nearest outside where they leave too much of its time uncovered.

    None if nothing is outside, and the other direction's packets there are not as those beside them.
    """
    low, high = _carried(run.middle_ns, *own, _ANY_RATE)
    found = list(own)
    for way, side in product((0, 1), (0, -1)):
        edge_ns = int(own[way].sent_ns[side])
        open_ns = run.last_ns - edge_ns if side else edge_ns - run.first_ns
        if open_ns <= UNCOVERED * (run.last_ns - run.first_ns):
            continue
        beside = (run.last_ns + 1, run.last_ns + REACH_NS) if side else (run.first_ns - REACH_NS, run.first_ns - 1)
        outside = _between(ends[way], *beside)
        if len(outside):
            row = slice(0, 1) if side else slice(-1, None)
            joined = [(getattr(found[way], name), getattr(outside, name)[row]) for name in ("sent_ns", "received_ns")]
            found[way] = TimedPairs(*map(np.concatenate, joined))
            continue
        other = own[1 - way]
        if _leaps(other, other.sent_ns > edge_ns if side else other.sent_ns < edge_ns, high - low):
            return -math.inf, math.inf
    return _carried(run.middle_ns, found[0], found[1], _ANY_RATE)


def _leaps(pairs: TimedPairs, rows: BoolArray, room_ns: float) -> bool:
    """Whether some packets' delays are further from the range of the others' than the bounds leave room for."""
    some, others = pairs.raw_delay_ns[rows], pairs.raw_delay_ns[~rows]
    if not len(some) or not len(others):
        return False
    return bool(some.min() < others.min() - room_ns or some.max() > others.max() + room_ns)


def _around(run: RunFrame, pairs: TimedPairs, before_ns: int, after_ns: int) -> TimedPairs:
    return _between(pairs, run.first_ns - before_ns, run.last_ns + after_ns)


def _by_neighbours(run: RunFrame, forward: TimedPairs, backward: TimedPairs, own: TimedPairs) -> tuple[float, float]:
    """The bounds of a run that has packets of one direction alone: by those before it and after it, at any rate.

    Where these contradict each other, a clock was set between them: then those of the side count whose smallest delay
    is nearer to the run's own.
    """
    sides = []
    before, after = (run.first_ns - REACH_NS, run.first_ns - 1), (run.last_ns + 1, run.last_ns + REACH_NS)
    for reach, beside in (((REACH_NS, 0), before), ((0, REACH_NS), after)):
        ends = _around(run, forward, *reach), _around(run, backward, *reach)
        low, high = _carried(run.middle_ns, *ends, _ANY_RATE)
        if low <= high:
            sides.append((_apart(own, _between(forward, *beside)), low, high))
    joined = max((low for _, low, _ in sides), default=-math.inf), min((high for *_, high in sides), default=math.inf)
    if joined[0] <= joined[1]:
        return joined
    return min(sides)[1:]


def _apart(own: TimedPairs, others: TimedPairs) -> float:
    """How far the smallest raw delays of some packets are from those of others."""
    if not len(own) or not len(others):
        return math.inf
    return abs(float(own.raw_delay_ns.min() - others.raw_delay_ns.min()))


def _carried(at_ns: int, forward: TimedPairs, backward: TimedPairs, slopes: tuple[float, float]) -> tuple[float, float]:
    """The bounds of θ at a time, carried there from packets while θ changes at a rate between two slopes."""
    high, low = math.inf, -math.inf
    if len(forward):
        high = float((forward.raw_delay_ns + _most_change(at_ns - forward.sent_ns, slopes)).min())
    if len(backward):
        low = float((backward.raw_delay_ns + _least_change(at_ns - backward.sent_ns, slopes)).max())
    return low, high


def _most_change(ahead_ns: Int64Array, slopes: tuple[float, float]) -> FloatArray:
    return np.asarray(np.maximum(ahead_ns * slopes[0], ahead_ns * slopes[1]))


def _least_change(ahead_ns: Int64Array, slopes: tuple[float, float]) -> FloatArray:
    return np.asarray(np.minimum(ahead_ns * slopes[0], ahead_ns * slopes[1]))


def _common_slopes(at_ns: int, forward: TimedPairs, backward: TimedPairs) -> tuple[float, float] | None:
    """The rates of the straight lines that fit between both directions; None if there is no such line."""
    if not len(forward) or not len(backward):
        return None
    above, below = _hull(at_ns, forward, 1), _hull(at_ns, backward, -1)
    corridor = Corridor(below, above, _STEEPEST)
    return corridor.slopes if corridor.width(corridor.best_slope) >= 0 else None


def _hull(at_ns: int, pairs: TimedPairs, sign: int) -> tuple[FloatArray, FloatArray]:
    x = (pairs.sent_ns - at_ns).astype(np.float64)
    y = pairs.raw_delay_ns.astype(np.float64)
    rows = lower_hull(x, sign * y)
    return x[rows], y[rows]


def _kernels(run: RunFrame) -> tuple[float, float] | None:
    """The bounds of θ that two synchronised kernels give."""
    one, other = run.kernels
    if one is None or other is None or not (one.synchronised and other.synchronised):
        return None
    error = float(one.error_ns + other.error_ns)
    return -error, error


def _corrected(
    bounds: list[_Bounds], kernels: list[tuple[float, float] | None], least_raw_ns: list[float]
) -> list[ClockAt]:
    joined = [_joined(*both) for both in zip(bounds, kernels, strict=True)]
    known = [one for one in joined if one.is_known]
    if known:
        # Beside corrected delays, those that still hold both clocks would be taken for the network's.
        joined = [one if one.is_known or one.was_set else replace(one, source=NOT_FOLLOWED) for one in joined]
    in_step = all((one.low_ns or 0.0) <= 0.0 <= (one.high_ns or 0.0) for one in known)
    if known and in_step:
        return [replace(one, offset_ns=0.0) for one in joined]
    if known:
        return joined
    # Bounded from above alone: times are moved, all by the same, if delays would be negative otherwise, or hours.
    apart = [0.0 if 0.0 <= least <= LONGEST_NS else least for least in least_raw_ns]
    return [replace(one, offset_ns=by + its.set_ns) for one, by, its in zip(joined, apart, bounds, strict=True)]


def _joined(packets: _Bounds, kernels: tuple[float, float] | None) -> ClockAt:
    low, high = packets.low, packets.high
    if low > high or packets.was_set:
        return ClockAt(0.0, None, None, WAS_SET if packets.was_set else CONTRADICTED)
    skew = packets.slope * 1e6
    is_bounded = math.isfinite(high - low)
    if kernels is not None:
        both = max(low, kernels[0]), min(high, kernels[1])
        if both[0] <= both[1]:
            source = BY_BOTH if is_bounded else BY_KERNELS
            return ClockAt((both[0] + both[1]) / 2, *both, source, skew)
    if is_bounded:
        return ClockAt(packets.middle, low, high, BY_PACKETS, skew)
    return ClockAt(0.0, None, None, UNKNOWN)
