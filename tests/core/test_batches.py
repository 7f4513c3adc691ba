"""Batches are checked when made and cheap to cut."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.arrays import MeasurementBatch, PacketBatch
from sojourn.core.errors import MismatchError, ParameterError


def test_columns_have_exact_types() -> None:
    batch = PacketBatch.of([1, 2], [2**64 - 1, 0], [-5, 7])
    assert [c.dtype for c in batch.columns().values()] == [np.uint64, np.uint64, np.int64, np.int64]
    assert batch.packet_id[0] == 2**64 - 1


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(MismatchError, match="packet_id has 1 rows, the first column 2"):
        PacketBatch.of([1, 2], [1], [1, 2])


@pytest.mark.parametrize("values", [[1.5], ["a"], [-1], [2**64]])
def test_values_that_would_change_are_refused(values: list[object]) -> None:
    with pytest.raises(ParameterError, match="flow_id"):
        PacketBatch.of(values, [1], [1])


def test_two_dimensional_columns_are_refused() -> None:
    with pytest.raises(ParameterError, match="2 dimensions"):
        PacketBatch.of(np.zeros((2, 2), np.uint64), [1, 2], [1, 2])


def test_a_slice_is_a_view_and_concatenation_undoes_it() -> None:
    batch = MeasurementBatch.of([1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 2])
    front, back = batch.select(slice(0, 1)), batch.select(slice(1, None))
    assert np.shares_memory(front.value, batch.value)
    joined = MeasurementBatch.concatenate([front, back])
    assert joined.value.tolist() == [4, 5, 6]
    assert joined.sequence.tolist() == [1, 1, 2]


def test_empty_batches_exist() -> None:
    assert len(PacketBatch.of([], [], [])) == 0
    assert len(MeasurementBatch.concatenate([])) == 0
