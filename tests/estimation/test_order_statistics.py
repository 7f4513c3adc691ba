"""Percentiles of samples: intervals hold the truth of the packets that were delivered, whatever their delays are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from sojourn.core.estimates import LEVELS
from sojourn.estimation.order_statistics import bounding_ranks, sample_percentiles, weighed_percentiles
from sojourn.estimation.sample import match_samples
from sojourn.sketches.sample import Sample, SampleParameters
from worlds import TAILS, recorded, world

LEAST = 0.93


@pytest.mark.parametrize("level", LEVELS.values())
def test_ranks_leave_at_most_five_percent(level: float) -> None:
    for count in [*range(1, 400, 7), 1000, 2996, 2997, 40_000]:
        low, high = bounding_ranks(count, level)
        assert 0 <= low < high <= count + 1
        missed = binom.cdf(low - 1, count, level) + binom.sf(high - 1, count, level)
        assert missed <= 0.05 + 1e-9
        if low > 1 and high < count:  # one rank nearer on either side would be too near
            assert binom.cdf(low, count, level) > 0.0249
            assert binom.sf(high - 2, count, level) > 0.0249


def truth_of(made, flow_id) -> np.ndarray:
    order = np.argsort(made.sender.flow_id[made.delivered], kind="stable")
    ids, delays = made.sender.flow_id[made.delivered][order], made.delay_ns[made.delivered][order]
    start, end = np.searchsorted(ids, flow_id, "left"), np.searchsorted(ids, flow_id, "right")
    levels = list(LEVELS.values())
    rows = zip(start, end, strict=True)
    return np.array([np.quantile(delays[a:b], levels) if b > a else np.full(len(levels), np.nan) for a, b in rows])


@pytest.mark.parametrize("delays", TAILS)
@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=pytest.mark.long), 0.2])
def test_intervals_of_flows_cover_by_size_class(delays: str, loss: float) -> None:
    """Of 500 intervals or more that hold the truth with 95 % each, fewer than 93 % do so with probability 0.03.

    Quantised delays and finite flows leave less than the 5 %; seeds are fixed.
    """
    inside: dict[tuple[str, int], list[bool]] = {}
    for seed in range(60):
        made = world(500 + seed, delays=delays, loss=loss, flows=60, packets=30_000, tail=0.8)
        sample = match_samples(*recorded(made, lambda: Sample(SampleParameters(slots=9000, groups=128, salt=7))))
        flow_id = np.unique(made.sender.flow_id)
        flows, truth = sample.flows(flow_id), truth_of(made, flow_id)
        for number, level in enumerate(LEVELS):
            value, low, high = np.moveaxis(flows.percentiles[:, number], -1, 0)
            for row in np.flatnonzero(~np.isnan(value) & (low < high)):
                size = min(int(np.log10(flows.samples[row])), 2)
                inside.setdefault((level, size), []).append(bool(low[row] <= truth[row, number] <= high[row]))
                assert low[row] <= value[row] <= high[row]
    enough = {place: np.mean(held) for place, held in inside.items() if len(held) >= 500}
    assert {level for level, _size in enough} >= {"p50", "p90", "p95"}
    assert min(enough.values()) >= LEAST, enough
    every = [held for place in inside.values() for held in place]
    assert np.mean(every) >= 0.95


def test_a_flow_with_too_few_sampled_packets_has_no_percentile_but_the_bound_that_is_known() -> None:
    delays = np.sort(np.random.default_rng(2).exponential(1e6, 100))
    start = np.array([0, 0, 3, 100])
    found = sample_percentiles(start, np.concatenate([delays[:3], delays[3:]]), np.array([False] * 3))
    assert np.isnan(found[0]).all()
    assert np.isnan(found[1, :, 0]).all()
    value, low, high = found[2].T
    assert np.isfinite(value).tolist() == [True, True, True, False, False]
    assert np.isfinite(low).all()
    assert np.isnan(high[3:]).all()
    whole = sample_percentiles(start, delays, np.array([True] * 3))[2]
    assert (whole == np.quantile(delays[3:], list(LEVELS.values()))[:, None]).all()


@pytest.mark.parametrize("delays", TAILS)
def test_the_whole_is_covered_where_groups_are_sampled_at_different_rates(delays: str) -> None:
    """40 worlds of 95 % each: fewer than 33 hold with probability 0.002 for each of the levels."""
    held = np.zeros((40, len(LEVELS)), bool)
    for seed in range(40):
        made = world(900 + seed, delays=delays, loss=0.1, flows=200, packets=30_000, tail=0.8)
        sample = match_samples(*recorded(made, lambda: Sample(SampleParameters(slots=4000, groups=64, salt=11))))
        truth = np.quantile(made.delay_ns[made.delivered], list(LEVELS.values()))
        found = sample.percentiles()
        high = np.where(np.isnan(found[:, 2]), np.inf, found[:, 2])
        held[seed] = (found[:, 1] <= truth) & (truth <= high)
    assert (held.sum(axis=0) >= 33).all(), held.sum(axis=0)


def test_equal_weights_are_a_plain_sample() -> None:
    delays = np.random.default_rng(3).exponential(1e6, 3000)
    plain = sample_percentiles(np.array([0, 3000]), np.sort(delays), np.array([False]))[0]
    weighed = weighed_percentiles(delays, np.full(3000, 4.0), is_whole=False)
    np.testing.assert_array_equal(plain[:, 1:], weighed[:, 1:])
    np.testing.assert_allclose(plain[:, 0], weighed[:, 0], rtol=0.01)
    assert np.isnan(weighed_percentiles(np.empty(0), np.empty(0), is_whole=False)).all()
