"""The node unit: the same buckets, the same bytes and the same local answers as the library."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests import plain_models

import strategies as own
from sojourn.core import hashing
from sojourn.core.arrays import MeasurementBatch
from sojourn.core.keys import ProcessKey
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import decode, encode
from sojourn.estimation.published.iotm import estimate_sums
from sojourn.node.unit import unit as unit_file
from sojourn.node.unit.unit import Instance, NodeUnit, Packed, cbor, hash_bytes
from sojourn.papers.iotm.rtt_buckets import choices_of
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters


def node_unit(p: BucketArrayParameters, *, seed: int = 0) -> NodeUnit:
    """The unit with a bucket array's parameters."""
    return NodeUnit(
        p.buckets,
        p.per_instance,
        bits=p.bits,
        count_bits=p.count_bits,
        signed=p.signed,
        wrap=p.wrap,
        spreading=p.spreading,
        salt=p.salt,
        seed=seed,
    )


def insert_all(unit: NodeUnit, rows) -> int:
    """Insert until one is refused; how many were taken."""
    instances: dict[int, Instance] = {}
    for time_ns, (instance_id, value, sequence) in enumerate(rows):
        instance = instances.setdefault(instance_id, Instance(instance_id))
        if not unit.insert(instance, value, time_ns, sequence):
            return time_ns
    return len(rows)


@given(own.any_bucket_array(), own.measurements(60, low=-300, high=3000), st.integers(0, 2**64 - 1))
def test_buckets_and_bytes_equal_the_bucket_array(parameters, rows, seed: int) -> None:
    sketch, unit = BucketArray(parameters, seed=seed), node_unit(parameters, seed=seed)
    taken = sketch.record_batch(own.measurement_batch(rows))
    assert insert_all(unit, rows) == taken
    assert [unit.held(i) for i in range(parameters.buckets)] == sketch.column("sum").tolist()
    if unit.counts is not None:
        assert [unit.counts.get(i) for i in range(parameters.buckets)] == sketch.column("count").tolist()
    assert unit.snapshot("node", "disk", sequence=7) == encode(Epoch("node", "disk", 7, sketch))


@given(own.any_bucket_array(), own.measurements(30), own.measurements(30), own.WORDS)
def test_the_next_epoch_begins_as_a_new_array_does(parameters, rows, later, salt: int) -> None:
    assume(parameters.spreading != "random")
    unit = node_unit(parameters)
    insert_all(unit, rows)
    unit.reset(salt)
    sketch = BucketArray(BucketArrayParameters.from_mapping({**parameters.to_mapping(), "salt": salt}))
    taken = sketch.record_batch(own.measurement_batch(later))
    assert insert_all(unit, later) == taken
    assert unit.snapshot("n", "s") == encode(Epoch("n", "s", 1, sketch))


def test_an_epoch_carries_the_keys_that_were_active() -> None:
    keys = (ProcessKey("mosquitto", 812), ProcessKey("cron", 1))
    unit = NodeUnit(20, 5)
    for key in keys:
        assert unit.insert(unit.instance(key.to_bytes()), 3, 1_700_000_000_000_000_000)
    epoch = decode(unit.snapshot("gateway-7", "disk", keys=[key.to_bytes() for key in keys]))
    assert epoch.keys == keys
    assert epoch.recorded == 2
    assert epoch.sketch.column("sum").sum() == 6


@given(st.integers(1, 8), st.booleans(), st.lists(st.integers(0, 60), max_size=60))
def test_it_is_full_before_a_value_would_be_refused(bits: int, signed: bool, values: list[int]) -> None:
    """A unit that is not full for values up to 60 takes any of them."""
    unit = NodeUnit(4, 2, bits=bits, signed=signed)
    instance = Instance(42)
    for time_ns, value in enumerate(values):
        full = unit.is_full(60)
        before = bytes(unit.sums.data)
        taken = unit.insert(instance, value, time_ns)
        assert taken or (full and unit.is_full() and bytes(unit.sums.data) == before)


def test_a_count_at_its_limit_is_full() -> None:
    unit = NodeUnit(1, 1, bits=32, count_bits=2)
    instance = Instance(1)
    assert [unit.insert(instance, 1, 0) for _ in range(3)] == [True] * 3
    assert unit.is_full()
    assert not unit.insert(instance, 1, 0)
    assert unit.recorded == 3


@pytest.mark.parametrize("seed", range(5))
def test_the_local_estimate_is_the_library_s(seed: int) -> None:
    random = np.random.default_rng(seed)
    parameters = BucketArrayParameters(buckets=30, per_instance=4, bits=24, count_bits=16, salt=seed)
    process = random.integers(1, 9, 800)
    batch = MeasurementBatch.of(process, random.integers(0, 50, 800), np.arange(800))
    sketch, unit = BucketArray(parameters), node_unit(parameters)
    assert sketch.record_batch(batch) == 800
    insert_all(unit, [(int(i), int(v), 0) for i, v in zip(batch.instance_id, batch.value, strict=True)])
    ids = np.arange(1, 9, dtype=np.uint64)
    for instance_id, answer in zip(ids, estimate_sums(sketch, ids, unit="operations"), strict=True):
        found = unit.estimate(Instance(int(instance_id)))
        assert found == pytest.approx((answer.value, answer.low, answer.high), rel=1e-5)
        count, low, high = unit.estimate(Instance(int(instance_id)), counts=True)
        assert round(max(count, 0)) == answer.samples
        assert low < count < high


def test_too_few_other_buckets_bound_nothing() -> None:
    unit = NodeUnit(2, 4)
    assert unit.estimate(Instance(3))[1:] == (-np.inf, np.inf)


@given(st.binary(max_size=100))
def test_ids_are_xxh64(data: bytes) -> None:
    assert hash_bytes(data) == hashing.hash_bytes(data)


@given(own.WORDS, st.integers(0, 2**32), st.integers(1, 65536))
def test_numbers_choose_as_in_the_library(word: int, number: int, m: int) -> None:
    parameters = BucketArrayParameters(buckets=8, per_instance=min(m, 64), spreading="sequence", salt=word)
    expected = choices_of(parameters, np.array([number], np.uint64))
    assert node_unit(parameters).choice(number) == expected[0]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.text(max_size=30) | st.binary(max_size=300),
        lambda part: st.lists(part, max_size=30),
    )
)
def test_cbor_is_the_standard_s(item: object) -> None:
    import cbor2

    assert cbor(item) == cbor2.dumps(item)


@given(st.integers(1, 64), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_packed_numbers_do_not_touch_each_other(bits: int, values: list[int]) -> None:
    packed = Packed(len(values), bits)
    for _ in range(2):
        for i, value in enumerate(values):
            packed.put(i, value)
    assert [packed.get(i) for i in range(len(values))] == [value % (1 << bits) for value in values]


class MachineWord:
    """An unsigned machine word as MicroPython's emitter knows it: wraps, and mixes with no other type."""

    bits = 32

    def __init__(self, value) -> None:
        self.value = int(value) % (1 << self.bits)

    def __int__(self) -> int:
        return self.value

    def _with(self, other, operation):
        assert type(other) is type(self)
        return type(self)(operation(self.value, other.value))

    def __add__(self, other):
        return self._with(other, int.__add__)

    def __sub__(self, other):
        return self._with(other, int.__sub__)

    def __mul__(self, other):
        return self._with(other, int.__mul__)

    def __xor__(self, other):
        return self._with(other, int.__xor__)

    def __and__(self, other):
        return self._with(other, int.__and__)

    def __lshift__(self, other):
        assert other.value < self.bits
        return self._with(other, int.__lshift__)

    def __rshift__(self, other):
        assert other.value < self.bits
        return self._with(other, int.__rshift__)


@pytest.mark.parametrize("bits", [32, 64])
@given(own.WORDS, own.WORDS, st.integers(1, 65536))
def test_the_machine_code_form_is_right_in_words_of(bits: int, word: int, salt: int, size: int) -> None:
    """Loads may come sign-extended, as those of some emitters do."""
    kind = type("Word", (MachineWord,), {"bits": bits})
    space = {"uint": kind, "ptr32": list, "int": int}
    exec(unit_file.PLACE, space)
    halves = [unit_file.MIX_WORDS, (0, 0), (salt >> 32, salt & unit_file.HALF), (word >> 32, word & unit_file.HALF)]
    signed = [[w - (1 << 32) if w >> 31 else w for w in words] for words in halves]
    table = signed[0] + signed[1] + signed[2]
    found = space["place"](table, signed[3], unit_file.FIRST_SALT, size)
    assert found == plain_models.reduce_to_range(hashing.mix64(word ^ salt), size)


@pytest.mark.parametrize(
    "wrong",
    [{"buckets": 0}, {"buckets": 65537}, {"bits": 65}, {"count_bits": -1}, {"spreading": "x"}, {"wrap": True}],
)
def test_parameters_are_checked(wrong) -> None:
    with pytest.raises(ValueError, match=r"sizes|spreading"):
        NodeUnit(**{"buckets": 20, "per_instance": 5, **wrong})
