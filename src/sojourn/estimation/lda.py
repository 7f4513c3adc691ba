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
from sojourn.estimation.quantiles import chi_square_bounds, student_95
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
    variance, degrees = centred_variance(cells, mean)
    return LdaAnswer(
        _estimate_mean(cells, mean, variance, degrees),
        _estimate_deviation(variance, degrees, samples),
        _published_deviation(sender, cells, mean),
        lost,
    )


def centred_variance(cells: CellDifference, mean: float) -> tuple[float, int]:
    """The variance of single delays around `mean`, and its degrees of freedom."""
    count = cells.sent[cells.usable].astype(np.float64)
    excess = cells.delay_sum[cells.usable] - mean * count
    degrees = len(count) - 1
    if degrees < 1:
        return math.nan, 0
    weight = count / (count + 8)
    variance = float(np.sum(weight * excess**2 / count) / weight.sum()) * (degrees + 1) / degrees
    return variance, degrees


def _estimate_mean(cells: CellDifference, mean: float, variance: float, degrees: int) -> Estimate:
    """μ ± t·σ/√S·√(1 − S/R): a sample without replacement of the R packets received."""
    samples = cells.used_packets
    unseen = max(0.0, 1 - samples / max(cells.total_received, samples))
    half = 0.0 if unseen == 0 else student_95(degrees) * math.sqrt(variance / samples * unseen)
    return Estimate.around(mean, half, samples=samples, method="lda")


def _estimate_deviation(variance: float, degrees: int, samples: int) -> Answer:
    if degrees < 1:
        return Unanswered(Reason.NO_USABLE_CELLS)
    low, high = chi_square_bounds(degrees)
    value = math.sqrt(variance)
    upper = value / math.sqrt(low) if low > 0 else math.inf
    return Estimate(value, value / math.sqrt(high), upper, samples, "lda centred")


def _published_deviation(sender: Lda, cells: CellDifference, mean: float) -> Answer:
    """Eq. 5 over pairs of rows; a pair counts when its collapsed counts agree."""
    shape = (sender.parameters.banks, sender.parameters.rows)
    even = sender.parameters.rows // 2 * 2
    pair_usable = cells.usable | (cells.sent == 0) & (cells.received == 0)
    both = pair_usable.reshape(shape)[:, :even].reshape(shape[0], -1, 2).all(axis=2)
    delays = cells.delay_sum.reshape(shape)[:, :even].reshape(shape[0], -1, 2).astype(np.float64)
    counts = cells.sent.reshape(shape)[:, :even].reshape(shape[0], -1, 2).sum(axis=2)
    samples = int(counts[both].sum())
    if not samples:
        return Unanswered(Reason.NO_USABLE_CELLS)
    difference = delays[both][:, 1] - delays[both][:, 0]
    variance = float(np.sum(difference**2)) / samples - mean**2
    # Eq. 5's variance: each pair's square has a relative deviation of √2 around F = σ² + μ².
    error = math.sqrt(2 / max(1, int(both.sum()))) * (variance + mean**2) * 1.96
    value = math.sqrt(max(variance, 0.0))
    low, high = (math.sqrt(max(variance + sign * error, 0.0)) for sign in (-1, 1))
    return Estimate(value, low, high, samples, "lda published")


def _estimate_loss(cells: CellDifference) -> Answer:
    """Exact: every packet is counted at both ends, sampled or not."""
    lost = float(cells.total_sent - cells.total_received)
    return Estimate(lost, lost, lost, cells.total_sent, "lda", unit="packets")
