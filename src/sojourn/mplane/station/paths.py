"""The monitoring station: a path's delay, deviation and loss from measurements of its segments.

Means of segments add up to the mean of the path. Where segments are independent their variances add, and so do those
of the means; loss is what not every segment delivers, 1 − Π (1 − loss). An interval around a sum takes from each
segment the distance between its value and its bound, squared and added, each side by itself (Zou and Donner's way to
recover variances), so that skewed intervals stay skewed. Over equal-cost paths all of it is weighed by the traffic's
shares (`planning.paths`).

A segment that was not measured, or only in void intervals, leaves the answer incomplete, and is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sojourn.core.estimates import Estimate
from sojourn.mplane.measurements import Segment, SegmentKind, SegmentMeasurement
from sojourn.mplane.planning.paths import PathSegments, pieces

Z95 = 1.959963984540054
LATEST_NS = 10_000_000_000


@dataclass(frozen=True)
class SegmentState:
    """One segment over the intervals of a window; `reason` is why there is no delay."""

    segment: Segment
    intervals: int
    void: int
    packets: int
    lost: int
    mean: Estimate | None
    variance: float | None
    loss: Estimate | None
    reason: str | None = None


@dataclass(frozen=True)
class PathState:
    """A path from the states of its segments; None where a segment is missing, and `missing` has the reasons.

    `end_to_end` is measured by probes over the whole path, `difference` how far the sum of segments lies above it.
    """

    path: PathSegments
    states: tuple[SegmentState, ...]
    mean: Estimate | None
    std_ns: float | None
    loss: Estimate | None
    missing: tuple[str, ...]
    end_to_end: SegmentState | None = None
    difference: Estimate | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def is_consistent(self) -> bool | None:
        """Whether the path's own probes agree with the sum; None where it is unknown."""
        return None if self.difference is None else self.difference.contains(0.0)


def by_segment(
    measurements: Iterable[SegmentMeasurement], path: PathSegments, *, dscp: int = 0
) -> tuple[dict[Segment, list[SegmentMeasurement]], list[SegmentMeasurement]]:
    """Measurements of a class by the path's segments, in time order; and those of probes over the whole path.

    A prober that does not know what lies between names a virtual link by its ends: where no link joins these, it is
    the one virtual link of the path that does.
    """
    named: dict[Segment, Segment] = {segment: segment for segment in path.segments}
    ends: dict[tuple[str, str], list[Segment]] = {}
    for segment in path.segments:
        if segment.kind is SegmentKind.VIRTUAL_LINK:
            ends.setdefault((segment.hops[0], segment.hops[-1]), []).append(segment)
    for (first, last), virtual in ends.items():
        if len(virtual) == 1:
            named.setdefault(Segment.between(first, last), virtual[0])
    whole = {Segment.between(path.source, path.target)} | {Segment.between(*hops) for hops, _ in path.paths}
    found: dict[Segment, list[SegmentMeasurement]] = {segment: [] for segment in path.segments}
    end_to_end: list[SegmentMeasurement] = []
    for one in sorted(measurements, key=lambda one: one.start_ns):
        if one.dscp != dscp:
            continue
        if one.segment in named:
            found[named[one.segment]].append(one)
        elif one.segment in whole:
            end_to_end.append(one)
    return found, end_to_end


def reached_ns(found: Mapping[Segment, Sequence[SegmentMeasurement]], *, patience_ns: int = 0) -> int:
    """When the newest interval ends that all segments have reached; 0 where there is none.

    Routers report some seconds later than probers. A segment that nothing has come of for longer than that, and than
    `patience_ns`, is not waited for.
    """
    newest = [max(one.end_ns for one in some) for some in found.values() if some]
    return min((end for end in newest if end >= max(newest) - max(patience_ns, LATEST_NS)), default=0)


# What comes later than this after its interval is no longer waited for.
LATE_NS = 60_000_000_000


class RecentSegments:
    """Measurements as they come, without reading all of them again: a baseline, and those of the last `keep_ns`.

    `read` gives those whose intervals begin in a range of time. An interval that was incomplete is replaced.
    """

    def __init__(
        self, read: Callable[[int, int], list[SegmentMeasurement]], baseline: tuple[int, int] | None, *, keep_ns: int
    ) -> None:
        self._read, self._baseline, self._keep_ns = read, baseline or (0, 0), keep_ns
        self._rows: dict[tuple[Segment, int, str, int], SegmentMeasurement] = {}
        self._read_ns: int | None = None

    def rows(self, now_ns: int) -> list[SegmentMeasurement]:
        """All that there is at a time, after one more reading."""
        oldest = now_ns - self._keep_ns
        since = min(oldest, self._baseline[0]) if self._baseline[1] else oldest
        fresh = self._read(max(since, 0) if self._read_ns is None else self._read_ns - LATE_NS, 2**63 - 1)
        self._read_ns = now_ns
        self._rows.update({(one.segment, one.dscp, one.method, one.start_ns): one for one in fresh})
        first, last = self._baseline
        self._rows = {
            place: one for place, one in self._rows.items() if first <= one.start_ns < last or one.start_ns >= oldest
        }
        return list(self._rows.values())


def segment_state(segment: Segment, measurements: Sequence[SegmentMeasurement]) -> SegmentState:
    """Intervals pooled: each counts the same, as they are equally long."""
    usable = [one for one in measurements if one.void is None]
    void = len(measurements) - len(usable)
    packets, lost = sum(one.packets for one in usable), sum(one.lost for one in usable)
    timed = [one for one in usable if one.mean_ns is not None and one.low_ns is not None and one.high_ns is not None]
    mean, variance, reason = None, None, None
    if timed:
        mean = _mean_of(timed, sum(one.packets - one.lost for one in timed))
        centre = mean.value
        spread = [(one.std_ns or 0.0) ** 2 + ((one.mean_ns or 0.0) - centre) ** 2 for one in timed]
        variance = sum(spread) / len(spread)
    else:
        reason = _why_nothing(measurements, usable)
    loss = wilson(lost, packets) if packets else None
    return SegmentState(segment, len(usable), void, packets, lost, mean, variance, loss, reason)


def _mean_of(timed: Sequence[SegmentMeasurement], samples: int) -> Estimate:
    means = [one.mean_ns or 0.0 for one in timed]
    below = math.sqrt(sum((m - (one.low_ns or 0.0)) ** 2 for m, one in zip(means, timed, strict=True))) / len(timed)
    above = math.sqrt(sum(((one.high_ns or 0.0) - m) ** 2 for m, one in zip(means, timed, strict=True))) / len(timed)
    value = sum(means) / len(means)
    return Estimate(value, value - below, value + above, samples, timed[0].method)


def _why_nothing(measurements: Sequence[SegmentMeasurement], usable: Sequence[SegmentMeasurement]) -> str:
    if not measurements:
        return "not measured"
    if not usable:
        return f"void in all {len(measurements)} intervals ({measurements[-1].void})"
    if sum(one.packets for one in usable) == 0:
        return "no packets"
    return "too few packets for an interval" if any(one.packets > one.lost for one in usable) else "every packet lost"


def wilson(lost: float, packets: float, *, z: float = Z95) -> Estimate:
    """A share with Wilson's interval; counts need not be whole.

    >>> wilson(0, 100).high < 0.04
    True
    """
    share = lost / packets
    spread = z * math.sqrt(share * (1 - share) / packets + (z / (2 * packets)) ** 2) / (1 + z * z / packets)
    centre = (share + z * z / (2 * packets)) / (1 + z * z / packets)
    low, high = max(0.0, min(centre - spread, share)), min(1.0, max(centre + spread, share))
    return Estimate(share, low, high, int(packets), "count", unit="share")


def path_state(
    path: PathSegments,
    measurements: Mapping[Segment, Sequence[SegmentMeasurement]],
    end_to_end: Sequence[SegmentMeasurement],
) -> PathState:
    """Put a path together from the measurements of its segments, all of one window of time."""
    states = tuple(segment_state(segment, measurements[segment]) for segment in path.segments)
    known = {state.segment: state for state in states}
    missing = tuple(f"{state.segment}: {state.reason}" for state in states if state.reason)
    mean = _sum(states, path.shares)
    std = _deviation(path, known)
    loss = _loss(path, known)
    whole = segment_state(Segment.between(path.source, path.target), end_to_end) if end_to_end else None
    difference = _difference(mean, whole.mean) if mean and whole and whole.mean else None
    notes = ("shares of equal-cost paths are taken to be even at every router",) if len(path.paths) > 1 else ()
    return PathState(path, states, mean, std, loss, missing, whole, difference, notes)


def _sum(states: Sequence[SegmentState], shares: Mapping[Segment, float]) -> Estimate | None:
    value = below = above = 0.0
    samples: list[int] = []
    for state in states:
        if state.mean is None:
            return None
        share = shares[state.segment]
        value += share * state.mean.value
        below += (share * (state.mean.value - state.mean.low)) ** 2
        above += (share * (state.mean.high - state.mean.value)) ** 2
        samples.append(state.mean.samples)
    return Estimate(value, value - math.sqrt(below), value + math.sqrt(above), min(samples), "sum of segments")


def _deviation(path: PathSegments, known: Mapping[Segment, SegmentState]) -> float | None:
    """Of a packet's delay over the path: the mixture of the paths, each the sum of its segments."""
    first = second = 0.0
    for hops, share in path.paths:
        parts = [known[piece] for piece in pieces(hops, path.upgraded)]
        if any(part.mean is None or part.variance is None for part in parts):
            return None
        mean = sum(part.mean.value for part in parts if part.mean)
        first += share * mean
        second += share * (sum(part.variance or 0.0 for part in parts) + mean**2)
    return math.sqrt(max(second - first**2, 0.0))


def _loss(path: PathSegments, known: Mapping[Segment, SegmentState]) -> Estimate | None:
    """1 − Π (1 − loss) over each path; distances to the bounds are carried over to first order and added squared."""
    value = below = above = 0.0
    samples: list[int] = []
    for hops, share in path.paths:
        parts = [known[piece].loss for piece in pieces(hops, path.upgraded)]
        losses = [part for part in parts if part is not None]
        if len(losses) < len(parts):
            return None
        delivered = math.prod(1 - loss.value for loss in losses)
        value += share * (1 - delivered)
        for loss in losses:
            others = delivered / (1 - loss.value) if loss.value < 1 else 0.0
            below += (share * others * (loss.value - loss.low)) ** 2
            above += (share * others * (loss.high - loss.value)) ** 2
            samples.append(loss.samples)
    low, high = max(value - math.sqrt(below), 0.0), min(value + math.sqrt(above), 1.0)
    return Estimate(value, min(low, value), max(high, value), min(samples), "segments", unit="share")


def _difference(one: Estimate, other: Estimate) -> Estimate:
    value = one.value - other.value
    below = math.hypot(one.value - one.low, other.high - other.value)
    above = math.hypot(one.high - one.value, other.value - other.low)
    return Estimate(value, value - below, value + above, min(one.samples, other.samples), "difference")
