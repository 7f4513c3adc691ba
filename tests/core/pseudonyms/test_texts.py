"""Patterns and remarks in pseudonyms and back."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from sojourn.core.errors import KeyTextError, UsageError
from sojourn.core.keys import parse_key
from sojourn.core.pseudonyms.mapping import Names, Pseudonyms
from sojourn.core.pseudonyms.texts import clear_remark, clear_text, hidden_remark, hidden_text
from sojourn.sources.source import InstancePatterns

PSEUDONYMS = Pseudonyms(bytes(range(32)))
NAMES = Names(PSEUDONYMS, ["mosquitto", "modules", "kworker/0:1"])
FLOW = "10.0.0.7:40112 > 10.0.0.2:1883 tcp"
# Patterns, and whether they fit `FLOW`.
PATTERNS = {
    "* > *:1883 tcp": True,
    "10.0.0.7:* > *": True,
    "10.0.0.7:* > 10.0.0.2:1883 tcp": True,
    "10.0.*": True,
    "10.0.0.*:40112 > 10.*:1883 t?p": True,
    "10.0.0.8:* > * tcp": False,
    "10.1.*": False,
    "[::1]:* > * tcp": False,
    "::1 > * icmpv6": False,
    "vlan 7: 10.0.0.7:40112 > * tcp": False,
    "*": True,
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_fits_pseudonyms_as_it_fits_what_they_stand_for(pattern: str) -> None:
    hidden = hidden_text(PSEUDONYMS, pattern)
    for flow in (FLOW, "10.0.0.9:40112 > 10.1.0.2:1883 tcp", "[::1]:7 > [::2]:8 tcp"):
        there = str(PSEUDONYMS.key(parse_key(flow)))
        assert InstancePatterns([hidden]).match(there) == InstancePatterns([pattern]).match(flow), flow
    assert InstancePatterns([pattern]).match(FLOW) == PATTERNS[pattern]
    assert clear_text(PSEUDONYMS, hidden, NAMES) == pattern


@pytest.mark.parametrize("text", [FLOW, "mosquitto[812]", "mosquitto[*]", "kworker/0:1[*]", "> 10.0.0.0/24", "modules"])
def test_a_text_comes_back(text: str) -> None:
    hidden = hidden_text(PSEUDONYMS, text)
    assert hidden != text
    assert clear_text(PSEUDONYMS, hidden, NAMES) == text
    assert clear_text(PSEUDONYMS, hidden, Names(PSEUDONYMS)) == (hidden if "10." not in text else text)


@pytest.mark.parametrize(
    "pattern", ["mosq*", "mosq*[1]", "*quitto[*]", "10.0.0.7* > *", "10* > *", "1?.0.0.7 > *", "a*b"]
)
def test_parts_of_names_and_addresses_are_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="only whole ones"):
        hidden_text(PSEUDONYMS, pattern)


def test_a_text_that_is_no_key_is_refused_as_elsewhere() -> None:
    with pytest.raises(KeyTextError):
        hidden_text(PSEUDONYMS, "10.0.0.7:80 > nowhere tcp")


def test_the_pseudonym_of_a_name_stays_one() -> None:
    hidden = hidden_text(PSEUDONYMS, "mosquitto[812]")
    assert hidden_text(PSEUDONYMS, hidden) == hidden
    assert hidden_text(PSEUDONYMS, hidden.replace("812", "*")) == hidden.replace("812", "*")


def test_a_remark_keeps_everything_but_addresses() -> None:
    remark = (
        "filter 'host 10.0.0.7 or ::1': 3 packets at 10:05:03 from aa:bb:cc:dd:ee:ff, version 1.2.3, eth0: [::1]:80"
    )
    hidden = hidden_remark(PSEUDONYMS, remark)
    four, six = PSEUDONYMS.address(ip_address("10.0.0.7")), PSEUDONYMS.address(ip_address("::1"))
    assert hidden == remark.replace("10.0.0.7", str(four)).replace("::1", str(six))
    assert clear_remark(PSEUDONYMS, hidden, NAMES) == remark


@pytest.mark.parametrize("sentence", ["away is {}.", "{}: away", "{}, {}: away...", "[{}]. away", "at 10:05:03. {};"])
@pytest.mark.parametrize("address", ["10.0.0.7", "2001:db8::7", "::1"])
def test_an_address_at_the_end_of_a_sentence_is_one(sentence: str, address: str) -> None:
    hidden = str(PSEUDONYMS.address(ip_address(address)))
    remark = sentence.format(address, address)
    assert hidden_remark(PSEUDONYMS, remark) == sentence.format(hidden, hidden)
    assert clear_remark(PSEUDONYMS, hidden_remark(PSEUDONYMS, remark), NAMES) == remark


def test_names_in_a_remark_come_back_as_far_as_they_are_known() -> None:
    listed = [str(PSEUDONYMS.key(parse_key(text))) for text in ("mosquitto[1]", "other[2]", FLOW)]
    shown = clear_remark(PSEUDONYMS, f"seen in the range: {', '.join(listed)}", NAMES)
    assert shown == f"seen in the range: mosquitto[1], {listed[1]}, {FLOW}"
