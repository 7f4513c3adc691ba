"""The oracle is the best linear estimator: as a dense solution has it, and exact where cells are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench.auto.oracle import best_linear, observations, prior, variation
from bench.auto.trial import Drawn, recorded
from bench.auto.worlds import MEAN_NS, World

from sojourn.core.errors import ParameterError
from sojourn.estimation.differences import cell_difference
from sojourn.segments.answer import parts_of
from sojourn.sketches.sample import Sample

WORLD = World(name="oracle", flows=60, packets=2_500, sizes="geometric", means="spread", lost=0.01)


@pytest.mark.parametrize("sketch", ["auto", "lds", "colate", "sample"])
def test_the_oracle_is_the_dense_solution(sketch: str) -> None:
    drawn = Drawn.of(WORLD, 3)
    plan = drawn.plan(sketch, 2_500, 3)
    traffic = drawn.traffic
    seen = observations(plan, traffic)
    incidence = seen.of_packet.toarray()
    flow, received = traffic.flow[traffic.delivered], traffic.truth.received
    mean, between = prior(WORLD, traffic.truth.sent)
    within = variation(WORLD) * np.nan_to_num(traffic.truth.mean_ns) ** 2
    member = (flow[:, None] == np.arange(len(mean))).astype(float)
    cov = member @ np.diag(between) @ member.T + np.diag(within[flow])
    of_cells = incidence.T @ cov @ incidence
    of_cells += np.diag(seen.noise + 1e-9 * np.diag(of_cells))
    excess = incidence.T @ (traffic.delay_ns[traffic.delivered] - mean[flow])
    towards = (member / np.maximum(received, 1)).T @ cov @ incidence
    dense = mean + towards @ np.linalg.solve(of_cells, excess)
    arrived = received > 0
    assert np.allclose(best_linear(WORLD, drawn, plan)[arrived], dense[arrived], rtol=1e-3)


@pytest.mark.parametrize("sketch", ["lds", "colate"])
def test_observations_are_the_sums_of_clean_cells(sketch: str) -> None:
    drawn = Drawn.of(WORLD, 4)
    plan = drawn.plan(sketch, 8_000, 4)
    sender, receiver = (parts_of(end)["flows"] for end in recorded(plan, drawn.traffic))
    cells = cell_difference(sender, receiver)  # type: ignore[arg-type]
    seen = observations(plan, drawn.traffic)
    sums = seen.of_packet.T @ drawn.traffic.delay_ns[drawn.traffic.delivered]
    clean = cells.usable & (cells.sent > 0)
    assert np.array_equal(np.sort(np.rint(sums)), np.sort(cells.delay_sum[clean]))


def test_sampled_packets_are_those_of_both_ends() -> None:
    drawn = Drawn.of(WORLD, 5)
    plan = drawn.plan("sample", 8_000, 5)
    ends = [parts_of(end)["flows"] for end in recorded(plan, drawn.traffic)]
    assert all(isinstance(end, Sample) for end in ends)
    seen = observations(plan, drawn.traffic)
    assert 0 < seen.of_packet.shape[1] <= min(len(end.kept()) for end in ends)  # type: ignore[union-attr]
    assert np.all(seen.of_packet.sum(axis=0) == 1)


def test_with_a_cell_for_everybody_nothing_is_left_to_guess() -> None:
    world = replace(WORLD, lost=0.0)
    drawn = Drawn.of(world, 6)
    assert drawn.error(best_linear(world, drawn, drawn.plan("lds", 100_000, 6))) == 1e-4


def test_priors_follow_the_size_only_where_means_do() -> None:
    size = np.array([1, 10, 100, 1000])
    alike, width = prior(replace(WORLD, means="alike"), size)
    assert np.all(alike == MEAN_NS)
    assert np.all(width == 0)
    slow_mice, _ = prior(replace(WORLD, means="slow mice"), size)
    assert slow_mice[0] / slow_mice[-1] == pytest.approx(10, rel=0.05)
    assert np.ptp(prior(replace(WORLD, means="x10"), size)[0]) == 0


def test_delays_without_a_variance_have_no_oracle() -> None:
    assert variation(WORLD) == pytest.approx(0.25, rel=0.02)
    with pytest.raises(ParameterError):
        variation(replace(WORLD, delays="pareto 1.5"))
    with pytest.raises(ParameterError):
        variation(replace(WORLD, copied=0.1))
