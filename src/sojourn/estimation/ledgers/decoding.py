"""Which packets the sender has and the receiver lacks: by the difference of two receipts and the sender's ledger.

Guarantee: what is named was lost (or arrived in another stretch), and all of a group's losses are named, or the group
is *unsolved* and nothing is said of it. A wrong solution has to meet every sum that it does not need, and its roots
have to be names of packets that were there: of a group of n packets with r roots found and s spare sums this happens
with probability (n/p)^r · p^−s at most. Where that is more than 2^−`CERTAIN_BITS` the group is not solved.
Packets that the receiver had and the sender had not sent in this stretch are named too, where the ledger has them just
before or after (reordering at an edge); others are *foreign*, and only counted. Two packets of one name cannot be told
apart (a share n/p of packets): both flows are *doubtful*, as are those that have packets in unsolved groups.

Cost: O(packets · losses of a group), see `polynomials`; the sender's packets need not be cut exactly where its receipt
was, any range that has them all will do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array, UInt64Array
from sojourn.estimation.ledgers.polynomials import UNSOLVED, roots, solve
from sojourn.sketches.ledgers.ledger import LedgerPackets
from sojourn.sketches.ledgers.power_sums import PRIME, PowerSums, names_and_groups

CERTAIN_BITS = 44.0


@dataclass(frozen=True, eq=False)
class Named:
    """The packets that make the difference of two receipts."""

    missing: LedgerPackets
    extra: LedgerPackets
    doubtful: UInt64Array  # ids of flows of which not all missing packets are named, or one that may be another's
    groups: int
    unsolved: int
    foreign: int

    @property
    def is_complete(self) -> bool:
        """Whether every packet that makes the difference is named."""
        return not (self.unsolved or self.foreign or len(self.doubtful))


def name_packets(difference: PowerSums, packets: LedgerPackets, salt: np.uint64) -> Named:
    """The missing and extra packets, among `packets` of the sender's ledger."""
    names, group = names_and_groups(packets.packet_id, salt, difference.groups)
    order = np.argsort(group, kind="stable")
    names, group = names[order], group[order]
    begins = np.searchsorted(group, np.arange(difference.groups + 1))
    shape = difference.groups, difference.threshold + 1
    polynomials = np.empty(shape, np.uint64), np.empty(shape, np.uint64)
    degrees = solve(difference.counts, difference.sums, *polynomials)
    is_root = [roots(names, begins, polynomials[i], degrees[:, i]).astype(bool) for i in range(2)]
    found = [_names_found(names, group, rows, difference.groups) for rows in is_root]
    solved = _is_certain(degrees, found, np.diff(begins), difference.threshold)
    rows = [np.flatnonzero(of & solved[group]) for of in is_root]
    first, twin = _apart(names, group, packets.packet_id[order], rows[0])
    missing, extra = order[first], order[rows[1]]
    foreign = np.where(solved, degrees[:, 1] - found[1], 0)
    unsettled = np.flatnonzero(~solved[group])
    doubtful = np.unique(packets.flow_id[order[np.concatenate([twin, unsettled])]])
    counts = difference.groups, int(np.count_nonzero(~solved)), int(foreign.sum())
    return Named(_select(packets, np.sort(missing)), _select(packets, np.sort(extra)), doubtful, *counts)


def _select(packets: LedgerPackets, rows: Int64Array) -> LedgerPackets:
    return LedgerPackets(packets.flow_id[rows], packets.packet_id[rows], packets.time_ns[rows])


def _names_found(names: UInt64Array, group: Int64Array, is_root: BoolArray, groups: int) -> Int64Array:
    """How many different names of each group are roots."""
    rows = np.flatnonzero(is_root)
    distinct = np.unique(np.column_stack((group[rows], names[rows].astype(np.int64))), axis=0)
    return np.bincount(distinct[:, 0], minlength=groups)


def _is_certain(degrees: Int64Array, found: list[Int64Array], packets: Int64Array, threshold: int) -> BoolArray:
    """Which groups are solved: all lost packets found, and enough seen to agree that it is no accident."""
    m, e = degrees[:, 0], degrees[:, 1]
    root_bits = math.log2(PRIME) - np.log2(np.maximum(packets, 1))
    bits = root_bits * (m + np.minimum(found[1], e)) + math.log2(PRIME) * (threshold - m - e)
    solved: BoolArray = (m != UNSOLVED) & (found[0] == m) & (found[1] <= e) & (bits >= CERTAIN_BITS)
    return solved


def _apart(
    names: UInt64Array, group: Int64Array, packet_id: UInt64Array, rows: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """One row of each name (identical packets are the first of them), and the rows whose name another packet has."""
    key = (group[rows] << 32) | names[rows].astype(np.int64)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    other = packet_id[rows] != packet_id[rows[first]][which]
    shared = np.zeros(len(first), bool)
    shared[which[other]] = True
    return rows[first], rows[shared[which]]
