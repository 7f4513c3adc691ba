"""Message passing between flows and the cells they share (`incidence`): a linear system solved where it is sparse.

**Messages.** A cell c counts O_c = Σ_f z_fc + noise: a part z of each flow that owns it. In one group of cells the
parts of a flow with value x are a multinomial-like draw: mean a_e·x, covariance κ(diag(a) − a aᵀ/t), with the weights
a_e of the edges, t ≥ Σ a_e the weight of the whole flow and κ the variance that a unit of weight brings:

- counts: x is the flow's size, a_e the share of the cell, t = 1, κ = x (a packet takes one cell of the group);
- delays: x is the flow's mean delay, a_e the packets in the cell, t all packets, κ the variance of single delays.

With one cell per group that takes all packets there is no such noise, and the equations are exact. Groups (the rows of
an LDS) draw independently given x. All is Gaussian but the prior of x, so that a group's message to its flow is

    precision Q / (1 − κQ/t),  mean P/Q,   Q = Σ a²/(s + κa),  P = Σ a r/(s + κa),

where r and s are a cell's evidence of z: what is left of O_c after the others' parts, and the variances of these. The
flow in turn predicts each z from all other cells. Predictions never use the cell they are for: they are held-out
predictions, from which variance components are estimated. Hashing makes the graph random, so that loops are long;
means, if sweeps converge, are exact also with loops; variances are good approximations.

**One sweep** serves counts and delays: `Graph` is the state, `Prior` says what is known of flows without the cells (one
normal for each, or a mixture with bounds), and `sweep` visits flow after flow.

Time: O(edges) per sweep, 35 ns an edge for normal priors, 200 ns for ten components. Memory: 36
bytes an edge, 170 a flow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray, Int32Array, Int64Array
from sojourn.core.kernels import borrowing_inlined, borrowing_kernel, kernel, prefetch, signed
from sojourn.estimation.joint.incidence import Incidence

TINY = 1e-300  # keeps a division from failing where nothing varies; far below any variance in ns²
ROUNDED = 1e-14  # what is left of 1 by rounding, where sums cancel
# Of the flow's own precision, the least that one group leaves for the others: the prior's pull is then taken as none.
WEAKEST = 1e-3
NEGLIGIBLE = 30.0  # e⁻³⁰ of the nearest component's share
FEW_MOVING, FURTHEST = 0.01, 30.0  # of flows, and times what the others change
AHEAD = 8  # flows: so long before a visit its cells are fetched from memory
NEVER = -1.0  # the change of a flow that is not visited
SURE = 1e6  # times the prior's precision: what is known of a flow whose value is
LEAST_VARIANCE = 1e-12  # of a variance: below, what is left of it is rounding


class Graph(NamedTuple):
    """The equations and the messages between flows and cells: the one state that sweeps change.

    Given: each edge's cell and weight a, where groups start, each cell's total and its noise, each flow's κ in each
    group and its t. Found: each edge's predicted part, each cell's sum of these, each flow's message from all its
    cells, its posterior (kept up to date only where a sweep needs it), and by how much its parts changed when it was
    last visited.
    """

    cell: Int32Array
    weight: FloatArray
    starts: Int64Array
    observed: FloatArray
    noise: FloatArray
    kappa: FloatArray
    whole: FloatArray
    part_mean: FloatArray
    part_variance: FloatArray
    cell_mean: FloatArray
    cell_variance: FloatArray
    precision: FloatArray
    value: FloatArray
    mean: FloatArray
    variance: FloatArray
    change: FloatArray

    def residual(self) -> FloatArray:
        """Each cell's held-out error."""
        return self.observed - self.cell_mean

    def is_settled(self, change: float) -> bool:
        """Whether hardly any flow changed by so much or more when it was last visited, and none by many times that: of
        many flows, a few go on changing for long and tell the others nothing new."""
        moving, visited = np.count_nonzero(self.change >= change), np.count_nonzero(self.change > NEVER)
        return bool(moving <= FEW_MOVING * visited and self.change.max(initial=0.0) < FURTHEST * change)


Parts = tuple[FloatArray, FloatArray]


class Prior(NamedTuple):
    """What is known of flows without the cells: a mixture of normals, of which each flow has [first, last).

    A component of centre c is as wide as itself, plus the flow's own ``scatter``, plus c² times its ``doubt``. The mean
    is at least ``low`` and at most ``high``. ``least`` is a variance that counts as none. If ``tally`` has room for the
    components, sweeps add up in it what share of each flow they have.
    """

    weight: FloatArray
    centre: FloatArray
    width2: FloatArray
    scatter: FloatArray
    doubt: FloatArray
    first: Int32Array
    last: Int32Array
    low: FloatArray
    high: FloatArray
    least: float
    tally: FloatArray


def mixture_prior(
    weight: FloatArray, centre: FloatArray, width2: FloatArray, *, scatter: FloatArray, doubt: FloatArray
) -> Prior:
    """One mixture for all flows, without bounds."""
    first, last = np.zeros(len(scatter), np.int32), np.full(len(scatter), len(weight), np.int32)
    low, high = np.full(len(scatter), -np.inf), np.full(len(scatter), np.inf)
    least = LEAST_VARIANCE * float(width2[0]) + TINY
    return Prior(weight, centre, width2, scatter, doubt, first, last, low, high, least, np.zeros(0))


def normal_prior(variance: FloatArray) -> Prior:
    """Normal around 0, with each flow's own variance."""
    zero = np.zeros(1)
    return mixture_prior(np.ones(1), zero, zero, scatter=variance, doubt=np.zeros(len(variance)))


def new_graph(
    incidence: Incidence,
    weight: FloatArray,
    observed: FloatArray,
    noise: FloatArray,
    *,
    kappa: FloatArray,
    whole: FloatArray,
    mean: FloatArray,
    variance: FloatArray,
    parts: Parts | None = None,
    adds_up: bool = True,
) -> Graph:
    """Means and variances of `parts` to begin with, changed in place, or as flows' means and variances predict them
    without any cell; every flow waits for a visit. Cells are left empty where whoever changes parts `adds_up` them."""
    part_mean, part_variance = np.zeros((2, *incidence.cell.shape)) if parts is None else parts
    # A cell's four numbers lie side by side: a visit touches one cache line for each of a flow's cells.
    cells = np.zeros((incidence.cells, 4))
    cells[:, 0], cells[:, 1] = observed, noise
    messages = np.zeros((2, incidence.flows))
    graph = Graph(
        incidence.cell,
        weight,
        incidence.starts,
        cells[:, 0],
        cells[:, 1],
        kappa,
        whole,
        part_mean=part_mean,
        part_variance=part_variance,
        cell_mean=cells[:, 2],
        cell_variance=cells[:, 3],
        precision=messages[0],
        value=messages[1],
        mean=mean.copy(),
        variance=variance.copy(),
        change=np.full(incidence.flows, np.inf),
    )
    if parts is None:
        _predict_alone(graph)
    if adds_up:
        add_up(graph)
    return graph


@kernel
def _predict_alone(graph: Graph) -> None:
    """Each part as its flow's prior predicts it. How packets scatter belongs to it: where flows are alike nothing else
    varies, no part moves, and what other flows were told at their first visit is the last they hear of it."""
    for f in range(graph.cell.shape[0]):
        for g in range(len(graph.starts) - 1):
            for e in range(graph.starts[g], graph.starts[g + 1]):
                if graph.cell[f, e] >= 0:
                    a = graph.weight[f, e]
                    drawn = graph.kappa[f, g] * a * max(1.0 - a / graph.whole[f], 0.0)
                    graph.part_mean[f, e] = a * graph.mean[f]
                    graph.part_variance[f, e] = a**2 * graph.variance[f] + drawn


@kernel
def add_up(graph: Graph) -> None:
    """The cells' sums from scratch: sweeps change them in place and gather rounding errors."""
    graph.cell_mean[:] = 0.0
    graph.cell_variance[:] = 0.0
    for f in range(graph.cell.shape[0]):
        for e in range(graph.cell.shape[1]):
            c = graph.cell[f, e]
            if c >= 0:
                graph.cell_mean[c] += graph.part_mean[f, e]
                graph.cell_variance[c] += graph.part_variance[f, e]


@kernel
def hold(graph: Graph, prior: Prior, flows: Int64Array, value: FloatArray) -> None:
    """Fix the values of some flows, and do not visit them: their parts vary as packets do and no more."""
    for i in range(len(flows)):
        f = flows[i]
        prior.low[f] = prior.high[f] = graph.value[f] = value[i]
        graph.precision[f], graph.change[f] = SURE / graph.variance[f], NEVER
        for g in range(len(graph.starts) - 1):
            for e in range(graph.starts[g], graph.starts[g + 1]):
                if graph.cell[f, e] >= 0:
                    a = graph.weight[f, e]
                    graph.part_mean[f, e] = a * value[i]
                    graph.part_variance[f, e] = graph.kappa[f, g] * a * max(1.0 - a / graph.whole[f], 0.0)
    if len(flows) > 0:
        add_up(graph)


@borrowing_inlined
def _left_for(f: int, e: int, graph: Graph) -> tuple[float, float]:
    """What a cell leaves for one of its flows, r, and the variance s of that: its total less the others' parts."""
    c = graph.cell[f, e]
    left = graph.observed[c] - graph.cell_mean[c] + graph.part_mean[f, e]
    return left, graph.noise[c] + max(graph.cell_variance[c] - graph.part_variance[f, e], 0.0)


class _Scratch(NamedTuple):
    """Of the flow that is visited: each group's message, its Q, P and 1 − κQ/t; of each edge r and a/(s + κa); the
    components' shares and variances."""

    group: FloatArray
    edge: FloatArray
    component: FloatArray


@borrowing_inlined
def _single_message(f: int, g: int, graph: Graph) -> tuple[float, float]:
    """Precision and precision × mean of a group of one cell: a²/(s + κa(1 − a/t)), half the work of a sum."""
    e = graph.starts[g]
    if graph.cell[f, e] < 0:
        return 0.0, 0.0
    a = graph.weight[f, e]
    r, s = _left_for(f, e, graph)
    drawn = graph.kappa[f, g] * a
    gain = a / max(s + drawn * max(1.0 - a / graph.whole[f], 0.0), ROUNDED * (s + drawn) + TINY)
    return a * gain, r * gain


@borrowing_inlined
def _group_message(f: int, g: int, graph: Graph, scratch: _Scratch) -> tuple[float, float]:
    """Precision and precision × mean of a group; its Q, P and 1 − κQ/t are kept, the last added up so that nothing
    cancels."""
    whole, kappa = graph.whole[f], graph.kappa[f, g]
    q = p = free = taken = 0.0
    for e in range(graph.starts[g], graph.starts[g + 1]):
        if graph.cell[f, e] < 0:
            continue
        a = graph.weight[f, e]
        r, s = _left_for(f, e, graph)
        gain = a / (s + kappa * a)
        scratch.edge[e, 0], scratch.edge[e, 1] = r, gain
        q += a * gain
        p += r * gain
        taken += a
        free += s * gain
    free = (free + max(whole - taken, 0.0)) / whole
    scratch.group[g, 2], scratch.group[g, 3], scratch.group[g, 4] = q, p, free
    free = 1.0 / max(free, ROUNDED)
    return q * free, p * free


@borrowing_inlined
def _flow_message(f: int, graph: Graph, scratch: _Scratch) -> tuple[float, float]:
    """Precision and precision × mean of all groups' messages to a flow; each group's are kept."""
    own = scratch.group
    precision = product = 0.0
    for g in range(len(own)):
        if graph.starts[g + 1] - graph.starts[g] == 1:
            own[g, 0], own[g, 1] = _single_message(f, g, graph)
        else:
            own[g, 0], own[g, 1] = _group_message(f, g, graph, scratch)
        precision += own[g, 0]
        product += own[g, 1]
    return precision, product


@borrowing_inlined
def _all_but(own: FloatArray, g: int) -> tuple[float, float]:
    """Precision and precision × mean of the other groups' messages: added up, as subtracting cancels where one knows
    it all."""
    precision = product = 0.0
    for other in range(own.shape[0]):
        if other != g:
            precision += own[other, 0]
            product += own[other, 1]
    return precision, product


@borrowing_inlined
def moments(f: int, precision: float, product: float, prior: Prior, scratch: FloatArray) -> tuple[float, float]:
    """Mean and variance of a flow's value, given a normal message; ``scratch[0]`` has the components' shares then,
    which do not add up to 1."""
    first, last, low, high = prior.first[f], prior.last[f], prior.low[f], prior.high[f]
    if low == high:
        return low, 0.0
    if last - first == 1:
        spread = prior.width2[first] + prior.scatter[f] + prior.doubt[f] * prior.centre[first] ** 2
        narrower = 1.0 / (1.0 + spread * precision)
        scratch[0, first] = 1.0
        mean, variance = narrower * (prior.centre[first] + spread * product), spread * narrower
    else:
        mean, variance = _mixed_moments(f, precision, product, prior, scratch)
    return min(max(mean, low), high), min(variance, 0.25 * (high - low) ** 2)


@borrowing_inlined
def _mixed_moments(f: int, precision: float, product: float, prior: Prior, scratch: FloatArray) -> tuple[float, float]:
    value = product / precision if precision > 0 else 0.0
    nearest = np.inf
    for k in range(prior.first[f], prior.last[f]):
        spread = prior.width2[k] + prior.scatter[f] + prior.doubt[f] * prior.centre[k] ** 2
        scratch[0, k] = 0.5 * precision * (prior.centre[k] - value) ** 2 / (1.0 + spread * precision)
        scratch[1, k] = spread
        nearest = min(nearest, scratch[0, k])
    total = mean = square = 0.0
    for k in range(prior.first[f], prior.last[f]):
        further = scratch[0, k] - nearest
        scratch[0, k] = 0.0
        if further < NEGLIGIBLE:
            spread = scratch[1, k]
            narrower = 1.0 / (1.0 + spread * precision)
            share = prior.weight[k] * np.sqrt(narrower) * np.exp(-further)
            own = narrower * (prior.centre[k] + spread * product)
            scratch[0, k] = share
            total += share
            mean += share * own
            square += share * (own * own + spread * narrower)
    mean /= total
    return mean, max(square / total - mean * mean, 0.0)


@borrowing_inlined
def _tally(f: int, prior: Prior, scratch: FloatArray) -> None:
    """Add what share of a flow each component has."""
    total = 0.0
    for k in range(prior.first[f], prior.last[f]):
        total += scratch[0, k]
    for k in range(prior.first[f], prior.last[f]):
        prior.tally[k] += scratch[0, k] / total


@borrowing_inlined
def _without_group(f: int, g: int, graph: Graph, prior: Prior, own: FloatArray) -> tuple[float, float]:
    """Mean and variance of a flow's value without a group of several cells, of which only one is held out at a time:
    the prior acts on them as the normal that it is near the flow's value."""
    variance = max(graph.variance[f], prior.least)
    outside = max(1.0 / variance - own[g, 0], WEAKEST / variance)
    mean = graph.mean[f]
    if outside > WEAKEST / variance:
        mean = (graph.mean[f] / variance - own[g, 1]) / outside
    return mean, 1.0 / outside


@borrowing_inlined
def _predict(f: int, e: int, graph: Graph, mean: float, variance: float, step: float, largest: float) -> float:
    """Move an edge's part towards this prediction; the change in units of the cell's variance, squared, if it is the
    largest so far.

    In place, so that the flows after this one use it in the same sweep: that halves the number of sweeps.
    """
    c = graph.cell[f, e]
    change = step * (mean - graph.part_mean[f, e])
    wider = step * (variance - graph.part_variance[f, e])
    graph.cell_mean[c] += change
    graph.cell_variance[c] = max(graph.cell_variance[c] + wider, 0.0)
    graph.part_mean[f, e] += change
    graph.part_variance[f, e] += wider
    spread = graph.noise[c] + graph.cell_variance[c] + TINY
    # Hardly ever the largest, and a division takes longer than the rest.
    return change * change / spread if not change * change <= largest * spread else largest


@borrowing_inlined
def _predict_group(f: int, g: int, graph: Graph, scratch: _Scratch, outside: tuple[float, float], step: float) -> float:
    """Predict a group's parts from what is known `outside` of it (mean, variance) and its other cells; the largest
    change, squared."""
    mean, variance = outside
    whole, kappa = graph.whole[f], graph.kappa[f, g]
    beta = variance - kappa / whole
    first, last = graph.starts[g], graph.starts[g + 1]
    if last - first == 1:
        a = graph.weight[f, first]
        if graph.cell[f, first] < 0:
            return 0.0
        return _predict(f, first, graph, a * mean, max(a * (kappa + a * beta), 0.0), step, 0.0)
    largest = 0.0
    for e in range(first, last):
        if graph.cell[f, e] < 0:
            continue
        a = graph.weight[f, e]
        r, gain = scratch.edge[e, 0], scratch.edge[e, 1]
        # The sums of the group's other cells.
        q = max(scratch.group[g, 2] - a * gain, 0.0)
        p = scratch.group[g, 3] - r * gain
        free = scratch.group[g, 4] + kappa * a * gain / whole
        times = a / max(variance * q + free, ROUNDED)
        largest = _predict(f, e, graph, times * (mean + beta * p), max(a * (kappa + beta * times), 0.0), step, largest)
    return largest


@borrowing_inlined
def _visit(f: int, graph: Graph, prior: Prior, scratch: _Scratch, step: float) -> float:
    """Hear all of a flow's cells, then predict its part of each; the largest change, squared."""
    groups = len(scratch.group)
    is_separable = graph.cell.shape[1] == groups or len(prior.weight) == 1
    precision, product = _flow_message(f, graph, scratch)
    graph.precision[f] = precision
    if precision > 0:
        graph.value[f] = product / precision
    if not is_separable or len(prior.tally):
        graph.mean[f], graph.variance[f] = moments(f, precision, product, prior, scratch.component)
        if len(prior.tally) and prior.low[f] < prior.high[f]:
            _tally(f, prior, scratch.component)
    largest = 0.0
    for g in range(groups):
        if is_separable:
            others, others_product = _all_but(scratch.group, g)
            outside = moments(f, others, others_product, prior, scratch.component)
        else:
            outside = _without_group(f, g, graph, prior, scratch.group)
        largest = max(largest, _predict_group(f, g, graph, scratch, outside, step))
    return largest


@borrowing_kernel
def _visit_all(graph: Graph, prior: Prior, scratch: _Scratch, step: float, quiet: float) -> float:
    largest = 0.0
    first, apart, flows = signed(graph.observed.ctypes.data), graph.observed.strides[0], graph.cell.shape[0]
    for f in range(flows):
        soon = f + AHEAD
        if soon < flows and graph.change[soon] >= quiet:
            # Hashed cells are anywhere: loaded while the flows before are visited, they are there when needed.
            for e in range(graph.cell.shape[1]):
                prefetch(first + apart * max(graph.cell[soon, e], 0))
        if graph.change[f] >= quiet:
            change = math.sqrt(_visit(f, graph, prior, scratch, step))
            graph.change[f] = change
            largest = max(largest, change)
    return largest


@kernel
def sweep(graph: Graph, prior: Prior, step: float, quiet: float) -> float:
    """Visit the flows that last changed by `quiet` or more, each with the latest messages of the others; the largest
    change of a part, in deviations of its cell. ``step`` < 1 damps."""
    group, edge = np.empty((len(graph.starts) - 1, 5)), np.empty((graph.cell.shape[1], 2))
    scratch = _Scratch(group, edge, np.empty((2, len(prior.weight))))
    return _visit_all(graph, prior, scratch, step, quiet)
