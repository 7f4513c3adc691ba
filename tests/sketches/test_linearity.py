"""Merging is commutative, associative and blind to order, and undone by subtracting (but for samples)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as own
from sojourn.core.errors import MismatchError, SketchFullError, UsageError
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.lda import Lda, LdaParameters
from sojourn.sketches.sds import Sds, SdsParameters
from sojourn.sketches.sketch import new_sketch

SUMMED_KINDS = [own.lda_parameters, own.lds_parameters, own.counter_vector_parameters]
PACKET_KINDS = [*SUMMED_KINDS, own.sample_parameters]


@st.composite
def streams(draw, count: int, packet_kinds=PACKET_KINDS):
    """A sketch's parameters and that many streams for it, as batches."""
    kind = draw(st.sampled_from([*packet_kinds, own.sds_parameters, "buckets"]))
    parameters = draw(own.bucket_array_parameters(("sequence",)) if kind == "buckets" else kind())
    if kind in PACKET_KINDS:
        rows = [draw(own.packets(20)) for _ in range(count)]
        return parameters, rows, own.packet_batch
    rows = [draw(own.measurements(20)) for _ in range(count)]
    return parameters, rows, own.measurement_batch


def recorded(parameters, batch):
    sketch = new_sketch(parameters)
    assert sketch.record_batch(batch) == len(batch)
    return sketch


@given(streams(2))
def test_recording_both_equals_merging_and_merging_commutes(world) -> None:
    parameters, (a, b), batch = world
    left, right = recorded(parameters, batch(a)), recorded(parameters, batch(b))
    assert left.merge(right) == recorded(parameters, batch(a + b))
    assert left.merge(right) == right.merge(left)


@given(streams(3))
def test_merging_associates(world) -> None:
    parameters, rows, batch = world
    a, b, c = (recorded(parameters, batch(r)) for r in rows)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))


@given(streams(2, SUMMED_KINDS))
def test_subtracting_undoes_merging(world) -> None:
    parameters, rows, batch = world
    a, b = (recorded(parameters, batch(r)) for r in rows)
    assert a.merge(b).subtract(b) == a


@given(streams(1), st.randoms(use_true_random=False))
def test_the_order_of_packets_does_not_matter(world, random) -> None:
    parameters, (rows,), batch = world
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert recorded(parameters, batch(rows)) == recorded(parameters, batch(shuffled))


@given(own.bucket_array_parameters(), own.measurements(30))
def test_every_spreading_keeps_the_total(parameters, rows) -> None:
    sketch = recorded(parameters, own.measurement_batch(rows))
    total = sum(value for _, value, _ in rows)
    assert sum(sketch.column("sum").tolist()) == total


@given(streams(1))
def test_reset_forgets_and_copy_does_not_share(world) -> None:
    parameters, (rows,), batch = world
    sketch = recorded(parameters, batch(rows))
    copied = sketch.copy()
    sketch.reset()
    assert sketch == new_sketch(parameters)
    assert sketch.first_ns is None
    assert copied == recorded(parameters, batch(rows))


def test_merging_different_parameters_shows_both_sides() -> None:
    with pytest.raises(MismatchError, match=r"salt 0 and 9, rows 4 and 5.*same parameters"):
        Lda(LdaParameters(rows=4)).merge(Lda(LdaParameters(rows=5, salt=9)))


def test_merging_different_kinds_is_refused() -> None:
    with pytest.raises(MismatchError, match="kind lda cannot be combined with one of kind sds"):
        Lda(LdaParameters(rows=4)).merge(Sds(SdsParameters(rows=1, columns=4)))


def test_a_merge_that_would_overflow_is_refused_and_changes_nothing() -> None:
    parameters = BucketArrayParameters(buckets=1, per_instance=1, bits=8)
    a, b = BucketArray(parameters), BucketArray(parameters)
    a.record(1, 200, 0)
    b.record(1, 100, 0)
    with pytest.raises(SketchFullError, match=r"sum of cell 0 would leave its 8 bits \(200 and 100\)"):
        a.merge(b)
    assert a.column("sum").tolist() == [200]


def test_subtracting_what_was_never_merged_is_refused() -> None:
    parameters = LdaParameters(rows=2)
    a, b = Lda(parameters), Lda(parameters)
    b.record(5, 10**18)
    with pytest.raises(SketchFullError, match="subtract only what was merged"):
        a.subtract(b)


def test_a_snapshot_cannot_record() -> None:
    snapshot = Lda(LdaParameters(rows=2)).snapshot()
    with pytest.raises(UsageError, match="snapshot cannot record"):
        snapshot.record(1, 1)


def test_the_time_frame_spans_all_measurements() -> None:
    parameters = LdaParameters(rows=2)
    a, b = Lda(parameters), Lda(parameters)
    a.record_batch(own.packet_batch([(0, 1, 50, 0), (0, 2, 20, 0)]))
    b.record(3, 90)
    merged = a.merge(b)
    assert (merged.first_ns, merged.last_ns, merged.recorded) == (20, 90, 3)
    assert b.subtract(b).recorded == 0
