"""Baselines: exact where their assumption holds, far off where not, the mean of all where they know nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.lab.traffic import START_NS, Traffic, make_traffic, traffic_of
from sojourn.papers.lds.worlds import count_min, grand_mean, make_queue_traffic, multi_point, reference_interpolation

SECOND = 10**9


def drifting_traffic(flows: int = 50, packets: int = 20_000) -> Traffic:
    """Delays that grow evenly with time, whatever the flow: two points determine all others."""
    random = np.random.default_rng(1)
    offset = np.sort(random.integers(0, 10 * SECOND, packets))
    flow = random.integers(0, flows, packets)
    delay = 1_000_000 + offset // 1000
    return traffic_of(random, flow, START_NS + offset, delay, random.uniform(size=packets) > 0.05)


def errors(means: np.ndarray, traffic: Traffic) -> np.ndarray:
    return np.abs(means / traffic.truth.mean_ns - 1)


def test_interpolation_is_exact_where_delays_change_evenly() -> None:
    traffic = drifting_traffic()
    assert errors(reference_interpolation(traffic, rate_hz=100), traffic).max() < 1e-4
    # A flow's packets spread evenly over its time; their mean and that of the curve differ by chance.
    assert errors(multi_point(traffic, share=0.5), traffic).max() < 0.1


def test_multi_point_integrates_the_curve_through_all_records() -> None:
    """Three flows; the first is sampled at 0 and 4 s, the others' records in between bend the curve."""
    random = np.random.default_rng(2)
    flow = np.array([0, 1, 1, 2, 0])
    offset = np.array([0, 1, 2, 3, 4]) * SECOND
    delay = np.array([10, 20, 40, 10, 10]) * 1000
    traffic = traffic_of(random, flow, START_NS + offset, delay, np.ones(5, bool))
    means = multi_point(traffic, share=1 - 1e-9)
    first = (10 + 20) / 2 + (20 + 40) / 2 + (40 + 10) / 2 + (10 + 10) / 2
    rows = {row: number for number, row in zip(flow.tolist(), traffic.flow.tolist(), strict=True)}
    expected = {0: first / 4 * 1000, 1: 30_000, 2: 10_000}
    assert means == pytest.approx([expected[rows[row]] for row in range(3)])


def test_flows_of_which_nothing_is_known_get_the_mean_of_all() -> None:
    traffic = make_traffic(seed=3, flows=500)
    means = multi_point(traffic, share=0.01)
    unknown = means == grand_mean(traffic)
    assert 0.5 < unknown.mean() < 1
    assert unknown[traffic.truth.sent == 1].mean() > 0.95


def test_interpolation_fails_when_flows_pass_different_queues() -> None:
    medians = {}
    for queues in (1, 2):
        traffic = make_queue_traffic(seed=4, flows=2000, queues=queues)
        large = traffic.truth.sent >= 100
        medians[queues] = np.median(errors(reference_interpolation(traffic, rate_hz=1000), traffic)[large])
    assert medians[1] < 0.01
    assert medians[2] > 0.2


def test_count_min_is_never_below_the_truth_and_exact_with_room() -> None:
    random = np.random.default_rng(5)
    flow_id = random.integers(0, 2**64, 300, dtype=np.uint64)
    packets = random.integers(1, 1000, 300)
    tight, roomy = (count_min(flow_id, packets, rows=4, columns=columns) for columns in (50, 20_000))
    assert (tight >= packets).all()
    assert (tight > packets).mean() > 0.9
    assert np.array_equal(roomy, packets)
