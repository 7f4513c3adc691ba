"""Bounds that bound each other, and whole numbers that add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.estimation.packets.evidence import GroupTotals, Heard, joined, rounded_within, squeezed


def test_bounds_of_flows_that_add_up_bound_each_other() -> None:
    group = np.array([0, 0, 0, 1])
    low, high = squeezed(np.array([1.0, 2.0, 0.0, 0.0]), np.array([9.0, 9.0, 4.0, 9.0]), group, np.array([6.0, 7.0]))
    assert low.tolist() == [1, 2, 0, 7]
    assert high.tolist() == [4, 5, 3, 7]


def test_bounds_that_contradict_a_total_are_left_alone() -> None:
    low, high = squeezed(np.array([5.0, 5.0]), np.array([6.0, 6.0]), np.zeros(2, np.int64), np.array([3.0]))
    assert (low.tolist(), high.tolist()) == ([5, 5], [6, 6])


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.floats(0.01, 100), st.integers(0, 20), st.integers(0, 3)),
        min_size=1,
        max_size=30,
    )
)
def test_whole_numbers_add_up_within_their_bounds(flows: list[tuple[float, float, int, int]]) -> None:
    value, spread, width, group = (np.array(column) for column in zip(*flows, strict=True))
    low, high = np.floor(value) - np.minimum(width, np.floor(value)), np.floor(value) + width
    least, most = (np.bincount(group, bound, 4) for bound in (low, high))
    total = np.rint(np.clip(np.bincount(group, value, 4), least, most))
    found = rounded_within(value, spread.astype(float), (low, high), group, total)
    assert np.array_equal(np.bincount(group, found, 4), total)
    assert (found == np.rint(found)).all()
    assert ((low <= found) & (found <= high)).all()


def test_largest_remainders_are_rounded_up() -> None:
    value = np.array([0.2, 0.7, 3.1])
    bounds = np.zeros(3), np.full(3, 9.0)
    assert rounded_within(value, np.ones(3), bounds, np.zeros(3, np.int64), np.array([4.0])).tolist() == [0, 1, 3]


def test_a_group_tells_a_flow_what_the_others_leave() -> None:
    heard = Heard.nothing(2, 100.0)
    groups = GroupTotals(np.array([30.0]), np.zeros(1))
    value, precision = joined(heard, np.zeros(2, np.int64), groups, np.array([20.0, 5.0]), np.array([9.0, 4.0]))
    assert value.tolist() == pytest.approx([25, 10])
    assert (1 / precision).tolist() == pytest.approx([4, 9])


def test_a_difference_of_exact_numbers_is_exact() -> None:
    found = Heard.exactly(np.array([5.0])).less(Heard.exactly(np.array([7.0])))
    assert (found.low[0], found.high[0]) == (-2, -2)
