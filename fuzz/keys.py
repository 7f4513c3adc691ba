"""Target over keys: texts and canonical bytes; what is read is written back the same."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.target import Target, require_one_line
from sojourn.core.errors import KeyTextError
from sojourn.core.keys import Key, flow_fields, key_from_bytes, key_id, parse_key

__all__ = ["KEYS"]

_TEXT, _BYTES = b"t", b"b"
_TEXTS = (
    "10.0.0.1:80 > 10.0.0.2:443 tcp",
    "[2001:db8::1]:80 > [::2]:443 udp",
    "::1 > ::2 icmpv6",
    "10.0.0.1 > 10.0.0.2 gre",
    "10.0.0.1 > 10.0.0.2",
    "fe80::1 > ::ffff:1.2.3.4",
    "> 10.0.0.0/24",
    "> 2001:db8::/32",
    "vlan 100.7: 10.0.0.1:80 > 10.0.0.2:443 99",
    "vlan -: [::1]:1 > [::2]:2 sctp",
    "mosquitto[812]",
    "a > b[7]",
    "gateway-7",
)


def _check_round_trips(key: Key) -> None:
    assert key_from_bytes(key.to_bytes()) == key
    assert parse_key(str(key)) == key, "a key's text reads as another key"
    assert 0 <= key_id(key) < 1 << 64
    if hasattr(key, "dest_ip"):
        assert flow_fields(key)["dest_ip"]  # type: ignore[arg-type]


def _run(data: bytes) -> None:
    try:
        if data[:1] == _TEXT:
            _check_round_trips(parse_key(data[1:].decode("utf-8", "surrogateescape")))
        else:
            key = key_from_bytes(data[1:])
            assert key.to_bytes() == data[1:], "two texts of bytes for one key"
            _check_round_trips(key)
    except KeyTextError as error:
        require_one_line(error)


def _seeds() -> Iterator[bytes]:
    for text in _TEXTS:
        yield _TEXT + text.encode()
    for text in _TEXTS:
        if text != "a > b[7]":
            yield _BYTES + parse_key(text).to_bytes()


KEYS = Target("keys", _run, _seeds)
