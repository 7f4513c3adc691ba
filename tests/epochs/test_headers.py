"""Headers of many epochs at once: what the general reader finds, and what it complains of, whatever comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import cbor2
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import strategies as own
from sojourn.core.errors import WireError
from sojourn.core.keys import ProcessKey
from sojourn.epochs import headers
from sojourn.epochs.encoded import FEW_KEYS, EncodedEpoch, encoded_sequence, epoch_at
from sojourn.epochs.epoch import Cut, Epoch, KernelClock
from sojourn.epochs.headers import TOGETHER, encoded_epochs
from sojourn.epochs.wire import encode
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.sketches.sketch import new_sketch

NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=20)
KEYS = st.one_of(st.none(), st.lists(st.builds(ProcessKey, NAMES, st.integers(0, 99)), max_size=4).map(tuple))
CUTS = st.sampled_from([None, Cut(begins=3, ends=2**64 - 1), Cut(clock=KernelClock(True, 5)), Cut(missed=9)])
PARAMETERS = own.bucket_array_parameters() | own.sds_parameters() | own.lda_parameters() | own.sample_parameters()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=60),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def encoded_ones(draw: st.DrawFn) -> bytes:
    """One epoch as bytes."""
    sketch = new_sketch(draw(PARAMETERS))
    if hasattr(sketch, "record_batch") and draw(st.booleans()):
        sketch.recorded, sketch.first_ns, sketch.last_ns = 1, -(2**62), draw(st.integers(-(2**62), 2**62 - 1))
    number = draw(st.integers(0, 30) | st.integers(0, 2**63 - 1))
    return encode(Epoch(draw(NAMES), draw(NAMES), number, sketch, draw(KEYS), draw(CUTS)))


def small(number: int, *, keys: int = 3) -> bytes:
    sketch = BucketArray(BucketArrayParameters(buckets=20, per_instance=5, bits=16))
    sketch.record(1, 3, 10**18 + number)
    return encode(Epoch("node", "stream", number, sketch, tuple(ProcessKey("p", i) for i in range(keys))))


def checked(body: bytes) -> bytes:
    """A body with the check that it calls for."""
    return cbor2.dumps([1, body, xxhash.xxh64_intdigest(body) & 0xFFFFFFFF])


Found = tuple[list[tuple[object, ...]], str]


def outcome(read: Callable[[bytes], Iterator[EncodedEpoch]], data: bytes) -> Found:
    """All that is known of the epochs, and how it ended."""
    found: list[tuple[object, ...]] = []
    try:
        # What came before an error counts.
        found.extend((epoch, epoch.counters(), listed(epoch), epoch.data) for epoch in read(data))
    except WireError as error:
        return found, str(error)
    return found, ""


def listed(epoch: EncodedEpoch) -> object:
    try:
        return epoch.listed()
    except WireError as error:
        return str(error)


def assert_same(data: bytes) -> Found:
    expected = outcome(encoded_sequence, data)
    assert outcome(encoded_epochs, data) == expected
    assert outcome(encoded_epochs, data) == expected, "also when all layouts are known"
    return expected


@given(st.lists(encoded_ones(), max_size=6))
def test_epochs_are_those_of_the_general_reader(some: list[bytes]) -> None:
    found, error = assert_same(b"".join(some))
    assert len(found) == len(some)
    assert error == ""


@given(st.integers(0, 8), VALUES)
def test_any_value_in_any_field_is_taken_or_refused_alike(position: int, value: object) -> None:
    items = cbor2.loads(cbor2.loads(small(1))[1])
    items[position] = value
    assert_same(small(0) + checked(cbor2.dumps(items)) + small(2))


@given(st.data())
def test_any_change_of_bytes_of_a_body_is_taken_or_refused_alike(data: st.DataObject) -> None:
    """Heads that are not the shortest, tags, indefinite lengths, sizes that lie, text that is none."""
    body = bytearray(cbor2.loads(small(1))[1])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body) - 1))
        count = data.draw(st.integers(0, 2))
        body[place : place + count] = data.draw(st.binary(min_size=0 if count else 1, max_size=9))
    assert_same(small(0) + checked(bytes(body)) + small(2))


@given(st.data())
def test_any_change_of_any_byte_is_taken_or_refused_alike(data: st.DataObject) -> None:
    body = bytearray(small(0) + small(1) + small(2))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert_same(bytes(body[: data.draw(st.integers(0, len(body)))]))


@pytest.mark.parametrize("head", ["1800", "190000", "1a00000000", "1b0000000000000000", "00"])
def test_heads_that_are_longer_than_need_be_mean_the_same(head: str) -> None:
    body = cbor2.loads(small(0))[1]
    name = cbor2.dumps("stream")
    before, after = body.split(name)
    found, _ = assert_same(checked(before + name + bytes.fromhex(head) + after[1:]))
    assert len(found) == 1


def test_a_body_of_nothing_has_no_epochs() -> None:
    assert list(encoded_epochs(b"")) == []


def test_more_epochs_than_are_found_at_once_and_one_that_is_unusual_among_them() -> None:
    unusual = checked(cbor2.dumps(cbor2.loads(cbor2.loads(small(7))[1]), canonical=False) + b"")
    items = cbor2.loads(cbor2.loads(small(8))[1])
    items[8] = [1, b"2"]
    odd = checked(cbor2.dumps(items))
    data = b"".join(map(small, range(TOGETHER))) + odd + unusual + b"".join(map(small, range(2 * TOGETHER + 3)))
    found, error = assert_same(data)
    assert (len(found), error) == (3 * TOGETHER + 5, "")


def test_long_lists_of_keys_are_not_kept() -> None:
    few, many = small(0, keys=FEW_KEYS), small(1, keys=FEW_KEYS + 1)
    assert_same(few + many)
    assert [epoch.few_keys is None for epoch in encoded_epochs(few + many)] == [False, True]


def test_usual_epochs_do_not_need_the_general_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    list(encoded_epochs(small(0)))
    calls: list[int] = []

    def counted(data: bytes, start: int) -> EncodedEpoch:
        calls.append(start)
        return epoch_at(data, start)

    monkeypatch.setattr(headers, "epoch_at", counted)
    assert len(list(encoded_epochs(b"".join(map(small, range(300)))))) == 300
    assert calls == []


def test_a_reader_who_stops_early_is_not_told_of_what_comes_later() -> None:
    data = small(0) + small(1) + b"\xff"
    assert [epoch.sequence for epoch in islice(encoded_epochs(data), 2)] == [0, 1]
