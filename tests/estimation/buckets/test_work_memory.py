"""Stacks of epochs: every epoch is in one, none is larger than is kept at a time; triangles keep all products."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.estimation.buckets import work_memory
from sojourn.estimation.buckets.work_memory import StackedRows, stacked


@pytest.mark.parametrize("sizes", [[20] * 5, [20, 64] * 9, [20] * 300 + [64] * 3 + [20] * 200])
def test_every_epoch_is_in_one_stack_of_its_size(sizes: list[int]) -> None:
    stacks = stacked(sizes)
    assert sorted(np.concatenate(stacks).tolist()) == list(range(len(sizes)))
    assert all(len({sizes[place] for place in stack}) == 1 for stack in stacks)
    assert max(map(len, stacks)) <= work_memory.MOST_STACKED
    assert all((np.diff(stack) > 0).all() for stack in stacks)


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_stacked_rows_have_the_products_of_all_rows(rows: int) -> None:
    """Columns whose lengths differ by ten decades: the products of triangles, not of squares, keep the small ones."""
    random = np.random.default_rng(rows)
    parts = random.normal(size=(9, rows, 6)) * np.geomspace(1e-5, 1e5, 6)
    found, every = StackedRows(6), parts.reshape(-1, 6)
    for part in parts:
        found.add(part)
    assert len(found.rows) <= max(len(parts[0]), 6)
    scale = np.linalg.norm(every, axis=0)
    assert np.allclose(found.rows.T @ found.rows / np.outer(scale, scale), every.T @ every / np.outer(scale, scale))


def test_a_single_stack_is_left_as_it_is() -> None:
    rows = np.arange(60.0).reshape(20, 3)
    found = StackedRows(3)
    found.add(rows)
    assert found.rows is rows
