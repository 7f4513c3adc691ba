"""Merging epochs: counts stay, widths grow."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.keys import ProcessKey
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import can_merge, merged_epoch, merging_key
from sojourn.epochs.wire import EncodedEpoch
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
