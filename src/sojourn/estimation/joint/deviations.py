"""Deviations of single flows' delays: variance tomography over shared cells.

Once means are known, what is left of a cell, r_c = D_c − Σ_f a_fc·μ_f, has variance Σ_f a_fc·v_f + what the means leave
unknown, with v_f the variance of flow f's packets. So squares of residuals are again sums over flows; v is the most
likely one, found by expectation maximisation, with a few cells' worth of weight on the variance that a flow of such a
mean usually has (σ² of all flows together, times a power of the mean as `delays` found it).

Only cells that take a share of their flows' packets tell of deviations: in a cell that takes all, the residual is 0.
Even without other flows m cells know v to ± √(2/m). Delays that are correlated in time need j chosen by hash.

Shahzad and Liu, "Noise Can Help", §4.2, estimate the same from one flow's counters with all others as noise.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import kernel
from sojourn.estimation.differences import CellDifference
from sojourn.estimation.joint.decoder import FlowCounts, JointMeans
from sojourn.estimation.joint.incidence import Incidence

__all__ = ["flow_deviations"]

PASSES = 25
PRIOR_CELLS = 5.0
FEWEST_CELLS = 2


def flow_deviations(incidence: Incidence, cells: CellDifference, counts: FlowCounts, joint: JointMeans) -> FloatArray:
    """The standard deviation of each flow's delays; NaN where fewer than two cells hold a share of it."""
    heard = incidence.without(~cells.usable)
    kept = heard.cell >= 0
    packets = np.where(kept, counts.sent.part_mean, 0.0)
    excess = np.where(np.isnan(joint.mean), 0.0, joint.mean - joint.said.prior_mean)
    count = np.where(cells.usable, cells.sent, 0).astype(np.float64)
    left = np.where(cells.usable, cells.delay_sum, 0) - joint.said.prior_mean * count
    np.subtract.at(left, heard.cell[kept], (packets * excess[:, None])[kept])
    doubt = np.where(kept, counts.sent.part_variance, 0.0) * excess[:, None] ** 2
    unknown: FloatArray = np.bincount(heard.cell[kept], doubt[kept], heard.cells).astype(np.float64)
    # What packets of a flow vary by is what the cells say, not how small flows' means scatter.
    usual = joint.said.scatter / (joint.said.refinement or 1.0) * np.maximum(counts.received, 0.5)
    variance = usual.copy()
    _tomography(heard.cell, packets, left**2, unknown, usual, variance, PASSES, PRIOR_CELLS)
    deviation: FloatArray = np.sqrt(variance)
    deviation[(packets > 0).sum(axis=1) < FEWEST_CELLS] = np.nan
    return deviation


@kernel
def _tomography(
    cell: Int64Array,
    packets: FloatArray,
    square: FloatArray,
    unknown: FloatArray,
    usual: FloatArray,
    variance: FloatArray,
    passes: int,
    prior_cells: float,
) -> None:
    """Expectation maximisation: what each flow's part of a cell squares to on average, given the cell's square.

    One degree of freedom goes to the flow's mean, as far as its cells are its own.
    """
    expected = np.empty(len(square))
    for _ in range(passes):
        expected[:] = unknown
        for f in range(cell.shape[0]):
            for e in range(cell.shape[1]):
                if cell[f, e] >= 0:
                    expected[cell[f, e]] += packets[f, e] * variance[f]
        for f in range(cell.shape[0]):
            total = prior_cells * usual[f]
            freedom = prior_cells
            own_share = cells = 0.0
            for e in range(cell.shape[1]):
                c = cell[f, e]
                if c >= 0 and expected[c] > 0 and packets[f, e] > 0:
                    own = packets[f, e] * variance[f] / expected[c]
                    total += variance[f] * (1 - own + own * square[c] / expected[c])
                    own_share += own
                    cells += 1.0
            if cells > 1:
                freedom += cells - own_share / cells
                variance[f] = total / freedom
