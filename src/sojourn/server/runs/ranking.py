"""Many segments at once: each one's totals in a range of time, the worst first.

Totals are added up by the database from columns beside the answers, none of which is read. So clocks are corrected by
one number for the whole range, from the smallest delays of both directions in it: enough to find where to look; what
the clocks leave unsure is in the segment's own answer. A round trip is not negative: a way back that would make it so
(a segment the wrong way round, or a clock that was set meanwhile) is not looked at, and where no other is there, delays
are not told: the segment may be the wrong one itself. ``worst_p99_ns`` is the largest p99 of a single run.

Cost: some 2 µs for each run in the range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL

from sojourn.core.results import row_order
from sojourn.server.runs.clocks import leads_across
from sojourn.store.epochs import read_store
from sojourn.store.runs import Pair, PairTotals, RunStore

SORTED_BY = {"mean": "mean_ns", "p99": "worst_p99_ns", "loss": "loss", "packets": "sent"}


@dataclass(frozen=True, kw_only=True)
class RankingWork:
    """Segments by name with their pairs of streams, in a range of time."""

    segments: Mapping[str, tuple[Pair, ...]]
    from_ns: int
    to_ns: int
    top: int
    by: str


@dataclass(frozen=True, kw_only=True)
class RankedSegment:
    """A segment's totals, the number of the pair that they are of, and about what the receiver's clock is ahead."""

    row: dict[str, Any]
    pair: int
    offset_ns: float


def rank_segments(url: URL, work: RankingWork) -> list[dict[str, Any]]:
    """The segments with answered runs in the range, the largest first."""
    return [one.row for one in ranked(RunStore(read_store(url)), work)]


def ranked(runs: RunStore, work: RankingWork) -> list[RankedSegment]:
    """The same with what their delays are found and corrected by."""
    totals = runs.totals(work.from_ns, work.to_ns)
    wanted = list(dict.fromkeys(pair for pairs in work.segments.values() for pair in pairs))
    numbers = {one.pair: one.number for one in runs.pairs(wanted)}
    back = _least_back(numbers, totals)
    found = []
    for name, pairs in work.segments.items():
        known = [(pair, totals[numbers[pair]]) for pair in pairs if pair in numbers and numbers[pair] in totals]
        if known:
            row, pair, offset = _row(name, known, back)
            found.append(RankedSegment(row=row, pair=numbers[pair], offset_ns=offset))
    columns = {name: [one.row[name] for one in found] for name in (found[0].row if found else ())}
    order = row_order(columns, SORTED_BY[work.by], work.top or None) if found else None
    return found if order is None else [found[i] for i in order]


@dataclass(frozen=True)
class _Back:
    """The smallest raw delays of pairs that lead back; those across count if they do not contradict the way there."""

    across: Sequence[int] = ()
    others: Sequence[int] = ()

    def least(self, there: int | None, *, is_across: bool) -> tuple[int | None, bool]:
        """The smallest that does not contradict the smallest `there`; and whether `there` is to be doubted instead.

        What leads across is not doubted for what does not.
        """
        if there is None:
            return None, False
        for found in (self.across, self.others):
            if right := [raw for raw in found if there + raw >= 0]:
                return min(right), False
        return None, bool(self.across or (self.others and not is_across))


def _least_back(numbers: Mapping[Pair, int], totals: Mapping[int, PairTotals]) -> dict[tuple[str, str], _Back]:
    """What leads from one node to another."""
    told: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for pair, number in numbers.items():
        raw = totals[number].least_raw_ns if number in totals else None
        if raw is not None:
            told.setdefault((pair.from_node, pair.to_node), ([], []))[0 if leads_across(pair) else 1].append(raw)
    return {way: _Back(*found) for way, found in told.items()}


def _row(
    name: str, found: Sequence[tuple[Pair, PairTotals]], least: Mapping[tuple[str, str], _Back]
) -> tuple[dict[str, Any], Pair, float]:
    # While a new plan takes over both record the same packets: the one with more of them speaks for the segment.
    pair, totals = max(found, key=lambda one: one[1].sent)
    there = min((one.least_raw_ns for _, one in found if one.least_raw_ns is not None), default=None)
    is_of_one_node = pair.from_node == pair.to_node
    back, is_contradicted = least.get((pair.to_node, pair.from_node), _Back()).least(
        there, is_across=leads_across(pair)
    )
    offset, is_known = _offset(there, back)
    delays = [
        None if is_contradicted and not is_of_one_node else raw for raw in (totals.raw_mean_ns, totals.raw_p99_ns)
    ]
    lost = None if totals.unknown else totals.lost
    row = {
        "segment": name,
        "from": pair.from_node,
        "to": pair.to_node,
        "runs": totals.runs,
        "first_ns": totals.first_ns,
        "last_ns": totals.last_ns,
        "sent": totals.sent,
        "received": totals.received,
        "lost": lost,
        "loss": None if lost is None or not totals.sent else lost / totals.sent,
        "mean_ns": None if delays[0] is None else round(delays[0] - offset),
        "worst_p99_ns": None if delays[1] is None else round(delays[1] - offset),
        "clock": "followed" if is_known or is_of_one_node else "unknown",
    }
    return row, pair, offset


def _offset(least_there: int | None, least_back: int | None) -> tuple[float, bool]:
    """About what the receiver's clock is ahead, and whether packets of both directions tell."""
    if least_there is None:
        return 0.0, False
    if least_back is None:
        return float(min(least_there, 0)), False
    in_step = -least_back <= 0 <= least_there
    return 0.0 if in_step else (least_there - least_back) / 2, True
