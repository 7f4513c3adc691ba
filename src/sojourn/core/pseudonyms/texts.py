"""Texts with names and addresses in them: what operators ask, what they are answered, and what a node says of itself.

A question is about a key, which is translated whole, or about a pattern, of which that can be translated which stands
in it whole: an address, the leading bytes of an IPv4 address (``10.0.*``: prefixes are kept), a process's name before
its bracket. A pattern of parts of names (``mosq*``) has no pseudonym and is refused. The pseudonym of a name stays one.

Answers are translated back: addresses always, names where they are among the candidates.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, ip_address

from sojourn.core.errors import KeyTextError, UsageError
from sojourn.core.keys import NodeKey, ProcessKey, parse_key
from sojourn.core.pseudonyms.mapping import NODE_MARK, PROCESS_MARK, Address, Names, Pseudonyms

_AddressOf = Callable[[Address], Address]
_NameOf = Callable[[str], str]
_NAME = re.compile(rf"(?:{PROCESS_MARK}|{NODE_MARK})[a-z2-7]{{16}}")
_NAME_INSIDE = re.compile(rf"(?<![\w-]){_NAME.pattern}(?![\w-])")
# What may be an address inside a text: `ip_address` decides.
_ADDRESS_INSIDE = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\w)|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?<!\.)(?![\w:]|\.\w))"
)
_LEADING = re.compile(r"(\d{1,3}(?:\.\d{1,3}){0,2})\.\*")
_END = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^\[\]]+?))(?P<port>:[\d*?]+)?")
_BRACKETED = re.compile(r"(?P<name>.+)(?P<rest>\[[\d*?]*\]?)", re.DOTALL)
_VLAN = re.compile(r"(?P<tags>vlan [\d.*?-]+: )(?P<flow>.*)", re.DOTALL)
_WITHOUT_ADDRESS = re.compile(r"[*?]+|[a-z][a-z0-9*?]*|\d+", re.IGNORECASE)


def is_pattern(text: str) -> bool:
    """Whether a text stands for all that fit it."""
    return "*" in text or "?" in text


def hidden_text(pseudonyms: Pseudonyms, text: str) -> str:
    """The key or pattern to ask for in the place of a clear one.

    >>> hidden_text(Pseudonyms(bytes(32)), "10.0.0.1:* > *:1883 tcp")
    '227.118.171.237:* > *:1883 tcp'
    >>> hidden_text(Pseudonyms(bytes(32)), "mosquitto[*]")
    'p-riocq5mocgir3atm[*]'
    """
    if is_pattern(text):
        name = partial(_hidden_name, pseudonyms.process_name)
        return _translated(text, pseudonyms.address, name)
    key = parse_key(text)
    if isinstance(key, ProcessKey | NodeKey) and _NAME.fullmatch(key.name):
        return text
    return str(pseudonyms.key(key))


def clear_text(pseudonyms: Pseudonyms, text: str, names: Names) -> str:
    """What a key or pattern stands for; what cannot be turned back stays as it is.

    >>> pseudonyms = Pseudonyms(bytes(32))
    >>> clear_text(pseudonyms, "p-riocq5mocgir3atm[812]", Names(pseudonyms, ["mosquitto"]))
    'mosquitto[812]'
    """
    try:
        if is_pattern(text):
            return _translated(text, pseudonyms.clear_address, lambda name: names.of.get(name, name))
        return str(pseudonyms.clear_key(parse_key(text), names))
    except (UsageError, KeyTextError):
        return text


def clear_remark(pseudonyms: Pseudonyms, remark: str, names: Names) -> str:
    """A sentence with keys in it."""
    found = _NAME_INSIDE.sub(lambda match: names.of.get(match[0], match[0]), remark)
    return _with_addresses(found, pseudonyms.clear_address)


def hidden_remark(pseudonyms: Pseudonyms, remark: str) -> str:
    """A sentence in which addresses have become pseudonyms.

    >>> hidden_remark(Pseudonyms(bytes(32)), "filter 'host 10.0.0.1 or ::1' at 10:05:00")
    "filter 'host 227.118.171.237 or d9c5:fa:3874:f395:e6f5:7a36:7ea4:bea9' at 10:05:00"
    """
    return _with_addresses(remark, pseudonyms.address)


def _with_addresses(text: str, address: _AddressOf) -> str:
    def replaced(match: re.Match[str]) -> str:
        # A colon behind an address is the sentence's.
        for found in dict.fromkeys((match[0], match[0].removesuffix(":"))):
            try:
                return str(address(ip_address(found))) + match[0][len(found) :]
            except ValueError:
                continue
        return match[0]

    return _ADDRESS_INSIDE.sub(replaced, text)


def _hidden_name(process_name: _NameOf, name: str) -> str:
    if is_pattern(name):
        raise _partial(name)
    return name if _NAME.fullmatch(name) else process_name(name)


def _translated(text: str, address: _AddressOf, name: _NameOf) -> str:
    """A pattern with other addresses and names in it."""
    if vlan := _VLAN.fullmatch(text):
        return vlan["tags"] + _translated(vlan["flow"], address, name)
    if ">" in text:
        return "".join(_end(piece, address) for piece in re.split(r"(\s+|>)", text))
    if _LEADING.fullmatch(text):
        return _end(text, address)
    if bracketed := _BRACKETED.fullmatch(text):
        return name(bracketed["name"]) + bracketed["rest"]
    if set(text) <= {"*", "?"}:
        return text
    raise _partial(text)


def _end(piece: str, address: _AddressOf) -> str:
    """One word of a flow's pattern: an end with its address, or what has none."""
    if not piece.strip() or piece == ">" or _WITHOUT_ADDRESS.fullmatch(piece):
        return piece
    try:
        return str(address(ip_address(piece)))
    except ValueError:
        pass
    found = _END.fullmatch(piece)
    if found is None:
        raise _partial(piece)
    port, host = found["port"] or "", found["six"] or found["host"]
    if set(host) <= {"*", "?"}:
        return piece
    if leading := _LEADING.fullmatch(host):
        known = leading[1].split(".")
        whole = IPv4Address(".".join([*known, *["0"] * (4 - len(known))]))
        return ".".join(str(address(whole)).split(".")[: len(known)]) + f".*{port}"
    try:
        translated = str(address(ip_address(host)))
    except ValueError:
        raise _partial(piece) from None
    return f"[{translated}]{port}" if found["six"] else f"{translated}{port}"


def _partial(text: str) -> UsageError:
    return UsageError(
        f"{text[:100]!r} is part of a name or an address, and only whole ones have a pseudonym",
        where="--instance",
        action="write names and addresses whole, or the leading bytes of an IPv4 address (10.0.*)",
    )
