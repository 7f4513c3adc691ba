"""Summaries hold their guarantee on named distributions, and stay within their memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sojourn.core.errors import ParameterError
from sojourn.rtt.state import RttSamples
from sojourn.rtt.summary import QUANTILES, RttSummaries

WORLDS = {
    "constant": lambda rng, n: rng.integers(1_234_567, 1_234_568, n),
    "nanoseconds": lambda rng, n: rng.integers(0, 200, n),
    "uniform": lambda rng, n: rng.integers(10**5, 10**9, n),
    "log-normal": lambda rng, n: np.exp(rng.normal(17, 1.5, n)),
    "two modes": lambda rng, n: rng.normal(np.where(rng.random(n) < 0.9, 1e6, 2e8), 1e4, n),
    "heavy tail": lambda rng, n: 1e6 * (rng.pareto(1.1, n) + 1),
    "minute": lambda rng, n: rng.integers(59 * 10**9, 60 * 10**9, n),
    "octave edges": lambda rng, n: 2 ** rng.integers(0, 40, n) - rng.integers(0, 2, n),
}  # fmt: skip


def samples(rtts: np.ndarray, flows: np.ndarray | None = None, kind: int = 0) -> RttSamples:
    count = len(rtts)
    ids = np.zeros(count, np.uint64) if flows is None else flows.astype(np.uint64)
    times = rtts.astype(np.int64)
    zeros = np.zeros(count, np.uint8)
    return RttSamples(ids, times, times, times, zeros + np.uint8(kind), zeros)


@pytest.mark.parametrize("size", [1, 2, 99, 20_000])
@pytest.mark.parametrize("world", WORLDS)
def test_percentiles_are_within_their_bound_and_the_rest_is_exact(world: str, size: int) -> None:
    values = np.maximum(WORLDS[world](np.random.default_rng(5), size), 0).astype(np.int64)
    summaries = RttSummaries(4, pages=64)
    for part in np.array_split(values, 3):
        summaries.add(samples(part))
    (flow,) = summaries.flows()
    ordered = np.sort(values)
    assert (flow.samples, flow.min_rtt, flow.max_rtt) == (size, ordered[0], ordered[-1])
    assert flow.mean_rtt == pytest.approx(values.mean(), rel=1e-12)
    assert flow.std_rtt == pytest.approx(values.std(ddof=1) if size > 1 else 0.0, rel=1e-9)
    for share, answer in zip(QUANTILES, (flow.p50_rtt, flow.p95_rtt, flow.p99_rtt), strict=True):
        exact = int(ordered[math.ceil(share * size) - 1])
        assert abs(answer - exact) <= exact / 128
        if exact < 64:
            assert answer == exact
    assert summaries.dropped == {}


def test_flows_and_kinds_are_kept_apart_in_the_order_of_their_first_samples() -> None:
    summaries = RttSummaries(16)
    summaries.add(samples(np.array([5, 10, 7]), np.array([9, 2**64 - 1, 9], np.uint64)))
    summaries.add(samples(np.array([3]), np.array([9]), kind=2))
    found = [(f.flow_id, f.kind, f.samples, f.min_rtt, f.max_rtt) for f in summaries.flows()]
    assert found == [(9, 0, 2, 5, 7), (2**64 - 1, 0, 1, 10, 10), (9, 2, 1, 3, 3)]
    assert summaries.samples == 4


def test_flows_beyond_the_limit_are_left_out_and_counted() -> None:
    summaries = RttSummaries(100)
    summaries.add(samples(np.full(250, 7), np.arange(250)))
    assert len(summaries) == 100
    assert summaries.dropped == {"samples of flows beyond the limit of the summary": 150}
    assert [f.flow_id for f in summaries.flows()] == list(range(100))


def test_bins_that_find_no_room_miss_from_the_percentiles_only() -> None:
    summaries = RttSummaries(4, pages=1)
    summaries.add(samples(np.array([100, 100, 100, 10**9])))
    (flow,) = summaries.flows()
    assert (flow.samples, flow.max_rtt, flow.p99_rtt) == (4, 10**9, 100)
    assert summaries.dropped == {"samples missing from the percentiles": 1}


def test_no_samples_no_flows() -> None:
    assert RttSummaries(4).flows() == []


@pytest.mark.parametrize("flows", [0, 1 << 27])
def test_limits_are_checked(flows: int) -> None:
    with pytest.raises(ParameterError, match="flows"):
        RttSummaries(flows)
