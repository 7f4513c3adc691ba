"""Windows of a trace that is still growing: which may be solved now, and the answers of one.

A *span* of generation times is solved when packets from well after it have arrived. As with `windows`, only the middle
of what is solved is kept, and what is kept of all spans covers every packet once. Only packets that can bear on the
kept ones are needed: those on their way to the sink while any of the span was.

Differences from a whole trace: the period is the span's own; sums are equations only until some span contradicts that;
a sum whose members may lie before the span is not used there. Bounds are guaranteed as for a whole trace, as packets
left out are like packets lost.
Memory and cost: those of `bound`, `estimate` and `intervals` for one window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.delays.estimate import EstimateOptions, estimate
from sojourn.tomography.delays.intervals import Intervals, intervals
from sojourn.tomography.trace import MISSING, CollectionTrace, PacketRow, make_trace
from sojourn.tomography.windows import WindowOptions

FEWEST_STEPS = 5

PacketKey = tuple[int, int, int]


@dataclass(frozen=True)
class WindowSpan:
    """Answers are kept of packets generated in ``begin_ns … end_ns``; they rest on what reached the sink from
    ``since_ns`` on and was generated before ``until_ns``."""

    begin_ns: int
    end_ns: int
    since_ns: int
    until_ns: int


@dataclass(frozen=True, eq=False)
class PacketAnswer:
    """The delay at every hop of one packet, its bounds, and its interval."""

    delay_ns: Int64Array
    low_ns: Int64Array
    high_ns: Int64Array
    likely_low_ns: Int64Array
    likely_high_ns: Int64Array


@dataclass(frozen=True, eq=False)
class SolvedSpan:
    """Answers by packet; packets kept that are not among them could not be used.

    `may_be_exact`: whether nothing contradicts sums as equations. `conflicts` are those of kept packets.
    """

    answers: dict[PacketKey, PacketAnswer]
    may_be_exact: bool
    conflicts: int
    is_solved: bool


def packet_key(row: PacketRow) -> PacketKey:
    """What identifies a packet: origin, sequence number (which wraps) and generation time."""
    return row[0], row[1], row[3]


def period_of(rows: Sequence[PacketRow]) -> int | None:
    """The usual time between two packets of one origin; None if too few follow each other."""
    if not rows:
        return None
    trace = make_trace(rows)
    order = np.lexsort((trace.sequence, trace.origin))
    steps = (np.diff(trace.origin[order]) == 0) & (np.diff(trace.sequence[order]) == 1)
    return trace.period_ns if steps.sum() >= FEWEST_STEPS else None


def next_span(
    begin_ns: int,
    newest_ns: int,
    period_ns: int,
    options: WindowOptions | None = None,
    *,
    share: float = 1.0,
    is_closing: bool = False,
) -> WindowSpan | None:
    """The span from `begin_ns` (a packet's generation) on, or None if packets that bear on it may be missing yet.

    With `is_closing` nothing more is waited for, and the last span goes to the newest packet. A `share` below 1
    makes the span and its margins that much shorter, where packets are too many.
    """
    options = options or WindowOptions()
    length = max(int(options.periods * period_ns * share), 1)
    step = max(int(length * options.ratio), 1)
    margin = (length - step) // 2
    end = begin_ns + step
    if is_closing and newest_ns - end < margin:
        end = max(newest_ns, begin_ns) + 1
    elif newest_ns < end + margin and not is_closing:
        return None
    return WindowSpan(begin_ns, end, begin_ns - margin, end + margin)


def solve_span(
    rows: Sequence[PacketRow],
    span: WindowSpan,
    options: ConstraintOptions | None = None,
    *,
    may_be_exact: bool = True,
) -> SolvedSpan:
    """Bounds, estimates and intervals of the packets kept, from the rows that bear on them."""
    options = options or ConstraintOptions()
    if not may_be_exact and options.sums is Sums.AUTO:
        options = replace(options, sums=Sums.OWN)
    trace = make_trace(rows)
    trace = replace(trace, sum_ns=np.where(_reaches_before(trace, span.since_ns), MISSING, trace.sum_ns))
    bounds = bound(trace, options)
    # One window over all: its packets were chosen for that.
    periods = int(trace.t0_ns.max() - trace.t0_ns.min()) / trace.period_ns + 2
    how = EstimateOptions(
        window=WindowOptions(periods=periods, ratio=1.0),
        tolerance_ns=options.tolerance_ns,
        epsilon_ns=options.epsilon_ns,
    )
    found = estimate(trace, bounds, how)
    likely = intervals(trace, bounds, found.arrival_ns)
    kept = (trace.t0_ns >= span.begin_ns) & (trace.t0_ns < span.end_ns)
    return SolvedSpan(
        _answers(trace, bounds, found.arrival_ns, likely, np.flatnonzero(kept)),
        may_be_exact and bounds.is_exact,
        sum(bool(kept[conflict.packet]) for conflict in bounds.conflicts),
        not found.solves.get("unsolved", 0),
    )


def _reaches_before(trace: CollectionTrace, since_ns: int) -> BoolArray:
    """Packets whose sum may include delays of packets that were not taken: the one before is older than the span."""
    order = np.lexsort((trace.sequence, trace.origin))
    follows = (np.diff(trace.origin[order]) == 0) & (np.diff(trace.sequence[order]) == 1)
    is_early = trace.t0_ns[order][:-1] < since_ns
    found = np.zeros(len(trace), np.bool_)
    found[order[1:][follows & is_early]] = True
    return found


def _answers(
    trace: CollectionTrace, bounds: Bounds, arrival_ns: Int64Array, likely: Intervals, packets: Int64Array
) -> dict[PacketKey, PacketAnswer]:
    answers = {}
    for packet in packets.tolist():
        first, last = int(trace.start[packet]), int(trace.start[packet + 1]) - 1
        key = int(trace.origin[packet]), int(trace.shown_sequence[packet]), int(trace.t0_ns[packet])
        answers[key] = PacketAnswer(
            np.diff(arrival_ns[first : last + 1]),
            *(column[first:last] for column in (bounds.least_ns, bounds.most_ns, likely.low_ns, likely.high_ns)),
        )
    return answers
