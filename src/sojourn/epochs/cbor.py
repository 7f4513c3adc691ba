"""CBOR (RFC 8949) as epochs use it: by the compiled library where it is installed, in plain Python where it is not.

Guarantee of `load_item`, either way: no tags, no indefinite lengths, no key twice, no nesting beyond what is asked for,
text that is UTF-8; nothing is allocated that has not come. Both forms take and refuse the same epochs. `dumps` gives
the shortest heads, in the order in which items are given.
Cost in plain Python: some 2 µs for each item.
"""

from __future__ import annotations

import io
import struct
from typing import Any, Protocol

from sojourn.core.errors import WireError

cbor2: Any
try:
    import cbor2
except ModuleNotFoundError:  # a board for which nobody has compiled it
    cbor2 = None

_SIMPLE = {20: False, 21: True, 22: None}
_FLOATS = {25: (2, ">e"), 26: (4, ">f"), 27: (8, ">d")}
_DEEPEST = 16


class Readable(Protocol):
    """What is read from."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, fewer at the end."""


def _reject_tag(*_: object) -> object:
    raise WireError("CBOR tags are not part of the format", where="message")


# Every tag that the library would otherwise interpret on its own.
_TAGS = (*range(6), *range(25, 38), *range(43, 44), 52, 54, 100, 256, *range(258, 262), 1004, 43000, 55799)
_STRICT: Any = {
    "tag_hook": _reject_tag,
    "semantic_decoders": dict.fromkeys(_TAGS, _reject_tag),
    "allow_indefinite": False,
    "allow_duplicate_keys": False,
    "strict_hashable_types": True,
}


def load_item(stream: Any, where: str, *, depth: int, what: str = "an epoch") -> object:
    """One CBOR item, by the strictest reading there is."""
    if cbor2 is None:
        return load_plainly(stream, where, depth=depth, what=what)
    try:
        item: object = cbor2.load(stream, max_depth=depth, **_STRICT)
        return item
    except cbor2.CBORDecodeEOF:
        raise _ends_early(where) from None
    except (cbor2.CBORError, ValueError, OverflowError) as error:
        raise _not_cbor(error, where, what) from None


def load_plainly(stream: Readable, where: str, *, depth: int, what: str = "an epoch") -> object:
    """The same without the library."""
    try:
        return _item(stream, depth)
    except EOFError:
        raise _ends_early(where) from None
    except (ValueError, OverflowError) as error:
        raise _not_cbor(error, where, what) from None


def _ends_early(where: str) -> WireError:
    return WireError("the data ends early", where=where, action="send all of it")


def _not_cbor(error: Exception, where: str, what: str) -> WireError:
    return WireError(f"not the CBOR of {what} ({str(error)[:80]})", where=where)


def loads(data: bytes) -> Any:
    """The item in bytes that were read strictly before."""
    return _item(io.BytesIO(data), _DEEPEST) if cbor2 is None else cbor2.loads(data)


def dumps(item: object) -> bytes:
    """An item as bytes."""
    if cbor2 is None:
        return dump_plainly(item)
    data: bytes = cbor2.dumps(item)
    return data


def _read(stream: Readable, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _item(stream: Readable, depth: int) -> object:
    (first,) = _read(stream, 1)
    major, more = first >> 5, first & 31
    if major == 6:
        return _reject_tag()
    if major == 7:
        return _simple(stream, more)
    if more > 27:
        raise ValueError(f"a head of {first:#04x}")
    size = more if more < 24 else int.from_bytes(_read(stream, 1 << (more - 24)), "big")
    if major < 2:
        return -1 - size if major else size
    if major == 2:
        return _read(stream, size)
    if major == 3:
        return _read(stream, size).decode()
    if not depth:
        raise ValueError("nested too deeply")
    if major == 4:
        return [_item(stream, depth - 1) for _ in range(size)]
    return _pairs(stream, size, depth - 1)


def _pairs(stream: Readable, size: int, depth: int) -> dict[Any, object]:
    found: dict[Any, object] = {}
    for _ in range(size):
        key = _item(stream, depth)
        if isinstance(key, list | dict) or key in found:
            raise ValueError("a key that is a list, or comes twice")
        found[key] = _item(stream, depth)
    return found


def _simple(stream: Readable, more: int) -> object:
    if more in _SIMPLE:
        return _SIMPLE[more]
    if more not in _FLOATS:
        raise ValueError(f"a simple value of {more}")
    size, form = _FLOATS[more]
    value: float = struct.unpack(form, _read(stream, size))[0]
    return value


def dump_plainly(item: object) -> bytes:
    """The same as `dumps` without the library."""
    if item is None or isinstance(item, bool):
        return b"\xf6" if item is None else b"\xf5" if item else b"\xf4"
    if isinstance(item, int):
        return _head(0, item) if item >= 0 else _head(1, -1 - item)
    if isinstance(item, float):
        return b"\xfb" + struct.pack(">d", item)
    if isinstance(item, str):
        text = item.encode()
        return _head(3, len(text)) + text
    if isinstance(item, bytes):
        return _head(2, len(item)) + item
    if isinstance(item, list | tuple):
        return _head(4, len(item)) + b"".join(map(dump_plainly, item))
    if isinstance(item, dict):
        pairs = (dump_plainly(key) + dump_plainly(value) for key, value in item.items())
        return _head(5, len(item)) + b"".join(pairs)
    raise TypeError(f"an epoch holds no {type(item).__name__}")


def _head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes([major << 5 | value])
    size = next(size for size in range(4) if not value >> (8 << size))
    return bytes([major << 5 | 24 + size]) + value.to_bytes(1 << size, "big")
