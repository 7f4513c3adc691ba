"""Message passing between flows and the cells they share: a linear system solved where it is sparse.

**Incidence.** Which cells a list of flows shares is a sparse flow × cell matrix. Every flow has the same number of
cells, so it is kept as two rectangular columns (CSR with constant row length): the cell of each of a flow's edges, and
the share of the flow's packets that it takes. Edges come in *groups*: in one group a packet takes at most one cell. An
LDS has a group of k cells for each row, a counter vector one group of m counters for each vector. Cells that a flow
owns twice in a group (counters whose hashes agree) are one edge with both shares; the spare edge has cell −1, as has
every edge that `without` takes away.

**Messages.** A cell c counts O_c = Σ_f z_fc + noise: a part z of each flow that owns it. In one group of cells the
parts of a flow with value x are a multinomial-like draw: mean a_e·x, covariance κ(diag(a) − a aᵀ/t), with the weights
a_e of the edges, t ≥ Σ a_e the weight of the whole flow and κ the variance that a unit of weight brings:

- counts: x is the flow's size, a_e the share of the cell, t = 1, κ = x (a packet takes one cell of the group);
- delays: x is the flow's mean delay, a_e the packets in the cell, t all packets, κ the variance of single delays.

With one cell per group that takes all packets there is no such noise, and the equations are exact. Groups (the rows of
an LDS) draw independently given x. All is Gaussian but the prior of x, so that a group's message to its flow is

    precision Q / (1 − κQ/t),  mean P/Q,   Q = Σ a²/(s + κa),  P = Σ a r/(s + κa),

where r and s are a cell's evidence of z: what is left of O_c after the others' parts, and the variances of these. The
flow in turn predicts each z from all other cells. Predictions never use the cell they are for: they are held-out
predictions, from which variance components are estimated. Hashing makes the graph random, so that loops are long;
means, if passes converge, are exact also with loops; variances are good approximations.

Time: one hash per edge, then O(edges) per pass, about 20 ns an edge for normal priors. Memory: 32 bytes an edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import inlined, kernel
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lds import LdsParameters

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_EDGES = 1 << 26


@dataclass(frozen=True, eq=False)
class Incidence:
    """``cell[f, e]`` (−1: none) and ``share[f, e]`` of flow f's edge e; ``groups`` groups of equal length."""

    cell: Int64Array
    share: FloatArray
    groups: int
    cells: int

    @property
    def flows(self) -> int:
        return len(self.cell)

    @property
    def group_length(self) -> int:
        return int(self.cell.shape[1]) // self.groups

    def without(self, unusable: BoolArray) -> Incidence:
        """The same without the cells marked."""
        gone = (self.cell < 0) | unusable[self.cell]
        return Incidence(np.where(gone, -1, self.cell), np.where(gone, 0.0, self.share), self.groups, self.cells)

    def of(self, flows: BoolArray) -> Incidence:
        """The same for some of the flows."""
        return Incidence(self.cell[flows], self.share[flows], self.groups, self.cells)

    def spread(self, values: FloatArray) -> FloatArray:
        """What each cell holds of flows' values: share × value, added up."""
        totals = np.zeros(self.cells)
        _spread(totals, self.cell, self.share, values)
        return totals

    def covered(self) -> BoolArray:
        """The cells that some flow owns."""
        owned = np.zeros(self.cells, np.bool_)
        owned[self.cell[self.cell >= 0]] = True
        return owned

    def matrix(self) -> csr_array:
        """As a SciPy matrix, flows × cells."""
        from scipy.sparse import csr_array

        kept = self.cell >= 0
        starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
        return csr_array((self.share[kept], self.cell[kept], starts), shape=(self.flows, self.cells))


def lds_incidence(parameters: LdsParameters, flow_id: UInt64Array) -> Incidence:
    """R groups of k neighbouring cells, each with its row's share / k."""
    _check_edges(len(flow_id), parameters.rows * parameters.spread)
    first = bucket_matrix(flow_id, parameters.row_salts, np.uint64(parameters.columns))
    cell = _neighbours(first, parameters.spread, parameters.columns)
    of_edge = np.repeat(np.array(parameters.row_shares) / parameters.spread, parameters.spread)
    share = np.broadcast_to(of_edge, cell.shape).copy()
    return Incidence(cell, share, parameters.rows, parameters.rows * parameters.columns)


def counter_incidence(parameters: CounterVectorParameters, flow_id: UInt64Array) -> Incidence:
    """A group of m counters in each vector, each with the vector's share / m."""
    _check_edges(len(flow_id), parameters.vectors * parameters.per_flow)
    counter = bucket_matrix(flow_id, parameters.function_salts, np.uint64(parameters.counters))
    single = np.full(counter.shape, 1.0 / parameters.per_flow)
    _join_twins(counter, single)
    cell = [np.where(counter < 0, -1, counter + v * parameters.counters) for v in range(parameters.vectors)]
    share = [single * p for p in parameters.shares]
    cells = parameters.vectors * parameters.counters
    return Incidence(np.concatenate(cell, axis=1), np.concatenate(share, axis=1), parameters.vectors, cells)


def _check_edges(flows: int, edges: int) -> None:
    if flows * edges > MOST_EDGES:
        raise ParameterError(
            f"{flows} flows with {edges} cells each are too many to decode together",
            where="joint decoding",
            action=f"decode at most {MOST_EDGES // edges} flows, or use the literal estimator",
        )


@kernel
def _neighbours(first: Int64Array, spread: int, columns: int) -> Int64Array:
    flows, rows = first.shape
    cell = np.empty((flows, rows * spread), np.int64)
    for f in range(flows):
        for row in range(rows):
            for k in range(spread):
                cell[f, row * spread + k] = row * columns + (first[f, row] + k) % columns
    return cell


@kernel
def _join_twins(cell: Int64Array, share: FloatArray) -> None:
    """Give the share of a repeated cell to one of its edges; O(m log m) per flow."""
    for f in range(cell.shape[0]):
        order = np.argsort(cell[f])
        for i in range(1, len(order)):
            before, after = order[i - 1], order[i]
            if cell[f, before] == cell[f, after]:
                share[f, after] += share[f, before]
                share[f, before] = 0.0
                cell[f, before] = -1


@kernel
def _spread(totals: FloatArray, cell: Int64Array, share: FloatArray, values: FloatArray) -> None:
    for f in range(cell.shape[0]):
        for e in range(cell.shape[1]):
            if cell[f, e] >= 0:
                totals[cell[f, e]] += share[f, e] * values[f]


TINY = 1e-300  # keeps a division from failing where nothing varies; far below any variance in ns²


class Cells(NamedTuple):
    """The equations of one problem, as kernels take them: the weight of each edge, each cell's total and its noise."""

    cell: Int64Array
    weight: FloatArray
    groups: int
    observed: FloatArray
    noise: FloatArray


class Messages(NamedTuple):
    """The state: each edge's predicted part, each cell's sum of them, and each flow's message from all its cells."""

    part_mean: FloatArray
    part_variance: FloatArray
    cell_mean: FloatArray
    cell_variance: FloatArray
    precision: FloatArray
    value: FloatArray

    def add_up(self, incidence: Incidence) -> None:
        """The cells' sums from scratch: passes change them in place and gather rounding errors."""
        add_up(incidence.cell, self)

    def residual(self, observed: FloatArray) -> FloatArray:
        """Each cell's held-out error."""
        return observed - self.cell_mean


def new_messages(incidence: Incidence, weight: FloatArray, mean: FloatArray, variance: FloatArray) -> Messages:
    """Parts as the flows' means and variances predict them without any cell."""
    kept = incidence.cell >= 0
    part_mean = np.where(kept, weight * mean[:, None], 0.0)
    part_variance = np.where(kept, weight**2 * variance[:, None], 0.0)
    cells, flows = np.zeros((2, incidence.cells)), np.zeros(incidence.flows)
    messages = Messages(part_mean, part_variance, cells[0], cells[1], flows, mean.copy())
    messages.add_up(incidence)
    return messages


@kernel
def add_up(cell: Int64Array, messages: Messages) -> None:
    messages.cell_mean[:] = 0.0
    messages.cell_variance[:] = 0.0
    for f in range(cell.shape[0]):
        for e in range(cell.shape[1]):
            c = cell[f, e]
            if c >= 0:
                messages.cell_mean[c] += messages.part_mean[f, e]
                messages.cell_variance[c] += messages.part_variance[f, e]


@inlined
def _left_for(f: int, e: int, c: int, cells: Cells, messages: Messages) -> tuple[float, float]:
    """What a cell leaves for one of its flows, r, and the variance s of that: its total less the others' parts."""
    left = cells.observed[c] - messages.cell_mean[c] + messages.part_mean[f, e]
    return left, cells.noise[c] + max(messages.cell_variance[c] - messages.part_variance[f, e], 0.0)


@inlined
def flow_message(
    f: int, cells: Cells, kappa: FloatArray, whole: float, messages: Messages, own: FloatArray
) -> tuple[float, float]:
    """Precision and precision × mean of all groups' messages to a flow.

    A row of ``own`` keeps these two of each group, and its Q, P and 1 − κQ/t for `predict_group`; the last is added up
    so that nothing cancels.
    """
    length = cells.cell.shape[1] // cells.groups
    precision = product = 0.0
    for g in range(cells.groups):
        q = p = free = taken = 0.0
        for e in range(g * length, (g + 1) * length):
            c = cells.cell[f, e]
            if c < 0:
                continue
            a = cells.weight[f, e]
            r, s = _left_for(f, e, c, cells, messages)
            d = s + kappa[g] * a
            q += a * a / d
            p += a * r / d
            taken += a / whole
            free += a / whole * s / d
        free += max(1.0 - taken, 0.0)
        own[g, 2], own[g, 3], own[g, 4] = q, p, free
        free = max(free, 1e-14)
        own[g, 0], own[g, 1] = q / free, p / free
        precision += own[g, 0]
        product += own[g, 1]
    return precision, product


@inlined
def all_but(own: FloatArray, g: int) -> tuple[float, float]:
    """Precision and precision × mean of the other groups' messages: added up, as subtracting cancels where one knows
    it all."""
    precision = product = 0.0
    for other in range(own.shape[0]):
        if other != g:
            precision += own[other, 0]
            product += own[other, 1]
    return precision, product


@inlined
def predict_group(
    f: int,
    g: int,
    cells: Cells,
    kappa: float,
    whole: float,
    messages: Messages,
    own: FloatArray,
    mean: float,
    variance: float,
    step: float,
) -> float:
    """Predict a group's parts from the other groups' (mean, variance) and its other cells; the largest change.

    The change is in units of the cell's deviation. ``step`` < 1 damps.
    """
    length = cells.cell.shape[1] // cells.groups
    largest = 0.0
    beta = variance - kappa / whole
    for e in range(g * length, (g + 1) * length):
        c = cells.cell[f, e]
        if c < 0:
            continue
        a = cells.weight[f, e]
        r, s = _left_for(f, e, c, cells, messages)
        d = s + kappa * a
        # The sums of the group's other cells.
        q = max(own[g, 2] - a * a / d, 0.0)
        p = own[g, 3] - a * r / d
        free = max(own[g, 4] - a / whole * s / d + a / whole, 0.0)
        if length == 1:
            q, p, free = 0.0, 0.0, 1.0
        divisor = max(variance * q + free, 1e-14)
        old_mean, old_variance = messages.part_mean[f, e], messages.part_variance[f, e]
        new_mean = a * (mean + beta * p) / divisor
        new_variance = max(kappa * a + a * a * beta / divisor, 0.0)
        new_mean = old_mean + step * (new_mean - old_mean)
        new_variance = old_variance + step * (new_variance - old_variance)
        change = new_mean - old_mean
        # In place, so that the flows after this one use it in the same pass: that halves the number of passes.
        messages.cell_mean[c] += change
        messages.cell_variance[c] = max(messages.cell_variance[c] + new_variance - old_variance, 0.0)
        messages.part_mean[f, e] = new_mean
        messages.part_variance[f, e] = new_variance
        scale = np.sqrt(cells.noise[c] + messages.cell_variance[c]) + TINY
        largest = max(largest, abs(change) / scale)
    return largest


@kernel
def pass_normal(
    cells: Cells,
    kappa: FloatArray,
    whole: FloatArray,
    prior_mean: FloatArray,
    prior_variance: FloatArray,
    messages: Messages,
    step: float,
) -> float:
    """One pass over all flows with normal priors, each using the latest messages of the others; the largest change."""
    own = np.empty((cells.groups, 5))
    largest = 0.0
    for f in range(cells.cell.shape[0]):
        total_precision, total_product = flow_message(f, cells, kappa[f], whole[f], messages, own)
        messages.precision[f] = total_precision
        if total_precision > 0:
            messages.value[f] = total_product / total_precision
        for g in range(cells.groups):
            others, product = all_but(own, g)
            variance = 1.0 / (1.0 / prior_variance[f] + others)
            mean = variance * (prior_mean[f] / prior_variance[f] + product)
            change = predict_group(f, g, cells, kappa[f, g], whole[f], messages, own, mean, variance, step)
            largest = max(largest, change)
    return largest


@kernel
def pass_single(
    cells: Cells,
    kappa: FloatArray,
    whole: FloatArray,
    prior_mean: FloatArray,
    prior_variance: FloatArray,
    messages: Messages,
    step: float,
) -> float:
    """`pass_normal` where each group is one cell, whose message is a²/(s + κa(1 − a/t)); twice as fast."""
    cell, weight, groups, observed, noise = cells
    part_mean, part_variance, cell_mean, cell_variance, precision, value = messages
    own_precision, own_product = np.zeros(groups), np.zeros(groups)
    largest = 0.0
    for f in range(cell.shape[0]):
        share = 1.0 / whole[f]
        total_precision = total_product = 0.0
        for g in range(groups):
            c = cell[f, g]
            own_precision[g] = own_product[g] = 0.0
            if c >= 0:
                a = weight[f, g]
                others = noise[c] + max(cell_variance[c] - part_variance[f, g], 0.0)
                drawn = kappa[f, g] * a
                gain = a / max(others + drawn * max(1.0 - a * share, 0.0), 1e-14 * (others + drawn) + TINY)
                own_precision[g] = a * gain
                own_product[g] = (observed[c] - cell_mean[c] + part_mean[f, g]) * gain
                total_precision += own_precision[g]
                total_product += own_product[g]
        precision[f] = total_precision
        if total_precision > 0:
            value[f] = total_product / total_precision
        known = 1.0 / prior_variance[f]
        for g in range(groups):
            c = cell[f, g]
            if c < 0:
                continue
            held, product = known, prior_mean[f] * known
            for other in range(groups):
                if other != g:
                    held += own_precision[other]
                    product += own_product[other]
            a = weight[f, g]
            variance = 1.0 / held
            new_variance = max(a * (kappa[f, g] + a * (variance - kappa[f, g] * share)), 0.0)
            change = step * (a * variance * product - part_mean[f, g])
            wider = step * (new_variance - part_variance[f, g])
            cell_mean[c] += change
            cell_variance[c] = max(cell_variance[c] + wider, 0.0)
            part_mean[f, g] += change
            part_variance[f, g] += wider
            largest = max(largest, change * change / (noise[c] + cell_variance[c] + TINY))
    return math.sqrt(largest)
