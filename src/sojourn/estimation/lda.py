"""LDA: mean, deviation and loss of a segment from the two ends' aggregators.

All banks' usable cells count. With S packets in U usable cells, D_c the sum of delays and N_c the count of
cell c:

- mean  μ = ΣD/ΣN (paper, §III-D), a sample of S of the R packets received;
- deviation, published (Eq. 5): neighbouring rows are subtracted, so that cross terms cancel in expectation:
  F = Σ(D_2i − D_2i−1)²/Σ(N_2i + N_2i−1), σ² = F − μ²;
- deviation, centred: σ² = Σ w_c (D_c − μN_c)²/N_c ÷ Σ w_c · U/(U−1), w = N/(N+8): the same information
  without the variance that μ² adds (about half the error);
- loss: packets sent minus packets received, exact.

Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III-D and III-E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.estimation.differences import CellDifference, cell_difference
from sojourn.estimation.quantiles import NORMAL_95, student_95
from sojourn.sketches.lda import Lda

__all__ = ["LdaAnswer", "centred_variance", "estimate_lda"]


@dataclass(frozen=True)
class LdaAnswer:
    """What an LDA says about a segment."""

    mean: Answer
    deviation: Answer
    published_deviation: Answer
    lost: Answer


def estimate_lda(sender: Lda, receiver: Lda) -> LdaAnswer:
    """Mean, deviation and loss between two LDAs with the same parameters; O(cells)."""
    cells = cell_difference(sender, receiver)
    lost = _estimate_loss(cells)
    samples = cells.used_packets
    if not samples:
        reason = Reason.NO_USABLE_CELLS if cells.total_sent else Reason.NOTHING_RECORDED
        return LdaAnswer(Unanswered(reason), Unanswered(reason), Unanswered(reason), lost)
    mean = float(cells.delay_sum[cells.usable].sum()) / samples
    variance, error, degrees = centred_variance(cells, mean)
    return LdaAnswer(
        _estimate_mean(cells, mean, variance, degrees),
        _deviation(variance, error, samples, "lda centred"),
        _published_deviation(sender, cells, mean),
        lost,
    )


def centred_variance(cells: CellDifference, mean: float) -> tuple[float, float, int]:
    """The variance of single delays around `mean`, the deviation of its error, and its degrees of freedom."""
    count = cells.sent[cells.usable].astype(np.float64)
    excess = cells.delay_sum[cells.usable] - mean * count
    degrees = len(count) - 1
    if degrees < 1:
        return math.nan, math.inf, 0
    weight = count / (count + 8)
    term = excess**2 / count
    variance = float(np.sum(weight * term) / weight.sum()) * (degrees + 1) / degrees
    error = math.sqrt(float(np.sum(weight**2 * (term - variance) ** 2))) / float(weight.sum())
    return variance, error, degrees


def _estimate_mean(cells: CellDifference, mean: float, variance: float, degrees: int) -> Estimate:
    """μ ± t·σ/√S·√(1 − S/R): a sample without replacement of the R packets received."""
    samples = cells.used_packets
    unseen = max(0.0, 1 - samples / max(cells.total_received, samples))
    half = 0.0 if unseen == 0 else student_95(degrees) * math.sqrt(variance / samples * unseen)
    return Estimate.around(mean, half, samples=samples, method="lda")


def _deviation(variance: float, error: float, samples: int, method: str) -> Answer:
    """The square root, with the interval of the variance taken on a logarithmic scale (it is skewed)."""
    if not math.isfinite(error):
        return Unanswered(Reason.NO_USABLE_CELLS)
    if variance <= 0:
        return Unanswered(Reason.LOST_IN_NOISE)
    factor = math.exp(min(NORMAL_95 * error / variance, 100.0))
    value = math.sqrt(variance)
    return Estimate(value, value / math.sqrt(factor), value * math.sqrt(factor), samples, method)


def _published_deviation(sender: Lda, cells: CellDifference, mean: float) -> Answer:
    """Eq. 5 over pairs of rows; a pair counts when its collapsed counts agree."""
    shape = (sender.parameters.banks, sender.parameters.rows)
    even = sender.parameters.rows // 2 * 2
    agree = cells.usable | (cells.sent == 0) & (cells.received == 0)
    both = agree.reshape(shape)[:, :even].reshape(-1, 2).all(axis=1)
    delays = cells.delay_sum.reshape(shape)[:, :even].reshape(-1, 2)[both].astype(np.float64)
    counts = cells.sent.reshape(shape)[:, :even].reshape(-1, 2)[both].sum(axis=1).astype(np.float64)
    samples = counts.sum()
    if not samples:
        return Unanswered(Reason.NO_USABLE_CELLS)
    square = (delays[:, 1] - delays[:, 0]) ** 2
    moment = float(square.sum() / samples)
    error = math.sqrt(float(np.sum((square - moment * counts) ** 2))) / float(samples)
    return _deviation(moment - mean**2, error, int(samples), "lda published")


def _estimate_loss(cells: CellDifference) -> Answer:
    """Exact: every packet is counted at both ends, sampled or not."""
    lost = float(cells.total_sent - cells.total_received)
    return Estimate(lost, lost, lost, cells.total_sent, "lda", unit="packets")
