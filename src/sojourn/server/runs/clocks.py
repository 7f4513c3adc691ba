"""How far the clocks of a segment's two nodes were apart in each of its runs, by all segments between the two nodes.

Clocks are the nodes', so every segment that leads back tells of them, whatever its interfaces. One that was created the
wrong way round has packets that arrive before they leave, and would tell clocks wrong for all others. So segments that
lead *out* of one node and *into* the other are preferred, which such a one is not unless it was meant to lead through
both nodes; and one that contradicts the packets ahead in nearly all of its runs, which clocks that are set do not, is
not listened to. Where all contradict them, one that leads across is believed more than those that do not.

Cost: that of `follow`; where runs contradict each other, once more for each pair of streams that leads back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sojourn.matching.clock.correction import TimedPairs
from sojourn.segments.fleet.answers import RunAnswer
from sojourn.segments.fleet.clocks import REACH_NS, ClockAt, RunFrame, follow
from sojourn.segments.fleet.point import stream_direction
from sojourn.segments.fleet.stored import read_clock
from sojourn.store.runs import KnownPair, Pair, RunStore

__all__ = ["MOST_RUNS", "SAME", "followed_clocks", "is_contradicted", "leads_across"]

MOST_RUNS = 20_000
# Pairs of streams that are judged one by one.
MOST_JUDGED = 64
SAME = "one node's own time"


def followed_clocks(runs: RunStore, known: Sequence[KnownPair], answers: Sequence[RunAnswer]) -> list[ClockAt]:
    """θ of every run, by the packets of both directions; two points of one node have one clock."""
    if known[0].pair.from_node == known[0].pair.to_node:
        return [ClockAt(0.0, 0.0, 0.0, SAME)] * len(answers)
    first, last = answers[0].interval.first_ns - REACH_NS, answers[-1].interval.last_ns + REACH_NS
    stored = runs.clocks([pair.number for pair in known], first, last, most=MOST_RUNS)
    forward = _joined([*(read_clock(data)[0] for data in stored), *(answer.pairs for answer in answers)])
    about = int(np.median(forward.raw_delay_ns)) if len(forward) else 0
    way = known[0].pair
    every = {one.number: leads_across(one.pair) for one in runs.pairs_between(way.to_node, way.from_node)}
    back = [number for number, is_across in every.items() if is_across] or list(every)
    frames = [answer.frame for answer in answers]

    def told_by(numbers: Sequence[int]) -> TimedPairs:
        ahead = runs.clocks(numbers, first + about, last + about, most=MOST_RUNS)
        pairs = _joined([read_clock(data)[0] for data in ahead])
        # Their sender is our receiver: the same two clocks are read the other way round.
        return TimedPairs(pairs.received_ns, pairs.sent_ns)

    clocks = follow(frames, forward, told_by(back))
    if not is_contradicted(clocks) and (len(back) < 2 or sum(clock.was_set for clock in clocks) < 2):
        return clocks
    right = [number for number in list(every)[-MOST_JUDGED:] if not _is_wrong(frames, forward, told_by([number]))]
    if not right and leads_across(way) and not any(every.values()):
        return follow(frames, forward, told_by([]))
    return follow(frames, forward, told_by(right)) if right else clocks


def leads_across(pair: Pair) -> bool:
    """Whether packets leave the one node and enter the other."""
    return (stream_direction(pair.from_stream), stream_direction(pair.to_stream)) == ("out", "in")


def is_contradicted(clocks: Sequence[ClockAt]) -> bool:
    """Whether the bounds of nearly all runs contradict each other: several, and more than those that do not.

    A run may be that in which a clock was set; not several, with hardly one beside them that any clock explains.
    """
    was_set = sum(clock.was_set for clock in clocks)
    return was_set > 1 and was_set > 4 * sum(clock.is_known for clock in clocks)


def _is_wrong(frames: Sequence[RunFrame], forward: TimedPairs, backward: TimedPairs) -> bool:
    """Whether packets that lead back contradict those ahead in nearly all runs that have some of both."""
    if not len(backward):
        return False
    begin, end = int(backward.sent_ns.min()), int(backward.sent_ns.max())
    return is_contradicted(
        follow([one for one in frames if one.last_ns >= begin and one.first_ns <= end], forward, backward)
    )


def _joined(pairs: Sequence[TimedPairs]) -> TimedPairs:
    if not pairs:
        return TimedPairs(np.empty(0, np.int64), np.empty(0, np.int64))
    return TimedPairs(*(np.concatenate([getattr(one, name) for one in pairs]) for name in ("sent_ns", "received_ns")))
