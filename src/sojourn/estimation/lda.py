"""LDA: mean, deviation and loss of a segment from the two ends' aggregators.

All banks' usable cells count. With S packets in U usable cells, D_c the sum of delays and N_c the count of
cell c, R packets received, μ and σ those of the received packets, κ their excess kurtosis:

- mean  μ = ΣD/ΣN (paper, §III-D), a sample of S of the R packets. It is also the best weighting of banks: bank j's own
  mean has variance σ²/S_j, and weights S_j give the pooled mean back.
- deviation, published (Eq. 5): neighbouring rows are subtracted, so that cross terms cancel in expectation:
  F = Σ(D_2i − D_2i−1)²/Σ(N_2i + N_2i−1), σ² = F − μ².
- deviation, centred: z_c = (D_c − μN_c)²/N_c has expectation σ²(1 − N_c/S) and variance σ⁴(2 + κ/N_c), so
  σ² = Σ w_c z_c ÷ Σ w_c (1 − N_c/S) with w_c = 1/(2 + κ/N_c): cells and banks weigh by their variance. κ comes from
  the cells' own fourth moments. Same counters, without the variance that μ² adds: about half the error.
- loss: packets sent minus packets received, exact unless a cell shows packets that were not sent (`losses`).

The intervals are about the packets received, and hold whatever their order: which packets share a cell is the hash's
choice. Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III-D and III-E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered, spread_95, student_95
from sojourn.estimation.differences import CellDifference, Parts, cell_difference, count_losses
from sojourn.sketches.lda import Lda

FIRST_KURTOSIS = 16.0
PASSES = 2


@dataclass(frozen=True)
class LdaAnswer:
    """What an LDA says about a segment."""

    mean: Answer
    deviation: Answer
    published_deviation: Answer
    lost: Answer


@dataclass(frozen=True)
class _Variance:
    """A variance and the degrees of freedom that its error comes to; 0 where it is not known or nothing varies."""

    value: float
    degrees: float


def estimate_lda(sender: Lda, receiver: Lda) -> LdaAnswer:
    """Mean, deviation and loss between two LDAs with the same parameters; O(cells)."""
    cells = cell_difference(sender, receiver)
    lost = _estimate_loss(cells)
    samples = cells.used_packets
    if not samples:
        reason = Reason.NO_USABLE_CELLS if cells.total_sent else Reason.NOTHING_RECORDED
        return LdaAnswer(Unanswered(reason), Unanswered(reason), Unanswered(reason), lost)
    # As floats: the delays of all cells together may exceed 64 bits although no cell's do.
    mean = float(cells.delay_sum[cells.usable].sum(dtype=np.float64)) / samples
    variance = _centred_variance(cells, mean)
    return LdaAnswer(
        _estimate_mean(cells, mean, variance),
        _estimate_deviation(variance, samples),
        _published_deviation(sender, cells, mean),
        lost,
    )


def _estimate_mean(cells: CellDifference, mean: float, variance: _Variance) -> Estimate:
    """μ ± t·σ/√S·√(1 − S/R): a sample without replacement of the R packets received."""
    samples = cells.used_packets
    unseen = max(0.0, 1 - samples / max(cells.total_received, samples))
    quantile = student_95(int(cells.usable.sum()) - 1)
    half = 0.0 if unseen == 0 else quantile * math.sqrt(variance.value / samples * unseen)
    return Estimate.around(mean, half, samples=samples, method="lda")


def _centred_variance(cells: CellDifference, mean: float) -> _Variance:
    """The variance of single delays around `mean`, cells weighed by their variance."""
    count = cells.sent[cells.usable].astype(np.float64)
    if len(count) < 2:
        return _Variance(math.nan, 0)
    square = (cells.delay_sum[cells.usable] - mean * count) ** 2 / count
    expected = 1 - count / count.sum()
    kurtosis = FIRST_KURTOSIS
    for _ in range(PASSES):
        weight = 1 / (2 + kurtosis / count)
        value = float(np.sum(weight * square) / np.sum(weight * expected))
        if value <= 0:
            return _Variance(0, 0)
        relative = square / (expected * value)
        kurtosis = max(0.0, float(np.sum(relative**2 - 3) / np.sum(1 / count)))
    return _Variance(value, _degrees(weight, relative, 2 + kurtosis / count))


def _degrees(weight: FloatArray, relative: FloatArray, variance: FloatArray) -> float:
    """2/error² of a weighted mean: the terms' error from their model or from their spread, whichever is larger.

    Heavy tails hide from a few hundred cells: either alone says too little, the model when no cell drew a long delay.
    """
    error = max(float(np.sum(weight**2 * variance)), float(np.sum(weight**2 * (relative - 1) ** 2)))
    return 2 * float(weight.sum()) ** 2 / error


def _estimate_deviation(variance: _Variance, samples: int) -> Answer:
    if variance.degrees == 0:
        return Unanswered(Reason.LOST_IN_NOISE if variance.value == 0 else Reason.NO_USABLE_CELLS)
    low, high = (math.sqrt(variance.value * factor) for factor in spread_95(variance.degrees))
    return Estimate(math.sqrt(variance.value), low, high, samples, "lda centred")


def _published_deviation(sender: Lda, cells: CellDifference, mean: float) -> Answer:
    """Eq. 5 over pairs of rows; a pair counts when its collapsed counts agree."""
    shape = (sender.parameters.banks, sender.parameters.rows)
    even = sender.parameters.rows // 2 * 2
    agree = cells.usable | (cells.sent == 0) & (cells.received == 0)
    counts = cells.sent.reshape(shape)[:, :even].reshape(-1, 2).sum(axis=1).astype(np.float64)
    pairs = agree.reshape(shape)[:, :even].reshape(-1, 2).all(axis=1) & (counts > 0)
    if not pairs.any():
        return Unanswered(Reason.NO_USABLE_CELLS)
    delays = cells.delay_sum.reshape(shape)[:, :even].reshape(-1, 2)[pairs].astype(np.float64)
    counts = counts[pairs]
    samples = float(counts.sum())
    square = (delays[:, 1] - delays[:, 0]) ** 2
    moment = float(square.sum()) / samples
    variance = moment - mean**2
    if variance <= 0:
        return Unanswered(Reason.LOST_IN_NOISE)
    factors = spread_95(_degrees(counts, square / (counts * moment), np.full(len(counts), 2.0)))
    low, high = (math.sqrt(max(0.0, moment * factor - mean**2)) for factor in factors)
    return Estimate(math.sqrt(variance), low, high, int(samples), "lda published")


def _estimate_loss(cells: CellDifference) -> Answer:
    """Exact, as every packet is counted at both ends; unknown where more arrived than was sent."""
    losses = count_losses(cells.total_sent, cells.total_received, [Parts.of_cells(cells)])
    if losses.lost is None:
        return Unanswered(Reason.EXTRA_PACKETS)
    return Estimate(float(losses.lost), losses.low, losses.high, cells.total_sent, "lda", unit="packets")
