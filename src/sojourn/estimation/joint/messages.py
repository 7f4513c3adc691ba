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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import kernel
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lds import LdsParameters

if TYPE_CHECKING:
    from scipy.sparse import csr_array
import math

from sojourn.core.kernels import inlined

__all__ = [
    "Incidence",
    "Messages",
    "counter_incidence",
    "group_message",
    "lds_incidence",
    "new_messages",
    "pass_normal",
    "pass_single",
    "predict_group",
]

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


TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Messages:
    """The state: each edge's predicted part, each cell's sum of them, and what all cells together say of each flow."""

    part_mean: FloatArray
    part_variance: FloatArray
    cell_mean: FloatArray
    cell_variance: FloatArray
    precision: FloatArray
    value: FloatArray

    def add_up(self, incidence: Incidence) -> None:
        """The cells' sums from scratch: passes change them in place and gather rounding errors."""
        _add_up(incidence.cell, self.part_mean, self.part_variance, self.cell_mean, self.cell_variance)

    def residual(self, observed: FloatArray) -> FloatArray:
        """Each cell's held-out error."""
        return observed - self.cell_mean


def new_messages(incidence: Incidence, weight: FloatArray, mean: FloatArray, variance: FloatArray) -> Messages:
    """Parts as the flows' means and variances predict them without any cell."""
    kept = incidence.cell >= 0
    part_mean = np.where(kept, weight * mean[:, None], 0.0)
    part_variance = np.where(kept, weight**2 * variance[:, None], 0.0)
    messages = Messages(
        part_mean,
        part_variance,
        np.zeros(incidence.cells),
        np.zeros(incidence.cells),
        np.zeros(incidence.flows),
        mean.copy(),
    )
    messages.add_up(incidence)
    return messages


@kernel
def _add_up(
    cell: Int64Array,
    part_mean: FloatArray,
    part_variance: FloatArray,
    cell_mean: FloatArray,
    cell_variance: FloatArray,
) -> None:
    cell_mean[:] = 0.0
    cell_variance[:] = 0.0
    for f in range(cell.shape[0]):
        for e in range(cell.shape[1]):
            c = cell[f, e]
            if c >= 0:
                cell_mean[c] += part_mean[f, e]
                cell_variance[c] += part_variance[f, e]


@inlined
def group_message(
    f: int,
    start: int,
    stop: int,
    cell: Int64Array,
    weight: FloatArray,
    kappa: float,
    whole: float,
    observed: FloatArray,
    noise: FloatArray,
    part_mean: FloatArray,
    part_variance: FloatArray,
    cell_mean: FloatArray,
    cell_variance: FloatArray,
    sums: FloatArray,
) -> tuple[float, float]:
    """Precision and precision × mean that a group's cells tell its flow.

    ``sums`` keeps Q, P and 1 − κQ/t for `predict_group`; the last is added up so that nothing cancels.
    """
    q = p = free = taken = 0.0
    for e in range(start, stop):
        c = cell[f, e]
        if c < 0:
            continue
        a = weight[f, e]
        s = noise[c] + max(cell_variance[c] - part_variance[f, e], 0.0)
        r = observed[c] - cell_mean[c] + part_mean[f, e]
        d = s + kappa * a
        q += a * a / d
        p += a * r / d
        taken += a / whole
        free += a / whole * s / d
    free += max(1.0 - taken, 0.0)
    sums[0], sums[1], sums[2] = q, p, free
    free = max(free, 1e-14)
    return q / free, p / free


@inlined
def predict_group(
    f: int,
    start: int,
    stop: int,
    cell: Int64Array,
    weight: FloatArray,
    kappa: float,
    whole: float,
    observed: FloatArray,
    noise: FloatArray,
    part_mean: FloatArray,
    part_variance: FloatArray,
    cell_mean: FloatArray,
    cell_variance: FloatArray,
    sums: FloatArray,
    mean: float,
    variance: float,
    step: float,
) -> float:
    """Predict a group's parts from the other groups' (mean, variance) and its other cells; the largest change.

    The change is in units of the cell's deviation. ``step`` < 1 damps.
    """
    largest = 0.0
    beta = variance - kappa / whole
    for e in range(start, stop):
        c = cell[f, e]
        if c < 0:
            continue
        a = weight[f, e]
        s = noise[c] + max(cell_variance[c] - part_variance[f, e], 0.0)
        r = observed[c] - cell_mean[c] + part_mean[f, e]
        d = s + kappa * a
        # The sums of the group's other cells.
        q = max(sums[0] - a * a / d, 0.0)
        p = sums[1] - a * r / d
        free = max(sums[2] - a / whole * s / d + a / whole, 0.0)
        if stop - start == 1:
            q, p, free = 0.0, 0.0, 1.0
        divisor = max(variance * q + free, 1e-14)
        new_mean = a * (mean + beta * p) / divisor
        new_variance = max(kappa * a + a * a * beta / divisor, 0.0)
        new_mean = part_mean[f, e] + step * (new_mean - part_mean[f, e])
        new_variance = part_variance[f, e] + step * (new_variance - part_variance[f, e])
        change = new_mean - part_mean[f, e]
        cell_mean[c] += change
        cell_variance[c] = max(cell_variance[c] + new_variance - part_variance[f, e], 0.0)
        part_mean[f, e] = new_mean
        part_variance[f, e] = new_variance
        scale = np.sqrt(noise[c] + cell_variance[c]) + TINY
        largest = max(largest, abs(change) / scale)
    return largest


@kernel
def pass_normal(
    cell: Int64Array,
    weight: FloatArray,
    groups: int,
    kappa: FloatArray,
    whole: FloatArray,
    observed: FloatArray,
    noise: FloatArray,
    prior_mean: FloatArray,
    prior_variance: FloatArray,
    part_mean: FloatArray,
    part_variance: FloatArray,
    cell_mean: FloatArray,
    cell_variance: FloatArray,
    precision: FloatArray,
    value: FloatArray,
    step: float,
) -> float:
    """One pass over all flows with normal priors, each using what the flows before it have said; the largest change."""
    length = cell.shape[1] // groups
    own_precision = np.empty(groups)
    own_product = np.empty(groups)
    sums = np.empty((groups, 3))
    largest = 0.0
    for f in range(cell.shape[0]):
        total_precision = total_product = 0.0
        for g in range(groups):
            own_precision[g], own_product[g] = group_message(
                f, g * length, (g + 1) * length, cell, weight, kappa[f, g], whole[f], observed, noise,
                part_mean, part_variance, cell_mean, cell_variance, sums[g],
            )  # fmt: skip
            total_precision += own_precision[g]
            total_product += own_product[g]
        precision[f] = total_precision
        if total_precision > 0:
            value[f] = total_product / total_precision
        for g in range(groups):
            # Subtracting would cancel where one group knows it all.
            others = product = 0.0
            for other in range(groups):
                if other != g:
                    others += own_precision[other]
                    product += own_product[other]
            variance = 1.0 / (1.0 / prior_variance[f] + others)
            mean = variance * (prior_mean[f] / prior_variance[f] + product)
            change = predict_group(
                f, g * length, (g + 1) * length, cell, weight, kappa[f, g], whole[f], observed, noise,
                part_mean, part_variance, cell_mean, cell_variance, sums[g], mean, variance, step,
            )  # fmt: skip
            largest = max(largest, change)
    return largest


@kernel
def pass_single(
    cell: Int64Array,
    weight: FloatArray,
    kappa: FloatArray,
    whole: FloatArray,
    observed: FloatArray,
    noise: FloatArray,
    prior_mean: FloatArray,
    prior_variance: FloatArray,
    part_mean: FloatArray,
    part_variance: FloatArray,
    cell_mean: FloatArray,
    cell_variance: FloatArray,
    precision: FloatArray,
    value: FloatArray,
    step: float,
) -> float:
    """`pass_normal` where each group is one cell, which tells its flow a²/(s + κa(1 − a/t)); twice as fast."""
    groups = cell.shape[1]
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
