"""Parameters out of range are refused with what, where and what to do."""

from __future__ import annotations

import contextlib
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as own
from sojourn.core.errors import MismatchError, ParameterError, WireError
from sojourn.core.keys import FlowKey, key_id
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.kinds import SKETCHES, sketch_type
from sojourn.sketches.lda import Lda, LdaParameters, disjoint_thresholds, nested_thresholds
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.sample import SampleParameters
from sojourn.sketches.sds import SdsParameters
from sojourn.sketches.sketch import new_sketch
from sojourn.sketches.weights import FlowWeights

ALL = [
    own.lda_parameters(),
    own.lds_parameters(),
    own.sds_parameters(),
    own.sample_parameters(),
    own.counter_vector_parameters(),
    own.bucket_array_parameters(),
]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LdaParameters(rows=0), "lda: rows is 0; use a whole number in 1 …"),
        (lambda: LdaParameters(rows=True), "rows is True"),
        (lambda: LdaParameters(rows=2.0), "rows is 2.0"),
        (lambda: LdaParameters(rows=4, shares=()), r"shares is \(\)"),
        (lambda: LdaParameters(rows=4, shares=(0.5, 1.5)), "above 0 and at most 1"),
        (lambda: LdaParameters(rows=4, shares=(float("nan"),)), "above 0 and at most 1"),
        (lambda: LdaParameters(rows=4, shares=(0.25, 0.5)), "do not fall"),
        (lambda: LdaParameters(rows=4, shares=(0.75, 0.5), nested=False), "add up to 1.25"),
        (lambda: LdaParameters(rows=4, sum_bits=20), "cannot hold a delay"),
        (lambda: LdaParameters(rows=2**27, shares=(1.0, 0.5, 0.25)), "cells is outside"),
        (lambda: LdsParameters(rows=2, columns=4, spread=5), "spread 5 exceeds 4 columns"),
        (lambda: LdsParameters(rows=3, columns=4, shares=(1.0, 0.5)), "2 shares for 3 rows"),
        (lambda: SampleParameters(slots=3, groups=4), "at least one slot per group"),
        (lambda: SampleParameters(slots=9, groups=4, time_bits=34), "34 bits cannot tell a delay"),
        (lambda: SdsParameters(rows=1, columns=4, sum_bits=65), "sum_bits is 65"),
        (lambda: CounterVectorParameters(counters=4, per_flow=2, shares=(0.5,)), "sum to 1"),
        (lambda: CounterVectorParameters(counters=4, per_flow=2, threshold=5), "no threshold"),
        (lambda: CounterVectorParameters(counters=4, per_flow=2, digest_bits=8), "a digest needs a count"),
        (lambda: CounterVectorParameters(counters=4, per_flow=2, choice="random"), "needs plain sums"),
        (lambda: CounterVectorParameters(counters=4, per_flow=2, choice="both"), "use one of packet, random"),
        (lambda: BucketArrayParameters(buckets=4, per_instance=2, wrap=True), "wrap needs signed"),
        (lambda: BucketArrayParameters(buckets=4, per_instance=2, spreading="even"), "spreading is even"),
        (lambda: BucketArrayParameters(buckets=4, per_instance=2, salt=-1), "salt is -1"),
    ],
)
def test_values_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make()


@given(st.one_of(ALL))
def test_parameters_survive_their_mapping(parameters) -> None:
    assert type(parameters).from_mapping(parameters.to_mapping()) == parameters


@pytest.mark.parametrize("kind", list(SKETCHES))
@given(st.dictionaries(st.text(max_size=6), st.one_of(st.integers(), st.text(), st.none(), st.lists(st.floats()))))
def test_untrusted_mappings_give_parameters_or_a_wire_error(kind: str, mapping) -> None:
    with contextlib.suppress(WireError):
        parameters = sketch_type(kind).parameters_type.from_mapping(mapping)
        assert parameters.kind == kind


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(WireError, match=r"a parameter is missing .*absent .*'m'"):
        LdaParameters.from_mapping({})


def test_unknown_kinds_list_the_known_ones() -> None:
    with pytest.raises(ParameterError, match="use one of bucket_array, counter_vector, lda, lds, receipt, sample, sds"):
        sketch_type("hyperloglog")


def test_memory_is_cells_times_widths() -> None:
    parameters = LdsParameters(rows=4, columns=100, sum_bits=48, count_bits=20, digest_bits=8, byte_bits=32)
    assert new_sketch(parameters).memory_bits == 400 * (48 + 20 + 8 + 32)
    vectors = CounterVectorParameters(counters=100, per_flow=5, bits=40, shares=(0.5, 0.5))
    assert new_sketch(vectors).memory_bits == 2 * (100 * 40 + 48)
    counted = CounterVectorParameters(counters=100, per_flow=5, bits=44, count_bits=20, digest_bits=16, resolution_ns=9)
    assert new_sketch(counted).memory_bits == 100 * 80 + 48


def test_a_field_that_is_not_kept_is_named() -> None:
    sketch = Lda(LdaParameters(rows=2, digest_bits=0))
    with pytest.raises(MismatchError, match="there is no field digest"):
        sketch.column("digest")
    assert sketch.has("count")
    assert not sketch.has("digest")


def test_banks_take_their_shares() -> None:
    """Each bank within five standard deviations of its share: false alarm below 10⁻⁵."""
    packets = own.PacketBatch.of(*(np.arange(400_000),) * 3)
    for shares, nested in (((0.5, 0.125, 0.01), True), ((0.5, 0.3, 0.2), False)):
        parameters = LdaParameters(rows=7, shares=shares, nested=nested)
        sketch = Lda(parameters)
        sketch.record_batch(packets)
        counts = sketch.column("count").reshape(3, 7).sum(axis=1)
        for count, share in zip(counts, parameters.effective_shares, strict=True):
            assert abs(count - 400_000 * share) < 5 * (400_000 * share * (1 - share)) ** 0.5


def test_powers_of_two_are_counted_in_leading_zeros() -> None:
    assert nested_thresholds([1.0, 0.125, 0.0078125]).tolist() == [2**32, 2**29, 2**25]
    assert disjoint_thresholds([0.5, 0.5]).tolist() == [2**32, 2**31]


def test_a_policy_gives_weights_to_flows() -> None:
    flows = [FlowKey(IPv4Address("10.0.0.1"), 1, IPv4Address("10.0.0.2"), port, 17) for port in (53, 80)]
    weights = FlowWeights({key_id(flow): 10 if flow.dest_port == 53 else 1 for flow in flows})
    ids = np.array([key_id(flow) for flow in flows] + [99], np.uint64)
    assert weights.of(ids).tolist() == [10, 1, 1]
    assert FlowWeights({}).of(ids).tolist() == [1, 1, 1]
