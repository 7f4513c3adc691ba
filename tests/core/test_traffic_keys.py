"""Keys of traffic: text, canonical bytes and fields, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import KeyTextError, ParameterError
from sojourn.core.keys import FlowKey, VlanFlowKey, flow_fields, key_from_bytes, parse_key

KEYS = [
    "10.0.0.1:80 > 10.0.0.2:443 tcp",
    "[2001:db8::1]:80 > [::2]:443 udp",
    "10.0.0.1 > 10.0.0.2 icmp",
    "10.0.0.1 > 10.0.0.2",
    "2001:db8::1 > ::2",
    "> 10.0.0.2",
    "> 10.0.0.0/24",
    "> 0.0.0.0/0",
    "> 2001:db8::/32",
    "> ::1",
    "vlan 100.7: 10.0.0.1:80 > 10.0.0.2:443 tcp",
    "vlan 1.2.3.4: [::1]:80 > [::2]:443 udp",
    "vlan -: 10.0.0.1 > 10.0.0.2 icmp",
]


@pytest.mark.parametrize("text", KEYS)
def test_text_bytes_and_key_are_exact_round_trips(text: str) -> None:
    key = parse_key(text)
    assert str(key) == text
    assert key_from_bytes(key.to_bytes()) == key


def test_different_keys_never_share_canonical_bytes() -> None:
    assert len({parse_key(text).to_bytes() for text in KEYS}) == len(KEYS)


@pytest.mark.parametrize(
    "text",
    ["> 10.0.0.1/24", "> 10.0.0.0/33", "10.0.0.1 > ::1", "vlan 4096: 10.0.0.1 > 10.0.0.2 tcp", "a > b"],
)
def test_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(KeyTextError):
        parse_key(text)


@given(data=st.binary(max_size=50))
def test_any_bytes_are_a_key_or_an_error(data: bytes) -> None:
    try:
        key = key_from_bytes(data)
    except KeyTextError:
        return
    assert key.to_bytes() == data


def test_fields_name_what_a_key_fixes() -> None:
    assert flow_fields(parse_key("> 10.0.0.0/24")) == {  # type: ignore[arg-type]
        "src_ip": None,
        "src_port": 0,
        "dest_ip": "10.0.0.0/24",
        "dest_port": 0,
        "protocol": None,
    }
    tagged = flow_fields(parse_key("vlan 3.4: 10.0.0.1:1 > 10.0.0.2:2 udp"))  # type: ignore[arg-type]
    assert tagged["vlan"] == "3.4"
    assert tagged["protocol"] == "udp"


def test_a_tag_stack_is_bounded() -> None:
    flow = parse_key(KEYS[0])
    assert isinstance(flow, FlowKey)
    with pytest.raises(ParameterError, match="5 VLAN tags"):
        VlanFlowKey((1, 2, 3, 4, 5), flow)
