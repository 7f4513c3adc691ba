"""Ranges of runs that ledgers tell of: exact losses and means, and the packets that were lost.

What a run misses may be late, and arrive in the next one; what it has too much was sent in the one before, or passed
its marker. All of these packets are named, so nothing has to be estimated: **lost** are the packets that were sent in a
range's runs and arrived in none of these, nor in the runs right before and after. At an edge beside which no run is
told of, packets that were sent within `REACH_NS` of it are *doubtful*: they may be lost or not. The mean is that of the
packets that arrived in the range's runs.

Guarantee: a flow is answered here only if every run that has it knows it exactly, all packets together only if every
run is complete; what cannot be is left as `answers.combine` has it. Delays are as uncertain as the clocks.
Cost: O(flows + named packets) for each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Estimate, FlowDelays, Reason
from sojourn.estimation.differences import Losses
from sojourn.estimation.ledgers.answer import METHOD, REACH_NS
from sojourn.segments.answer import Interval
from sojourn.segments.fleet.answers import RunAnswer, clock_room
from sojourn.segments.fleet.clocks import ClockAt
from sojourn.segments.fleet.ledgers.naming import NO_PACKETS
from sojourn.segments.fleet.ledgers.runs import LedgerRun
from sojourn.sketches.ledgers.ledger import LedgerPackets


@dataclass(frozen=True, eq=False)
class LostPackets:
    """Packets that were lost, in the order in which they were sent; ``doubtful`` ones may have arrived elsewhere."""

    packets: LedgerPackets
    doubtful: BoolArray

    def __len__(self) -> int:
        return len(self.doubtful)

    def at(self, rows: Int64Array) -> LostPackets:
        """Some of them."""
        return LostPackets(_select(self.packets, rows), self.doubtful[rows])

    def of(self, flow_id: UInt64Array) -> tuple[Int64Array, Int64Array]:
        """How many each flow has lost, and how many of these are doubtful."""
        order = np.argsort(flow_id)
        place = order[np.minimum(np.searchsorted(flow_id[order], self.packets.flow_id), len(flow_id) - 1)]
        known = flow_id[place] == self.packets.flow_id
        counts = [np.bincount(place[known & rows], minlength=len(flow_id)) for rows in (True, self.doubtful)]
        return counts[0], counts[1]


@dataclass(frozen=True)
class Around:
    """The runs right before and after a range, where there are any that follow without a gap."""

    earlier: RunAnswer | None = None
    later: RunAnswer | None = None


def lost_packets(answers: Sequence[RunAnswer], gaps: Sequence[int], around: Around) -> LostPackets:
    """The packets that these runs have lost, as far as ledgers tell of them."""
    chain = [around.earlier, *answers, around.later]
    extra = [one.ledger.extra.packet_id for one in chain if one is not None and one.ledger is not None]
    arrived = np.unique(np.concatenate([*extra, np.empty(0, np.uint64)]))
    found, doubts = [NO_PACKETS], [np.zeros(0, bool)]
    for place, answer in enumerate(answers):
        if answer.ledger is None:
            continue
        is_first, is_last = place in gaps, place + 1 in gaps
        before = None if is_first else chain[place]
        after = None if is_last else chain[place + 2]
        missing = _select(answer.ledger.missing, ~np.isin(answer.ledger.missing.packet_id, arrived))
        found.append(missing)
        doubts.append(_near_open_edge(missing, answer, before, after))
    packets = LedgerPackets(
        *(np.concatenate([getattr(one, name) for one in found]) for name in ("flow_id", "packet_id", "time_ns"))
    )
    order = np.argsort(packets.time_ns, kind="stable")
    return LostPackets(_select(packets, order), np.concatenate(doubts)[order])


def _near_open_edge(
    packets: LedgerPackets, answer: RunAnswer, before: RunAnswer | None, after: RunAnswer | None
) -> BoolArray:
    """Which packets are near an edge of a run beside which nothing is told of."""
    doubtful = np.zeros(len(packets), bool)
    if before is None or before.ledger is None:
        doubtful |= packets.time_ns <= answer.interval.first_ns + REACH_NS
    if after is None or after.ledger is None:
        doubtful |= packets.time_ns >= answer.interval.last_ns - REACH_NS
    return doubtful


def _select(packets: LedgerPackets, rows: Int64Array | BoolArray) -> LedgerPackets:
    return LedgerPackets(packets.flow_id[rows], packets.packet_id[rows], packets.time_ns[rows])


def exactly(
    interval: Interval, answers: Sequence[RunAnswer], clocks: Sequence[ClockAt], gaps: Sequence[int], around: Around
) -> Interval:
    """The answer of runs with all that ledgers tell of them; without `foreign` flows, as `combine` gives it."""
    runs = [answer.ledger for answer in answers if answer.ledger is not None]
    flows = interval.flows
    if flows is None or not len(flows.flow_id) or len(runs) < len(answers):
        return interval
    sums = _Sums.of(flows.flow_id, runs, clocks)
    lost = lost_packets(answers, gaps, around)
    interval = replace(interval, flows=sums.applied(flows, lost))
    return _with_totals(interval, sums, lost) if all(run.is_complete for run in runs) else interval


@dataclass(frozen=True, eq=False)
class _Sums:
    """What runs add up to for each flow: packets, those that arrived, and the sum of their delays by one clock, which
    may be lower and higher by as much."""

    sent: Int64Array
    delivered: Int64Array
    delay_ns: FloatArray
    below_ns: FloatArray
    above_ns: FloatArray
    known: BoolArray
    timed: BoolArray

    @classmethod
    def of(cls, flow_id: UInt64Array, runs: Sequence[LedgerRun], clocks: Sequence[ClockAt]) -> _Sums:
        sent, delivered = np.zeros((2, len(flow_id)), np.int64)
        delay, below, above = np.zeros((3, len(flow_id)))
        known, timed = np.ones((2, len(flow_id)), bool)
        order = np.argsort(flow_id)
        for run, clock in zip(runs, clocks, strict=True):
            place = np.minimum(np.searchsorted(flow_id[order], run.flow_id), len(flow_id) - 1)
            rows = order[place]
            its = flow_id[rows] == run.flow_id
            rows, arrived = rows[its], run.delivered[its]
            sent[rows] += run.sent[its]
            delivered[rows] += arrived
            known[rows] &= run.known[its]
            timed[rows] &= clock.tells_delays | (arrived == 0)
            delay[rows] += run.delay_ns[its] + (run.offset_ns - clock.offset_ns) * arrived
            room = clock_room([clock], np.ones(1))
            below[rows] += room[0] * arrived
            above[rows] += room[1] * arrived
        return cls(sent, delivered, delay, below, above, known, known & timed & (delivered > 0))

    def applied(self, flows: FlowDelays, lost: LostPackets) -> FlowDelays:
        """The flows that are known, exact; the others as they are."""
        arrived = np.maximum(self.delivered, 1)
        mean = self.delay_ns / arrived
        columns = {
            "mean_ns": np.where(self.timed, mean, flows.mean_ns),
            "low_ns": np.where(self.timed, mean - self.below_ns / arrived, flows.low_ns),
            "high_ns": np.where(self.timed, mean + self.above_ns / arrived, flows.high_ns),
        }
        gone, doubtful = lost.of(flows.flow_id)
        ends = {"packets": (self.sent, self.sent, self.sent), "lost": (gone, gone - doubtful, gone)}
        for name, values in ends.items():
            for column, value in zip((name, f"{name}_low", f"{name}_high"), values, strict=True):
                before = getattr(flows, column)
                otherwise = getattr(flows, name) if before is None else before
                columns[column] = np.where(self.known, value.astype(np.float64), otherwise)
        methods = [
            METHOD if timed else how for timed, how in zip(self.timed.tolist(), flows.method_of_flow, strict=True)
        ]
        reason: list[Reason | None] = [
            None if timed else why for timed, why in zip(self.timed.tolist(), flows.reason, strict=True)
        ]
        samples = np.where(self.timed, self.delivered, flows.samples)
        return replace(flows.with_columns(columns), samples=samples, methods=methods, reason=reason)


def _with_totals(interval: Interval, sums: _Sums, lost: LostPackets) -> Interval:
    """The totals of runs that are complete: losses by the packets, the mean where all flows are known."""
    assert interval.flows is not None
    totals = interval.totals
    count, doubtful = int(np.isin(lost.packets.flow_id, interval.flows.flow_id).sum()), lost.doubtful
    is_doubtful = int((doubtful & np.isin(lost.packets.flow_id, interval.flows.flow_id)).sum())
    totals = replace(totals, losses=Losses(count, count - is_doubtful, count, totals.losses.extra))
    delivered = int(sums.delivered.sum())
    if int(sums.sent.sum()) == totals.sent and delivered and (sums.timed | (sums.known & (sums.delivered == 0))).all():
        mean, below, above = (float(part.sum()) / delivered for part in (sums.delay_ns, sums.below_ns, sums.above_ns))
        told = Estimate(mean, mean - below, mean + above, delivered, METHOD)
        totals = replace(totals, delays=replace(totals.delays, mean=told))
    return replace(interval, totals=totals)
