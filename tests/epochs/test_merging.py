"""Merging epochs: counts stay, widths grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as own
from sojourn.core.errors import MismatchError, SketchFullError
from sojourn.core.keys import ProcessKey
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import can_merge, merged_encoded, merged_epoch, merging_key
from sojourn.epochs.wire import EncodedEpoch, encode, encoded
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

PARAMETERS = BucketArrayParameters(buckets=6, per_instance=2, bits=8, count_bits=3, spreading="sequence")


def epoch(sequence: int, values: list[int], parameters: BucketArrayParameters = PARAMETERS, keys=()) -> Epoch:
    sketch = BucketArray(parameters)
    for i, value in enumerate(values):
        sketch.record(i % 3, value, 1000 * sequence + i, i)
    return Epoch("n", "s", sequence, sketch, keys)


VALUES = st.lists(st.integers(0, 40), max_size=6)


@given(VALUES, VALUES)
def test_nothing_is_lost_whatever_the_widths(one: list[int], other: list[int]) -> None:
    merged = merged_epoch(epoch(3, one), epoch(9, other))
    assert merged.sketch.column("sum").sum() == sum(one) + sum(other)
    assert merged.sketch.column("count").sum() == len(one) + len(other) == merged.recorded
    assert merged.sequence == 9


def test_widths_grow_only_where_needed() -> None:
    assert merged_epoch(epoch(0, [1]), epoch(1, [1])).parameters == PARAMETERS
    full = [200, 0, 0]
    wide = merged_epoch(epoch(0, full), epoch(1, full))
    assert wide.parameters == replace(PARAMETERS, bits=9, count_bits=4)
    assert can_merge(wide, epoch(2, full))
    assert merged_epoch(epoch(2, full), wide).sketch.column("sum").max() == 600


def test_different_salts_and_streams_do_not_merge() -> None:
    salted = epoch(1, [1], replace(PARAMETERS, salt=1))
    assert not can_merge(epoch(0, [1]), salted)
    assert not can_merge(epoch(0, [1]), replace(epoch(1, [1]), stream="t"))
    assert not can_merge(epoch(0, [1]), epoch(1, [1], replace(PARAMETERS, count_bits=0)))


def test_keys_are_those_of_both_and_unknown_if_one_did_not_say() -> None:
    a, b, c = (ProcessKey("p", i) for i in range(3))
    assert merged_epoch(epoch(0, [1], keys=(a, b)), epoch(1, [1], keys=(b, c))).keys == (a, b, c)
    assert merged_epoch(epoch(0, [1], keys=(a,)), epoch(1, [1], keys=None)).keys is None


def test_frames_are_joined() -> None:
    merged = merged_epoch(epoch(0, [1, 1]), epoch(7, [1]))
    assert (merged.first_ns, merged.last_ns) == (0, 7000)


def test_epochs_have_one_key_exactly_if_they_can_be_merged() -> None:
    changes = ({}, {"bits": 12}, {"salt": 1}, {"count_bits": 0}, {"buckets": 7})
    epochs = [epoch(i, [1], replace(PARAMETERS, **change)) for i, change in enumerate(changes)]
    epochs.append(replace(epochs[0], stream="t"))
    for one in epochs:
        for other in epochs:
            assert (merging_key(EncodedEpoch.of(one)) == merging_key(EncodedEpoch.of(other))) == can_merge(one, other)


def recorded_until_full(sequence: int, parameters: BucketArrayParameters, rows, keys) -> Epoch:
    sketch = BucketArray(parameters)
    sketch.record_batch(own.measurement_batch(rows))
    listed = None if keys is None else tuple(ProcessKey("p", i) for i in keys)
    return Epoch("n", "s", sequence, sketch, listed)


MANY = own.measurements(60, low=-3000, high=30_000)
LISTED = st.none() | st.lists(st.integers(0, 5), max_size=4, unique=True)


@given(own.any_bucket_array(), st.integers(1, 64), st.integers(1, 64), MANY, MANY, LISTED, LISTED)
def test_bucket_arrays_merge_as_they_are_encoded_to_the_same_bytes(
    parameters, bits: int, count_bits: int, one, other, keys, others
) -> None:
    """Whatever the widths of either, and how far they have to grow."""
    changed = replace(parameters, bits=bits, count_bits=count_bits if parameters.count_bits else 0)
    left, right = recorded_until_full(4, parameters, one, keys), recorded_until_full(9, changed, other, others)
    packed = [encoded(encode(epoch)) for epoch in (left, right)]
    try:
        expected = EncodedEpoch.of(merged_epoch(left, right))
    except SketchFullError:
        with pytest.raises(SketchFullError):
            merged_encoded(*packed)
        return
    assert merged_encoded(*packed) == expected


def test_many_merges_one_after_the_other_are_those_of_sketches() -> None:
    """As a spool that overflows has them: each with what was merged before."""
    full = [epoch(k, [200, 199, 40], keys=(ProcessKey("p", k % 7),)) for k in range(60)]
    whole, packed = full[0], encoded(encode(full[0]))
    for following in full[1:]:
        whole, packed = merged_epoch(whole, following), merged_encoded(packed, encoded(encode(following)))
        assert packed.data == encode(whole)
    assert whole.parameters.bits > PARAMETERS.bits


def test_encoded_epochs_of_other_salts_do_not_merge() -> None:
    salted = encoded(encode(epoch(1, [1], replace(PARAMETERS, salt=1))))
    with pytest.raises(MismatchError, match="salt 0 and 1"):
        merged_encoded(encoded(encode(epoch(0, [1]))), salted)
