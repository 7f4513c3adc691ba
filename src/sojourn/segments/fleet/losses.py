"""The losses of many runs together: what is missing in them, less what was only late.

A packet that changed places with a marker is missing in one run and extra in another; where runs follow each other, the
two cancel. What is late at an end, or at a gap, is estimated from the runs beside it, and is no more than packets
overtake each other anywhere: an end is a place like any other. Where flows are counted the value is their sum.

A flow's losses are as unsure at the ends as its part in the packets that are late there: its share of a run's packets,
or that of the time by which its packets come behind the quickest flow's (or before the slowest's), if that is more. A
loss of a packet or more is never called exact where packets changed places with a marker at an end, for it may be one
of them. Copies of packets hide as many losses, of each flow by its share of packets.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array, rows_of
from sojourn.core.estimates import Estimate, FlowDelays
from sojourn.estimation.differences import Losses, poisson_95, poisson_most

if TYPE_CHECKING:
    from sojourn.segments.fleet.answers import RunAnswer

# A sum of decoded losses that is so near to a whole number is one.
SURE_LOSS = 0.01
# Pairs that changed places, from which on how they are spread is known.
MANY = 30


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
    # A value that cannot be is as unsure as any: what bounds it makes nothing exact.
    possible = min(max(value, 0.0), float(sent))
    least, most = math.floor(min(value, possible) - below), math.ceil(max(value, possible) + above)
    return Losses(round(possible), int(max(least, 0)), int(min(most, sent)), surely)


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
    extra = [_proven(answer.extra, answer) for answer in answers if answer.extra is not None]
    overtaken = [answer.overtaken for answer in answers if answer.overtaken is not None]
    at_an_end = _at_a_place(overtaken)
    # Among losses a cell does not show its extra packets: one that was overtaken may be hidden there.
    is_in_order = not missing or at_an_end is None or (at_an_end.high < 1 and not at_an_end.samples)
    is_in_order &= all(one.ahead is None or not one.ahead.value for one in answers)
    if is_in_order and not any(missed) and all(one.is_exact and not one.extra for one in around):
        return _ChainLosses(missing, low=missing, high=missing)
    if len(extra) < len(answers):
        return _ChainLosses(None, low=missing - missed[1], high=sent)
    # Late packets of the run before are in the first run's extra ones, and in no loss of these runs.
    late = [answer.displaced for answer in answers[1:] if answer.displaced is not None]
    # Behind a gap nobody knows which packets were ahead of the first marker: as many as are late elsewhere.
    ahead = [one for one in (answers[0].ahead or at_an_end, *(one.ahead for one in answers[1:])) if one is not None]
    first = _narrower(extra[0], at_an_end)
    last = at_an_end or _usual(late or extra)
    if later is not None and later.displaced is not None:
        last = _narrower(later.displaced, at_an_end)
    value = missing + sum(one.value for one in extra) - sum(one.value for one in (*late, last, *ahead))
    unsure = [first, last, *(_narrower(one, at_an_end) for one in ahead[:1])]
    if any(one.samples for one in extra) or any(one.extra for one in around):
        unsure.append(_rest(extra[1:], [*late, *ahead[2:]]))
    doubt = math.sqrt(sum(map(_variance, unsure)) + _sampled_apart(answers))
    return _ChainLosses(value, doubt, missed, value - doubt - missed[1], value + doubt + missed[0])


def _proven(extra: Estimate, answer: RunAnswer) -> Estimate:
    """Extra packets, of which cells may prove more than a sample shows."""
    surely = answer.interval.totals.losses.extra
    if extra.low >= surely:
        return extra
    return replace(extra, value=max(extra.value, surely), low=surely, high=max(extra.high, surely))


def crossed_shares(answers: Sequence[RunAnswer], gaps: Sequence[int], later: RunAnswer | None) -> list[float]:
    """Of each run's packets, which part changed places with the markers at its ends, at most.

    Their delays are those of no run. 0 where neither cells nor samples show any.
    """
    at_an_end = _seen(_at_a_place([one.overtaken for one in answers if one.overtaken is not None]))
    shares = []
    for place, answer in enumerate(answers):
        following = [*answers[place + 1 : place + 2], *([later] if later is not None else [])][:1]
        following = [] if place + 1 in gaps else following
        count = max(_seen(answer.extra), answer.interval.totals.losses.extra)
        count += at_an_end if answer.ahead is None else _seen(answer.ahead)
        count += _seen(following[0].displaced) if following else at_an_end
        shares.append(min(count / max(answer.interval.totals.sent, 1), 1.0))
    return shares


def _seen(estimate: Estimate | None) -> float:
    """The most of what was seen; nothing seen is nothing here."""
    return estimate.high if estimate is not None and estimate.samples else 0.0


def with_late_ends(
    flows: FlowDelays, answers: Sequence[RunAnswer], gaps: Sequence[int], later: RunAnswer | None
) -> FlowDelays:
    """The flows of runs together, with losses as unsure as packets changed places with the markers at their ends."""
    if flows.lost_low is None or flows.lost_high is None or not len(flows.flow_id):
        return flows
    missing, hidden = np.zeros((2, len(flows.flow_id)))
    for place, late, ahead in _at_edges(answers, gaps, later):
        parts = _parts_of(flows.flow_id, answers[place])
        missing += late[0] * parts[0] + ahead[0] * parts[1]
        hidden += late[1] * parts[0] + ahead[1] * parts[1]
    hidden += _copies(answers, gaps) * np.nan_to_num(flows.packets) / max(float(np.nansum(flows.packets)), 1.0)
    if not missing.any() and not hidden.any():
        return flows
    lost = np.nan_to_num(flows.lost)
    only_late = np.maximum(_most_of_each(missing), (missing > 0) & (lost > 0))
    columns = {
        "lost_low": np.maximum(flows.lost_low - only_late, np.minimum(flows.lost_low, 0.0)),
        "lost_high": np.minimum(flows.lost_high + _most_of_each(hidden), np.maximum(flows.packets, flows.lost_high)),
    }
    return flows.with_columns(columns)


def _copies(answers: Sequence[RunAnswer], gaps: Sequence[int]) -> float:
    """How many packets arrived that no run has sent, at most: of what is extra, those that were neither late nor ahead.

    At a gap nobody knows which were.
    """
    extra = [_proven(one.extra, one) for one in answers if one.extra is not None]
    if not any(one.value for one in extra):
        return 0.0
    late = [one.displaced for one in answers if one.displaced is not None]
    following = [one for place, one in enumerate(answers) if place and place not in gaps]
    rest = _rest(extra, [*late, *(one.ahead for one in following if one.ahead is not None)])
    return rest.high if rest.value else 0.0


Two = tuple[float, float]


def _at_edges(
    answers: Sequence[RunAnswer], gaps: Sequence[int], later: RunAnswer | None
) -> Iterator[tuple[int, Two, Two]]:
    """The runs at an end of a chain, with the packets that were late there and those that were ahead, at most.

    Of each how many are missing in the chain without being lost, and how many are in it that were sent outside.
    """
    usual = _possible(_at_a_place([one.overtaken for one in answers if one.overtaken is not None]))
    edges = sorted({0, *gaps, len(answers)})
    for first, end in pairwise(edges):
        begin, following = answers[first], later if end == len(answers) else None
        yield first, (0.0, _possible(begin.displaced, usual)), (_possible(begin.ahead, usual), 0.0)
        late = usual if following is None else _possible(following.displaced, usual)
        ahead = usual if following is None else _possible(following.ahead, usual)
        yield end - 1, (late, 0.0), (0.0, ahead)


def _possible(estimate: Estimate | None, unknown: float = 0.0) -> float:
    """The most of a number of packets; a sample that shows none, where one packet would be too many, excludes it."""
    if estimate is None:
        return unknown
    return estimate.high if estimate.samples or estimate.high >= 1 else 0.0


def _parts_of(flow_id: UInt64Array, answer: RunAnswer) -> tuple[FloatArray, FloatArray]:
    """Which part of the packets that are late at an end of a run may be each flow's, and of those that are ahead."""
    flows, late, ahead = answer.interval.flows, np.zeros(len(flow_id)), np.zeros(len(flow_id))
    if (
        flows is None
        or not (packets := np.maximum(np.nan_to_num(flows.packets), np.abs(np.nan_to_num(flows.lost)))).any()
    ):
        return late, ahead
    share = packets / packets.sum()
    rows = rows_of(flow_id, flows.flow_id)
    known = rows >= 0
    mean = np.where(flows.answered, flows.mean_ns, np.nan)
    for part, away in (
        (late, mean - np.nanmin(mean, initial=math.inf)),
        (ahead, np.nanmax(mean, initial=-math.inf) - mean),
    ):
        times = packets * np.nan_to_num(away, posinf=0.0, neginf=0.0)
        slower = times / times.sum() if times.any() else times
        part[rows[known]] = np.maximum(share, slower)[known]
    return late, ahead


def _most_of_each(expected: FloatArray) -> FloatArray:
    """`poisson_most` of each, of which many are alike: of none is none."""
    values, place = np.unique(np.round(expected, 2), return_inverse=True)
    return np.array([poisson_most(value) for value in values.tolist()], np.float64)[place]


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


def _at_a_place(overtaken: Sequence[Estimate]) -> Estimate | None:
    """How many packets are late at one place of some runs: on average, and at most in 39 places of 40.

    They are no Poisson number: behind a packet that was held up itself there are fewer, and ahead of it more.
    """
    seen = sum(one.samples for one in overtaken)
    looked = sum(_exposure(one) for one in overtaken)
    if not looked:
        return None
    value, most = seen / looked, poisson_most(_most_of(seen, looked))
    highest = max((one.high for one in overtaken if one.samples > MANY), default=0.0)
    return Estimate(value, 0.0, max(value, most, highest), seen, "order", unit="packets")


def _exposure(overtaken: Estimate) -> float:
    """How many pairs a sample would show that changed places if one packet were late at every place."""
    if overtaken.samples:
        return overtaken.samples / overtaken.value
    return poisson_95(0)[1] / overtaken.high if overtaken.high else 0.0


def _most_of(seen: int, looked: float) -> float:
    """The largest rate that is likely. Pairs come in clusters, as a packet that is late by ten places makes ten."""
    return poisson_95(seen)[1] / looked if not seen else seen / looked * (1 + 2 / math.sqrt(seen))


def _narrower(sampled: Estimate, at_an_end: Estimate | None) -> Estimate:
    """What is late at an end: what was seen there, or no more than is late elsewhere."""
    if at_an_end is None or sampled.samples or sampled.high <= at_an_end.high:
        return sampled
    return replace(sampled, high=max(at_an_end.high, sampled.value))


def _usual(seen: Sequence[Estimate]) -> Estimate:
    """A number that is not known, given others like it: their mean, from nothing to the most that they may be."""
    value = sum(one.value for one in seen) / len(seen)
    return Estimate(value, 0.0, max(value, *(one.high for one in seen)), 0, "usual", unit="packets")


def _rest(extra: Sequence[Estimate], late: Sequence[Estimate]) -> Estimate:
    """What is extra without being late, whose errors alone are left: a late packet is in both numbers."""
    value = max(sum(one.value for one in extra) - sum(one.value for one in late), 0.0)
    scale = max((one.value / one.samples for one in extra if one.samples), default=1.0)
    low, high = (scale * bound for bound in poisson_95(round(value / scale)))
    return Estimate(value, min(low, value), max(high, value), 0, "rest", unit="packets")


def _variance(estimate: Estimate) -> float:
    """The square of the larger side of an interval."""
    return max(estimate.high - estimate.value, estimate.value - estimate.low) ** 2


def as_counted(losses: Losses, flows: FlowDelays, sent: int) -> Losses:
    """The losses with the sum of flows' as their value, where all packets are those of counted flows."""
    counted = float(np.sum(np.maximum(flows.lost, 0.0)))
    if losses.lost is None or not losses.low <= counted <= losses.high:
        return losses
    is_all = abs(float(np.sum(flows.packets)) - sent) < 1 and abs(counted - round(counted)) < SURE_LOSS
    is_all &= flows.lost_low is None or np.array_equal(flows.lost_low, flows.lost_high)  # type: ignore[arg-type]
    return replace(losses, lost=round(counted)) if is_all else losses


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


def late_at_each(arrivals: Int64Array) -> Int64Array:
    """How many packets before each arrive behind it.

    >>> late_at_each(np.array([3, 1, 2, 2, 5, 4]))
    array([0, 1, 1, 1, 0, 1])
    """
    late, seen = [], list[int]()
    for time in arrivals.tolist():
        late.append(len(seen) - bisect_right(seen, time))
        insort(seen, time)
    return np.array(late, np.int64)
