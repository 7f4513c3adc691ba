"""Flow sizes from count cells, all flows together: exact where the cells allow it, else with a variance.

**Peeling**, with integers. In a cell that takes all packets of its flows N_c = Σ p_f. So p_f is at most N_c minus the
least that the others can be, and at least N_c minus the most. Each bound that moves moves others: a cell with one
unknown flow left is solved, its flow subtracted from the other cells, and so on. Flows whose bounds meet are known
exactly. With four rows that needs about 1.3 cells per flow; with fewer, bounds stay apart but still help. A
contradiction (lower above upper) means that the cells contain flows that are not on the list; upper bounds are true all
the same.

**The core.** Peeling ends where every cell has two unknown flows or more. If the core's equations have full rank for a
flow (no combination of flows that leaves all cells unchanged contains it), its size is their one solution. Sizes are
integers, so rounding errors do no harm, and the rounded solution is checked against every cell. Time:
O(core flows² · cells), for cores of at most `MOST_FLOWS` flows.

**The rest** is decoded by message passing (`messages`) under a prior of sizes that is learned from the same cells: a
mixture of integers (0 … 8) and of geometric steps above, its weights by expectation maximisation. Sizes of flows are
heavy-tailed, and the prior's shape is what tells one elephant and seven mice from eight middling flows. Losses are
decoded in the same way from the difference of both ends' counts: most cells lost nothing, so they need fewer cells
still.

Time: 25 passes of O(edges × components in reach), about 1 s for 10⁵ flows with 4 rows. Memory: 36 bytes an edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int32Array, Int64Array
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.joint.incidence import FULL, Incidence
from sojourn.estimation.joint.messages import FEW_MOVING, NEVER, Graph, Prior, add_up, moments, new_graph, sweep
from sojourn.estimation.learning import INTEGERS, RATIO
from sojourn.estimation.packets.evidence import Heard

MOST_PASSES = 200


@dataclass(frozen=True, eq=False)
class SizeBounds:
    """Each flow's least and largest possible size; not ``consistent``: some cells hold unlisted flows."""

    low: Int64Array
    high: Int64Array
    consistent: bool

    @property
    def exact(self) -> BoolArray:
        met: BoolArray = self.low == self.high
        return met


def size_bounds(incidence: Incidence, count: Int64Array) -> SizeBounds:
    """Bounds from the cells' counts; groups that sample or spread only bound from above."""
    high = _row_bounds(incidence.cell, incidence.share, incidence.starts, count, FULL)
    low = np.zeros(incidence.flows, np.int64)
    whole = (incidence.share >= FULL) & (incidence.cell >= 0)
    if not whole.any():
        return SizeBounds(low, high, True)
    cell = np.where(whole, incidence.cell, np.int32(-1))
    if _tighten(cell, count, low, high, MOST_PASSES):
        return SizeBounds(low, high, True)
    return SizeBounds(
        np.zeros_like(low), _row_bounds(incidence.cell, incidence.share, incidence.starts, count, FULL), False
    )


@kernel
def _row_bounds(cell: Int32Array, share: FloatArray, starts: Int64Array, count: Int64Array, full: float) -> Int64Array:
    """The smallest sum of a group's cells, over the groups that take all packets."""
    high = np.full(cell.shape[0], count.sum())
    for f in range(cell.shape[0]):
        for g in range(len(starts) - 1):
            total = np.int64(0)
            taken = 0.0
            for e in range(starts[g], starts[g + 1]):
                if cell[f, e] >= 0:
                    total += count[cell[f, e]]
                    taken += share[f, e]
            if taken >= full:
                high[f] = min(high[f], total)
    return high


@kernel
def _tighten(cell: Int32Array, count: Int64Array, low: Int64Array, high: Int64Array, most_passes: int) -> bool:
    """Tighten until nothing moves; False at a contradiction."""
    least = np.zeros(len(count), np.int64)
    most = np.zeros(len(count), np.int64)
    for f in range(cell.shape[0]):
        _move(cell[f], least, most, low[f], high[f])
    for _ in range(most_passes):
        moved = False
        for f in range(cell.shape[0]):
            if low[f] == high[f]:
                continue
            lower, upper = _squeeze(cell[f], count, least, most, low[f], high[f])
            if lower > upper:
                return False
            if lower > low[f] or upper < high[f]:
                moved = True
                _move(cell[f], least, most, lower - low[f], upper - high[f])
                low[f], high[f] = lower, upper
        if not moved:
            break
    return bool(np.all(least <= count))


@inlined
def _squeeze(
    own: Int32Array, count: Int64Array, least: Int64Array, most: Int64Array, low: int, high: int
) -> tuple[int, int]:
    """A flow's bounds, given the bounds of all others in its cells."""
    lower, upper = low, high
    for e in range(len(own)):
        c = own[e]
        if c >= 0:
            upper = min(upper, count[c] - (least[c] - low))
            lower = max(lower, count[c] - (most[c] - high))
    return lower, upper


@inlined
def _move(own: Int32Array, least: Int64Array, most: Int64Array, lower: int, upper: int) -> None:
    """Add to the sums of bounds in a flow's cells."""
    for e in range(len(own)):
        if own[e] >= 0:
            least[own[e]] += lower
            most[own[e]] += upper


MOST_FLOWS = 1500
NULL = 1e-7  # of the largest eigenvalue: below, a direction that the equations leave open
NEAR = 0.05  # of an integer: further off, a solution is no size


def settle_by_rank(incidence: Incidence, count: Int64Array, mean: FloatArray, variance: FloatArray) -> None:
    """Replace what is determined but not yet exact (variance above 0) by its exact value, in place."""
    core = variance > 0
    unknown = int(core.sum())
    if not 0 < unknown <= MOST_FLOWS:
        return
    whole = incidence.share >= FULL
    left = count.astype(np.float64)
    known = ~core[:, None] & whole & (incidence.cell >= 0)
    np.subtract.at(left, incidence.cell[known], np.broadcast_to(mean[:, None], known.shape)[known])
    mine = whole[core] & (incidence.cell[core] >= 0)
    cells, position = np.unique(incidence.cell[core][mine], return_inverse=True)
    if not len(cells):
        return
    matrix = np.zeros((len(cells), unknown))
    matrix[position, np.nonzero(mine)[0]] = 1.0
    solution, determined = _solve(matrix, left[cells], mean[core])
    rounded = np.rint(solution)
    settled = determined & (np.abs(solution - rounded) < NEAR) & (rounded >= 0)
    # A cell whose flows are all settled must add up.
    wrong = (matrix @ ~settled == 0) & (matrix @ rounded != left[cells])
    settled &= matrix.T @ wrong == 0
    flows = np.flatnonzero(core)[settled]
    mean[flows], variance[flows] = rounded[settled], 0.0


def _solve(matrix: FloatArray, values: FloatArray, start: FloatArray) -> tuple[FloatArray, BoolArray]:
    """The solution nearest to `start`, and which of its coordinates no other solution changes."""
    gram = matrix.T @ matrix
    eigenvalues, vectors = np.linalg.eigh(gram)
    solid = eigenvalues > NULL * eigenvalues[-1]
    step = vectors[:, solid] / eigenvalues[solid] @ (vectors[:, solid].T @ (matrix.T @ (values - matrix @ start)))
    free = (vectors[:, ~solid] ** 2).sum(axis=1)
    return start + step, free < NULL


INTEGER_WIDTH = 0.15
PASSES = 30
LEARN_FROM, LEARN_PASSES = 2, 16
SETTLED = 0.07
STEPS = (0.5, 0.25)
FITS = 2.0  # mean square of held-out errors in variances; above, passes oscillate, and the shorter step is tried
MOST_SQUARE = 100.0  # ten deviations: one cell with a flow not listed must not decide the fit of all
NOISE = 1e-3
NEAR_INTEGER = 0.2
FULL_PASS = 4
LEAST_DRAWN = 0.1
QUIET = 0.01  # flows that changed by less than a hundredth of a deviation wait for the next full pass
FAR = 5.0
FEW_CELLS = 5e-5


@dataclass(frozen=True, eq=False)
class Sizes:
    """Each flow's packets: expected number, its variance (0 where exact), expected 1/number (of at least one);
    each edge's expected packets and their variance. Not ``consistent``: cells hold flows that are not on the list.
    ``heard`` is what the cells say of each flow by themselves."""

    mean: FloatArray
    variance: FloatArray
    inverse: FloatArray
    part_mean: FloatArray
    part_variance: FloatArray
    consistent: bool
    heard: Heard

    @property
    def exact(self) -> BoolArray:
        known: BoolArray = self.variance == 0
        return known


def decode_sizes(incidence: Incidence, count: Int64Array) -> Sizes:
    """The packets of every flow on the list, from cells that hold no others."""
    bounds = size_bounds(incidence, count)
    if bounds.exact.all() and not incidence.has_partial:
        mean = bounds.low.astype(np.float64)
        part = np.where(incidence.cell >= 0, mean[:, None], 0.0)
        sure = np.zeros_like(mean), 1 / np.maximum(mean, 1.0), part, np.zeros_like(part)
        return Sizes(mean, *sure, bounds.consistent, Heard.exactly(mean))
    best, least = None, np.inf
    for step in STEPS:
        decoded, misfit = _attempt(incidence, count, bounds, step)
        if misfit < least:
            best, least = decoded, misfit
        if misfit < FITS:
            break
    assert best is not None
    return best


def _attempt(incidence: Incidence, count: Int64Array, bounds: SizeBounds, step: float) -> tuple[Sizes, float]:
    """Passes with one step length until they settle; and how far held-out predictions are from the cells."""
    prior = _size_prior(incidence, count, bounds)
    mean, variance = np.empty((2, incidence.flows))
    _prior_moments(mean, variance, prior)
    graph = new_graph(
        incidence,
        incidence.share,
        count.astype(np.float64),
        np.full(incidence.cells, NOISE),
        kappa=np.zeros((incidence.flows, incidence.groups)),  # each visit has its own
        whole=np.ones(incidence.flows),
        mean=mean,
        variance=variance,
    )
    # Of a flow whose size is certain so is every part where cells take whole flows, and in any case if it is none.
    graph.change[bounds.high == 0 if incidence.has_partial else bounds.exact] = NEVER
    inverse = np.empty(incidence.flows)
    misfit = _settle_sizes(graph, prior, inverse, step)
    mean, variance = graph.mean, graph.variance
    if bounds.consistent:
        _settle(incidence.cell, incidence.share, count, mean, variance, NEAR_INTEGER)
        settle_by_rank(incidence, count, mean, variance)
        inverse = np.where(variance == 0, 1 / np.maximum(mean, 1.0), inverse)
    explained = _explained(incidence, graph.residual(), graph.cell_variance)
    consistent = bounds.consistent and explained
    heard = _heard(graph, bounds, mean, variance)
    _settle_parts(graph, incidence.share)
    return Sizes(mean, variance, inverse, graph.part_mean, graph.part_variance, consistent, heard), misfit


@kernel
def _settle_parts(graph: Graph, share: FloatArray) -> None:
    """Each flow's part of its cells, given these, in place of the prediction; all of the flow where they take all."""
    for f in range(graph.cell.shape[0]):
        for e in range(graph.cell.shape[1]):
            c = graph.cell[f, e]
            if c < 0:
                continue
            if share[f, e] >= FULL:
                graph.part_mean[f, e], graph.part_variance[f, e] = graph.mean[f], graph.variance[f]
                continue
            gain = graph.part_variance[f, e] / (graph.cell_variance[c] + graph.noise[c])
            mean = max(graph.part_mean[f, e] + gain * (graph.observed[c] - graph.cell_mean[c]), 0.0)
            # A part of a cell's N packets varies at most as a binomial draw of them.
            drawn = mean * max(1 - mean / max(graph.observed[c], 1e-9), 0.0)
            graph.part_mean[f, e] = mean
            graph.part_variance[f, e] = min(graph.part_variance[f, e] * (1 - gain), drawn)


def _heard(graph: Graph, bounds: SizeBounds, mean: FloatArray, variance: FloatArray) -> Heard:
    """The cells' messages and bounds; both bounds are the size where that is exact."""
    exact = variance == 0
    low, high = (np.where(exact, mean, bound) for bound in (bounds.low, bounds.high))
    return Heard(graph.value.copy(), np.where(exact, 0.0, graph.precision), low, high)


def _explained(incidence: Incidence, residual: FloatArray, variance: FloatArray) -> bool:
    """Whether the listed flows explain the cells.

    A flow that is not listed leaves packets in its cells that no other cell of their owners expects. Of complete lists
    hardly any cell is five deviations above its held-out prediction and a few packets more (small counts are skewed).
    With fewer than half as many cells as flows that cannot be told: every large flow comes as a surprise; nor can it
    with one cell per flow, which nothing predicts.
    """
    if 2 * len(residual) < incidence.flows or incidence.cell.shape[1] < 2:
        return True
    unexplained = int((residual > FAR * (np.sqrt(variance + NOISE) + 1)).sum())
    return unexplained <= max(1.0, FEW_CELLS * len(residual))


def _mean_size(incidence: Incidence, count: Int64Array) -> float:
    """Packets per flow: what the covered cells hold, over the share of a flow that they take."""
    taken = float(incidence.share.sum())
    return float(count[incidence.covered()].sum()) / taken if taken > 0 else 1.0


@kernel
def _first_weights(centre: FloatArray, width: FloatArray, mean_size: float) -> FloatArray:
    """A power law's weights, with the exponent that gives the mean size."""
    low, high = -1.0, 4.0
    for _ in range(30):
        exponent = (low + high) / 2
        weight = width / (1 + centre) ** (1 + exponent)
        mean = np.sum(weight * centre) / np.sum(weight)
        low, high = (exponent, high) if mean > mean_size else (low, exponent)
    normed: FloatArray = weight / np.sum(weight)
    return normed


def _components(largest: int) -> tuple[FloatArray, FloatArray]:
    """Centres and widths: integers, then geometric steps up to the largest possible size."""
    integers = np.arange(INTEGERS + 1)
    first = len(integers)
    steps = max(1, math.ceil(math.log(max(largest, first) / first) / math.log(RATIO)) + 1)
    geometric = first * RATIO ** (np.arange(steps) + 0.5)
    centre = np.concatenate([integers, geometric])
    width = np.concatenate([np.full(first, INTEGER_WIDTH), geometric * (RATIO - 1) / 2.5])
    return centre, width


def _reach(bounds: SizeBounds, centre: FloatArray) -> tuple[Int32Array, Int32Array]:
    """The components that each flow's bounds allow: [first, last), at least one."""
    first = np.searchsorted(centre * math.sqrt(RATIO), bounds.low.astype(np.float64), side="left")
    last = np.searchsorted(centre / math.sqrt(RATIO), bounds.high.astype(np.float64), side="right")
    first = np.minimum(first, len(centre) - 1)
    return first.astype(np.int32), np.maximum(last, first + 1).astype(np.int32)


@kernel
def _settle(
    cell: Int32Array, share: FloatArray, count: Int64Array, mean: FloatArray, variance: FloatArray, near: float
) -> None:
    """Make exact the flows whose cells all add up once every flow in them is rounded to a near integer."""
    total = np.zeros(len(count))
    doubtful = np.zeros(len(count), np.bool_)
    for f in range(cell.shape[0]):
        sure = variance[f] <= near * near and abs(mean[f] - np.rint(mean[f])) <= near
        for e in range(cell.shape[1]):
            if cell[f, e] >= 0:
                total[cell[f, e]] += np.rint(mean[f])
                doubtful[cell[f, e]] |= (not sure) or share[f, e] < FULL
    for f in range(cell.shape[0]):
        cells = 0
        settled = True
        for e in range(cell.shape[1]):
            c = cell[f, e]
            if c >= 0 and share[f, e] >= FULL:
                cells += 1
                settled &= (not doubtful[c]) and total[c] == count[c]
        if settled and cells:
            mean[f] = np.rint(mean[f])
            variance[f] = 0.0


def _size_prior(incidence: Incidence, count: Int64Array, bounds: SizeBounds) -> Prior:
    """Integers and geometric steps within each flow's bounds, with a power law's weights."""
    centre, width = _components(int(bounds.high.max(initial=0)))
    weight = _first_weights(centre, width, _mean_size(incidence, count))
    none = np.zeros(incidence.flows)
    low, high = bounds.low.astype(np.float64), bounds.high.astype(np.float64)
    reach = _reach(bounds, centre)
    return Prior(weight, centre, width**2, none, none, *reach, low, high, NOISE, np.zeros(len(centre)))


@kernel
def _prior_moments(mean: FloatArray, variance: FloatArray, prior: Prior) -> None:
    scratch = np.empty((2, len(prior.centre)))
    for f in range(len(mean)):
        mean[f], variance[f] = moments(f, 0.0, 0.0, prior, scratch)


@kernel
def _expected_inverse(graph: Graph, prior: Prior, inverse: FloatArray) -> None:
    """1/size of each flow, of at least one packet, on average over its components."""
    scratch = np.empty((2, len(prior.centre)))
    for f in range(len(inverse)):
        inverse[f] = 1.0 / max(graph.mean[f], 1.0)
        if prior.low[f] < prior.high[f]:
            precision, product = graph.precision[f], graph.precision[f] * graph.value[f]
            moments(f, precision, product, prior, scratch)
            total = expected = 0.0
            for k in range(prior.first[f], prior.last[f]):
                size = (prior.centre[k] + prior.width2[k] * product) / (1.0 + prior.width2[k] * precision)
                total += scratch[0, k]
                expected += scratch[0, k] / max(size, 1.0)
            inverse[f] = expected / total


@inlined
def _visit_open(graph: Graph, prior: Prior) -> None:
    """Have the next sweep visit every flow that the prior's weights are learned from, settled or not."""
    for f in range(len(graph.change)):
        if prior.low[f] < prior.high[f]:
            graph.change[f] = np.inf


@kernel
def _settle_sizes(graph: Graph, prior: Prior, inverse: FloatArray, step: float) -> float:
    """Sweeps until they settle, which learn the prior's weights and the cells' noise, in place; how far held-out
    predictions are from the cells in the end."""
    misfit = 0.0
    most = round(PASSES / step)
    for number in range(most):
        prior.tally[:] = 0.0
        for f in range(len(graph.mean)):
            graph.kappa[f] = max(graph.mean[f], LEAST_DRAWN)
        learns = number < LEARN_PASSES
        in_full = learns or number % FULL_PASS == 0
        if learns:
            _visit_open(graph, prior)
        sweep(graph, prior, step, QUIET if number % FULL_PASS else 0.0)
        add_up(graph)
        misfit = 0.0
        for c in range(len(graph.observed)):
            square = (graph.observed[c] - graph.cell_mean[c]) ** 2 / (graph.cell_variance[c] + NOISE)
            misfit += min(square, MOST_SQUARE) / len(graph.observed)
        graph.noise[:] = NOISE + max(misfit - 1.0, 0.0) * graph.cell_variance
        is_settled = np.sum(graph.change >= SETTLED) <= FEW_MOVING * len(graph.change)
        if number + 1 == most or (in_full and number + 1 >= LEARN_PASSES and is_settled):
            break
        if in_full and number >= LEARN_FROM:
            prior.weight[:] = (prior.tally + 1e-3) / (np.sum(prior.tally) + 1e-3 * len(prior.centre))
    _expected_inverse(graph, prior, inverse)
    return misfit
