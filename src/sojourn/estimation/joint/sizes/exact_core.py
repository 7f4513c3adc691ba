"""Sizes that linear algebra settles where peeling stops: as many independent equations as unknown flows.

Peeling ends at a core in which every cell has two unknown flows or more. If the core's equations have full rank for a
flow (no combination of flows that leaves all cells unchanged contains it), its size is their one solution. Sizes are
integers, so rounding errors do no harm, and the rounded solution is checked against every cell.

Time: O(core flows² · cells), for cores of at most `MOST_FLOWS` flows.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.estimation.joint.incidence import Incidence
from sojourn.estimation.joint.sizes.bounds import FULL

__all__ = ["settle_by_rank"]

MOST_FLOWS = 1500
NULL = 1e-7
NEAR = 0.05


def settle_by_rank(incidence: Incidence, count: Int64Array, mean: FloatArray, variance: FloatArray) -> None:
    """Replace what is determined but not yet exact (variance above 0) by its exact value, in place."""
    core = variance > 0
    unknown = int(core.sum())
    if not 0 < unknown <= MOST_FLOWS:
        return
    whole = incidence.share >= FULL
    left = count.astype(np.float64)
    known = ~core[:, None] & whole & (incidence.cell >= 0)
    np.subtract.at(left, incidence.cell[known], np.broadcast_to(mean[:, None], known.shape)[known])
    mine = whole[core] & (incidence.cell[core] >= 0)
    cells, position = np.unique(incidence.cell[core][mine], return_inverse=True)
    if not len(cells):
        return
    matrix = np.zeros((len(cells), unknown))
    matrix[position, np.nonzero(mine)[0]] = 1.0
    solution, determined = _solve(matrix, left[cells], mean[core])
    rounded = np.rint(solution)
    settled = determined & (np.abs(solution - rounded) < NEAR) & (rounded >= 0)
    # A cell whose flows are all settled must add up.
    wrong = (matrix @ ~settled == 0) & (matrix @ rounded != left[cells])
    settled &= matrix.T @ wrong == 0
    flows = np.flatnonzero(core)[settled]
    mean[flows], variance[flows] = rounded[settled], 0.0


def _solve(matrix: FloatArray, values: FloatArray, start: FloatArray) -> tuple[FloatArray, BoolArray]:
    """The solution nearest to `start`, and which of its coordinates no other solution changes."""
    gram = matrix.T @ matrix
    eigenvalues, vectors = np.linalg.eigh(gram)
    solid = eigenvalues > NULL * eigenvalues[-1]
    step = vectors[:, solid] / eigenvalues[solid] @ (vectors[:, solid].T @ (matrix.T @ (values - matrix @ start)))
    free = (vectors[:, ~solid] ** 2).sum(axis=1)
    return start + step, free < NULL
