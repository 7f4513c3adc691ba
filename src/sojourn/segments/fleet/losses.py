"""The losses of many runs together: what is missing in them, less what was only late.

A packet that changed places with a marker is missing in one run and extra in another; where runs follow each other, the
two cancel. What is late at an end, or at a gap, is estimated from the runs beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sojourn.core.estimates import Estimate, FlowDelays
from sojourn.estimation.differences import Losses, poisson_95

if TYPE_CHECKING:
    from sojourn.segments.fleet.answers import RunAnswer


def combined_losses(answers: Sequence[RunAnswer], gaps: Sequence[int], later: RunAnswer | None) -> Losses:
    """The losses of runs; those between two gaps follow each other."""
    edges = sorted({0, *gaps, len(answers)})
    chains = [answers[first:last] for first, last in pairwise(edges)]
    after = [*[None] * (len(chains) - 1), later]
    parts = [_chain_losses(chain, following) for chain, following in zip(chains, after, strict=True)]
    sent = sum(answer.interval.totals.sent for answer in answers)
    surely = sum(answer.interval.totals.losses.extra for answer in answers)
    if any(part.value is None for part in parts):
        least, most = sum(max(part.low, 0.0) for part in parts), min(sum(part.high for part in parts), sent)
        return Losses(None, math.floor(least), math.ceil(most), surely)
    value = sum(part.value or 0.0 for part in parts)
    # Packets that a kernel had no room for are all there may be; the rest errs independently from gap to gap.
    doubt = math.sqrt(sum(part.doubt**2 for part in parts))
    above, below = (doubt + sum(part.missed[end] for part in parts) for end in (0, 1))
    lost, least, most = (
        min(max(number, 0), sent) for number in (round(value), math.floor(value - below), math.ceil(value + above))
    )
    return Losses(lost, least, most, surely)


@dataclass(frozen=True)
class _ChainLosses:
    """The losses of runs that follow each other, unknown beyond their bounds or with a doubt either way."""

    value: float | None
    doubt: float = 0.0
    missed: tuple[int, int] = (0, 0)
    low: float = 0.0
    high: float = 0.0


def _chain_losses(answers: Sequence[RunAnswer], later: RunAnswer | None) -> _ChainLosses:
    sent = sum(answer.interval.totals.sent for answer in answers)
    missing = sent - sum(answer.interval.totals.received for answer in answers)
    missed = sum(answer.missed[0] for answer in answers), sum(answer.missed[1] for answer in answers)
    around = [one.interval.totals.losses for one in (*answers, *([later] if later is not None else []))]
    extra = [answer.extra for answer in answers if answer.extra is not None]
    overtaken = [answer.overtaken for answer in answers if answer.overtaken is not None]
    # Among losses a cell does not show its extra packets: one that was overtaken may be hidden there.
    is_in_order = not missing or not any(one.value for one in overtaken)
    is_in_order &= all(one.ahead is None or not one.ahead.value for one in answers)
    if is_in_order and not any(missed) and all(one.is_exact and not one.extra for one in around):
        return _ChainLosses(missing, low=missing, high=missing)
    if len(extra) < len(answers):
        return _ChainLosses(None, low=missing - missed[1], high=sent)
    # Late packets of the run before are in the first run's extra ones, and in no loss of these runs.
    late = [answer.displaced for answer in answers[1:] if answer.displaced is not None]
    ahead = [answer.ahead for answer in answers if answer.ahead is not None]
    last = (later.displaced if later is not None else None) or _usual(overtaken or late or extra, late or extra)
    value = missing + sum(one.value for one in extra) - sum(one.value for one in (*late, last, *ahead))
    unsure = [extra[0], last, *ahead[:1], _rest(extra[1:], [*late, *ahead[2:]])]
    doubt = math.sqrt(sum(map(_variance, unsure)) + _sampled_apart(answers))
    return _ChainLosses(value, doubt, missed, value - doubt - missed[1], value + doubt + missed[0])


def _sampled_apart(answers: Sequence[RunAnswer]) -> float:
    """The variance of late packets, and of those ahead, where these were not counted in the sample that has them as
    extra ones: their errors do not cancel out."""
    pairs = [(one.displaced, one.extra) for one in answers[1:]]
    pairs += [(one.ahead, before.extra) for before, one in pairwise(answers)]
    found = 0.0
    for part, whole in pairs:
        if part is not None and whole is not None and abs(_weight(part) - _weight(whole)) > 0.1 * _weight(whole):
            found += min(_variance(part), max(whole.high, part.value) ** 2)
    return found


def _weight(estimate: Estimate) -> float:
    """How many packets each that was seen stands for."""
    return estimate.value / estimate.samples if estimate.samples else 0.0


def _usual(estimates: Sequence[Estimate], seen: Sequence[Estimate]) -> Estimate:
    """A number that is not known, given others like it: their mean, from nothing to the most that they, and those that
    were `seen`, may be."""
    value = sum(one.value for one in estimates) / len(estimates)
    most = max(one.high for one in (*estimates, *seen))
    return Estimate(value, 0.0, max(most, value), 0, "usual", unit="packets")


def _rest(extra: Sequence[Estimate], late: Sequence[Estimate]) -> Estimate:
    """What is extra without being late, whose errors alone are left: a late packet is in both numbers."""
    value = max(sum(one.value for one in extra) - sum(one.value for one in late), 0.0)
    scale = max((one.value / one.samples for one in extra if one.samples), default=1.0)
    low, high = (scale * bound for bound in poisson_95(round(value / scale)))
    return Estimate(value, min(low, value), max(high, value), 0, "rest", unit="packets")


def _variance(estimate: Estimate) -> float:
    """The square of the larger side of an interval."""
    return max(estimate.high - estimate.value, estimate.value - estimate.low) ** 2


def losses_without(losses: Losses, aside: FlowDelays, flows: FlowDelays, answers: Sequence[RunAnswer]) -> Losses:
    """The losses of flows without those set aside.

    What only the sender sees is missing as a whole, as far as its size is known. What only the receiver sees is extra,
    and hides how many others are: then the flows' own losses are added up, as uncertain as their sampled share.
    """
    if not np.isnan(aside.lost).any():
        away = round(float(np.nansum(np.maximum(aside.packets, aside.lost))))
        value = None if losses.lost is None else max(losses.lost - away, 0)
        return Losses(value, max(losses.low - away, 0), max(losses.high - away, 0), losses.extra)
    sent, lost = float(np.nansum(flows.packets)), float(np.nansum(flows.lost))
    sampled = max(sum(int((answer.sampled.row >= 0).sum()) for answer in answers), 1)
    share = min(max(lost / max(sent, 1.0), 1 / sampled), 0.5)
    doubt = 2 * sent * math.sqrt(share * (1 - share) / sampled)
    least, most = max(lost - doubt, 0.0), min(lost + doubt, sent)
    value = None if np.isnan(flows.lost).any() else round(lost)
    return Losses(value, math.floor(least), math.ceil(most), losses.extra)
