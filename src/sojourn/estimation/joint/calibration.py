"""What messages claim, corrected by a trial: values and cells are drawn from the model, decoded and compared.

Variances of messages are approximations where the graph has loops. Of flows about which the cells say as much, the mean
squared error of a trial over what was claimed is the factor by which claims are off; posterior means stay.

Cost: O(edges) for a draw, O(flows) for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.estimation.joint.incidence import Incidence

# Flows are alike if the cells leave a like share of their prior variance.
EDGES = np.array([1e-4, 1e-2, 0.05, 0.2, 0.5, 0.8, 0.95])
FEWEST = 50
MOST_RATIO = 100.0
# A message keeps this part at least of what it tells: what nearly nothing tells, trials do not either.
LEAST_TOLD = 0.5
# Drawn at a time, so that draws take little memory beside the messages.
BLOCK_FLOWS = 1 << 16


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
    """The cells' sums that flows of these excesses bring, drawn from the model of `messages`.

    Flows are drawn in blocks, and what scatters in each cell is drawn twice from the same seed: kept for all flows at
    once, it would take as much memory as the messages.
    """
    lengths, random = np.diff(incidence.starts), np.random.default_rng(seed)
    total, unseen = np.empty((2, incidence.flows, incidence.groups))
    for rows, own, scatter in _blocks(incidence, weight, kappa, random):
        total[rows] = incidence.by_group(scatter)
        unseen[rows] = np.sqrt(kappa[rows] * np.maximum(whole[rows, None] - incidence.by_group(own), 0.0))
    total += random.standard_normal(total.shape) * unseen
    sums = random.standard_normal(incidence.cells) * np.sqrt(noise)
    for rows, own, scatter in _blocks(incidence, weight, kappa, np.random.default_rng(seed)):
        around = excess[rows, None] - total[rows] / whole[rows, None]
        parts = own * np.repeat(around, lengths, axis=1) + scatter
        kept = incidence.cell[rows] >= 0
        sums += np.bincount(incidence.cell[rows][kept], parts[kept], incidence.cells)
    return sums


def _blocks(
    incidence: Incidence, weight: FloatArray, kappa: FloatArray, random: np.random.Generator
) -> Iterator[tuple[slice, FloatArray, FloatArray]]:
    """Some flows after the others: their edges' weights, and what is drawn around them."""
    lengths = np.diff(incidence.starts)
    for start in range(0, incidence.flows, BLOCK_FLOWS):
        rows = slice(start, min(start + BLOCK_FLOWS, incidence.flows))
        own = np.where(incidence.cell[rows] >= 0, weight[rows], 0.0)
        yield rows, own, random.standard_normal(own.shape) * np.sqrt(np.repeat(kappa[rows], lengths, axis=1) * own)


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
