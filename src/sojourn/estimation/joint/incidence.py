"""Incidence: which cells the flows of a list share, and with which part of their packets.

A sparse flow × cell matrix. Every flow has the same number of cells, so it is kept as two rectangular columns (CSR with
constant row length): the cell of each of a flow's edges, and the share of the flow's packets that it takes. Edges come
in *groups*: in one group a packet takes at most one cell. An LDS has a group of k cells for each row, a counter vector
one group of m counters for each vector. Cells that a flow owns twice in a group (counters whose hashes agree) are one
edge with both shares; the spare edge has cell −1, as has every edge that `without` takes away.

Time: one hash per edge. Memory: 12 bytes an edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int32Array, Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import kernel
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lds import LdsParameters

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_EDGES = 1 << 26
FULL = 1 - 1e-9
# Edges are added up so many flows at a time.
BLOCK_FLOWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Incidence:
    """``cell[f, e]`` (−1: none) and ``share[f, e]`` of flow f's edge e; ``groups`` groups of these ``lengths``, equal
    ones if none are given."""

    cell: Int32Array
    share: FloatArray
    groups: int
    cells: int
    lengths: tuple[int, ...] = ()

    @property
    def flows(self) -> int:
        return len(self.cell)

    @property
    def starts(self) -> Int64Array:
        """The first edge of each group, and where the last ends."""
        equal = (self.cell.shape[1] // self.groups,) * self.groups
        return np.cumsum((0, *(self.lengths or equal)))

    def by_group(self, values: FloatArray) -> FloatArray:
        """Edges' values added up, flows × groups."""
        totals: FloatArray = np.add.reduceat(values, self.starts[:-1], axis=1)
        return totals

    def kept_by_group(self, values: FloatArray) -> FloatArray:
        """The same without the edges that are gone."""
        totals = np.empty((len(values), self.groups))
        for first in range(0, len(values), BLOCK_FLOWS):
            rows = slice(first, first + BLOCK_FLOWS)
            own = np.where(self.cell[rows] >= 0, values[rows], 0.0)
            totals[rows] = self.by_group(own)
        return totals

    def without(self, unusable: BoolArray) -> Incidence:
        """The same without the cells marked; edges that are gone keep their share."""
        gone = (self.cell >= 0) & unusable[self.cell]
        return replace(self, cell=np.where(gone, np.int32(-1), self.cell)) if gone.any() else self

    def of(self, flows: BoolArray) -> Incidence:
        """The same for some of the flows."""
        return replace(self, cell=self.cell[flows], share=self.share[flows])

    def spread(self, values: FloatArray) -> FloatArray:
        """What each cell holds of flows' values: share × value, added up."""
        return self.sums(self.share, values)

    def sums(self, weight: FloatArray, values: FloatArray) -> FloatArray:
        """Each cell's sum of edges' weights × flows' values."""
        totals = np.zeros(self.cells)
        _spread(totals, self.cell, weight, values)
        return totals

    def covered(self) -> BoolArray:
        """The cells that some flow owns."""
        return _covered(self.cell, self.cells)

    @property
    def has_partial(self) -> bool:
        """Whether some cell takes only a share of a flow."""
        return _has_partial(self.cell, self.share)

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
    joined = np.concatenate(cell, axis=1, dtype=np.int32)
    return Incidence(joined, np.concatenate(share, axis=1), parameters.vectors, cells)


def _check_edges(flows: int, edges: int) -> None:
    if flows * edges > MOST_EDGES:
        raise ParameterError(
            f"{flows} flows with {edges} cells each are too many to decode together",
            where="joint decoding",
            action=f"decode at most {MOST_EDGES // edges} flows, or use the literal estimator",
        )


@kernel
def _neighbours(first: Int64Array, spread: int, columns: int) -> Int32Array:
    flows, rows = first.shape
    cell = np.empty((flows, rows * spread), np.int32)
    for f in range(flows):
        for row in range(rows):
            for k in range(spread):
                cell[f, row * spread + k] = row * columns + (first[f, row] + k) % columns
    return cell


@kernel
def _join_twins(cell: Int64Array, share: FloatArray) -> None:
    """Give the share of a repeated cell to the last of its edges; O(m²) per flow, less than sorting 64 takes."""
    for f in range(cell.shape[0]):
        for before in range(cell.shape[1]):
            for after in range(before + 1, cell.shape[1]):
                if cell[f, before] == cell[f, after]:
                    share[f, after] += share[f, before]
                    share[f, before] = 0.0
                    cell[f, before] = -1
                    break


def variance_alone(incidence: Incidence, weight: FloatArray, variance: FloatArray, noise: FloatArray) -> FloatArray:
    """Each cell's variance where no other cell speaks of its flows."""
    totals = noise.copy()
    _spread_variances(totals, incidence.cell, weight, variance)
    return totals


@kernel
def _spread_variances(totals: FloatArray, cell: Int32Array, weight: FloatArray, variance: FloatArray) -> None:
    for f in range(cell.shape[0]):
        for e in range(cell.shape[1]):
            if cell[f, e] >= 0:
                totals[cell[f, e]] += weight[f, e] ** 2 * variance[f]


@kernel
def _covered(cell: Int32Array, cells: int) -> BoolArray:
    owned = np.zeros(cells, np.bool_)
    for f in range(cell.shape[0]):
        for e in range(cell.shape[1]):
            if cell[f, e] >= 0:
                owned[cell[f, e]] = True
    return owned


@kernel
def _has_partial(cell: Int32Array, share: FloatArray) -> bool:
    for f in range(cell.shape[0]):
        for e in range(cell.shape[1]):
            if cell[f, e] >= 0 and share[f, e] < FULL:
                return True
    return False


@kernel
def _spread(totals: FloatArray, cell: Int32Array, share: FloatArray, values: FloatArray) -> None:
    for f in range(cell.shape[0]):
        for e in range(cell.shape[1]):
            if cell[f, e] >= 0:
                totals[cell[f, e]] += share[f, e] * values[f]
