"""Mean delays of all flows together under the distribution of means that the flows themselves show.

`delays` solves with one normal prior. Its answers tell how flows' means are distributed (`delay_prior`); with that
mixture the passes start again from where they stood, and are kept if the cells' held-out predictions become likelier by
more than the mixture's weights cost (Bayes's information criterion). Where flows are alike, few sizes are known, or the
problem is small enough to be solved exactly, the normal solution stays.

Time: about 30 passes of `mixture_messages`. Memory: as `delays`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.estimation.joint.delays.linear import DelayCells, DelayMessages, DelayProblem, solve_normal
from sojourn.estimation.joint.delays.mixture_messages import pass_mixture
from sojourn.estimation.joint.delays.prior import Mixture, enough_known, learn_mixture
from sojourn.estimation.joint.delays.trials import calibrated_precision, draw_cells, error_ratios
from sojourn.estimation.joint.messages import Messages, new_messages

__all__ = ["solve_mixed"]

COMPONENTS = 10
RARE = 1e-3
PASSES = 24
TRIAL_PASSES = 12
STEP = 0.7
SETTLED = 0.01


def solve_mixed(cells: DelayCells, lean: Callable[[DelayMessages], DelayMessages]) -> DelayMessages:
    """Solve for all flows together; ``lean`` moves flows' own priors (`survivors`), given the normal solution."""
    normal = solve_normal(cells)
    said = lean(normal.said)
    if normal.problem is None or normal.problem.is_dense or not enough_known(said):
        return said
    refined, mixture = learn_mixture(said)
    prior = _Prior.of(mixture, refined, said.within)
    problem = _Mixed(normal.problem, prior, _squares(refined))
    shift = np.broadcast_to(refined.shift, refined.value.shape)
    excess = cells.delay_sum - said.prior_mean * cells.count - normal.problem.sums_of(shift)
    passed = problem.solve(excess, PASSES)
    cells_heard = int(normal.problem.heard.sum())
    cost = len(prior.weight) * np.log(cells_heard) / cells_heard
    if not passed.score < normal.score - cost:
        return said
    return problem.calibrated(passed, refined)


def _squares(said: DelayMessages) -> FloatArray:
    """What each flow's excess squares to: packets that a cell holds more of it than expected bring so much noise."""
    variance = said.between + said.scatter
    left = 1 / (1 + variance * said.precision)
    expected = said.shift + (1 - left) * (said.value - said.shift)
    squares: FloatArray = expected**2 + left * variance
    return squares


@dataclass(frozen=True, eq=False)
class _Prior:
    """A few normals instead of a fine grid of them: neighbours joined, the closest first, moments kept."""

    weight: FloatArray
    centre: FloatArray
    width2: FloatArray
    within: float
    scatter: FloatArray

    @staticmethod
    def of(mixture: Mixture, said: DelayMessages, within: float) -> _Prior:
        kept = mixture.weight > RARE * mixture.weight.max()
        weight, centre = mixture.weight[kept] / mixture.weight[kept].sum(), mixture.centre[kept]
        width2 = np.full(len(weight), mixture.width**2)
        while len(weight) > COMPONENTS:
            both = weight[:-1] + weight[1:]
            i = int(np.argmin(weight[:-1] * weight[1:] / both * np.diff(centre) ** 2))
            own = slice(i, i + 2)
            middle = float(np.average(centre[own], weights=weight[own]))
            width2[i] = np.average(width2[own] + (centre[own] - middle) ** 2, weights=weight[own])
            weight[i], centre[i] = both[i], middle
            weight, centre, width2 = (np.delete(column, i + 1) for column in (weight, centre, width2))
        return _Prior(weight, centre, width2, within, said.scatter)

    @property
    def mean(self) -> float:
        return float(self.weight @ self.centre)

    @property
    def between(self) -> float:
        return float(self.weight @ (self.width2 + self.centre**2)) - self.mean**2

    def draw(self, doubt: FloatArray, seed: int) -> FloatArray:
        """Flows' values as the cells would see them."""
        random = np.random.default_rng(seed)
        of_flow = random.choice(len(self.weight), len(doubt), p=self.weight)
        centre = self.centre[of_flow]
        spread = self.width2[of_flow] + self.scatter + doubt * centre**2
        drawn: FloatArray = centre + random.standard_normal(len(doubt)) * np.sqrt(spread)
        return drawn


@dataclass(frozen=True, eq=False)
class _Passed:
    """Where passes ended: what cells say of flows, how far cells are off in units of their variance."""

    messages: Messages
    scale: float
    score: float


class _Mixed:
    """The cells of a problem under one mixture."""

    def __init__(self, problem: DelayProblem, prior: _Prior, squares: FloatArray) -> None:
        self.problem, self.prior = problem, prior
        cells, between = problem.cells, prior.between
        self.kappa = (prior.within * problem.tone)[:, None] + squares[:, None] * problem.unsplit
        self.noise = problem.rounding(between, prior.within)
        self.variance = between * (1 + problem.doubt) + prior.scatter
        self.incidence, self.part = cells.incidence, cells.packets

    def solve(self, excess: FloatArray, passes: int) -> _Passed:
        """Passes until they settle."""
        prior, problem, incidence = self.prior, self.problem, self.incidence
        messages = new_messages(incidence, self.part, np.full(incidence.flows, prior.mean), self.variance)
        for _ in range(passes):
            change = pass_mixture(
                incidence.cell, self.part, incidence.groups, self.kappa, problem.whole, excess, self.noise,
                prior.weight, prior.centre, prior.width2, prior.scatter, problem.doubt, messages.part_mean,
                messages.part_variance, messages.cell_mean, messages.cell_variance, messages.precision,
                messages.value, STEP,
            )  # fmt: skip
            messages.add_up(incidence)
            if change < SETTLED:
                break
        scale, score = problem.held_out(messages, excess, self.noise)
        return _Passed(messages, scale, score)

    def calibrated(self, passed: _Passed, said: DelayMessages) -> DelayMessages:
        """The messages, corrected by a trial on values that the mixture has drawn."""
        prior, problem = self.prior, self.problem
        truth = prior.draw(problem.doubt, seed=2)
        drawn = draw_cells(self.incidence, self.part, truth, self.kappa, problem.whole, self.noise, seed=1)
        trial = self.solve(drawn, TRIAL_PASSES)
        scale = passed.scale / trial.scale if trial.scale > 0 else 1.0
        own, tried = passed.messages, trial.messages
        ratios = error_ratios(truth - prior.mean, tried.value - prior.mean, tried.precision, self.variance)
        value, precision = calibrated_precision(own.value - prior.mean, own.precision, self.variance, ratios)
        return replace(
            said,
            value=value + prior.mean + said.shift,
            precision=precision / max(scale, 1e-12),
            between=prior.between,
        )
