"""Mean delays of all flows together: the best linear prediction from the cells that lost nothing.

With g the prior mean, D_c − g·N_c = Σ_f z_fc, z the excess delay that flow f's packets brought into cell c. A flow's
own mean excess m_f has prior variance τ² + σ²/p_f (flows differ by τ², the packets of one flow by σ²), its parts a
variance of σ² per packet around it (`messages`). Nothing else is assumed; where cells take all packets of their flows
the equations are exact and σ² matters by the prior only.

τ²/σ² is the value at which the cells' held-out predictions are most likely, and σ² then follows from how far they are
off. g is the generalised least squares mean of the flows: elephants count no more than mice. σ² may grow with a
power of a flow's mean, if that makes the cells likelier.

Time: about 200 passes of O(edges). Memory: 32 bytes an edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.estimation.joint.delays.dense import DenseCells
from sojourn.estimation.joint.delays.trials import calibrated_precision, draw_cells, draw_excess, error_ratios
from sojourn.estimation.joint.incidence import Incidence
from sojourn.estimation.joint.messages import Messages, new_messages, pass_normal, pass_single
from sojourn.estimation.joint.sizes.bounds import FULL

__all__ = ["DelayCells", "DelayMessages", "DelayProblem", "NormalSolution", "solve_normal"]

RATIOS = (1e-5, 1e-3, 0.03, 0.3, 3.0, 30.0)
REFINEMENTS = (0.3, 1.0, 3.0)
SPLIT_SHARES = (1.0, 0.5, 0.2, 0.05)
SEARCH_PASSES = 12
PASSES = 80
SETTLED = 1e-4
SETTLED_ROUGHLY = 1e-2
DENSE_CELLS = 800
# Of a packet's delay, in square units of the recorded times: where a single cell is heard it is off by nothing.
DENSE_FLOWS = 2000
STEPS = (0.9, 0.45, 0.2)
RAN_AWAY = 1e9
STANDS = 0.1
NOT_WORSE = 1.0
ROUNDING = 1e-9
LEAST_UNIT = 1e-3
POWERS = (0.0, 1.0, 2.0)
SLOWEST = (0.1, 10.0)
TINY = 1e-300


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
    ``shift`` is how far a flow's own prior lies above ``prior_mean`` (`survivors`), known to ± ``shift_deviation``.
    ``doubt`` is the relative variance of the flow's size. ``refinement`` is the factor from the
    cells' σ² to this one, if how small flows scatter has told it.
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


@dataclass(frozen=True, eq=False)
class NormalSolution:
    """The cells, what they say of flows under a normal prior, and the score of their held-out predictions."""

    problem: DelayProblem | None
    said: DelayMessages
    score: float = 0.0


def solve_normal(cells: DelayCells) -> NormalSolution:
    """Solve for all flows together, with one normal prior for all."""
    if not cells.count.any():
        return NormalSolution(None, _nothing_said(cells))
    prior_mean = float(cells.delay_sum.sum()) / max(float(cells.count.sum()), 1.0)
    problem = DelayProblem(cells)
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
        DelayMessages(value, precision, prior_mean, between, within, scatter, doubt=problem.doubt),
        said.score,
    )


def _nothing_said(cells: DelayCells) -> DelayMessages:
    """Where no cell is usable: no precision for any flow, and variances that stand for nothing."""
    silent = np.zeros(cells.incidence.flows)
    return DelayMessages(silent, silent.copy(), 0.0, 1.0, 1.0, 1 / np.maximum(cells.size, 0.5))


class _Said(Protocol):
    """What a solve says: flows' messages, and how far cells are off in units of their variance."""

    @property
    def value(self) -> FloatArray: ...
    @property
    def precision(self) -> FloatArray: ...
    @property
    def scale(self) -> float: ...
    @property
    def score(self) -> float: ...


@dataclass(frozen=True, eq=False)
class _Passed:
    """The outcome of message passing."""

    value: FloatArray
    precision: FloatArray
    scale: float
    score: float


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
        small = int(self.heard.sum()) <= DENSE_CELLS and incidence.flows <= DENSE_FLOWS
        self._dense = DenseCells(incidence, cells.packets, self.heard) if small and self.heard.any() else None

    def components(self, prior_mean: float, ratios: Sequence[float]) -> tuple[float, float]:
        """τ² and σ² under which what is held out is most likely."""
        excess = (self.cells.delay_sum - prior_mean * self.cells.count)[self.heard]
        unit = float(np.mean(excess**2 / self.cells.count[self.heard])) if len(excess) else 0.0
        unit = max(unit, LEAST_UNIT)
        found = []
        for ratio in ratios:
            said = self.solve(prior_mean, ratio * unit, unit, SETTLED_ROUGHLY, search=True)
            found.append((ratio, said.scale * unit, said.score))
        # Few cells leave the ratio open; then small flows are rather taken to scatter more.
        open_to = min(score for *_, score in found) + NOT_WORSE / max(int(self.heard.sum()), 1)
        ratio, scale, _ = min(one for one in found if one[2] <= open_to)
        return _rescaled(ratio, 1.0, scale)

    def adapt(self, prior_mean: float, between: float, within: float) -> tuple[float, float]:
        """Let slow flows vary more, σ²_f ∝ mean^γ, by the γ that makes the cells likeliest; rescales τ² and σ²."""
        if prior_mean <= 0:
            return between, within
        said = self.solve(prior_mean, between, within, SETTLED_ROUGHLY)
        excess = said.value / (1 + 1 / np.maximum((between + within * self.scatter) * said.precision, TINY))
        slower = np.clip(1 + excess / prior_mean, *SLOWEST)
        found = []
        for power in POWERS:
            tone = slower**power
            self.tone = tone / np.average(tone, weights=self.size)
            outcome = self.solve(prior_mean, between, within, SETTLED_ROUGHLY, search=True)
            found.append((outcome.score, self.tone, outcome.scale))
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
            best = min(best, (outcome.score, share, outcome.scale))
        self.unsplit = best[1] * said
        return _rescaled(between, within, best[2])

    @property
    def scatter(self) -> FloatArray:
        """The variance of a flow's mean around its own law's, in units of σ²."""
        return self.tone / self.size

    @property
    def is_dense(self) -> bool:
        return self._dense is not None

    def calibrated(self, said: _Said, between: float, within: float) -> tuple[FloatArray, FloatArray, float]:
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

    def held_out(self, messages: Messages, excess: FloatArray, noise: FloatArray) -> tuple[float, float]:
        """How far cells are from their predictions, in units of variance, and −2 log likelihood at that scale."""
        spread = messages.cell_variance[self.heard] + noise[self.heard] + TINY
        scale = float(np.mean(messages.residual(excess)[self.heard] ** 2 / spread)) if self.heard.any() else 0.0
        score = float(np.mean(np.log(spread)) + np.log(max(scale, TINY))) if self.heard.any() else 0.0
        return scale, score

    def solve(self, prior_mean: float, between: float, within: float, settled: float, *, search: bool = False) -> _Said:
        """What the cells say of each flow's excess over `prior_mean`."""
        cells = self.cells
        excess = cells.delay_sum - prior_mean * cells.count
        variance, kappa, noise = self._variances(between, within)
        if self._dense is not None:
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
    ) -> _Passed:
        """Passes until they settle, with shorter steps if they run away."""
        incidence = self.cells.incidence
        for step in STEPS[:1] if search else STEPS:
            messages = new_messages(incidence, self.cells.packets, np.zeros(incidence.flows), variance)
            for _ in range(SEARCH_PASSES if search else round(PASSES / step)):
                change = self._one_pass(messages, excess, variance, kappa, noise, step)
                messages.add_up(incidence)
                if change < settled or not change < RAN_AWAY:
                    break
            if change < STANDS:
                break
        scale, score = self.held_out(messages, excess, noise)
        return _Passed(messages.value, messages.precision, scale, score)

    def _one_pass(
        self,
        messages: Messages,
        excess: FloatArray,
        variance: FloatArray,
        kappa: FloatArray,
        noise: FloatArray,
        step: float,
    ) -> float:
        """A pass around 0; the largest change."""
        incidence, part = self.cells.incidence, self.cells.packets
        state = (
            messages.part_mean,
            messages.part_variance,
            messages.cell_mean,
            messages.cell_variance,
            messages.precision,
            messages.value,
        )
        given = kappa, self.whole, excess, noise, np.zeros(incidence.flows), variance
        if incidence.group_length == 1:
            return pass_single(incidence.cell, part, *given, *state, step)
        return pass_normal(incidence.cell, part, incidence.groups, *given, *state, step)


def _rescaled(between: float, within: float, scale: float) -> tuple[float, float]:
    """τ² and σ² times a scale that leaves them above rounding, also where cells happen to agree exactly."""
    least = max(scale, LEAST_UNIT / within)
    return between * least, within * least


def _common_excess(said: _Said, variance: FloatArray) -> float:
    """The mean of flows' excesses, weighted by what is known of each."""
    heard = said.precision > 0
    if not heard.any():
        return 0.0
    weight = 1 / (1 / said.precision[heard] + variance[heard])
    return float((weight * said.value[heard]).sum() / weight.sum())
