"""`Point`: where packets of a segment are seen, and what the node there is assigned to record.

A point is a node, one of its interfaces, a direction and a filter. Guarantee: it records one stream for each generation
of its plan, whatever number of segments it belongs to: the stream's name follows from the point and the generation
alone. Points of equal filters can share a plan; another filter is another point, and another recording.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sojourn.capture.filters import PacketFilter
from sojourn.core.errors import UsageError
from sojourn.core.hashing import hash_bytes
from sojourn.core.keys import NAME_RULE, is_name
from sojourn.segments.plan import SegmentPlan

Way = Literal["in", "out"]
WAYS: tuple[Way, Way] = ("in", "out")
MOST_FILTER = 1000
# As the kernel has it: 15 bytes at most, no slash, colon or space.
_INTERFACE = re.compile(r"[^\s/:]{1,15}")
_STREAM = re.compile(r"point:([^\s/:]{1,15}):(in|out)(?::([0-9a-f]{8}))?:g(\d{1,9})")
_FORM = "write NODE:INTERFACE or NODE:INTERFACE:in|out, such as gateway-7:eth0:out"


@dataclass(frozen=True, kw_only=True, order=True)
class Point:
    """One place where packets are seen; ``filter`` is in its canonical form (`canonical_filter`), none is empty."""

    node: str
    interface: str
    direction: Way
    filter: str = ""

    def __post_init__(self) -> None:
        if not is_name(self.node):
            raise UsageError(f"{self.node[:40]!r} cannot name a node", where="point", action=f"use {NAME_RULE}")
        if not _INTERFACE.fullmatch(self.interface) or self.interface in (".", ".."):
            raise UsageError(f"{self.interface[:40]!r} cannot name an interface", where="point", action=_FORM)
        if self.direction not in WAYS:
            raise UsageError(f"direction is {str(self.direction)[:40]!r}", where="point", action="use in or out")
        if canonical_filter(self.filter) != self.filter:
            raise UsageError("the filter has spaces to spare", where="point", action="use canonical_filter")

    def __str__(self) -> str:
        return f"{self.node}:{self.interface}:{self.direction}"

    @property
    def reverse(self) -> Point:
        """The same interface, and what goes the other way there."""
        direction: Way = "in" if self.direction == "out" else "out"
        return Point(node=self.node, interface=self.interface, direction=direction, filter=self.filter)

    def stream(self, generation: int) -> str:
        """The name of what it records under a generation of its plan.

        >>> parse_point("a.example:eth0", default="out").stream(1)
        'point:eth0:out:g1'
        """
        parts = ["point", self.interface, self.direction]
        if self.filter:
            parts.append(f"{hash_bytes(self.filter.encode()) >> 32:08x}")
        return ":".join([*parts, f"g{generation}"])

    def table(self, plan: SegmentPlan, epoch_ns: int) -> dict[str, str]:
        """What its node is assigned, as a stream's table in the agent's configuration."""
        table = {
            "metric": "packets",
            "sketch": "segment",
            "interface": self.interface,
            "direction": self.direction,
            "epoch": _exact_duration(epoch_ns),
            "plan": plan.to_text(),
        }
        return table | ({"filter": self.filter} if self.filter else {})


def parse_point(text: str, *, default: Way, filter: str = "", where: str = "point") -> Point:  # noqa: A002
    """A point from ``NODE:INTERFACE[:in|out]``; a node's name may hold colons, an interface's cannot.

    Behind a name with colons the direction is not left out: nobody could tell what the last word is.

    >>> str(parse_point("gateway-7:eth0", default="out")), str(parse_point("db.1:br-lan:in", default="out"))
    ('gateway-7:eth0:out', 'db.1:br-lan:in')
    """
    rest, _, last = text.rpartition(":")
    direction = default
    if last in WAYS:
        direction = last
        rest, _, last = rest.rpartition(":")
    elif ":" in rest:
        what = f"{last[:40]!r} at the end of {text[:100]!r} is neither `in` nor `out`"
        raise UsageError(what, where=where, action=f"{_FORM}; a node's name with colons needs the direction")
    if not rest or not last:
        raise UsageError(f"{text[:100]!r} names no node and interface", where=where, action=_FORM)
    canonical = canonical_filter(filter)
    try:
        return Point(node=rest, interface=last, direction=direction, filter=canonical)
    except UsageError as error:
        raise UsageError(error.what, where=where, action=error.action) from None


@lru_cache(maxsize=1000)
def canonical_filter(text: str) -> str:
    """A filter in tcpdump's language, checked, and as it is compared and named: without spaces to spare.

    >>> canonical_filter(" tcp  port 80 ")
    'tcp port 80'
    """
    canonical = " ".join(text.split())
    if len(canonical) > MOST_FILTER:
        raise UsageError(
            f"{len(canonical)} characters exceed {MOST_FILTER}", where="filter", action="write a shorter filter"
        )
    if canonical:
        PacketFilter(canonical)
    return canonical


def stream_direction(name: str) -> str | None:
    """Which way packets pass the point of a stream that `Point.stream` named; None for other streams.

    >>> stream_direction("point:eth0:out:0a1b2c3d:g12"), stream_direction("disk")
    ('out', None)
    """
    found = _STREAM.fullmatch(name)
    return found and found[2]


def _exact_duration(length_ns: int) -> str:
    """A length of time in the largest unit that states it exactly."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if length_ns % size == 0:
            return f"{length_ns // size}{unit}"
    return f"{length_ns}ns"
