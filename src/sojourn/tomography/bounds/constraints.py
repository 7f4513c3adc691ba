"""What is known about a trace's arrival times before anything is estimated: guaranteed bounds, and what proves them.

Order (Domo, Eq. 5): a packet stays at a node for ω or longer. ω is given, or learnt from the packets that went straight
to the sink, whose delay is known.
FIFO (Eq. 1): packets leave a node in the order they entered its queue; forwarded packets enter up to ε after their
arrival is stamped. The order is used where it is proved, never relaxed.
Sums (Eq. 6 and 7): S of a local packet includes the delays of all packets that entered the queue after the local packet
before it. If that one (the sequence number before) is missing, S still includes the packet's own delay. Nodes
over-count when acknowledgements or packets get lost, so S is an upper bound, and an equation only on request
(`Sums.EXACT`).
A node that gives a packet up does not count it, though the next node may have it and the sink get it. Where anything
was lost, that cannot be excluded, and S bounds its packet's own delay alone (`Sums.OWN`).
Groups that share packets constrain more together (`propagation.combine_sums`).

Guarantee: the true times lie within the bounds if these statements are true. Cost: see `propagation`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from sojourn.core.arrays import Int64Array, ranges
from sojourn.core.errors import ParameterError
from sojourn.tomography.bounds.propagation import (
    CONFLICT_LIMIT,
    FIFO,
    ORDER,
    SUM,
    Groups,
    Problem,
    Progress,
    combine_sums,
    find_pairs,
    propagate,
)
from sojourn.tomography.delays.nodes import node_factors
from sojourn.tomography.trace import CollectionTrace

OMEGA_SHARE = 0.9  # a margin: packets not in the trace may have been faster (constants: seeds 1 to 20, docs/maths)
FEWEST_DIRECT, FEWEST_NEIGHBOURS, SMALLEST = 20, 5, 10
ROUNDS = 200  # a bound on time
COMBINATIONS = 6  # of sums; later ones find next to nothing
GROUPS_PER_VISIT = 16  # a bound on memory
# Of sums that would show it; where one packet in twenty lost an acknowledgement, so many show none 1 time in 20.
FEWEST_TELLING = 60
_WRITTEN, _WRITTEN_GROUPS = ("low_ns", "high_ns", "least_ns", "most_ns", "order"), ("is_sure", "is_out", "is_used")
_KINDS = {ORDER: "order", FIFO: "fifo", SUM: "sum of delays"}


class Sums(StrEnum):
    """How a packet's sum of delays is read."""

    AUTO = "auto"
    EXACT = "exact"
    UPPER = "upper"
    OWN = "own"
    UNUSED = "unused"


@dataclass(frozen=True, kw_only=True)
class ConstraintOptions:
    """What to believe about the nodes; `omega_ns` None is learnt from the trace."""

    omega_ns: int | None = None
    epsilon_ns: int = 2_100_000
    tolerance_ns: int = 550_000  # S is rounded to 1 ms
    sums: Sums = Sums.AUTO

    def __post_init__(self) -> None:
        if min(self.omega_ns or 0, self.epsilon_ns, self.tolerance_ns) < 0:
            raise ParameterError("a negative least delay, tolerance or queue-entry time", action="use 0 or more")


@dataclass(frozen=True)
class Conflict:
    """Two packets (places of the trace) that a constraint of this kind cannot be true for together."""

    kind: str
    packet: int
    other: int


@dataclass(frozen=True)
class Bounds:
    """Every place's arrival is within `low_ns` and `high_ns`, every visit's delay within `least_ns` and `most_ns`.

    `believed`, if there, are narrower: valid if S lacks no packet that the sink has. Estimates rest on them, as
    what S lacks is rare.
    """

    low_ns: Int64Array
    high_ns: Int64Array
    least_ns: Int64Array
    most_ns: Int64Array
    first: Int64Array  # pairs of visits that may have waited together …
    second: Int64Array
    order: Int64Array  # … and which is first: 1, -1, or 0 where it is not proved
    groups: Groups
    is_exact: bool  # whether estimates may take sums as equations
    omega_ns: Int64Array
    conflicts: list[Conflict]
    conflict_count: int
    pairs_left_out: int
    rounds: int
    believed: Bounds | None = None


def learn_omega(trace: CollectionTrace) -> int:
    """ω learnt from the packets that went straight to the sink; 0 if those, or the nodes they are of, are too few.

    Nodes further off may be faster than the sink's neighbours. Sums show it, as a packet's own delay is in its sum: ω
    stays below the smallest one. So do totals, where nodes clearly differ: ω falls as the fastest node's factor does.
    The smallest delay seen lies above the least possible one, by less than what separates the ten smallest but for 1 in
    500 traces (near its end a density is flat, so gaps there are similar): that much is taken off before the margin.
    """
    direct = np.diff(trace.start) == 2
    delay = trace.sink_ns[direct] - trace.t0_ns[direct]
    if len(delay) < FEWEST_DIRECT or len(np.unique(trace.origin[direct])) < FEWEST_NEIGHBOURS:
        return 0
    smallest = np.partition(delay, SMALLEST)[:SMALLEST]
    learnt = int(2 * smallest.min() - smallest.max())
    sums = trace.sum_ns[trace.sum_ns >= 0]
    if len(sums):
        learnt = min(learnt, int(sums.min()))
    factor = node_factors(trace)
    learnt = int(learnt * factor[trace.is_visit].min() / factor[trace.start[:-1][direct]].min())
    return max(0, int(OMEGA_SHARE * learnt))


def bound(trace: CollectionTrace, options: ConstraintOptions | None = None) -> Bounds:
    """Guaranteed bounds of every arrival time and delay.

    With `Sums.AUTO` estimates take sums as equations (`is_exact`) if no packet seems to be missing and no sum exceeds,
    or lies below, what its members can have waited. That is evidence, not proof, as a few lost acknowledgements may
    pass unseen. Where it is strong, bounds take sums as upper bounds of all their members. Otherwise a node may have
    given up a packet that arrived, and bounds rest on what S includes whatever was lost: its packet's own delay.
    """
    options = options or ConstraintOptions()
    if options.sums not in (Sums.AUTO, Sums.OWN):
        return _bound(trace, options)
    upper = _bound(trace, replace(options, sums=Sums.UPPER))
    if options.sums is Sums.AUTO and _seems_exact(trace, upper, options):
        upper = replace(upper, is_exact=True)
        if _would_show_losses(trace, upper):
            return upper
    certain = _bound(trace, replace(options, sums=Sums.OWN))
    return replace(
        certain,
        believed=upper,
        is_exact=upper.is_exact,
        conflicts=upper.conflicts,
        conflict_count=upper.conflict_count,
    )


def _seems_exact(trace: CollectionTrace, upper: Bounds, options: ConstraintOptions) -> bool:
    """Whether nothing in the trace contradicts sums as equations."""
    groups = upper.groups
    if not trace.is_complete or upper.conflict_count or not len(groups.sum_ns):
        return False
    if (_room(upper)[groups.is_closed] < -options.tolerance_ns).any():
        return False
    return not _bound(trace, replace(options, sums=Sums.EXACT)).conflict_count


def _would_show_losses(trace: CollectionTrace, bounds: Bounds) -> bool:
    """Whether many sums with forwarded packets, or most, would have shown two usual delays counted too many."""
    groups = bounds.groups
    usual = int((trace.sink_ns - trace.t0_ns).sum()) // int(trace.is_visit.sum())
    room = _room(bounds)[groups.is_closed & (np.diff(groups.start) > 1)]
    telling = int((room < 2 * usual).sum())
    return telling >= min(FEWEST_TELLING, len(room) / 2)


def _room(bounds: Bounds) -> Int64Array:
    """By how much the members of each sum can have waited longer than that."""
    groups = bounds.groups
    possible = np.where(groups.is_out, 0, bounds.most_ns[groups.member])
    return np.asarray(np.add.reduceat(possible, groups.start[:-1]) - groups.sum_ns)


def _bound(trace: CollectionTrace, options: ConstraintOptions) -> Bounds:
    least_ns = learn_omega(trace) if options.omega_ns is None else options.omega_ns
    omega = np.full(len(trace.node), least_ns, np.int64)
    low, high, least, most = _order_bounds(trace, omega)
    visits = np.flatnonzero(trace.is_visit)
    by_node = visits[np.lexsort((low[visits], trace.node[visits]))]
    edges = np.flatnonzero(np.diff(trace.node[by_node])) + 1
    node_start = np.concatenate([[0], edges, [len(by_node)]]).astype(np.int64)
    first, second, left_out = find_pairs(node_start, by_node, low, high, options.epsilon_ns)
    groups = _groups(trace, low, high, options)
    order = np.zeros(len(first), np.int64)
    is_exact = options.sums is Sums.EXACT
    start = Bounds(low, high, least, most, first, second, order, groups, is_exact, omega, [], 0, left_out, 0)
    return _propagated(trace, start, options)


def tighten(trace: CollectionTrace, bounds: Bounds, options: ConstraintOptions) -> Bounds:
    """Propagate bounds that were narrowed by other means; the given ones stay as they are."""
    groups = bounds.groups._replace(**{name: getattr(bounds.groups, name).copy() for name in _WRITTEN_GROUPS})
    own = {name: getattr(bounds, name).copy() for name in _WRITTEN}
    return _propagated(trace, replace(bounds, groups=groups, **own), options)


def _propagated(trace: CollectionTrace, bounds: Bounds, options: ConstraintOptions) -> Bounds:
    """The bounds at their fixpoint; what `_WRITTEN` and `_WRITTEN_GROUPS` name is changed in place."""
    at, groups = problem_of(trace, bounds, options), bounds.groups
    rounds = found = 0
    conflicts: list[Conflict] = []
    for number in range(COMBINATIONS + 1):
        if number and not (len(groups.sum_ns) and combine_sums(trace.is_visit, at, groups)):
            break
        progress = Progress(np.full(len(trace), -1), np.zeros(1, np.int64), np.zeros((CONFLICT_LIMIT, 3), np.int64))
        rounds += propagate(at, groups, progress, ROUNDS)
        count = int(progress.found[0])
        found += count
        for kind, x, y in progress.conflicts[: min(count, CONFLICT_LIMIT)].tolist():
            conflicts.append(Conflict(_KINDS[kind], int(at.owner[x]), int(at.owner[y])))
    return replace(
        bounds,
        conflicts=bounds.conflicts + conflicts,
        conflict_count=bounds.conflict_count + found,
        rounds=bounds.rounds + rounds,
    )


def problem_of(trace: CollectionTrace, bounds: Bounds, options: ConstraintOptions) -> Problem:
    """What kernels work on; arrays are the bounds' own."""
    return Problem(
        trace.start, trace.owner, trace.node, trace.hop == 0,
        bounds.low_ns, bounds.high_ns, bounds.least_ns, bounds.most_ns, bounds.first, bounds.second, bounds.order,
        trace.sink, options.epsilon_ns, options.tolerance_ns, options.sums is Sums.EXACT,
    )  # fmt: skip


def _order_bounds(trace: CollectionTrace, omega: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Arrival and delay bounds from the order constraint alone; `omega` is lowered where a packet was faster."""
    lengths = np.diff(trace.start)
    total = trace.sink_ns - trace.t0_ns
    visit = trace.is_visit
    needed = np.add.reduceat(np.where(visit, omega, 0), trace.start[:-1])
    omega[np.repeat(needed > total, lengths)] = 0
    omega[~visit] = 0
    passed = np.cumsum(omega) - omega
    since_origin = passed - np.repeat(passed[trace.start[:-1]], lengths)
    until_sink = np.repeat(passed[trace.start[1:] - 1], lengths) - passed
    low = np.repeat(trace.t0_ns, lengths) + since_origin
    high = np.repeat(trace.sink_ns, lengths) - until_sink
    high[trace.start[:-1]] = trace.t0_ns
    low[trace.start[1:] - 1] = trace.sink_ns
    return low, high, omega.copy(), np.repeat(total, lengths)


def _groups(trace: CollectionTrace, low: Int64Array, high: Int64Array, options: ConstraintOptions) -> Groups:
    """A group for every local packet with a sum: what may have entered the queue since the local packet before it.

    If that one is missing from the trace it is not known since when, and the group has the packet alone; so does
    every group with `Sums.OWN`.
    """
    by_origin = np.lexsort((trace.sequence, trace.origin))
    own = by_origin[trace.sum_ns[by_origin] >= 0] if options.sums is not Sums.UNUSED else by_origin[:0]
    previous_of = np.full(len(trace), -1, np.int64)
    previous_of[by_origin[1:]] = np.where(np.diff(trace.origin[by_origin]) == 0, by_origin[:-1], -1)
    own = own[np.lexsort((trace.t0_ns[own], trace.origin[own]))]
    has_previous = previous_of[own] >= 0
    previous = np.where(has_previous, previous_of[own], own)
    opens_ns = np.where(has_previous, trace.t0_ns[previous], -1)
    is_closed = has_previous & (trace.sequence[own] - trace.sequence[previous] == 1) & (trace.t0_ns[own] > opens_ns)
    group, member = _possible_members(trace, low, high, opens_ns, own, options.epsilon_ns)
    has_others = np.bincount(group, minlength=len(own)) > 0
    is_closed &= options.sums is not Sums.OWN
    group, member = group[is_closed[group]], member[is_closed[group]]
    group = np.concatenate([np.arange(len(own)), group])
    member = np.concatenate([trace.start[own], member])
    is_own = np.arange(len(group)) < len(own)
    arranged = np.lexsort((~is_own, group))
    return Groups(
        start=np.searchsorted(group[arranged], np.arange(len(own) + 1)).astype(np.int64),
        member=member[arranged],
        before=trace.start[previous],
        last=trace.start[own],
        sum_ns=trace.sum_ns[own],
        is_sure=is_own[arranged],
        is_out=np.zeros(len(group), np.bool_),
        is_used=np.ones(len(own), np.bool_),
        is_closed=is_closed,
        is_whole=is_closed | ~has_others,
    )


def _possible_members(
    trace: CollectionTrace,
    low: Int64Array,
    high: Int64Array,
    opens_ns: Int64Array,
    own: Int64Array,
    epsilon_ns: int,
) -> tuple[Int64Array, Int64Array]:
    """Group and visit of every forwarded packet that may have entered between the group's two local packets."""
    forwarded = np.flatnonzero(trace.is_visit & (trace.hop > 0))
    # One number orders groups by node and then by time, so that one search finds each visit's groups.
    base = int(trace.t0_ns.min())
    span = int(trace.sink_ns.max()) - base + epsilon_ns + 2
    nodes, rank = np.unique(trace.node, return_inverse=True)
    unit = 1 + (len(nodes) * span >> 61)  # coarser only where years of ns for many nodes would overflow
    step = span // unit + 2
    closes = rank[trace.start[own]] * step + (trace.t0_ns[own] - base) // unit
    earliest = rank[forwarded] * step + (low[forwarded] - base) // unit
    latest = rank[forwarded] * step + (high[forwarded] + epsilon_ns - base) // unit
    sorter = np.argsort(closes, kind="stable")
    begin = np.searchsorted(closes[sorter], earliest, side="left")
    end = np.minimum(np.searchsorted(closes[sorter], latest, side="left") + 1, len(closes))
    count = np.minimum(end - begin, GROUPS_PER_VISIT)
    visit = np.repeat(forwarded, count)
    group = sorter[ranges(begin, count)[0]]
    possible = trace.node[visit] == trace.origin[own[group]]
    possible &= high[visit] + epsilon_ns > opens_ns[group]
    possible &= low[visit] <= trace.t0_ns[own[group]]
    return group[possible], visit[possible]
