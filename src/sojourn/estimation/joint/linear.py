"""Mean delays of all flows together: the best linear prediction from the cells that lost nothing.

With g the prior mean, D_c − g·N_c = Σ_f z_fc, z the excess delay that flow f's packets brought into cell c. A flow's
own mean excess m_f has prior variance τ² + σ²/p_f (flows differ by τ², the packets of one flow by σ²), its parts a
variance of σ² per packet around it (`messages`). Nothing else is assumed; where cells take all packets of their flows
the equations are exact and σ² matters by the prior only.

τ²/σ² is the value at which the cells' held-out predictions are most likely, and σ² then follows from how far they are
off. g is the generalised least squares mean of the flows: elephants count no more than mice. σ² may grow with a
power of a flow's mean, if that makes the cells likelier.

Small problems are solved exactly, with a dense matrix (`dense`).

**Calibration by trial**: message passing is exact on trees. Where flows own neighbouring cells (k > 1) two flows share
several, loops are short, and predicted variances are off: means are right, intervals would not be. So delays drawn by
the model itself are decoded on the same cells, and the ratio of squared errors to predicted variances is measured, by
the precision of a flow's messages, and applied. Cost: one more solve per trial.

Time: 60 to 150 passes of O(edges), most of them over the flows that still change. Memory: 28 bytes an edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int32Array, Int64Array
from sojourn.core.kernels import kernel
from sojourn.estimation.joint.calibration import calibrated_precision, draw_cells, draw_excess, error_ratios
from sojourn.estimation.joint.dense import DETERMINED, DenseCells, Solved
from sojourn.estimation.joint.incidence import FULL, Incidence, variance_alone
from sojourn.estimation.joint.messages import SURE, TINY, Graph, Parts, add_up, hold, new_graph, normal_prior, sweep
from sojourn.estimation.learning import POWERS

ROUNDING = 1e-9  # of a packet's variance, in every cell
FEW_CHANGED = 1e-4  # of all cells: whether so few are determined changes no score
RATIOS = (1e-5, 1e-3, 0.03, 0.3, 3.0, 30.0)  # of τ² to σ²: decades first, then refined around the best
REFINEMENTS = (0.3, 1.0, 3.0)
SPLIT_SHARES = (1.0, 0.5, 0.2, 0.05)
SEARCH_PASSES = 12
PASSES = 80
# Sweeps from one that visits every flow to the next; between them those wait that had settled. Sums are added up anew
# then: rounding errors of a few sweeps are far smaller than what they settle to.
FULL_PASS = 4


class Effort(NamedTuple):
    """How far passes go: until nearly all parts change by less than ``settled``, in deviations of their cells; for
    scores only, so that there need not be many; and whether they visit flows whose means are known, of which other
    counters tell what part each counter holds."""

    settled: float
    is_search: bool
    visits_known: bool


SEARCH, ROUGH = Effort(0.01, True, False), Effort(0.01, False, False)
TRIAL, FINE = Effort(0.01, False, True), Effort(1e-3, False, True)
LEAST_PASSES = 3
MOST_KNOWN = 0.5  # of flows
QUIET = 0.1  # of what settles: changes below are none
# Problems up to here are solved by a dense matrix: cells³ operations, 5 MB.
DENSE_CELLS, DENSE_FLOWS = 800, 2000
STEPS = (0.9, 0.45, 0.2)
DIVERGED = 1e9  # of a cell's deviation: no data is that far off, so the passes run away
CONVERGED = 0.1  # of a cell's deviation; passes that end with larger changes are repeated with shorter steps
# Ratios whose scores (deviance of all cells together) differ by less are a tie: AIC asks 2 of a parameter.
TIE = 1.0
# In square units of the recorded times: a variance below is rounding, also where a single cell is heard.
LEAST_UNIT = 1e-3
SLOWEST = (0.1, 10.0)


@dataclass(frozen=True, eq=False)
class DelayCells:
    """What usable cells say: sums of delays, counts, whose packets they are.

    ``packets`` are the edges' expected packets, ``split`` their variances (also of edges that are gone); ``size`` and
    ``size_variance`` the flows'.
    ``noise`` is each cell's variance from elsewhere (rounded time stamps). ``exact`` are means that need no estimate,
    NaN for the other flows: where most flows have one, they are not visited but for the answers.
    """

    incidence: Incidence
    packets: FloatArray
    split: FloatArray
    size: FloatArray
    size_variance: FloatArray
    delay_sum: FloatArray
    count: FloatArray
    noise: FloatArray
    exact: FloatArray | None = None


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


class HeldOut(NamedTuple):
    """Sums over held-out predictions: the logarithms of their variances, the squared errors in units of these, how
    many they are; squared errors and number of those that others leave open."""

    logs: float
    squares: float
    number: int
    open_squares: float
    open_number: int

    @property
    def scale(self) -> float:
        """How far cells are off, in units of variance.

        Those are left out that others determine: passes end before such a cell is as near as it could be. 1 where all
        are, which say nothing of it.
        """
        if not self.number:
            return 0.0
        return self.open_squares / self.open_number if self.open_number else 1.0

    @property
    def score(self) -> float:
        """−2 log likelihood of a cell at that scale."""
        if not self.number:
            return 0.0
        return self.logs / self.number + math.log(max(self.squares / self.number, TINY))


class _Searched(NamedTuple):
    """A solution without its messages: 16 bytes a flow, of every one that is tried."""

    score: float
    scale: float


@kernel
def _doubt_of_groups(cell: Int32Array, share: FloatArray, starts: Int64Array, split: FloatArray) -> FloatArray:
    """The variances of flows' parts added up, flows × groups; a cell that takes all has all. O(edges)."""
    found = np.zeros((len(cell), len(starts) - 1))
    for f in range(len(cell)):
        for g in range(len(starts) - 1):
            for e in range(starts[g], starts[g + 1]):
                if cell[f, e] >= 0 and share[f, e] < FULL:
                    found[f, g] += split[f, e]
    return found


@kernel
def _add_held_out(graph: Graph, alone: FloatArray, telling: BoolArray) -> tuple[float, float, int, float, int]:
    """The sums of `HeldOut`, over the cells that tell; O(cells)."""
    logs = squares = open_squares = 0.0
    number = open_number = 0
    for c in range(len(telling)):
        if telling[c]:
            spread = graph.cell_variance[c] + graph.noise[c] + TINY
            square = (graph.observed[c] - graph.cell_mean[c]) ** 2 / spread
            logs += math.log(spread)
            squares += square
            number += 1
            if spread > DETERMINED * alone[c]:
                open_squares += square
                open_number += 1
    return logs, squares, number, open_squares, open_number


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
    variance = between + within * problem.scatter
    prior_mean += _common_excess(problem.solve(prior_mean, between, within, ROUGH), variance)
    problem.begin_anew()
    between, within = problem.components(prior_mean, [between / within * step for step in REFINEMENTS])
    between, within = problem.adapt(prior_mean, between, within)
    between, within = problem.split_doubt(prior_mean, between, within)
    said = problem.solve(prior_mean, between, within, FINE)
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
        said.of_cells,
    )


class DelayProblem:
    """The cells with what every solve needs of them."""

    def __init__(self, cells: DelayCells) -> None:
        self.cells = cells
        incidence = cells.incidence
        by_group = incidence.kept_by_group(cells.packets)
        self.size = np.maximum(cells.size, 0.5)
        self.whole = np.maximum(self.size, by_group.max(axis=1, initial=0.0))
        self.doubt = cells.size_variance / self.size**2
        doubted = _doubt_of_groups(incidence.cell, incidence.share, incidence.starts, cells.split)
        self.unsplit = np.minimum(doubted / np.maximum(by_group, 1e-9), 1.0)
        self.tone = np.ones(incidence.flows)
        self.heard = cells.count > 0
        self._telling = self.heard
        known = np.zeros(incidence.flows, bool) if cells.exact is None else ~np.isnan(cells.exact)
        # Few of them save little time, and are too special to tell variances: small flows, or alone in their cells.
        self.known = np.flatnonzero(known if known.mean() >= MOST_KNOWN else known[:0])
        # Where the last passes ended: the next, with somewhat other variances, begin there.
        self._parts: Parts | None = None
        small = int(self.heard.sum()) <= DENSE_CELLS and incidence.flows <= DENSE_FLOWS
        self._dense = DenseCells(incidence, cells.packets, self.heard) if small and self.heard.any() else None
        if self._dense is None:
            # Where a cell takes all packets, parts elsewhere that add up to more are decoded too large. (A matrix of
            # such parts would not be positive definite.)
            entire = ((incidence.share >= FULL) & (incidence.cell >= 0)).any(axis=1)
            self.whole = np.where(entire, self.size, self.whole)

    @property
    def telling_cells(self) -> int:
        """The cells, or as many combinations of them and exact flows, that variances are learned from."""
        return int(self._telling.sum()) + len(self.known) if self._dense is None else int(self._dense.telling.sum())

    def find_telling(self) -> None:
        """Leave out of scales and scores the cells that their flows' other cells determine, whatever τ² and σ² are.

        They agree to rounding, and would make both look small. Which cells these are is a matter of the graph.
        """
        variance, kappa, noise = self._variances(1.0, 1.0)
        if self._dense is not None:
            self._dense.find_telling(variance, kappa, self.whole, noise)
            return
        graph, prior = self._graph(np.zeros(len(noise)), variance, kappa, noise), normal_prior(variance)
        hold(graph, prior, self.known, np.zeros(len(self.known)))
        alone, telling = graph.cell_variance + noise, self.heard
        for _ in range(PASSES):
            before = telling
            # Variances do not oscillate: no need to damp.
            sweep(graph, prior, 1.0, 0.0)
            add_up(graph)
            telling = self.heard & (graph.cell_variance + noise > DETERMINED * alone)
            if np.count_nonzero(telling != before) <= FEW_CHANGED * len(telling):
                break
        self._telling = telling if telling.any() else self.heard
        self.begin_anew()

    def components(self, prior_mean: float, ratios: Sequence[float]) -> tuple[float, float]:
        """τ² and σ² under which what is held out is most likely."""
        excess = (self.cells.delay_sum - prior_mean * self.cells.count)[self.heard]
        unit = float(np.mean(excess**2 / self.cells.count[self.heard])) if len(excess) else 0.0
        unit = max(unit, LEAST_UNIT)
        found: dict[float, _Searched] = {}
        tie = TIE / max(self.telling_cells, 1)
        middle = len(ratios) // 2
        # From the middle both ways, as far as it does not get worse.
        for way in (ratios[middle::-1], ratios[middle:]):
            for ratio in way:
                if ratio not in found:
                    found[ratio] = self._searched(prior_mean, ratio * unit, unit)
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
        said = self.solve(prior_mean, between, within, ROUGH)
        excess = said.value / (1 + 1 / np.maximum((between + within * self.scatter) * said.precision, TINY))
        slower = np.clip(1 + excess / prior_mean, *SLOWEST)
        best, last = (said.score, self.tone, said.scale), said.score
        # Flows are many, and what they were under the first tone is in the way of the others.
        del said, excess
        for power in POWERS[1:]:
            self.tone = slower**power
            self.tone /= np.average(self.tone, weights=self.size)
            outcome = self._searched(prior_mean, between, within)
            best = min(best, (outcome.score, self.tone, outcome.scale), key=lambda one: one[0])
            if outcome.score > last:
                break
            last = outcome.score
        _, self.tone, scale = best
        return _rescaled(between, within, scale)

    def split_doubt(self, prior_mean: float, between: float, within: float) -> tuple[float, float]:
        """How much of the counts' doubt about splits the delays bear out; keeps the best and rescales τ² and σ²."""
        if not self.unsplit.any():
            return between, within
        said = self.unsplit
        best = (np.inf, 1.0, 1.0)
        for share in SPLIT_SHARES:
            self.unsplit = share * said
            outcome = self._searched(prior_mean, between, within)
            if outcome.score > best[0]:
                break
            best = outcome.score, share, outcome.scale
        self.unsplit = best[1] * said
        return _rescaled(between, within, best[2])

    def begin_anew(self) -> None:
        """Begin the next passes without what the last ones found: around another mean, or in other cells, all parts are
        other ones."""
        self._parts = None

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
        self.begin_anew()
        drawn = draw_cells(cells.incidence, cells.packets, truth, kappa, self.whole, noise, seed=1)
        trial = self._pass((drawn, truth[self.known]), variance, kappa, noise, TRIAL)
        trial.precision[self.known] = 0.0
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

    def held_out(self, graph: Graph, alone: FloatArray) -> HeldOut:
        """How far cells are from their predictions; `alone` is what they vary by where no other speaks.

        Of the same cells under all variances, so that likelihoods can be compared.
        """
        return HeldOut(*_add_held_out(graph, alone, self._telling))

    def with_known(self, held_out: HeldOut, graph: Graph) -> HeldOut:
        """The same with the flows whose means are known, which tell how far flows are apart by these."""
        spread = graph.variance[self.known]
        square, number = float(np.sum(graph.value[self.known] ** 2 / spread)), len(spread)
        logs, squares, cells, open_squares, open_cells = held_out
        logs += float(np.log(spread).sum())
        return HeldOut(logs, squares + square, cells + number, open_squares + square, open_cells + number)

    def _searched(self, prior_mean: float, between: float, within: float) -> _Searched:
        """What a search asks of a solution."""
        found = self.solve(prior_mean, between, within, SEARCH)
        return _Searched(found.score, found.scale)

    def solve(self, prior_mean: float, between: float, within: float, effort: Effort) -> Solved:
        """What the cells say of each flow's excess over `prior_mean`."""
        cells = self.cells
        excess = cells.delay_sum - prior_mean * cells.count
        variance, kappa, noise = self._variances(between, within)
        if self._dense is not None:
            # Cells that repeat one another, beside some that hold far more: singular to the last digit. Sweeps are not.
            with suppress(np.linalg.LinAlgError):
                return self._dense.posterior(excess, variance, kappa, self.whole, noise, variances=not effort.is_search)
        return self._pass((excess, self.known_excess(prior_mean)), variance, kappa, noise, effort)

    def known_excess(self, prior_mean: float) -> FloatArray:
        """Of the flows whose means are exact."""
        exact = self.cells.exact
        return np.zeros(0) if exact is None else exact[self.known] - prior_mean

    def _pass(
        self,
        excess: tuple[FloatArray, FloatArray],
        variance: FloatArray,
        kappa: FloatArray,
        noise: FloatArray,
        effort: Effort,
    ) -> Solved:
        """Sweeps until they settle, with shorter steps if they diverge; `excess` of cells and of the flows known."""
        settled, is_search, visits_known = effort
        prior = normal_prior(variance)
        for step in STEPS[:1] if is_search else STEPS:
            graph = self._graph(excess[0], variance, kappa, noise)
            hold(graph, prior, self.known, excess[1])
            if visits_known:
                graph.change[self.known] = np.inf
            for number in range(SEARCH_PASSES if is_search else round(PASSES / step)):
                in_full = number % FULL_PASS == 0
                change = sweep(graph, prior, step, 0.0 if in_full else QUIET * settled)
                if in_full:
                    add_up(graph)
                is_settled = number + 1 >= LEAST_PASSES and graph.is_settled(settled)
                if is_settled or not change < DIVERGED:
                    break
            if not in_full:
                add_up(graph)
            if is_settled or change < CONVERGED:
                break
            self._parts = None
        self.tell_known(graph, excess[1], variance)
        alone = variance_alone(self.cells.incidence, self.cells.packets, variance, noise)
        of_cells = self.held_out(graph, alone)
        of_all = self.with_known(of_cells, graph)
        return Solved(graph.value, graph.precision, of_all.scale, of_all.score, of_cells.score)

    def tell_known(self, graph: Graph, excess: FloatArray, variance: FloatArray) -> None:
        """Say what is known of flows that passes have visited, instead of what their cells did."""
        graph.value[self.known], graph.precision[self.known] = excess, SURE / variance[self.known]

    def _graph(self, excess: FloatArray, variance: FloatArray, kappa: FloatArray, noise: FloatArray) -> Graph:
        given = {"kappa": kappa, "whole": self.whole, "mean": np.zeros(len(self.whole)), "variance": variance}
        of_cells = self.cells.incidence, self.cells.packets, excess, noise
        graph = new_graph(*of_cells, **given, parts=self._parts, adds_up=not len(self.known))
        self._parts = graph.part_mean, graph.part_variance
        return graph


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
