"""The most likely delay of every packet at every hop: a sparse quadratic program for each window.

Delays at one node are similar (Domo, Eq. 8). Instead of all pairs of them, each delay is shrunk towards its node's
centre: that weighs every visit once, not by its node's traffic. Rounds alternate between the two: centres come from the
last round's delays (an even division of the packets' times at first), and delays minimise squared distances to them
(`program.NodeCentres`). All of it within the guaranteed bounds, the proved FIFO order and the sums. Where S may
over-count (acknowledgements or packets lost) it is an upper bound which pulls its members up, with a penalty like the
logarithm of what remains; harder in small groups, as those over-count least. A window whose sums contradict each other
is solved once more with sums that may be exceeded, at a price: a node that gave up a packet which arrived did not count
it.

The programs' answer is then blended with the posterior's mean. The programs are robust to outliers: the most likely
delays. The posterior weighs all that is known by its variance: the mean of what the delays may be. Their errors are
correlated only in part, so a blend errs less than either. Where the posterior has no model it gets no weight: the tails
of packets that took much longer than others (those have one slow hop, not all hops a little slower), and queueing.

Guarantee: every answer lies within the bounds, and a packet's delays add up to its time. Every solve's status is
checked: what OSQP leaves unconverged Clarabel solves; what neither does is counted, and keeps its last round's answer
or the middle of its bounds. Cost: about 0.09 ms for a delay.

Overlapping time windows: each is solved as a whole, and only its middle is kept.

Packets near a window's ends lack the constraints of packets beyond; a share (`ratio`, Domo's effective time window
ratio, Section IV.B) around the middle is kept of each window, and windows lie so that what is kept covers every packet
once. The first and the last window keep everything up to the trace's ends. Cost: packets are solved 1 / ratio times.

Windows of a trace that is still growing: which may be solved now, and the answers of one.

A *span* of generation times is solved when packets from well after it have arrived. As with `windows`, only the middle
of what is solved is kept, and what is kept of all spans covers every packet once. Only packets that can bear on the
kept ones are needed: those on their way to the sink while any of the span was.

Differences from a whole trace: the period is the span's own; sums are equations only until some span contradicts that;
a sum whose members may lie before the span is not used there. Bounds are guaranteed as for a whole trace, as packets
left out are like packets lost.
Memory and cost: those of `bound`, `estimate` and `intervals` for one window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.core.executors.executor import Executor, LocalExecutor
from sojourn.core.kernels import kernel
from sojourn.core.results import Advance
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.delays.nodes import node_factors, waits
from sojourn.tomography.delays.posterior import Intervals, Posteriors, chunks_of, intervals
from sojourn.tomography.delays.program import NS_PER_MS, NodeCentres, Programs, Solver, ThreadPrograms, WindowProgram
from sojourn.tomography.trace import MISSING, CollectionTrace, PacketRow, make_trace

MOST_PERIODS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """The length of a window in generation periods, and the share of it that is kept."""

    periods: float = 4.0
    ratio: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.periods <= MOST_PERIODS:
            raise ParameterError(f"a window of {self.periods:g} periods", action=f"use 0 … {MOST_PERIODS:,}")
        if not 0 < self.ratio <= 1:
            raise ParameterError(f"an effective ratio of {self.ratio}", action="use a share above 0, up to 1")


@dataclass(frozen=True)
class Window:
    """The packets to solve together, and those of them whose answers are kept (both as places in the trace)."""

    packets: Int64Array
    kept: Int64Array


def windows(t0_ns: Int64Array, period_ns: int, options: WindowOptions) -> Iterator[Window]:
    """Windows over packets by generation time; every packet is kept by exactly one."""
    order = np.argsort(t0_ns, kind="stable")
    times = t0_ns[order]
    length = max(int(options.periods * period_ns), 1)
    step = max(int(length * options.ratio), 1)
    margin = (length - step) // 2
    first, last = int(times[0]), int(times[-1])
    begin = first
    while begin <= last:
        # Where nothing was generated there is nothing to solve: there are no more windows than packets.
        begin = max(begin, int(times[np.searchsorted(times, begin)]))
        end = begin + step
        if last - end < margin:
            end = last + 1
        inside = np.searchsorted(times, [begin - margin, end + margin])
        kept = np.searchsorted(times, [begin, end])
        yield Window(np.sort(order[inside[0] : inside[1]]), np.sort(order[kept[0] : kept[1]]))
        begin = end


def keep_delays(
    trace: CollectionTrace,
    bounds: Bounds,
    delay_ns: Int64Array,
    arrival_ns: Int64Array,
    window: Window | None = None,
) -> None:
    """Take over visits' delays as arrivals, in place, each brought into what is left of its bounds.

    The visits are all, or those of a window's packets, of which only the kept ones are taken over. A solver meets
    bounds only to its tolerance; going from the origin on, an arrival within reach of the one before always exists, as
    the bounds are a fixpoint.
    """
    packets = np.arange(len(trace)) if window is None else window.packets
    is_kept = np.isin(packets, packets if window is None else window.kept, assume_unique=True)
    _keep(
        trace.start, packets, is_kept, delay_ns,
        bounds.low_ns, bounds.high_ns, bounds.least_ns, bounds.most_ns, arrival_ns,
    )  # fmt: skip


@kernel
def _keep(
    start: Int64Array,
    packets: Int64Array,
    is_kept: BoolArray,
    delay: Int64Array,
    low: Int64Array,
    high: Int64Array,
    least: Int64Array,
    most: Int64Array,
    arrival: Int64Array,
) -> None:
    visit = 0
    for k in range(len(packets)):
        for place in range(start[packets[k]], start[packets[k] + 1] - 1):
            if is_kept[k]:
                earliest = max(low[place + 1], arrival[place] + least[place])
                latest = min(high[place + 1], arrival[place] + most[place])
                within = max(min(arrival[place] + delay[visit], latest), earliest)
                arrival[place + 1] = max(min(within, high[place + 1]), low[place + 1])
            visit += 1


SHARE = 0.5  # of the posterior, for a packet that took no longer than usual (seeds 1 to 20)
LONGEST_WAIT = 0.1  # of a packet's time, for others; the posterior knows nothing of queues


def blend(trace: CollectionTrace, bounds: Bounds, arrival_ns: Int64Array) -> Int64Array:
    """The arrivals given, shrunk towards the posterior's means."""
    posteriors = Posteriors(trace, bounds, arrival_ns)
    delay, is_visit = np.diff(arrival_ns, append=arrival_ns[-1]), trace.is_visit
    share = np.repeat(_shares(trace, arrival_ns), np.diff(trace.start))
    for packets in chunks_of(trace):
        answer = posteriors.of(packets)
        away = answer.mean * NS_PER_MS - delay[answer.place]
        delay[answer.place] += np.rint(share[answer.place] * away).astype(np.int64)
    blended = arrival_ns.copy()
    keep_delays(trace, bounds, delay[is_visit], blended)
    return blended


def _shares(trace: CollectionTrace, arrival_ns: Int64Array) -> FloatArray:
    """The posterior's share in each packet's delays."""
    visit = np.flatnonzero(trace.is_visit)
    owner = trace.owner[visit]
    waited = np.bincount(owner, waits(trace.node[visit], arrival_ns[visit], arrival_ns[visit + 1]), len(trace))
    total = (trace.sink_ns - trace.t0_ns).astype(np.float64)
    hop = (total - waited) / (np.diff(trace.start) - 1)
    longer = np.maximum(hop / max(float(np.median(hop)), 1.0), 1.0)
    return np.where(waited <= LONGEST_WAIT * total, SHARE / longer**2, 0.0)


EXCESS = 4.0  # what a ms beyond S costs, in centres: more than its members can gain by it
REMAINS = 3.0  # what remains of S costs like log(1 + remains / REMAINS centres)
ROUNDS, PULL = 10, 0.3  # PULL: how hard sums pull their members up
NARROW = 0.55  # of the tolerance of sums, which leaves ± 0.3 ms
SECONDS_PER_PLACE = 15e-6  # about, of one processor, to see whether workers are worth starting


@dataclass(frozen=True)
class Estimates:
    """The arrival time of every place.

    `solves` counts programs by solver, windows whose sums had to be `relaxed` to their full tolerance or made
    `elastic`, and those that stayed `unsolved`.
    """

    arrival_ns: Int64Array
    solves: dict[str, int]

    @property
    def delay_ns(self) -> Int64Array:
        """Of every place but the last; meaningless at a sink's place, as the next one is another packet's."""
        return np.diff(self.arrival_ns, append=self.arrival_ns[-1])


def estimate(
    trace: CollectionTrace,
    bounds: Bounds,
    constraints: ConstraintOptions | None = None,
    window: WindowOptions | None = None,
    *,
    executor: Executor | None = None,
    advance: Advance | None = None,
) -> Estimates:
    """Arrival times of every place, window by window; the executor's workers solve windows side by side.

    `constraints` are those that the bounds were made with.
    """
    believed = bounds.believed or bounds
    programs = ThreadPrograms(_programs, trace, bounds, constraints or ConstraintOptions(), node_factors(trace))
    solver = partial(_solve_window, programs)
    found = solve_windows(trace, believed, solver, window or WindowOptions(), executor=executor, advance=advance)
    arrival = blend(trace, believed, found.arrival_ns)
    if believed is not bounds:  # a contradiction, or linear programs, may have left some of them narrower
        keep_delays(trace, bounds, np.diff(arrival, append=arrival[-1])[trace.is_visit], arrival)
    return Estimates(arrival, found.solves)


def solve_windows(
    trace: CollectionTrace,
    bounds: Bounds,
    solver: Callable[[Window], tuple[Int64Array | None, Counter[str]]],
    options: WindowOptions,
    *,
    executor: Executor | None = None,
    advance: Advance | None = None,
) -> Estimates:
    """What a solver of single windows makes of all of them; the middle of the bounds where it has no delays."""
    arrival = (bounds.low_ns + bounds.high_ns) // 2
    solves: Counter[str] = Counter()
    done = 0
    pieces = list(windows(trace.t0_ns, trace.period_ns, options))
    seconds = SECONDS_PER_PLACE * len(trace.node) / options.ratio
    run = executor or LocalExecutor(1)
    with closing(run.map(solver, pieces, seconds=seconds)) as solved:
        for window, (delay_ns, counts) in zip(pieces, solved, strict=True):
            solves.update(counts)
            if delay_ns is not None:
                keep_delays(trace, bounds, delay_ns, arrival, window)
            done += len(window.kept)
            if advance is not None:
                advance("solving windows", done / len(trace))
    return Estimates(arrival, {name: count for name, count in solves.items() if count})


def _solve_window(programs: ThreadPrograms, window: Window) -> tuple[Int64Array, Counter[str]]:
    solves: Counter[str] = Counter()
    for maker, failure in zip(programs(), ("relaxed", "elastic", "unsolved"), strict=True):
        delay, is_finished = _solve_rounds(maker.make(window.packets), solves)
        if is_finished:
            break
        solves[failure] += 1
    return np.rint(delay * NS_PER_MS).astype(np.int64), solves


def _programs(trace: CollectionTrace, bounds: Bounds, options: ConstraintOptions, factor: FloatArray) -> list[Programs]:
    believed = bounds.believed or bounds
    # What a false sum made of the bounds must not bind where sums may be exceeded.
    doubted = replace(bounds, groups=believed.groups, is_exact=False)
    # Sums pull their members to the edge of their tolerance: a narrow one is better, if it leaves a solution.
    narrow = int(NARROW * options.tolerance_ns)
    ways = ((believed, narrow, False), (believed, options.tolerance_ns, False), (doubted, narrow, True))
    return [
        Programs(trace, how, tolerance_ns=tolerance, epsilon_ns=options.epsilon_ns, factor=factor, is_elastic=loose)
        for how, tolerance, loose in ways
    ]


def _solve_rounds(program: WindowProgram, solves: Counter[str]) -> tuple[FloatArray, bool]:
    """The delays of the program's visits in ms, and whether every round had a solution.

    Centres come from the last round's delays, then delays from the centres; the first to have no solution ends it.
    """
    x = np.zeros(program.delay.shape[1])
    if not len(x):
        return program.delay_known, True
    solver, centres = Solver(program, solves), NodeCentres(program)
    for number in range(ROUNDS):
        square, linear = centres.objective()
        linear += _pull(program, centres.scale, x, number)
        linear[len(x) - program.excesses :] += EXCESS * centres.scale
        better = solver.solve(square, linear)
        if better is None:
            return np.asarray(program.delay @ x + program.delay_known), False
        x = better
        centres.learn(x, number)
        if centres.is_rearranged:
            solver.forget()
    return np.asarray(program.delay @ x + program.delay_known), True


def _pull(program: WindowProgram, scale: float, x: FloatArray, number: int) -> FloatArray:
    """The linear cost of the unknowns that pulls groups up to their sums: the penalty's slope at the last round."""
    remains = np.maximum(-(program.pull @ x + program.pull_known), 0) if number else 0.0
    slope = PULL * scale**2 * (1 + 3 / (program.pull_members - 0.9)) / (remains + REMAINS * scale)
    return np.asarray(-(program.pull.T @ slope))


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
    *,
    share: float = 1.0,
    is_closing: bool = False,
) -> WindowSpan | None:
    """The span from `begin_ns` (a packet's generation) on, or None if packets that bear on it may be missing yet.

    With `is_closing` nothing more is waited for, and the last span goes to the newest packet. A `share` below 1
    makes the span and its margins that much shorter, where packets are too many.
    """
    options = WindowOptions()
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
    found = estimate(trace, bounds, options, WindowOptions(periods=periods, ratio=1.0))
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
