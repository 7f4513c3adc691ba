"""Keys: text, canonical bytes, ids."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import KeyTextError, ParameterError, SojournError
from sojourn.core.keys import FEW_KEYS, FlowKey, NodeKey, ProcessKey, key_from_bytes, key_id, named_ids, parse_key

PORTS = st.integers(0, 65535)
NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"], exclude_characters="[]>"), min_size=1)


def flows(addresses):
    return st.builds(FlowKey, addresses, PORTS, addresses, PORTS, st.integers(0, 255))


KEYS = st.one_of(
    flows(st.ip_addresses(v=4)),
    flows(st.ip_addresses(v=6)),
    st.builds(ProcessKey, NAMES.filter(lambda n: len(n.encode()) < 200), st.integers(0, 2**32 - 1)),
    st.builds(NodeKey, NAMES.filter(lambda n: len(n.encode()) < 200)),
)


@given(KEYS)
def test_text_and_bytes_are_exact_round_trips(key) -> None:
    assert parse_key(str(key)) == key
    assert key_from_bytes(key.to_bytes()) == key


@given(KEYS, KEYS)
def test_different_keys_have_different_bytes(one, other) -> None:
    assert (one == other) == (one.to_bytes() == other.to_bytes())


@given(KEYS)
def test_the_id_is_the_xxh64_of_the_canonical_bytes(key) -> None:
    assert key_id(key) == xxhash.xxh64_intdigest(key.to_bytes())


MAPPED = FlowKey(IPv6Address("::ffff:10.0.0.1"), 1, IPv6Address("::10.0.0.2"), 2, 17)


@given(st.lists(KEYS, max_size=5), st.sampled_from((1, FEW_KEYS)))
def test_keys_named_together_have_the_names_and_ids_that_they_have_alone(keys, times: int) -> None:
    together = [*keys, MAPPED] * times
    ids, texts = named_ids([key.to_bytes() for key in together])
    assert texts == [str(key) for key in together]
    assert ids == [key_id(key) for key in together]
    with pytest.raises(KeyTextError):
        named_ids([key.to_bytes() for key in keys] + [b"\x01short"])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (
            "10.0.0.1:80 > 10.0.0.2:443 tcp",
            FlowKey(IPv4Address("10.0.0.1"), 80, IPv4Address("10.0.0.2"), 443, 6),
        ),
        (
            "  10.0.0.1:80>10.0.0.2:443   UDP ",
            FlowKey(IPv4Address("10.0.0.1"), 80, IPv4Address("10.0.0.2"), 443, 17),
        ),
        ("[fe80::1]:5 > [::2]:6 sctp", FlowKey(IPv6Address("fe80::1"), 5, IPv6Address("::2"), 6, 132)),
        ("::1 > ::2 icmpv6", FlowKey(IPv6Address("::1"), 0, IPv6Address("::2"), 0, 58)),
        ("1.2.3.4 > 5.6.7.8 89", FlowKey(IPv4Address("1.2.3.4"), 0, IPv4Address("5.6.7.8"), 0, 89)),
        ("mosquitto[812]", ProcessKey("mosquitto", 812)),
        ("kworker/0:1[9]", ProcessKey("kworker/0:1", 9)),
        ("gateway-7", NodeKey("gateway-7")),
    ],
)
def test_texts_that_people_write(text: str, key) -> None:
    assert parse_key(text) == key


@pytest.mark.parametrize(
    "text",
    ["", " ", "10.0.0.1:99999 > 10.0.0.2:1 tcp", "10.0.0.1 > ::1 tcp", "a > b", "10.0.0 > 10.0.0.2 tcp",
     "10.0.0.1:1 > 10.0.0.2:2 nonsense", "p[99999999999]", "x" * 300],
)  # fmt: skip
def test_bad_texts_say_what_to_write(text: str) -> None:
    with pytest.raises(KeyTextError, match="SRC:PORT > DEST:PORT"):
        parse_key(text)


@given(st.binary(max_size=60))
def test_random_bytes_are_a_key_or_a_clear_error(data: bytes) -> None:
    try:
        key = key_from_bytes(data)
    except SojournError:
        return
    assert key.to_bytes() == data


def test_a_reversed_flow_is_another_instance() -> None:
    key = parse_key("10.0.0.1:80 > 10.0.0.2:443 tcp")
    assert isinstance(key, FlowKey)
    assert str(key.reversed()) == "10.0.0.2:443 > 10.0.0.1:80 tcp"
    assert key_id(key.reversed()) != key_id(key)


def test_out_of_range_parts_are_refused() -> None:
    address = IPv4Address("10.0.0.1")
    with pytest.raises(ParameterError, match="source port 70000 does not fit 16 bits"):
        FlowKey(address, 70000, address, 1, 6)
    with pytest.raises(ParameterError, match="different IP versions"):
        FlowKey(address, 1, IPv6Address("::1"), 1, 6)
