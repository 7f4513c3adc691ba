"""Mean delays of all flows together: the best linear prediction from the cells that lost nothing.

With g the prior mean, D_c − g·N_c = Σ_f z_fc, z the excess delay that flow f's packets brought into cell c. A flow's
own mean excess m_f has prior variance τ² + σ²/p_f (flows differ by τ², the packets of one flow by σ²), its parts a
variance of σ² per packet around it (`messages`). Nothing else is assumed; where cells take all packets of their flows
the equations are exact and σ² matters by the prior only.

τ²/σ² is the value at which the cells' held-out predictions are most likely, and σ² then follows from how far they are
off. g is the generalised least squares mean of the flows: elephants count no more than mice. σ² may grow with a
power of a flow's mean, if that makes the cells likelier.

**Small problems** are solved exactly, with a dense matrix: in small graphs loops are short, and the variances of
messages too sure. The covariance of all cells,

    V = G·diag(w)·Gᵀ + diag(Σ_f κ_fg a_fc) − Σ_groups G_g·diag(κ_g/t)·G_gᵀ + noise,   w = τ² + σ²/p,

is factorised, and each flow's posterior mean w Gᵀ V⁻¹ y and variance w − w² Gᵀ V⁻¹ G w follow. Variance components are
chosen by the likelihood of all cells. Time: O(cells³); memory: O(cells²).

**Calibration by trial**: message passing is exact on trees. Where flows own neighbouring cells (k > 1) two flows share
several, loops are short, and predicted variances are off: means are right, intervals would not be. So delays drawn by
the model itself are decoded on the same cells, and the ratio of squared errors to predicted variances is measured, by
the precision of a flow's messages, and applied. Cost: one more solve per trial.

Time: about 200 passes of O(edges). Memory: 32 bytes an edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.joint.calibration import calibrated_precision, draw_cells, draw_excess, error_ratios
from sojourn.estimation.joint.counts import FULL
from sojourn.estimation.joint.messages import TINY, Graph, Incidence, add_up, new_graph, normal_prior, sweep

LEAST_VARIANCE = 1e-12
ROUNDING = 1e-9  # of a packet's variance, in every cell
# What is left of a cell's variance once its flows' other cells have spoken: below, they settle it but for rounding.
DETERMINED = math.sqrt(ROUNDING)
# Up to here a plain loop takes less time than calling LAPACK.
FEW_CELLS = 96
_INDEFINITE = "the covariance of cells is not positive definite"


@dataclass(frozen=True, eq=False)
class Solved:
    """Each flow's message (what the cells say without the prior), how far cells are off in units of their variance,
    and −2 log likelihood at that scale."""

    value: FloatArray
    precision: FloatArray
    scale: float
    score: float


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
        group = np.nonzero(kept)[1] // incidence.group_length
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


RATIOS = (1e-5, 1e-3, 0.03, 0.3, 3.0, 30.0)  # of τ² to σ²: decades first, then refined around the best
REFINEMENTS = (0.3, 1.0, 3.0)
SPLIT_SHARES = (1.0, 0.5, 0.2, 0.05)
SEARCH_PASSES = 12
PASSES = 80
ADD_UP_EVERY = 4  # sweeps: rounding errors are far smaller than what they settle to
# The largest change of a part, in deviations of its cell: for answers, and while variance components are searched.
SETTLED, SETTLED_ROUGHLY = 1e-4, 1e-2
# Problems up to here are solved by a dense matrix: cells³ operations, 5 MB.
DENSE_CELLS, DENSE_FLOWS = 800, 2000
STEPS = (0.9, 0.45, 0.2)
DIVERGED = 1e9  # of a cell's deviation: no data is that far off, so the passes run away
CONVERGED = 0.1  # of a cell's deviation; passes that end with larger changes are repeated with shorter steps
# Ratios whose scores (deviance of all cells together) differ by less are a tie: AIC asks 2 of a parameter.
TIE = 1.0
# In square units of the recorded times: a variance below is rounding, also where a single cell is heard.
LEAST_UNIT = 1e-3
POWERS = (0.0, 1.0, 2.0)  # γ of σ² ∝ mean^γ
SLOWEST = (0.1, 10.0)


@dataclass(frozen=True, eq=False)
class DelayCells:
    """What usable cells say: sums of delays, counts, whose packets they are.

    ``packets`` are the edges' expected packets, ``split`` their variances; ``size`` and ``size_variance`` the flows'.
    ``noise`` is each cell's variance from elsewhere (rounded time stamps).
    """

    incidence: Incidence
    packets: FloatArray
    split: FloatArray
    size: FloatArray
    size_variance: FloatArray
    delay_sum: FloatArray
    count: FloatArray
    noise: FloatArray


@dataclass(frozen=True, eq=False)
class DelayMessages:
    """What the cells alone say of each flow's mean excess over ``prior_mean``: normal with this value and precision.

    ``precision`` is 0 where no usable cell has packets of the flow. ``between`` is τ², ``within`` σ², ``scatter`` σ²/p.
    ``shift`` is how far a flow's own prior lies above ``prior_mean`` (survivor bias), known to ± ``shift_deviation``.
    ``doubt`` is the relative variance of the flow's size. ``refinement`` is the factor from the
    cells' σ² to this one, if how small flows scatter has told it. ``cells`` is how many told the variances.
    """

    value: FloatArray
    precision: FloatArray
    prior_mean: float
    between: float
    within: float
    scatter: FloatArray
    shift: FloatArray | float = 0.0
    shift_deviation: FloatArray | float = 0.0
    doubt: FloatArray | float = 0.0
    refinement: float | None = None
    cells: int = 0


@dataclass(frozen=True, eq=False)
class NormalSolution:
    """The cells, what they say of flows under a normal prior, and the score of their held-out predictions."""

    problem: DelayProblem | None
    said: DelayMessages
    score: float = 0.0


def solve_normal(cells: DelayCells) -> NormalSolution:
    """Solve for all flows together, with one normal prior for all."""
    if not cells.count.any():
        # No precision for any flow, and variances that stand for nothing.
        silent = np.zeros(cells.incidence.flows)
        nothing = DelayMessages(silent, silent.copy(), 0.0, 1.0, 1.0, 1 / np.maximum(cells.size, 0.5))
        return NormalSolution(None, nothing)
    prior_mean = float(cells.delay_sum.sum()) / max(float(cells.count.sum()), 1.0)
    problem = DelayProblem(cells)
    problem.find_telling()
    between, within = problem.components(prior_mean, RATIOS)
    said = problem.solve(prior_mean, between, within, SETTLED_ROUGHLY)
    prior_mean += _common_excess(said, between + within * problem.scatter)
    between, within = problem.components(prior_mean, [between / within * step for step in REFINEMENTS])
    between, within = problem.adapt(prior_mean, between, within)
    between, within = problem.split_doubt(prior_mean, between, within)
    said = problem.solve(prior_mean, between, within, SETTLED)
    value, precision, scale = said.value, said.precision, 1.0
    if not problem.is_dense:
        value, precision, scale = problem.calibrated(said, between, within)
    between, within = between * scale, within * scale
    scatter = within * problem.scatter
    return NormalSolution(
        problem,
        DelayMessages(
            value, precision, prior_mean, between, within, scatter, doubt=problem.doubt, cells=problem.telling_cells
        ),
        said.score,
    )


class DelayProblem:
    """The cells with what every solve needs of them."""

    def __init__(self, cells: DelayCells) -> None:
        self.cells = cells
        incidence = cells.incidence
        by_group = cells.packets.reshape(incidence.flows, incidence.groups, incidence.group_length).sum(axis=2)
        self.size = np.maximum(cells.size, 0.5)
        self.whole = np.maximum(self.size, by_group.max(axis=1, initial=0.0))
        self.doubt = cells.size_variance / self.size**2
        doubted = np.where(incidence.share >= FULL, 0.0, cells.split).reshape(by_group.shape[0], by_group.shape[1], -1)
        self.unsplit = np.minimum(doubted.sum(axis=2) / np.maximum(by_group, 1e-9), 1.0)
        self.tone = np.ones(incidence.flows)
        self.heard = cells.count > 0
        self._telling = self.heard
        small = int(self.heard.sum()) <= DENSE_CELLS and incidence.flows <= DENSE_FLOWS
        self._dense = DenseCells(incidence, cells.packets, self.heard) if small and self.heard.any() else None
        if self._dense is None:
            # Where a cell takes all packets, parts elsewhere that add up to more are decoded too large. (A matrix of
            # such parts would not be positive definite.)
            entire = ((incidence.share >= FULL) & (incidence.cell >= 0)).any(axis=1)
            self.whole = np.where(entire, self.size, self.whole)

    @property
    def telling_cells(self) -> int:
        """The cells, or as many combinations of them, that variances are learned from."""
        return int((self._telling if self._dense is None else self._dense.telling).sum())

    def find_telling(self) -> None:
        """Leave out of scales and scores the cells that their flows' other cells determine, whatever τ² and σ² are.

        They agree to rounding, and would make both look small. Which cells these are is a matter of the graph.
        """
        variance, kappa, noise = self._variances(1.0, 1.0)
        if self._dense is not None:
            self._dense.find_telling(variance, kappa, self.whole, noise)
            return
        graph, prior = self._graph(np.zeros(len(noise)), variance, kappa, noise), normal_prior(variance)
        alone, telling = graph.cell_variance + noise, self.heard
        for _ in range(PASSES):
            before = telling
            # Variances do not oscillate: no need to damp.
            sweep(graph, prior, 1.0, 0.0)
            add_up(graph)
            telling = self.heard & (graph.cell_variance + noise > DETERMINED * alone)
            if np.array_equal(telling, before):
                break
        self._telling = telling if telling.any() else self.heard

    def components(self, prior_mean: float, ratios: Sequence[float]) -> tuple[float, float]:
        """τ² and σ² under which what is held out is most likely."""
        excess = (self.cells.delay_sum - prior_mean * self.cells.count)[self.heard]
        unit = float(np.mean(excess**2 / self.cells.count[self.heard])) if len(excess) else 0.0
        unit = max(unit, LEAST_UNIT)
        found: dict[float, Solved] = {}
        tie = TIE / max(self.telling_cells, 1)
        middle = len(ratios) // 2
        # From the middle both ways, as far as it does not get worse.
        for way in (ratios[middle::-1], ratios[middle:]):
            for ratio in way:
                if ratio not in found:
                    found[ratio] = self.solve(prior_mean, ratio * unit, unit, SETTLED_ROUGHLY, search=True)
                if found[ratio].score > min(one.score for one in found.values()) + tie:
                    break
        # Few cells leave the ratio open; then small flows are rather taken to scatter more.
        least = min(one.score for one in found.values())
        ratio = min(ratio for ratio, one in found.items() if one.score <= least + tie)
        return _rescaled(ratio, 1.0, found[ratio].scale * unit)

    def adapt(self, prior_mean: float, between: float, within: float) -> tuple[float, float]:
        """Let slow flows vary more, σ²_f ∝ mean^γ, by the γ that makes the cells likeliest; rescales τ² and σ²."""
        if prior_mean <= 0:
            return between, within
        said = self.solve(prior_mean, between, within, SETTLED_ROUGHLY)
        excess = said.value / (1 + 1 / np.maximum((between + within * self.scatter) * said.precision, TINY))
        slower = np.clip(1 + excess / prior_mean, *SLOWEST)
        found = [(said.score, self.tone, said.scale)]
        for power in POWERS[1:]:
            tone = slower**power
            self.tone = tone / np.average(tone, weights=self.size)
            outcome = self.solve(prior_mean, between, within, SETTLED_ROUGHLY, search=True)
            found.append((outcome.score, self.tone, outcome.scale))
            if found[-1][0] > found[-2][0]:
                break
        _, self.tone, scale = min(found, key=lambda one: one[0])
        return _rescaled(between, within, scale)

    def split_doubt(self, prior_mean: float, between: float, within: float) -> tuple[float, float]:
        """How much of the counts' doubt about splits the delays bear out; keeps the best and rescales τ² and σ²."""
        if not self.unsplit.any():
            return between, within
        said = self.unsplit
        best = (np.inf, 1.0, 1.0)
        for share in SPLIT_SHARES:
            self.unsplit = share * said
            outcome = self.solve(prior_mean, between, within, SETTLED_ROUGHLY, search=True)
            if outcome.score > best[0]:
                break
            best = outcome.score, share, outcome.scale
        self.unsplit = best[1] * said
        return _rescaled(between, within, best[2])

    @property
    def scatter(self) -> FloatArray:
        """The variance of a flow's mean around its own law's, in units of σ²."""
        return self.tone / self.size

    @property
    def is_dense(self) -> bool:
        return self._dense is not None

    def calibrated(self, said: Solved, between: float, within: float) -> tuple[FloatArray, FloatArray, float]:
        """Messages corrected by a trial, and the factor by which the variance components were off."""
        cells = self.cells
        variance, kappa, noise = self._variances(between, within)
        truth = draw_excess(variance, seed=2)
        drawn = draw_cells(cells.incidence, cells.packets, truth, kappa, self.whole, noise, seed=1)
        trial = self._pass(drawn, variance, kappa, noise, SETTLED_ROUGHLY, search=False)
        scale = said.scale / trial.scale if trial.scale > 0 else 1.0
        ratios = error_ratios(truth, trial.value, trial.precision, variance)
        value, precision = calibrated_precision(said.value, said.precision, variance, ratios)
        return value, precision / max(scale, 1e-12), scale

    def _variances(self, between: float, within: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of each flow's mean excess, of one packet's around it, of each cell's rounding."""
        variance = between * (1 + self.doubt) + within * self.scatter
        noise = self.rounding(between, within)
        return variance, (within * self.tone)[:, None] + between * self.unsplit, noise

    def rounding(self, between: float, within: float) -> FloatArray:
        """Each cell's variance from elsewhere."""
        noise: FloatArray = ROUNDING * (within + between) * self.cells.count + self.cells.noise
        return noise

    def sums_of(self, excess: FloatArray) -> FloatArray:
        """What flows of these excesses bring into the cells."""
        incidence = self.cells.incidence
        kept = incidence.cell >= 0
        parts = self.cells.packets * excess[:, None]
        sums: FloatArray = np.bincount(incidence.cell[kept], parts[kept], incidence.cells).astype(np.float64)
        return sums

    def held_out(self, graph: Graph, alone: FloatArray) -> tuple[float, float]:
        """How far cells are from their predictions, in units of variance, and −2 log likelihood at that scale.

        The likelihood is of the same cells under all variances, so that it can be compared. The scale leaves out those
        that are determined under these: passes end before such a cell is as near as it could be. `alone` is what cells
        vary by where no other speaks.
        """
        telling = self._telling
        if not telling.any():
            return 0.0, 0.0
        spread = graph.cell_variance[telling] + graph.noise[telling] + TINY
        square = graph.residual()[telling] ** 2 / spread
        score = float(np.mean(np.log(spread)) + np.log(max(float(np.mean(square)), TINY)))
        is_open = spread > DETERMINED * alone[telling]
        return float(np.mean(square[is_open])) if is_open.any() else 0.0, score

    def solve(
        self, prior_mean: float, between: float, within: float, settled: float, *, search: bool = False
    ) -> Solved:
        """What the cells say of each flow's excess over `prior_mean`."""
        cells = self.cells
        excess = cells.delay_sum - prior_mean * cells.count
        variance, kappa, noise = self._variances(between, within)
        if self._dense is not None:
            # Cells that repeat one another, beside some that hold far more: singular to the last digit. Sweeps are not.
            with suppress(np.linalg.LinAlgError):
                return self._dense.posterior(excess, variance, kappa, self.whole, noise, variances=not search)
        return self._pass(excess, variance, kappa, noise, settled, search)

    def _pass(
        self,
        excess: FloatArray,
        variance: FloatArray,
        kappa: FloatArray,
        noise: FloatArray,
        settled: float,
        search: bool,
    ) -> Solved:
        """Sweeps until they settle, with shorter steps if they diverge."""
        prior = normal_prior(variance)
        for step in STEPS[:1] if search else STEPS:
            graph = self._graph(excess, variance, kappa, noise)
            alone = graph.cell_variance + noise
            for number in range(SEARCH_PASSES if search else round(PASSES / step)):
                change = sweep(graph, prior, step, 0.0)
                if number % ADD_UP_EVERY == 0:
                    add_up(graph)
                if change < settled or not change < DIVERGED:
                    break
            add_up(graph)
            if change < CONVERGED:
                break
        scale, score = self.held_out(graph, alone)
        return Solved(graph.value, graph.precision, scale, score)

    def _graph(self, excess: FloatArray, variance: FloatArray, kappa: FloatArray, noise: FloatArray) -> Graph:
        given = {"kappa": kappa, "whole": self.whole, "mean": np.zeros(len(self.whole)), "variance": variance}
        return new_graph(self.cells.incidence, self.cells.packets, excess, noise, **given)


def _rescaled(between: float, within: float, scale: float) -> tuple[float, float]:
    """τ² and σ² times a scale that leaves them above rounding, also where cells happen to agree exactly."""
    least = max(scale, LEAST_UNIT / within)
    return between * least, within * least


def _common_excess(said: Solved, variance: FloatArray) -> float:
    """The mean of flows' excesses, weighted by what is known of each."""
    heard = said.precision > 0
    if not heard.any():
        return 0.0
    weight = 1 / (1 / said.precision[heard] + variance[heard])
    return float((weight * said.value[heard]).sum() / weight.sum())
