"""What messages claim, corrected by a trial: values and cells are drawn from the model, decoded and compared.

Variances of messages are approximations where the graph has loops. Of flows about which the cells say as much, the mean
squared error of a trial over what was claimed is the factor by which claims are off; posterior means stay.

Cost: O(edges) for a draw, O(flows) for the rest.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.estimation.joint.messages import Incidence

# Flows are alike if the cells leave a like share of their prior variance.
EDGES = np.array([1e-4, 1e-2, 0.05, 0.2, 0.5, 0.8, 0.95])
FEWEST = 50
MOST_RATIO = 100.0
# A message keeps this part at least of what it tells: what nearly nothing tells, trials do not either.
LEAST_TOLD = 0.5


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
    kept = incidence.cell >= 0
    own, lengths = np.where(kept, weight, 0.0), np.diff(incidence.starts)
    scatter = random.standard_normal(own.shape) * np.sqrt(np.repeat(kappa, lengths, axis=1) * own)
    unseen = np.sqrt(kappa * np.maximum(whole[:, None] - incidence.by_group(own), 0.0))
    total = incidence.by_group(scatter) + random.standard_normal(unseen.shape) * unseen
    parts = own * np.repeat(excess[:, None] - total / whole[:, None], lengths, axis=1) + scatter
    cells = np.bincount(incidence.cell[kept], parts[kept], incidence.cells)
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
    """Messages with the same posterior means, and the variances that trials found.

    Under another prior they must be as good: so that means are the same, a message that tells less has a larger value,
    which is bounded.
    """
    left = 1 / (1 + variance * precision)
    mean = (1 - left) * value
    ratio = ratios[np.searchsorted(EDGES, left)]
    right = np.minimum(left * ratio, np.minimum(1 - LEAST_TOLD * (1 - left), 1 - 1e-12))
    heard = precision > 0
    return np.where(heard, mean / (1 - right), 0.0), np.where(heard, (1 / right - 1) / variance, 0.0)
