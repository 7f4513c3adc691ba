"""Intervals of a segment and class, put together: the mean over all their packets, and what could not be used.

With r_i packets received in interval i and r their sum: mean = Σ r_i·m_i / r; the intervals' errors are independent, so
that half-widths add as √Σ (r_i·h_i / r)²; variance = Σ r_i (s_i² + (m_i − mean)²) / r. Intervals without a mean are
left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sojourn.mplane.measurements import Segment, SegmentMeasurement

__all__ = ["SegmentSummary", "summarise"]


@dataclass(frozen=True, kw_only=True)
class SegmentSummary:
    """One segment and class over many intervals; ``void`` counts those of no use by reason."""

    segment: Segment
    dscp: int
    intervals: int
    packets: int
    lost: int
    mean_ns: float | None
    low_ns: float | None
    high_ns: float | None
    std_ns: float | None
    void: Counter[str] = field(default_factory=Counter)


def summarise(measurements: Iterable[SegmentMeasurement]) -> list[SegmentSummary]:
    """A summary per segment and class, sorted; packets and lost are those of intervals that are not void."""
    groups: dict[tuple[Segment, int], list[SegmentMeasurement]] = {}
    for one in measurements:
        groups.setdefault((one.segment, one.dscp), []).append(one)
    return [_summary(segment, dscp, group) for (segment, dscp), group in sorted(groups.items())]


def _summary(segment: Segment, dscp: int, group: list[SegmentMeasurement]) -> SegmentSummary:
    usable = [one for one in group if one.void is None]
    mean, half, deviation = _together(usable)
    return SegmentSummary(
        segment=segment,
        dscp=dscp,
        intervals=len(group),
        packets=sum(one.packets for one in usable),
        lost=sum(one.lost for one in usable),
        mean_ns=mean,
        low_ns=None if mean is None or half is None else mean - half,
        high_ns=None if mean is None or half is None else mean + half,
        std_ns=deviation,
        void=Counter(one.void for one in group if one.void is not None),
    )


def _together(usable: list[SegmentMeasurement]) -> tuple[float | None, float | None, float | None]:
    """Mean, half-width and deviation; each None where an interval has none to give."""
    parts = [(one.packets - one.lost, one.mean_ns, one) for one in usable if one.mean_ns is not None]
    received = sum(count for count, _, _ in parts)
    if not received:
        return None, None, None
    mean = sum(count * value for count, value, _ in parts) / received
    halves = [
        count * (one.high_ns - one.low_ns) / 2
        for count, _, one in parts
        if one.high_ns is not None and one.low_ns is not None
    ]
    squares = [count * (one.std_ns**2 + (value - mean) ** 2) for count, value, one in parts if one.std_ns is not None]
    half = math.hypot(*halves) / received if len(halves) == len(parts) else None
    return mean, half, math.sqrt(sum(squares) / received) if len(squares) == len(parts) else None
