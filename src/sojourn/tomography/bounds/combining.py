"""Sums of delays together: what several groups say of packets that went from one of them straight into another.

A packet that was in group g at one node and in group h at the next took at least so long for both hops together, which
is often more than the least of each hop adds up to: it may have waited at either node, but not at neither. Where two or
more packets did that, g's and h's sums together leave less for all others than each sum by itself. Propagation, which
looks at one sum at a time, cannot see it; of what linear programs find beyond it, this is most.

A *hub* is taken with all the groups that its members came from, then with all that they went on to (its *spokes*):

    Σ over hub and spokes of all delays ≤ their S and tolerances,

with a packet's two hops counted by what they take together at least. Its *excess* is that less the least of each. A
spoke that has more excess than slack (what S leaves beyond the least of all members) takes the difference from what the
hub's members may have, and so do the others together with the hub's slack from what the spoke's members may have.

Guarantee: as that of the sums, which are only taken as upper bounds. Cost: a sort of the visits, then a few passes over
links and members of groups, of spokes only where there is something to gain.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.kernels import inlined, kernel

__all__ = ["combine_sums"]

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
