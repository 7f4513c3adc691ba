"""Flow sizes from shared count cells: bounds that hold, exact above the threshold, close and calibrated below."""

from __future__ import annotations

import numpy as np
import pytest

from paper_worlds import traffic
from sojourn.core.errors import ParameterError
from sojourn.estimation.differences import cell_difference
from sojourn.estimation.joint.counts import decode_sizes, size_bounds
from sojourn.estimation.joint.decoder import decode_counts
from sojourn.estimation.joint.incidence import Incidence, counter_incidence, lds_incidence
from sojourn.estimation.joint.segments import stacked
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters
from sojourn.sketches.lds import Lds, LdsParameters
from worlds import recorded

FLOWS = 4000


@pytest.fixture(scope="module")
def world():
    return traffic(71, FLOWS)


def recorded_cells(world, **parameters):
    sketch = Lds(LdsParameters(**parameters))
    sketch.record_batch(world.sender)
    return sketch.column("count"), lds_incidence(sketch.parameters, world.flow_id)


def test_the_matrix_is_where_the_sketch_records(world) -> None:
    count, incidence = recorded_cells(world, rows=3, columns=700)
    assert np.array_equal(incidence.matrix().T @ world.sent, count)
    assert np.array_equal(incidence.spread(world.sent.astype(float)), count)


def test_spread_rows_own_neighbouring_cells_that_wrap(world) -> None:
    count, incidence = recorded_cells(world, rows=2, columns=301, spread=7, shares=(1.0, 0.5))
    assert np.all(np.diff(incidence.cell[:, :7], axis=1) % 301 == 1)
    assert incidence.share.sum(axis=1) == pytest.approx(1.5)
    row_sums = incidence.matrix().T @ world.sent
    assert row_sums.reshape(2, 301).sum(axis=1) == pytest.approx([world.sent.sum(), world.sent.sum() / 2])
    assert set(np.flatnonzero(count)) <= set(np.flatnonzero(incidence.covered()))


def test_counters_that_a_flow_owns_twice_are_one_edge() -> None:
    parameters = CounterVectorParameters(counters=10, per_flow=8, count_bits=20)
    incidence = counter_incidence(parameters, np.arange(50, dtype=np.uint64))
    assert (incidence.cell < 0).any()
    for cell, share in zip(incidence.cell, incidence.share, strict=True):
        kept = cell[cell >= 0]
        assert len(set(kept)) == len(kept)
        assert share[cell < 0].sum() == 0
        assert share.sum() == pytest.approx(1)


def test_too_many_edges_are_refused() -> None:
    parameters = LdsParameters(rows=32, columns=2**20, spread=2**20)
    with pytest.raises(ParameterError, match="too many to decode"):
        lds_incidence(parameters, np.arange(1000, dtype=np.uint64))


def modelled_bounds(cells_of_flow, count):
    """Peeling as in its definition, from scratch each time."""
    low = [0] * len(cells_of_flow)
    high = [min(count[c] for c in cells) for cells in cells_of_flow]
    for _ in range(100):
        for f, cells in enumerate(cells_of_flow):
            for c in cells:
                others = [g for g, theirs in enumerate(cells_of_flow) if c in theirs and g != f]
                high[f] = min(high[f], count[c] - sum(low[g] for g in others))
                low[f] = max(low[f], count[c] - sum(high[g] for g in others))
    return low, high


def test_bounds_are_those_of_the_definition() -> None:
    random = np.random.default_rng(5)
    for _ in range(10):
        cell = random.integers(0, 8, (9, 3)) + np.arange(3) * 8
        size = random.integers(1, 30, 9)
        incidence = Incidence(cell, np.ones(cell.shape), 3, 24)
        count = np.rint(incidence.spread(size.astype(float))).astype(np.int64)
        bounds = size_bounds(incidence, count)
        low, high = modelled_bounds([set(row) for row in cell.tolist()], count.tolist())
        assert bounds.consistent
        assert bounds.low.tolist() == low
        assert bounds.high.tolist() == high


@pytest.mark.parametrize("cells_per_flow", [1.0, 1.4])
def test_about_one_cell_per_flow_decodes_every_size_exactly(world, cells_per_flow: float) -> None:
    count, incidence = recorded_cells(world, rows=4, columns=round(FLOWS * cells_per_flow / 4), salt=9)
    sizes = decode_sizes(incidence, count)
    assert sizes.exact.mean() > 0.99
    assert np.array_equal(np.rint(sizes.mean), world.sent)
    assert np.array_equal(sizes.mean[sizes.exact], world.sent[sizes.exact])


@pytest.mark.parametrize(
    "parameters",
    [
        {"columns": FLOWS // 8},
        {"columns": FLOWS // 16},
        {"columns": 2 * FLOWS, "spread": 8},
        {"columns": 2 * FLOWS, "spread": 4, "shares": (1.0, 0.5, 0.25, 0.125)},
    ],
    ids=["half", "quarter", "spread", "sampled"],
)
def test_fewer_cells_still_beat_count_min_and_know_their_error(world, parameters) -> None:
    count, incidence = recorded_cells(world, rows=4, salt=10, **parameters)
    sizes = decode_sizes(incidence, count)
    bounds = size_bounds(incidence, count)
    assert np.all(world.sent <= bounds.high)
    large = world.sent >= 100
    error = np.abs(sizes.mean / world.sent - 1)[large]
    assert np.median(error) < 0.35 * np.median(bounds.high[large] / world.sent[large] - 1)
    inside = np.abs(sizes.mean - world.sent) <= 1.96 * np.sqrt(sizes.variance) + 0.5
    assert inside.mean() >= 0.9


def test_losses_are_exact_with_two_cells_per_flow_at_any_loss() -> None:
    for loss in (0.01, 0.2):
        world = traffic(72, FLOWS, loss=loss)
        pair = recorded(world, lambda: Lds(LdsParameters(rows=4, columns=FLOWS // 2)))
        counts = decode_counts(lds_incidence(pair[0].parameters, world.flow_id), cell_difference(*pair))
        assert np.array_equal(counts.lost, world.lost)
        assert np.array_equal(counts.sent.mean, world.sent)


def test_one_cell_per_flow_in_a_small_world_is_settled_by_rank() -> None:
    """Peeling stops at a core; its equations have one solution."""
    world = traffic(73, 200)
    count, incidence = recorded_cells(world, rows=4, columns=60, salt=2)
    assert not size_bounds(incidence, count).exact.all()
    assert np.array_equal(decode_sizes(incidence, count).mean, world.sent)


def test_a_list_that_misses_flows_contradicts_the_cells(world) -> None:
    count, incidence = recorded_cells(world, rows=4, columns=FLOWS // 2)
    half = incidence.of(np.arange(FLOWS) % 2 == 0)
    bounds = size_bounds(half, count)
    assert not bounds.consistent
    assert np.all(bounds.high >= world.sent[::2])


def test_a_counter_vector_gives_sizes_too(world) -> None:
    sketch = CounterVector(CounterVectorParameters(counters=FLOWS, per_flow=4, count_bits=24))
    sketch.record_batch(world.sender)
    sizes = decode_sizes(counter_incidence(sketch.parameters, world.flow_id), sketch.column("count"))
    large = world.sent >= 500
    assert np.median(np.abs(sizes.mean / world.sent - 1)[large]) < 0.01
    parts = np.bincount(
        counter_incidence(sketch.parameters, world.flow_id).cell[sizes.part_mean > 0],
        sizes.part_mean[sizes.part_mean > 0],
        FLOWS,
    )
    assert parts.sum() == pytest.approx(world.sent.sum(), rel=0.02)


def test_flows_that_lost_nothing_have_no_part_of_what_their_counters_miss() -> None:
    """Cells of whole flows show who lost nothing; counters that such flows share with others are spoiled by these."""
    random = np.random.default_rng(9)
    flow_id = random.integers(0, 2**64, FLOWS, dtype=np.uint64)
    cells = lds_incidence(LdsParameters(rows=2, columns=2 * FLOWS), flow_id)
    counters = counter_incidence(CounterVectorParameters(counters=FLOWS, per_flow=4, count_bits=24), flow_id)
    lost = random.poisson(0.05, FLOWS)
    chosen = random.integers(0, 4, FLOWS)
    in_counters = np.bincount(counters.cell[np.arange(FLOWS), chosen], lost, FLOWS)
    count = np.concatenate([np.rint(cells.spread(lost.astype(float))), in_counters]).astype(np.int64)
    incidence = stacked([cells, counters])
    sizes = decode_sizes(incidence, count)
    none = size_bounds(incidence, count).high == 0
    spoiled = (count[incidence.cell] > 0) & none[:, None]
    assert spoiled.sum() > 100
    assert np.all(sizes.part_mean[none] == 0)
    assert np.all(sizes.part_variance[none] == 0)
    assert np.array_equal(sizes.mean, lost)
