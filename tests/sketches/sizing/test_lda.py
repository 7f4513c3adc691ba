"""LDA sizing: the sample that cells leave is as expected, and planned rows keep their error."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.estimation.lda import estimate_lda
from sojourn.segments.planning.layout import LADDER
from sojourn.sketches.lda import Lda, LdaParameters
from sojourn.sketches.sizing.lda import (
    best_share,
    expected_error,
    expected_samples,
    needed_samples,
    published_lda,
    smallest_lda,
)

PACKETS = 50_000


def measured(parameters: LdaParameters, seed: int, loss: float):
    """Samples used, and the relative error of the mean, with exponential delays."""
    random = np.random.default_rng(seed)
    packet_id = random.integers(0, 2**64, PACKETS, dtype=np.uint64)
    delay = random.exponential(1e6, PACKETS).astype(np.int64)
    kept = random.uniform(size=PACKETS) >= loss
    flow, size = np.zeros(PACKETS, np.uint64), np.full(PACKETS, 100, np.int64)
    sender, receiver = Lda(parameters), Lda(parameters)
    sender.record_batch(PacketBatch(flow, packet_id, np.zeros(PACKETS, np.int64), size))
    receiver.record_batch(PacketBatch(flow[kept], packet_id[kept], delay[kept], size[kept]))
    mean = estimate_lda(sender, receiver).mean
    return mean.samples, abs(mean.value / delay[kept].mean() - 1)


@pytest.mark.parametrize("loss", [0.0005, 0.01, 0.2])
@pytest.mark.parametrize("shares", [(1.0,), (0.25, 0.01), LADDER])
def test_the_expected_sample_is_the_mean_of_what_is_measured(loss: float, shares: tuple[float, ...]) -> None:
    """Over ten salts, within four deviations of the mean (false alarm: 1 in 1700 for the nine cases together)."""
    lost = loss * PACKETS
    mean, deviation = expected_samples(LdaParameters(rows=256, shares=shares), PACKETS, lost)
    if mean < 1:
        return
    runs = [measured(LdaParameters(rows=256, shares=shares, salt=salt), salt, loss)[0] for salt in range(10)]
    # The number of losses varies too: e^(−qL/m) by at most qδL/m in logarithm.
    slack = mean * min(shares[0], 1) * 4 * np.sqrt(lost / 10) / 256 + 4 * deviation / np.sqrt(10) + 0.002 * mean
    assert abs(np.mean(runs) - mean) <= slack


@pytest.mark.parametrize(("loss", "error"), [(0.001, 0.02), (0.05, 0.05), (0.2, 0.1)])
def test_planned_rows_keep_the_error_at_the_confidence(loss: float, error: float) -> None:
    """80 runs at 95 %: fewer than 69 within the error has probability 0.1 % if the promise holds."""
    rows = smallest_lda(
        LdaParameters(rows=1, shares=LADDER), PACKETS, loss * PACKETS, error=error, confidence=0.95, variation=1.0
    ).rows
    within = [
        measured(LdaParameters(rows=rows, shares=LADDER, salt=seed), 100 + seed, loss)[1] <= error for seed in range(80)
    ]
    assert sum(within) >= 69


def test_fewer_rows_than_planned_are_expected_to_miss() -> None:
    law = {"confidence": 0.95, "variation": 1.0}
    planned = smallest_lda(LdaParameters(rows=1, shares=LADDER), 1e6, 1e4, error=0.02, **law)
    fewer = LdaParameters(rows=planned.rows - 1, shares=LADDER)
    assert expected_error(planned, 1e6, 1e4, **law) <= 0.02 < expected_error(fewer, 1e6, 1e4, **law)


def test_the_best_share_is_one_over_the_losses_per_row_not_half_of_it() -> None:
    """α·e^−α, the sample itself, is largest at 1; the paper's bound α(1 − α) at ½."""

    def samples(alpha: float) -> float:
        share = best_share(1024, 50_000, alpha=alpha)
        return expected_samples(LdaParameters(rows=1024, shares=(share,)), 5e6, 50_000)[0]

    assert samples(1.0) > samples(0.5) > 1024 / 50_001 * 0.25 * 4.95e6
    assert samples(1.0) == max(samples(alpha) for alpha in (0.5, 0.7, 1.0, 1.4, 2.0))


def test_under_loss_a_longer_interval_buys_no_larger_sample() -> None:
    def samples(packets: float) -> float:
        lost = 0.01 * packets
        share = best_share(1024, lost)
        return expected_samples(LdaParameters(rows=1024, shares=(share,)), packets, lost)[0]

    assert samples(1e8) == pytest.approx(samples(1e7), rel=0.01)


def test_published_rows_follow_the_two_equations() -> None:
    sizing = published_lda(5e6, 5e4, error=0.01, confidence=0.95, variation=1.0)
    wanted = needed_samples(0.01, 0.95, 1.0)
    assert sizing.share == pytest.approx(0.5 * sizing.rows / 50_001)
    assert wanted <= sizing.samples < wanted * 1.01
    assert published_lda(5e6, 0, error=0.01, confidence=0.95, variation=1.0).rows == 1


def test_more_packets_than_arrive_are_not_promised() -> None:
    with pytest.raises(ParameterError, match="packets and"):
        published_lda(1000, 10, error=0.001, confidence=0.95, variation=1.0)
    with pytest.raises(ParameterError, match="leave an error"):
        smallest_lda(LdaParameters(rows=1, shares=LADDER), 1000, 990, error=1e-4, confidence=0.95, variation=1.0)
