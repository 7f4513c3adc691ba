"""Calibration by trial: decode delays that the model itself has drawn, on the same cells, and see how far off one is.

Message passing is exact on trees. Where flows own neighbouring cells (k > 1) two flows share several, loops are short,
and predicted variances are off: means are right, intervals would not be. In a trial the truth is known, so the
ratio of squared errors to predicted variances is measured, by how much the cells say of a flow, and applied.

Cost: one more solve per trial.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.estimation.joint.incidence import Incidence

__all__ = ["calibrated_precision", "draw_cells", "draw_excess", "error_ratios"]

# Flows are alike if the cells leave a like share of their prior variance.
EDGES = np.array([1e-4, 1e-2, 0.05, 0.2, 0.5, 0.8, 0.95])
FEWEST = 50
MOST_RATIO = 100.0
MOST_LEFT = 0.999


def draw_excess(variance: FloatArray, seed: int) -> FloatArray:
    """Normal values with these variances."""
    drawn: FloatArray = np.random.default_rng(seed).standard_normal(len(variance)) * np.sqrt(variance)
    return drawn


def draw_cells(
    incidence: Incidence,
    weight: FloatArray,
    excess: FloatArray,
    kappa: FloatArray,
    whole: FloatArray,
    noise: FloatArray,
    seed: int,
) -> FloatArray:
    """The cells' sums that flows of these excesses bring, drawn from the model of `messages`."""
    random = np.random.default_rng(seed)
    shape = (incidence.flows, incidence.groups, incidence.group_length)
    own = np.where(incidence.cell >= 0, weight, 0.0).reshape(shape)
    scatter = random.standard_normal(shape) * np.sqrt(kappa[:, :, None] * own)
    unseen = np.sqrt(kappa * np.maximum(whole[:, None] - own.sum(axis=2), 0.0))
    total = scatter.sum(axis=2) + random.standard_normal(shape[:2]) * unseen
    parts = own * (excess[:, None] - total / whole[:, None])[:, :, None] + scatter
    kept = incidence.cell >= 0
    cells = np.bincount(incidence.cell[kept], parts.reshape(kept.shape)[kept], incidence.cells)
    sums: FloatArray = cells + random.standard_normal(incidence.cells) * np.sqrt(noise)
    return sums


def error_ratios(truth: FloatArray, value: FloatArray, precision: FloatArray, variance: FloatArray) -> FloatArray:
    """Mean squared error over predicted variance in each class of flows; 1 where a class is too small to tell."""
    left = 1 / (1 + variance * precision)
    squares = (left * variance * precision * value - truth) ** 2 / (left * variance)
    heard = precision > 0
    of_flow = np.searchsorted(EDGES, left[heard])
    flows = np.bincount(of_flow, minlength=len(EDGES) + 1)
    sums = np.bincount(of_flow, squares[heard], len(EDGES) + 1)
    ratios: FloatArray = np.where(flows >= FEWEST, sums / np.maximum(flows, 1), 1.0)
    return np.clip(ratios, 1 / MOST_RATIO, MOST_RATIO)


def calibrated_precision(
    value: FloatArray, precision: FloatArray, variance: FloatArray, ratios: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Messages with the same posterior means, and the variances that trials found."""
    left = 1 / (1 + variance * precision)
    mean = (1 - left) * value
    ratio = ratios[np.searchsorted(EDGES, left)]
    right = np.minimum(left * ratio, np.clip(left, MOST_LEFT, 1 - 1e-12))
    heard = precision > 0
    return np.where(heard, mean / (1 - right), 0.0), np.where(heard, (1 / right - 1) / variance, 0.0)
