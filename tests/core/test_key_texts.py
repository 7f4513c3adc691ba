"""Keys from texts of strangers: bounded work, bounded errors, and every key is found again in its own text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import KeyTextError, ParameterError
from sojourn.core.keys import FlowKey, NodeKey, ProcessKey, key_from_bytes, parse_key

PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=50)


@pytest.mark.parametrize("text", ["a" * 65_536, "1:" * 30_000, "f" * 5000 + " > ::1 tcp", "vlan 1: " + "a" * 60_000])
def test_a_long_text_is_refused_unread(text: str) -> None:
    with pytest.raises(KeyTextError, match=f"no text of {len(text)} characters"):
        parse_key(text)


@pytest.mark.parametrize("text", ["a" * 512, "10.0.0.1 > 1" + "\udcac" * 90 + " gre", "1.1.1.1 > 2.2.2.2 " + "9" * 400])
def test_an_error_does_not_repeat_a_long_text(text: str) -> None:
    with pytest.raises(KeyTextError) as refusal:
        parse_key(text)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    "name", ["a > b", ">", "10.0.0.1 > 10.0.0.2", "> 10.0.0.0/8", "x[3]", "vlan 1: a > b udp", "x" * 200]
)
def test_a_process_of_any_name_is_read_from_its_text(name: str) -> None:
    key = ProcessKey(name, 2**32 - 1)
    assert parse_key(str(key)) == key
    assert key_from_bytes(key.to_bytes()) == key


@given(name=PRINTABLE, pid=st.integers(0, 2**32 - 1))
def test_process_keys_round_trip(name: str, pid: int) -> None:
    key = ProcessKey(name, pid)
    assert parse_key(str(key)) == key_from_bytes(key.to_bytes()) == key


@given(name=PRINTABLE)
def test_node_keys_round_trip_or_cannot_be(name: str) -> None:
    try:
        key = NodeKey(name)
    except ParameterError:
        assert ">" in name or name.endswith("]")
        return
    assert parse_key(str(key)) == key_from_bytes(key.to_bytes()) == key


@given(st.binary(min_size=1, max_size=40))
def test_bytes_are_one_key_or_none(data: bytes) -> None:
    try:
        key = key_from_bytes(data)
    except KeyTextError:
        return
    assert key.to_bytes() == data
    assert parse_key(str(key)) == key


def test_a_flow_is_still_a_flow() -> None:
    assert isinstance(parse_key(" 10.0.0.1:80 > 10.0.0.2:443 tcp "), FlowKey)
    with pytest.raises(KeyTextError, match="is not a flow"):
        parse_key("10.0.0.1 > somewhere")
