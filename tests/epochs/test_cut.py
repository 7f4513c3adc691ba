"""Epochs that end at packets: their places travel and merge where they follow each other; small ones are few bytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import MismatchError, WireError
from sojourn.core.hashing import hash_bytes
from sojourn.epochs.epoch import Cut, Epoch, KernelClock, Slew
from sojourn.epochs.merging import merged_epoch
from sojourn.epochs.wire import EncodedEpoch, decode, encode, encoded
from sojourn.segments.plan import plan_point
from sojourn.sketches.sketch import new_sketch

PLAN = plan_point(32_000, flows=100, loss=0.01)
WORDS = st.none() | st.integers(0, 2**64 - 1)
KERNELS = st.booleans(), st.integers(0, 2**62), st.integers(-(2**62), 2**62)
LEADS = st.none() | st.integers(-(2**63) + 1, 2**63 - 1), st.booleans(), st.none() | st.integers(0, 2**32 - 1)
# Where there is no lead, and no doubt of it, a clock travels without these.
CLOCKS = (
    st.none()
    | st.builds(KernelClock, *KERNELS)
    | st.builds(KernelClock, *KERNELS, *LEADS).filter(lambda clock: clock.was_set or clock.lead_ns is not None)
)
CUTS = st.builds(Cut, WORDS, WORDS, st.integers(1, 8), st.booleans(), st.integers(0, 2**62), CLOCKS)


def epoch(packets: int, cut: Cut, *, sequence: int = 7, seed: int = 1) -> Epoch:
    random = np.random.default_rng(seed)
    sketch = new_sketch(PLAN.stream)
    flows = random.integers(0, 50, packets).astype(np.uint64)
    ids = random.integers(0, 2**64, packets, dtype=np.uint64)
    sketch.record_batch(PacketBatch(flows, ids, np.arange(packets) + 10**18, np.full(packets, 100)))
    return Epoch("a", "point:eth0:out:g1", sequence, sketch, (), cut)


@given(CUTS)
def test_a_cut_travels(cut: Cut) -> None:
    there = decode(encode(epoch(3, cut)))
    assert there.cut == cut
    assert encoded(encode(epoch(3, cut))).cut == cut


def test_counters_come_back_whether_they_were_compressed_or_not() -> None:
    for packets in (0, 1, 50, 200_000):
        one = epoch(packets, Cut())
        other = decode(encode(one))
        for mine, its in zip(one.sketch.arrays, other.sketch.arrays, strict=True):
            np.testing.assert_array_equal(mine, its)


def test_bytes_fall_with_packets() -> None:
    sizes = [len(encode(epoch(packets, Cut()))) for packets in (0, 10, 100, 100_000)]
    assert sizes[0] < 600
    assert sizes == sorted(sizes)
    # Each of ten packets is in some ten counters of a sketch that is full with 11 KB.
    assert sizes[1] < sizes[3] / 8


def test_an_epoch_without_a_cut_has_the_version_that_everybody_reads() -> None:
    whole = replace(epoch(5, Cut()), cut=None)
    assert cbor2.loads(encode(whole))[0] == 1
    assert cbor2.loads(encode(epoch(5, Cut())))[0] == 2


def rebuilt(change: Callable[[list[Any]], object], *, version: int = 2) -> bytes:
    _, body, _ = cbor2.loads(encode(epoch(5, Cut(begins=3, clock=KernelClock(True, 5)))))
    items = cbor2.loads(body)
    change(items)
    body = cbor2.dumps(items)
    return cbor2.dumps([version, body, hash_bytes(body) & 0xFFFFFFFF])


def changed(position: int, value: object) -> Callable[[list[Any]], object]:
    return lambda items: items[9].__setitem__(position, value)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (changed(0, -1), "cut"),
        (changed(1, 2**64), "body"),  # a number that takes a tag
        (changed(1, "x"), "cut"),
        (changed(2, 0), "sequences"),
        (changed(2, 9), "sequences"),  # more numbers than there were up to its own
        (changed(3, 1), "continues"),
        (changed(4, -1), "missed"),
        (changed(5, [True, 1]), "clock"),
        (changed(5, [True, -1, 0]), "error_ns"),
        (changed(5, 7), "clock"),
        (lambda items: items[9].pop(), "cut"),
        (lambda items: items.__setitem__(9, None), "cut"),
        (lambda items: items.pop(), "body"),
    ],
)
def test_a_cut_that_is_none_is_refused(change: Callable[[list[Any]], object], where: str) -> None:
    with pytest.raises(WireError) as caught:
        encoded(rebuilt(change))
    assert caught.value.where == where


LEAD = [True, 5, 0, -7, False, 9, [3, 1, 0]]


def with_lead(place: int, value: object) -> Callable[[list[Any]], object]:
    return changed(5, [*LEAD[:place], value, *LEAD[place + 1 :]])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (changed(5, LEAD[:6]), "clock"),
        (with_lead(3, 2**63), "lead_ns"),
        (with_lead(3, "x"), "lead_ns"),
        (with_lead(4, None), "was_set"),
        (with_lead(5, -1), "boot"),
        (with_lead(5, True), "boot"),
        (with_lead(6, 3), "slew"),
        (with_lead(6, [3, 1]), "slew"),
        (with_lead(6, [3, 1, -1]), "slew"),
        (with_lead(6, [3, 1.5, 0]), "slew"),
        (with_lead(6, [2**62, 1, 0]), "slew"),
    ],
)
def test_a_lead_that_is_none_is_refused(change: Callable[[list[Any]], object], where: str) -> None:
    with pytest.raises(WireError) as caught:
        encoded(rebuilt(change, version=3))
    assert caught.value.where == where


def test_a_lead_travels_in_version_3() -> None:
    slew = Slew(10**18, 10**18 + 4, -7, 40_000_000, 3)
    one, other = (epoch(5, Cut(clock=KernelClock(True, 5, 0, -7, False, 9, its))) for its in (slew, None))
    assert cbor2.loads(encode(one))[0] == 3
    assert decode(encode(one)).cut == one.cut
    assert decode(encode(other)).cut == other.cut
    assert len(encode(one)) - len(encode(other)) < 12


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"\x00" + data[1:],
        lambda _: zlib.compress(b"\x00" * 10),
        lambda _: zlib.compress(b"\x00" * 50_000_000, 9),
        lambda data: zlib.compress(zlib.decompress(data) + b"\x00"),
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # the check of what was compressed
    ],
)
def test_compressed_counters_of_another_size_are_refused(spoil: Callable[[bytes], bytes]) -> None:
    def change(items: list[Any]) -> None:
        items[7] = spoil(items[7])

    with pytest.raises(WireError, match="counters"):
        decode(rebuilt(change))


def test_no_changed_bit_of_compressed_counters_ends_a_reader_otherwise() -> None:
    """Some make zlib go on behind the last counter, and find out there."""
    refused = 0
    for place in range(1, 100):
        for bit in range(0, 8, 2):

            def change(items: list[Any], place: int = place, bit: int = bit) -> None:
                spoilt = bytearray(items[7])
                spoilt[-place] ^= 1 << bit
                items[7] = bytes(spoilt)

            try:
                decode(rebuilt(change))
            except WireError:
                refused += 1
    assert refused > 300


def test_compressed_counters_belong_to_version_2() -> None:
    with pytest.raises(WireError, match="the parameters call for"):
        encoded(rebuilt(lambda items: items.pop(), version=1))


def test_slews_of_epochs_that_follow_each_other_are_joined_with_room_for_the_bend() -> None:
    clocks = [
        KernelClock(False, 9, 0, 77, False, 3, slew) for slew in (Slew(0, 100, 0, 0, 1), Slew(150, 200, 5, 10, 2))
    ]
    joined = clocks[0].joined(clocks[1])
    assert joined.slew == Slew(0, 200, 0, 10, 7)
    assert clocks[0].joined(replace(clocks[1], slew=None)).slew is None
    assert clocks[0].joined(replace(clocks[1], lead_ns=78)).slew is None


@pytest.mark.parametrize(("boots", "was_set"), [((3, 3), False), ((3, 4), True), ((None, 4), False)])
def test_epochs_before_and_after_a_restart_are_on_no_one_lead(
    boots: tuple[int | None, int | None], was_set: bool
) -> None:
    first, second = (
        epoch(5, Cut(sequences=1, continues=True, clock=KernelClock(False, 9, 0, 77, False, boot)), sequence=number)
        for number, boot in zip((4, 5), boots, strict=True)
    )
    merged = merged_epoch(first, second).cut
    assert merged is not None
    assert merged.clock is not None
    assert merged.clock.was_set is was_set


def test_epochs_that_follow_each_other_merge_and_keep_their_places() -> None:
    clock = KernelClock(False, 9)
    first = epoch(20, Cut(1, 2, 1, False, 3), sequence=4)
    second = epoch(30, Cut(2, None, 2, True, 4, clock), sequence=6, seed=2)
    for pair in ((first, second), (second, first)):
        merged = merged_epoch(*pair)
        assert merged.sequence == 6
        assert merged.cut == Cut(1, None, 3, False, 7, clock)
        assert merged.recorded == 50


@pytest.mark.parametrize("later", [Cut(2, 3, 1, False), Cut(2, 3, 2, True)])
def test_epochs_with_something_between_them_do_not_merge(later: Cut) -> None:
    with pytest.raises(MismatchError, match="do not follow each other"):
        merged_epoch(epoch(1, Cut(1, 2), sequence=4), epoch(1, later, sequence=5))


def test_an_encoded_epoch_knows_its_cut() -> None:
    assert EncodedEpoch.of(epoch(1, Cut(5, 6))).cut == Cut(5, 6)
