"""Clocks: how far the receiver's clock is from the sender's, how sure that is, its correction, and all of it in words.

The receiver's clock reads θ(C) more than the sender's when it reads C; θ is a line (offset and skew) plus
rare steps. A packet's raw delay is then d + θ for one that travels to the receiver and θ − d for one that
travels back, with d ≥ 0. Nothing else is assumed about delays when there is traffic both ways:

- **both directions**: θ lies under the lower hull of one cloud and over the upper hull of the other. The
  set of such lines gives hard bounds of offset and skew; the estimate runs in the middle between the hulls,
  with the mean slope of the two directions' least-area lines.
- **one direction**: a constant cannot be told from a constant delay, so the offset is not identifiable
  (``uncertainty_ns`` is None); the skew is that of the least-area line under all points.

``auto`` corrects what the data contradicts, and only that:

=================  ==========================================================================
both directions    the skew if no constant θ fits, or if `floor_trend` finds the same
                   rate in both; the offset unless θ = 0 fits
one direction      the skew if `floor_trend` finds a rate (`Trend.is_rate`) and |skew| ≤ 500 ppm;
                   then, if delays are still negative, the smallest offset that lifts them to 0
=================  ==========================================================================

Steps (`find_steps`) seen both ways are corrected; seen one way only they are reported. Where no line fits between both
directions although steps are taken out, the clock is unknown: ``uncertainty_ns`` is None, a slope counts only if it
halves what contradicts a constant, and times are corrected only if that removes three quarters of what contradicts
synchronous clocks. It is unknown as well where both floors change as a clock would make them, but not sharply.

Cost: O(packets) after sorting by time. Moon, Skelly and Towsley, INFOCOM 1999, for the least-area line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.core.units import format_duration, parse_duration
from sojourn.matching.clock.lines import Corridor, Trend, floor_trend, line_under, lower_hull
from sojourn.matching.clock.steps import (
    MOST_CHANGE_BLOCKS,
    ClockStep,
    common_change,
    confirmed_steps,
    find_steps,
    floor_changes,
)

MAX_SKEW_PPM = 500.0  # what NTP's own frequency correction is limited to (RFC 5905)
NOTHING_SEEN = "No packet was seen at both points, so nothing is known about the clocks."
NOT_CORRECTED = "Times are left as captured"


def both_directions(
    *,
    offset_ns: float,
    doubt_ns: float,
    skew_ppm: float,
    agree: bool,
    shortfall_ns: float,
    steps: int,
    described: bool = True,
    hidden_ns: float = 0.0,
) -> str:
    """What the delays of both directions say about the receiver's clock; `described` if a line is corrected.

    `hidden_ns` is the size of a change that looks like a step of the clock but cannot be told when it was.
    """
    doubt = format_duration(doubt_ns)
    ahead = f"{format_duration(abs(offset_ns))} {'ahead' if offset_ns >= 0 else 'behind'}"
    rate = _rate(skew_ppm) if skew_ppm else ""
    if agree:
        said = f"Both directions agree with synchronous clocks (to within {doubt}); nothing is corrected."
    elif shortfall_ns > 0:
        below = format_duration(shortfall_ns / 2)
        said = (
            f"No clock of constant rate makes all delays positive: some stay {below} below 0, because "
            "the clock wandered or was set by more than the smallest delays, when and by how much is unknown. "
        )
        said += (
            f"The best line is corrected: the receiver's clock is about {ahead}{' and ' if rate else ''}{rate}."
            if described
            else f"{NOT_CORRECTED}; delays are wrong by amounts that change."
        )
    else:
        said = f"From the smallest delays of both directions the receiver's clock is {ahead}"
        said += " at some time" if hidden_ns else f", ± {doubt}"
        said += f" in the middle of the capture, and {rate}." if rate else "; it shows no skew."
    if hidden_ns:
        change = format_duration(abs(hidden_ns))
        said += (
            f" The smallest delays change by about {change} in opposite senses, as if the clock was set; the scatter "
            "of delays hides when, so this is left in them and how far the clock is off is unknown."
        )
    if steps:
        said += f" {_count(steps, 'step')} of the clock, seen in both directions, taken out."
    return said


def one_direction(*, drift_ppm: float, lift_ns: float, steps: int, is_unsteady: bool = False) -> str:
    """What the delays of one direction say; `drift_ppm` is 0 when it is not significant, or not steady."""
    said = [
        "Traffic in one direction only: a constant clock offset cannot be told from a constant delay, so all "
        "delays may be wrong by the same unknown amount."
    ]
    if drift_ppm and abs(drift_ppm) <= MAX_SKEW_PPM:
        said.append(
            f"From the drift of the smallest delays the receiver's clock {_rate(drift_ppm)}; this is "
            "corrected, and the first packet keeps its delay."
        )
    elif drift_ppm:
        said.append(
            f"The smallest delays drift by {drift_ppm:+.3g} ppm, more than a clock does ({MAX_SKEW_PPM:g} ppm): "
            "taken as a real change of delay and not corrected."
        )
    if is_unsteady:
        said.append(
            "The smallest delays change, but not at a steady rate: whether the delay did, or a clock that was set, is "
            "unknown, and nothing of it is corrected."
        )
    if lift_ns:
        moved = format_duration(abs(lift_ns))
        said.append(f"Captured delays were negative; times are moved by {moved} so that the smallest is 0.")
    if steps:
        said.append(
            f"The smallest delays show {_count(steps, 'jump')} from one packet to the next: the clock was "
            "set or the route changed; one direction cannot tell which, and it is left in the delays."
        )
    return " ".join(said)


def _rate(skew_ppm: float) -> str:
    return f"runs {abs(skew_ppm):.3g} ppm {'fast' if skew_ppm > 0 else 'slow'}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def explain_negative(count: int, least_ns: float, *, uncertainty_ns: float | None, corrected: bool) -> str:
    """Why delays below 0 are still there; empty when there are none."""
    if count == 0:
        return ""
    share = f"{_count(count, 'delay')} {'is' if count == 1 else 'are'}"
    if not corrected:
        why = "the receiver's clock is behind the sender's and is not corrected"
    elif uncertainty_ns is not None and -least_ns <= uncertainty_ns:
        why = "the clock's offset is uncertain by more than that"
    else:
        why = "the clocks moved against each other in a way that the correction does not describe"
    return f"{share} negative (down to {format_duration(least_ns)}): {why}."


STEPS_APART_NS = 2_000_000_000
CHANGES_APART = 4 / MOST_CHANGE_BLOCKS  # of the capture
_STEEPEST = MAX_SKEW_PPM * 1e-6
# Where no line fits: the share of what contradicts a constant that may be left for a slope to count, and the share of
# what contradicts synchronous clocks that may be left for times to be corrected at all.
DESCRIBED_BY_SLOPE, DESCRIBED_BY_LINE = 0.5, 0.25


class _Kind(StrEnum):
    AUTO = "auto"
    NONE = "none"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class ClockMode:
    """What to do about clocks: estimate and correct, leave alone, or subtract a known offset."""

    kind: str = _Kind.AUTO
    offset_ns: int = 0

    def reversed(self) -> ClockMode:
        """The same request with the two observation points exchanged."""
        return replace(self, offset_ns=-self.offset_ns)


def parse_clock(text: str) -> ClockMode:
    """A clock mode from ``auto``, ``none`` or ``offset=DURATION`` (how far the receiver is ahead).

    >>> parse_clock("offset=-2.5ms")
    ClockMode(kind='offset', offset_ns=-2500000)
    """
    kind, equals, value = text.strip().partition("=")
    if kind.lower() in (_Kind.AUTO, _Kind.NONE) and not equals:
        return ClockMode(str(_Kind(kind.lower())))
    if kind.lower() == _Kind.OFFSET and value:
        return ClockMode(str(_Kind.OFFSET), parse_duration(value, where="--clock"))
    raise ParameterError(f"{text!r} is not a clock mode", where="--clock", action="use auto, none or offset=DURATION")


@dataclass(frozen=True, slots=True)
class ClockReading:
    """θ: how much more the receiver's clock reads than the sender's, as a function of its reading."""

    reference_ns: int
    level_ns: float = 0.0
    slope: float = 0.0
    steps: tuple[ClockStep, ...] = ()

    def at(self, received_ns: Int64Array, sent_ns: Int64Array | None = None) -> Int64Array:
        """θ in whole nanoseconds at readings of the receiver's clock."""
        jumps = np.zeros(len(received_ns), np.int64)
        for step in self.steps:
            jumps[step.has_happened(received_ns, sent_ns)] += step.jump_ns
        level = round(self.level_ns)
        if self.slope == 0.0:
            return jumps + level
        since = (received_ns - jumps - self.reference_ns).astype(np.float64)
        drift: Int64Array = np.rint(since * self.slope + (self.level_ns - level)).astype(np.int64)
        return jumps + level + drift


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """The receiver's clock against the sender's, and what `correct` does about it.

    ``offset_ns`` is the receiver's lead at ``reference_ns`` (the middle of the capture), true to within
    ``uncertainty_ns``; None means that it is not bounded. ``skew_ppm`` is how much faster the receiver's
    clock runs, 0 where that is not significant; its interval stands beside it. ``fitted`` is the line that
    explains the delays best, ``applied`` what is taken out of them.
    """

    offset_ns: float
    skew_ppm: float
    uncertainty_ns: float | None
    both_directions: bool
    steps: tuple[ClockStep, ...]
    explanation: str
    reference_ns: int
    skew_low_ppm: float
    skew_high_ppm: float
    fitted: ClockReading
    applied: ClockReading

    @property
    def corrected(self) -> bool:
        return self.applied != ClockReading(self.reference_ns)

    def correct(self, time_ns: Int64Array, sent_ns: Int64Array | None = None) -> Int64Array:
        """The receiver's times on the sender's clock; the times themselves where nothing is corrected.

        `sent_ns`, the same packets' times at the sender, settles readings that a clock set back shows twice.
        """
        return time_ns - self.applied.at(time_ns, sent_ns) if self.corrected else time_ns


@dataclass(frozen=True, eq=False)
class TimedPairs:
    """When packets of one direction were seen by the sender's and by the receiver's clock, in any order."""

    sent_ns: Int64Array
    received_ns: Int64Array

    def __len__(self) -> int:
        return len(self.sent_ns)

    @property
    def raw_delay_ns(self) -> Int64Array:
        return self.received_ns - self.sent_ns

    def split(self, rows: BoolArray) -> tuple[TimedPairs, TimedPairs]:
        """The pairs in `rows`, and the others."""
        chosen, others = (TimedPairs(self.sent_ns[r], self.received_ns[r]) for r in (rows, ~rows))
        return chosen, others

    def steps(self, sign: int) -> tuple[ClockStep, ...]:
        """Jumps of the clock as this direction shows them; `sign` is −1 for the way back."""
        return find_steps(self.sent_ns, self.received_ns, steepest=_STEEPEST, sign=sign)

    def levelled(self, steps: tuple[ClockStep, ...], reference_ns: int) -> tuple[FloatArray, FloatArray]:
        """(receiver's time since the reference, raw delay) in time order, with steps taken out.

        Packets on their way during a step are left out where only their delays tell which side of it they are on.
        """
        received, sent = self.received_ns, self.sent_ns
        if steps:
            received = received - ClockReading(reference_ns, steps=steps).at(received, sent)
            sure = np.ones(len(self), np.bool_)
            for step in steps:
                sure &= ~step.is_told_by_delay(self.received_ns, sent)
            if sure.any():
                received, sent = received[sure], sent[sure]
        order = np.argsort(received, kind="stable")
        x = (received[order] - reference_ns).astype(np.float64)
        y = (received - sent)[order].astype(np.float64)
        return x, y


def resolution_of(*times_ns: Int64Array) -> int:
    """The coarsest of 1 ns, 1 µs and 1 ms that some column's times are all multiples of."""
    coarsest = 1
    for times in times_ns:
        for unit in (1_000, 1_000_000):
            # A look at a few rows spares most columns the whole check.
            if len(times) and not np.any(times[:100] % unit) and not np.any(times % unit):
                coarsest = max(coarsest, unit)
    return coarsest


def estimate_clock(
    forward: TimedPairs, backward: TimedPairs, mode: ClockMode | None = None, *, resolution_ns: int = 1
) -> ClockEstimate:
    """Estimate the receiver's clock from packets seen at both points.

    `forward` packets travel sender → receiver, `backward` ones the other way; either may be empty.
    `resolution_ns` is the captures' time resolution: a delay may read that much below 0.

    >>> there = TimedPairs(np.array([0, 1_000]), np.array([530, 1_510]))
    >>> back = TimedPairs(np.array([600, 1_900]), np.array([1_080, 2_390]))
    >>> estimate = estimate_clock(there, back)
    >>> estimate.offset_ns, estimate.uncertainty_ns > 10
    (500.0, True)
    """
    mode = mode or ClockMode()
    both = len(forward) > 0 and len(backward) > 0
    seen = [pairs for pairs in (forward, backward) if len(pairs)]
    if not seen:
        same = ClockReading(0)
        unknown = ClockEstimate(0.0, 0.0, None, False, (), NOTHING_SEEN, 0, -math.inf, math.inf, same, same)
        return _given(unknown, mode)
    first = min(int(pairs.received_ns.min()) for pairs in seen)
    reference = first + (max(int(pairs.received_ns.max()) for pairs in seen) - first) // 2
    estimate = (
        _from_both(forward, backward, reference, resolution_ns)
        if both
        else _from_one(seen[0], 1 if len(forward) else -1, reference, resolution_ns)
    )
    return _given(estimate, mode)


def _ppm(slope: float) -> float:
    """Skew from θ's slope over the receiver's own reading; a slope of 1 is a sender's clock that stands."""
    if slope >= 1 or slope == -math.inf:
        return math.copysign(math.inf, slope)
    return slope / (1 - slope) * 1e6


@dataclass(frozen=True, eq=False)
class _Floor:
    """The edge of one direction's cloud that faces θ: its hull, its line, its trend and changes that last."""

    hull_x: FloatArray
    hull_y: FloatArray
    slope: float
    trend: Trend
    changes: list[tuple[float, float]]

    @classmethod
    def of(cls, x: FloatArray, y: FloatArray, *, sign: int) -> _Floor:
        hull = lower_hull(x, sign * y)
        line = line_under(x[hull], sign * y[hull], float(x.mean()))
        changes = floor_changes(x, sign * y, steepest=_STEEPEST)
        return cls(x[hull], y[hull], sign * line.slope, floor_trend(x, sign * y).times(sign), changes)

    def drifts_like(self, other: _Floor) -> bool:
        """Whether both edges drift, the same way and at rates that agree."""
        a, b = self.trend, other.trend
        agree = a.slope * b.slope > 0 and a.low <= b.high and b.low <= a.high
        return a.is_rate and b.is_rate and agree


def _from_both(
    forward: TimedPairs,
    backward: TimedPairs,
    reference: int,
    resolution_ns: int,
) -> ClockEstimate:
    """Both directions: the lines that both hulls leave room for."""
    steps, back_steps = confirmed_steps(forward.steps(1), backward.steps(-1), apart_ns=STEPS_APART_NS)
    ahead = _Floor.of(*forward.levelled(steps, reference), sign=1)
    back = _Floor.of(*backward.levelled(back_steps, reference), sign=-1)
    hidden = common_change(ahead.changes, back.changes, apart=CHANGES_APART * float(np.ptp(ahead.hull_x)))
    below = back.hull_x, back.hull_y - resolution_ns
    above = ahead.hull_x, ahead.hull_y + resolution_ns
    corridor = Corridor(below, above, _STEEPEST)
    slope = float(np.clip((ahead.slope + back.slope) / 2, *corridor.slopes))
    drifts = corridor.width(0.0) < 0 or (ahead.drifts_like(back) and not hidden)
    fits = corridor.width(corridor.best_slope) >= 0
    if not fits:
        # A line that only leans towards a clock which was set comes no closer to it than a constant.
        drifts = corridor.width(slope) >= corridor.width(0.0) * DESCRIBED_BY_SLOPE
    line = corridor.middle(slope if drifts else 0.0)
    shortfall = max(0.0, -corridor.width(line.slope))
    contradiction = max(-float(above[1].min()), float(below[1].max()), 0.0)
    described = fits or shortfall / 2 <= DESCRIBED_BY_LINE * contradiction
    least, greatest = corridor.levels
    doubt = max(greatest - line.level, line.level - least) + sum(step.uncertainty_ns for step in steps)
    zero_fits = not steps and not drifts and bool(above[1].min() >= 0 >= below[1].max())
    fitted = ClockReading(reference, line.level, line.slope, steps)
    slopes = corridor.slopes if fits else (-math.inf, math.inf)
    return ClockEstimate(
        offset_ns=line.level,
        skew_ppm=_ppm(line.slope),
        uncertainty_ns=doubt if fits and not hidden else None,
        both_directions=True,
        steps=steps,
        explanation=both_directions(
            offset_ns=line.level,
            doubt_ns=doubt,
            skew_ppm=_ppm(line.slope),
            agree=zero_fits,
            shortfall_ns=shortfall,
            steps=len(steps),
            described=described,
            hidden_ns=hidden,
        ),
        reference_ns=reference,
        skew_low_ppm=_ppm(slopes[0]),
        skew_high_ppm=_ppm(slopes[1]),
        fitted=fitted,
        applied=ClockReading(reference) if zero_fits or not described else fitted,
    )


def _from_one(pairs: TimedPairs, sign: int, reference: int, resolution_ns: int) -> ClockEstimate:
    """One direction: `sign` is +1 when delays lie above θ, −1 when below."""
    steps = pairs.steps(sign)
    x, y = pairs.levelled(steps, reference)
    floor = _Floor.of(x, y, sign=sign)
    trend = floor.trend
    is_steady = trend.is_rate and trend.low <= floor.slope <= trend.high and not floor.changes
    slope = floor.slope if is_steady and abs(floor.slope) <= _STEEPEST else 0.0
    if steps:  # which stay in the delays
        x, y = pairs.levelled((), reference)
    # The drift is taken out from the first packet on, which keeps its delay.
    anchor = -slope * float(x[0])
    smallest = float((sign * (y - slope * x - anchor)).min())
    lift = sign * smallest if smallest < -resolution_ns else 0.0
    fitted = ClockReading(reference, anchor + lift, slope, steps)
    drift = _ppm(floor.slope)
    return ClockEstimate(
        offset_ns=fitted.level_ns,
        skew_ppm=_ppm(slope),
        uncertainty_ns=None,
        both_directions=False,
        steps=steps,
        explanation=one_direction(
            drift_ppm=drift if is_steady else 0.0,
            lift_ns=lift,
            steps=len(steps),
            is_unsteady=bool(floor.changes) or (trend.significant and not is_steady),
        ),
        reference_ns=reference,
        skew_low_ppm=min(_ppm(floor.trend.low), drift),
        skew_high_ppm=max(_ppm(floor.trend.high), drift),
        fitted=fitted,
        applied=replace(fitted, steps=()),
    )


def _given(estimate: ClockEstimate, mode: ClockMode) -> ClockEstimate:
    """The estimate with what the user asked for applied."""
    if mode.kind == _Kind.AUTO:
        return estimate
    if mode.kind == _Kind.NONE:
        said = f"{NOT_CORRECTED}. {estimate.explanation}"
        return replace(estimate, applied=ClockReading(estimate.reference_ns), explanation=said)
    given = ClockReading(estimate.reference_ns, float(mode.offset_ns))
    said = f"The given offset of {format_duration(mode.offset_ns)} is subtracted from the receiver's times."
    return replace(estimate, applied=given, explanation=f"{said} {estimate.explanation}")
