"""A sketch is full before a counter would leave its range, and a refused measurement changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plain_models
import strategies as own
from sojourn.core.errors import ParameterError, SketchFullError
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters
from sojourn.sketches.lda import Lda, LdaParameters
from sojourn.sketches.lds import Lds, LdsParameters
from sojourn.sketches.sds import Sds, SdsParameters
from sojourn.sketches.weights import FlowWeights


def assert_front_recorded(sketch, model, rows, taken: int) -> None:
    fields = model(sketch.parameters, rows[:taken])
    for table in sketch.parameters.tables():
        for field in table.fields:
            assert sketch.column(field.name).tolist() == fields[field.name]


@given(st.integers(1, 10), st.booleans(), own.measurements(60, low=-40, high=40))
def test_buckets_never_leave_their_range(bits: int, signed: bool, rows) -> None:
    rows = rows if signed else [(i, abs(v), s) for i, v, s in rows]
    parameters = BucketArrayParameters(
        buckets=3, per_instance=2, bits=bits, count_bits=4, signed=signed, spreading="sequence"
    )
    sketch = BucketArray(parameters)
    taken = sketch.record_batch(own.measurement_batch(rows))
    assert_front_recorded(sketch, plain_models.bucket_array, rows, taken)
    field = parameters.tables()[0].fields[0]
    assert field.lowest <= sketch.column("sum").min() <= sketch.column("sum").max() <= field.highest
    if taken < len(rows):
        fields = plain_models.bucket_array(parameters, rows[: taken + 1])
        assert max(fields["count"]) > 15 or not all(field.lowest <= s <= field.highest for s in fields["sum"])


@given(st.integers(1, 5), own.packets(60))
def test_lds_is_full_when_the_next_packet_would_not_fit(count_bits: int, rows) -> None:
    parameters = LdsParameters(rows=3, columns=2, count_bits=count_bits, byte_bits=12)
    sketch = Lds(parameters)
    taken = sketch.record_batch(own.packet_batch(rows))
    assert_front_recorded(sketch, plain_models.lds, rows, taken)
    if taken < len(rows):
        fields = plain_models.lds(parameters, rows[: taken + 1])
        assert max(fields["count"]) >= 1 << count_bits or max(fields["bytes"]) >= 1 << 12


@given(own.measurements(60, low=-300, high=300))
def test_sds_never_leaves_its_range(rows) -> None:
    sketch = Sds(SdsParameters(rows=2, columns=2, sum_bits=11, count_bits=5))
    taken = sketch.record_batch(own.measurement_batch(rows))
    assert_front_recorded(sketch, plain_models.sds, rows, taken)


def test_an_lda_counts_only_as_many_packets_as_its_sums_can_tell_apart() -> None:
    parameters = LdaParameters(rows=1, sum_bits=32, max_delay_ns=1_000_000)
    sketch = Lda(parameters)
    rows = [(0, i, 10**18 + i, 0) for i in range(5000)]
    assert sketch.record_batch(own.packet_batch(rows)) == 2147
    with pytest.raises(SketchFullError, match="take a snapshot"):
        sketch.record(9, 10**18)


def test_a_published_counter_vector_is_full_at_its_threshold() -> None:
    parameters = CounterVectorParameters(
        counters=50, per_flow=5, bits=40, wrap=False, threshold=1000, origin_ns=10**18, choice="random"
    )
    sketch = CounterVector(parameters)
    rows = [(1, i, 10**18 + 300, 0) for i in range(10)]
    assert sketch.record_batch(own.packet_batch(rows)) == 3
    assert sketch.column("sum").sum() == 900
    assert sketch.record_batch(own.packet_batch(rows[:1])) == 0


def test_a_published_counter_never_wraps() -> None:
    parameters = CounterVectorParameters(
        counters=1, per_flow=1, bits=10, wrap=False, origin_ns=0, max_delay_ns=1, choice="random"
    )
    sketch = CounterVector(parameters)
    assert sketch.record_batch(own.packet_batch([(1, i, 400, 0) for i in range(5)])) == 2
    assert sketch.column("sum").tolist() == [800]


def test_a_packet_before_the_origin_is_refused() -> None:
    sketch = CounterVector(CounterVectorParameters(counters=4, per_flow=2, wrap=False, origin_ns=10**18))
    with pytest.raises(ParameterError, match="precedes origin_ns"):
        sketch.record(1, 2, 10**18 - 1)


def test_wrapping_counters_without_counts_stop_before_a_difference_is_ambiguous() -> None:
    parameters = CounterVectorParameters(counters=8, per_flow=2, bits=32, max_delay_ns=100_000_000)
    sketch = CounterVector(parameters)
    rows = [(i, i, 10**18 + i, 0) for i in range(100)]
    assert sketch.record_batch(own.packet_batch(rows)) == 21


def test_a_wrapped_bucket_is_exact_once_the_sum_fits() -> None:
    """Round-trip times: minus the time sent, plus the time acknowledged, in 32 bits of nanoseconds."""
    parameters = BucketArrayParameters(
        buckets=20, per_instance=5, bits=32, count_bits=16, signed=True, wrap=True, spreading="sequence"
    )
    sketch = BucketArray(parameters)
    for sequence in range(50):
        sketch.record(1, -(10**18 + sequence * 10**9), 0, sequence)
        sketch.record(1, 10**18 + sequence * 10**9 + 20_000_000, 0, sequence)
    assert sketch.column("sum").sum() == 50 * 20_000_000


def test_a_weight_beyond_the_count_limit_is_refused_at_once() -> None:
    with pytest.raises(ParameterError, match="weight 300 does not fit"):
        Lds(LdsParameters(rows=1, columns=4, count_bits=8), FlowWeights({1: 300}))


def test_weights_are_validated() -> None:
    with pytest.raises(ParameterError, match="flow weight 0"):
        FlowWeights({1: 0})
