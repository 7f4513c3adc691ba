"""Every recording kernel equals its plain-Python model, and a batch equals its rows one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import plain_models
import strategies as own
from sojourn.sketches.bucket_array import BucketArray
from sojourn.sketches.counter_vector import CounterVector
from sojourn.sketches.lda import Lda
from sojourn.sketches.lds import Lds
from sojourn.sketches.sample import Sample
from sojourn.sketches.sds import Sds
from sojourn.sketches.weights import FlowWeights


def assert_equals_model(sketch, fields: dict[str, list[int]]) -> None:
    for table in sketch.parameters.tables():
        for field in table.fields:
            assert sketch.column(field.name).tolist() == fields[field.name], field.name


@given(own.lda_parameters(), own.packets())
def test_lda_equals_its_model(parameters, rows) -> None:
    sketch = Lda(parameters)
    assert sketch.record_batch(own.packet_batch(rows)) == len(rows)
    assert_equals_model(sketch, plain_models.lda(parameters, rows))


@given(own.lds_parameters(), own.packets(), st.dictionaries(st.integers(0, 6), st.integers(1, 9)))
def test_lds_equals_its_model_with_and_without_weights(parameters, rows, weights) -> None:
    sketch = Lds(parameters, FlowWeights(weights) if weights else None)
    assert sketch.record_batch(own.packet_batch(rows)) == len(rows)
    assert_equals_model(sketch, plain_models.lds(parameters, rows, weights))


@given(own.sample_parameters(), own.packets(120), st.integers(1, 120))
def test_sample_equals_its_model_however_the_packets_are_batched(parameters, rows, size) -> None:
    sketch = Sample(parameters)
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        assert sketch.record_batch(own.packet_batch(part)) == len(part)
    assert_equals_model(sketch, plain_models.sample(parameters, rows))
    sketch.check()


@given(own.sds_parameters(), own.measurements(low=-1000))
def test_sds_equals_its_model(parameters, rows) -> None:
    sketch = Sds(parameters)
    assert sketch.record_batch(own.measurement_batch(rows)) == len(rows)
    assert_equals_model(sketch, plain_models.sds(parameters, rows))


@given(own.counter_vector_parameters(), own.packets())
def test_counter_vector_equals_its_model(parameters, rows) -> None:
    sketch = CounterVector(parameters)
    assert sketch.record_batch(own.packet_batch(rows)) == len(rows)
    assert_equals_model(sketch, plain_models.counter_vector(parameters, rows))


@given(own.bucket_array_parameters(("sequence", "round-robin", "hashed-steps")), own.measurements())
def test_bucket_array_equals_its_model(parameters, rows) -> None:
    sketch = BucketArray(parameters)
    assert sketch.record_batch(own.measurement_batch(rows)) == len(rows)
    assert_equals_model(sketch, plain_models.bucket_array(parameters, rows))


@given(own.bucket_array_parameters(), own.measurements(), st.integers(0, 2**64 - 1))
def test_a_batch_equals_its_measurements_one_by_one(parameters, rows, seed) -> None:
    together, apart = BucketArray(parameters, seed=seed), BucketArray(parameters, seed=seed)
    together.record_batch(own.measurement_batch(rows))
    for time_ns, (instance_id, value, sequence) in enumerate(rows):
        apart.record(instance_id, value, time_ns, sequence)
    assert together == apart


@given(own.lds_parameters(), own.packets(max_size=10))
def test_lds_packets_one_by_one(parameters, rows) -> None:
    together, apart = Lds(parameters), Lds(parameters)
    together.record_batch(own.packet_batch(rows))
    for flow_id, packet_id, time_ns, size in rows:
        apart.record(flow_id, packet_id, time_ns, size)
    assert together == apart


def test_round_robin_uses_every_bucket_in_turn() -> None:
    parameters = own.BucketArrayParameters(buckets=10_000, per_instance=5, spreading="round-robin", salt=3)
    sketch = BucketArray(parameters)
    sketch.record_batch(own.measurement_batch([(7, 1, 0)] * 1000))
    assert sorted(sketch.column("sum")[sketch.column("sum") > 0].tolist()) == [200] * 5


def test_round_robin_keeps_its_place_for_thousands_of_instances() -> None:
    parameters = own.BucketArrayParameters(buckets=1 << 20, per_instance=4, spreading="round-robin")
    sketch = BucketArray(parameters)
    rows = [(i, 1, 0) for i in range(5000)] * 4
    for start in range(0, len(rows), 3000):
        sketch.record_batch(own.measurement_batch(rows[start : start + 3000]))
    assert plain_models.bucket_array(parameters, rows)["sum"] == sketch.column("sum").tolist()


def test_random_spreading_is_uniform_over_an_instances_buckets() -> None:
    """Five standard deviations of a binomial: false alarm below 10⁻⁵."""
    parameters = own.BucketArrayParameters(buckets=10_000, per_instance=5, bits=32, spreading="random")
    sketch = BucketArray(parameters, seed=11)
    sketch.record_batch(own.measurement_batch([(7, 1, 0)] * 100_000))
    used = sketch.column("sum")[sketch.column("sum") > 0]
    assert len(used) == 5
    assert abs(used - 20_000).max() < 5 * (100_000 * 0.2 * 0.8) ** 0.5


def test_hashed_steps_take_24_bytes_for_up_to_8_buckets() -> None:
    parameters = own.BucketArrayParameters(buckets=20, per_instance=5, bits=16, spreading="hashed-steps")
    assert BucketArray(parameters).memory_bits == 20 * 16 + 24 * 8


def test_independent_choice_differs_between_points_and_coordinated_does_not() -> None:
    rows = [(1, packet, 10**18 + packet, 0) for packet in range(1000)]
    for choice, equal in (("packet", True), ("random", False)):
        parameters = own.CounterVectorParameters(
            counters=1000, per_flow=20, count_bits=16, choice=choice, wrap=False, origin_ns=10**18
        )
        one, other = CounterVector(parameters, seed=1), CounterVector(parameters, seed=2)
        one.record_batch(own.packet_batch(rows))
        other.record_batch(own.packet_batch(rows))
        assert (one == other) is equal
        assert one.column("count").sum() == other.column("count").sum() == 1000


def test_delays_in_coarse_steps_are_right_on_average_whatever_the_stamps_resolution() -> None:
    """Whole microseconds at the sender, nanoseconds at the receiver: rounded down they would be half a step short.

    Five standard deviations of a sum of rounded delays (at most half a step each): false alarm below 10⁻⁵.
    """
    packets, delay_ns = 20_000, 1_234_400
    sent = [(1, packet, 10**18 + 7_000 * packet, 0) for packet in range(packets)]
    received = [(flow, packet, time + delay_ns + packet % 700, 0) for flow, packet, time, _ in sent]
    parameters = own.CounterVectorParameters(counters=50, per_flow=4, count_bits=24, resolution_ns=1000)
    ends = [CounterVector(parameters) for _ in range(2)]
    for end, rows in zip(ends, (sent, received), strict=True):
        end.record_batch(own.packet_batch(rows))
    measured = 1000 * int((ends[1].column("sum") - ends[0].column("sum")).sum())
    true = sum(received[row][2] - sent[row][2] for row in range(packets))
    assert abs(measured - true) < 5 * 500 * packets**0.5
