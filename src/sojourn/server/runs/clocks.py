"""How far the clocks of a segment's two nodes were apart in each of its runs, by all segments between the two nodes.

Clocks are the nodes', so every segment that leads back tells of them, whatever its interfaces. One that was created the
wrong way round has packets that arrive before they leave, and would tell clocks wrong for all others. So segments that
lead *out* of one node and *into* the other are preferred, which such a one is not unless it was meant to lead through
both nodes; and one that contradicts the packets ahead in nearly all of its runs, which clocks that are set do not, is
not listened to. Where all contradict them, one that leads across is believed more than those that do not.

Cost: that of `follow`; where runs contradict each other, once more for each pair of streams that leads back. What runs
hold for the clocks is read once for each pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

import numpy as np

from sojourn.matching.clock.correction import TimedPairs
from sojourn.segments.fleet.clocks import CONTRADICTED, REACH_NS, ClockAt, RunFrame, Stretch, follow, follow_all
from sojourn.segments.fleet.leads import Boots, Kernels, Leads, boots_of, may_be_of, on_leads, parted_by_boots
from sojourn.segments.fleet.point import stream_direction
from sojourn.segments.fleet.stored import read_clock
from sojourn.store.runs import KnownPair, Pair, RunStore

__all__ = ["MOST_RUNS", "SAME", "across_first", "followed_clocks", "is_contradicted", "leads_across"]

MOST_RUNS = 20_000
# Pairs of streams that are judged one by one.
MOST_JUDGED = 64
# Times to which the receiver's clock was set in a range, which are looked up one by one.
MOST_SPANS = 50
SAME = "one node's own time"

_Told = tuple[TimedPairs, Kernels]  # what a run holds for the clocks


@dataclass(frozen=True)
class _Uptime:
    """Runs between the same restarts of either machine: their places among all, and what the packets ahead tell."""

    boots: Boots
    places: Sequence[int]
    frames: Sequence[RunFrame]
    leads: Leads | None
    forward: TimedPairs
    alone: TimedPairs  # the same by clocks as they were steered: better than oscillators if nothing leads back

    def put_back(self, told: Sequence[_Told]) -> TimedPairs:
        """The packets that lead back of all runs that may be of it, on its leads."""
        its = [one for one in told if may_be_of(boots_of(one[1]), self.boots)]
        return _joined([on_leads(*one, self.leads, sign=-1) for one in its])

    def stretch(self, told: Sequence[_Told]) -> Stretch:
        backward = self.put_back(told)
        if not len(backward) and self.leads is not None:
            return Stretch(self.frames, self.alone, backward, self.leads.unsteered())
        return Stretch(self.frames, self.forward, backward, self.leads)

    def is_wrong(self, told: Sequence[_Told]) -> bool:
        """Whether packets that lead back contradict those ahead in nearly all runs that have some of both."""
        backward = self.put_back(told)
        if not len(backward):
            return False
        begin, end = int(backward.sent_ns.min()), int(backward.sent_ns.max())
        on_its = [(frame, frame.on(self.leads)) for frame in self.frames]
        beside = [frame for frame, moved in on_its if moved.last_ns >= begin and moved.first_ns <= end]
        return is_contradicted(follow(beside, self.forward, backward, self.leads))


class Timed(Protocol):
    """A stretch of time, as a run is, and what its packets and kernels tell of the clocks."""

    @property
    def frame(self) -> RunFrame: ...

    @property
    def pairs(self) -> TimedPairs: ...

    @property
    def kernels(self) -> Kernels: ...


def followed_clocks(runs: RunStore, known: Sequence[KnownPair], answers: Sequence[Timed]) -> list[ClockAt]:
    """θ of every run, by the packets of both directions; two points of one node have one clock."""
    if known[0].pair.from_node == known[0].pair.to_node:
        return [ClockAt(0.0, 0.0, 0.0, SAME)] * len(answers)
    first, last = answers[0].frame.first_ns - REACH_NS, answers[-1].frame.last_ns + REACH_NS
    stored = runs.clocks([pair.number for pair in known], first, last, most=MOST_RUNS)
    ahead = [*map(read_clock, stored), *((answer.pairs, answer.kernels) for answer in answers)]
    uptimes = _uptimes([answer.frame for answer in answers], ahead)
    beside = _beside([pairs for pairs, _ in ahead]) or [(first, last)]
    way = known[0].pair
    every = {one.number: one.pair for one in runs.pairs_between(way.to_node, way.from_node)}
    told: dict[int, list[_Told]] = {}

    def told_by(numbers: Sequence[int]) -> list[_Told]:
        for number in (one for one in numbers if one not in told):
            most = max(MOST_RUNS // (len(numbers) * len(beside)), 1)
            found = [read_clock(one) for within in beside for one in runs.clocks([number], *within, most=most)]
            told[number] = [_turned(*one) for one in found]
        return [one for number in numbers for one in told[number]]

    def by(numbers: Sequence[int]) -> list[ClockAt]:
        found = follow_all([uptime.stretch(told_by(numbers)) for uptime in uptimes])
        placed = [
            one for uptime, its in zip(uptimes, found, strict=True) for one in zip(uptime.places, its, strict=True)
        ]
        return [clock for _, clock in sorted(placed, key=itemgetter(0))]

    back = across_first(every)
    clocks = by(back)
    if not is_contradicted(clocks) and (len(back) < 2 or sum(clock.was_set for clock in clocks) < 2):
        return clocks
    right = [
        number for number in list(every)[-MOST_JUDGED:] if not any(one.is_wrong(told_by([number])) for one in uptimes)
    ]
    if not right and leads_across(way) and not any(map(leads_across, every.values())):
        return by([])
    return by(right) if right else clocks


def _uptimes(frames: Sequence[RunFrame], ahead: Sequence[_Told]) -> list[_Uptime]:
    found = []
    for boots, places in parted_by_boots([frame.kernels for frame in frames]):
        its = [frames[place] for place in places]
        leads = Leads.steered_of([frame.kernels for frame in its])
        told = [one for one in ahead if may_be_of(boots_of(one[1]), boots)]
        forward = alone = _joined([on_leads(*one, leads) for one in told])
        if leads is not None and leads.steered is not None:
            alone = _joined([on_leads(*one, leads.unsteered()) for one in told])
        found.append(_Uptime(boots, places, its, leads, forward, alone))
    return found


def _beside(ahead: Sequence[TimedPairs]) -> list[tuple[int, int]]:
    """When packets came, and what is within reach of that, by the receiver's clock: a stretch for each time that it was
    set far; all in one if they are very many."""
    spans: list[tuple[int, int]] = []
    for first, last in sorted((int(one.received_ns.min()), int(one.received_ns.max())) for one in ahead if len(one)):
        if spans and first - REACH_NS <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(last + REACH_NS, spans[-1][1])
        else:
            spans.append((first - REACH_NS, last + REACH_NS))
    return spans if len(spans) <= MOST_SPANS else [(spans[0][0], max(last for _, last in spans))]


def _turned(pairs: TimedPairs, kernels: Kernels) -> _Told:
    """What packets that lead back tell: their sender is our receiver, the same two clocks read the other way round."""
    return TimedPairs(pairs.received_ns, pairs.sent_ns), (kernels[1], kernels[0])


def across_first(pairs: Mapping[int, Pair]) -> list[int]:
    """The numbers of those that lead across, or of all where none does."""
    return [number for number, pair in pairs.items() if leads_across(pair)] or list(pairs)


def leads_across(pair: Pair) -> bool:
    """Whether packets leave the one node and enter the other."""
    return (stream_direction(pair.from_stream), stream_direction(pair.to_stream)) == ("out", "in")


def is_contradicted(clocks: Sequence[ClockAt]) -> bool:
    """Whether the bounds of nearly all runs contradict each other: several, and more than those that do not.

    A run may be that in which a clock was set; not several, with hardly one beside them that any clock explains.
    """
    contradicted = sum(clock.source == CONTRADICTED for clock in clocks)
    return contradicted > 1 and contradicted > 4 * sum(clock.is_known for clock in clocks)


def _joined(pairs: Sequence[TimedPairs]) -> TimedPairs:
    if not pairs:
        return TimedPairs(np.empty(0, np.int64), np.empty(0, np.int64))
    return TimedPairs(*(np.concatenate([getattr(one, name) for one in pairs]) for name in ("sent_ns", "received_ns")))
