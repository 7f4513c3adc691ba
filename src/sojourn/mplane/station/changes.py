"""Whether a segment changed: its intervals now against its intervals before, in delay, in loss, and in silence.

Delay. The mean of an interval differs from the next one's by more than its own interval says: queues come and go. So
the yardstick is how much interval means varied before, with their correlation from one to the next (an AR(1) course,
its coefficient corrected for the bias of short records) and never less than they vary now, among each other or packet
by packet. Against that Student's t is used, with the degrees of freedom that the record before has.

Loss. The difference of two shares, each with Wilson's interval (Newcombe's way), where counts weigh less the more their
losses come in bursts (Pearson's dispersion over the intervals).

Silence. Intervals whose Start, End or report was lost are void and tell no delay; that all are void now and hardly any
was before tells that nothing passes any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from sojourn.core.arrays import FloatArray
from sojourn.mplane.measurements import SegmentMeasurement
from sojourn.mplane.station.paths import Z95, wilson

__all__ = ["LEAST_BEFORE", "LEAST_NOW", "LEAST_PACKETS", "Change", "delay_change", "is_silent", "loss_change"]

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
        """Significant and told apart from 0 by its own interval, or in every interval now."""
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
    old_means, new_means = _means(old), _means(new)
    correlation = _correlation(old_means)
    one = float(old_means.var(ddof=1))
    by_packets, among = _own_variance(new), float(new_means.var(ddof=1))
    excess = max(by_packets, among) - one
    sure = float(sum(each.packets - each.lost - 1 for each in new)) if by_packets >= among else len(new) - 1.0
    old_weight, new_weight = _inflation(len(old), correlation), _inflation(len(new), correlation)
    # As many intervals say as much of a variance as n (1 − r²) / (1 + r²) independent ones.
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


def _means(measurements: Sequence[SegmentMeasurement]) -> FloatArray:
    return np.array([one.mean_ns for one in measurements], dtype=np.float64)


def _own_variance(measurements: Sequence[SegmentMeasurement]) -> float:
    """The variance of an interval's mean that comes from its packets alone, in the median."""
    return float(np.median([(one.std_ns or 0.0) ** 2 / (one.packets - one.lost) for one in measurements]))


def _correlation(values: FloatArray) -> float:
    """Of an interval's mean with the next one's, not below 0; short records tell too little, by (1 + 3r)/n."""
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
    told = f" ({', '.join(reasons)})" if reasons else ""
    intervals = "interval" if len(kept) == 1 else "intervals"
    return f"{len(kept)} usable {intervals} {when}{told}, {least} are needed"
