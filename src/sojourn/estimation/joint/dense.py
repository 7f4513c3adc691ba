"""The delays of a few flows, exactly, with a dense matrix.

In small graphs loops are short, and the variances of messages too sure. The covariance of all cells,

    V = G·diag(w)·Gᵀ + diag(Σ_f κ_fg a_fc) − Σ_groups G_g·diag(κ_g/t)·G_gᵀ + noise,   w = τ² + σ²/p,

is factorised, and each flow's posterior mean w Gᵀ V⁻¹ y and variance w − w² Gᵀ V⁻¹ G w follow. Variance components are
chosen by the likelihood of all cells. Time: O(cells³); memory: O(cells²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.joint.incidence import Incidence
from sojourn.estimation.joint.messages import LEAST_VARIANCE, TINY

# What is left of a cell's variance once its flows' other cells have spoken: below, they settle it but for rounding.
DETERMINED = math.sqrt(1e-9)
# Up to here a plain loop, which leaves out cells without a common flow, takes no longer than calling LAPACK, whose
# threads would wait for each other for longer than they work.
FEW_CELLS = 256
_INDEFINITE = "the covariance of cells is not positive definite"


@dataclass(frozen=True, eq=False)
class Solved:
    """Each flow's message (what the cells say without the prior), how far cells are off in units of their variance,
    and −2 log likelihood at that scale, with that of flows that are known exactly and without."""

    value: FloatArray
    precision: FloatArray
    scale: float
    score: float
    of_cells: float = 0.0


class _Edges(NamedTuple):
    """The edges to cells that hold packets, flow after flow, as kernels take them: ``start`` of each flow, then the
    group, the cell's place and the weight of each."""

    start: Int64Array
    group: Int64Array
    place: Int64Array
    weight: FloatArray


class DenseCells:
    """The edges to the cells that hold packets, made once for all variance components."""

    def __init__(self, incidence: Incidence, weight: FloatArray, heard: BoolArray) -> None:
        kept = (incidence.cell >= 0) & heard[incidence.cell]
        start = np.zeros(incidence.flows + 1, np.int64)
        np.cumsum(kept.sum(axis=1), out=start[1:])
        place = np.cumsum(heard) - 1
        group = np.searchsorted(incidence.starts, np.nonzero(kept)[1], side="right") - 1
        self._edges = _Edges(start, group, place[incidence.cell[kept]], weight[kept])
        self._heard = np.flatnonzero(heard)
        self.telling = np.ones(len(self._heard), np.bool_)

    def find_telling(self, variance: FloatArray, kappa: FloatArray, whole: FloatArray, noise: FloatArray) -> None:
        """Which cells those before them leave open; the others are a combination of these but for rounding."""
        covariance = _covariance(self._edges, variance, kappa, whole, noise[self._heard])
        alone = covariance.diagonal().copy()
        upper = np.linalg.cholesky(covariance + np.tril(covariance, -1).T)
        telling = upper.diagonal() ** 2 > DETERMINED * alone
        if telling.any():
            self.telling = telling

    def posterior(
        self,
        excess: FloatArray,
        variance: FloatArray,
        kappa: FloatArray,
        whole: FloatArray,
        noise: FloatArray,
        *,
        variances: bool = True,
    ) -> Solved:
        """Solve for flows with these prior variances around 0; without `variances` only scale and score."""
        own, edges = excess[self._heard], self._edges
        covariance = _covariance(edges, variance, kappa, whole, noise[self._heard])
        if len(own) <= FEW_CELLS:
            value, precision = np.zeros((2, len(variance) if variances else 0))
            scale, score = _posterior_of_few(edges, covariance, own, self.telling, variance, value, precision)
            if math.isnan(score):
                raise np.linalg.LinAlgError(_INDEFINITE)
            return Solved(value, precision, scale, score)
        # LAPACK's own routines: SciPy's functions around them take longer than systems of a hundred cells do.
        from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs

        # Transposed, the lower triangle is an upper one by columns, as LAPACK takes it without a copy.
        factor, fault = dpotrf(covariance.T, lower=0, clean=0, overwrite_a=1)
        if fault:
            raise np.linalg.LinAlgError(_INDEFINITE)
        solved = dpotrs(factor, own, lower=0)[0]
        value, precision = np.zeros((2, len(variance) if variances else 0))
        if variances:
            half = dtrtrs(factor, _dense(edges, len(own)).T, lower=0, trans=1, overwrite_b=1)[0]
            _messages(edges, variance, solved, np.einsum("cf,cf->f", half, half), value, precision)
        off = dtrtrs(factor, own, lower=0, trans=1)[0][self.telling]
        scale = float(off @ off) / len(off)
        score = 2 * float(np.log(factor.diagonal()[self.telling]).mean()) + float(np.log(max(scale, TINY)))
        return Solved(value, precision, scale, score)


@kernel
def _covariance(
    edges: _Edges, variance: FloatArray, kappa: FloatArray, whole: FloatArray, noise: FloatArray
) -> FloatArray:
    """V of the cells that hold packets, its lower triangle; a flow has no cell twice."""
    total = np.zeros((len(noise), len(noise)))
    diagonal = noise.copy()
    for f in range(len(variance)):
        for e in range(edges.start[f], edges.start[f + 1]):
            g, at, weight = edges.group[e], edges.place[e], edges.weight[e]
            diagonal[at] += kappa[f, g] * weight
            apart, together = variance[f] * weight, (variance[f] - kappa[f, g] / whole[f]) * weight
            for other in range(edges.start[f], e + 1):
                part = (together if edges.group[other] == g else apart) * edges.weight[other]
                beside = edges.place[other]
                total[max(at, beside), min(at, beside)] += part
    for at in range(len(noise)):
        total[at, at] += diagonal[at] * (1 + LEAST_VARIANCE)
    return total


@kernel
def _dense(edges: _Edges, cells: int) -> FloatArray:
    """The weights, flows × cells."""
    matrix = np.zeros((len(edges.start) - 1, cells))
    for f in range(len(matrix)):
        for e in range(edges.start[f], edges.start[f + 1]):
            matrix[f, edges.place[e]] += edges.weight[e]
    return matrix


@kernel
def _messages(
    edges: _Edges,
    variance: FloatArray,
    solved: FloatArray,
    squares: FloatArray,
    value: FloatArray,
    precision: FloatArray,
) -> None:
    """What the cells say of each flow without its prior; `solved` is V⁻¹y, `squares` each flow's Gᵀ V⁻¹ G."""
    for f in range(len(variance)):
        mean = 0.0
        for e in range(edges.start[f], edges.start[f + 1]):
            mean += edges.weight[e] * solved[edges.place[e]]
        left = variance[f] * min(max(1 - variance[f] * squares[f], LEAST_VARIANCE), 1.0)
        precision[f] = max(1 / left - 1 / variance[f], 0.0)
        if precision[f] > 0:
            value[f] = variance[f] * mean / left / precision[f]


@inlined
def _factorise(upper: FloatArray) -> bool:
    """Cholesky's U of V = UᵀU, in place of V's upper triangle; False if V is not positive definite.

    Each row is taken off all below it, so that inner loops run along rows, and nothing is done for cells that have no
    flow in common.
    """
    for i in range(len(upper)):
        if not upper[i, i] > 0:
            return False
        upper[i, i] = np.sqrt(upper[i, i])
        for k in range(i + 1, len(upper)):
            upper[i, k] /= upper[i, i]
        for j in range(i + 1, len(upper)):
            factor = upper[i, j]
            if factor != 0.0:
                for k in range(j, len(upper)):
                    upper[j, k] -= factor * upper[i, k]
    return True


@inlined
def _forward(upper: FloatArray, column: FloatArray) -> None:
    """Solve Uᵀx = column in place; what it begins with zeros costs nothing."""
    for i in range(len(column)):
        column[i] /= upper[i, i]
        if column[i] != 0.0:
            for k in range(i + 1, len(column)):
                column[k] -= upper[i, k] * column[i]


@kernel
def _posterior_of_few(
    edges: _Edges,
    covariance: FloatArray,
    excess: FloatArray,
    telling: BoolArray,
    variance: FloatArray,
    value: FloatArray,
    precision: FloatArray,
) -> tuple[float, float]:
    """Fill in the messages, if there is room for them; scale and score, which is NaN if V is not positive definite."""
    cells = len(excess)
    upper = covariance.T.copy()
    if not _factorise(upper):
        return 0.0, np.nan
    half = excess.copy()
    _forward(upper, half)
    scale = score = 0.0
    told = np.sum(telling)
    for i in range(cells):
        if telling[i]:
            scale += half[i] * half[i] / told
            score += 2 * np.log(upper[i, i]) / told
    if len(value):
        for i in range(cells - 1, -1, -1):
            for k in range(i + 1, cells):
                half[i] -= upper[i, k] * half[k]
            half[i] /= upper[i, i]
        matrix = _dense(edges, cells)
        squares = np.zeros(len(variance))
        for f in range(len(variance)):
            _forward(upper, matrix[f])
            for i in range(cells):
                squares[f] += matrix[f, i] * matrix[f, i]
        _messages(edges, variance, half, squares, value, precision)
    return scale, score + np.log(max(scale, TINY))
