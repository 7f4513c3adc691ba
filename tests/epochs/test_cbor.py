"""CBOR in plain Python: takes and refuses what the compiled library does, and writes the same."""

from __future__ import annotations

import io
import math

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sojourn.core.errors import WireError
from sojourn.epochs.cbor import dump_plainly, load_item, load_plainly
from sojourn.epochs.packing import pack_column, unpack_column

DEPTH = 5
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30)
    | st.binary(max_size=300)
)
items = st.recursive(
    leaves, lambda part: st.lists(part, max_size=30) | st.dictionaries(st.text(max_size=5), part, max_size=5)
)


def read(by, data: bytes, depth: int = DEPTH) -> tuple[object, int] | str:
    """The item and where it ends, or that it is refused."""
    stream = io.BytesIO(data)
    try:
        return by(stream, "test", depth=depth), stream.tell()
    except WireError:
        return "refused"


def depth_of(item: object) -> int:
    if isinstance(item, dict):
        return 1 + max(map(depth_of, item.values()), default=0)
    return 1 + max(map(depth_of, item), default=0) if isinstance(item, list) else 0


@given(items)
def test_it_writes_what_the_library_does(item: object) -> None:
    assert dump_plainly(item) == cbor2.dumps(item)


@given(items, st.integers(1, 6))
def test_it_reads_what_the_library_does(item: object, depth: int) -> None:
    """Up to a depth; of empty lists the library takes one level more."""
    data = cbor2.dumps(item) + b"rest"
    found, is_too_deep = read(load_plainly, data, depth), depth_of(item) > depth
    assert (found == "refused") == is_too_deep
    assert is_too_deep or found == read(load_item, data, depth)


@given(st.binary(max_size=60))
@example(b"\xc0\x00")  # a tag
@example(b"\x9f\xff")  # no length
@example(b"\xa2\x01\x02\x01\x03")  # a key twice
@example(b"\xa1\x80\x01")  # a list for a key
@example(b"\x61\xff")  # no UTF-8
@example(b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff")  # more than there is
@example(b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff")
@example(b"\x1c")
@example(b"\xff")
@example(b"\xf9\x3c\x00")
@example(b"\x18\x01")  # longer than it need be
def test_of_any_bytes_it_takes_no_more_than_the_library(data: bytes) -> None:
    """Simple values without a meaning, which no epoch has, it refuses."""
    found, expected = read(load_plainly, data), read(load_item, data)
    if found == "refused":
        assert expected == "refused" or b"\xf7" in data or any(0xE0 <= byte < 0xF9 for byte in data)
    else:
        assert repr(found) == repr(expected)


@pytest.mark.parametrize("data", [b"\xf7", b"\xe5", b"\xf8\x20"])
def test_values_without_a_meaning_are_refused(data: bytes) -> None:
    assert read(load_plainly, data) == "refused"


def test_floats_of_all_lengths_are_read() -> None:
    assert read(load_plainly, b"\xf9\x7c\x00") == (math.inf, 3)
    assert read(load_plainly, b"\xfa\x3f\x80\x00\x00") == (1.0, 5)


@given(st.integers(1, 64), st.lists(st.integers(-(2**63), 2**64 - 1), max_size=40))
def test_packed_columns_are_read_as_they_were_written(bits: int, values: list[int]) -> None:
    packed = pack_column(values, bits)
    assert len(packed) == (len(values) * bits + 7) // 8
    assert unpack_column(packed, len(values), bits) == [value % (1 << bits) for value in values]
    centred = unpack_column(packed, len(values), bits, is_centred=True)
    assert all(-(1 << bits - 1) <= value < 1 << bits - 1 for value in centred)
    assert pack_column(centred, bits) == packed


def test_bits_behind_the_last_value_are_refused() -> None:
    with pytest.raises(WireError, match="bits after the last counter"):
        unpack_column(b"\xff", 1, 5)
