"""Mean delays of all flows together: the best linear prediction from the cells that lost nothing.

With g the prior mean, D_c − g·N_c = Σ_f z_fc, z the excess delay that flow f's packets brought into cell c. A flow's
own mean excess m_f has prior variance τ² + σ²/p_f (flows differ by τ², the packets of one flow by σ²), its parts a
variance of σ² per packet around it (`messages`). Nothing else is assumed; where cells take all packets of their flows
the equations are exact and σ² matters by the prior only.

τ²/σ² is the value at which the cells' held-out predictions are most likely, and σ² then follows from how far they are
off. g is the generalised least squares mean of the flows, in which elephants count no more than mice. Under loss,
flows that lose nothing keep their cells and the rest speak less: g then leans to the flow-blind ``grand_mean``, by
the share of packets in unusable cells.

Time: about 200 passes of O(edges). Memory: 32 bytes an edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.estimation.bounds import FULL
from sojourn.estimation.delay_trials import calibrated_precision, draw_cells, error_ratios
from sojourn.estimation.dense_delays import DenseCells
from sojourn.estimation.incidence import Incidence
from sojourn.estimation.messages import new_messages, pass_normal

__all__ = ["DelayCells", "DelayMessages", "solve_delays"]

RATIOS = (1e-5, 1e-3, 0.03, 0.3, 3.0, 30.0)
REFINEMENTS = (0.3, 1.0, 3.0)
SPLIT_SHARES = (1.0, 0.5, 0.2, 0.05)
SEARCH_PASSES = 12
PASSES = 80
SETTLED = 1e-4
SETTLED_ROUGHLY = 1e-2
DENSE_CELLS = 800
# Of a packet's delay, in square units of the recorded times: where a single cell is heard it is off by nothing.
LEAST_VARIANCE = 1e-12
DENSE_FLOWS = 2000
STEPS = (0.9, 0.45, 0.2)
RAN_AWAY = 1e9
STANDS = 0.1
NOT_WORSE = 1.0
ROUNDING = 1e-9


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

    ``precision`` is 0 where no usable cell has packets of the flow. ``between`` is τ², ``within`` σ², ``scatter`` σ²/p;
    ``unheard`` is how far the prior mean, and not the flows heard, is to be believed.
    """

    value: FloatArray
    precision: FloatArray
    prior_mean: float
    between: float
    within: float
    scatter: FloatArray
    unheard: float = 0.0


def solve_delays(cells: DelayCells, *, grand_mean: float | None = None, unusable_share: float = 0.0) -> DelayMessages:
    """Solve for all flows; `grand_mean` is a flow-blind mean of all delivered packets."""
    if not cells.count.any():
        return _nothing_said(cells, grand_mean or 0.0)
    prior_mean = float(cells.delay_sum.sum()) / max(float(cells.count.sum()), 1.0)
    problem = _Problem(cells)
    between, within = problem.components(prior_mean, RATIOS)
    said = problem.solve(prior_mean, between, within, SETTLED_ROUGHLY)
    prior_mean += _common_excess(said, between + within * problem.scatter)
    if grand_mean is not None:
        prior_mean = (1 - unusable_share) * prior_mean + unusable_share * grand_mean
    between, within = problem.components(prior_mean, [between / within * step for step in REFINEMENTS])
    between, within = problem.split_doubt(prior_mean, between, within)
    said = problem.solve(prior_mean, between, within, SETTLED)
    unheard = unusable_share if grand_mean is not None else 0.0
    value, precision, scale = said.value, said.precision, 1.0
    if not problem.is_dense:
        value, precision, scale = problem.calibrated(said, between, within)
    between, within = between * scale, within * scale
    return DelayMessages(value, precision, prior_mean, between, within, within * problem.scatter, unheard)


def _nothing_said(cells: DelayCells, prior_mean: float) -> DelayMessages:
    """Where no cell is usable: no precision for any flow, and variances that stand for nothing."""
    silent = np.zeros(cells.incidence.flows)
    return DelayMessages(silent, silent.copy(), prior_mean, 1.0, 1.0, 1 / np.maximum(cells.size, 0.5), 1.0)


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


class _Problem:
    """The cells with what every solve needs of them."""

    def __init__(self, cells: DelayCells) -> None:
        self.cells = cells
        incidence = cells.incidence
        by_group = cells.packets.reshape(incidence.flows, incidence.groups, incidence.group_length).sum(axis=2)
        self.size = np.maximum(cells.size, 0.5)
        self.whole = np.maximum(self.size, by_group.max(axis=1, initial=0.0))
        self.doubt = cells.size_variance / self.size**2
        self.scatter = 1 / self.size
        own = np.maximum(cells.packets.sum(axis=1), 0.5)
        self.unsplit = np.minimum(np.where(incidence.share >= FULL, 0.0, cells.split).sum(axis=1) / own, 1.0)
        self.heard = cells.count > 0
        small = int(self.heard.sum()) <= DENSE_CELLS and incidence.flows <= DENSE_FLOWS
        self._dense = DenseCells(incidence, cells.packets, self.heard) if small and self.heard.any() else None

    def components(self, prior_mean: float, ratios: Sequence[float]) -> tuple[float, float]:
        """τ² and σ² under which what is held out is most likely."""
        excess = (self.cells.delay_sum - prior_mean * self.cells.count)[self.heard]
        unit = float(np.mean(excess**2 / self.cells.count[self.heard])) if len(excess) else 0.0
        unit = max(unit, LEAST_VARIANCE)
        found = []
        for ratio in ratios:
            said = self.solve(prior_mean, ratio * unit, unit, SETTLED_ROUGHLY, search=True)
            found.append((ratio, said.scale * unit, said.score))
        # Few cells leave the ratio open; then small flows are rather taken to scatter more.
        open_to = min(score for *_, score in found) + NOT_WORSE / max(int(self.heard.sum()), 1)
        ratio, scale, _ = min(one for one in found if one[2] <= open_to)
        scale = max(scale, LEAST_VARIANCE)
        return ratio * scale, scale

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
        return between * best[2], within * best[2]

    @property
    def is_dense(self) -> bool:
        return self._dense is not None

    def calibrated(self, said: _Said, between: float, within: float) -> tuple[FloatArray, FloatArray, float]:
        """Messages corrected by a trial, and the factor by which the variance components were off."""
        cells = self.cells
        variance, kappa, noise = self._variances(between, within)
        truth, drawn = draw_cells(cells.incidence, cells.packets, variance, kappa, self.whole, noise, seed=1)
        trial = self._pass(drawn, variance, kappa, noise, SETTLED_ROUGHLY, search=False)
        scale = said.scale / trial.scale if trial.scale > 0 else 1.0
        ratios = error_ratios(truth, trial.value, trial.precision, variance)
        value, precision = calibrated_precision(said.value, said.precision, variance, ratios)
        return value, precision / max(scale, 1e-12), scale

    def _variances(self, between: float, within: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of each flow's mean excess, of one packet's around it, of each cell's rounding."""
        variance = between * (1 + self.doubt) + within * self.scatter
        noise = ROUNDING * (within + between) * self.cells.count + self.cells.noise
        return variance, within + between * self.unsplit, noise

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
        cells, incidence = self.cells, self.cells.incidence
        zero = np.zeros(incidence.flows)
        for step in STEPS[:1] if search else STEPS:
            messages = new_messages(incidence, cells.packets, zero, variance)
            for _ in range(SEARCH_PASSES if search else round(PASSES / step)):
                change = pass_normal(
                    incidence.cell, cells.packets, incidence.groups, kappa, self.whole, excess, noise, zero, variance,
                    messages.part_mean, messages.part_variance, messages.cell_mean, messages.cell_variance,
                    messages.precision, messages.value, step,
                )  # fmt: skip
                messages.add_up(incidence)
                if change < settled or not change < RAN_AWAY:
                    break
            if change < STANDS:
                break
        spread = messages.cell_variance[self.heard] + noise[self.heard] + 1e-300
        scale = float(np.mean(messages.residual(excess)[self.heard] ** 2 / spread)) if self.heard.any() else 0.0
        score = float(np.mean(np.log(spread)) + np.log(max(scale, 1e-300))) if self.heard.any() else 0.0
        return _Passed(messages.value, messages.precision, scale, score)


def _common_excess(said: _Said, variance: FloatArray) -> float:
    """The mean of flows' excesses, weighted by what is known of each."""
    heard = said.precision > 0
    if not heard.any():
        return 0.0
    weight = 1 / (1 / said.precision[heard] + variance[heard])
    return float((weight * said.value[heard]).sum() / weight.sum())
