"""The recorder closes epochs when they are full or over, and loses nothing at the edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as own
from sojourn.core.errors import ParameterError
from sojourn.epochs.epoch import merge_epochs
from sojourn.epochs.recorder import Recorder
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.lda import Lda, LdaParameters


def small_buckets(sequence: int) -> BucketArray:
    return BucketArray(BucketArrayParameters(buckets=3, per_instance=2, bits=6, salt=sequence))


@given(st.lists(own.measurements(30, high=63), max_size=4))
def test_full_sketches_become_epochs_and_nothing_is_lost(batches) -> None:
    recorder = Recorder("n", "disk_io", small_buckets)
    closed = [epoch for rows in batches for epoch in recorder.record(own.measurement_batch(rows))]
    closed.append(recorder.close())
    rows = [row for batch in batches for row in batch]
    assert sum(epoch.recorded for epoch in closed) == len(rows)
    assert sum(int(epoch.sketch.column("sum").sum()) for epoch in closed) == sum(value for _, value, _ in rows)
    assert [epoch.sequence for epoch in closed] == list(range(len(closed)))
    assert [epoch.parameters.salt for epoch in closed] == list(range(len(closed)))


def test_epochs_end_at_multiples_of_their_length() -> None:
    recorder = Recorder("n", "eth0", lambda _: Lda(LdaParameters(rows=4)), length_ns=100)
    rows = [(0, i, time_ns, 0) for i, time_ns in enumerate([10, 99, 100, 150, 90, 420])]
    closed = [*recorder.record(own.packet_batch(rows)), recorder.close()]
    assert [(e.first_ns, e.last_ns, e.recorded) for e in closed] == [(10, 99, 3), (100, 150, 2), (420, 420, 1)]
    whole = Lda(LdaParameters(rows=4))
    whole.record_batch(own.packet_batch(rows))
    assert merge_epochs(closed) == whole


def test_a_measurement_that_never_fits_is_an_error_not_a_loop() -> None:
    recorder = Recorder("n", "disk_io", small_buckets)
    with pytest.raises(ParameterError, match="does not fit even an empty sketch"):
        recorder.record(own.measurement_batch([(1, 5, 0), (1, 64, 0)]))


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ParameterError, match="negative"):
        Recorder("n", "s", small_buckets, length_ns=-1)
