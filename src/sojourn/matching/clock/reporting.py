"""What is said about clocks, in words: every correction, and every negative delay that remains."""

from __future__ import annotations

from sojourn.core.units import format_duration

__all__ = [
    "NOTHING_SEEN",
    "NOT_CORRECTED",
    "both_directions",
    "explain_negative",
    "offset_given",
    "one_direction",
]

NOTHING_SEEN = "No packet was seen at both points, so nothing is known about the clocks."
NOT_CORRECTED = "Times are left as captured."


def both_directions(
    *, offset_ns: float, doubt_ns: float, skew_ppm: float, agree: bool, shortfall_ns: float, steps: int
) -> str:
    """What the delays of both directions say about the receiver's clock."""
    doubt = format_duration(doubt_ns)
    if agree:
        said = f"Both directions agree with synchronous clocks (to within {doubt}); nothing is corrected."
    else:
        ahead = f"{format_duration(abs(offset_ns))} {'ahead' if offset_ns >= 0 else 'behind'}"
        said = f"From the smallest delays of both directions the receiver's clock is {ahead}, ± {doubt}"
        said += f" in the middle of the capture, and {_rate(skew_ppm)}." if skew_ppm else "; it shows no skew."
    if shortfall_ns > 0:
        below = format_duration(shortfall_ns / 2)
        said += (
            f" No clock of constant rate makes all delays positive: some stay {below} below 0, because "
            "the clock wandered or was set by more than the smallest delays."
        )
    if steps:
        said += f" {_count(steps, 'step')} of the clock, seen in both directions, taken out."
    return said


def one_direction(*, drift_ppm: float, limit_ppm: float, lift_ns: float, steps: int) -> str:
    """What the delays of one direction say; `drift_ppm` is 0 when it is not significant."""
    said = [
        "Traffic in one direction only: a constant clock offset cannot be told from a constant delay, so all "
        "delays may be wrong by the same unknown amount."
    ]
    if drift_ppm and abs(drift_ppm) <= limit_ppm:
        said.append(
            f"From the drift of the smallest delays the receiver's clock {_rate(drift_ppm)}; this is "
            "corrected, and the first packet keeps its delay."
        )
    elif drift_ppm:
        said.append(
            f"The smallest delays drift by {drift_ppm:+.3g} ppm, more than a clock does ({limit_ppm:g} ppm): "
            "taken as a real change of delay and not corrected."
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


def offset_given(offset_ns: int) -> str:
    return f"The given offset of {format_duration(offset_ns)} is subtracted from the receiver's times."


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
