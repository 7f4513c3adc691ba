"""Epochs of bucket arrays that are added up are those that merging one by one gives."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.errors import MismatchError, SketchFullError
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import merged_epoch
from sojourn.epochs.wire import encode, encoded
from sojourn.estimation.buckets.adding import BucketSums, read_buckets
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.lda import Lda, LdaParameters

KEYS = tuple(ProcessKey("worker", number) for number in range(5))


def epoch(sequence: int, *, salt: int = 0, bits: int = 40, value: int = 7, signed: bool = False) -> Epoch:
    parameters = BucketArrayParameters(buckets=8, per_instance=2, bits=bits, count_bits=16, salt=salt, signed=signed)
    sketch = BucketArray(parameters)
    ids = np.array([key_id(key) for key in KEYS], np.uint64)
    values = np.full(len(ids), -value if signed else value, np.int64)
    moments = sequence * 1000 + np.arange(len(ids))
    sketch.record_batch(MeasurementBatch(ids, values, moments, np.zeros(len(ids), np.uint64)))
    return Epoch("n", "disk", sequence, sketch, KEYS)


@pytest.mark.parametrize("signed", [False, True])
def test_sums_are_those_of_merging_whatever_the_widths(signed: bool) -> None:
    epochs = [epoch(n, salt=n % 2, bits=8 + n, signed=signed) for n in range(20)]
    sums = BucketSums()
    for one in epochs:
        sums.add(read_buckets(encoded(encode(one))))
    for salt, found in enumerate(sums.epochs()):
        merged = reduce(merged_epoch, epochs[salt::2])
        for field in ("sum", "count"):
            assert np.array_equal(found.sketch.column(field), merged.sketch.column(field))
        same = ("node", "stream", "sequence", "first_ns", "last_ns", "recorded")
        assert [getattr(found, name) for name in same] == [getattr(merged, name) for name in same]


def test_an_epoch_is_read_alike_from_memory_and_from_its_bytes() -> None:
    one = epoch(3)
    here, there = read_buckets(one), read_buckets(encoded(encode(one)))
    assert here.names == there.names == tuple((key_id(key), str(key)) for key in KEYS)
    assert np.array_equal(here.buckets, there.buckets)
    assert there.epoch().sketch == one.sketch


def test_a_sum_beyond_64_bits_is_refused_and_changes_nothing() -> None:
    sums = BucketSums()
    sums.add(read_buckets(epoch(0, bits=64, value=2**62)))
    before = sums.epochs()[0]
    second = read_buckets(epoch(1, bits=64, value=2**62))
    with pytest.raises(SketchFullError, match="would leave 64 bits"):
        sums.add(second)
    assert np.array_equal(sums.epochs()[0].sketch.column("sum"), before.sketch.column("sum"))
    assert sums.epochs()[0].recorded == before.recorded


def test_other_sketches_are_refused() -> None:
    lda = Epoch("n", "packets", 0, Lda(LdaParameters(rows=4, shares=(1.0,))), ())
    with pytest.raises(MismatchError, match="a stream of lda is not asked for sums and means"):
        read_buckets(lda)
