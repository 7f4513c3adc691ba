"""Mean delays of all flows together under the distribution of means that the flows themselves show.

`linear` solves with one normal prior, which knows a spread only; between a fast path and a slow one it expects flows
where there are none. Its answers show how flows' means are distributed; with that mixture of normals the
passes start again from where they were, and are kept if the cells' held-out predictions become likelier by more than
the mixture's weights cost (Bayes's information criterion). Where flows hardly differ, few sizes are known, or the
problem is small enough to be solved exactly, the normal solution stays.

Under a mixture a flow that the other cells place near one peak is predicted at that peak, and what a cell then leaves
for its other flows is sharper. A message to a cell has the posterior's mean and variance, given all other groups of
cells (assumed density filtering); where a group has several cells, the prior acts on them as it does near the flow's
value. A component of centre c is as wide as itself, plus σ²/p of the flow, plus c² times the doubt of the flow's size:
what the cells see of a mean is the flow's sum over the size it is taken to have.

**The prior.** The messages of the cells give each flow a value and a precision, for mice a small one. What mice can be
is learned from the well-known flows: a mixture of normals on an even grid, whose weights maximise the likelihood of all
messages (expectation maximisation). Two groups of flows (a fast and a slow path) give two peaks, and no flow is then
answered with the empty middle between them. The answer is the posterior's median; the interval is the shortest that
contains 95 % of the posterior. Each component is as wide as the grid is fine, plus σ²/p: the mean of p packets scatters
around its flow's own. The interval rests on the assumption that small and large flows have the same distribution.

Time: about 30 passes of O(edges × components), about 25 ns an edge and component, and 5 µs a flow for the posterior.
Memory: none but the messages'.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.estimates import NORMAL_95
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.joint.calibration import calibrated_precision, draw_cells, error_ratios
from sojourn.estimation.joint.dense import Solved
from sojourn.estimation.joint.linear import (
    FULL_PASS,
    QUIET,
    DelayCells,
    DelayMessages,
    DelayProblem,
    solve_normal,
)
from sojourn.estimation.joint.messages import NEGLIGIBLE, add_up, hold, mixture_prior, new_graph, sweep
from sojourn.estimation.learning import KEPT_FLOWS, WIDTH, learning_rows
from sojourn.estimation.normal import normal_below
from sojourn.estimation.order_statistics import quantile_of_sorted

COMPONENTS = 72
LEARN_PASSES = 60
SEARCH_PASSES = 20
FEWEST = 30
# Sizes known to a fifth: what a flow's cells say of its sum then says enough of its mean.
KNOWN, FEWEST_KNOWN = 0.04, 300
NO_DIFFERENCE = 1e-3  # τ² over σ²: below, all flows have one mean, and a mixture has nothing to learn
WITHIN_FACTORS = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.01)
DEVIATIONS = 3.5
LEVEL = 0.95
TAIL_STEPS = 12
MARGIN = 12
BISECTIONS = 8
RARE_SHARE = 1e-9


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weights of normals with these centres (excess over the prior mean) and one width."""

    weight: FloatArray
    centre: FloatArray
    width: float


def enough_known(said: DelayMessages) -> bool:
    """Whether flows differ, and enough of them have sizes that are known, to learn how."""
    differ = said.between >= NO_DIFFERENCE * said.within
    return differ and int((_tells(said) & (said.doubt < KNOWN)).sum()) >= FEWEST_KNOWN


def _tells(said: DelayMessages) -> BoolArray:
    """The flows of which the cells say enough to learn from."""
    tells: BoolArray = said.precision * 4 * (said.between + said.scatter) > 1
    return tells


def learn_mixture(said: DelayMessages) -> tuple[DelayMessages, Mixture]:
    """The distribution of flows' own means, and the messages with σ² as the same likelihood has it.

    Cells tell σ² only by how much small flows scatter. Flows of which little is known add little; those of doubtful
    size show a mean that is off by the factor that the size is: they tell σ², not, if there are enough others, the
    mixture. Priors that survivor bias has moved are
    kept if flows are likelier with them: where flows are of two kinds, sizes may go with the kind, not with its mean.
    """
    tells = _tells(said)
    known = tells & (said.doubt < KNOWN)
    if known.sum() < FEWEST_KNOWN:
        said, known = replace(said, doubt=0.0), tells
    telling, shown = _some(tells), _some(known)
    if len(shown) < FEWEST or said.between < NO_DIFFERENCE * said.within:
        return said, _fitted(said, shown, LEARN_PASSES)
    if said.refinement is None:
        found = [_scaled(said, factor) for factor in WITHIN_FACTORS]
        said = max(found, key=lambda one: _likelihood(one, _fitted(one, shown, SEARCH_PASSES), telling))
    mixture = _fitted(said, shown, LEARN_PASSES)
    if np.any(said.shift):
        still = replace(said, shift=0.0, shift_deviation=0.0)
        unmoved = _fitted(still, shown, LEARN_PASSES)
        if _likelihood(still, unmoved, telling) > _likelihood(said, mixture, telling):
            return still, unmoved
    return said, mixture


def _some(chosen: BoolArray) -> Int64Array:
    """The flows chosen, or enough of them to learn from."""
    flows: Int64Array = np.flatnonzero(chosen)
    return flows[learning_rows(len(flows))]


def _scaled(said: DelayMessages, factor: float) -> DelayMessages:
    return replace(said, within=said.within * factor, scatter=said.scatter * factor, refinement=factor)


def _likelihood(said: DelayMessages, mixture: Mixture, flows: Int64Array) -> float:
    """The log likelihood of flows' messages, also of those whose size is doubtful."""
    value = (said.value - said.shift)[flows]
    variance = 1 / said.precision[flows] + said.scatter[flows] + mixture.width**2
    doubt = np.broadcast_to(said.doubt, said.value.shape)[flows]
    return _log_likelihood(value, variance, doubt, mixture.weight, mixture.centre)


@kernel
def _log_likelihood(
    value: FloatArray, variance: FloatArray, doubt: FloatArray, weight: FloatArray, centre: FloatArray
) -> float:
    """Of values around the centres, with variances that grow by doubt times the centre's square."""
    likelihood = 0.0
    exponent = np.empty(len(weight))
    for f in range(len(value)):
        for k in range(len(weight)):
            spread = variance[f] + doubt[f] * centre[k] ** 2
            exponent[k] = -0.5 * (centre[k] - value[f]) ** 2 / spread
        most = np.max(exponent)
        total = 0.0
        for k in range(len(weight)):
            if exponent[k] > most - NEGLIGIBLE:
                total += weight[k] * np.exp(exponent[k] - most) / np.sqrt(variance[f] + doubt[f] * centre[k] ** 2)
        likelihood += most + math.log(total)
    return likelihood


def _fitted(said: DelayMessages, telling: Int64Array, passes: int) -> Mixture:
    """The mixture for given σ²."""
    deviation = np.sqrt(said.between)
    value = (said.value - said.shift)[telling]
    doubt = np.broadcast_to(said.doubt, said.value.shape)[telling] * value**2
    variance = 1 / said.precision[telling] + said.scatter[telling] + doubt
    reach = [-DEVIATIONS * deviation, DEVIATIONS * deviation]
    sharp = variance < 0.1 * said.between
    if sharp.any():
        known = np.sort(value[sharp])
        low, high = (quantile_of_sorted(known, level) for level in (0.0025, 0.9975))
        reach = [min(low, -deviation), max(high, deviation)]
    centre = np.linspace(reach[0], reach[1], COMPONENTS)
    width = WIDTH * float(centre[1] - centre[0]) + 1e-12
    normal = np.exp(-0.5 * (centre / max(deviation, 1e-12)) ** 2) + 1e-3
    normal /= normal.sum()
    weight = _likeliest(value, variance + width**2, normal, centre, passes if len(telling) else 0)
    return Mixture(weight, centre, width)


def _likeliest(
    value: FloatArray, variance: FloatArray, normal: FloatArray, centre: FloatArray, passes: int
) -> FloatArray:
    """The weights after so many passes of expectation maximisation, beginning with a normal shape."""
    # Where all weigh 1: what weights make of it takes no exponential of any component.
    shares = np.empty((len(value), len(centre)))
    _fill_shares(value, variance, centre, shares)
    weight = normal
    for _ in range(passes):
        flows = weight * ((1 / (shares @ weight)) @ shares)
        # A few flows' worth of the normal shape keeps tails that few flows show.
        weight = (flows + KEPT_FLOWS * normal) / (len(value) + KEPT_FLOWS)
    return weight


@kernel
def _fill_shares(value: FloatArray, variance: FloatArray, centre: FloatArray, shares: FloatArray) -> None:
    even = np.ones(len(centre))
    for f in range(len(value)):
        _component_shares(value[f], 1.0 / variance[f], even, centre, shares[f])


@inlined
def _component_shares(value: float, precision: float, weight: FloatArray, centre: FloatArray, own: FloatArray) -> None:
    """Posterior weights of the components; `precision` is of value around a centre."""
    nearest = np.inf
    for k in range(len(centre)):
        nearest = min(nearest, (centre[k] - value) ** 2)
    total = 0.0
    for k in range(len(centre)):
        exponent = -0.5 * precision * ((centre[k] - value) ** 2 - nearest)
        own[k] = weight[k] * np.exp(exponent) if exponent > -40.0 else 0.0
        total += own[k]
    for k in range(len(centre)):
        own[k] /= total


def posterior(said: DelayMessages, mixture: Mixture) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Median, low and high of each flow's mean excess; the interval is the shortest that holds 95 %."""
    quantiles = np.empty((len(said.value), 3))
    value = said.value - said.shift
    _quantiles(value, said.precision, said.scatter, mixture.weight, mixture.centre, mixture.width**2, quantiles)
    return quantiles[:, 0] + said.shift, quantiles[:, 1] + said.shift, quantiles[:, 2] + said.shift


@kernel
def _quantiles(
    value: FloatArray,
    precision: FloatArray,
    scatter: FloatArray,
    weight: FloatArray,
    centre: FloatArray,
    width2: float,
    quantiles: FloatArray,
) -> None:
    """Posterior components of a flow lie on an even grid and are equally wide, so one table of the normal
    distribution function serves them all; a few bisections then refine each quantile.
    """
    components = len(weight)
    own = np.empty(components)
    below = np.empty(components + 2 * MARGIN)
    normal = np.empty(2 * (components + MARGIN) + 1)
    for f in range(len(value)):
        around = width2 + scatter[f]
        spread = 1.0 / (1.0 / around + precision[f])
        deviation = np.sqrt(spread)
        _component_shares(value[f], precision[f] / (1.0 + precision[f] * around), weight, centre, own)
        first = spread * (centre[0] / around + precision[f] * value[f])
        pace = spread * (centre[1] - centre[0]) / around
        average = square = 0.0
        for k in range(components):
            average += own[k] * k
            square += own[k] * k * k
        variance = spread + pace * pace * max(square - average * average, 0.0)
        if variance < 1.05 * spread or pace * MARGIN < DEVIATIONS * deviation:
            half = NORMAL_95 * np.sqrt(variance)
            quantiles[f, 0] = first + pace * average
            quantiles[f, 1], quantiles[f, 2] = quantiles[f, 0] - half, quantiles[f, 0] + half
            continue
        _fill_table(own, pace / deviation, normal, below)
        low_tail = _shortest(below)
        quantiles[f, 0] = _refined(0.5, own, first, pace, deviation, below)
        quantiles[f, 1] = _refined(low_tail, own, first, pace, deviation, below)
        quantiles[f, 2] = _refined(low_tail + LEVEL, own, first, pace, deviation, below)


@inlined
def _fill_table(own: FloatArray, ratio: float, normal: FloatArray, below: FloatArray) -> None:
    """The distribution function at the components' means and as many paces beyond as the margin has."""
    components = len(own)
    middle = components + MARGIN
    for i in range(len(normal)):
        normal[i] = normal_below((i - middle) * ratio)[0]
    below[:] = 0.0
    for k in range(components):
        if own[k] > RARE_SHARE:
            for i in range(len(below)):
                below[i] += own[k] * normal[i - MARGIN - k + middle]


@inlined
def _shortest(below: FloatArray) -> float:
    """The lower tail of the shortest interval that holds 95 %; equal tails unless another is clearly shorter."""
    best, tail = np.inf, 0.5 * (1 - LEVEL)
    for step in range(TAIL_STEPS + 1):
        candidate = (1 - LEVEL) * (0.02 + 0.96 * step / TAIL_STEPS)
        length = _place(candidate + LEVEL, below) - _place(candidate, below)
        if length < best - 0.05:
            best, tail = length, candidate
    return tail


@inlined
def _place(tail: float, below: FloatArray) -> float:
    """Where the tabled distribution function reaches `tail`, in paces."""
    low, high = 0, len(below) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if below[middle] < tail:
            low = middle
        else:
            high = middle
    rise = below[high] - below[low]
    return low + (min(max((tail - below[low]) / rise, 0.0), 1.0) if rise > 0 else 0.5)


@inlined
def _refined(tail: float, own: FloatArray, first: float, pace: float, deviation: float, below: FloatArray) -> float:
    """The quantile, by bisection between two places of the table."""
    at = math.floor(_place(tail, below))
    low, high = first + (at - MARGIN) * pace, first + (at - MARGIN + 1) * pace
    reach = math.ceil(6 * deviation / pace) + 1
    start, stop = max(0, at - MARGIN - reach), min(len(own), at - MARGIN + reach + 1)
    before = 0.0
    for k in range(start):
        before += own[k]
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        total = before
        for k in range(start, stop):
            total += own[k] * normal_below((middle - first - k * pace) / deviation)[0]
        if total < tail:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


PASSED_COMPONENTS = 10
RARE = 1e-3
PASSES = 24
STEP = 0.7
SETTLED = 0.1


def solve_mixed(cells: DelayCells, lean: Callable[[DelayMessages], DelayMessages]) -> DelayMessages:
    """Solve for all flows together; ``lean`` moves flows' own priors (survivor bias), given the normal solution."""
    normal = solve_normal(cells)
    said = lean(normal.said)
    if normal.problem is None or normal.problem.is_dense or not enough_known(said):
        return said
    refined, mixture = learn_mixture(said)
    prior = _Prior.of(mixture, refined, said.within)
    problem = _Mixed(normal.problem, prior, _squares(refined))
    shift = np.broadcast_to(refined.shift, refined.value.shape)
    excess = cells.delay_sum - said.prior_mean * cells.count - normal.problem.sums_of(shift)
    known = normal.problem.known
    passed = problem.solve(excess, normal.problem.known_excess(said.prior_mean) - shift[known])
    telling = normal.problem.telling_cells
    cost = len(prior.weight) * np.log(telling) / telling
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
        while len(weight) > PASSED_COMPONENTS:
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


class _Mixed:
    """The cells of a problem under one mixture."""

    def __init__(self, problem: DelayProblem, prior: _Prior, squares: FloatArray) -> None:
        self.problem, self.prior = problem, prior
        problem.begin_anew()  # what its passes found takes as much memory as these will
        cells, between = problem.cells, prior.between
        self.kappa = (prior.within * problem.tone)[:, None] + squares[:, None] * problem.unsplit
        self.noise = problem.rounding(between, prior.within)
        self.variance = between * (1 + problem.doubt) + prior.scatter
        self.incidence, self.part = cells.incidence, cells.packets

    def solve(self, excess: FloatArray, known: FloatArray) -> Solved:
        """Sweeps until they settle; `excess` of the cells and of the flows that are known."""
        prior, problem, incidence = self.prior, self.problem, self.incidence
        graph = new_graph(
            incidence,
            self.part,
            excess,
            self.noise,
            kappa=self.kappa,
            whole=problem.whole,
            mean=np.full(incidence.flows, prior.mean),
            variance=self.variance,
        )
        alone = graph.cell_variance + self.noise
        normals = mixture_prior(prior.weight, prior.centre, prior.width2, scatter=prior.scatter, doubt=problem.doubt)
        hold(graph, normals, problem.known, known)
        graph.change[problem.known] = np.inf
        for number in range(PASSES):
            sweep(graph, normals, STEP, 0.0 if number % FULL_PASS == 0 else QUIET * SETTLED)
            add_up(graph)
            if graph.is_settled(SETTLED):
                break
        problem.tell_known(graph, known, self.variance)
        held_out = problem.held_out(graph, alone)
        return Solved(graph.value, graph.precision, held_out.scale, held_out.score)

    def calibrated(self, passed: Solved, said: DelayMessages) -> DelayMessages:
        """The messages, corrected by a trial on values that the mixture has drawn."""
        prior, problem = self.prior, self.problem
        truth = prior.draw(problem.doubt, seed=2)
        drawn = draw_cells(self.incidence, self.part, truth, self.kappa, problem.whole, self.noise, seed=1)
        trial = self.solve(drawn, truth[problem.known])
        trial.precision[problem.known] = 0.0
        scale = passed.scale / trial.scale if trial.scale > 0 else 1.0
        ratios = error_ratios(truth - prior.mean, trial.value - prior.mean, trial.precision, self.variance)
        value, precision = calibrated_precision(passed.value - prior.mean, passed.precision, self.variance, ratios)
        return replace(
            said,
            value=value + prior.mean + said.shift,
            precision=precision / max(scale, 1e-12),
            between=prior.between,
        )
