"""Deviations of single flows' delays: variance tomography over shared cells.

Once means are known, what is left of a cell, r_c = D_c − Σ_f a_fc·μ_f, has variance Σ_f a_fc·v_f + what the means leave
unknown, with v_f the variance of flow f's packets. So squares of residuals are again sums over flows, and are solved
for v ≥ 0 by multiplicative steps (each multiplies v_f by the weighted mean of r²/E[r²] over its cells), with a few
cells' worth of weight on the variance of all flows together. Fitted means take part of the residuals away; the
factor that makes all cells together right repairs that.

Only cells that take a share of their flows' packets tell of deviations: in a cell that takes all, the residual is 0.
Even without other flows m cells know v to ± √(2/m). Delays that are correlated in time need j chosen by hash.

Shahzad and Liu, "Noise Can Help", §4.2, estimate the same from one flow's counters with all others as noise.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import kernel
from sojourn.estimation.differences import CellDifference
from sojourn.estimation.incidence import Incidence
from sojourn.estimation.joint import FlowCounts, JointMeans

__all__ = ["flow_deviations"]

PASSES = 30
PRIOR_CELLS = 2.0
FEWEST_CELLS = 2


def flow_deviations(
    incidence: Incidence, cells: CellDifference, counts: FlowCounts, joint: JointMeans
) -> FloatArray:
    """The standard deviation of each flow's delays; NaN where fewer than two cells hold a share of it."""
    heard = incidence.without(~cells.usable)
    packets = np.where(heard.cell >= 0, counts.sent.part_mean, 0.0)
    excess = np.where(np.isnan(joint.mean), 0.0, joint.mean - joint.said.prior_mean)
    count = np.where(cells.usable, cells.sent, 0).astype(np.float64)
    left = np.where(cells.usable, cells.delay_sum, 0) - joint.said.prior_mean * count
    np.subtract.at(left, heard.cell[heard.cell >= 0], (packets * excess[:, None])[heard.cell >= 0])
    doubt = np.where(heard.cell >= 0, counts.sent.part_variance, 0.0) * excess[:, None] ** 2
    unknown = np.bincount(heard.cell[heard.cell >= 0], doubt[heard.cell >= 0], heard.cells)
    common = joint.said.within
    variance = np.full(heard.flows, common)
    telling = (packets > 0).sum(axis=1)
    scale = max(float((left[count > 0] ** 2).sum()) / max(float((common * count + unknown).sum()), 1e-300), 1e-3)
    _tomography(heard.cell, packets, left**2 / min(scale, 1.0), unknown, common, variance, PASSES, PRIOR_CELLS)
    deviation = np.sqrt(variance)
    deviation[telling < FEWEST_CELLS] = np.nan
    return deviation


@kernel
def _tomography(
    cell: Int64Array,
    packets: FloatArray,
    square: FloatArray,
    unknown: FloatArray,
    common: float,
    variance: FloatArray,
    passes: int,
    prior_cells: float,
) -> None:
    """Multiply each flow's variance by how much larger its cells' squares are than expected.

    A cell's weight is the share of its expected square that is the flow's.
    """
    expected = np.empty(len(square))
    for _ in range(passes):
        expected[:] = unknown
        for f in range(cell.shape[0]):
            for e in range(cell.shape[1]):
                if cell[f, e] >= 0:
                    expected[cell[f, e]] += packets[f, e] * variance[f]
        for f in range(cell.shape[0]):
            weight = prior_cells
            total = prior_cells * common / max(variance[f], 1e-300)
            for e in range(cell.shape[1]):
                c = cell[f, e]
                if c >= 0 and expected[c] > 0:
                    own = packets[f, e] * variance[f] / expected[c]
                    weight += own * own
                    total += own * own * (1 + (square[c] / expected[c] - 1) / max(own, 0.05))
            variance[f] = max(variance[f] * total / weight, 1e-4 * common) if weight > 0 else common
