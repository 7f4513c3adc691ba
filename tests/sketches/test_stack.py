"""A stack is its parts, recorded together: all or none take a packet, and it travels and merges as one sketch."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import MismatchError, ParameterError, WireError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import can_merge, merged_epoch, merging_key
from sojourn.epochs.wire import decode, encode
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lda import Lda, LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sample import SampleParameters
from sojourn.sketches.sketch import new_sketch
from sojourn.sketches.stack import MOST_PARTS, Stack, StackParameters


def stacked(*, count_bits: int = 24) -> StackParameters:
    parts: tuple[tuple[str, Parameters], ...] = (
        ("flows", LdsParameters(rows=2, columns=16, count_bits=count_bits)),
        ("spread", CounterVectorParameters(counters=32, per_flow=4, count_bits=20)),
        ("samples", SampleParameters(slots=64, groups=4)),
        ("segment", LdaParameters(rows=8, shares=(1.0, 0.5))),
    )
    return StackParameters(parts=parts)


def packets(count: int, seed: int = 0) -> PacketBatch:
    random = np.random.default_rng(seed)
    ids = random.integers(0, 2**63, count).astype(np.uint64)
    return PacketBatch(ids % np.uint64(5), ids, np.arange(count) * 1000 + 10**18, np.full(count, 100))


def recorded(batch: PacketBatch, parameters: StackParameters | None = None) -> Stack:
    stack = Stack(parameters or stacked())
    assert stack.record_batch(batch) == len(batch)
    return stack


def test_parts_hold_what_they_would_hold_alone() -> None:
    batch = packets(500)
    stack = recorded(batch)
    for name, parameters in stack.parameters.parts:
        alone = new_sketch(parameters)
        alone.record_batch(batch)
        assert stack.parts[name] == alone
        assert (stack.parts[name].first_ns, stack.parts[name].last_ns) == (alone.first_ns, alone.last_ns)


def test_a_stack_travels_as_one_epoch() -> None:
    epoch = decode(encode(Epoch("n", "s", 0, recorded(packets(300)))))
    assert epoch.sketch == recorded(packets(300))
    assert isinstance(epoch.sketch, Stack)
    assert epoch.sketch.parts["segment"].recorded == 300
    assert epoch.parameters.memory_bits == sum(p.memory_bits for _, p in stacked().parts)


def test_merging_is_merging_the_parts() -> None:
    one, other = packets(200, 1), packets(300, 2)
    both = recorded(PacketBatch.concatenate([one, other]))
    assert recorded(one).merge(recorded(other)) == both
    assert recorded(other).merge(recorded(one)) == both


def test_epochs_merge_with_wider_counters_where_a_sum_needs_them() -> None:
    parameters = stacked(count_bits=6)
    first, second = (Epoch("n", "s", i, recorded(packets(60, i), parameters)) for i in range(2))
    wider = Epoch("n", "s", 2, recorded(packets(60, 2), stacked(count_bits=7)))
    assert can_merge(first, wider)
    assert merging_key(first) == merging_key(wider)
    both = merged_epoch(merged_epoch(first, second), wider)
    assert both.recorded == 180
    assert isinstance(both.sketch, Stack)
    assert both.sketch.parts["flows"].column("count").sum() == 2 * 180
    other = Epoch("n", "s", 0, Stack(StackParameters(parts=stacked().parts[:2])))
    assert not can_merge(first, other)
    assert merging_key(first) != merging_key(other)


def test_a_packet_that_one_part_has_no_room_for_is_in_none() -> None:
    batch = packets(2000)
    stack = Stack(stacked(count_bits=6))
    taken = stack.record_batch(batch)
    assert 0 < taken < len(batch)
    assert stack.recorded == taken
    front = recorded(batch.select(slice(0, taken)), stack.parameters)
    assert stack == front
    stack.reset()
    assert stack == Stack(stack.parameters)


def test_a_part_before_the_full_one_gives_packets_back() -> None:
    parts = (("segment", LdaParameters(rows=8)), ("flows", LdsParameters(rows=1, columns=1, count_bits=5)))
    stack = Stack(StackParameters(parts=parts))
    assert stack.record_batch(packets(100)) == 31
    lda = Lda(LdaParameters(rows=8))
    lda.record_batch(packets(100).select(slice(0, 31)))
    assert stack.parts["segment"] == lda


def test_different_stacks_do_not_merge_and_say_in_what_they_differ() -> None:
    with pytest.raises(MismatchError, match="count_bits 24 and 23"):
        Stack(stacked()).merge(Stack(stacked(count_bits=23)))
    with pytest.raises(MismatchError, match="one holds flows, spread, samples, segment, the other flows"):
        Stack(stacked()).merge(Stack(StackParameters(parts=stacked().parts[:1])))
    with pytest.raises(MismatchError, match="kind segment cannot be combined with one of kind lda"):
        stacked().require_equal(LdaParameters(rows=1))


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (("a", LdaParameters(rows=1)),) * 2,
        (("A b", LdaParameters(rows=1)),),
        (("a", stacked()),),
        (("a", SampleParameters(slots=4, groups=1)), ("b", SampleParameters(slots=4, groups=1))),
    ],
)
def test_what_cannot_be_a_stack_is_refused(parts: tuple[tuple[str, Parameters], ...]) -> None:
    with pytest.raises(ParameterError, match="parts is"):
        StackParameters(parts=parts)


@pytest.mark.parametrize(
    "mapping",
    [
        {"flows": ["segment", {}]},
        {"flows": ["lda"]},
        {"flows": 3},
        {"flows": ["lda", {"b": 3}]},
        {f"a{'b' * i}": ["lda", {"m": 1}] for i in range(MOST_PARTS + 1)},
        {"no name": ["lda", {"m": 1}]},
        {},
    ],
)
def test_nested_parameters_are_not_trusted(mapping: dict[str, object]) -> None:
    with pytest.raises(WireError):
        StackParameters.from_mapping(mapping)


def test_nested_parameters_round_trip() -> None:
    assert StackParameters.from_mapping(stacked().to_mapping()) == stacked()
