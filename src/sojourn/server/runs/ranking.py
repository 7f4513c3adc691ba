"""Many segments at once: each one's totals in a range of time, the worst first.

Totals are added up by the database from columns beside the answers, none of which is read. So clocks are corrected by
one number for each lead that points had in the range (`segments.fleet.leads`; between steps of a clock it is the same),
from the smallest delays of both directions on it: enough to find where to look; what the clocks leave unsure, and what
they drift by, is in the segment's own answer. Delays on leads of which the way back tells the clock have the word, else
those on the lead with the most packets. A round trip is not negative: a way back that would make it so
(a segment the wrong way round, or a clock that was set meanwhile) is not looked at, and where no other is there, delays
are not told: the segment may be the wrong one itself. ``worst_p99_ns`` is the largest p99 of a single run.

Cost: some 2 µs for each run in the range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL

from sojourn.core.results import row_order
from sojourn.server.runs.clocks import leads_across
from sojourn.store.epochs import read_store
from sojourn.store.runs import LeadTotals, Pair, PairTotals, RunStore

# Each point measures its lead, to a microsecond or two.
NEAR_NS = 20_000
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
    """A segment's totals, the number of the pair that they are of, and what the receiver's clock is ahead by lead."""

    row: dict[str, Any]
    pair: int
    offsets: Sequence[tuple[int | None, float]]

    def offset_ns(self, lead_ns: int | None) -> float | None:
        """About what the receiver's clock is ahead in runs on a lead; None if their delays are not told."""
        return next((offset for lead, offset in self.offsets if _is_same(lead, lead_ns)), None)


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
            row, pair, offsets = _row(name, known, back)
            found.append(RankedSegment(row=row, pair=numbers[pair], offsets=offsets))
    columns = {name: [one.row[name] for one in found] for name in (found[0].row if found else ())}
    order = row_order(columns, SORTED_BY[work.by], work.top or None) if found else None
    return found if order is None else [found[i] for i in order]


def _is_same(lead_ns: int | None, other_ns: int | None) -> bool:
    if lead_ns is None or other_ns is None:
        return lead_ns is other_ns
    return abs(lead_ns - other_ns) <= NEAR_NS


def _joined(leads: Iterable[LeadTotals]) -> list[LeadTotals]:
    """Those of leads that are the same but for how well they are measured in one."""
    found: list[LeadTotals] = []
    for one in sorted(leads, key=lambda lead: (lead.lead_ns is None, lead.lead_ns or 0)):
        if found and _is_same(found[-1].lead_ns, one.lead_ns):
            found[-1] = _added(found[-1], one)
        else:
            found.append(one)
    return found


def _added(one: LeadTotals, other: LeadTotals) -> LeadTotals:
    least = [lead.least_raw_ns for lead in (one, other) if lead.least_raw_ns is not None]
    worst = [lead.raw_p99_ns for lead in (one, other) if lead.raw_p99_ns is not None]
    parts = [(lead.told, lead.raw_mean_ns) for lead in (one, other) if lead.raw_mean_ns is not None]
    return LeadTotals(
        lead_ns=one.lead_ns,
        told=one.told + other.told,
        raw_mean_ns=_mean(parts),
        least_raw_ns=min(least, default=None),
        raw_p99_ns=max(worst, default=None),
    )


def _mean(parts: Sequence[tuple[int, float]]) -> float | None:
    count = sum(told for told, _ in parts)
    return sum(told * mean for told, mean in parts) / count if count else None


@dataclass(frozen=True)
class _Back:
    """The smallest raw delays of pairs that lead back; those across count if they do not contradict the way there."""

    across: Sequence[LeadTotals] = ()
    others: Sequence[LeadTotals] = ()

    def least(self, there: LeadTotals, *, is_across: bool) -> tuple[int | None, bool]:
        """The smallest that does not contradict the smallest `there`; and whether `there` is to be doubted instead.

        What leads across is not doubted for what does not.
        """
        if there.least_raw_ns is None:
            return None, False
        across, others = (self._beside(there, found) for found in (self.across, self.others))
        for found in (across, others):
            if right := [raw for raw in found if there.least_raw_ns + raw >= 0]:
                return min(right), False
        return None, bool(across or (others and not is_across))

    def _beside(self, there: LeadTotals, found: Sequence[LeadTotals]) -> list[int]:
        """Those on the same lead, which the other way round has the other sign; of points that tell none all."""
        return [
            one.least_raw_ns
            for one in found
            if one.least_raw_ns is not None
            and (one.lead_ns is None or there.lead_ns is None or _is_same(-one.lead_ns, there.lead_ns))
        ]


def _least_back(numbers: Mapping[Pair, int], totals: Mapping[int, PairTotals]) -> dict[tuple[str, str], _Back]:
    """What leads from one node to another."""
    told: dict[tuple[str, str], tuple[list[LeadTotals], list[LeadTotals]]] = {}
    for pair, number in numbers.items():
        if number in totals:
            ways = told.setdefault((pair.from_node, pair.to_node), ([], []))
            ways[0 if leads_across(pair) else 1].extend(totals[number].leads)
    return {way: _Back(*found) for way, found in told.items()}


def _row(
    name: str, found: Sequence[tuple[Pair, PairTotals]], least: Mapping[tuple[str, str], _Back]
) -> tuple[dict[str, Any], Pair, list[tuple[int | None, float]]]:
    # While a new plan takes over both record the same packets: the one with more of them speaks for the segment.
    pair, totals = max(found, key=lambda one: one[1].sent)
    every = _joined(lead for _, one in found for lead in one.leads)
    told = _corrected(pair, _joined(totals.leads), every, least.get((pair.to_node, pair.from_node), _Back()))
    means = [(lead.told, lead.raw_mean_ns - offset) for lead, offset, _ in told if lead.raw_mean_ns is not None]
    mean, worst = _mean(means), [lead.raw_p99_ns - offset for lead, offset, _ in told if lead.raw_p99_ns is not None]
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
        "mean_ns": None if mean is None else round(mean),
        "worst_p99_ns": round(max(worst)) if worst else None,
        "clock": "followed" if pair.from_node == pair.to_node or any(known for *_, known in told) else "unknown",
    }
    return row, pair, [(lead.lead_ns, offset) for lead, offset, _ in told]


def _corrected(
    pair: Pair, leads: Sequence[LeadTotals], every: Sequence[LeadTotals], back: _Back
) -> list[tuple[LeadTotals, float, bool]]:
    """The leads of which delays are told, each with about what the receiver's clock is ahead and whether that is known.

    The smallest delay is that of all pairs, `every`.
    """
    found = []
    for lead in leads:
        there = next((one for one in every if _is_same(one.lead_ns, lead.lead_ns)), lead)
        least, is_contradicted = back.least(there, is_across=leads_across(pair))
        if not is_contradicted or pair.from_node == pair.to_node:
            found.append((lead, *_offset(there.least_raw_ns, least)))
    known = [one for one in found if one[2]]
    return known or sorted(found, key=lambda one: one[0].told)[-1:]


def _offset(least_there: int | None, least_back: int | None) -> tuple[float, bool]:
    """About what the receiver's clock is ahead, and whether packets of both directions tell."""
    if least_there is None:
        return 0.0, False
    if least_back is None:
        return float(min(least_there, 0)), False
    in_step = -least_back <= 0 <= least_there
    return 0.0 if in_step else (least_there - least_back) / 2, True
