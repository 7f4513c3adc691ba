"""The model of `delays` solved exactly, for problems small enough for a dense matrix.

In small graphs loops are short, and what messages say of variances is too sure. Here the covariance of all cells is
written down,

    V = G·diag(w)·Gᵀ + diag(Σ_f κ_fg a_fc) − Σ_groups G_g·diag(κ_g/t)·G_gᵀ + noise,   w = τ² + σ²/p,

factorised, and each flow's posterior mean w Gᵀ V⁻¹ y and variance w − w² Gᵀ V⁻¹ G w follow. Variance components are
chosen by the likelihood of all cells. Time: O(cells³); memory: O(cells²).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.estimation.joint.incidence import Incidence

__all__ = ["DenseCells", "DensePosterior"]

LEAST_VARIANCE = 1e-12


@dataclass(frozen=True, eq=False)
class DensePosterior:
    """Each flow's message (what the cells say without the prior), and the cells' likelihood up to the scale."""

    value: FloatArray
    precision: FloatArray
    scale: float
    score: float


class DenseCells:
    """The matrices of the cells that hold packets, made once for all variance components."""

    def __init__(self, incidence: Incidence, weight: FloatArray, heard: BoolArray) -> None:
        from scipy.sparse import csr_array

        position = np.cumsum(heard) - 1
        self._groups = []
        length = incidence.group_length
        for g in range(incidence.groups):
            cell, own = (m[:, g * length : (g + 1) * length] for m in (incidence.cell, weight))
            kept = (cell >= 0) & heard[cell]
            starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
            shape = (incidence.flows, int(heard.sum()))
            self._groups.append(csr_array((own[kept], position[cell[kept]], starts), shape=shape))
        self._all = sum(self._groups[1:], self._groups[0])
        self._heard = heard

    def posterior(
        self,
        excess: FloatArray,
        variance: FloatArray,
        kappa: FloatArray,
        whole: FloatArray,
        noise: FloatArray,
        *,
        variances: bool = True,
    ) -> DensePosterior:
        """Solve for flows with these prior variances around 0; without `variances` the score alone is right."""
        from scipy.linalg import cho_factor, cho_solve

        own = excess[self._heard]
        covariance = self._covariance(variance, kappa, whole, noise[self._heard])
        factor = cho_factor(covariance, lower=True, overwrite_a=True)
        solved = cho_solve(factor, own)
        mean = variance * (self._all @ solved)
        explained = np.full(len(mean), 0.5)
        if variances:
            dense = self._all.toarray()
            explained = variance * (dense * cho_solve(factor, dense.T).T).sum(axis=1)
        left = variance * np.clip(1 - explained, LEAST_VARIANCE, 1.0)
        precision = np.maximum(1 / left - 1 / variance, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.where(precision > 0, mean / left / precision, 0.0)
        scale = float(own @ solved) / len(own)
        score = 2 * float(np.log(np.diag(factor[0])).mean()) + float(np.log(max(scale, 1e-300)))
        return DensePosterior(value, precision, scale, score)

    def _covariance(self, variance: FloatArray, kappa: FloatArray, whole: FloatArray, noise: FloatArray) -> FloatArray:
        matrix = self._all
        total: FloatArray = (matrix.T * variance @ matrix).toarray()
        diagonal = noise.copy()
        for group, own in zip(self._groups, kappa.T, strict=True):
            total -= (group.T * (own / whole) @ group).toarray()
            diagonal += group.T @ own
        total[np.diag_indices_from(total)] += diagonal * (1 + LEAST_VARIANCE)
        return total
