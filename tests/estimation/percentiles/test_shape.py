"""A flow's distribution, mixed of the shape of all and of its own packets, inverted: as by counting."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.estimation.percentiles.shape import Mixed, SampledDelays, Shape, places_of, shape_of


def plain(shape: Shape, mixed: Mixed, own: np.ndarray, expected: float) -> float:
    """The least delay of a fine grid up to which the expected part lies."""
    grid = np.unique(np.concatenate([np.linspace(0.0, 20.0, 200_001), own]))
    part = mixed.shared[0, 0] * shape.below((grid - mixed.mean[0]) / mixed.scale[0])
    part += mixed.own[0, 0] * np.searchsorted(own, grid, side="right")
    return float(grid[np.argmax(part >= expected)])


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("power", [0.0, 2.0])
def test_levels_are_where_counting_finds_them(count: int, power: float) -> None:
    random = np.random.default_rng([count, int(power)])
    shape = shape_of(random.gamma(4.0, 0.25, 500) - 1, random.uniform(0.5, 1.0, 500), power)
    own = np.sort(random.gamma(4.0, 1.0, count))
    delays = SampledDelays(np.array([0, count]), own, np.zeros(count, np.int64), np.array([False]))
    mean = np.array([4.0])
    each = 0.5 / max(count, 1) if count else 0.0
    mixed = Mixed(mean, shape.scale(mean), np.array([[1 - each * count]]), np.array([[each]]))
    levels = np.array([0.05, 0.3, 0.5, 0.77, 0.95])
    found = places_of(delays, np.array([0]), mixed, shape, levels[None, None, :])[0, 0]
    assert found == pytest.approx([plain(shape, mixed, own, level) for level in levels], abs=2e-4)


def test_beyond_every_packet_nothing_is_known() -> None:
    shape = shape_of(np.linspace(-0.5, 1.0, 10), np.ones(10), 2.0)
    nothing = SampledDelays(np.array([0, 0]), np.empty(0), np.empty(0, np.int64), np.array([False]))
    mixed = Mixed(np.array([2.0]), np.array([2.0]), np.ones((1, 1)), np.zeros((1, 1)))
    found = places_of(nothing, np.array([0]), mixed, shape, np.array([[[0.001, 0.5, 0.999]]]))[0, 0]
    assert found[0] == -np.inf
    assert found[1] == pytest.approx(2.0 + 2.0 * 0.25)
    assert found[2] == np.inf
