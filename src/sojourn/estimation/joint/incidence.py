"""Which cells a known list of flows shares: the sparse flow × cell matrix of a sketch.

Every flow has the same number of cells, so the matrix is kept as two rectangular columns (CSR with constant row
length): the cell of each of a flow's edges, and the share of the flow's packets that it takes. Edges come in *groups*:
in one group a packet takes at most one cell. An LDS has a group of k cells for each row, a counter vector one group of
m counters for each vector.

Cells that a flow owns twice in a group (counters whose hashes agree) are one edge with both shares; the spare edge has
cell −1, as has every edge that `without` takes away.

Memory: 16 bytes per edge. Time: one hash per edge.
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

__all__ = ["MOST_EDGES", "Incidence", "counter_incidence", "lds_incidence"]

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
