"""`FleetSegment`: an ordered pair of points of a fleet, as it was asked for; and groups of points that share a plan.

Points that segments with equal filters join form a *group*: all of its points record under one plan, made for the
largest memory and the shortest epoch that any of its segments asks for. So each point records once, and A → B → C gives
AB, BC and AC from three recordings. Another filter is another recording, in a group of its own.
Cost of grouping: O(segments), by union and find.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sojourn.core.errors import UsageError
from sojourn.core.keys import NAME_RULE, is_name
from sojourn.segments.fleet.point import Point

DEFAULT_EPOCH_NS = 10_000_000_000
SHORTEST_EPOCH_NS, LONGEST_EPOCH_NS = 1_000_000_000, 3_600_000_000_000
FIRST_MEMORY = 128_000  # what a segment begins with whose traffic is not known yet
DEFAULT_ERROR, DEFAULT_CONFIDENCE = 0.05, 0.95
REVERSE = ":reverse"
Wanted = Literal["auto", "ledger", "best"]
AUTO: Wanted = "auto"
LEDGER: Wanted = "ledger"
BEST: Wanted = "best"
_RESERVED = ("measurements", "query")


@dataclass(frozen=True, kw_only=True)
class FleetSegment:
    """A segment from a sender's point to a receiver's; with ``both_directions`` also what goes back between the two.

    Its memory is given, or sized for an error and a confidence: then it begins as `FIRST_MEMORY`, and ``planned_bytes``
    is what planning has found since. A ``sketch`` of ledgers is recorded where memory and loss allow; the best one is
    chosen by what was measured with `auto` first.
    """

    name: str
    sender: Point
    receiver: Point
    epoch_ns: int = DEFAULT_EPOCH_NS
    memory_bytes: int | None = None
    error: float | None = None
    confidence: float | None = None
    both_directions: bool = False
    planned_bytes: int = FIRST_MEMORY
    created_ns: int = 0
    sketch: Wanted = AUTO

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.sender.filter != self.receiver.filter:
            raise UsageError("its points have different filters", where=self._where)
        if self.sender == self.receiver:
            raise UsageError("its two points are one", where=self._where, action="give two different points")
        if not SHORTEST_EPOCH_NS <= self.epoch_ns <= LONGEST_EPOCH_NS:
            raise UsageError("an epoch lasts from 1 s to 1 h", where=self._where, action="give --epoch 10s")
        if (self.memory_bytes is None) == (self.error is None) or (self.error is None) != (self.confidence is None):
            action = "give --memory, or --error with --confidence"
            raise UsageError("it has a memory, or an error with a confidence", where=self._where, action=action)
        if self.sketch not in (AUTO, LEDGER, BEST):
            what = f"{str(self.sketch)[:40]!r} is no sketch of it"
            raise UsageError(what, where=self._where, action="use auto, ledger or best")
        for name, share in (("error", self.error), ("confidence", self.confidence)):
            if share is not None and not 0.001 <= share <= 0.999:
                raise UsageError(f"{name} is {share}", where=self._where, action="give 0.1% to 99.9%")

    @property
    def _where(self) -> str:
        return f"segment {self.name[:40]}"

    @property
    def filter(self) -> str:
        """What all its points filter by."""
        return self.sender.filter

    @property
    def size_bytes(self) -> int:
        """The memory that it needs of each of its points."""
        return self.planned_bytes if self.memory_bytes is None else self.memory_bytes

    @property
    def pairs(self) -> dict[str, tuple[Point, Point]]:
        """Its ordered pairs of points, by name: its own, and with both directions the reverse.

        What leaves through an interface comes back in through the same.
        """
        pairs = {self.name: (self.sender, self.receiver)}
        if self.both_directions:
            pairs[self.name + REVERSE] = (self.receiver.reverse, self.sender.reverse)
        return pairs

    @property
    def points(self) -> tuple[Point, ...]:
        """All its points."""
        return tuple(point for pair in self.pairs.values() for point in pair)


def _check_name(name: str) -> None:
    if not is_name(name):
        raise UsageError(f"{name[:40]!r} cannot name a segment", where="segment", action=f"use {NAME_RULE}")
    if ">" in name or name.endswith(REVERSE) or name in _RESERVED:
        what = f"{name[:40]!r} is a name of another kind"
        raise UsageError(what, where="segment", action=f"leave out > and {REVERSE}, and {' and '.join(_RESERVED)}")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Points that record under one plan, and the segments that join them."""

    points: tuple[Point, ...]
    segments: tuple[FleetSegment, ...]

    @property
    def memory_bytes(self) -> int:
        """The largest memory that one of its segments needs."""
        return max(segment.size_bytes for segment in self.segments)

    @property
    def sketch(self) -> Wanted:
        """A ledger, if one of its segments asks for it, or else the best, if one does."""
        asked = {segment.sketch for segment in self.segments}
        return LEDGER if LEDGER in asked else BEST if BEST in asked else AUTO

    @property
    def epoch_ns(self) -> int:
        """The shortest epoch that one of its segments asks for."""
        return min(segment.epoch_ns for segment in self.segments)


def groups_of(segments: Iterable[FleetSegment]) -> list[Group]:
    """The groups that segments make of their points, in the order of their first points."""
    parent: dict[Point, Point] = {}

    def root(point: Point) -> Point:
        while parent[point] != point:
            parent[point] = parent[parent[point]]  # halves the way for whoever comes next
            point = parent[point]
        return point

    found = list(segments)
    for segment in found:
        for pair in segment.pairs.values():
            for point in pair:
                parent.setdefault(point, point)
            first, second = root(pair[0]), root(pair[1])
            if first != second:
                parent[max(first, second)] = min(first, second)
    points: dict[Point, list[Point]] = {}
    for point in sorted(parent):
        points.setdefault(root(point), []).append(point)
    members: dict[Point, dict[str, FleetSegment]] = {}
    for segment in found:
        for sender, _ in segment.pairs.values():
            members.setdefault(root(sender), {})[segment.name] = segment
    return [Group(points=tuple(group), segments=tuple(members[at].values())) for at, group in points.items()]
