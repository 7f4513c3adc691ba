"""The recorder closes epochs when they are full or over, and loses nothing at the edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sojourn
import strategies as own
from sojourn.core.errors import ParameterError, UsageError
from sojourn.core.keys import ProcessKey
from sojourn.epochs.epoch import merge_epochs
from sojourn.segments.record import KeyReports, PointRecorder, every
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.sketches.lda import Lda, LdaParameters


def small_buckets(**more: object) -> PointRecorder:
    parameters = BucketArrayParameters(buckets=3, per_instance=2, bits=6)
    return PointRecorder("n", "disk_io", parameters, salt_of=lambda sequence: sequence, **more)  # type: ignore[arg-type]


@given(st.lists(own.measurements(30, high=63), max_size=4))
def test_full_sketches_become_epochs_and_nothing_is_lost(batches) -> None:
    recorder = small_buckets()
    closed = [epoch for rows in batches for epoch in recorder.record(own.measurement_batch(rows))]
    closed += recorder.finish()
    rows = [row for batch in batches for row in batch]
    assert sum(epoch.recorded for epoch in closed) == len(rows)
    assert sum(int(epoch.sketch.column("sum").sum()) for epoch in closed) == sum(value for _, value, _ in rows)
    assert [epoch.sequence for epoch in closed] == list(range(len(closed)))
    assert [epoch.parameters.salt for epoch in closed] == list(range(len(closed)))


LDA = LdaParameters(rows=4)


def test_epochs_end_at_multiples_of_their_length() -> None:
    recorder = PointRecorder("n", "eth0", LDA, slot_of=every(100))
    rows = [(0, i, time_ns, 0) for i, time_ns in enumerate([10, 99, 100, 150, 90, 420])]
    closed = [*recorder.record(own.packet_batch(rows)), *recorder.finish()]
    assert [(e.first_ns, e.last_ns, e.recorded) for e in closed] == [(10, 99, 3), (100, 150, 2), (420, 420, 1)]
    whole = Lda(LdaParameters(rows=4))
    whole.record_batch(own.packet_batch(rows))
    assert merge_epochs(closed) == whole


def test_a_late_packet_joins_its_slot_or_gets_an_epoch_of_its_own() -> None:
    recorder = PointRecorder("n", "eth0", LDA, slot_of=every(100))
    closed = []
    for time_ns in (50, 150, 60, 250, 70):
        closed += recorder.record(own.packet_batch([(0, time_ns, time_ns, 0)]))
    closed += recorder.finish()
    assert [(e.first_ns, e.last_ns) for e in closed] == [(50, 60), (70, 70), (150, 150), (250, 250)]


def test_slots_that_are_over_close_without_a_later_packet() -> None:
    recorder = PointRecorder("n", "eth0", LDA, slot_of=every(100))
    rows = [(0, i, time_ns, 0) for i, time_ns in enumerate([10, 99, 150])]
    assert recorder.record(own.packet_batch(rows)) == []
    assert recorder.close_before(99) == []
    assert [(e.first_ns, e.last_ns) for e in recorder.close_before(199)] == [(10, 99)]
    assert [(e.first_ns, e.last_ns) for e in recorder.close_before(200)] == [(150, 150)]
    assert recorder.finish() == []
    whole = PointRecorder("n", "eth0", LDA)
    assert [*whole.record(own.packet_batch(rows)), *whole.close_before(1000)] == []
    assert [epoch.recorded for epoch in whole.finish()] == [3]


def test_each_epoch_reports_the_keys_of_its_own_measurements() -> None:
    rows = [(1, 60, 0), (2, 1, 0), (1, 60, 0), (3, 60, 0)] * 3
    reports = KeyReports(lambda at: [ProcessKey("p", rows[row][0]) for row in at.tolist()], flows=10)
    recorder = small_buckets(keys=reports)
    closed = recorder.record(own.measurement_batch(rows))
    open_now = recorder.snapshots()
    closed += recorder.finish()
    assert len(closed) > 1
    assert open_now[-1].keys == closed[-1].keys
    start = 0
    for epoch in closed:
        seen = dict.fromkeys(instance for instance, _, _ in rows[start : start + epoch.recorded])
        assert epoch.keys == tuple(ProcessKey("p", pid) for pid in seen)
        start += epoch.recorded
    assert reports.reported == sum(len(epoch.keys or ()) for epoch in closed)


def test_keys_are_read_of_the_rows_that_an_epoch_took_wherever_they_are_in_the_batch() -> None:
    times = [10, 150, 20, 160, 30]
    batch = own.packet_batch([(flow, flow, time_ns, 0) for flow, time_ns in enumerate(times)])
    reports = KeyReports(lambda at: [ProcessKey("p", row) for row in at.tolist()], flows=10)
    recorder = PointRecorder("n", "eth0", LDA, slot_of=every(100), keys=reports)
    closed = [*recorder.record(batch), *recorder.finish()]
    assert [[key.pid for key in epoch.keys or () if isinstance(key, ProcessKey)] for epoch in closed] == [
        [0, 2, 4],
        [1, 3],
    ]


def test_instances_without_a_name_are_not_reported() -> None:
    recorder = small_buckets(keys=KeyReports(lambda at: [None] * len(at), flows=10))
    assert recorder.record(own.measurement_batch([(1, 1, 0)])) == []
    assert [epoch.keys for epoch in recorder.finish()] == [()]


def test_without_a_reporter_no_keys_are_reported() -> None:
    assert [epoch.keys for epoch in small_buckets().finish()] == [None]
    nothing = KeyReports(lambda at: [None] * len(at), flows=10)
    assert [epoch.keys for epoch in small_buckets(keys=nothing).finish()] == [()]


def test_a_measurement_that_never_fits_is_an_error_not_a_loop() -> None:
    recorder = small_buckets()
    with pytest.raises(ParameterError, match="does not fit even an empty sketch"):
        recorder.record(own.measurement_batch([(1, 5, 0), (1, 64, 0)]))


def test_a_length_of_nothing_is_refused() -> None:
    with pytest.raises(ParameterError, match="use a positive length"):
        every(0)


def test_epochs_shorter_than_a_millisecond_are_refused_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match=r"too short; use 1\.00 ms or more"):
        sojourn.record("nowhere.pcap", interval="1ns")
