"""Messages of probing under a key that both ends share: nobody else can make one, and an old one is worth nothing.

A signed message is followed by the time it was sent (8 bytes, ns since the Unix epoch) and a tag: the first 16 bytes of
HMAC-SHA-256 over its direction, the message and that time. The message holds its session's random number, so a tag is
of no use in another session, and the direction keeps a request from being sent back as an answer. `MOST_AGE_NS` is how
far the ends' clocks may be apart, and for how long a message could be replayed at all; the reflector refuses those too.
Messages can be read by everybody.
"""

from __future__ import annotations

import hmac
import os
import stat
import struct
from enum import Enum
from pathlib import Path

from sojourn.core.errors import UsageError, WireError

__all__ = ["MOST_AGE_NS", "SEAL_BYTES", "Way", "read_probe_key", "sealed", "unsealed"]

TAG_BYTES = 16
_TIME = struct.Struct(">Q")
SEAL_BYTES = _TIME.size + TAG_BYTES
MOST_AGE_NS = 60 * 10**9
SHORTEST_KEY, LONGEST_KEY = 16, 1024
_HOW = "make one by: (umask 077; openssl rand -hex 32 > FILE)"


class Way(Enum):
    """Who a message is for."""

    TO_REFLECTOR = b"sojourn probe to reflector\0"
    TO_PROBER = b"sojourn probe to prober\0"


def sealed(key: bytes, way: Way, message: bytes, time_ns: int) -> bytes:
    """A message with the time it is sent at, and its tag."""
    timed = message + _TIME.pack(time_ns)
    return timed + _tag(key, way, timed)


def unsealed(key: bytes, way: Way, data: bytes) -> tuple[bytes, int]:
    """The message, and when it was sent; WireError unless the key's holder made it for this way."""
    timed, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
    if len(data) < SEAL_BYTES or not hmac.compare_digest(tag, _tag(key, way, timed)):
        raise WireError("not signed with the key", where="probe")
    return timed[: -_TIME.size], _TIME.unpack_from(timed, len(timed) - _TIME.size)[0]


def _tag(key: bytes, way: Way, timed: bytes) -> bytes:
    return hmac.digest(key, way.value + timed, "sha256")[:TAG_BYTES]


def read_probe_key(path: Path) -> bytes:
    """The key in a file that only its owner may read: 16 to 1024 characters, but for space around them."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsageError("not a file", where=str(path), action=_HOW)
            if status.st_mode & 0o077:
                raise UsageError("others may read the key", where=str(path), action=f"chmod 600 {path}")
            key = file.read(LONGEST_KEY + 2).strip()
    except OSError as error:
        raise UsageError(error.strerror or str(error), where=str(path), action=_HOW) from None
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        what = f"a key of {len(key)} characters, where {SHORTEST_KEY} to {LONGEST_KEY} are allowed"
        raise UsageError(what, where=str(path), action=_HOW)
    return key
