"""Message passing as in `messages`, with flows whose means come from several groups: a mixture of normals as the prior.

A normal prior knows a spread only; between a fast path and a slow one it expects flows where there are none. Under a
mixture a flow that the other cells place near one peak is predicted at that peak, and what a cell then leaves for its
other flows is sharper. A message to a cell has the posterior's mean and variance, given all other groups of cells
(assumed density filtering); where a group has several cells, the prior acts on them as it does near the flow's value.

A component of centre c is as wide as itself, plus σ²/p of the flow, plus c² times the doubt of the flow's size: what
the cells see of a mean is the flow's sum over the size it is taken to have.

Time: O(edges × components) per pass, about 25 ns an edge and component. Memory: none but the messages'.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.joint.messages import group_message, predict_group

__all__ = ["pass_mixture"]

NEGLIGIBLE = 30.0
WEAKEST = 1e-3
LEAST_SPREAD = 1e-12


@inlined
def mixture_moments(
    precision: float,
    product: float,
    weight: FloatArray,
    centre: FloatArray,
    width2: FloatArray,
    scatter: float,
    doubt: float,
    spread: FloatArray,
    distance: FloatArray,
) -> tuple[float, float]:
    """Mean and variance of a flow's value, given a normal message; ``spread`` and ``distance`` are scratch."""
    value = product / precision if precision > 0 else 0.0
    nearest = np.inf
    for k in range(len(weight)):
        spread[k] = width2[k] + scatter + doubt * centre[k] * centre[k]
        distance[k] = 0.5 * precision * (centre[k] - value) ** 2 / (1.0 + spread[k] * precision)
        nearest = min(nearest, distance[k])
    total = mean = square = 0.0
    for k in range(len(weight)):
        further = distance[k] - nearest
        if further < NEGLIGIBLE:
            narrower = 1.0 / (1.0 + spread[k] * precision)
            share = weight[k] * np.sqrt(narrower) * np.exp(-further)
            own = narrower * (centre[k] + spread[k] * product)
            total += share
            mean += share * own
            square += share * (own * own + spread[k] * narrower)
    mean /= total
    return mean, max(square / total - mean * mean, LEAST_SPREAD * (width2[0] + scatter))


@kernel
def pass_mixture(
    cell: Int64Array,
    part: FloatArray,
    groups: int,
    kappa: FloatArray,
    whole: FloatArray,
    observed: FloatArray,
    noise: FloatArray,
    weight: FloatArray,
    centre: FloatArray,
    width2: FloatArray,
    scatter: FloatArray,
    doubt: FloatArray,
    part_mean: FloatArray,
    part_variance: FloatArray,
    cell_mean: FloatArray,
    cell_variance: FloatArray,
    precision: FloatArray,
    value: FloatArray,
    step: float,
) -> float:
    """One pass over all flows, each using what the flows before it have said; the largest change in deviations."""
    length = cell.shape[1] // groups
    own_precision = np.empty(groups)
    own_product = np.empty(groups)
    sums = np.empty((groups, 3))
    spread, distance = np.empty(len(weight)), np.empty(len(weight))
    largest = mean = variance = 0.0
    for f in range(cell.shape[0]):
        total_precision = total_product = 0.0
        for g in range(groups):
            own_precision[g], own_product[g] = group_message(
                f, g * length, (g + 1) * length, cell, part, kappa[f, g], whole[f], observed, noise,
                part_mean, part_variance, cell_mean, cell_variance, sums[g],
            )  # fmt: skip
            total_precision += own_precision[g]
            total_product += own_product[g]
        precision[f] = total_precision
        if total_precision > 0:
            value[f] = total_product / total_precision
        if length > 1:
            mean, variance = mixture_moments(
                total_precision, total_product, weight, centre, width2, scatter[f], doubt[f], spread, distance
            )
        for g in range(groups):
            if length == 1:
                others = product = 0.0
                for other in range(groups):
                    if other != g:
                        others += own_precision[other]
                        product += own_product[other]
                outside_mean, outside_variance = mixture_moments(
                    others, product, weight, centre, width2, scatter[f], doubt[f], spread, distance
                )
            else:
                outside = max(1.0 / variance - own_precision[g], WEAKEST / variance)
                outside_variance = 1.0 / outside
                held = outside > WEAKEST / variance
                outside_mean = (mean / variance - own_product[g]) / outside if held else mean
            change = predict_group(
                f, g * length, (g + 1) * length, cell, part, kappa[f, g], whole[f], observed, noise,
                part_mean, part_variance, cell_mean, cell_variance, sums[g], outside_mean, outside_variance, step,
            )  # fmt: skip
            largest = max(largest, change)
    return largest
