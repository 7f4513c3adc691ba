"""Which segment made a path slow: its segments' changes now against before, ranked by what they explain.

The path's change is the sum of its segments' changes (by their shares of the traffic), so each explains a part of it.
A segment is named when its change of delay or loss is significant (`Change.is_clear`) and not below the least change of
interest. All tests of one diagnosis together give a false alarm at the rate `false_alarms`, by default 1 %: each is
made at that rate divided by their number (Bonferroni).

Delay. The mean of an interval differs from the next one's by more than its own interval says: queues come and go. So
the yardstick is how much interval means varied before, with their autocorrelation (an AR(1) process, its coefficient
corrected for the bias of short records) and never less than they vary now, among each other or packet by packet.
Against that Student's t is used, with the degrees of freedom of the record before.

Loss. The difference of two shares, each with Wilson's interval (Newcombe's method), where counts weigh less the more
their losses come in bursts (Pearson's dispersion over the intervals).

Silence. Intervals whose Start, End or report was lost are void and have no delay; that all are void now and hardly any
was before shows that nothing passes any more.

Verdicts: ``changed``, ``nothing changed``, ``cleared`` (an earlier window had changed, this one has not), ``too thin``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.special import ndtri, stdtrit

from sojourn.core.arrays import FloatArray
from sojourn.core.errors import ParameterError
from sojourn.core.units import format_duration, plural
from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.mplane.planning.paths import PathSegments
from sojourn.mplane.station.paths import Z95, by_segment, reached_ns, wilson

LEAST_BEFORE, LEAST_NOW = 6, 2
# Packets that an interval's mean has to rest on.
LEAST_PACKETS = 5
_MOST_CORRELATION = 0.9
_LOST_WORDS = ("lost", "no report", "not sent")


@dataclass(frozen=True)
class Change:
    """A change with its 95 % interval, and whether it is beyond what chance does at the rate that was asked for.

    `is_unusual` is the same by what chance did before alone; `is_apart` that every single interval now is beyond it.
    """

    value: float
    low: float
    high: float
    variance: float
    freedom: float
    is_significant: bool
    is_unusual: bool = False
    is_apart: bool = False

    @property
    def is_clear(self) -> bool:
        """Significant and different from 0 by its own interval, or in every interval now."""
        return self.is_apart or (self.is_significant and not self.low <= 0 <= self.high)


def usable(measurements: Sequence[SegmentMeasurement]) -> list[SegmentMeasurement]:
    """The intervals whose mean rests on enough packets."""
    return [
        one
        for one in measurements
        if one.void is None and one.mean_ns is not None and one.packets - one.lost >= LEAST_PACKETS
    ]


def delay_change(
    before: Sequence[SegmentMeasurement], now: Sequence[SegmentMeasurement], *, false_alarms: float
) -> Change | str:
    """The change of the mean delay in ns; or why the evidence is too thin."""
    old, new = usable(before), usable(now)
    if len(old) < LEAST_BEFORE or len(new) < LEAST_NOW:
        return _thin(before, old, now, new)
    old_means, new_means = (np.array([each.mean_ns for each in some], np.float64) for some in (old, new))
    correlation = _correlation(old_means)
    one = float(old_means.var(ddof=1))
    # The variance of an interval's mean that comes from its packets alone, in the median; and among intervals.
    by_packets = float(np.median([(each.std_ns or 0.0) ** 2 / (each.packets - each.lost) for each in new]))
    among = float(new_means.var(ddof=1))
    excess = max(by_packets, among) - one
    sure = float(sum(each.packets - each.lost - 1 for each in new)) if by_packets >= among else len(new) - 1.0
    old_weight, new_weight = _inflation(len(old), correlation), _inflation(len(new), correlation)
    # So many correlated intervals estimate a variance as well as n (1 − r²) / (1 + r²) independent ones.
    freedom = max(len(old) * (1 - correlation**2) / (1 + correlation**2) - 1, 1.0)
    # Of the intervals before, with those now if they vary as before; and by how much they vary more.
    parts = [(one * (old_weight / len(old) + new_weight / len(new)), freedom)]
    parts += [(excess / len(new), sure)] if excess > 0 else []
    variance = sum(part for part, _ in parts)
    shown = variance**2 / sum(part**2 / degrees for part, degrees in parts) if variance > 0 else freedom
    value = float(new_means.mean() - old_means.mean())
    half = _student(0.975, shown) * math.sqrt(variance)
    # Without a change the variance is at least as well known as it was before.
    reach = _student(1 - false_alarms / 2, max(freedom, shown)) * math.sqrt(variance)
    usual = _student(1 - false_alarms / 2, freedom)
    single = usual * math.sqrt(one * (1 + old_weight / len(old)))
    nearest = float(np.abs(new_means - old_means.mean()).min())
    one_way = bool((new_means > old_means.mean()).all() or (new_means < old_means.mean()).all())
    return Change(
        value,
        value - half,
        value + half,
        variance,
        shown,
        abs(value) > reach,
        is_unusual=abs(value) > usual * math.sqrt(parts[0][0]),
        is_apart=one_way and nearest > single,
    )


def _correlation(values: FloatArray) -> float:
    """Of an interval's mean with the next one's, not below 0; short records are biased downwards by (1 + 3r)/n."""
    centred = values - values.mean()
    total = float(centred @ centred)
    if total == 0:
        return 0.0
    found = float(centred[1:] @ centred[:-1]) / total
    return min(max(found + (1 + 3 * max(found, 0.0)) / len(values), 0.0), _MOST_CORRELATION)


def _inflation(count: int, correlation: float) -> float:
    """By how much the variance of a mean of `count` intervals exceeds that of independent ones."""
    lags = np.arange(1, count)
    return float(1 + 2 * np.sum((1 - lags / count) * correlation**lags))


def _student(share: float, freedom: float) -> float:
    return float(stdtrit(freedom, share))


def loss_change(
    before: Sequence[SegmentMeasurement], now: Sequence[SegmentMeasurement], *, false_alarms: float
) -> Change | str:
    """The change of the share of packets lost; or why the evidence is too thin."""
    old, new = ([one for one in some if one.void is None and one.packets] for some in (before, now))
    if len(old) < LEAST_BEFORE or len(new) < LEAST_NOW:
        return _thin(before, old, now, new)
    old_lost, old_sent = sum(one.lost for one in old), sum(one.packets for one in old)
    new_lost, new_sent = sum(one.lost for one in new), sum(one.packets for one in new)
    bursts = max(_dispersion(old), _dispersion(new))
    value = new_lost / new_sent - old_lost / old_sent

    def bounds(z: float) -> tuple[float, float]:
        was = wilson(old_lost / bursts, old_sent / bursts, z=z)
        is_now = wilson(new_lost / bursts, new_sent / bursts, z=z)
        below = math.hypot(is_now.value - is_now.low, was.high - was.value)
        return value - below, value + math.hypot(is_now.high - is_now.value, was.value - was.low)

    low, high = bounds(Z95)
    sure_low, sure_high = bounds(float(ndtri(1 - false_alarms / 2)))
    variance = ((high - low) / 2 / Z95) ** 2
    return Change(value, low, high, variance, math.inf, not sure_low <= 0 <= sure_high)


def _dispersion(measurements: Sequence[SegmentMeasurement]) -> float:
    """How much more than by chance the losses of intervals differ, at least 1: Pearson's χ² by its degrees."""
    lost = np.array([one.lost for one in measurements], dtype=np.float64)
    sent = np.array([one.packets for one in measurements], dtype=np.float64)
    share = lost.sum() / sent.sum()
    if share in (0.0, 1.0):
        return 1.0
    squares = np.sum((lost - sent * share) ** 2 / (sent * share * (1 - share)))
    return max(float(squares) / (len(measurements) - 1), 1.0)


def is_silent(before: Sequence[SegmentMeasurement], now: Sequence[SegmentMeasurement], *, false_alarms: float) -> bool:
    """Whether messages are lost in every interval now, and so seldom before that this is no chance."""
    lost = [_is_lost(one) for one in now]
    if len(lost) < LEAST_NOW or not all(lost) or len(before) < LEAST_BEFORE:
        return False
    rate = (sum(_is_lost(one) for one in before) + 0.5) / (len(before) + 1)
    return bool(rate ** len(lost) < false_alarms)


def _is_lost(measurement: SegmentMeasurement) -> bool:
    return measurement.void is not None and any(word in measurement.void.lower() for word in _LOST_WORDS)


def _thin(
    before: Sequence[SegmentMeasurement],
    old: Sequence[SegmentMeasurement],
    now: Sequence[SegmentMeasurement],
    new: Sequence[SegmentMeasurement],
) -> str:
    """Why there is too little to compare."""
    when, some, kept, least = (
        ("now", now, new, LEAST_NOW) if len(new) < LEAST_NOW else ("before", before, old, LEAST_BEFORE)
    )
    void = sum(one.void is not None for one in some)
    reasons = [f"{void} void"] if void else []
    few = len(some) - void - len(kept)
    reasons += [f"{few} with too few packets"] if few else []
    detail = f" ({', '.join(reasons)})" if reasons else ""
    intervals = "interval" if len(kept) == 1 else "intervals"
    return f"{len(kept)} usable {intervals} {when}{detail}, {least} are needed"


_HALF = 0.5
_SCALES = (1, 2, 4)


class Verdict(StrEnum):
    """What a diagnosis comes to."""

    CHANGED = "changed"
    NOTHING = "nothing changed"
    CLEARED = "cleared"
    TOO_THIN = "too thin"


@dataclass(frozen=True)
class Window:
    """A range of time; intervals that lie entirely within it belong to it."""

    from_ns: int
    to_ns: int

    def of(self, measurements: Iterable[SegmentMeasurement]) -> list[SegmentMeasurement]:
        return [one for one in measurements if one.start_ns >= self.from_ns and one.end_ns <= self.to_ns]


@dataclass(frozen=True, kw_only=True)
class DiagnosisPlan:
    """What is compared: `intervals` up to `now_ns` with the window `before`, each found in the data if not given.

    Changes of delay below `least_share` of the path's delay before or below `least_ns` (the larger counts), and of
    loss below `least_loss`, are not reported.
    """

    now_ns: int | None = None
    before: Window | None = None
    intervals: int = 3
    dscp: int = 0
    least_share: float = 0.05
    least_ns: int = 0
    least_loss: float = 0.001
    false_alarms: float = 0.01

    def __post_init__(self) -> None:
        if not 2 <= self.intervals <= 1000 or not 0 < self.false_alarms < 1:
            raise ParameterError("2 to 1000 intervals and a rate of false alarms below 1 can be asked for")


@dataclass(frozen=True)
class SegmentChange:
    """One segment: what of the path's change it explains, its own change, and what that rests on."""

    segment: Segment
    weight: float
    delay: Change | None
    loss: Change | None
    is_silent: bool
    evidence: str
    share: float | None = None

    @property
    def contribution(self) -> float:
        return self.weight * self.delay.value if self.delay else 0.0


@dataclass(frozen=True)
class Diagnosis:
    """The verdict, in which windows, and the segments, those that explain most first."""

    path: PathSegments
    verdict: Verdict
    summary: str
    before: Window
    now: Window
    delay: Change | None
    segments: tuple[SegmentChange, ...]
    cause: SegmentChange | None = None
    notes: tuple[str, ...] = ()


Measured = Mapping[Segment, Sequence[SegmentMeasurement]]


def diagnose(path: PathSegments, measurements: Iterable[SegmentMeasurement], plan: DiagnosisPlan) -> Diagnosis:
    """Compare now with before, and with the windows between, to find what changed and what has cleared."""
    found, _end_to_end = by_segment(measurements, path, dscp=plan.dscp)
    before, now = _windows(found, plan)
    result = _compare(path, found, before, now, plan, plan.false_alarms)
    if result.verdict is not Verdict.NOTHING:
        return result
    earlier = _last_change(path, found, before, now, plan)
    if earlier is None or earlier.cause is None:
        return result
    ago = (now.from_ns - earlier.now.to_ns) / 1e9
    return replace(
        result,
        verdict=Verdict.CLEARED,
        cause=earlier.cause,
        summary=f"cleared: {earlier.cause.segment} had changed until {ago:.3g} s before ({earlier.summary})",
    )


def new_verdicts(diagnoses: Iterable[Diagnosis]) -> Iterator[Diagnosis]:
    """Of diagnoses one after another the first, and those that come to another path, verdict or cause."""
    last = None
    for result in diagnoses:
        told = (result.path, result.verdict, result.cause.segment if result.cause else None)
        if told != last:
            yield result
        last = told


def _windows(found: Measured, plan: DiagnosisPlan) -> tuple[Window, Window]:
    """Before and now; by default now ends with the newest interval that all segments have reached, and before is the
    first half of what precedes."""
    every = [one for some in found.values() for one in some]
    length = plan.intervals * max((one.end_ns - one.start_ns for one in every), default=0)
    end = plan.now_ns if plan.now_ns is not None else reached_ns(found, patience_ns=length)
    now = Window(end - length, end)
    if plan.before is not None:
        # What is before cannot be now as well.
        apart = max(now.from_ns, plan.before.to_ns) if plan.before.to_ns <= end else now.from_ns
        return plan.before, Window(apart, end)
    first = min((one.start_ns for one in every), default=now.from_ns)
    return Window(first, first + int(max(now.from_ns - first, 0) * _HALF)), now


def _last_change(
    path: PathSegments, found: Measured, before: Window, now: Window, plan: DiagnosisPlan
) -> Diagnosis | None:
    """The latest window between before and now that had clearly changed.

    Windows of several lengths are looked at, as a longer change shows better in a longer one. They overlap by half;
    the rate of false alarms is shared by as many as fit side by side.
    """
    step = (now.to_ns - now.from_ns) // plan.intervals
    space = now.from_ns - before.to_ns
    lengths = [scale * plan.intervals * step for scale in _SCALES if 0 < scale * plan.intervals * step <= space]
    tests = sum(space // length for length in lengths)
    latest: Diagnosis | None = None
    for length in lengths:
        for start in range(now.from_ns - length, before.to_ns - 1, -max(length // 2 // step, 1) * step):
            if latest is not None and start + length <= latest.now.to_ns:
                break
            window = Window(start, start + length)
            result = _compare(path, found, before, window, plan, plan.false_alarms / tests)
            if result.verdict is Verdict.CHANGED:
                latest = result
                break
    return latest


def _compare(
    path: PathSegments, found: Measured, before: Window, now: Window, plan: DiagnosisPlan, false_alarms: float
) -> Diagnosis:
    each = false_alarms / (3 * len(path.shares))
    changes = [
        _change(segment, weight, before.of(found[segment]), now.of(found[segment]), each)
        for segment, weight in path.shares.items()
    ]
    delay = _path_change(changes)
    total = sum(change.contribution for change in changes)
    ranked = sorted(changes, key=lambda change: -abs(change.contribution))
    segments = tuple(replace(one, share=one.contribution / total if one.delay and total else None) for one in ranked)
    least = max(float(plan.least_ns), plan.least_share * _delay_of(path, found, before))
    causes = [one for one in segments if _is_reportable(one, least, plan.least_loss)]
    cause = _main_cause(causes)
    thin = tuple(f"{one.segment}: {one.evidence}" for one in changes if one.delay is None and not one.is_silent)
    if cause is not None:
        return Diagnosis(path, Verdict.CHANGED, _describe(cause, delay), before, now, delay, segments, cause, thin)
    if thin:
        more = {0: "", 1: "; so is one more segment"}.get(len(thin) - 1, f"; so are {len(thin) - 1} more segments")
        summary = f"too thin: {thin[0]}{more}"
        return Diagnosis(path, Verdict.TOO_THIN, summary, before, now, delay, segments, None, thin)
    # Segments that are not as they were, though it is unclear by how much.
    unusual = (one for one in segments if one.delay and one.delay.is_unusual and abs(one.contribution) >= least)
    unclear = next(unusual, None)
    if unclear is not None and unclear.delay is not None:
        bounds = f"95 %: {_signed(unclear.delay.low)} to {_signed(unclear.delay.high)}"
        summary = (
            f"too thin: {unclear.segment} by {_signed(unclear.delay.value)}, but its intervals now differ ({bounds})"
        )
        return Diagnosis(path, Verdict.TOO_THIN, summary, before, now, delay, segments)
    summary = f"nothing changed by {format_duration(least)} or more, beyond what chance does"
    return Diagnosis(path, Verdict.NOTHING, summary, before, now, delay, segments)


def _change(
    segment: Segment,
    weight: float,
    before: Sequence[SegmentMeasurement],
    now: Sequence[SegmentMeasurement],
    false_alarms: float,
) -> SegmentChange:
    delay = delay_change(before, now, false_alarms=false_alarms)
    loss = loss_change(before, now, false_alarms=false_alarms)
    silent = is_silent(before, now, false_alarms=false_alarms)
    if isinstance(delay, str):
        evidence = f"nothing passes: {now[-1].void}" if silent else delay
    else:
        old, new = usable(before), usable(now)
        packets = f"{plural(sum(one.packets for one in new), 'packet')} in {plural(len(new), 'interval')} now"
        evidence = f"{packets}, {sum(one.packets for one in old)} in {len(old)} before"
        void = sum(one.void is not None for one in (*before, *now))
        evidence += f", {void} void" if void else ""
    return SegmentChange(
        segment,
        weight,
        delay if isinstance(delay, Change) else None,
        loss if isinstance(loss, Change) else None,
        silent,
        evidence,
    )


def _path_change(changes: Sequence[SegmentChange]) -> Change | None:
    """The sum of the segments' changes; None where one is not known."""
    value = variance = spread = 0.0
    for change in changes:
        if change.delay is None:
            return None
        value += change.contribution
        part = change.weight**2 * change.delay.variance
        variance += part
        spread += part**2 / change.delay.freedom
    freedom = variance**2 / spread if spread else 1.0
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance)
    return Change(value, value - half, value + half, variance, freedom, abs(value) > half)


def _delay_of(path: PathSegments, found: Measured, window: Window) -> float:
    """The path's mean delay in a window, as far as it is known."""
    total = 0.0
    for segment, weight in path.shares.items():
        means = [one.mean_ns for one in usable(window.of(found[segment]))]
        total += weight * sum(mean or 0.0 for mean in means) / max(len(means), 1)
    return total


def _is_reportable(change: SegmentChange, least_ns: float, least_loss: float) -> bool:
    delay, loss = change.delay, change.loss
    is_slower = delay is not None and delay.is_clear and abs(change.contribution) >= least_ns
    is_lossier = loss is not None and loss.is_clear and abs(loss.value) >= least_loss
    return is_slower or is_lossier or change.is_silent


def _main_cause(causes: Sequence[SegmentChange]) -> SegmentChange | None:
    """Silence before delay before loss; among changes of delay the one that explains most."""
    if not causes:
        return None
    silent = [one for one in causes if one.is_silent]
    slower = [one for one in causes if one.delay is not None and one.delay.is_clear]
    return (silent or slower or sorted(causes, key=lambda one: -abs(one.loss.value if one.loss else 0.0)))[0]


def _describe(cause: SegmentChange, path: Change | None) -> str:
    if cause.is_silent:
        return f"nothing passes {cause.segment} any more"
    parts = []
    if cause.delay is not None and cause.delay.is_clear:
        change = cause.delay
        share = f", {cause.share:.0%} of the path's change" if cause.share is not None and path is not None else ""
        bounds = f"(95 %: {_signed(change.low)} to {_signed(change.high)})"
        parts.append(f"delay {_signed(change.value)} {bounds}{share}")
    if cause.loss is not None and cause.loss.is_clear:
        parts.append(f"loss {cause.loss.value:+.2%} (95 %: {cause.loss.low:+.2%} to {cause.loss.high:+.2%})")
    return f"{cause.segment}: {' and '.join(parts)}"


def _signed(value_ns: float) -> str:
    return f"{'-' if value_ns < 0 else '+'}{format_duration(abs(value_ns))}"
