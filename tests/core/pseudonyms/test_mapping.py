"""Pseudonyms of addresses keep prefixes and nothing else, are a bijection, and the same wherever the secret is."""

from __future__ import annotations

import subprocess
import sys
from hashlib import blake2s
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.core.errors import ParameterError
from sojourn.core.keys import DestinationKey, NodeKey, ProcessKey, key_from_bytes, parse_key
from sojourn.core.pseudonyms.mapping import Names, Pseudonyms

SECRET = bytes(range(32))
PSEUDONYMS = Pseudonyms(SECRET)
KEYS = [
    "10.0.0.1:80 > 10.0.0.2:443 tcp",
    "10.0.0.1 > 10.0.0.2 icmp",
    "[2001:db8::1]:80 > [::2]:443 udp",
    "10.0.0.1 > 10.0.0.2",
    "> 10.0.0.2",
    "> 10.0.16.0/20",
    "> 2001:db8::/32",
    "> 0.0.0.0/0",
    "vlan 100.7: 10.0.0.1:80 > 10.0.0.2:443 tcp",
    "mosquitto[812]",
    "a > b[3]",
    "modules",
]
versions = st.sampled_from([(IPv4Address, 32), (IPv6Address, 128)])
pairs = versions.flatmap(
    lambda kind: st.tuples(
        st.integers(0, 2 ** kind[1] - 1).map(kind[0]),
        st.integers(0, 2 ** kind[1] - 1).map(kind[0]),
        st.integers(0, kind[1]),
    )
)


def common_bits(one: IPv4Address | IPv6Address, other: IPv4Address | IPv6Address) -> int:
    """How many leading bits two addresses of one version share."""
    return one.max_prefixlen - (int(one) ^ int(other)).bit_length()


def modelled(address: IPv4Address | IPv6Address) -> int:
    """The construction bit by bit: each flipped by a keyed function of those before it."""
    size, found = address.max_prefixlen, 0
    for at in range(size):
        before = int(address) >> (size - at)  # the bits so far, as a number
        whole, rest = divmod(at, 8)
        prefix = (before >> rest).to_bytes(whole, "big")
        node = 1 << rest | before & ((1 << rest) - 1)
        keyed = blake2s(prefix, key=SECRET, person=f"ip {size // 8}".encode(), digest_size=32).digest()
        bit = int(address) >> (size - 1 - at) & 1
        found = found << 1 | bit ^ (keyed[node // 8] >> node % 8 & 1)
    return found


@given(pairs)
@settings(max_examples=300)
def test_two_pseudonyms_have_as_many_leading_bits_in_common_as_the_addresses(
    drawn: tuple[IPv4Address | IPv6Address, IPv4Address | IPv6Address, int],
) -> None:
    one, other, shared = drawn
    size = one.max_prefixlen
    near = type(one)(int(one) >> (size - shared) << (size - shared) | int(other) & ((1 << (size - shared)) - 1))
    for second in (other, near):
        hidden = PSEUDONYMS.address(one), PSEUDONYMS.address(second)
        assert common_bits(*hidden) == common_bits(one, second)
        assert type(hidden[0]) is type(one)


@given(versions.flatmap(lambda kind: st.integers(0, 2 ** kind[1] - 1).map(kind[0])))
@settings(max_examples=100)
def test_an_address_is_found_again_and_is_that_of_the_construction(address: IPv4Address | IPv6Address) -> None:
    hidden = PSEUDONYMS.address(address)
    assert int(hidden) == modelled(address)
    assert PSEUDONYMS.clear_address(hidden) == address


@pytest.mark.parametrize("network", ["10.1.0.0/20", "2001:db8::/116"])
def test_the_addresses_of_a_network_are_exactly_those_of_its_pseudonym(network: str) -> None:
    hidden = PSEUDONYMS.key(DestinationKey(ip_network(network)))
    assert isinstance(hidden, DestinationKey)
    assert {PSEUDONYMS.address(address) for address in ip_network(network)} == set(hidden.network)


def test_bits_are_flipped_as_by_chance() -> None:
    """Of 4096 addresses each bit of the pseudonym differs from its own in about half; 6 sigma, which fails never."""
    addresses = [IPv4Address(n * 0x9E3779B1 % 2**32) for n in range(4096)]
    for at in range(8, 32):
        flipped = sum((int(a) ^ int(PSEUDONYMS.address(a))) >> (31 - at) & 1 for a in addresses)
        assert abs(flipped - 2048) < 6 * 32, at


@pytest.mark.parametrize("text", KEYS)
def test_every_kind_of_key_has_a_pseudonym_of_its_kind_and_size(text: str) -> None:
    key = parse_key(text)
    hidden = PSEUDONYMS.key(key)
    assert type(hidden) is type(key)
    assert hidden.to_bytes()[0] == key.to_bytes()[0]
    assert key_from_bytes(hidden.to_bytes()) == hidden == parse_key(str(hidden))
    assert PSEUDONYMS.clear_key(hidden, Names(PSEUDONYMS, ["mosquitto", "a > b", "modules"])) == key
    if text != "> 0.0.0.0/0":
        assert hidden != key


def test_a_name_stays_one_and_its_number_too() -> None:
    hidden = PSEUDONYMS.key(ProcessKey("mosquitto", 812))
    assert isinstance(hidden, ProcessKey)
    assert (hidden.pid, hidden.name[:2], len(hidden.name)) == (812, "p-", 18)
    assert hidden.name == PSEUDONYMS.process_name("mosquitto") != PSEUDONYMS.process_name("mosquittp")
    assert PSEUDONYMS.node_name("mosquitto")[2:] != hidden.name[2:]
    assert PSEUDONYMS.clear_key(hidden) == hidden, "without a candidate nobody turns it back"


def test_the_nodes_own_name_is_its_operators_choice() -> None:
    assert Pseudonyms(SECRET, node="gateway-7").key(NodeKey("gateway-7")) == NodeKey("gateway-7")


def test_pseudonyms_are_the_same_after_a_restart_and_in_every_version() -> None:
    """Another process, and what is stored in databases under them."""
    code = "from sojourn.core.pseudonyms.mapping import Pseudonyms\nfrom sojourn.core.keys import parse_key\n"
    code += "print(Pseudonyms(bytes(range(32))).key(parse_key(input())))\n" * 3
    asked = [KEYS[0], KEYS[2], KEYS[9]]
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(asked), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str(PSEUDONYMS.key(parse_key(text))) for text in asked] == STORED


STORED = [
    "163.179.63.189:80 > 163.179.63.191:443 tcp",
    "[3c9e:7383:5a74:fa3a:3658:f297:490f:dcd1]:80 > [3c7:589b:d38c:8647:7fc2:2822:cc5b:ddaa]:443 udp",
    "p-rrwjg222xifl3ra7[812]",
]


def test_another_secret_gives_other_pseudonyms() -> None:
    other = Pseudonyms(bytes(31) + b"\x01")
    assert other.fingerprint != PSEUDONYMS.fingerprint
    for text in KEYS:
        if text != "> 0.0.0.0/0":
            assert other.key(parse_key(text)) != PSEUDONYMS.key(parse_key(text)), text
    assert other.unknown_id(7) != PSEUDONYMS.unknown_id(7)
    assert other.hash_key("packet") != PSEUDONYMS.hash_key("packet") != PSEUDONYMS.hash_key("flow")


def test_what_is_remembered_is_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.core.pseudonyms.mapping.MOST_REMEMBERED", 8)
    forgetful = Pseudonyms(SECRET)
    for n in range(50):
        address = ip_address(n * 0x01010101)
        assert forgetful.address(address) == PSEUDONYMS.address(address)
    assert len(forgetful._addresses) <= 8


def test_its_secret_is_not_in_what_is_printed() -> None:
    assert repr(PSEUDONYMS) == f"Pseudonyms({PSEUDONYMS.fingerprint})"
    with pytest.raises(ParameterError, match="32 random"):
        Pseudonyms(b"short")
