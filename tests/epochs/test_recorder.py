"""The recorder closes epochs when they are full or over, and loses nothing at the edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as own
from sojourn.core.errors import ParameterError
from sojourn.core.keys import ProcessKey
from sojourn.epochs.epoch import merge_epochs
from sojourn.epochs.recorder import Recorder, every
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.lda import Lda, LdaParameters


def small_buckets(sequence: int) -> BucketArray:
    return BucketArray(BucketArrayParameters(buckets=3, per_instance=2, bits=6, salt=sequence))


@given(st.lists(own.measurements(30, high=63), max_size=4))
def test_full_sketches_become_epochs_and_nothing_is_lost(batches) -> None:
    recorder = Recorder("n", "disk_io", small_buckets)
    closed = [epoch for rows in batches for epoch in recorder.record(own.measurement_batch(rows))]
    closed += recorder.finish()
    rows = [row for batch in batches for row in batch]
    assert sum(epoch.recorded for epoch in closed) == len(rows)
    assert sum(int(epoch.sketch.column("sum").sum()) for epoch in closed) == sum(value for _, value, _ in rows)
    assert [epoch.sequence for epoch in closed] == list(range(len(closed)))
    assert [epoch.parameters.salt for epoch in closed] == list(range(len(closed)))


def lda(_: int) -> Lda:
    return Lda(LdaParameters(rows=4))


def test_epochs_end_at_multiples_of_their_length() -> None:
    recorder = Recorder("n", "eth0", lda, slot_of=every(100))
    rows = [(0, i, time_ns, 0) for i, time_ns in enumerate([10, 99, 100, 150, 90, 420])]
    closed = [*recorder.record(own.packet_batch(rows)), *recorder.finish()]
    assert [(e.first_ns, e.last_ns, e.recorded) for e in closed] == [(10, 99, 3), (100, 150, 2), (420, 420, 1)]
    whole = Lda(LdaParameters(rows=4))
    whole.record_batch(own.packet_batch(rows))
    assert merge_epochs(closed) == whole


def test_a_late_packet_joins_its_slot_or_gets_an_epoch_of_its_own() -> None:
    recorder = Recorder("n", "eth0", lda, slot_of=every(100))
    closed = []
    for time_ns in (50, 150, 60, 250, 70):
        closed += recorder.record(own.packet_batch([(0, time_ns, time_ns, 0)]))
    closed += recorder.finish()
    assert [(e.first_ns, e.last_ns) for e in closed] == [(50, 60), (70, 70), (150, 150), (250, 250)]


def test_slots_that_are_over_close_without_a_later_packet() -> None:
    recorder = Recorder("n", "eth0", lda, slot_of=every(100))
    rows = [(0, i, time_ns, 0) for i, time_ns in enumerate([10, 99, 150])]
    assert recorder.record(own.packet_batch(rows)) == []
    assert recorder.close_before(99) == []
    assert [(e.first_ns, e.last_ns) for e in recorder.close_before(199)] == [(10, 99)]
    assert [(e.first_ns, e.last_ns) for e in recorder.close_before(200)] == [(150, 150)]
    assert recorder.finish() == []
    whole = Recorder("n", "eth0", lda)
    assert [*whole.record(own.packet_batch(rows)), *whole.close_before(1000)] == []
    assert [epoch.recorded for epoch in whole.finish()] == [3]


class Seen:
    """Every instance as a process whose pid is its id."""

    def __init__(self) -> None:
        self._ids: dict[int, None] = {}

    def see(self, batch) -> None:
        self._ids.update(dict.fromkeys(batch.instance_id.tolist()))

    def keys(self) -> tuple[ProcessKey, ...]:
        return tuple(ProcessKey("p", pid) for pid in self._ids)


def test_each_epoch_reports_the_keys_of_its_own_measurements() -> None:
    recorder = Recorder("n", "disk_io", small_buckets, keys_for=Seen)
    rows = [(1, 60, 0), (2, 1, 0), (1, 60, 0), (3, 60, 0)] * 3
    closed = [*recorder.record(own.measurement_batch(rows)), *recorder.finish()]
    assert len(closed) > 1
    start = 0
    for epoch in closed:
        seen = dict.fromkeys(instance for instance, _, _ in rows[start : start + epoch.recorded])
        assert epoch.keys == tuple(ProcessKey("p", pid) for pid in seen)
        start += epoch.recorded


def test_without_a_collector_no_keys_are_reported() -> None:
    assert [epoch.keys for epoch in Recorder("n", "disk_io", small_buckets).finish()] == [None]
    assert [epoch.keys for epoch in Recorder("n", "disk_io", small_buckets, keys_for=Seen).finish()] == [()]


def test_a_measurement_that_never_fits_is_an_error_not_a_loop() -> None:
    recorder = Recorder("n", "disk_io", small_buckets)
    with pytest.raises(ParameterError, match="does not fit even an empty sketch"):
        recorder.record(own.measurement_batch([(1, 5, 0), (1, 64, 0)]))


def test_a_length_of_nothing_is_refused() -> None:
    with pytest.raises(ParameterError, match="use a positive length"):
        every(0)
