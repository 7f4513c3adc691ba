"""Bounds on every arrival time, tightened to a fixpoint: order, FIFO queues, sums of delays one by one and combined.

Guarantee: if the constraints are true, the true times lie within the bounds. No constraint is relaxed,
and none is used that is not proved: the order of two packets at a node is proved by intervals that do not overlap, at
that node or at another of the sub-path that both share around it (a shared sub-path that reaches the sink settles it,
as the order there is known). A constraint that contradicts the bounds is left out from then on and reported.

Places, `low` and `high` are in ns; a visit is the place where a packet waits, the place behind it is its departure.
Cost: a pass over visits, pairs of visits that overlap at a node, and members of groups, about 1 µs for each; later
passes look only at what depends on packets whose bounds have changed since.

Combining sums. A packet that was in group g at one node and in group h at the next took at least so long for both hops
together, which is often more than the least of each hop adds up to: it waited at one node or the other. Where two or
more packets did that, g's and h's sums together leave less for all others than each sum by itself. Propagation of one
sum at a time cannot see it; of what linear programs find beyond it, this is most. A *hub* is taken with all the groups
that its members came from, then with all that they went on to (its *spokes*):

    Σ over hub and spokes of all delays ≤ their S and tolerances,

with a packet's two hops counted by what they take together at least. Its *excess* is that less the least of each. A
spoke that has more excess than slack (what S leaves beyond the least of all members) takes the difference from what the
hub's members may have, and so do the others together with the hub's slack from what the spoke's members may have.
Sums are taken as upper bounds only. Cost: a sort of the visits, then a few passes over links and members of groups, of
spokes only where there is something to gain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.kernels import borrowing_inlined, borrowing_kernel, inlined, kernel

ORDER, FIFO, SUM = 0, 1, 2
CONFLICT_LIMIT = 1_000
ROUNDING_NS = 1_000  # times that disagree by less than this are equal
PAIRS_PER_VISIT = 256
UNKNOWN, BEFORE, AFTER, DISABLED = 0, 1, -1, 2


class Groups(NamedTuple):
    """The sums of delays: group g's possible members, its own packet's visit first; which are sure, which are out.

    Members `member[start[g]:start[g + 1]]` entered the queue after visit `before[g]`; `last[g]` is the packet's own.
    """

    start: Int64Array
    member: Int64Array
    before: Int64Array
    last: Int64Array
    sum_ns: Int64Array
    is_sure: BoolArray
    is_out: BoolArray
    is_used: BoolArray
    is_closed: BoolArray  # whether the packet before is known, and with it all members
    is_whole: BoolArray  # whether no other packet of the trace can be in it


class Problem(NamedTuple):
    """Places of packets with the bounds that are tightened in place, pairs of visits, and what to believe of nodes."""

    start: Int64Array
    owner: Int64Array
    node: Int64Array
    is_local: BoolArray
    low: Int64Array
    high: Int64Array
    least: Int64Array
    most: Int64Array
    first: Int64Array
    second: Int64Array
    order: Int64Array  # of each pair, once it is proved
    sink: int
    epsilon: int
    tolerance: int
    is_exact: bool


class Progress(NamedTuple):
    """What propagation has done so far.

    `touched` is the round in which a packet's bounds last changed: what was looked at after that would give the same
    again. `found` counts conflicts, of which `conflicts` has the first: kind and two visits.
    """

    touched: Int64Array
    found: Int64Array
    conflicts: Int64Array


@kernel
def find_pairs(
    node_start: Int64Array, by_node: Int64Array, low: Int64Array, high: Int64Array, epsilon: int
) -> tuple[Int64Array, Int64Array, int]:
    """Pairs of visits at one node that may have waited together, and how many were left out beyond the limit.

    `by_node[node_start[n]:node_start[n + 1]]` are a node's visits in order of their earliest arrival.
    """
    count, left_out = 0, 0
    first, second = np.empty(0, np.int64), np.empty(0, np.int64)
    for fill in range(2):
        if fill:
            first, second = np.empty(count, np.int64), np.empty(count, np.int64)
        count, left_out = 0, 0
        for n in range(len(node_start) - 1):
            for i in range(node_start[n], node_start[n + 1]):
                x = by_node[i]
                for j in range(i + 1, node_start[n + 1]):
                    y = by_node[j]
                    if low[y] >= high[x + 1] + epsilon:
                        break
                    if j - i > PAIRS_PER_VISIT:
                        left_out += 1
                        break
                    if fill:
                        first[count], second[count] = x, y
                    count += 1
    return first, second, left_out


@borrowing_inlined
def _enters_before(x: int, y: int, at: Problem) -> int:
    """The order in which two visits enter one queue, from their arrivals alone.

    A forwarded packet is stamped when its frame begins and enters up to `epsilon` later; a local one enters at once.
    """
    x_late = 0 if at.is_local[x] or not at.is_local[y] else at.epsilon
    y_late = 0 if at.is_local[y] or not at.is_local[x] else at.epsilon
    if at.high[x] + x_late < at.low[y]:
        return BEFORE
    if at.high[y] + y_late < at.low[x]:
        return AFTER
    return UNKNOWN


@borrowing_inlined
def decided(x: int, y: int, at: Problem) -> int:
    """Which of two visits at one node is proved to be first: `BEFORE` if x is, `AFTER` if y is, else `UNKNOWN`."""
    node, low, high = at.node, at.low, at.high
    found = _enters_before(x, y, at)
    # Queues are FIFO: who is first at a later node of the shared sub-path was first here, too.
    i, j = x + 1, y + 1
    while found == UNKNOWN and node[i] == node[j]:
        if high[i] < low[j]:
            found = BEFORE
        elif high[j] < low[i]:
            found = AFTER
        if node[i] == at.sink:
            break
        i, j = i + 1, j + 1
    # And so was who entered an earlier one first.
    i, j = x, y
    while found == UNKNOWN and not at.is_local[i] and not at.is_local[j] and node[i - 1] == node[j - 1]:
        i, j = i - 1, j - 1
        found = _enters_before(i, j, at)
    return found


@borrowing_inlined
def _raise(low: Int64Array, high: Int64Array, place: int, value: int) -> int:
    """Lift a lower bound: 0 when it was there already, 1 when it rose, 2 when it would pass the upper one."""
    if value <= low[place]:
        return 0
    if value > high[place]:
        if value > high[place] + ROUNDING_NS:
            return 2
        value = high[place]
        if value == low[place]:
            return 0
    low[place] = value
    return 1


@borrowing_inlined
def _lower(low: Int64Array, high: Int64Array, place: int, value: int) -> int:
    """Bring an upper bound down, as `_raise` does for a lower one."""
    if value >= high[place]:
        return 0
    if value < low[place]:
        if value < low[place] - ROUNDING_NS:
            return 2
        value = low[place]
        if value == high[place]:
            return 0
    high[place] = value
    return 1


@borrowing_inlined
def _note(progress: Progress, kind: int, x: int, y: int) -> None:
    count = progress.found[0]
    if count < len(progress.conflicts):
        progress.conflicts[count, 0], progress.conflicts[count, 1], progress.conflicts[count, 2] = kind, x, y
    progress.found[0] = count + 1


@borrowing_inlined
def _order_pass(at: Problem, progress: Progress, done: int) -> bool:
    """Arrival and departure of each visit differ by at least `least` and at most `most`."""
    start, low, high, least, most = at.start, at.low, at.high, at.least, at.most
    changed = False
    for p in range(len(start) - 1):
        if progress.touched[p] < done - 1:
            continue
        worst, moved = 0, False
        for v in range(start[p], start[p + 1] - 1):
            a = _raise(low, high, v + 1, low[v] + least[v])
            b = _lower(low, high, v + 1, high[v] + most[v])
            moved |= a == 1 or b == 1
            worst = max(worst, a, b)
        for v in range(start[p + 1] - 2, start[p] - 1, -1):
            a = _lower(low, high, v, high[v + 1] - least[v])
            b = _raise(low, high, v, low[v + 1] - most[v])
            moved |= a == 1 or b == 1
            worst = max(worst, a, b)
        changed |= moved
        if moved or worst == 2:
            progress.touched[p] = done
        if worst == 2:  # the least or most delay is wrong for this packet: use nothing but the order of it
            _note(progress, ORDER, start[p], start[p])
            for v in range(start[p], start[p + 1] - 1):
                least[v], most[v] = 0, high[start[p + 1] - 1] - low[start[p]]
        for v in range(start[p], start[p + 1] - 1):
            least[v] = max(least[v], min(low[v + 1] - high[v], most[v]))
            most[v] = min(most[v], max(high[v + 1] - low[v], least[v]))
    return changed


@borrowing_inlined
def _apply_order(x: int, y: int, at: Problem) -> int:
    """x is before y at one node: it arrived and left before it; 2 where that cannot be."""
    early = at.epsilon if at.is_local[x] and not at.is_local[y] else 0
    a = _raise(at.low, at.high, y + 1, at.low[x + 1])
    b = _lower(at.low, at.high, x + 1, at.high[y + 1])
    c = _raise(at.low, at.high, y, at.low[x] - early)
    d = _lower(at.low, at.high, x, at.high[y] + early)
    return max(a, b, c, d)


@borrowing_inlined
def _fifo_pass(at: Problem, progress: Progress, done: int) -> bool:
    """Who entered a queue first leaves it first, for pairs whose order is proved by now."""
    order, owner, touched = at.order, at.owner, progress.touched
    changed = False
    for k in range(len(at.first)):
        x, y = at.first[k], at.second[k]
        if touched[owner[x]] < done - 1 and touched[owner[y]] < done - 1:
            continue
        if order[k] == UNKNOWN:
            order[k] = decided(x, y, at)
        if order[k] != BEFORE and order[k] != AFTER:
            continue
        x, y = (y, x) if order[k] == AFTER else (x, y)
        effect = _apply_order(x, y, at)
        if effect == 2:
            order[k] = DISABLED
            _note(progress, FIFO, x, y)
        if effect > 0:  # of its four bounds some may have moved before one could not
            touched[owner[x]], touched[owner[y]] = done, done
        changed |= effect == 1
    return changed


@borrowing_inlined
def _is_touched(g: int, at: Problem, groups: Groups, progress: Progress, done: int) -> bool:
    """Whether the bounds of a packet that a group depends on have changed since it was looked at."""
    latest = progress.touched[at.owner[groups.before[g]]]
    for k in range(groups.start[g], groups.start[g + 1]):
        latest = max(latest, progress.touched[at.owner[groups.member[k]]])
    return bool(latest >= done - 1)


@borrowing_inlined
def _find_members(g: int, at: Problem, groups: Groups) -> None:
    """Whom the bounds prove to have entered the queue within the group's time, or outside of it."""
    for k in range(groups.start[g] + 1, groups.start[g + 1]):
        if not (groups.is_sure[k] or groups.is_out[k]):
            after = decided(groups.before[g], groups.member[k], at)
            until = decided(groups.member[k], groups.last[g], at)
            groups.is_sure[k] = after == BEFORE and until == BEFORE
            groups.is_out[k] = after == AFTER or until == AFTER


@borrowing_inlined
def _sum_pass(g: int, at: Problem, groups: Groups) -> int:
    """The members' delays add up to at most S, and to S where nothing else can be in it."""
    start, member, least, most = groups.start, groups.member, at.least, at.most
    is_equation = at.is_exact and groups.is_closed[g]
    total_least, total_most = 0, 0
    for k in range(start[g], start[g + 1]):
        if groups.is_sure[k]:
            total_least += least[member[k]]
        if not groups.is_out[k]:
            total_most += most[member[k]]
    upper_sum, lower_sum = groups.sum_ns[g] + at.tolerance, groups.sum_ns[g] - at.tolerance
    if total_least > upper_sum or (is_equation and total_most < lower_sum):
        return 2
    changed = 0
    for k in range(start[g], start[g + 1]):
        v = member[k]
        if groups.is_sure[k]:
            # What all others take at least, or at most, leaves this for the member.
            upper = upper_sum - (total_least - least[v])
            if upper < most[v]:
                most[v] = upper
                changed = 1
            lower = lower_sum - (total_most - most[v])
            if is_equation and lower > least[v] and lower <= most[v]:
                least[v] = lower
                changed = 1
    return changed


@borrowing_kernel
def propagate(at: Problem, groups: Groups, progress: Progress, rounds: int) -> int:
    """Tighten all bounds in place to a fixpoint, or for `rounds`; the rounds used."""
    for done in range(rounds):
        changed = _order_pass(at, progress, done)
        changed |= _fifo_pass(at, progress, done)
        for g in range(len(groups.sum_ns)):
            if not groups.is_used[g] or not _is_touched(g, at, groups, progress, done):
                continue
            _find_members(g, at, groups)
            effect = _sum_pass(g, at, groups)
            if effect == 2:
                groups.is_used[g] = False
                _note(progress, SUM, groups.last[g], groups.before[g])
            if effect == 1:
                for k in range(groups.start[g], groups.start[g + 1]):
                    progress.touched[at.owner[groups.member[k]]] = done
                changed = True
        if not changed:
            return done + 1
    return rounds


LARGEST_EXCESS = 1 << 40  # of a packet; more than any sum can be, and little enough to add up millions of them


class _Links(NamedTuple):
    """Packets that went from one group straight into another, by hub and then by spoke, and the groups' slack."""

    group_of: Int64Array
    at_hub: Int64Array
    at_spoke: Int64Array
    excess: Int64Array
    slack: Int64Array


def combine_sums(is_visit: BoolArray, at: Problem, groups: Groups) -> bool:
    """Lower `most` in place where groups together constrain more than each by itself; whether they did."""
    low, high, least, sizes = at.low, at.high, at.least, np.diff(groups.start)
    inside = groups.is_sure & np.repeat(groups.is_used, sizes)
    group = np.repeat(np.arange(len(groups.sum_ns)), sizes)
    group_of = np.full(len(low), -1, np.int64)
    group_of[groups.member[inside]] = group[inside]
    visit = np.flatnonzero(is_visit[:-1] & is_visit[1:] & (group_of[:-1] >= 0) & (group_of[1:] >= 0))
    excess = np.clip(low[visit + 2] - high[visit] - least[visit] - least[visit + 1], 0, LARGEST_EXCESS)
    visit, excess = visit[excess > 0], excess[excess > 0]
    used = np.add.reduceat(np.where(inside, least[groups.member], 0), groups.start[:-1])
    slack = groups.sum_ns + at.tolerance - used
    changed = False
    for at_hub, at_spoke in ((visit + 1, visit), (visit, visit + 1)):
        order = np.lexsort((group_of[at_spoke], group_of[at_hub]))
        links = _Links(group_of, at_hub[order], at_spoke[order], excess[order], slack)
        changed |= _combine(links, least, at.most, groups)
    return changed


@kernel
def _combine(links: _Links, least: Int64Array, most: Int64Array, groups: Groups) -> bool:
    """Every hub with its spokes; links come by hub and then by spoke."""
    group_of, at_hub, at_spoke, excess, slack = links
    changed = False
    own = np.zeros(len(least), np.int64)  # what a member's own excess takes away, but not from itself
    end = 0
    while end < len(at_hub):
        begin, hub = end, group_of[at_hub[end]]
        total = 0
        while end < len(at_hub) and group_of[at_hub[end]] == hub:
            until, together = _spoke(links, end)
            total += max(0, together - slack[group_of[at_spoke[end]]])
            end = until
        if end - begin < 2:
            continue
        first = begin
        while first < end:
            spoke = group_of[at_spoke[first]]
            until, together = _spoke(links, first)
            gain = max(0, together - slack[spoke])
            taken = together + total - gain - slack[hub]
            if taken > 0:
                own[at_spoke[first:until]] = excess[first:until]
                changed |= _cap(spoke, slack[spoke] - taken, own, least, most, groups)
                own[at_spoke[first:until]] = 0
            for k in range(first, until):
                own[at_hub[k]] = gain - max(0, together - excess[k] - slack[spoke])
            first = until
        if total > 0:
            changed |= _cap(hub, slack[hub] - total, own, least, most, groups)
        own[at_hub[begin:end]] = 0
    return changed


@inlined
def _spoke(links: _Links, first: int) -> tuple[int, int]:
    """Where the links of one hub and spoke end, and their excess together."""
    group_of, at_hub, at_spoke, excess, _slack = links
    hub, spoke = group_of[at_hub[first]], group_of[at_spoke[first]]
    until, together = first, 0
    while until < len(at_hub) and group_of[at_hub[until]] == hub and group_of[at_spoke[until]] == spoke:
        together += excess[until]
        until += 1
    return until, together


@inlined
def _cap(group: int, room: int, own: Int64Array, least: Int64Array, most: Int64Array, groups: Groups) -> bool:
    """Members stay for their least and what room there is, at most; without any the sums contradict each other."""
    changed = False
    for k in range(groups.start[group], groups.start[group + 1]):
        visit = groups.member[k]
        longest = least[visit] + room + own[visit]
        if room >= 0 and groups.is_sure[k] and longest < most[visit]:
            most[visit] = longest
            changed = True
    return changed
