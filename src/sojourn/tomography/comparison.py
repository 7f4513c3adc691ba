"""Estimates and bounds against the truth of every hop, and the baselines that Domo is compared with.

An *unknown* is a delay that the trace does not state: every visit of a packet with two hops or more. The displacement
is Domo's order metric (Section VI.A): by how many places, on average, an arrival is displaced in the order of all;
it depends on the traffic's rate as much as on the method.

**MNT** knows nothing of sums of delays. A node's own packets, whose generation times are known, bracket each packet
that it forwards; packets that passed the same forwarders tighten that further; the estimate is the middle of an
arrival's bounds. It is given the same proofs of order and the same least delay as ours, so that what sets the two apart
is S and the estimate. Keller, Beutel and Thiele, "How Was Your Journey?", as Domo's Section VI.A uses it.

**Domo as published**: minimise Eq. 8, the squared differences of any two delays at a node whose packets were generated
within ε_t of each other, subject to order (Eq. 5), FIFO queues (Eq. 1) and sums (Eq. 6 and 7), window by window with
the effective ratio of Section IV.B. Where the paper cannot be implemented literally it is read so that it works:

- Eq. 4, the relaxation of Eq. 1, has no solution as printed and constrains nothing with its sign corrected
  (`sojourn.papers.domo.semidefinite` shows both). The order is used where it is proved, as MNT's bounds prove it.
- C(p) as defined contains the previous packet q and all older ones of the same origin: they are left out.
- Eq. 7 is wrong if q itself was lost: sets are used only where the sequence numbers of p and q differ by one; of other
  packets only D(p) <= S(p) is kept.
- Eq. 6 holds "if there is no packet loss": it is used if no packet seems to be missing, and left out of a window that
  has no solution with it (nodes over-count where acknowledgements are lost).
- ε_t is not given. A window is short, so it is taken to be as long; shorter ones do worse. S is rounded, so sums have
  a tolerance.

Every answer lies within MNT's bounds. Every solve's status is checked, as `estimate` does. Cost: about 0.1 ms for a
delay. Gao et al., "Domo: Passive Per-Packet Delay Tomography in Wireless Ad-hoc Networks", Section IV.

**MessageTracing**: the order of all arrivals from what nodes log. Every node writes down the packets it generates,
receives and sends, in the order in which it does so and without a time. A packet's transmission is in two logs, the
sender's and the receiver's; what is certain of two events is what follows from chains through such logs. The rest is
guessed with the help of the sink's log, the only one that has every packet: packets are on their way for a much shorter
time than they are apart, so each event is taken to be as late as the logs allow, right before the first arrival at the
sink that is certainly after it. (In the middle of what the logs allow, an event would be displaced by half a period's
packets.) The order contradicts no log. It does not exist where logs contradict each other; events in such a knot come
last. Cost: under 1 µs for an event and log.
Sundaram and Eugster, "Lightweight Message Tracing for Debugging Wireless Sensor Networks", as Domo's Section VI.A uses
it; what a truth (`sojourn.lab.wireless`, or a hops file) knows of order is all that the logs get of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import sparse

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, ranges
from sojourn.core.errors import InputError
from sojourn.core.executors.executor import Executor
from sojourn.core.kernels import kernel
from sojourn.core.results import Advance
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.bounds.propagation import Groups
from sojourn.tomography.delays.estimate import Estimates, Window, WindowOptions, solve_windows
from sojourn.tomography.delays.program import NS_PER_MS, Programs, Solver, ThreadPrograms, WindowProgram
from sojourn.tomography.trace import CollectionTrace

CLOSE_NS = 4_000_000
ROUNDING_NS = 1_000


@dataclass(frozen=True)
class Evaluation:
    """Over the unknowns whose truth is given; times in ms."""

    unknowns: int
    mae_ms: float
    share_under_4ms: float
    bound_width_ms: float
    bounds_violated: int
    displacement: float


def unknown_visits(trace: CollectionTrace) -> Int64Array:
    """The visits whose delay is not known from the trace alone."""
    lengths = np.diff(trace.start)
    return np.flatnonzero(trace.is_visit & np.repeat(lengths > 2, lengths))


def evaluate(trace: CollectionTrace, bounds: Bounds, arrival_ns: Int64Array, truth_ns: Int64Array) -> Evaluation:
    """How far estimates and bounds are from the truth; places without truth (-1) are left out."""
    visit = _compared(trace, truth_ns)
    true_delay = truth_ns[visit + 1] - truth_ns[visit]
    error = np.abs(arrival_ns[visit + 1] - arrival_ns[visit] - true_delay)
    least, most = bounds.least_ns[visit], bounds.most_ns[visit]
    outside = (true_delay < least - ROUNDING_NS) | (true_delay > most + ROUNDING_NS)
    outside |= truth_ns[visit] < bounds.low_ns[visit] - ROUNDING_NS
    outside |= truth_ns[visit] > bounds.high_ns[visit] + ROUNDING_NS
    return Evaluation(
        unknowns=len(visit),
        mae_ms=float(error.mean() / NS_PER_MS),
        share_under_4ms=float((error < CLOSE_NS).mean()),
        bound_width_ms=float((most - least).mean() / NS_PER_MS),
        bounds_violated=int(outside.sum()),
        displacement=float(displacements(trace, arrival_ns, truth_ns).mean()),
    )


def displacements(trace: CollectionTrace, arrival: Int64Array, truth_ns: Int64Array) -> Int64Array:
    """How many places each unknown's arrival is displaced; `arrival` gives every place's time, or its rank."""
    visit = _compared(trace, truth_ns)
    ranks = [np.empty(len(visit), np.int64) for _order in range(2)]
    for rank, times in zip(ranks, (arrival[visit], truth_ns[visit]), strict=True):
        rank[np.argsort(times, kind="stable")] = np.arange(len(visit))
    return np.asarray(np.abs(ranks[0] - ranks[1]))


def _compared(trace: CollectionTrace, truth_ns: Int64Array) -> Int64Array:
    """The unknowns whose truth is given."""
    visit = unknown_visits(trace)
    if not len(visit):
        raise InputError("no packet of the trace has two hops", action="leave --truth out: there is nothing to compare")
    visit = visit[(truth_ns[visit] >= 0) & (truth_ns[visit + 1] >= 0)]
    if not len(visit):
        raise InputError("the truth has none of the trace's hops", action="give the truth of the same trace")
    return visit


@dataclass(frozen=True)
class NodeLogs:
    """Node n of `node` wrote down `event[start[n]:start[n + 1]]`, in that order.

    An event is the place of the trace at which a packet arrives (or begins); the node before it logs the same as sent.
    """

    node: Int64Array
    start: Int64Array
    event: Int64Array


def logs_of(trace: CollectionTrace, truth_ns: Int64Array) -> NodeLogs:
    """What the nodes would have logged; a place without truth (-1) is in no log."""
    events = np.flatnonzero(truth_ns >= 0)
    received = events
    sent = events[trace.hop[events] > 0]
    event = np.concatenate([received, sent])
    node = np.concatenate([trace.node[received], trace.node[sent - 1]])
    arranged = np.lexsort((event, truth_ns[event], node))
    names, counts = np.unique(node, return_counts=True)
    return NodeLogs(names, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), event[arranged])


def trace_messages(trace: CollectionTrace, logs: NodeLogs) -> Int64Array:
    """The place of every event in the order reconstructed, -1 for those in no log."""
    places = len(trace.node)
    is_logged = np.zeros(places, np.bool_)
    is_logged[logs.event] = True
    until = np.full(places, len(trace), np.int64)
    until[trace.start[1:] - 1] = np.arange(len(trace))  # packets come in the order of the sink's log
    after = _successors(places, logs)
    allowed = _allowed_order(after, is_logged)
    _put_off(allowed, after, until)
    turn = np.full(places, places)
    turn[allowed] = np.arange(len(allowed))
    events = np.flatnonzero(is_logged)
    ordered = events[np.lexsort((turn[events], until[events]))]
    rank = np.full(places, -1, np.int64)
    rank[ordered] = np.arange(len(ordered))
    return rank


def _successors(events: int, logs: NodeLogs) -> Int64Array:
    """The next event of each log that an event is in: two at most, -1 for none."""
    after = np.full((events, 2), -1, np.int64)
    is_last = np.zeros(len(logs.event), np.bool_)
    is_last[logs.start[1:] - 1] = True
    here = np.flatnonzero(~is_last)
    event, following = logs.event[here], logs.event[here + 1]
    # The first entry of an event fills its first column, the second one its second.
    order = np.argsort(event, kind="stable")
    event, following = event[order], following[order]
    column = np.concatenate([[0], (np.diff(event) == 0).astype(np.int64)]) if len(event) else event
    after[event, column] = following
    return after


@kernel
def _allowed_order(after: Int64Array, is_logged: BoolArray) -> Int64Array:
    """Events in an order that all logs allow: each as soon as all that the logs have before it are through."""
    waiting = np.zeros(len(after), np.int64)
    for e in range(len(after)):
        for following in after[e]:
            if following >= 0:
                waiting[following] += 1
    ready = np.empty(len(after), np.int64)
    first = np.flatnonzero(is_logged & (waiting == 0))
    begun, done = len(first), 0
    ready[:begun] = first
    while done < begun:
        for following in after[ready[done]]:
            if following >= 0:
                waiting[following] -= 1
                if waiting[following] == 0:
                    ready[begun] = following
                    begun += 1
        done += 1
    return ready[:done]


@kernel
def _put_off(order: Int64Array, after: Int64Array, until: Int64Array) -> None:
    """Bring `until` from sink arrivals to all events that are certainly before them."""
    for place in range(len(order) - 1, -1, -1):
        for following in after[order[place]]:
            if following >= 0:
                until[order[place]] = min(until[order[place]], until[following])


def mnt_bounds(trace: CollectionTrace, options: ConstraintOptions | None = None) -> Bounds:
    """Bounds from order and FIFO queues alone."""
    return bound(trace, replace(options or ConstraintOptions(), sums=Sums.UNUSED))


def mnt_arrivals(bounds: Bounds) -> Int64Array:
    """MNT's estimate of every arrival: the middle of its bounds."""
    return (bounds.low_ns + bounds.high_ns) // 2


TINY = 1e-6  # on the squares of the unknowns, for those that nothing else constrains


def published(
    trace: CollectionTrace,
    bounds: Bounds,
    constraints: ConstraintOptions | None = None,
    window: WindowOptions | None = None,
    *,
    executor: Executor | None = None,
    advance: Advance | None = None,
) -> Estimates:
    """The arrival time of every place as the paper estimates it, within the `published_bounds` given."""
    solver = partial(_solve_window, ThreadPrograms(_programs, trace, bounds, constraints or ConstraintOptions()))
    return solve_windows(trace, bounds, solver, window or WindowOptions(), executor=executor, advance=advance)


def _solve_window(programs: ThreadPrograms, window: Window) -> tuple[Int64Array | None, Counter[str]]:
    solves: Counter[str] = Counter()
    makers = programs()
    for maker in makers:
        delay = _solve(maker.make(window.packets), solves)
        if delay is not None:
            return np.rint(delay * NS_PER_MS).astype(np.int64), solves
        solves["relaxed" if maker is not makers[-1] else "unsolved"] += 1
    return None, solves


def _programs(trace: CollectionTrace, bounds: Bounds, constraints: ConstraintOptions) -> list[Programs]:
    """Of programs with Eq. 6, if it is used, and of those without it."""
    readings = [bounds, replace(bounds, is_exact=False)] if bounds.is_exact else [bounds]
    return [
        Programs(trace, reading, tolerance_ns=constraints.tolerance_ns, epsilon_ns=constraints.epsilon_ns)
        for reading in readings
    ]


def published_bounds(trace: CollectionTrace, constraints: ConstraintOptions | None = None) -> Bounds:
    """Order and proved FIFO as bounds, with the paper's candidate sets; `is_exact` where Eq. 6 is used."""
    constraints = constraints or ConstraintOptions()
    bounds = mnt_bounds(trace, constraints)
    if constraints.sums is Sums.UNUSED:
        return bounds
    is_exact = trace.is_complete if constraints.sums is Sums.AUTO else constraints.sums is Sums.EXACT
    return replace(bounds, groups=_candidate_sets(trace), is_exact=is_exact)


def _candidate_sets(trace: CollectionTrace) -> Groups:
    """C(p) and, as its sure members, C*(p) of every packet with a sum; p alone where the packet before is missing."""
    order = np.lexsort((trace.t0_ns, trace.sequence, trace.origin))
    previous = np.full(len(trace), -1, np.int64)
    follows = (np.diff(trace.origin[order]) == 0) & (np.diff(trace.sequence[order]) == 1)
    follows &= np.diff(trace.t0_ns[order]) > 0
    previous[order[1:]] = np.where(follows, order[:-1], -1)
    own = order[trace.sum_ns[order] >= 0]
    is_closed = previous[own] >= 0
    group, member = _candidates(trace, own, previous)
    group, member = np.concatenate([np.arange(len(own)), group]), np.concatenate([trace.start[own], member])
    arranged = np.lexsort((np.arange(len(group)) >= len(own), group))
    group, member = group[arranged], member[arranged]
    packet, before, after = trace.owner[member], previous[own[group]], own[group]
    is_sure = packet == after
    is_sure |= (trace.t0_ns[packet] > trace.t0_ns[before]) & (trace.sink_ns[packet] < trace.t0_ns[after])
    return Groups(
        start=np.searchsorted(group, np.arange(len(own) + 1)).astype(np.int64),
        member=member,
        before=trace.start[np.where(is_closed, previous[own], own)],
        last=trace.start[own],
        sum_ns=trace.sum_ns[own],
        is_sure=is_sure,
        is_out=np.zeros(len(group), np.bool_),
        is_used=np.ones(len(own), np.bool_),
        is_closed=is_closed,
        is_whole=is_closed,
    )


def _candidates(trace: CollectionTrace, own: Int64Array, previous: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Group and visit of each forwarded packet x of C(p): at p's origin, t0(x) < t0(p), at the sink after t0(q)."""
    owner = trace.owner
    forwarded = np.flatnonzero(trace.is_visit & (trace.hop > 0))
    forwarded = forwarded[np.argsort(trace.node[forwarded], kind="stable")]
    closed = np.flatnonzero(previous[own] >= 0)  # in the order of origins, and of times within each
    begins = np.searchsorted(trace.origin[own[closed]], trace.node[forwarded])
    ends = np.searchsorted(trace.origin[own[closed]], trace.node[forwarded], side="right")
    groups, members = [closed[:0]], [forwarded[:0]]
    edges = np.flatnonzero(np.diff(trace.node[forwarded])) + 1
    for visits in np.split(np.arange(len(forwarded)), edges):
        if not len(visits) or begins[visits[0]] == ends[visits[0]]:
            continue
        at_node = closed[begins[visits[0]] : ends[visits[0]]]
        packet = owner[forwarded[visits]]
        first = np.searchsorted(trace.t0_ns[own[at_node]], trace.t0_ns[packet], side="right")
        last = np.searchsorted(trace.t0_ns[previous[own[at_node]]], trace.sink_ns[packet], side="left")
        count = np.maximum(last - first, 0)
        groups.append(at_node[ranges(first, count)[0]])
        members.append(np.repeat(forwarded[visits], count))
    return np.concatenate(groups), np.concatenate(members)


def _solve(program: WindowProgram, solves: Counter[str]) -> FloatArray | None:
    """The delays of the program's visits in ms; None if no solver converges."""
    unknowns = program.delay.shape[1]
    if not unknowns:
        return program.delay_known
    program, square, linear = _around_means(program)
    x = Solver(program, solves).solve(square, linear)
    return None if x is None else np.asarray(program.delay @ x[:unknowns] + program.delay_known)


def _around_means(program: WindowProgram) -> tuple[WindowProgram, sparse.csc_matrix, FloatArray]:
    """Eq. 8 over all pairs of a node: its visits times the squares around its mean, an unknown of its own.

    That is the same sum (the mean that minimises it is the delays'), but sparse.
    """
    visits = len(program.visits)
    member = sparse.csr_matrix((np.ones(visits), (np.arange(visits), program.node)), shape=(visits, program.nodes))
    deviation = sparse.hstack([program.delay, -member], format="csr")
    weight = np.bincount(program.node, minlength=program.nodes)[program.node]
    rows = sparse.hstack([program.rows, sparse.csc_matrix((program.rows.shape[0], program.nodes))], format="csc")
    # Upper triangle and linear part of dᵀ W d for d = `deviation @ x` and the known delays.
    weighted = 2 * (sparse.diags(weight / weight.mean()) @ deviation)
    square = deviation.T @ weighted + TINY * sparse.identity(deviation.shape[1])
    linear = np.asarray(weighted.T @ program.delay_known)
    return replace(program, rows=rows), sparse.triu(square, format="csc"), linear


def evaluate_baselines(
    trace: CollectionTrace,
    truth_ns: Int64Array,
    options: ConstraintOptions,
    window: WindowOptions,
    *,
    executor: Executor | None = None,
    advance: Advance | None = None,
) -> dict[str, float]:
    """Mean error and displacement as published, and the displacement of MessageTracing's order."""
    bounds = published_bounds(trace, options)
    answer = published(trace, bounds, options, window, executor=executor, advance=advance)
    literal = evaluate(trace, bounds, answer.arrival_ns, truth_ns)
    order = trace_messages(trace, logs_of(trace, truth_ns))
    return {
        "published_mae_ms": literal.mae_ms,
        "published_displacement": literal.displacement,
        "tracing_displacement": float(displacements(trace, order, truth_ns).mean()),
    }
