"""Bounds on every arrival time, tightened to a fixpoint: order, FIFO queues, sums of delays one by one and combined.

Guarantee: if the constraints hold for the true times, the true times lie within the bounds. No constraint is relaxed,
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

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.kernels import inlined, kernel

__all__ = ["CONFLICT_LIMIT", "FIFO", "ORDER", "SUM", "combine_sums", "decided", "find_pairs", "propagate"]

ORDER, FIFO, SUM = 0, 1, 2
CONFLICT_LIMIT = 1_000
ROUNDING_NS = 1_000  # times that disagree by less than this are equal
PAIRS_PER_VISIT = 256
UNKNOWN, BEFORE, AFTER, DISABLED = 0, 1, -1, 2


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


@inlined
def _enters_before(x: int, y: int, low: Int64Array, high: Int64Array, is_local: BoolArray, epsilon: int) -> int:
    """The order in which two visits enter one queue, from their arrivals alone.

    A forwarded packet is stamped when its frame begins and enters up to `epsilon` later; a local one enters at once.
    """
    x_late = 0 if is_local[x] or not is_local[y] else epsilon
    y_late = 0 if is_local[y] or not is_local[x] else epsilon
    if high[x] + x_late < low[y]:
        return BEFORE
    if high[y] + y_late < low[x]:
        return AFTER
    return UNKNOWN


@inlined
def decided(
    x: int, y: int, node: Int64Array, low: Int64Array, high: Int64Array, is_local: BoolArray, sink: int, epsilon: int
) -> int:
    """Which of two visits at one node is proved to be first: `BEFORE` if x is, `AFTER` if y is, else `UNKNOWN`."""
    found = _enters_before(x, y, low, high, is_local, epsilon)
    i, j = x + 1, y + 1
    while found == UNKNOWN and node[i] == node[j]:
        if high[i] < low[j]:
            found = BEFORE
        elif high[j] < low[i]:
            found = AFTER
        if node[i] == sink:
            break
        i, j = i + 1, j + 1
    i, j = x, y
    while found == UNKNOWN and not is_local[i] and not is_local[j] and node[i - 1] == node[j - 1]:
        i, j = i - 1, j - 1
        found = _enters_before(i, j, low, high, is_local, epsilon)
    return found


@inlined
def _raise(low: Int64Array, high: Int64Array, place: int, value: int) -> int:
    """Lift a lower bound: 0 when it stood there, 1 when it rose, 2 when it would pass the upper one."""
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


@inlined
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


@inlined
def _note(conflicts: Int64Array, count: int, kind: int, x: int, y: int) -> int:
    if count < len(conflicts):
        conflicts[count, 0], conflicts[count, 1], conflicts[count, 2] = kind, x, y
    return count + 1


@inlined
def _order_pass(
    start: Int64Array,
    low: Int64Array,
    high: Int64Array,
    least: Int64Array,
    most: Int64Array,
    conflicts: Int64Array,
    found: int,
    touched: Int64Array,
    done: int,
) -> tuple[bool, int]:
    """Arrival and departure of each visit differ by at least `least` and at most `most`."""
    changed = False
    for p in range(len(start) - 1):
        if touched[p] < done - 1:
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
            touched[p] = done
        if worst == 2:  # the least or most delay is wrong for this packet: ask nothing but the order of it
            found = _note(conflicts, found, ORDER, start[p], start[p])
            for v in range(start[p], start[p + 1] - 1):
                least[v], most[v] = 0, high[start[p + 1] - 1] - low[start[p]]
        for v in range(start[p], start[p + 1] - 1):
            least[v] = max(least[v], min(low[v + 1] - high[v], most[v]))
            most[v] = min(most[v], max(high[v + 1] - low[v], least[v]))
    return changed, found


@inlined
def _apply_order(
    x: int, y: int, low: Int64Array, high: Int64Array, is_local: BoolArray, spacing: int, epsilon: int
) -> int:
    """x is before y at one node: it arrived and left before it; 2 where that cannot be."""
    early = epsilon if is_local[x] and not is_local[y] else 0
    a = _raise(low, high, y + 1, low[x + 1] + spacing)
    b = _lower(low, high, x + 1, high[y + 1] - spacing)
    c = _raise(low, high, y, low[x] - early)
    d = _lower(low, high, x, high[y] + early)
    return max(a, b, c, d)


@inlined
def _sum_pass(
    g: int,
    group_start: Int64Array,
    member: Int64Array,
    is_sure: BoolArray,
    is_out: BoolArray,
    sums: Int64Array,
    tolerance: int,
    is_exact: bool,
    least: Int64Array,
    most: Int64Array,
) -> int:
    """The members' delays add up to at most S, and to S where nothing else can be in it."""
    total_least, total_most = 0, 0
    for k in range(group_start[g], group_start[g + 1]):
        if is_sure[k]:
            total_least += least[member[k]]
        if not is_out[k]:
            total_most += most[member[k]]
    if total_least > sums[g] + tolerance or (is_exact and total_most < sums[g] - tolerance):
        return 2
    changed = 0
    for k in range(group_start[g], group_start[g + 1]):
        v = member[k]
        if is_sure[k]:
            upper = sums[g] + tolerance - (total_least - least[v])
            if upper < most[v]:
                most[v] = upper
                changed = 1
            lower = sums[g] - tolerance - (total_most - most[v])
            if is_exact and lower > least[v] and lower <= most[v]:
                least[v] = lower
                changed = 1
    return changed


@inlined
def _fifo_pass(
    node: Int64Array,
    sink: int,
    low: Int64Array,
    high: Int64Array,
    is_local: BoolArray,
    first: Int64Array,
    second: Int64Array,
    state: Int64Array,
    spacing: int,
    epsilon: int,
    conflicts: Int64Array,
    found: int,
    owner: Int64Array,
    touched: Int64Array,
    done: int,
) -> tuple[bool, int]:
    """Who entered a queue first leaves it first, for pairs whose order is proved by now."""
    changed = False
    for k in range(len(first)):
        x, y = first[k], second[k]
        if touched[owner[x]] < done - 1 and touched[owner[y]] < done - 1:
            continue
        if state[k] == UNKNOWN:
            state[k] = decided(x, y, node, low, high, is_local, sink, epsilon)
        if state[k] != BEFORE and state[k] != AFTER:
            continue
        x, y = (y, x) if state[k] == AFTER else (x, y)
        effect = _apply_order(x, y, low, high, is_local, spacing, epsilon)
        if effect == 2:
            state[k] = DISABLED
            found = _note(conflicts, found, FIFO, x, y)
        if effect > 0:  # of its four bounds some may have moved before one could not
            touched[owner[x]], touched[owner[y]] = done, done
        changed |= effect == 1
    return changed, found


@inlined
def _is_touched(
    g: int,
    group_start: Int64Array,
    member: Int64Array,
    before: Int64Array,
    owner: Int64Array,
    touched: Int64Array,
    done: int,
) -> bool:
    """Whether the bounds of a packet that a group depends on have changed since it was looked at."""
    latest = touched[owner[before[g]]]
    for k in range(group_start[g], group_start[g + 1]):
        latest = max(latest, touched[owner[member[k]]])
    return bool(latest >= done - 1)


@kernel
def propagate(
    start: Int64Array,
    owner: Int64Array,
    node: Int64Array,
    sink: int,
    low: Int64Array,
    high: Int64Array,
    least: Int64Array,
    most: Int64Array,
    is_local: BoolArray,
    first: Int64Array,
    second: Int64Array,
    state: Int64Array,
    group_start: Int64Array,
    member: Int64Array,
    before: Int64Array,
    last: Int64Array,
    sums: Int64Array,
    is_sure: BoolArray,
    is_out: BoolArray,
    is_used: BoolArray,
    is_closed: BoolArray,
    is_exact: bool,
    tolerance: int,
    spacing: int,
    epsilon: int,
    rounds: int,
    conflicts: Int64Array,
) -> tuple[int, int]:
    """Tighten all bounds in place to a fixpoint, or for `rounds`; rounds used and conflicts found.

    Group g holds the visits `member[group_start[g]:group_start[g + 1]]`, its own packet's visit `last[g]` first; they
    entered the queue after visit `before[g]`. `state` gets the proved order of each pair.
    """
    found = 0
    # The round in which a packet's bounds last changed: what was looked at after that would give the same again.
    touched = np.full(len(start) - 1, -1)
    for done in range(rounds):
        changed, found = _order_pass(start, low, high, least, most, conflicts, found, touched, done)
        moved, found = _fifo_pass(
            node, sink, low, high, is_local, first, second, state, spacing, epsilon,
            conflicts, found, owner, touched, done,
        )  # fmt: skip
        changed |= moved
        for g in range(len(sums)):
            if not is_used[g] or not _is_touched(g, group_start, member, before, owner, touched, done):
                continue
            for k in range(group_start[g] + 1, group_start[g + 1]):
                if not (is_sure[k] or is_out[k]):
                    after = decided(before[g], member[k], node, low, high, is_local, sink, epsilon)
                    until = decided(member[k], last[g], node, low, high, is_local, sink, epsilon)
                    is_sure[k] = after == BEFORE and until == BEFORE
                    is_out[k] = after == AFTER or until == AFTER
            is_equation = is_exact and is_closed[g]
            effect = _sum_pass(g, group_start, member, is_sure, is_out, sums, tolerance, is_equation, least, most)
            if effect == 2:
                is_used[g] = False
                found = _note(conflicts, found, SUM, last[g], before[g])
            if effect == 1:
                touched[owner[member[group_start[g] : group_start[g + 1]]]] = done
                changed = True
        if not changed:
            return done + 1, found
    return rounds, found


LARGEST_EXCESS = 1 << 40  # of a packet; more than any sum can hold, and little enough to add up millions of them


def combine_sums(
    is_visit: BoolArray,
    low: Int64Array,
    high: Int64Array,
    least: Int64Array,
    most: Int64Array,
    group_start: Int64Array,
    member: Int64Array,
    sums: Int64Array,
    is_sure: BoolArray,
    is_used: BoolArray,
    tolerance: int,
) -> bool:
    """Lower `most` in place where groups together say more than each by itself; whether they did."""
    inside = is_sure & np.repeat(is_used, np.diff(group_start))
    group = np.repeat(np.arange(len(sums)), np.diff(group_start))
    group_of = np.full(len(low), -1, np.int64)
    group_of[member[inside]] = group[inside]
    visit = np.flatnonzero(is_visit[:-1] & is_visit[1:] & (group_of[:-1] >= 0) & (group_of[1:] >= 0))
    excess = np.clip(low[visit + 2] - high[visit] - least[visit] - least[visit + 1], 0, LARGEST_EXCESS)
    visit, excess = visit[excess > 0], excess[excess > 0]
    slack = sums + tolerance - np.add.reduceat(np.where(inside, least[member], 0), group_start[:-1])
    changed = False
    for at_hub, at_spoke in ((visit + 1, visit), (visit, visit + 1)):
        order = np.lexsort((group_of[at_spoke], group_of[at_hub]))
        changed |= _combine(
            group_of, at_hub[order], at_spoke[order], excess[order], slack,
            least, most, group_start, member, is_sure,
        )  # fmt: skip
    return changed


@kernel
def _combine(
    group_of: Int64Array,
    at_hub: Int64Array,
    at_spoke: Int64Array,
    excess: Int64Array,
    slack: Int64Array,
    least: Int64Array,
    most: Int64Array,
    group_start: Int64Array,
    member: Int64Array,
    is_sure: BoolArray,
) -> bool:
    """Every hub with its spokes; links come by hub and then by spoke."""
    changed = False
    own = np.zeros(len(least), np.int64)  # what a member's own excess takes away, but not from itself
    end = 0
    while end < len(at_hub):
        begin, hub = end, group_of[at_hub[end]]
        total = 0
        while end < len(at_hub) and group_of[at_hub[end]] == hub:
            until, together = _spoke(group_of, at_hub, at_spoke, excess, end)
            total += max(0, together - slack[group_of[at_spoke[end]]])
            end = until
        if end - begin < 2:
            continue
        first = begin
        while first < end:
            spoke = group_of[at_spoke[first]]
            until, together = _spoke(group_of, at_hub, at_spoke, excess, first)
            gain = max(0, together - slack[spoke])
            taken = together + total - gain - slack[hub]
            if taken > 0:
                own[at_spoke[first:until]] = excess[first:until]
                changed |= _cap(spoke, slack[spoke] - taken, own, least, most, group_start, member, is_sure)
                own[at_spoke[first:until]] = 0
            for k in range(first, until):
                own[at_hub[k]] = gain - max(0, together - excess[k] - slack[spoke])
            first = until
        if total > 0:
            changed |= _cap(hub, slack[hub] - total, own, least, most, group_start, member, is_sure)
        own[at_hub[begin:end]] = 0
    return changed


@inlined
def _spoke(
    group_of: Int64Array, at_hub: Int64Array, at_spoke: Int64Array, excess: Int64Array, first: int
) -> tuple[int, int]:
    """Where the links of one hub and spoke end, and their excess together."""
    hub, spoke = group_of[at_hub[first]], group_of[at_spoke[first]]
    until, together = first, 0
    while until < len(at_hub) and group_of[at_hub[until]] == hub and group_of[at_spoke[until]] == spoke:
        together += excess[until]
        until += 1
    return until, together


@inlined
def _cap(
    group: int,
    room: int,
    own: Int64Array,
    least: Int64Array,
    most: Int64Array,
    group_start: Int64Array,
    member: Int64Array,
    is_sure: BoolArray,
) -> bool:
    """Members stay for their least and what room there is, at most; without any the sums contradict each other."""
    changed = False
    for k in range(group_start[group], group_start[group + 1]):
        visit = member[k]
        longest = least[visit] + room + own[visit]
        if room >= 0 and is_sure[k] and longest < most[visit]:
            most[visit] = longest
            changed = True
    return changed
