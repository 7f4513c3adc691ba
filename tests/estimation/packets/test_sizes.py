"""Flows' sizes: the exact interval of a sample, bounds, groups that add up."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta

from sojourn.estimation.learning import KEPT_FLOWS
from sojourn.estimation.packets import sizes
from sojourn.estimation.packets.evidence import GroupTotals, Heard, PacketEvidence, SampledPackets
from sojourn.estimation.packets.sizes import SizePosterior, size_posterior

MOST = 1e7


def sampled(
    kept: list[int], share: float, group: list[int] | None = None, sent: list[int] | None = None
) -> SizePosterior:
    count = len(kept)
    groups = np.zeros(count, np.int64) if group is None else np.array(group)
    packets = SampledPackets(groups, np.full(count, share), np.array(kept, float), np.zeros(count))
    totals = None if sent is None else GroupTotals(np.array(sent, float), np.zeros(len(sent)))
    return size_posterior(PacketEvidence(Heard.nothing(count, MOST), Heard.nothing(count, MOST), packets, totals))


@pytest.mark.parametrize("share", [0.3, 0.02, 0.001])
@pytest.mark.parametrize("kept", [0, 1, 3, 20, 400])
def test_the_interval_of_a_sample_is_that_of_clopper_and_pearson(kept: int, share: float) -> None:
    """N packets until the n-th is kept: N of which n − 1 or fewer (n or fewer) are kept with probability 2.5 %."""
    found = sampled([kept] * 3, share)

    def chance(packets: float, most: int) -> float:
        """Of at most so many kept ones."""
        return float(beta.sf(share, most + 1, packets - most)) if packets > most else 1.0

    high, low = float(found.high[0]), float(found.low[0])
    grid = max(1.0, 0.12 * high)
    assert chance(high + grid, kept) <= 0.025 <= chance(max(high - grid, kept), kept)
    if kept:
        grid = max(1.0, 0.12 * low)
        assert 1 - chance(max(low - grid, kept), kept - 1) <= 0.025 or low == kept
        assert 1 - chance(low + grid, kept - 1) >= 0.025


def test_intervals_hold_for_every_size() -> None:
    """2,000 draws of each: fewer than 93.5 % of 95 % or more have a probability below 10⁻³."""
    random = np.random.default_rng(3)
    for size in (1, 5, 40, 300, 5_000):
        kept = random.binomial(size, 0.02, 2_000)
        found = sampled(kept.tolist(), 0.02)
        assert np.mean((found.low <= size) & (size <= found.high)) > 0.935


def test_what_a_group_counted_bounds_its_flows_and_a_flow_alone_is_exact() -> None:
    found = sampled([2, 0, 1, 3], 0.1, [0, 0, 0, 1], [30, 77])
    assert found.high[:3].max() <= 28
    assert (found.low[3], found.mean[3], found.high[3]) == (77, 77, 77)


def test_what_is_sampled_whole_is_exact() -> None:
    found = sampled([5, 2], 1.0)
    assert found.mean.tolist() == found.low.tolist() == found.high.tolist() == [5, 2]


def test_others_sizes_move_the_value_and_not_the_interval() -> None:
    """Among mice a flow of which nothing is kept is a mouse, but may be an elephant all the same."""
    small = sampled([0] * 2_000 + [1], 0.1)
    large = sampled([50] * 2_000 + [0], 0.1)
    assert small.mean[0] < large.mean[-1]
    assert small.high[0] == large.high[-1]


def test_cells_and_samples_multiply() -> None:
    count = 50
    heard = Heard(np.full(count, 120.0), np.full(count, 1 / 100.0), np.zeros(count), np.full(count, MOST))
    packets = SampledPackets(np.zeros(count, np.int64), np.full(count, 0.1), np.full(count, 10.0), np.zeros(count))
    both = size_posterior(PacketEvidence(heard, Heard.nothing(count, MOST), packets))
    alone = sampled([10] * count, 0.1)
    assert 95 < both.low[0] < both.mean[0] < both.high[0] < 145
    assert both.high[0] - both.low[0] < 0.5 * (alone.high[0] - alone.low[0])


def test_likeliest_weights_are_those_of_expectation_maximisation() -> None:
    """Beside the definition, row by row: what each flow shares among bins, a flow's worth of the first weights, and
    parts of the neighbours'."""
    random = np.random.default_rng(4)
    likelihood, first = random.uniform(size=(30, 12)) ** 4, np.full(12, 1 / 12)
    likelihood[3] = 0.0
    weight = first
    for _ in range(sizes.PASSES):
        shares = [row * weight / (row @ weight) for row in likelihood if row.any()]
        tally = np.sum(shares, axis=0) + KEPT_FLOWS * first
        padded = np.pad(tally, 1, mode="edge")
        tally = (1 - 2 * sizes.SMOOTHING) * tally + sizes.SMOOTHING * (padded[:-2] + padded[2:])
        weight = tally / tally.sum()
    assert sizes._likeliest(likelihood, first) == pytest.approx(weight)
