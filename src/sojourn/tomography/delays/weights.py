"""What a window's delays have in common, and how far each is from that: the squares that a round minimises.

A visit waits for the packet before it at its node and is then *served*: its service begins when it arrives, or when the
packet before it leaves if that is later. Services at a node are alike (Domo says so of delays, Eq. 8, which holds where
queues are short). Each is held to its node's centre: the median of the node's services, drawn towards the window's
median as if `PRIOR_VISITS` more visits had been seen there. Few packets say little of a node, and without that centres
drift to whatever the bounds leave open: where sums are missing, dividing a packet's time evenly would beat them. Nodes
that differ from each other for the whole trace are drawn to their own level instead (`levels`).

Services are skewed: a repetition may double one, nothing makes it much shorter. So a service `HUBER` centres off pulls
no harder than one at that distance, and one below its centre is held `BELOW` times as hard as one above. A packet that
no sum speaks of has nothing to tell which of its hops was slow: its time is divided more evenly (`UNSUMMED_HUBER`). A
node whose services scatter widely holds each of them less. All is measured in centres, so no unit of time matters.

Cost: a few passes over the window's visits in numpy for a round.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.tomography.delays.program import WindowProgram

__all__ = ["Likeness", "medians", "served_behind"]

PRIOR_VISITS = 60.0
SPREAD_VISITS = 30.0
HUBER, UNSUMMED_HUBER, BELOW = 0.45, 1.0, 2.5
LARGEST_SPREAD = 4.0
LEAST_CENTRE_MS = 0.1
SETTLING = range(1, 4)  # the rounds after which it is seen anew who waited for whom
CROWDED = 0.05  # where more visits than this waited for others, totals do not show how nodes differ
TINY = 1e-6


class Likeness:
    """The centres of a window's nodes, learnt from round to round, and the squares of the distances to them."""

    def __init__(self, program: WindowProgram) -> None:
        self._program = program
        self._rows, self._known = program.delay, program.delay_known
        self._count = np.bincount(program.node, minlength=program.nodes)
        self._level = program.level / np.median(program.level[program.node])
        # With every unknown in the middle of its bounds delays still add up to the packets' times.
        self.scale = max(float(program.delay_known.mean()), LEAST_CENTRE_MS)
        self._centre = self.scale * self._level / self._level[program.node].mean()
        self._weight = np.ones(len(program.node))
        self._reach = np.where(program.is_summed, HUBER, UNSUMMED_HUBER)
        self.is_rearranged = False

    def objective(self) -> tuple[sparse.csc_matrix, FloatArray]:
        """Upper triangle and linear part of the weighted squares of all distances."""
        weighted = sparse.diags(2 * self._weight) @ self._rows
        square = self._rows.T @ weighted + TINY * sparse.identity(self._rows.shape[1])
        off = self._known - self._centre[self._program.node]
        return sparse.triu(square, format="csc"), np.asarray(weighted.T @ off)

    def learn(self, x: FloatArray, number: int) -> None:
        """Take what round `number` found: who waited for whom, centres and weights."""
        self.is_rearranged = number in SETTLING and self._rearrange(x)
        node, nodes = self._program.node, self._program.nodes
        service = self._rows @ x + self._known
        self.scale = max(float(np.median(service / self._level[node])), LEAST_CENTRE_MS)
        own = medians(service, node, nodes)
        prior = self.scale * self._level
        self._centre = (PRIOR_VISITS * prior + self._count * own) / (PRIOR_VISITS + self._count)
        off = service - self._centre[node]
        size = np.abs(off)
        reach = self._reach * self.scale
        self._weight = np.where(off < 0, BELOW, 1.0) * reach / np.maximum(size, reach) * self._steadiness(size)[node]

    def _steadiness(self, off: FloatArray) -> FloatArray:
        """How little each node's services scatter, 1 for the usual; few visits count as usual."""
        capped = np.minimum(off, LARGEST_SPREAD * self.scale)
        usual = max(float(capped.mean()), TINY)
        total = np.bincount(self._program.node, capped, self._program.nodes)
        steadiness: FloatArray = usual * (SPREAD_VISITS + self._count) / (SPREAD_VISITS * usual + total)
        return steadiness

    def _rearrange(self, x: FloatArray) -> bool:
        """Let services begin where the packet before left, if that is after the arrival; whether anything changed."""
        program = self._program
        delay = program.delay @ x + program.delay_known
        departure = program.departure @ x + program.departure_known
        before, has_waited = served_behind(program.node, departure - delay, departure)
        if has_waited.mean() > CROWDED:
            self._level = np.ones(program.nodes)
        begin = sparse.vstack([program.departure - program.delay, program.departure], format="csr")
        begin_known = np.concatenate([program.departure_known - program.delay_known, program.departure_known])
        source = np.where(has_waited, len(delay) + before, np.arange(len(delay)))
        rows = program.departure - begin[source]
        is_same = (rows != self._rows).nnz == 0
        self._rows, self._known = rows, program.departure_known - begin_known[source]
        return not is_same


def served_behind(node: Int64Array, arrival: FloatArray, departure: FloatArray) -> tuple[Int64Array, BoolArray]:
    """The visit that left each one's node just before it (itself if none did), and whether it had to wait for that."""
    order = np.lexsort((arrival, departure, node))
    before = np.arange(len(node))
    follows = np.diff(node[order]) == 0
    before[order[1:]] = np.where(follows, order[:-1], order[1:])
    return before, (departure[before] > arrival) & (before != np.arange(len(node)))


def medians(values: FloatArray, group: Int64Array, groups: int) -> FloatArray:
    """The median of each group's values; every group has one."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=groups)
    start = np.cumsum(counts) - counts
    ordered = values[order]
    middle: FloatArray = (ordered[start + (counts - 1) // 2] + ordered[start + counts // 2]) / 2
    return middle
